//! The forward pass over a few tokens.

use super::load::{Attention, Gdn, Mixer, Target};
use super::state::{GdnState, LayerState, State};
use crate::attention::attend_rows;
use crate::gdn::{Corrections, Updates, shift};
use crate::kv::KvCache;
use crate::linear::{Arithmetic, Input};
use crate::math::{exp, sigmoid, softplus};
use crate::profile::Stage;
use crate::rope::Angles;
use crate::rows::{Primal, Rows};
use crate::swiglu::swiglu;
use crate::{Error, fpenv, simd, spread};

/// Which rows the head is applied to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None.
    None,
    /// The last token's.
    Last,
    /// Every token's.
    All,
}

/// What a pass over `n` tokens gives.
#[derive(Debug, Clone, PartialEq)]
pub struct Pass {
    /// `[n or 1, vocab]`, as asked for.
    pub logits: Option<Rows<Primal>>,
    /// `[n, taps · hidden]`: the residual stream after each tapped layer, side by side; nothing when
    /// no layer is tapped.
    pub taps: Option<Rows<Primal>>,
}

/// Tokens that were computed from a state but are not part of it; see [`State::commit`].
#[derive(Debug)]
pub struct Verified {
    pub(super) start: usize,
    pub(super) n: usize,
    /// For each delta-net layer, what the tokens would do to it.
    pub(super) gdn: Vec<(Tokens, Corrections)>,
}

/// What tokens do to a delta-net layer.
#[derive(Debug)]
pub(super) struct Tokens {
    /// Inputs of the convolution, `[n, channels]`.
    pub(super) u: Rows<Primal>,
    pub(super) updates: Updates,
}

impl Target {
    /// Takes `ids` in. `taps`: layers whose output is wanted.
    ///
    /// # Errors
    /// [`Error::TokenId`] and [`Error::ContextFull`] before anything happens;
    /// [`Error::FloatEnvironment`]; [`Error::NonFinite`], [`Error::Formats`] and what the backend
    /// says, after which the state can no longer be used.
    ///
    /// # Panics
    /// If there are no ids, or no such layer.
    pub fn advance(
        &self,
        state: &mut State,
        ids: &[u32],
        taps: &[usize],
        rows: LogitRows,
    ) -> Result<Pass, Error> {
        let (pass, _) = self.pass(state, ids, taps, rows, false)?;
        state.len += ids.len();
        Ok(pass)
    }

    /// Computes what [`Target::advance`] would, with the logits of every token, but takes nothing in.
    ///
    /// # Errors
    /// As [`Target::advance`].
    ///
    /// # Panics
    /// As [`Target::advance`].
    pub fn verify(
        &self,
        state: &mut State,
        ids: &[u32],
        taps: &[usize],
    ) -> Result<(Pass, Verified), Error> {
        let (pass, gdn) = self.pass(state, ids, taps, LogitRows::All, true)?;
        Ok((pass, Verified { start: state.len, n: ids.len(), gdn }))
    }

    /// Logits of hidden states that are normed already, `[n, vocab]`: for the drafter.
    ///
    /// # Errors
    /// As [`crate::linear::Linear::apply`].
    pub fn head(&self, hidden: &Rows<Primal>) -> Result<Rows<Primal>, Error> {
        self.head.apply_as(Stage::Head, &Input::new(hidden, &self.arithmetic))
    }

    fn pass(
        &self,
        state: &mut State,
        ids: &[u32],
        taps: &[usize],
        rows: LogitRows,
        record: bool,
    ) -> Result<(Pass, Vec<(Tokens, Corrections)>), Error> {
        fpenv::check()?;
        let (isa, profile) = (self.arithmetic.isa, &self.arithmetic.profile);
        assert!(!ids.is_empty() && taps.iter().all(|tap| *tap < self.layers.len()));
        let (start, n, limit) = (state.len, ids.len(), self.config.context_length);
        if start.checked_add(n).is_none_or(|end| end > limit) {
            return Err(Error::ContextFull { needed: start.saturating_add(n), limit });
        }
        let mut x = profile.stage(Stage::Embedding, || self.embedding.rows(ids))?;
        let layer_states = state.begin()?;

        let angles: Vec<Angles> = (start..start + n).map(|p| self.rope.at(p)).collect();
        let width = taps.len() * self.config.hidden;
        let mut tapped = vec![0.0; n * width];
        let mut recorded = Vec::new();
        for (l, (layer, layer_state)) in self.layers.iter().zip(layer_states).enumerate() {
            let a = profile.stage(Stage::Norm, || layer.attn_norm.rows(isa, &x))?;
            let mixed = match (&layer.mixer, layer_state) {
                (Mixer::Attention(mixer), LayerState::Attention(cache)) => {
                    self.attention(mixer, &a, start, &angles, cache)?
                }
                (Mixer::Gdn(mixer), LayerState::Gdn(layer_state)) => {
                    let (tokens, z) = self.gdn_tokens(mixer, &a, &layer_state.history)?;
                    let (read, corrections) = profile.stage(Stage::DeltaNet, || {
                        let GdnState { history, delta } = layer_state;
                        if record {
                            let (read, corrections) = delta.outputs(isa, &tokens.updates)?;
                            return Ok((read, Some(corrections)));
                        }
                        shift(history, tokens.u.data());
                        Ok::<_, Error>((delta.advance(isa, &tokens.updates)?, None))
                    })?;
                    let gate = || mixer.norm.apply(isa, &read, &z);
                    let out = profile.stage(Stage::Gate, gate)?;
                    recorded.extend(corrections.map(|corrections| (tokens, corrections)));
                    mixer.out.apply(&Input::new(&out, &self.arithmetic))?
                }
                _ => unreachable!("a state of this model"),
            };
            let h = profile.stage(Stage::Norm, || {
                x.add(&mixed);
                layer.post_attention_norm.rows(isa, &x)
            })?;
            let h = Input::new(&h, &self.arithmetic);
            let (gate, up) = (layer.gate.apply(&h)?, layer.up.apply(&h)?);
            let product = profile.stage(Stage::Gate, || swiglu(isa, gate, &up))?;
            let mlp = layer.down.apply(&Input::new(&product, &self.arithmetic))?;
            profile.stage(Stage::Norm, || x.add(&mlp));

            for (place, _) in taps.iter().enumerate().filter(|(_, tap)| **tap == l) {
                let at = place * self.config.hidden;
                for (out, x) in tapped.chunks_exact_mut(width).zip(x.iter()) {
                    out[at..at + x.len()].copy_from_slice(x);
                }
            }
        }
        let last = match rows {
            LogitRows::None => None,
            LogitRows::Last => Some(x.slice(n - 1..n)),
            LogitRows::All => Some(x),
        };
        let norm = |x| profile.stage(Stage::Norm, || self.output_norm.rows(isa, &x));
        let head = |x: Rows<Primal>| self.head(&norm(x)?);
        let logits = last.map(head).transpose()?;
        state.end();
        let taps = (width > 0).then(|| Rows::from_vec(width, tapped));
        Ok((Pass { logits, taps }, recorded))
    }

    fn attention(
        &self,
        mixer: &Attention,
        a: &Rows<Primal>,
        start: usize,
        angles: &[Angles],
        cache: &mut KvCache,
    ) -> Result<Rows<Primal>, Error> {
        let c = &self.config;
        let dim = c.head_dim;
        let a = Input::new(a, &self.arithmetic);
        let qg = mixer.q.apply(&a)?;
        let (mut k, v) = (mixer.k.apply(&a)?, mixer.v.apply(&a)?);
        let isa = self.arithmetic.isa;
        let out = self.arithmetic.profile.stage(Stage::Attention, || {
            mixer.k_norm.apply_each(isa, k.data_mut());
            for ((k, v), angles) in k.iter_mut().zip(v.iter()).zip(angles) {
                angles.turn_each(k, dim);
                cache.append(k, v);
            }
            let scale = (1.0 / (dim as f64).sqrt()) as f32;
            let (n, width) = (qg.n(), c.q_width());
            let mut q = Rows::zeroed(n, width);
            spread::parts(q.data_mut(), width, width / 2, |i, q| {
                let heads = q.chunks_exact_mut(dim).zip(qg.row(i).chunks_exact(2 * dim));
                heads.for_each(|(q, qg)| q.copy_from_slice(&qg[..dim]));
                mixer.q_norm.apply_each(isa, q);
                angles[i].turn_each(q, dim);
                Ok(())
            })?;
            let visible: Vec<_> = (0..n).map(|i| 0..start + i + 1).collect();
            let mut out = Rows::zeroed(n, width);
            attend_rows(isa, q.data(), cache, &visible, scale, out.data_mut())?;
            spread::parts(out.data_mut(), width, 2 * width, |i, out| {
                let heads = out.chunks_exact_mut(dim).zip(qg.row(i).chunks_exact(2 * dim));
                heads.for_each(|(out, qg)| gated(isa, out, &qg[dim..]));
                Ok(())
            })?;
            Ok::<_, Error>(out)
        })?;
        mixer.output.apply(&Input::new(&out, &self.arithmetic))
    }

    /// What the tokens do to a delta-net layer with this history, and the gates of its output.
    fn gdn_tokens(
        &self,
        mixer: &Gdn,
        a: &Rows<Primal>,
        history: &[f32],
    ) -> Result<(Tokens, Rows<Primal>), Error> {
        let heads = self.config.gdn.heads();
        let scales = (self.config.eps, (1.0 / (heads.dim as f64).sqrt()) as f32);
        let a = Input::new(a, &self.arithmetic);
        let (u, z) = (mixer.qkv.apply(&a)?, mixer.gate.apply(&a)?);
        let (mut decay, mut beta) = (mixer.alpha.apply(&a)?, mixer.beta.apply(&a)?);
        let Arithmetic { isa, profile, .. } = &self.arithmetic;
        let convolve = || mixer.conv.queries_keys_values(*isa, history, &u, heads, scales);
        let qkv = profile.stage(Stage::Convolution, convolve)?;
        // Alpha and beta of a token become its decays and strengths.
        let width = heads.value_heads;
        let parts = ((decay.data_mut(), width), (beta.data_mut(), width));
        spread::parts2(parts.0, parts.1, 100 * width, |_, decay, beta| {
            for ((decay, dt), a) in decay.iter_mut().zip(&mixer.dt).zip(&mixer.a) {
                *decay = exp(a * softplus(*decay + dt));
            }
            beta.iter_mut().for_each(|beta| *beta = sigmoid(*beta));
            Ok(())
        })?;
        let updates = Updates { heads, qkv, decay: decay.into_vec(), beta: beta.into_vec() };
        Ok((Tokens { u, updates }, z))
    }
}

simd::per_isa! {
    /// `out ⊙ sigmoid(gate)`.
    fn gated(out: &mut [f32], gate: &[f32]) {
        for (out, gate) in out.iter_mut().zip(gate) {
            *out *= sigmoid(*gate);
        }
    }
}
