//! The target: a `qwen35` model, a stack of gated-delta-net and full-attention layers.
//!
//! ```text
//! x = embedding[id]
//! per layer:   x += mixer(rms(x, attn_norm))
//!              x += down · (silu(gate · h) ⊙ (up · h)),  h = rms(x, post_attention_norm)
//! logits = head · rms(x, output_norm)
//! ```
//!
//! The residual stream is in the primal basis; rotation happens at each rotated matrix. Every row is
//! computed as if it were alone, so how tokens are grouped into calls changes no bit.
//!
//! A target is read from a GGUF, or from the folder of an MLX 2-bit pack. The two order the value heads
//! of the delta nets differently, which is followed where heads are computed
//! ([`HeadOrder`](crate::gdn::HeadOrder)) and changes no bit of the result.
//!
//! A [`State`] is moved on in one of two ways: [`Target::advance`] takes tokens in for good;
//! [`Target::verify`] computes rows for tokens that may be taken back, and [`State::commit`] keeps
//! the first of them: what they did to the recurrent states is noted, and the next pass takes it in on
//! its way.

mod config;
mod forward;
mod hadamard_keys;
mod load;
mod pack;
mod state;
mod tensors;

pub use config::{Config, Gdn, LayerKind};
pub use forward::{LogitRows, Pass, Verified};
pub use load::Target;
pub use state::{Digest, State};
