//! Sampling that does not depend on speculation: the token is a function of (logits, parameters,
//! seed, position).
//!
//! With `max` the largest logit and `T` the temperature, all in f64:
//!
//! ```text
//! order     tokens by logit descending, then by id ascending; -0 and 0 are equal
//! y_i       (logit_i - max) / T
//! top-k     the first k of the order                                          k = 0: all
//! top-p     of those, as many from the front as it takes for their e^y_i to
//!           reach p · Z; Z is the sum over all that top-k kept                p = 1: all
//! min-p     those with y_i >= ln(min_p): at least min_p times as likely as
//!           the likeliest                                                     min_p = 0: all
//! choice    the largest y_i + gumbel(seed, position, i), the lowest id among equals
//! ```
//!
//! `Z` is summed in ascending order of ids, term `i` in lane `i mod 16` ([`Sum16`]); what the front
//! reaches is a plain chain from +0 in the order of the candidates. An exponent below -708 counts as
//! -708. Temperature 0 is [`Greedy`], whatever the other parameters.
//!
//! Each rule keeps a front of one order, and where a front is needed it is selected, so the whole
//! vocabulary is never sorted. Tokens whose noise cannot win are passed over without a logarithm.
//!
//! The noise is that of [`Noise`]: adding it and taking the largest draws from the softmax of the
//! kept `y_i`. Since it depends on nothing but seed, position and id, sampled output with speculation
//! equals sampled output without, bit for bit, and a drafter that adds the same noise to its own
//! scores ([`Sampler::pick`]) tends to choose what the target will.

use std::cmp::Reverse;

use super::noise::{Noise, at_most, gumbel};
use super::verifier::{Greedy, Verifier};
use crate::math::{Sum16, exp_f64, ln};
use crate::{Error, fpenv};

/// How tokens are drawn. Not checked yet; see [`Sampler::new`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What logits are divided by. 0: the likeliest token, always.
    pub temperature: f64,
    /// The most tokens that are drawn from. 0: all.
    pub top_k: usize,
    /// The probability that the tokens that are drawn from have together. 1: all tokens.
    pub top_p: f64,
    /// The least probability relative to the likeliest token. 0: none.
    pub min_p: f64,
    /// Which of all draws.
    pub seed: u64,
}

impl Default for Sampling {
    /// Temperature 1 and nothing cut off.
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 }
    }
}

/// Draws tokens: see the module.
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    /// `ln(min_p)`.
    floor: f64,
    /// Room for candidates.
    front: Vec<u64>,
}

impl Sampler {
    /// Checks the parameters.
    ///
    /// # Errors
    /// [`Error::Sampling`] for a temperature that is negative or no number, a `top_p` that is not
    /// above 0 and at most 1, a `min_p` outside of 0 to 1.
    pub fn new(sampling: Sampling) -> Result<Self, Error> {
        let Sampling { temperature, top_p, min_p, .. } = sampling;
        for (name, found, legal, expected) in [
            (
                "temperature",
                temperature,
                temperature.is_finite() && temperature >= 0.0,
                "a number of at least 0",
            ),
            ("top_p", top_p, top_p > 0.0 && top_p <= 1.0, "a number above 0 and at most 1"),
            ("min_p", min_p, (0.0..=1.0).contains(&min_p), "a number from 0 to 1"),
        ] {
            if !legal {
                return Err(Error::Sampling { name, expected, found });
            }
        }
        Ok(Self { sampling, floor: ln(min_p), front: Vec::new() })
    }

    /// The parameters.
    #[must_use]
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// The same draws, from all tokens.
    #[must_use]
    pub fn unfiltered(&self) -> Self {
        let sampling = Sampling { top_k: 0, top_p: 1.0, min_p: 0.0, ..self.sampling };
        Self { sampling, floor: f64::NEG_INFINITY, front: Vec::new() }
    }

    /// Whether it draws at all: its temperature is not 0.
    #[must_use]
    pub fn draws(&self) -> bool {
        self.sampling.temperature > 0.0
    }

    /// The choice at `position` among `candidates`, tokens with their scores by id ascending: the
    /// rule of the module with these tokens as the whole vocabulary. Scores that are no numbers lose.
    ///
    /// # Panics
    /// If there are no candidates.
    #[must_use]
    pub fn pick(&self, candidates: &[(u32, f32)], position: usize) -> u32 {
        let mut best = candidates[0];
        for candidate in candidates {
            if candidate.1 > best.1 || best.1.is_nan() {
                best = *candidate;
            }
        }
        if !self.draws() {
            return best.0;
        }
        self.draw(&mut Vec::new(), candidates.iter().copied(), best, position)
    }

    /// [`Sampler::pick`], and how clearly it won: the softmax weight of its scaled score with noise
    /// among all that have less. A guess of the probability that a sampler whose scores are a little
    /// different chooses the same.
    ///
    /// # Panics
    /// As [`Sampler::pick`].
    pub(super) fn weighed_pick(&self, candidates: &[(u32, f32)], position: usize) -> (u32, f64) {
        let id = self.pick(candidates, position);
        let noise = Noise::new(self.sampling.seed, position as u64);
        let noisy = |(id, score): (u32, f32)| {
            if self.draws() {
                f64::from(score) / self.sampling.temperature + noise.gumbel(id)
            } else {
                f64::from(score)
            }
        };
        let chosen = candidates.iter().find(|(other, _)| *other == id);
        let best = chosen.map_or(0.0, |chosen| noisy(*chosen));
        // What has more was cut off before the draw.
        let behind = candidates.iter().map(|c| noisy(*c) - best).filter(|behind| *behind <= 0.0);
        (id, 1.0 / behind.map(exp_f64).sum::<f64>())
    }

    /// The rule; `best` is the first of the order, `candidates` are by id ascending.
    fn draw(
        &self,
        front: &mut Vec<u64>,
        candidates: impl Iterator<Item = (u32, f32)> + Clone,
        best: (u32, f32),
        position: usize,
    ) -> u32 {
        let (max, temperature) = (f64::from(best.1), self.sampling.temperature);
        let scaled = |logit: f32| (f64::from(logit) - max) / temperature;
        let mut race = Race::new(Noise::new(self.sampling.seed, position as u64));
        // The first of the order is always kept. It comes first, so that most others cannot win.
        race.enter(best.0, 0.0);
        let mut enter = |id: u32, logit: f32| {
            let y = scaled(logit);
            if y >= self.floor {
                race.enter(id, y);
            }
        };
        if self.sampling.top_k == 0 && self.sampling.top_p == 1.0 {
            candidates.for_each(|(id, logit)| enter(id, logit));
        } else {
            self.keep(front, candidates.map(|(id, logit)| key(id, logit)), scaled);
            front.iter().for_each(|key| enter(id(*key), logit(*key)));
        }
        race.first
    }

    /// Leaves in `front` what top-k and top-p keep, in order.
    fn keep(
        &self,
        front: &mut Vec<u64>,
        keys: impl Iterator<Item = u64> + Clone,
        scaled: impl Fn(f32) -> f64,
    ) {
        let Sampling { top_k, top_p, .. } = self.sampling;
        let weight = |key: u64| exp_f64(scaled(logit(key)));
        let mut total = Sum16::new();
        if top_k > 0 {
            first_of_order(front, keys, top_k);
            if top_p < 1.0 {
                front.sort_unstable_by_key(|key| id(*key));
                front.iter().for_each(|key| total.add(id(*key) as usize, weight(*key)));
                front.sort_unstable_by_key(|key| Reverse(*key));
                cut(front, top_p * total.total(), weight);
            }
            return;
        }
        keys.clone().for_each(|key| total.add(id(key) as usize, weight(key)));
        let goal = top_p * total.total();
        // Most of the probability is in few tokens: a short front first, longer ones if need be.
        let mut n = 256;
        loop {
            first_of_order(front, keys.clone(), n);
            if cut(front, goal, weight) || front.len() < n {
                return;
            }
            n *= 16;
        }
    }
}

/// Cuts `front` behind the key with which the weights reach `goal`; says whether they do.
fn cut(front: &mut Vec<u64>, goal: f64, weight: impl Fn(u64) -> f64) -> bool {
    let mut reached = 0.0;
    let last = front.iter().position(|key| {
        reached += weight(*key);
        reached >= goal
    });
    if let Some(last) = last {
        front.truncate(last + 1);
    }
    last.is_some()
}

impl Verifier for Sampler {
    fn choose(&mut self, logits: &[f32], position: usize) -> Result<u32, Error> {
        fpenv::check()?;
        let best = Greedy.choose(logits, position)?;
        if !self.draws() {
            return Ok(best);
        }
        let candidates = logits.iter().enumerate().map(|(id, logit)| (id as u32, *logit));
        let mut front = std::mem::take(&mut self.front);
        let id = self.draw(&mut front, candidates, (best, logits[best as usize]), position);
        self.front = front;
        Ok(id)
    }

    fn sampler(&self) -> Option<&Sampler> {
        self.draws().then_some(self)
    }
}

/// The largest sum of `y` and noise so far.
struct Race {
    noise: Noise,
    first: u32,
    sum: f64,
}

impl Race {
    fn new(noise: Noise) -> Self {
        Self { noise, first: u32::MAX, sum: f64::NEG_INFINITY }
    }

    /// Rounding is monotonic, so who cannot win with a bound of his noise cannot win.
    fn enter(&mut self, id: u32, y: f64) {
        if y + Noise::MOST < self.sum {
            return;
        }
        let u = self.noise.uniform(id);
        if y + at_most(u) < self.sum {
            return;
        }
        let sum = y + gumbel(u);
        if sum > self.sum || (sum == self.sum && id < self.first) {
            (self.first, self.sum) = (id, sum);
        }
    }
}

/// A token and its logit in one number: the larger, the earlier in the order.
fn key(id: u32, logit: f32) -> u64 {
    // Adding 0 makes -0 to 0.
    let bits = (logit + 0.0).to_bits();
    let ascending = if bits >> 31 == 1 { !bits } else { bits | 1 << 31 };
    u64::from(ascending) << 32 | u64::from(!id)
}

fn id(key: u64) -> u32 {
    !(key as u32)
}

fn logit(key: u64) -> f32 {
    let ascending = (key >> 32) as u32;
    let bits = if ascending >> 31 == 1 { ascending ^ 1 << 31 } else { !ascending };
    f32::from_bits(bits)
}

/// Writes the `n` first keys of the order to `front`, in order; all if there are fewer.
fn first_of_order(front: &mut Vec<u64>, keys: impl Iterator<Item = u64>, n: usize) {
    let room = n.saturating_mul(2).max(64);
    front.clear();
    let mut last = 0;
    for key in keys {
        if key > last {
            front.push(key);
            if front.len() == room {
                front.select_nth_unstable_by_key(n - 1, |key| Reverse(*key));
                front.truncate(n);
                last = front[n - 1];
            }
        }
    }
    front.sort_unstable_by_key(|key| Reverse(*key));
    front.truncate(n);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sampler(temperature: f64, top_k: usize, top_p: f64, min_p: f64, seed: u64) -> Sampler {
        Sampler::new(Sampling { temperature, top_k, top_p, min_p, seed }).unwrap()
    }

    /// Ids that are kept, in order: the module's rule with a sort of everything.
    fn kept(sampling: &Sampling, logits: &[f32]) -> Vec<(u32, f64)> {
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).unwrap().then(a.cmp(b)));
        let max = f64::from(logits[order[0]]);
        let y = |id: usize| (f64::from(logits[id]) - max) / sampling.temperature;
        if sampling.top_k > 0 {
            order.truncate(sampling.top_k);
        }
        if sampling.top_p < 1.0 {
            let mut total = Sum16::new();
            let mut ascending = order.clone();
            ascending.sort_unstable();
            ascending.iter().for_each(|id| total.add(*id, exp_f64(y(*id))));
            let goal = sampling.top_p * total.total();
            let mut reached = 0.0;
            let enough = order.iter().position(|id| {
                reached += exp_f64(y(*id));
                reached >= goal
            });
            order.truncate(enough.map_or(order.len(), |last| last + 1));
        }
        order.retain(|id| y(*id) >= ln(sampling.min_p));
        order.into_iter().map(|id| (id as u32, y(id))).collect()
    }

    fn by_definition(sampling: &Sampling, logits: &[f32], position: usize) -> u32 {
        let noise = Noise::new(sampling.seed, position as u64);
        let mut kept = kept(sampling, logits);
        kept.sort_unstable_by_key(|(id, _)| *id);
        let mut best = (0, f64::NEG_INFINITY);
        for (id, y) in kept {
            if y + noise.gumbel(id) > best.1 {
                best = (id, y + noise.gumbel(id));
            }
        }
        best.0
    }

    fn parameters() -> impl Strategy<Value = Sampling> {
        let temperature = prop::sample::select(vec![1e-300, 1e-3, 0.2, 0.7, 1.0, 1.7, 30.0, 1e300]);
        let top_k = prop::sample::select(vec![0, 1, 2, 5, 20, 64, 300, usize::MAX]);
        let top_p = prop::sample::select(vec![1e-12, 0.3, 0.8, 0.95, 0.999_999, 1.0]);
        let min_p = prop::sample::select(vec![0.0, 1e-9, 0.05, 0.5, 1.0]);
        (temperature, top_k, top_p, min_p, any::<u64>()).prop_map(
            |(temperature, top_k, top_p, min_p, seed)| Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                seed,
            },
        )
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        /// Small whole numbers make ties, many tokens make the front grow.
        #[test]
        fn the_choice_is_that_of_the_definition(
            logits in prop_oneof![
                prop::collection::vec((-3i8..3).prop_map(f32::from), 1..90),
                prop::collection::vec(-20f32..20.0, 1..90),
                prop::collection::vec(-1f32..1.0, 250..700),
                prop::collection::vec(prop::num::f32::NORMAL | prop::num::f32::ZERO, 1..40),
            ],
            sampling in parameters(),
            position in 0usize..1 << 40,
        ) {
            let mut sampler = Sampler::new(sampling).unwrap();
            let expected = by_definition(&sampling, &logits, position);
            for _ in 0..2 {
                prop_assert_eq!(sampler.choose(&logits, position).unwrap(), expected);
            }
            let all: Vec<(u32, f32)> =
                logits.iter().enumerate().map(|(id, l)| (id as u32, *l)).collect();
            prop_assert_eq!(sampler.pick(&all, position), expected);
        }

        /// Candidates are a vocabulary of their own, with the noise of their ids.
        #[test]
        fn what_cannot_be_drawn_changes_nothing(
            logits in prop::collection::vec(-5f32..5.0, 20),
            sampling in parameters(),
            position in 0usize..99,
        ) {
            let sampler = Sampler::new(Sampling { top_p: 1.0, ..sampling }).unwrap();
            let mut wide = vec![-1e30; 60];
            let few: Vec<(u32, f32)> =
                logits.iter().enumerate().map(|(i, l)| (3 * i as u32, *l)).collect();
            few.iter().for_each(|(id, l)| wide[*id as usize] = *l);
            let expected = sampler.clone().choose(&wide, position).unwrap();
            if sampling.temperature < 1e3 {
                prop_assert_eq!(sampler.pick(&few, position), expected);
            }
        }

        #[test]
        fn temperature_0_and_one_candidate_are_greedy(
            logits in prop::collection::vec((-9i8..9).prop_map(f32::from), 1..50),
            sampling in parameters(),
        ) {
            let greedy = Greedy.choose(&logits, 3).unwrap();
            for sampling in [
                Sampling { temperature: 0.0, ..sampling },
                Sampling { temperature: -0.0, ..sampling },
                Sampling { top_k: 1, ..sampling },
            ] {
                let mut sampler = Sampler::new(sampling).unwrap();
                prop_assert_eq!(sampler.choose(&logits, 3).unwrap(), greedy);
                prop_assert_eq!(sampler.sampler().is_some(), sampling.temperature > 0.0);
            }
        }

        #[test]
        fn keys_hold_token_and_logit_in_order(
            a in (any::<u32>(), prop::num::f32::NORMAL | prop::num::f32::ZERO),
            b in (any::<u32>(), prop::num::f32::NORMAL | prop::num::f32::ZERO),
        ) {
            let (ka, kb) = (key(a.0, a.1), key(b.0, b.1));
            prop_assert_eq!((id(ka), logit(ka)), a);
            let first = a.1 > b.1 || (a.1 == b.1 && a.0 < b.0);
            prop_assert_eq!(ka > kb, first);
        }
    }

    /// Chosen frequencies against the softmax of what is kept: Pearson's statistic stays below its
    /// mean by some standard deviations. Fixed seeds, so a failure is a change of the code.
    #[test]
    fn frequencies_are_those_of_the_softmax() {
        const DRAWS: usize = 40_000;
        let logits: Vec<f32> = (0..40).map(|i| ((i * 17 % 40) as f32).sqrt()).collect();
        for (sampling, kinds) in [
            (Sampling::default(), 40),
            (Sampling { temperature: 0.6, ..Sampling::default() }, 40),
            (Sampling { temperature: 2.5, top_k: 7, ..Sampling::default() }, 7),
            (Sampling { top_p: 0.9, ..Sampling::default() }, 21),
            (Sampling { min_p: 0.2, ..Sampling::default() }, 18),
            (Sampling { top_k: 20, top_p: 0.95, min_p: 0.01, ..Sampling::default() }, 18),
        ] {
            let kept = kept(&sampling, &logits);
            assert_eq!(kept.len(), kinds, "{sampling:?}");
            // Over seeds, and over positions.
            for over_seeds in [true, false] {
                let mut counts = [0usize; 40];
                for i in 0..DRAWS {
                    let (seed, position) = if over_seeds { (i as u64, 5) } else { (5, i) };
                    let mut sampler = Sampler::new(Sampling { seed, ..sampling }).unwrap();
                    counts[sampler.choose(&logits, position).unwrap() as usize] += 1;
                }
                let total: f64 = kept.iter().map(|(_, y)| y.exp()).sum();
                let expected = |y: f64| y.exp() / total * DRAWS as f64;
                let term = |(id, y): &(u32, f64)| {
                    (counts[*id as usize] as f64 - expected(*y)).powi(2) / expected(*y)
                };
                let statistic: f64 = kept.iter().map(term).sum();
                let freedom = (kinds - 1) as f64;
                assert!(statistic < freedom + 4.0 * (2.0 * freedom).sqrt(), "{statistic}");
                let drawn: usize = kept.iter().map(|(id, _)| counts[*id as usize]).sum();
                assert_eq!(drawn, DRAWS, "{sampling:?} draws what was cut off");
            }
        }
    }

    #[test]
    fn ties_at_the_edge_go_to_the_lowest_ids() {
        let keeps = |sampler: &Sampler, logits: &[f32]| -> Vec<u32> {
            let kept = kept(sampler.sampling(), logits);
            kept.into_iter().map(|(id, _)| id).collect()
        };
        let logits = [1.0, 2.0, 1.0, 1.0, -0.0, 0.0];
        assert_eq!(keeps(&sampler(1.0, 3, 1.0, 0.0, 0), &logits), [1, 0, 2]);
        assert_eq!(keeps(&sampler(1.0, 5, 1.0, 0.0, 0), &logits), [1, 0, 2, 3, 4]);
        // min-p has no edge between equals; top-p has.
        assert_eq!(keeps(&sampler(1.0, 0, 1.0, 0.3, 0), &logits), [1, 0, 2, 3]);
        assert_eq!(keeps(&sampler(1.0, 0, 0.5, 0.0, 0), &logits), [1, 0]);
        assert_eq!(keeps(&sampler(1.0, 0, 1.0, 1.0, 0), &[3.0, 3.0, 2.9]), [0, 1]);
        // Half is reached exactly.
        assert_eq!(keeps(&sampler(1.0, 0, 0.5, 0.0, 0), &[0.0; 8]), [0, 1, 2, 3]);
    }

    #[test]
    fn parameters_without_meaning_are_refused_by_name() {
        let nan = f64::NAN;
        let inf = f64::INFINITY;
        for (sampling, parts) in [
            ((nan, 1.0, 0.0), ["`temperature`", "NaN"]),
            ((-0.1, 1.0, 0.0), ["`temperature`", "-0.1"]),
            ((inf, 1.0, 0.0), ["`temperature`", "inf"]),
            ((1.0, 0.0, 0.0), ["`top_p`", "found 0"]),
            ((1.0, 1.5, 0.0), ["`top_p`", "1.5"]),
            ((1.0, nan, 0.0), ["`top_p`", "NaN"]),
            ((0.0, nan, 0.0), ["`top_p`", "NaN"]),
            ((1.0, 1.0, -0.5), ["`min_p`", "-0.5"]),
            ((1.0, 1.0, 1.01), ["`min_p`", "1.01"]),
            ((1.0, 1.0, nan), ["`min_p`", "NaN"]),
        ] {
            let (temperature, top_p, min_p) = sampling;
            let sampling = Sampling { temperature, top_p, min_p, ..Sampling::default() };
            let message = Sampler::new(sampling).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        }
    }

    #[test]
    fn logits_that_are_no_numbers() {
        let mut sampler = sampler(1.0, 0, 1.0, 0.0, 0);
        assert!(matches!(
            sampler.choose(&[1.0, f32::NAN], 5),
            Err(Error::NonFinite { what: "logit", row: 5, at: 1 })
        ));
        // A drafter's scores are not checked; something is proposed all the same.
        for sampler in [sampler.clone(), self::sampler(0.5, 2, 0.5, 0.1, 1)] {
            assert_eq!(sampler.pick(&[(3, f32::NAN), (8, 1.0)], 0), 8);
            assert_eq!(sampler.pick(&[(3, f32::NAN), (8, f32::NAN)], 0), 8);
            assert_eq!(sampler.pick(&[(3, 1.0), (8, f32::INFINITY)], 0), 8);
            assert_eq!(sampler.pick(&[(3, f32::NEG_INFINITY), (8, 0.0)], 0), 8);
        }
    }
}
