//! What passes of Bonsai 2 27B and its drafter put on the array, and how long that would take.
//!
//! A projection, not a measurement: `T = sum(bytes / bandwidth + dispatch) + T_cpu`. The bytes are those
//! that a simulated job moves; bandwidth, the cost of a dispatch and the time of the CPU's part are the
//! caller's.

use crate::job::{Job, JobError};

/// A matrix product of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Product {
    /// What it is.
    pub name: &'static str,
    /// Outputs, those of matrices with the same input together.
    pub rows: usize,
    /// Inputs.
    pub k: usize,
    /// How often a pass has it.
    pub calls: usize,
}

const fn product(name: &'static str, rows: usize, k: usize, calls: usize) -> Product {
    Product { name, rows, k, calls }
}

/// A pass of the target over up to 8 tokens: 48 layers of delta nets, 16 of attention, the head.
pub const TARGET: [Product; 6] = [
    product("delta net in: `qkv`, `z`", 16384, 5120, 48),
    product("attention in: `q` with its gate, `k`, `v`", 14336, 5120, 16),
    product("mixer out", 5120, 6144, 64),
    product("gate and up", 34816, 5120, 64),
    product("down", 5120, 17408, 64),
    product("head", 248_320, 5120, 1),
];

/// A draft of 8 rows: 5 layers, the context's taps, keys and values of up to 8 committed tokens, and the
/// target's head. The selector's projection, 256 outputs, is left to the CPU.
pub const DRAFT: [Product; 8] = [
    product("convolution kernels", 1280, 5120, 10),
    product("`q`, `k`, `v`", 6144, 5120, 5),
    product("attention out", 5120, 4096, 5),
    product("gate and up", 34816, 5120, 5),
    product("down", 5120, 17408, 5),
    product("taps (`fc`)", 5120, 25600, 1),
    product("context `k`, `v` of all layers", 10240, 5120, 1),
    product("head", 248_320, 5120, 1),
];

/// What a pass moves between the host's memory and the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Jobs.
    pub dispatches: usize,
    /// Bytes of weights.
    pub weight_bytes: usize,
    /// Bytes of activations, which one shim reads once for all columns.
    pub activation_bytes: usize,
    /// Bytes of results, all 8 rows.
    pub result_bytes: usize,
}

impl Totals {
    /// The sums of a pass.
    ///
    /// # Errors
    /// A shape that the array cannot run.
    pub fn of(pass: &[Product]) -> Result<Self, JobError> {
        let mut out = Self::default();
        for p in pass {
            let job = Job::new(p.rows, p.k)?;
            out.dispatches += p.calls;
            out.weight_bytes += p.calls * job.weight_bytes();
            out.activation_bytes += p.calls * job.streamed_activation_bytes();
            out.result_bytes += p.calls * job.result_bytes();
        }
        Ok(out)
    }

    /// All bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.weight_bytes + self.activation_bytes + self.result_bytes
    }

    /// Milliseconds on the array: bytes at `gb_per_s` (10^9 bytes), `dispatch_ms` for each job.
    #[must_use]
    pub fn array_ms(&self, gb_per_s: f64, dispatch_ms: f64) -> f64 {
        self.bytes() as f64 / (gb_per_s * 1e6) + self.dispatches as f64 * dispatch_ms
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_are_those_of_the_design() {
        let target = Totals::of(&TARGET).expect("shapes that run");
        let draft = Totals::of(&DRAFT).expect("shapes that run");
        assert_eq!((target.dispatches, draft.dispatches), (257, 33));
        let gb = |bytes: usize| format!("{:.3}", bytes as f64 / 1e9);
        let all = |t: Totals| [t.weight_bytes, t.activation_bytes, t.result_bytes].map(gb);
        assert_eq!(all(target), ["6.800", "0.049", "0.133"]);
        assert_eq!(all(draft), ["0.840", "0.006", "0.017"]);
        assert_eq!(format!("{:.0}", target.array_ms(44.0, 0.0)), "159");
        assert_eq!(format!("{:.1}", draft.array_ms(44.0, 0.0)), "19.6");
        let dispatched = target.array_ms(44.0, 0.2) - target.array_ms(44.0, 0.07);
        assert!((dispatched - 257.0 * 0.13).abs() < 1e-9);
    }
}
