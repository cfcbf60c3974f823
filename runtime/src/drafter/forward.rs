//! Context rows in, a block out.

use std::ops::Range;

use formats::calib;

use super::block_conv::{BlockConv, Side};
use super::context::Context;
use super::load::{Drafter, Layer};
use super::selector::likeliest;
use crate::attention::attend_rows;
use crate::kv::KvCache;
use crate::linear::{Arithmetic, Input};
use crate::math::tanh;
use crate::profile::Stage;
use crate::rope::Angles;
use crate::rows::{Primal, Rows};
use crate::swiglu::swiglu;
use crate::target::Target;
use crate::{Error, fpenv};

impl Drafter {
    /// Takes in the target's tapped states at the next positions: `[n, taps · hidden]`.
    ///
    /// # Errors
    /// [`Error::FloatEnvironment`]; [`Error::NonFinite`], [`Error::Formats`] and what the backend
    /// says, with the context as it was.
    ///
    /// # Panics
    /// If the rows have another width.
    pub fn extend(&self, context: &mut Context, taps: &Rows<Primal>) -> Result<(), Error> {
        fpenv::check()?;
        assert_eq!(taps.width(), self.config.fc_in());
        self.show(calib::Input::Fc, 0, taps)?;
        let h = self.fc.apply(&Input::new(taps, &self.arithmetic))?;
        let profile = &self.arithmetic.profile;
        let norm = || self.hidden_norm.rows(self.arithmetic.isa, &h);
        let h = profile.stage(Stage::Norm, norm)?;
        self.show(calib::Input::Context, 0, &h)?;
        let h = Input::new(&h, &self.arithmetic);
        let start = context.len;
        let angles: Vec<Angles> = (start..start + taps.n()).map(|p| self.rope.at(p)).collect();
        let mut rows = Vec::with_capacity(self.layers.len());
        for layer in &self.layers {
            rows.push(self.keys_and_values(layer, &h, &angles)?);
        }
        profile.stage(Stage::Attention, || {
            for (cache, (k, v)) in context.layers.iter_mut().zip(&rows) {
                k.iter().zip(v.iter()).for_each(|(k, v)| cache.append(k, v));
            }
        });
        context.len += taps.n();
        context.trim();
        Ok(())
    }

    /// The likeliest tokens after `pending`, which stands at the context's end: at most
    /// `block_size - 1`, fewer where the drafter's longest context ends.
    ///
    /// # Errors
    /// As [`Drafter::extend`]; [`Error::TokenId`].
    pub fn draft(
        &self,
        context: &mut Context,
        target: &Target,
        pending: u32,
    ) -> Result<Vec<u32>, Error> {
        self.draft_by(context, target, pending, |_, scores| likeliest(scores))
    }

    /// As [`Drafter::draft`], with another rule for the walk: `choose` is given how many tokens were
    /// chosen before, and the candidates with their scores, by id ascending; there is at least one.
    ///
    /// # Errors
    /// As [`Drafter::draft`].
    pub fn draft_by(
        &self,
        context: &mut Context,
        target: &Target,
        pending: u32,
        mut choose: impl FnMut(usize, &[(u32, f32)]) -> u32,
    ) -> Result<Vec<u32>, Error> {
        let room = self.config.max_position_embeddings.saturating_sub(context.len);
        let n = self.config.block_size.min(room);
        if n < 2 {
            return Ok(Vec::new());
        }
        let hidden = self.block(context, target, pending, n)?;
        let hidden = hidden.slice(1..n);
        self.show(calib::Input::Selector, 1, &hidden)?;
        let mut logits = target.head(&hidden)?;
        let z = self.selector_hidden.apply(&Input::new(&hidden, &self.arithmetic))?;
        self.arithmetic.profile.stage(Stage::Selector, || {
            self.shape_logits(&mut logits);
            let candidates = self.selector.candidates(self.arithmetic.isa, &logits)?;
            let mut previous = pending;
            let rows = candidates.iter().zip(z.iter()).enumerate();
            let walk = rows.map(|(i, (candidates, z))| {
                previous = choose(i, &self.selector.scores(previous, candidates, z));
                previous
            });
            Ok(walk.collect())
        })
    }

    /// The normed hidden states of a block of `n` rows, `[n, hidden]`.
    ///
    /// # Errors
    /// As [`Drafter::draft`].
    pub fn block(
        &self,
        context: &mut Context,
        target: &Target,
        pending: u32,
        n: usize,
    ) -> Result<Rows<Primal>, Error> {
        fpenv::check()?;
        let mut ids = vec![self.config.mask_token_id; n];
        ids[0] = pending;
        let profile = &self.arithmetic.profile;
        let mut x = profile.stage(Stage::Embedding, || target.embedding().rows(&ids))?;
        if let Some(scale) = self.config.input_embedding_scale {
            x.data_mut().iter_mut().for_each(|x| *x *= scale as f32);
        }
        let start = context.len;
        let angles: Vec<Angles> = (start..start + n).map(|p| self.rope.at(p)).collect();
        for (number, cache) in context.layers.iter_mut().enumerate() {
            let result = self.layer(number, &mut x, start, &angles, cache);
            // The block's own keys and values are not context.
            cache.truncate(start);
            result?;
        }
        profile.stage(Stage::Norm, || self.final_norm.rows(self.arithmetic.isa, &x))
    }

    fn layer(
        &self,
        number: usize,
        x: &mut Rows<Primal>,
        start: usize,
        angles: &[Angles],
        cache: &mut KvCache,
    ) -> Result<(), Error> {
        let (layer, arithmetic) = (&self.layers[number], &self.arithmetic);
        let Arithmetic { isa, profile, .. } = arithmetic;
        let convolve = |conv: &BlockConv, z: &_, delta: &_, side| {
            profile.stage(Stage::Convolution, || conv.apply(*isa, z, delta, side))
        };
        let a = profile.stage(Stage::Norm, || layer.input_norm.rows(*isa, x))?;
        self.show(calib::Input::AttentionConv(number), 0, &a)?;
        let delta = layer.attention_delta.apply(&Input::new(&a, arithmetic))?;
        let a = convolve(&layer.attention_conv, &a, &delta, Side::Input)?;
        self.show(calib::Input::Qkv(number), 0, &a)?;
        let o = self.attention(number, &a, start, angles, cache)?;
        let o = convolve(&layer.attention_conv, &o, &delta, Side::Output)?;

        let m = profile.stage(Stage::Norm, || {
            x.add(&o);
            layer.post_attention_norm.rows(*isa, x)
        })?;
        self.show(calib::Input::MlpConv(number), 0, &m)?;
        let delta = layer.mlp_delta.apply(&Input::new(&m, arithmetic))?;
        let m = convolve(&layer.mlp_conv, &m, &delta, Side::Input)?;
        self.show(calib::Input::GateUp(number), 0, &m)?;
        let m = Input::new(&m, arithmetic);
        let (gate, up) = (layer.gate.apply(&m)?, layer.up.apply(&m)?);
        let product = profile.stage(Stage::Gate, || swiglu(*isa, gate, &up))?;
        self.show(calib::Input::Down(number), 0, &product)?;
        let f = layer.down.apply(&Input::new(&product, arithmetic))?;
        let f = convolve(&layer.mlp_conv, &f, &delta, Side::Output)?;
        profile.stage(Stage::Norm, || x.add(&f));
        Ok(())
    }

    /// Keys, normed and turned, and values.
    fn keys_and_values(
        &self,
        layer: &Layer,
        h: &Input<'_>,
        angles: &[Angles],
    ) -> Result<(Rows<Primal>, Rows<Primal>), Error> {
        let (mut k, v) = (layer.k.apply(h)?, layer.v.apply(h)?);
        self.arithmetic.profile.stage(Stage::Attention, || {
            layer.k_norm.apply_each(self.arithmetic.isa, k.data_mut());
            for (k, angles) in k.iter_mut().zip(angles) {
                angles.turn_each(k, self.config.head_dim);
            }
        });
        Ok((k, v))
    }

    fn attention(
        &self,
        number: usize,
        a: &Rows<Primal>,
        start: usize,
        angles: &[Angles],
        cache: &mut KvCache,
    ) -> Result<Rows<Primal>, Error> {
        let (c, layer) = (&self.config, &self.layers[number]);
        let (n, dim) = (a.n(), c.head_dim);
        let a = Input::new(a, &self.arithmetic);
        let mut q = layer.q.apply(&a)?;
        let (k, v) = self.keys_and_values(layer, &a, angles)?;
        let Arithmetic { isa, profile, .. } = &self.arithmetic;
        let mut out = Rows::zeroed(n, c.q_width());
        profile.stage(Stage::Attention, || {
            layer.q_norm.apply_each(*isa, q.data_mut());
            q.iter_mut().zip(angles).for_each(|(q, angles)| angles.turn_each(q, dim));
            k.iter().zip(v.iter()).for_each(|(k, v)| cache.append(k, v));
            let scale = (1.0 / (dim as f64).sqrt()) as f32;
            let see = |i| visible(layer.window, layer.causal, start + i, start + n);
            let visible: Vec<_> = (0..n).map(see).collect();
            attend_rows(*isa, q.data(), cache, &visible, scale, out.data_mut())
        })?;
        self.show(calib::Input::O(number), 0, &out)?;
        layer.o.apply(&Input::new(&out, &self.arithmetic))
    }

    /// The head's multiplier and soft cap, where the configuration has them.
    fn shape_logits(&self, logits: &mut Rows<Primal>) {
        if let Some(factor) = self.config.output_multiplier {
            logits.data_mut().iter_mut().for_each(|x| *x *= factor as f32);
        }
        if let Some(cap) = self.config.final_logit_softcapping {
            let cap = cap as f32;
            logits.data_mut().iter_mut().for_each(|x| *x = cap * tanh(*x / cap));
        }
    }
}

/// Positions that the row at `position` of a block that ends at `end` sees: all before `end`, or up
/// to itself if it is causal; with a window, those less than `window` away.
fn visible(window: Option<usize>, causal: bool, position: usize, end: usize) -> Range<usize> {
    let first = window.map_or(0, |w| (position + 1).saturating_sub(w));
    let last = if causal { position + 1 } else { end };
    first..window.map_or(last, |w| last.min(position + w))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_window_is_that_of_each_row() {
        // Window 6, block of 4 at 13: rows see 5 positions back and the whole block.
        assert_eq!(visible(Some(6), false, 13, 17), 8..17);
        assert_eq!(visible(Some(6), false, 16, 17), 11..17);
        assert_eq!(visible(Some(6), true, 13, 17), 8..14);
        assert_eq!(visible(Some(2), false, 13, 17), 12..15);
        assert_eq!(visible(None, false, 13, 17), 0..17);
        assert_eq!(visible(None, true, 13, 17), 0..14);
        assert_eq!(visible(Some(6), false, 2, 5), 0..5);
    }
}
