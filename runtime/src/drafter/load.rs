//! Loading: from an opened drafter file to matrices that lie where they are, checked against the
//! target.

use std::path::Path;
use std::sync::Arc;

use formats::dflash2::config::{Config, LayerType};
use formats::dflash2::drafter::{self as file, Encoding, Tensor};
use formats::dflash2::names::Role;
use hadamard::Isa;

use super::block_conv::BlockConv;
use super::inputs::InputObserver;
use super::selector::Selector;
use crate::Error;
use crate::backend::Backend;
use crate::linear::{Arithmetic, Linear};
use crate::norm::RmsNorm;
use crate::profile::Profile;
use crate::quant::ActQuant;
use crate::rope::Rope;
use crate::rotation::Rotation;
use crate::target::Target;
use crate::weights::{FloatEncoding, FloatMatrix, TernaryEncoding, TernaryMatrix};
use crate::work::Work;

/// A loaded drafter. Its memory of the context is a [`super::Context`].
#[derive(Debug)]
pub struct Drafter {
    pub(super) config: Config,
    pub(super) arithmetic: Arithmetic,
    pub(super) fc: Linear,
    pub(super) hidden_norm: RmsNorm,
    pub(super) layers: Vec<Layer>,
    pub(super) final_norm: RmsNorm,
    pub(super) selector_hidden: Linear,
    pub(super) selector: Selector,
    pub(super) rope: Rope,
    /// Who is shown the inputs; nobody unless somebody asks.
    pub(super) inputs: Option<Arc<dyn InputObserver>>,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) window: Option<usize>,
    pub(super) causal: bool,
    pub(super) input_norm: RmsNorm,
    pub(super) attention_delta: Linear,
    pub(super) attention_conv: BlockConv,
    pub(super) q: Linear,
    pub(super) k: Linear,
    pub(super) v: Linear,
    pub(super) q_norm: RmsNorm,
    pub(super) k_norm: RmsNorm,
    pub(super) o: Linear,
    pub(super) post_attention_norm: RmsNorm,
    pub(super) mlp_delta: Linear,
    pub(super) mlp_conv: BlockConv,
    pub(super) gate: Linear,
    pub(super) up: Linear,
    pub(super) down: Linear,
}

impl Drafter {
    /// Loads an opened drafter for `target`.
    ///
    /// Weights of sources that are read at positions are copied; [`Drafter::open`] maps them.
    ///
    /// # Errors
    /// [`Error::Mismatch`] when drafter and target do not fit each other, naming the number;
    /// [`Error::Formats`] when the files cannot be read; what the backend says of a matrix.
    pub fn load(
        opened: &file::Drafter,
        target: &Target,
        act: ActQuant,
        isa: Isa,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let config = &opened.config;
        fits(config, target)?;
        let rotation = match &opened.rotation {
            None => None,
            Some(r) => {
                // A width without signs has only +1.
                let width = |width: usize| {
                    let signs = r.signs.get(&width).cloned();
                    (width, signs.unwrap_or_else(|| vec![1; width]))
                };
                let signs = config.matrix_widths().into_iter().map(width).collect();
                Some(Arc::new(Rotation::new(r.block, signs, isa)?))
            }
        };
        let loader = Loader { opened, backend };
        let layers = (0..config.num_hidden_layers).map(|n| loader.layer(config, n));
        Ok(Self {
            fc: loader.linear(Role::Fc, None)?,
            hidden_norm: loader.norm(Role::HiddenNorm, None)?,
            layers: layers.collect::<Result<_, _>>()?,
            final_norm: loader.norm(Role::FinalNorm, None)?,
            selector_hidden: loader.linear(Role::SelectorHidden, None)?,
            selector: Selector {
                predecessor: loader.float(Role::PredecessorCodebook, None)?,
                successor: loader.float(Role::SuccessorCodebook, None)?,
                top_k: config.selector_top_k,
            },
            rope: Rope::new(config.rope_theta, config.head_dim),
            arithmetic: Arithmetic::new(act, rotation, isa),
            config: config.clone(),
            inputs: None,
        })
    }

    /// Opens and loads the drafter at `path`: float safetensors, q4nx or GGUF. `config` overrides the
    /// search for a `config.json`.
    ///
    /// # Errors
    /// As [`Drafter::load`]; [`Error::Formats`] for every rule of the container or the model that is
    /// broken.
    pub fn open(
        path: &Path,
        config: Option<&Path>,
        target: &Target,
        act: ActQuant,
        isa: Isa,
        backend: &dyn Backend,
    ) -> Result<Self, Error> {
        let opened = file::Drafter::open(path, config)?.mapped()?;
        Self::load(&opened, target, act, isa, backend)
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What its layers have to do for a block. Where it borrows the target's head, that comes on top.
    #[must_use]
    pub fn work(&self) -> Work {
        let of = |linears: &[&Linear]| linears.iter().map(|linear| linear.work()).sum();
        let layer = |l: &Layer| -> Work {
            let deltas: Work = of(&[&l.attention_delta, &l.mlp_delta]);
            let attention = of(&[&l.q, &l.k, &l.v, &l.o]);
            [deltas, attention, of(&[&l.gate, &l.up, &l.down])].into_iter().sum()
        };
        self.layers.iter().map(layer).chain([self.selector_hidden.work()]).sum()
    }

    /// All its weights, each once.
    #[must_use]
    pub fn weights(&self) -> Work {
        [self.work(), self.fc.work()].into_iter().sum()
    }

    /// What it has to do for rows of the context.
    #[must_use]
    pub fn context_work(&self) -> Work {
        let layers = self.layers.iter().flat_map(|layer| [layer.k.work(), layer.v.work()]);
        layers.chain([self.fc.work()]).sum()
    }

    /// Takes times of what follows.
    pub fn set_profile(&mut self, profile: Profile) {
        self.arithmetic.profile = profile;
    }
}

/// Every number that both models must agree on.
fn fits(config: &Config, target: &Target) -> Result<(), Error> {
    let mismatch = |what, drafter: usize, target: usize| {
        Err(Error::Mismatch { what, drafter: drafter as u64, target: target as u64 })
    };
    let (hidden, n_layers) = (target.config().hidden, target.config().layers.len());
    if config.hidden_size != hidden {
        return mismatch("hidden size", config.hidden_size, hidden);
    }
    if config.vocab_size != target.vocab() {
        return mismatch("vocabulary size", config.vocab_size, target.vocab());
    }
    if let Some(stated) = config.num_target_layers
        && stated != n_layers
    {
        return mismatch("number of target layers", stated, n_layers);
    }
    match config.target_layer_ids.iter().find(|tap| **tap >= n_layers) {
        Some(tap) => mismatch("tapped layer against the number of layers", *tap, n_layers),
        None => Ok(()),
    }
}

struct Loader<'a> {
    opened: &'a file::Drafter,
    backend: &'a dyn Backend,
}

impl Loader<'_> {
    fn tensor(&self, role: Role, layer: Option<usize>) -> &Tensor {
        let mut tensors = self.opened.tensors.iter();
        #[expect(clippy::expect_used, reason = "opening a drafter checks that all are there")]
        tensors.find(|t| t.spec.role == role && t.spec.layer == layer).expect("an opened drafter")
    }

    fn linear(&self, role: Role, layer: Option<usize>) -> Result<Linear, Error> {
        let tensor = self.tensor(role, layer);
        let (out, inputs) = (tensor.spec.shape[0] as usize, tensor.spec.shape[1] as usize);
        let encoding = match tensor.encoding {
            Encoding::Pq2_0 => TernaryEncoding::Pq2_0,
            Encoding::Ptq1_0 => TernaryEncoding::Ptq1_0,
            Encoding::Q4nx => TernaryEncoding::Q4nx,
            _ => return Ok(Linear::float(self.float(role, layer)?, false)),
        };
        let path = formats::shown_path(tensor.path());
        let view = tensor.view()?;
        let matrix = TernaryMatrix::new(view, encoding, out, inputs, &path, &tensor.stored_name);
        Linear::ternary(matrix, self.backend)
    }

    /// A float tensor as a matrix of its last dimension.
    fn float(&self, role: Role, layer: Option<usize>) -> Result<FloatMatrix, Error> {
        let tensor = self.tensor(role, layer);
        let encoding = match tensor.encoding {
            Encoding::F32 => FloatEncoding::F32,
            Encoding::F16 => FloatEncoding::F16,
            Encoding::Bf16 => FloatEncoding::Bf16,
            ternary => unreachable!("{} is for matrices only", ternary.name()),
        };
        let inputs = tensor.spec.inputs();
        let out = tensor.spec.parameters() / inputs;
        Ok(FloatMatrix::new(tensor.view()?, encoding, out as usize, inputs as usize))
    }

    fn values(&self, role: Role, layer: Option<usize>) -> Result<Vec<f32>, Error> {
        let matrix = self.float(role, layer)?;
        let mut values = vec![0.0; matrix.out_features() * matrix.in_features()];
        for (r, row) in values.chunks_exact_mut(matrix.in_features()).enumerate() {
            matrix.dequantize_row(r, row);
        }
        Ok(values)
    }

    fn norm(&self, role: Role, layer: Option<usize>) -> Result<RmsNorm, Error> {
        Ok(RmsNorm::new(self.values(role, layer)?, self.opened.config.rms_norm_eps))
    }

    fn conv(&self, role: Role, layer: Option<usize>) -> Result<BlockConv, Error> {
        let config = &self.opened.config;
        let base = self.values(role, layer)?;
        Ok(BlockConv::new(config.conv_kernel_size, config.conv_group_size, base))
    }

    fn layer(&self, config: &Config, n: usize) -> Result<Layer, Error> {
        let layer = Some(n);
        Ok(Layer {
            window: config.sliding_window.filter(|_| config.layer_types[n] == LayerType::Sliding),
            causal: config.is_layer_causal(n),
            input_norm: self.norm(Role::InputNorm, layer)?,
            attention_delta: self.linear(Role::AttentionConvProjection, layer)?,
            attention_conv: self.conv(Role::AttentionConvBase, layer)?,
            q: self.linear(Role::Q, layer)?,
            k: self.linear(Role::K, layer)?,
            v: self.linear(Role::V, layer)?,
            q_norm: self.norm(Role::QNorm, layer)?,
            k_norm: self.norm(Role::KNorm, layer)?,
            o: self.linear(Role::O, layer)?,
            post_attention_norm: self.norm(Role::PostAttentionNorm, layer)?,
            mlp_delta: self.linear(Role::MlpConvProjection, layer)?,
            mlp_conv: self.conv(Role::MlpConvBase, layer)?,
            gate: self.linear(Role::Gate, layer)?,
            up: self.linear(Role::Up, layer)?,
            down: self.linear(Role::Down, layer)?,
        })
    }
}
