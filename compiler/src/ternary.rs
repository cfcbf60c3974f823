//! From rotated weights to codes and scales, group by group.
//!
//! A group is 128 consecutive weights `w` of one row. It becomes a scale `s`
//! (a value of the grid in [`formats::scale`]) and codes `t` in {-1, 0, +1},
//! stored as `t + 1`. [`Rule::Optimal`] finds the least-squares optimum over
//! all supports and all scales that the support's mean rounds to:
//!
//! 1. sort |w| descending, ties by index; prefix sums `N_k` in f64, in that order;
//! 2. `s_k = N_k / k` rounded to the grid, half to even;
//! 3. take the k that minimises `k s_k^2 - 2 s_k N_k`, ties to the smaller k
//!    (k = 0 has the value 0);
//! 4. the codes are the signs of the k largest.
//!
//! For a given scale the best support is a prefix of that order, and for a given
//! support the best scale is its mean, so no other support does better.
//!
//! `reference` states this in a page of scalar code. `network` does the
//! same for 8 or 16 groups at once, one per vector lane, and equals it bit for
//! bit; `avx2` and `avx512` give it their instructions.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod network;
mod reference;
mod stats;

use std::fmt;
use std::str::FromStr;

use formats::GROUP;
use hadamard::{Isa, Level};
use half::f16;

pub use stats::Stats;

/// How a group's scale and codes are chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Rule {
    /// The least-squares optimum (module documentation).
    #[default]
    Optimal,
    /// BitNet b1.58: `s` = mean |w|, `t` = w / s rounded half away from zero and clipped.
    Absmean,
    /// Ternary weight networks: support |w| > 0.7 mean |w|, `s` = mean |w| over it.
    Twn,
    /// The optimum of weights that are ternary already: each must be within
    /// [`Rule::TOLERANCE`] scales of its code's value, or the group is a fault. What a
    /// tuner exported keeps its codes and scales, or is refused.
    Ternary,
}

impl Rule {
    /// All rules, in the order they are listed to users.
    pub const ALL: [Self; 4] = [Self::Optimal, Self::Absmean, Self::Twn, Self::Ternary];

    /// How far a weight may be from its code's value under [`Rule::Ternary`], in scales:
    /// far above what rotating there and back in f32 does, and an eighth of half a step of
    /// the grid of scales, so that a mean cannot round to a neighbour.
    pub const TOLERANCE: f64 = 1.0 / 4096.0;

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Optimal => "optimal",
            Self::Absmean => "absmean",
            Self::Twn => "twn",
            Self::Ternary => "ternary",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = UnknownRule;

    fn from_str(name: &str) -> Result<Self, UnknownRule> {
        Self::ALL
            .into_iter()
            .find(|rule| rule.name() == name)
            .ok_or_else(|| UnknownRule(name.to_owned()))
    }
}

/// A rule name that does not exist.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown rule `{0}`: expected optimal, absmean, twn or ternary")]
pub struct UnknownRule(String);

/// A group that has no ternary form.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum GroupFault {
    /// A weight is NaN or infinite.
    #[error("group {group} holds a value that is not finite")]
    NotFinite {
        /// Index of the group from the start of the given values.
        group: usize,
    },
    /// The scale does not fit fp16.
    #[error(
        "the scale of group {group} overflows fp16: expected less than {}, found {scale}",
        formats::scale::OVERFLOW
    )]
    Overflow {
        /// Index of the group from the start of the given values.
        group: usize,
        /// The scale, rounded to the grid's digits.
        scale: f64,
    },
    /// A weight is not `-s`, 0 or `s` with the group's scale `s` ([`Rule::Ternary`]).
    #[error("group {group} is not ternary: its scale is {scale}, and a weight {weight}")]
    NotTernary {
        /// Index of the group from the start of the given values.
        group: usize,
        /// The scale of the optimum.
        scale: f32,
        /// The first weight that is none of the three.
        weight: f32,
    },
}

impl GroupFault {
    /// The same fault, of group 0.
    pub(crate) fn of_first(self) -> Self {
        match self {
            Self::NotFinite { .. } => Self::NotFinite { group: 0 },
            Self::Overflow { scale, .. } => Self::Overflow { group: 0, scale },
            Self::NotTernary { scale, weight, .. } => Self::NotTernary { group: 0, scale, weight },
        }
    }
}

/// One group's result, before it is stored.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Choice {
    /// The scale on the grid; below [`formats::scale::OVERFLOW`] unless it is a fault.
    pub(crate) scale: f64,
    /// Size of the support.
    pub(crate) support: usize,
    /// Sum of |w| over the support, of w times its code in general.
    pub(crate) sum: f64,
    /// Sum of w^2 over the group, in the order the rule visits the weights.
    pub(crate) energy: f64,
}

/// Turns groups of rotated weights into codes and scales.
#[derive(Debug, Clone, Copy)]
pub struct Ternarizer {
    rule: Rule,
    isa: Isa,
}

impl Ternarizer {
    /// A ternarizer for one rule, using at most the given instruction set.
    #[must_use]
    pub fn new(rule: Rule, isa: Isa) -> Self {
        Self { rule, isa }
    }

    /// The rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Ternarizes whole groups.
    ///
    /// * `values`: `[n_groups, 128]` f32 in the rotated basis
    /// * `codes`: `[n_groups, 32]` bytes, value i of a group in byte i / 4, bits 2 (i mod 4)
    /// * `scales`: `[n_groups]`
    /// * `stats`: what happened is added, in ascending order of groups
    ///
    /// # Errors
    /// The first group that has no ternary form.
    ///
    /// # Panics
    /// If the lengths do not fit each other.
    pub fn groups(
        &self,
        values: &[f32],
        codes: &mut [u8],
        scales: &mut [f16],
        stats: &mut Stats,
    ) -> Result<(), GroupFault> {
        assert_eq!(values.len(), scales.len() * GROUP);
        assert_eq!(codes.len(), scales.len() * GROUP / 4);
        match self.rule {
            Rule::Optimal => match self.isa.level() {
                #[cfg(target_arch = "x86_64")]
                Level::Avx2 => avx2::groups(self.isa, values, codes, scales, stats),
                #[cfg(target_arch = "x86_64")]
                Level::Avx512 => avx512::groups(self.isa, values, codes, scales, stats),
                _ => reference::groups(reference::optimal, values, codes, scales, stats),
            },
            Rule::Absmean => reference::groups(reference::absmean, values, codes, scales, stats),
            Rule::Twn => reference::groups(reference::twn, values, codes, scales, stats),
            Rule::Ternary => {
                Self::new(Rule::Optimal, self.isa).groups(values, codes, scales, stats)?;
                refuse_others(values, codes, scales)
            }
        }
    }
}

/// Refuses weights that are not within [`Rule::TOLERANCE`] of what their codes and scales say.
fn refuse_others(values: &[f32], codes: &[u8], scales: &[f16]) -> Result<(), GroupFault> {
    for (group, (w, scale)) in values.chunks_exact(GROUP).zip(scales).enumerate() {
        let scale = scale.to_f32();
        let s = f64::from(scale);
        for (i, &weight) in w.iter().enumerate() {
            let code = codes[(group * GROUP + i) / 4] >> (2 * (i % 4)) & 3;
            let value = s * (f64::from(code) - 1.0);
            if (f64::from(weight) - value).abs() > Rule::TOLERANCE * s {
                return Err(GroupFault::NotTernary { group, scale, weight });
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// All outputs of one rule at one level.
    fn run(isa: Isa, values: &[f32]) -> Result<(Vec<u8>, Vec<u16>, Stats), GroupFault> {
        let groups = values.len() / GROUP;
        let mut codes = vec![0xAA; groups * GROUP / 4];
        let mut scales = vec![f16::NAN; groups];
        let mut stats = Stats::default();
        Ternarizer::new(Rule::Optimal, isa).groups(values, &mut codes, &mut scales, &mut stats)?;
        Ok((codes, scales.iter().map(|s| s.to_bits()).collect(), stats))
    }

    fn all_levels_agree(values: &[f32]) {
        let reference = run(Isa::scalar(), values);
        for isa in Isa::available() {
            let fast = run(isa, values);
            match (&fast, &reference) {
                (Ok(fast), Ok(reference)) => assert_eq!(fast, reference, "{:?}", isa.level()),
                (fast, reference) => {
                    assert_eq!(format!("{fast:?}"), format!("{reference:?}"), "{:?}", isa.level())
                }
            }
        }
    }

    /// Weights of very different kinds, so that ties, zeros, subnormal scales,
    /// overflows and values that are not finite all occur.
    fn weight() -> impl Strategy<Value = f32> {
        prop_oneof![
            8 => -1.0f32..1.0,
            4 => (-8i32..=8).prop_map(|n| n as f32 / 8.0),
            2 => Just(0.0f32),
            2 => Just(-0.0f32),
            2 => (-1.0f32..1.0).prop_map(|w| w * 1e-5),
            1 => (-1.0f32..1.0).prop_map(|w| w * 1e-7),
            1 => (-1.0f32..1.0).prop_map(|w| w * 1e-40),
        ]
    }

    fn groups_of(
        weight: impl Strategy<Value = f32> + Clone + 'static,
    ) -> impl Strategy<Value = Vec<f32>> {
        (1usize..40, prop_oneof![Just(1.0f32), Just(1e-3), Just(1e-6), Just(3e4), Just(1e5)])
            .prop_flat_map(move |(n, factor)| {
                proptest::collection::vec(weight.clone(), n * GROUP)
                    .prop_map(move |w| w.into_iter().map(|w| w * factor).collect())
            })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn every_level_equals_the_reference(values in groups_of(weight().boxed())) {
            all_levels_agree(&values);
        }

        #[test]
        fn every_level_agrees_on_values_that_are_not_finite(
            mut values in groups_of(weight().boxed()),
            at in any::<proptest::sample::Index>(),
            bad in prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), Just(f32::MAX)],
        ) {
            let at = at.index(values.len());
            values[at] = bad;
            all_levels_agree(&values);
        }
    }

    #[test]
    fn gaussian_groups_reach_the_theoretical_error() {
        use rand::{Rng, SeedableRng};
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(7);
        let mut uniform = || (rng.next_u32() as f64 + 0.5) / 4_294_967_296.0;
        let values: Vec<f32> = (0..1 << 20)
            .map(|_| {
                let (u, v) = (uniform(), uniform());
                ((-2.0 * f64::ln(u)).sqrt() * (std::f64::consts::TAU * v).cos() * 0.02) as f32
            })
            .collect();
        let (_, _, stats) = run(Isa::detect(), &values).unwrap();
        assert!(stats.relative_error() < 0.1873, "{}", stats.relative_error());
        let mut stats = Stats::default();
        Ternarizer::new(Rule::Absmean, Isa::detect())
            .groups(
                &values,
                &mut vec![0; values.len() / 4],
                &mut vec![f16::ZERO; values.len() / GROUP],
                &mut stats,
            )
            .unwrap();
        assert!((stats.relative_error() - 0.261).abs() < 0.002, "{}", stats.relative_error());
    }
}
