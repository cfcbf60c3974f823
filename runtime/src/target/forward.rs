//! The forward pass over a few tokens.

use super::load::{Attention, Gdn, Mixer, Target};
use super::state::{GdnState, LayerState, State};
use crate::attention::attend;
use crate::gdn::{Update, shift, tiled_to_grouped};
use crate::kv::KvCache;
use crate::linear::Input;
use crate::math::{exp, sigmoid, silu, softplus};
use crate::norm::l2_norm;
use crate::rope::Angles;
use crate::rows::{Primal, Rows};
use crate::swiglu::swiglu;
use crate::{Error, fpenv};

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
    /// For each delta-net layer, what each token would do to it.
    pub(super) gdn: Vec<Vec<Token>>,
}

/// What a token does to a delta-net layer.
#[derive(Debug)]
pub(super) struct Token {
    /// Input of the convolution.
    pub(super) u: Vec<f32>,
    pub(super) update: Update,
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
        self.head.apply(&Input::new(hidden, &self.arithmetic))
    }

    fn pass(
        &self,
        state: &mut State,
        ids: &[u32],
        taps: &[usize],
        rows: LogitRows,
        record: bool,
    ) -> Result<(Pass, Vec<Vec<Token>>), Error> {
        fpenv::check()?;
        assert!(!ids.is_empty() && taps.iter().all(|tap| *tap < self.layers.len()));
        let (start, n, limit) = (state.len, ids.len(), self.config.context_length);
        if start.checked_add(n).is_none_or(|end| end > limit) {
            return Err(Error::ContextFull { needed: start.saturating_add(n), limit });
        }
        let mut x = self.embedding.rows(ids)?;
        let layer_states = state.begin()?;

        let angles: Vec<Angles> = (start..start + n).map(|p| self.rope.at(p)).collect();
        let width = taps.len() * self.config.hidden;
        let mut tapped = vec![0.0; n * width];
        let mut recorded = Vec::new();
        for (l, (layer, layer_state)) in self.layers.iter().zip(layer_states).enumerate() {
            let mut a = x.clone();
            layer.attn_norm.apply_each(a.data_mut());
            let mixed = match (&layer.mixer, layer_state) {
                (Mixer::Attention(mixer), LayerState::Attention(cache)) => {
                    self.attention(mixer, &a, start, &angles, cache)?
                }
                (Mixer::Gdn(mixer), LayerState::Gdn(layer_state)) if record => {
                    let mut tokens = Vec::with_capacity(n);
                    let mut scratch = layer_state.clone();
                    let mixed = self.gdn(mixer, &a, &mut scratch, |token| tokens.push(token))?;
                    recorded.push(tokens);
                    mixed
                }
                (Mixer::Gdn(mixer), LayerState::Gdn(layer_state)) => {
                    self.gdn(mixer, &a, layer_state, drop)?
                }
                _ => unreachable!("a state of this model"),
            };
            x.add(&mixed);
            let mut h = x.clone();
            layer.post_attention_norm.apply_each(h.data_mut());
            let h = Input::new(&h, &self.arithmetic);
            let product = swiglu(layer.gate.apply(&h)?, &layer.up.apply(&h)?);
            x.add(&layer.down.apply(&Input::new(&product, &self.arithmetic))?);

            for (place, _) in taps.iter().enumerate().filter(|(_, tap)| **tap == l) {
                let at = place * self.config.hidden;
                for (out, x) in tapped.chunks_exact_mut(width).zip(x.iter()) {
                    out[at..at + x.len()].copy_from_slice(x);
                }
            }
        }
        let mut last = match rows {
            LogitRows::None => None,
            LogitRows::Last => Some(x.slice(n - 1..n)),
            LogitRows::All => Some(x),
        };
        if let Some(x) = &mut last {
            self.output_norm.apply_each(x.data_mut());
        }
        let logits = last.map(|x| self.head(&x)).transpose()?;
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
        let mut qg = mixer.q.apply(&a)?;
        let (mut k, v) = (mixer.k.apply(&a)?, mixer.v.apply(&a)?);
        mixer.k_norm.apply_each(k.data_mut());
        for ((k, v), angles) in k.iter_mut().zip(v.iter()).zip(angles) {
            angles.turn_each(k, dim);
            cache.append(k, v);
        }
        let scale = (1.0 / (dim as f64).sqrt()) as f32;
        let mut out = Rows::zeroed(qg.n(), c.q_width());
        for (i, ((qg, out), angles)) in qg.iter_mut().zip(out.iter_mut()).zip(angles).enumerate() {
            let heads = qg.chunks_exact_mut(2 * dim).zip(out.chunks_exact_mut(dim));
            for (head, (qg, out)) in heads.enumerate() {
                let (q, gate) = qg.split_at_mut(dim);
                mixer.q_norm.apply(q);
                angles.turn(q);
                let kv_head = head / (c.heads / c.kv_heads);
                attend(q, cache, kv_head * dim, 0..start + i + 1, scale, out);
                for (out, gate) in out.iter_mut().zip(&*gate) {
                    *out *= sigmoid(*gate);
                }
            }
        }
        mixer.output.apply(&Input::new(&out, &self.arithmetic))
    }

    fn gdn(
        &self,
        mixer: &Gdn,
        a: &Rows<Primal>,
        state: &mut GdnState,
        mut took_in: impl FnMut(Token),
    ) -> Result<Rows<Primal>, Error> {
        let gdn = self.config.gdn;
        let (dim, eps) = (gdn.head_dim, self.config.eps);
        let a = Input::new(a, &self.arithmetic);
        let (u, z) = (mixer.qkv.apply(&a)?, mixer.gate.apply(&a)?);
        let (alpha, beta) = (mixer.alpha.apply(&a)?, mixer.beta.apply(&a)?);
        let q_scale = (1.0 / (dim as f64).sqrt()) as f32;
        let mut out = Rows::zeroed(u.n(), gdn.inner());
        for (i, u) in u.iter().enumerate() {
            let mut q = mixer.conv.apply(&state.history, u);
            shift(&mut state.history, u);
            let v = q.split_off(2 * gdn.key_width());
            let mut k = q.split_off(gdn.key_width());
            q.chunks_exact_mut(dim).chain(k.chunks_exact_mut(dim)).for_each(|x| l2_norm(x, eps));
            q.iter_mut().for_each(|q| *q *= q_scale);
            let gates = alpha.row(i).iter().zip(&mixer.dt).zip(&mixer.a);
            let decay = gates.map(|((alpha, dt), a)| exp(a * softplus(alpha + dt))).collect();
            let beta = beta.row(i).iter().map(|b| sigmoid(*b)).collect();
            let update = Update { k, v, decay, beta };
            state.delta.update(&update);
            let out = out.row_mut(i);
            state.delta.read(&q, out);
            mixer.norm.apply_each(out);
            for (out, z) in out.iter_mut().zip(z.row(i)) {
                *out *= silu(*z);
            }
            took_in(Token { u: u.to_vec(), update });
        }
        if self.permuted {
            for out in out.iter_mut() {
                out.copy_from_slice(&tiled_to_grouped(out, gdn.key_heads, dim));
            }
        }
        mixer.out.apply(&Input::new(&out, &self.arithmetic))
    }
}
