//! What a drafter remembers: keys and values of the target's tapped states.

use formats::dflash2::config::Config;

use crate::kv::{KvCache, KvType};
use crate::target::Digest;

/// Context rows at consecutive positions from 0 on. A clone is a snapshot.
///
/// Where all layers have a window, rows that no later block can see are forgotten.
#[derive(Debug, Clone)]
pub struct Context {
    pub(super) layers: Vec<KvCache>,
    pub(super) len: usize,
    /// Rows before a block that one of its rows may see; none where a layer sees all.
    window: Option<usize>,
}

impl Context {
    /// No rows yet.
    #[must_use]
    pub fn new(config: &Config, kv: KvType) -> Self {
        use formats::dflash2::config::LayerType;
        let all_windowed = config.layer_types.iter().all(|ty| *ty == LayerType::Sliding);
        let layer = |_| KvCache::new(config.num_key_value_heads, config.head_dim, kv);
        Self {
            layers: (0..config.num_hidden_layers).map(layer).collect(),
            len: 0,
            window: config.sliding_window.filter(|_| all_windowed).map(|w| w - 1),
        }
    }

    /// As if `len` rows were taken in, with noise for keys and values: for measurements.
    #[must_use]
    pub fn noise(config: &Config, kv: KvType, len: usize) -> Self {
        /// Rows between which what no block can see is forgotten.
        const STEP: usize = 1024;
        let mut context = Self::new(config, kv);
        while context.len < len {
            let n = STEP.min(len - context.len);
            context.layers.iter_mut().for_each(|layer| layer.append_noise(n));
            context.len += n;
            context.trim();
        }
        context
    }

    /// The most bytes that `positions` rows take: with a window on all layers, up to twice the window
    /// is kept.
    #[must_use]
    pub fn bytes(config: &Config, kv: KvType, positions: usize) -> usize {
        let kept = Self::new(config, kv).window.map_or(positions, |w| positions.min(2 * w));
        kept * config.num_hidden_layers * 2 * config.kv_width() * kv.bytes()
    }

    /// Rows taken in; a block begins at this position.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no row was taken in.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The size of keys and values.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.layers.iter().map(KvCache::bytes).sum()
    }

    /// Rows that a block may see.
    #[must_use]
    pub fn seen(&self) -> usize {
        self.len - self.first()
    }

    /// The first position that a block may see.
    fn first(&self) -> usize {
        self.window.map_or(0, |window| self.len.saturating_sub(window))
    }

    /// Forgets rows that no block can see, now and then: half of what is held is moved.
    pub(super) fn trim(&mut self) {
        let first = self.first();
        for layer in &mut self.layers {
            if first - layer.first() > self.len - first {
                layer.forget_before(first);
            }
        }
    }

    /// BLAKE3 over the number of rows (u64, little-endian) and, layer by layer, the stored bits of
    /// all keys, then all values, of the rows that a block may see, by position.
    #[must_use]
    pub fn digest(&self) -> Digest {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&(self.len as u64).to_le_bytes());
        for layer in &self.layers {
            layer.hash(self.first(), self.len, &mut hasher);
        }
        hasher.finalize()
    }
}
