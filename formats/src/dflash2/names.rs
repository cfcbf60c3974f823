//! The tensors of a drafter: role, shape, and name in each container.
//!
//! One table holds, per role, the name of the published checkpoints and that of
//! the GGUF. A checkpoint may differ from it in two documented ways, both undone
//! by [`resolve`]: wrappers' prefixes (`model.`, `draft_model.`, `_orig_mod.`),
//! and codebooks spelled as the weight of an embedding.

mod resolve;
mod shape;

use crate::dflash2::config::Config;

pub(in crate::dflash2) use resolve::today_in_gguf;
pub use resolve::{Resolved, resolve, resolve_gguf};
pub use shape::{check_block, check_shape};

/// What a tensor is in the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Query projection.
    Q,
    /// Key projection.
    K,
    /// Value projection.
    V,
    /// Projection of the attention output.
    O,
    /// Gate of the SwiGLU.
    Gate,
    /// Up projection of the SwiGLU.
    Up,
    /// Down projection of the SwiGLU.
    Down,
    /// Coefficients of the convolutions around attention.
    AttentionConvProjection,
    /// Coefficients of the convolutions around the MLP.
    MlpConvProjection,
    /// Projection of the target's tapped streams.
    Fc,
    /// Projection of the final hidden state into the selector.
    SelectorHidden,
    /// Selector rows by the earlier token of a pair.
    PredecessorCodebook,
    /// Selector rows by the later token of a pair.
    SuccessorCodebook,
    /// Constant part of the attention convolutions.
    AttentionConvBase,
    /// Constant part of the MLP convolutions.
    MlpConvBase,
    /// Norm before attention.
    InputNorm,
    /// Norm before the MLP.
    PostAttentionNorm,
    /// Norm of each query head.
    QNorm,
    /// Norm of each key head.
    KNorm,
    /// Norm of the context rows, after `fc`.
    HiddenNorm,
    /// Norm of the final hidden state.
    FinalNorm,
}

/// Roles before the layers, in the order of [`specs`].
const BEFORE: [Role; 2] = [Role::Fc, Role::HiddenNorm];

/// Roles of each layer, in the order of the forward pass.
const LAYER: [Role; 15] = [
    Role::InputNorm,
    Role::AttentionConvProjection,
    Role::AttentionConvBase,
    Role::Q,
    Role::K,
    Role::V,
    Role::QNorm,
    Role::KNorm,
    Role::O,
    Role::PostAttentionNorm,
    Role::MlpConvProjection,
    Role::MlpConvBase,
    Role::Gate,
    Role::Up,
    Role::Down,
];

/// Roles after the layers.
const AFTER: [Role; 4] = [
    Role::FinalNorm,
    Role::SelectorHidden,
    Role::PredecessorCodebook,
    Role::SuccessorCodebook,
];

impl Role {
    /// Whether the tensor is a matrix of the forward pass, rotated and ternary
    /// in the compiled drafter. Everything else keeps 16 bits or more.
    #[must_use]
    pub fn is_matrix(self) -> bool {
        use Role::*;
        matches!(
            self,
            Q | K
                | V
                | O
                | Gate
                | Up
                | Down
                | AttentionConvProjection
                | MlpConvProjection
                | Fc
                | SelectorHidden
        )
    }

    /// Whether the tensor is one of the selector's two codebooks: its rows are
    /// gathered, never multiplied as a whole.
    #[must_use]
    pub fn is_codebook(self) -> bool {
        matches!(self, Self::PredecessorCodebook | Self::SuccessorCodebook)
    }

    /// Whether the tensor is the constant part of a convolution.
    #[must_use]
    pub fn is_conv_base(self) -> bool {
        matches!(self, Self::AttentionConvBase | Self::MlpConvBase)
    }

    /// Whether the tensor is the weight of an RMSNorm.
    #[must_use]
    pub fn is_norm(self) -> bool {
        use Role::*;
        matches!(
            self,
            InputNorm | PostAttentionNorm | QNorm | KNorm | HiddenNorm | FinalNorm
        )
    }

    /// Names below `layers.N.` or at the top: published, GGUF.
    fn names(self) -> (&'static str, &'static str) {
        match self {
            Self::Q => ("self_attn.q_proj.weight", "attn_q.weight"),
            Self::K => ("self_attn.k_proj.weight", "attn_k.weight"),
            Self::V => ("self_attn.v_proj.weight", "attn_v.weight"),
            Self::O => ("self_attn.o_proj.weight", "attn_output.weight"),
            Self::Gate => ("mlp.gate_proj.weight", "ffn_gate.weight"),
            Self::Up => ("mlp.up_proj.weight", "ffn_up.weight"),
            Self::Down => ("mlp.down_proj.weight", "ffn_down.weight"),
            Self::AttentionConvProjection => (
                "attention_conv.kernel_projection.weight",
                "attn_conv_proj.weight",
            ),
            Self::MlpConvProjection => {
                ("mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight")
            }
            Self::AttentionConvBase => ("attention_conv.base_kernel", "attn_conv_base"),
            Self::MlpConvBase => ("mlp_conv.base_kernel", "ffn_conv_base"),
            Self::InputNorm => ("input_layernorm.weight", "attn_norm.weight"),
            Self::PostAttentionNorm => ("post_attention_layernorm.weight", "ffn_norm.weight"),
            Self::QNorm => ("self_attn.q_norm.weight", "attn_q_norm.weight"),
            Self::KNorm => ("self_attn.k_norm.weight", "attn_k_norm.weight"),
            Self::Fc => ("fc.weight", "fc.weight"),
            Self::HiddenNorm => ("hidden_norm.weight", "enc.output_norm.weight"),
            Self::FinalNorm => ("norm.weight", "output_norm.weight"),
            Self::SelectorHidden => (
                "candidate_selector.hidden_projection.weight",
                "selector_hidden.weight",
            ),
            Self::PredecessorCodebook => (
                "candidate_selector.predecessor_codebook",
                "selector_predecessor.weight",
            ),
            Self::SuccessorCodebook => (
                "candidate_selector.successor_codebook",
                "selector_successor.weight",
            ),
        }
    }

    /// `[out, in]` of a matrix or codebook, `[side, tap, channel]` of a
    /// convolution's base, `[width]` of a norm.
    fn shape(self, c: &Config) -> Vec<usize> {
        let hidden = c.hidden_size;
        match self {
            Self::Q => vec![c.q_width(), hidden],
            Self::K | Self::V => vec![c.kv_width(), hidden],
            Self::O => vec![hidden, c.q_width()],
            Self::Gate | Self::Up => vec![c.intermediate_size, hidden],
            Self::Down => vec![hidden, c.intermediate_size],
            Self::AttentionConvProjection | Self::MlpConvProjection => vec![c.conv_out(), hidden],
            Self::AttentionConvBase | Self::MlpConvBase => vec![2, c.conv_kernel_size, hidden],
            Self::Fc => vec![hidden, c.fc_in()],
            Self::SelectorHidden => vec![c.selector_rank, hidden],
            Self::PredecessorCodebook | Self::SuccessorCodebook => {
                vec![c.vocab_size, c.selector_rank]
            }
            Self::QNorm | Self::KNorm => vec![c.head_dim],
            Self::InputNorm | Self::PostAttentionNorm | Self::HiddenNorm | Self::FinalNorm => {
                vec![hidden]
            }
        }
    }
}

/// How a checkpoint spells the two codebooks. The bytes are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codebooks {
    /// `candidate_selector.predecessor_codebook`, a parameter (the published files).
    Bare,
    /// `candidate_selector.predecessor_codebook.weight`, the weight of an embedding.
    Weight,
}

/// One tensor that the model must have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorSpec {
    /// What it is.
    pub role: Role,
    /// Its layer; none for the six at the top.
    pub layer: Option<usize>,
    /// Published name, codebooks in the spelling asked for.
    pub name: String,
    /// Name in a GGUF.
    pub gguf_name: String,
    /// Row-major extents, outermost first: `[out, in]` for matrices. A GGUF
    /// lists them in the opposite order.
    pub shape: Vec<u64>,
}

impl TensorSpec {
    fn new(role: Role, layer: Option<usize>, config: &Config, codebooks: Codebooks) -> Self {
        let (name, gguf_name) = role.names();
        let suffix = match codebooks {
            Codebooks::Weight if role.is_codebook() => ".weight",
            _ => "",
        };
        let (name, gguf_name) = match layer {
            Some(n) => (format!("layers.{n}.{name}"), format!("blk.{n}.{gguf_name}")),
            None => (format!("{name}{suffix}"), gguf_name.to_owned()),
        };
        let shape = role.shape(config).into_iter().map(|d| d as u64).collect();
        Self {
            role,
            layer,
            name,
            gguf_name,
            shape,
        }
    }

    /// Number of values.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.shape.iter().product()
    }

    /// Width of the last, contiguous axis: the inputs of a matrix.
    #[must_use]
    pub fn inputs(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }
}

/// The `15 L + 6` tensors of the model in the order of the forward pass: `fc`
/// and its norm, the layers, the final norm, the selector.
#[must_use]
pub fn specs(config: &Config, codebooks: Codebooks) -> Vec<TensorSpec> {
    let top = |role: Role| TensorSpec::new(role, None, config, codebooks);
    let layers = (0..config.num_hidden_layers)
        .flat_map(|n| LAYER.map(|role| TensorSpec::new(role, Some(n), config, codebooks)));
    BEFORE
        .map(top)
        .into_iter()
        .chain(layers)
        .chain(AFTER.map(top))
        .collect()
}

#[cfg(test)]
mod tests;
