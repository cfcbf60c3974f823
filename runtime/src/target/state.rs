//! What a target remembers of the tokens it has taken in.

use super::config::{Config, Gdn, LayerKind};
use super::forward::Verified;
use crate::Error;
use crate::gdn::{DeltaState, shift};
use crate::kv::{KvCache, KvType};
use rayon::prelude::*;

/// A hash of a state: equal states have equal digests.
pub type Digest = blake3::Hash;

/// Keys, values and recurrent states after some number of tokens. A clone is a snapshot.
#[derive(Debug, Clone)]
pub struct State {
    pub(super) len: usize,
    layers: Vec<LayerState>,
    gdn: Gdn,
    /// A pass began and did not end: some layers have taken its tokens in, others have not.
    broken: bool,
}

#[derive(Debug, Clone)]
pub(super) enum LayerState {
    Attention(KvCache),
    Gdn(GdnState),
}

#[derive(Debug, Clone)]
pub(super) struct GdnState {
    /// Inputs of the convolution, `[taps - 1, channels]`, oldest first.
    pub(super) history: Vec<f32>,
    pub(super) delta: DeltaState,
}

impl State {
    /// No tokens yet.
    #[must_use]
    pub fn new(config: &Config, kv: KvType) -> Self {
        let layer = |kind: &LayerKind| match kind {
            LayerKind::Attention => {
                LayerState::Attention(KvCache::new(config.kv_heads, config.head_dim, kv))
            }
            LayerKind::Gdn => LayerState::Gdn(GdnState {
                history: vec![0.0; (config.gdn.conv_kernel - 1) * config.gdn.channels()],
                delta: DeltaState::new(config.gdn.heads()),
            }),
        };
        let layers = config.layers.iter().map(layer).collect();
        Self { len: 0, layers, gdn: config.gdn, broken: false }
    }

    /// As if `len` tokens were taken in, with noise for keys and values: for measurements.
    #[must_use]
    pub fn noise(config: &Config, kv: KvType, len: usize) -> Self {
        let mut state = Self::new(config, kv);
        state.layers.par_iter_mut().for_each(|layer| {
            if let LayerState::Attention(cache) = layer {
                cache.append_noise(len);
            }
        });
        state.len = len;
        state
    }

    /// Tokens taken in; the next one has this position.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no token was taken in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The layers for a pass. Rows of an earlier pass that were not committed are dropped.
    pub(super) fn begin(&mut self) -> Result<&mut [LayerState], Error> {
        if self.broken {
            return Err(Error::BrokenState);
        }
        self.truncate(self.len);
        self.broken = true;
        Ok(&mut self.layers)
    }

    pub(super) fn end(&mut self) {
        self.broken = false;
    }

    /// Keys and values before `end` only.
    fn truncate(&mut self, end: usize) {
        for layer in &mut self.layers {
            if let LayerState::Attention(cache) = layer {
                cache.truncate(end);
            }
        }
    }

    /// A copy that lacks keys and values before `first`: what a snapshot holds whose beginning
    /// another one has.
    ///
    /// # Panics
    /// If `first` lies behind the last token.
    #[must_use]
    pub fn tail(&self, first: usize) -> Self {
        let layer = |layer: &LayerState| match layer {
            LayerState::Attention(cache) => {
                let mut cache = cache.tail(first);
                cache.truncate(self.len);
                LayerState::Attention(cache)
            }
            LayerState::Gdn(state) => LayerState::Gdn(state.clone()),
        };
        let layers = self.layers.iter().map(layer).collect();
        Self { len: self.len, layers, gdn: self.gdn, broken: self.broken }
    }

    /// Puts parts together: the state of the last one, with the keys and values of all. The first
    /// one begins at position 0, each of the others is the [`State::tail`] of what follows the one
    /// before it. None of no parts.
    ///
    /// # Panics
    /// If one does not follow the other, or they are of different models.
    #[must_use]
    pub fn join(parts: &[&Self]) -> Option<Self> {
        let (last, earlier) = parts.split_last()?;
        let Some((first, middle)) = earlier.split_first() else { return Some((*last).clone()) };
        let mut layers = last.layers.clone();
        for (l, layer) in layers.iter_mut().enumerate() {
            let LayerState::Attention(cache) = layer else { continue };
            let part = |part: &Self| match &part.layers[l] {
                LayerState::Attention(cache) => cache.tail(cache.first()),
                LayerState::Gdn(_) => unreachable!("states of one model"),
            };
            let mut whole = part(first);
            middle.iter().for_each(|middle| whole.extend(&part(middle)));
            whole.extend(cache);
            *cache = whole;
        }
        Some(Self { len: last.len, layers, gdn: last.gdn, broken: last.broken })
    }

    /// The size of keys, values and recurrent states.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let bytes = |layer: &LayerState| match layer {
            LayerState::Attention(cache) => cache.bytes(),
            LayerState::Gdn(state) => size_of_val(&state.history[..]) + state.delta.bytes(),
        };
        self.layers.iter().map(bytes).sum()
    }

    /// Takes in the first `n` tokens of a verified pass: their keys and values stay, and the next pass
    /// moves the recurrent states on.
    ///
    /// # Panics
    /// If the pass has fewer rows, or is not the last one that was computed from this state.
    pub fn commit(&mut self, verified: &Verified, n: usize) {
        assert!(verified.start == self.len && n <= verified.n, "a pass of this state");
        self.truncate(self.len + n);
        let states = self.layers.iter_mut().filter_map(|layer| match layer {
            LayerState::Gdn(state) => Some(state),
            LayerState::Attention(_) => None,
        });
        for (state, (tokens, corrections)) in states.zip(&verified.gdn) {
            shift(&mut state.history, &tokens.u.data()[..n * tokens.u.width()]);
            state.delta.accept(&tokens.updates, corrections, n);
        }
        self.len += n;
    }

    /// The digest of this state and of the token that was delivered last but not taken in yet.
    ///
    /// BLAKE3 over, little-endian: the number of tokens (u64); the pending id (u32, all ones for
    /// none); then layer by layer, for attention the stored bits of all keys, then of all values, by
    /// position; for a delta net the inputs of the convolution, oldest first, then the state, per
    /// value head `[key, value]`. Value heads come in the tiled order whatever the file's is, so the
    /// digest does not tell a GGUF from an MLX pack of the same model.
    #[must_use]
    pub fn digest(&self, pending: Option<u32>) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.len as u64).to_le_bytes());
        hasher.update(&pending.unwrap_or(u32::MAX).to_le_bytes());
        for layer in &self.layers {
            match layer {
                LayerState::Attention(cache) => cache.hash(0, self.len, &mut hasher),
                LayerState::Gdn(state) => state.hash(self.gdn, &mut hasher),
            }
        }
        hasher.finalize()
    }
}

impl GdnState {
    fn hash(&self, gdn: Gdn, hasher: &mut blake3::Hasher) {
        let mut update = |values: &[f32]| {
            values.iter().for_each(|x| {
                hasher.update(&x.to_le_bytes());
            });
        };
        let heads = (0..gdn.value_heads)
            .map(|tiled| gdn.order.place(tiled, gdn.key_heads, gdn.value_heads));
        for u in self.history.chunks_exact(gdn.channels()) {
            let (qk, v) = u.split_at(2 * gdn.key_width());
            update(qk);
            heads.clone().for_each(|head| update(&v[head * gdn.head_dim..][..gdn.head_dim]));
        }
        heads.for_each(|head| update(&self.delta.head(head)));
    }
}
