//! Gumbel noise that is a function of (seed, position, token id).
//!
//! Adding independent Gumbel noise to the logarithms of weights and taking the largest sum draws from
//! the normalised weights (Gumbel 1954; the "Gumbel-max trick"). The noise of a token at a position
//! is computed from a counter, not taken from a stream: whoever asks for it, in whatever order, gets
//! the same number. So a drafter can add the noise that the target will add.
//!
//! The generator is Philox4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy
//! as 1, 2, 3" (SC 2011), with
//!
//! ```text
//! key      seed low, seed high
//! counter  token id, 0, position low, position high
//! n        word 1 and word 0 of the output as one 64-bit number, its upper 52 bits
//! u        (n + 1/2) / 2^52           exact, above 0 and below 1
//! gumbel   -ln(-ln u)                 from -3.60 to 36.74
//! ```

use crate::math::ln;

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// Added to the key from round to round: the golden ratio and √3 - 1.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// Philox4x32-10: the block of `counter` under `key`.
#[must_use]
pub fn philox(counter: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let wide = |a: u32, b: u32| {
        let product = u64::from(a) * u64::from(b);
        ((product >> 32) as u32, product as u32)
    };
    let ([mut c0, mut c1, mut c2, mut c3], [mut k0, mut k1]) = (counter, key);
    for _ in 0..ROUNDS {
        let (high0, low0) = wide(MULTIPLIERS[0], c0);
        let (high1, low1) = wide(MULTIPLIERS[1], c2);
        (c0, c1, c2, c3) = (high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0);
        (k0, k1) = (k0.wrapping_add(WEYL[0]), k1.wrapping_add(WEYL[1]));
    }
    [c0, c1, c2, c3]
}

/// The noise of all tokens at one position.
#[derive(Debug, Clone, Copy)]
pub struct Noise {
    key: [u32; 2],
    position: [u32; 2],
}

impl Noise {
    /// No noise is above this.
    pub(super) const MOST: f64 = 37.0;

    /// The noise of `seed` at `position`.
    #[must_use]
    pub fn new(seed: u64, position: u64) -> Self {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        Self { key: halves(seed), position: halves(position) }
    }

    /// A number above 0 and below 1, uniform.
    #[must_use]
    pub fn uniform(&self, id: u32) -> f64 {
        let [low, high, ..] = philox([id, 0, self.position[0], self.position[1]], self.key);
        let n = (u64::from(high) << 32 | u64::from(low)) >> 12;
        // 53 bits, so neither operation rounds.
        (n as f64 + 0.5) * TWO_M52
    }

    /// The noise of token `id`.
    #[must_use]
    pub fn gumbel(&self, id: u32) -> f64 {
        gumbel(self.uniform(id))
    }
}

const TWO_M52: f64 = f64::from_bits((1023 - 52) << 52);

/// `-ln(-ln u)`.
pub(super) fn gumbel(u: f64) -> f64 {
    -ln(-ln(u))
}

/// Not below `gumbel(u)`, without a logarithm: `-ln u > 1 - u >= 2^-k`, so the noise is below
/// `k ln 2`; 0.7 leaves more room than the logarithms err.
pub(super) fn at_most(u: f64) -> f64 {
    let k = 1023 - ((1.0 - u).to_bits() >> 52) as i64;
    0.7 * k as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The known answers of the authors' library Random123 (`kat_vectors`, philox4x32 10): all zeros,
    /// all ones, and digits of pi.
    #[test]
    fn known_answers() {
        for (counter, key, answer) in [
            ([0; 4], [0; 2], [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408F_276D, 0x41C8_3B0E, 0xA20B_C7C6, 0x6D54_51FD]),
            (
                [0x243F_6A88, 0x85A3_08D3, 0x1319_8A2E, 0x0370_7344],
                [0xA409_3822, 0x299F_31D0],
                [0xD16C_FE09, 0x94FD_CCEB, 0x5001_E420, 0x2412_6EA1],
            ),
        ] {
            assert_eq!(philox(counter, key), answer);
        }
    }

    #[test]
    fn seed_position_and_id_all_count() {
        let bits = |seed, position, id| Noise::new(seed, position).uniform(id).to_bits();
        let all = [
            bits(0, 0, 0),
            bits(1, 0, 0),
            bits(1 << 32, 0, 0),
            bits(0, 1, 0),
            bits(0, 1 << 32, 0),
            bits(0, 0, 1),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| a != b));
        }
    }

    #[test]
    fn the_ends_are_finite() {
        let (least, most) = (0.5 * TWO_M52, 1.0 - 0.5 * TWO_M52);
        assert!(least > 0.0 && most < 1.0);
        assert!((gumbel(least) + 3.60).abs() < 0.01, "{}", gumbel(least));
        assert!((gumbel(most) - 36.74).abs() < 0.01, "{}", gumbel(most));
        assert!(Noise::MOST > gumbel(most));
    }

    /// Fixed bits: a change of the arithmetic, or a platform that differs, shows here.
    #[test]
    fn golden_bits() {
        let found = [(0, 0, 0), (7, 41, 248_319), (u64::MAX, u64::MAX, u32::MAX)]
            .map(|(seed, position, id)| Noise::new(seed, position).gumbel(id).to_bits());
        assert_eq!(found, GOLDEN);
    }

    /// Also computed by another program: 2.0616616, -0.6509211, -0.0768948.
    const GOLDEN: [u64; 3] = [0x4000_7E48_4179_CD9E, 0xBFE4_D458_69CD_0EB6, 0xBFB3_AF60_6E0B_0BE3];

    proptest! {
        #[test]
        fn the_bound_holds(n in 0u64..1 << 52, shift in 0u32..52) {
            // Close to 1 as well, where the noise is large.
            for n in [n, (1 << 52) - 1 - (n >> shift)] {
                let u = (n as f64 + 0.5) * TWO_M52;
                prop_assert!(gumbel(u) < at_most(u), "{u}");
                let exact = -(-u.ln()).ln();
                prop_assert!((gumbel(u) - exact).abs() <= 1e-13 * exact.abs().max(1.0));
            }
        }
    }
}
