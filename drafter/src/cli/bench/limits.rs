//! A time beside what the machine would need at its limits.

use runtime::backend::Dot;
use runtime::machine::{self, Limits};
use runtime::quant::ActQuant;
use serde::Serialize;

/// The limits of the threads that measure, and the arithmetic they apply to.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Machine {
    threads: usize,
    /// Of the products.
    instruction: &'static str,
    /// Operations per second of the dot instruction; a product and its addition are two.
    pub(crate) dot_per_second: Option<f64>,
    pub(crate) read_bytes_per_second: f64,
}

impl Machine {
    /// Measures, for products of `act`.
    pub(crate) fn measure(dot: Dot, act: ActQuant) -> anyhow::Result<Self> {
        let Limits { threads, dot_i8, dot_i16, read } = machine::measure(dot)?;
        let dot_per_second = match act {
            ActQuant::A8 => Some(dot_i8),
            ActQuant::A16 => Some(dot_i16),
            _ => None,
        };
        let instruction = dot.name();
        Ok(Self { threads, instruction, dot_per_second, read_bytes_per_second: read })
    }

    /// The higher ones: what disturbs makes a machine slower only.
    pub(crate) fn best(self, other: Self) -> Self {
        let dot = self.dot_per_second.into_iter().chain(other.dot_per_second).reduce(f64::max);
        let read = self.read_bytes_per_second.max(other.read_bytes_per_second);
        Self { dot_per_second: dot, read_bytes_per_second: read, ..self }
    }

    /// For people.
    pub(crate) fn line(&self) -> String {
        let dot = self.dot_per_second.map_or_else(String::new, |dot| {
            format!("{:.1} GOP/s of {}, ", dot / 1e9, self.instruction)
        });
        let read = self.read_bytes_per_second / 1e9;
        format!("machine: {} threads, {dot}{read:.1} GB/s of reading", self.threads)
    }
}

/// What a pass has to do.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Need {
    /// Operations on ternary weights, two per weight and row.
    pub(crate) operations: f64,
    /// Bytes that are read: weights, states, keys and values.
    pub(crate) bytes: f64,
}

/// A time beside it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Bound {
    #[serde(flatten)]
    need: Need,
    /// Milliseconds of the operations at the instruction's rate.
    pub(crate) operations_ms: Option<f64>,
    /// Milliseconds of the bytes at the rate of reading.
    pub(crate) bytes_ms: f64,
    /// The time over the larger of both.
    pub(crate) ratio: f64,
}

impl Bound {
    pub(crate) fn of(need: Need, machine: &Machine, ms: f64) -> Self {
        let operations_ms = machine.dot_per_second.map(|dot| need.operations / dot * 1e3);
        let bytes_ms = need.bytes / machine.read_bytes_per_second * 1e3;
        let least = operations_ms.unwrap_or(0.0).max(bytes_ms);
        Self { need, operations_ms, bytes_ms, ratio: ms / least }
    }

    /// Which limit is the nearer one.
    pub(crate) fn by(&self) -> &'static str {
        if self.operations_ms.is_some_and(|ms| ms > self.bytes_ms) { "dot" } else { "read" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_time_is_the_bound() {
        let machine = |dot_per_second| Machine {
            threads: 1,
            instruction: "",
            dot_per_second,
            read_bytes_per_second: 1e9,
        };
        let need = Need { operations: 4e9, bytes: 1e9 };
        let bound = Bound::of(need, &machine(Some(2e9)), 3000.0);
        assert_eq!((bound.operations_ms, bound.bytes_ms), (Some(2000.0), 1000.0));
        assert_eq!((bound.ratio, bound.by()), (1.5, "dot"));
        let bound = Bound::of(need, &machine(None), 3000.0);
        assert_eq!((bound.ratio, bound.by()), (3.0, "read"));
        let faster = machine(Some(1e9)).best(machine(Some(8e9)));
        assert_eq!(faster.dot_per_second, Some(8e9));
    }
}
