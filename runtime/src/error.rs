//! What can go wrong while a model is loaded or run, by failure mode.

/// An error of the runtime.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The floating-point control register does not hold the default modes.
    #[error(
        "floating-point environment: expected {expected}, found {found}; \
         the calling program changed it"
    )]
    FloatEnvironment {
        /// The mode that arithmetic relies on.
        expected: &'static str,
        /// What is set instead.
        found: &'static str,
    },
    /// A file is not what it must be.
    #[error(transparent)]
    Formats(#[from] formats::Error),
    /// A rotation is not defined as its file says.
    #[error(transparent)]
    Hadamard(#[from] hadamard::Error),
    /// A vector is to be rotated whose width has no signs.
    #[error("no rotation signs for vectors of width {width}")]
    NoSigns {
        /// The width.
        width: usize,
    },
    /// A number is infinite or not a number.
    #[error("non-finite {what} in row {row}, at {at}")]
    NonFinite {
        /// What the number is part of.
        what: &'static str,
        /// Its row in the batch.
        row: usize,
        /// Its place in the row.
        at: usize,
    },
    /// A token id that the vocabulary does not have.
    #[error("token id {id}: the vocabulary has {vocab} tokens")]
    TokenId {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab: usize,
    },
    /// More tokens than the context holds.
    #[error("context of {limit} tokens: {needed} are needed")]
    ContextFull {
        /// Tokens with those that were to be taken in.
        needed: usize,
        /// The longest context.
        limit: usize,
    },
    /// An earlier pass over the state failed half-way.
    #[error("the state was left by a pass that failed; start again from a snapshot")]
    BrokenState,
    /// Drafter and target are not made for each other.
    #[error(
        "the drafter does not fit the target: {what}: {drafter} in the drafter, {target} in the target"
    )]
    Mismatch {
        /// Which number differs.
        what: &'static str,
        /// The drafter's.
        drafter: u64,
        /// The target's.
        target: u64,
    },
    /// A sampling parameter has no meaning.
    #[error("sampling parameter `{name}`: expected {expected}, found {found}")]
    Sampling {
        /// The parameter.
        name: &'static str,
        /// What is legal.
        expected: &'static str,
        /// What was given.
        found: f64,
    },
    /// There is no token to continue from.
    #[error("empty prompt")]
    EmptyPrompt,
}
