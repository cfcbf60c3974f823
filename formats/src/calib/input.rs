//! The distinct inputs of a drafter's matrices.

use std::fmt;

use crate::dflash2::config::Config;
use crate::dflash2::names::Role;

/// Rows that one or several matrices are multiplied with. Layers count from 0.
///
/// | input | width | matrices |
/// |---|---|---|
/// | `fc` | taps x hidden | `fc` |
/// | `context` | hidden | `k_proj`, `v_proj` of all layers, for context rows |
/// | `layers.N.attention_conv` | hidden | the attention's `kernel_projection` |
/// | `layers.N.qkv` | hidden | `q_proj`, `k_proj`, `v_proj`, for block rows |
/// | `layers.N.o` | heads x head_dim | `o_proj` |
/// | `layers.N.mlp_conv` | hidden | the MLP's `kernel_projection` |
/// | `layers.N.gate_up` | hidden | `gate_proj`, `up_proj` |
/// | `layers.N.down` | intermediate | `down_proj` |
/// | `selector` | hidden | the selector's `hidden_projection`; rows from 1 on |
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Input {
    /// Tapped states of the target.
    Fc,
    /// Normed outputs of `fc`.
    Context,
    /// Rows of a block after a layer's first norm.
    AttentionConv(usize),
    /// The same after the convolution.
    Qkv(usize),
    /// Outputs of a layer's attention.
    O(usize),
    /// Rows of a block after a layer's second norm.
    MlpConv(usize),
    /// The same after the convolution.
    GateUp(usize),
    /// Products of the SwiGLU.
    Down(usize),
    /// Final normed states.
    Selector,
}

impl Input {
    /// Values of a row.
    #[must_use]
    pub fn width(self, config: &Config) -> usize {
        match self {
            Self::Fc => config.fc_in(),
            Self::O(_) => config.q_width(),
            Self::Down(_) => config.intermediate_size,
            _ => config.hidden_size,
        }
    }

    /// The inputs of one matrix: one, or for `k_proj` and `v_proj` the block rows, then the context
    /// rows. Nothing for what is no matrix.
    #[must_use]
    pub fn of_matrix(role: Role, layer: Option<usize>) -> Vec<Self> {
        let n = layer.unwrap_or(0);
        match role {
            Role::Fc => vec![Self::Fc],
            Role::SelectorHidden => vec![Self::Selector],
            Role::AttentionConvProjection => vec![Self::AttentionConv(n)],
            Role::Q => vec![Self::Qkv(n)],
            Role::K | Role::V => vec![Self::Qkv(n), Self::Context],
            Role::O => vec![Self::O(n)],
            Role::MlpConvProjection => vec![Self::MlpConv(n)],
            Role::Gate | Role::Up => vec![Self::GateUp(n)],
            Role::Down => vec![Self::Down(n)],
            _ => Vec::new(),
        }
    }

    /// The input of this name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "fc" => return Some(Self::Fc),
            "context" => return Some(Self::Context),
            "selector" => return Some(Self::Selector),
            _ => {}
        }
        let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
        let n: usize = layer.parse().ok()?;
        let input = match part {
            "attention_conv" => Self::AttentionConv(n),
            "qkv" => Self::Qkv(n),
            "o" => Self::O(n),
            "mlp_conv" => Self::MlpConv(n),
            "gate_up" => Self::GateUp(n),
            "down" => Self::Down(n),
            _ => return None,
        };
        // One spelling only: neither `layers.01` nor `layers.+1`.
        (input.to_string() == name).then_some(input)
    }
}

impl fmt::Display for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fc => f.write_str("fc"),
            Self::Context => f.write_str("context"),
            Self::AttentionConv(n) => write!(f, "layers.{n}.attention_conv"),
            Self::Qkv(n) => write!(f, "layers.{n}.qkv"),
            Self::O(n) => write!(f, "layers.{n}.o"),
            Self::MlpConv(n) => write!(f, "layers.{n}.mlp_conv"),
            Self::GateUp(n) => write!(f, "layers.{n}.gate_up"),
            Self::Down(n) => write!(f, "layers.{n}.down"),
            Self::Selector => f.write_str("selector"),
        }
    }
}

/// All inputs of a drafter, `6 L + 3`.
#[must_use]
pub fn inputs_of(config: &Config) -> Vec<Input> {
    let layers = (0..config.num_hidden_layers).flat_map(|n| {
        [
            Input::AttentionConv(n),
            Input::Qkv(n),
            Input::O(n),
            Input::MlpConv(n),
            Input::GateUp(n),
            Input::Down(n),
        ]
    });
    [Input::Fc, Input::Context].into_iter().chain(layers).chain([Input::Selector]).collect()
}
