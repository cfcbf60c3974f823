//! Loading: from a file or folder to matrices that lie where they are.

use std::path::Path;
use std::sync::Arc;

use formats::Source;
use formats::gguf::File;
use formats::mlx::Pack;
use hadamard::Isa;

use super::config::{Config, LayerKind};
use super::hadamard_keys::Hadamard;
use super::pack::{PackTensors, config_of, hadamard_of};
use super::tensors::{EMBEDDING, GgufTensors, HEAD, Stored, Tensors};
use crate::Error;
use crate::backend::Backend;
use crate::embedding::{Embedding, Table};
use crate::gdn::{CausalConv, GatedNorm, HeadOrder};
use crate::linear::{Arithmetic, Linear};
use crate::norm::RmsNorm;
use crate::profile::Profile;
use crate::quant::ActQuant;
use crate::rope::Rope;
use crate::rotation::Rotation;
use crate::work::Work;

/// A loaded target. It has no state of its own: that is a [`super::State`].
#[derive(Debug)]
pub struct Target {
    pub(super) config: Config,
    pub(super) arithmetic: Arithmetic,
    pub(super) embedding: Embedding,
    pub(super) layers: Vec<Layer>,
    pub(super) output_norm: RmsNorm,
    pub(super) head: Linear,
    pub(super) rope: Rope,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) attn_norm: RmsNorm,
    pub(super) mixer: Mixer,
    pub(super) post_attention_norm: RmsNorm,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

#[derive(Debug)]
pub(super) enum Mixer {
    Attention(Attention),
    Gdn(Gdn),
}

#[derive(Debug)]
pub(super) struct Attention {
    /// Per head: query, then gate.
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) output: Linear,
    pub(super) q_norm: RmsNorm,
    pub(super) k_norm: RmsNorm,
}

#[derive(Debug)]
pub(super) struct Gdn {
    pub(super) qkv: Linear,
    pub(super) gate: Linear,
    pub(super) alpha: Linear,
    pub(super) beta: Linear,
    pub(super) out: Linear,
    pub(super) conv: CausalConv,
    /// `-exp(A_log)`, `[value_heads]`.
    pub(super) a: Vec<f32>,
    /// Added to alpha, `[value_heads]`.
    pub(super) dt: Vec<f32>,
    pub(super) norm: GatedNorm,
}

impl Target {
    /// Loads the GGUF at `path`, or the MLX 2-bit pack in the folder `path`; its weights are mapped.
    ///
    /// # Errors
    /// [`Error::Formats`] for every rule of the container, the model or its rotation that is broken,
    /// naming key or tensor; what the backend says of a matrix.
    pub fn open(
        path: &Path,
        act: ActQuant,
        isa: Isa,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        if path.is_dir() {
            return Self::load_pack(&Pack::open(path)?, act, isa, backend);
        }
        Self::load(Source::map(path)?, act, isa, backend)
    }

    /// Loads a GGUF from any source. Of one that is read at positions, the weights are copied.
    ///
    /// # Errors
    /// As [`Target::open`].
    pub fn load(
        source: Source,
        act: ActQuant,
        isa: Isa,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let file = File::open(source)?;
        let config = Config::from_gguf(&file)?;
        let hadamard = Hadamard::from_gguf(&file)?;
        let tensors = GgufTensors { file: &file };
        Self::assemble(config, hadamard.as_ref(), &tensors, act, isa, backend)
    }

    /// Loads an opened MLX pack.
    ///
    /// Its numbers are those of a GGUF of the same model where both files hold the same ones: a
    /// converter may have rounded norms and gates to other types, and `A_log` is made into
    /// `-exp(A_log)` by [`crate::math::exp`]. `rope_theta` and `rms_norm_eps` are rounded to f32, as a
    /// GGUF holds them.
    ///
    /// # Errors
    /// As [`Target::open`].
    pub fn load_pack(
        pack: &Pack,
        act: ActQuant,
        isa: Isa,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let hadamard = hadamard_of(pack);
        let tensors = PackTensors { pack };
        Self::assemble(config_of(pack.text()), Some(&hadamard), &tensors, act, isa, backend)
    }

    fn assemble(
        config: Config,
        hadamard: Option<&Hadamard>,
        tensors: &dyn Tensors,
        act: ActQuant,
        isa: Isa,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let rotation = match hadamard {
            None => None,
            Some(h) => Some(Arc::new(Rotation::new(h.block, h.signs.clone(), isa)?)),
        };
        let loader = Loader { tensors, hadamard, backend };
        let (embedding, head) = loader.vocabulary(&config, rotation.as_ref())?;
        let layers = (0..config.layers.len()).map(|n| loader.layer(&config, n));
        Ok(Self {
            layers: layers.collect::<Result<_, _>>()?,
            output_norm: loader.norm("output_norm.weight", config.hidden, &config)?,
            embedding,
            head,
            rope: Rope::new(config.rope_theta, config.rope_dims),
            arithmetic: Arithmetic::new(act, rotation, isa),
            config,
        })
    }

    /// Its dimensions.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Number of tokens, padding included.
    #[must_use]
    pub fn vocab(&self) -> usize {
        self.embedding.vocab()
    }

    /// The embedding, which the drafter borrows.
    #[must_use]
    pub fn embedding(&self) -> &Embedding {
        &self.embedding
    }

    /// The arithmetic of its matrices.
    #[must_use]
    pub fn arithmetic(&self) -> &Arithmetic {
        &self.arithmetic
    }

    /// What a pass has to do in its layers.
    #[must_use]
    pub fn work(&self) -> Work {
        let of = |linears: &[&Linear]| linears.iter().map(|linear| linear.work()).sum();
        let layer = |layer: &Layer| -> Work {
            let mixer = match &layer.mixer {
                Mixer::Attention(m) => of(&[&m.q, &m.k, &m.v, &m.output]),
                Mixer::Gdn(m) => of(&[&m.qkv, &m.gate, &m.alpha, &m.beta, &m.out]),
            };
            [mixer, of(&[&layer.gate, &layer.up, &layer.down])].into_iter().sum()
        };
        self.layers.iter().map(layer).sum()
    }

    /// What the head has to do for rows whose logits are wanted.
    #[must_use]
    pub fn head_work(&self) -> Work {
        self.head.work()
    }

    /// Takes times of what follows.
    pub fn set_profile(&mut self, profile: Profile) {
        self.arithmetic.profile = profile;
    }
}

struct Loader<'a> {
    tensors: &'a dyn Tensors,
    hadamard: Option<&'a Hadamard>,
    backend: &'a dyn Backend,
}

impl Loader<'_> {
    fn linear(&self, name: &str, out: usize, inputs: usize) -> Result<Linear, Error> {
        let rotated = self.hadamard.is_some_and(|h| h.forward.contains(name));
        self.tensors.matrix(name, out, inputs)?.linear(rotated, self.backend)
    }

    fn norm(&self, name: &str, width: usize, config: &Config) -> Result<RmsNorm, Error> {
        Ok(RmsNorm::new(self.tensors.values(name, &[width])?, config.eps))
    }

    /// Embedding and head; a file without a head uses the embedding for both.
    fn vocabulary(
        &self,
        config: &Config,
        rotation: Option<&Arc<Rotation>>,
    ) -> Result<(Embedding, Linear), Error> {
        let vocab = self.tensors.vocab();
        let table = self.tensors.matrix(EMBEDDING, vocab, config.hidden)?;
        let rotated = self.hadamard.is_some_and(|h| h.embedding);
        let head = if self.tensors.tied() {
            // Its rows are rotated as those of a head are: both are R applied to the row.
            self.tensors.matrix(EMBEDDING, vocab, config.hidden)?.linear(rotated, self.backend)?
        } else {
            self.linear(HEAD, vocab, config.hidden)?
        };
        let table = match table {
            Stored::Ternary(matrix) => Table::Ternary(matrix),
            Stored::Float(matrix) => Table::Float(matrix),
        };
        Ok((Embedding::new(table, rotation.filter(|_| rotated).cloned()), head))
    }

    fn layer(&self, c: &Config, n: usize) -> Result<Layer, Error> {
        let name = |suffix: &str| format!("blk.{n}.{suffix}");
        let linear =
            |suffix: &str, out: usize, inputs: usize| self.linear(&name(suffix), out, inputs);
        let norm = |suffix: &str, width: usize| self.norm(&name(suffix), width, c);
        let mixer = match c.layers[n] {
            LayerKind::Attention => Mixer::Attention(Attention {
                q: linear("attn_q.weight", 2 * c.q_width(), c.hidden)?,
                k: linear("attn_k.weight", c.kv_width(), c.hidden)?,
                v: linear("attn_v.weight", c.kv_width(), c.hidden)?,
                output: linear("attn_output.weight", c.hidden, c.q_width())?,
                q_norm: norm("attn_q_norm.weight", c.head_dim)?,
                k_norm: norm("attn_k_norm.weight", c.head_dim)?,
            }),
            LayerKind::Gdn => {
                let gdn = c.gdn;
                let values =
                    |suffix: &str, dims: &[usize]| self.tensors.values(&name(suffix), dims);
                let conv = values("ssm_conv1d.weight", &[gdn.conv_kernel, gdn.channels()])?;
                Mixer::Gdn(Gdn {
                    qkv: linear("attn_qkv.weight", gdn.channels(), c.hidden)?,
                    gate: linear("attn_gate.weight", gdn.inner(), c.hidden)?,
                    alpha: linear("ssm_alpha.weight", gdn.value_heads, c.hidden)?,
                    beta: linear("ssm_beta.weight", gdn.value_heads, c.hidden)?,
                    out: linear("ssm_out.weight", c.hidden, gdn.inner())?,
                    conv: CausalConv::new(gdn.channels(), &conv),
                    a: values("ssm_a", &[gdn.value_heads])?,
                    dt: values("ssm_dt.bias", &[gdn.value_heads])?,
                    norm: GatedNorm::new(
                        norm("ssm_norm.weight", gdn.head_dim)?,
                        gdn.heads(),
                        gdn.order == HeadOrder::Tiled && self.hadamard.is_some_and(|h| h.v_grouped),
                    ),
                })
            }
        };
        Ok(Layer {
            attn_norm: norm("attn_norm.weight", c.hidden)?,
            mixer,
            post_attention_norm: norm("post_attention_norm.weight", c.hidden)?,
            gate: linear("ffn_gate.weight", c.feed_forward, c.hidden)?,
            up: linear("ffn_up.weight", c.feed_forward, c.hidden)?,
            down: linear("ffn_down.weight", c.hidden, c.feed_forward)?,
        })
    }
}
