//! Gated delta net: the recurrent mixer, one token at a time.
//!
//! [`CausalConv`] and norms make queries, keys and values of a token, [`Updates`] hold what tokens do to
//! a state, [`DeltaState`] is the state, and [`GatedNorm`] makes the output of what was read from it.
//!
//! How many value heads share a key head is a matter of their order alone ([`HeadOrder`]); each head
//! is computed by itself, so both orders give the same bits per head.

mod accepted;
mod conv;
mod delta;
mod gated_norm;

pub use conv::{CausalConv, shift};
pub use delta::{Corrections, DeltaState, Update, Updates};
pub use gated_norm::GatedNorm;

/// How the value heads of a file are ordered: where value head `r` of the `rep` heads of key head `kh`
/// stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HeadOrder {
    /// `r · key_heads + kh`: what the GGUF converter makes.
    Tiled,
    /// `kh · rep + r`: the model's definition, and an MLX pack.
    Grouped,
}

impl HeadOrder {
    /// The key head of value head `head`.
    #[must_use]
    pub fn key_head(self, head: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            Self::Tiled => head % key_heads,
            Self::Grouped => head / (value_heads / key_heads),
        }
    }

    /// Where the value head lies that is number `tiled` in the tiled order.
    #[must_use]
    pub fn place(self, tiled: usize, key_heads: usize, value_heads: usize) -> usize {
        match self {
            Self::Tiled => tiled,
            Self::Grouped => tiled % key_heads * (value_heads / key_heads) + tiled / key_heads,
        }
    }
}

/// The heads of one layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// Key (and query) heads.
    pub key_heads: usize,
    /// Value heads, a multiple of the key heads.
    pub value_heads: usize,
    /// Width of a head, of keys and of values.
    pub dim: usize,
    /// Order of the value heads.
    pub order: HeadOrder,
}

impl Heads {
    /// Width of all keys.
    #[must_use]
    pub fn key_width(&self) -> usize {
        self.key_heads * self.dim
    }

    /// Width of all values.
    #[must_use]
    pub fn inner(&self) -> usize {
        self.value_heads * self.dim
    }

    /// Queries, keys and values of a token, side by side.
    #[must_use]
    pub fn channels(&self) -> usize {
        2 * self.key_width() + self.inner()
    }

    /// The key head of value head `head`.
    #[must_use]
    pub fn key_head(&self, head: usize) -> usize {
        self.order.key_head(head, self.key_heads, self.value_heads)
    }

    /// Which tiled head stands at place `g` of the grouped order.
    #[must_use]
    pub fn tiled(&self, g: usize) -> usize {
        let rep = self.value_heads / self.key_heads;
        g % rep * self.key_heads + g / rep
    }
}

/// `tiled[r · nk + kh]` to `grouped[kh · rep + r]`: value heads of `dim` values in the order of the
/// converter, brought into the order of the model's definition. `nk`: key heads.
#[must_use]
pub fn tiled_to_grouped(tiled: &[f32], nk: usize, dim: usize) -> Vec<f32> {
    let rep = tiled.len() / (nk * dim);
    let head = |g: usize| {
        let t = g % rep * nk + g / rep;
        &tiled[t * dim..(t + 1) * dim]
    };
    (0..nk * rep).flat_map(head).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_permuted_as_the_converter_did() {
        // 4 key heads of 2 value heads: an order that is not its own inverse.
        let grouped: Vec<f32> = (0..8).map(|g| g as f32).collect();
        let mut tiled = vec![0.0; 8];
        for kh in 0..4 {
            for r in 0..2 {
                tiled[r * 4 + kh] = grouped[kh * 2 + r];
            }
        }
        assert_eq!(tiled_to_grouped(&tiled, 4, 1), grouped);
        assert_ne!(tiled_to_grouped(&grouped, 4, 1), tiled);
        let wide: Vec<f32> = tiled.iter().flat_map(|t| [*t, t + 0.5]).collect();
        assert_eq!(tiled_to_grouped(&wide, 4, 2)[..4], [0.0, 0.5, 1.0, 1.5]);
    }
}
