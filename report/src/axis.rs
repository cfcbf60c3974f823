//! Where values stand, and the round numbers beside them.

/// A range of values with 0 in it, from one round number to another.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    step: f64,
}

impl Axis {
    /// Over all finite values, in about `steps` steps of 1, 2, 2.5 or 5 times a power of ten.
    pub(crate) fn over(values: impl Iterator<Item = f64>, steps: usize) -> Self {
        let finite = values.filter(|value| value.is_finite());
        let (low, high) =
            finite.fold((0.0_f64, 0.0_f64), |(low, high), v| (low.min(v), high.max(v)));
        let high = if high - low > 0.0 { high } else { low + 1.0 };
        let raw = (high - low) / steps as f64;
        let power = 10_f64.powf(raw.log10().floor());
        let round = [1.0, 2.0, 2.5, 5.0].into_iter().find(|m| m * power >= raw * (1.0 - 1e-9));
        let step = round.unwrap_or(10.0) * power;
        let end = |x: f64| (x / step * (1.0 - 1e-12)).ceil() * step;
        Self { low: -end(-low), high: end(high), step }
    }

    /// From 0 for the lowest value to 1 for the highest.
    pub(crate) fn place(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }

    /// The round numbers.
    pub(crate) fn ticks(&self) -> impl Iterator<Item = f64> {
        let [first, last] = [self.low, self.high].map(|end| (end / self.step).round() as i64);
        (first..=last).map(|i| i as f64 * self.step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn ends_are_round_and_hold_all_values() {
        let of = |values: &[f64]| Axis::over(values.iter().copied(), 4).ticks().collect::<Vec<_>>();
        assert_eq!(of(&[3.2, 1.1]), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(of(&[-0.19, f64::NAN]), [-0.2, -0.15000000000000002, -0.1, -0.05, 0.0]);
        assert_eq!(of(&[f64::INFINITY]), [0.0, 0.25, 0.5, 0.75, 1.0]);
    }

    proptest! {
        #[test]
        fn there_are_few_ticks(values in prop::collection::vec(-1e6_f64..1e6, 0..9), scale in -6..3) {
            let values = || values.iter().map(|v| v * 10_f64.powi(scale));
            let axis = Axis::over(values(), 4);
            prop_assert!((2..=7).contains(&axis.ticks().count()));
            for value in values() {
                let back = axis.low + axis.place(value) * (axis.high - axis.low);
                prop_assert!((back - value).abs() <= 1e-9 * (axis.high - axis.low));
            }
        }
    }
}
