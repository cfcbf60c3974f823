//! The DFlash 2 drafter: one pass over a block of rows proposes up to seven tokens.
//!
//! ```text
//! context row p: h = rms(fc · taps(p));  per layer  k = rope(rms(K · h), p),  v = V · h
//! block row i:   [pending, mask, mask, ...] at positions T, T+1, ...
//!     per layer  a = rms(x);  δ = kernel_projection · a
//!                x += conv(O · attention(conv(a, δ_in)), δ_out)
//!                and the same around the MLP
//! selector:      S(a, b) = logit(b) + Σ_r P[a, r] · z_r · Q[b, r], walked from `pending`
//! ```
//!
//! The walk takes the likeliest candidate of each row, or the one that a caller's rule chooses: with
//! sampling, the one that wins with the noise of the target's own draw.
//!
//! Row `i` proposes the token of its own position. All rows of a block see each other (unless the
//! configuration says that they are causal), so the block always has its full width and a shorter
//! draft is a truncation; only the end of the context shortens it. Embedding and head are the
//! target's, through its own rotation.

mod block_conv;
mod context;
mod forward;
mod inputs;
mod load;
mod selector;

pub use context::Context;
pub use inputs::InputObserver;
pub use load::Drafter;
pub use selector::{likeliest, top_k};
