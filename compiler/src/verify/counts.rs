//! What the groups of a ternary matrix hold.

use std::collections::BTreeMap;

use formats::dflash2::drafter::Encoding;
use formats::{GROUP, TernaryRows, ptq1_0, scale};
use half::f16;
use serde::Serialize;

use crate::ternary::Stats;

/// Figures of one matrix, or of all.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figures {
    /// Weights.
    pub weights: u64,
    /// Share of weights whose code is the value 0.
    pub zero_share: f64,
    /// Weights with code 3, the value +2 scales; PQ2_0 alone can hold it.
    pub code_3: u64,
    /// Groups of 128 whose scale is zero.
    pub zero_scales: u64,
    /// Groups whose scale is below zero.
    pub negative_scales: u64,
    /// Groups whose scale only one of fp16 and bf16 holds exactly.
    pub off_grid_scales: u64,
    /// PTQ1_0 blocks with bytes that no encoder writes.
    pub noncanonical_blocks: u64,
    /// Scales by binary exponent: `"-9": n` counts magnitudes in [2^-9, 2^-8).
    pub scale_exponents: BTreeMap<i32, u64>,
}

/// Sums over groups.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counts {
    groups: u64,
    zeros: u64,
    code_3: u64,
    zero_scales: u64,
    negative_scales: u64,
    off_grid_scales: u64,
    noncanonical_blocks: u64,
    exponents: [u64; Stats::EXPONENTS],
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            groups: 0,
            zeros: 0,
            code_3: 0,
            zero_scales: 0,
            negative_scales: 0,
            off_grid_scales: 0,
            noncanonical_blocks: 0,
            exponents: [0; Stats::EXPONENTS],
        }
    }
}

impl Counts {
    /// Counts rows that were decoded from `encoded`.
    pub(super) fn of(rows: &TernaryRows, encoding: Encoding, encoded: &[u8]) -> Self {
        let mut counts = Self { groups: rows.scales().len() as u64, ..Self::default() };
        // The low bit of each of four codes.
        const LOW: u64 = 0x5555_5555_5555_5555;
        // A group is 32 bytes, four words.
        for word in rows.codes().as_chunks::<8>().0 {
            let word = u64::from_le_bytes(*word);
            let high = word >> 1;
            counts.zeros += u64::from((word & !high & LOW).count_ones());
            counts.code_3 += u64::from((word & high & LOW).count_ones());
        }
        for scale in rows.scales() {
            match Stats::exponent_entry(*scale) {
                None => counts.zero_scales += 1,
                Some(entry) => counts.exponents[entry] += 1,
            }
            counts.negative_scales += u64::from(*scale < f16::ZERO);
            counts.off_grid_scales += u64::from(!scale::on_grid(*scale));
        }
        if encoding == Encoding::Ptq1_0 {
            let mut rest = encoded;
            while let Some(block) = ptq1_0::first_noncanonical(rest) {
                counts.noncanonical_blocks += 1;
                rest = &rest[(block as usize + 1) * ptq1_0::BLOCK_BYTES..];
            }
        }
        counts
    }

    /// Adds what another part counted.
    pub(super) fn merge(&mut self, part: &Self) {
        self.groups += part.groups;
        self.zeros += part.zeros;
        self.code_3 += part.code_3;
        self.zero_scales += part.zero_scales;
        self.negative_scales += part.negative_scales;
        self.off_grid_scales += part.off_grid_scales;
        self.noncanonical_blocks += part.noncanonical_blocks;
        for (sum, n) in self.exponents.iter_mut().zip(part.exponents) {
            *sum += n;
        }
    }

    pub(super) fn figures(&self) -> Figures {
        let weights = self.groups * GROUP as u64;
        Figures {
            weights,
            zero_share: self.zeros as f64 / weights.max(1) as f64,
            code_3: self.code_3,
            zero_scales: self.zero_scales,
            negative_scales: self.negative_scales,
            off_grid_scales: self.off_grid_scales,
            noncanonical_blocks: self.noncanonical_blocks,
            scale_exponents: Stats::by_exponent(&self.exponents),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_counted() {
        let mut rows = TernaryRows::zeroed(2, 2 * GROUP);
        for (r, g, bits) in [(0, 0, 0x3C00), (0, 1, 0xBC01), (1, 0, 0x8000), (1, 1, 0x0001)] {
            rows.set_scale(r, g, f16::from_bits(bits));
        }
        rows.set_code(0, 3, 3);
        rows.set_code(1, 200, 0);
        rows.set_code(1, 201, 2);
        let figures = Counts::of(&rows, Encoding::Pq2_0, &[]).figures();
        assert_eq!((figures.weights, figures.code_3), (512, 1));
        assert_eq!(figures.zero_share, 509.0 / 512.0);
        assert_eq!(
            (figures.zero_scales, figures.negative_scales, figures.off_grid_scales),
            (1, 1, 1)
        );
        assert_eq!(figures.scale_exponents, BTreeMap::from([(-24, 1), (0, 2)]));
    }

    #[test]
    fn blocks_that_no_encoder_writes_are_counted() {
        let rows = TernaryRows::zeroed(1, 3 * GROUP);
        let mut bytes = [0; 3 * ptq1_0::BLOCK_BYTES];
        ptq1_0::encode(&rows, &mut bytes).unwrap();
        let count = |bytes: &[u8]| Counts::of(&rows, Encoding::Ptq1_0, bytes).noncanonical_blocks;
        assert_eq!(count(&bytes), 0);
        bytes[0] = 1;
        bytes[2 * ptq1_0::BLOCK_BYTES + 25] = 1;
        assert_eq!(count(&bytes), 2);
    }
}
