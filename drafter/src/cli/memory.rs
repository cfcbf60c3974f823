//! What a request may take in memory, beside the weights.

use runtime::drafter::Context;
use runtime::kv::KvType;
use serde::Serialize;

use super::models::Models;

/// Bytes of what is remembered when the context is full.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Memory {
    /// Positions that the figures are for.
    context: usize,
    /// Recurrent states of the target.
    recurrent_bytes: usize,
    /// Keys and values of the target.
    kv_bytes: usize,
    /// Keys and values of the drafter.
    drafter_bytes: usize,
}

impl Memory {
    /// For `context` positions at most.
    pub(crate) fn of(models: &Models, kv: KvType, context: Option<usize>) -> Self {
        let config = models.target.config();
        let context = context.unwrap_or(usize::MAX).min(config.context_length);
        let drafter = models.drafter.as_ref();
        Self {
            context,
            recurrent_bytes: config.recurrent_bytes(),
            kv_bytes: config.kv_bytes(kv) * context,
            drafter_bytes: drafter.map_or(0, |d| Context::bytes(d.config(), kv, context)),
        }
    }

    /// For people.
    pub(crate) fn line(&self) -> String {
        let mb = |bytes: usize| format!("{:.1} MB", bytes as f64 / 1e6);
        let mut line = format!(
            "memory: {} of state, {} of keys and values at {} positions",
            mb(self.recurrent_bytes),
            mb(self.kv_bytes),
            self.context
        );
        if self.drafter_bytes > 0 {
            line += &format!(", {} for the drafter", mb(self.drafter_bytes));
        }
        line
    }
}
