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
    /// A sum of squares does not fit its integers.
    #[error("moments of `{input}`: a sum that does not fit 64 bits, or is no number")]
    Moments {
        /// The input of the drafter's matrices.
        input: String,
    },
    /// There is no token to continue from.
    #[error("empty prompt")]
    EmptyPrompt,
    /// A chat template is none, fails, or does more than it may.
    #[error("`{}`: chat template{}: {fault}", path.display(), at(*line))]
    Template {
        /// The file it is from.
        path: std::path::PathBuf,
        /// The line of the template, from 1; 0 where none is known.
        line: usize,
        /// What is wrong there.
        fault: String,
    },
    /// A chat template refuses a conversation, or it cannot be given to any.
    #[error("the conversation does not fit the chat template{}: {message}", at(*line))]
    Conversation {
        /// The line of the template that refuses it; 0 if it was not asked.
        line: usize,
        /// The reason, in the template's words.
        message: String,
    },
    /// Control tokens in a conversation, or ones that are put together from pieces, cannot be told
    /// from those of the template.
    #[error(
        "`{}`: chat template: its control tokens cannot be told from text of the conversation",
        path.display()
    )]
    ControlText {
        /// The file the template is from.
        path: std::path::PathBuf,
    },
    /// The system has no memory for packed weights.
    #[error("{bytes} bytes of memory for packed weights: {source}")]
    Memory {
        /// How many were asked for.
        bytes: usize,
        /// What the system said.
        source: std::io::Error,
    },
    /// The NPU, or what lies between, does not do what is asked of it.
    #[error("{device}: {what}")]
    Device {
        /// Its name on command lines.
        device: &'static str,
        /// What happened.
        what: String,
        /// What to do, where that is known.
        hint: Option<String>,
    },
    /// The system has no thread for a piece of work.
    #[error("starting a thread: {source}")]
    Thread {
        /// What the system said.
        source: std::io::Error,
    },
}

/// The line of a template as a part of a message, if it is known.
fn at(line: usize) -> String {
    if line == 0 { String::new() } else { format!(", line {line}") }
}
