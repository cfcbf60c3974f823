//! How a long run is watched and stopped from outside.

/// Receives progress and is asked whether to go on. Called from worker threads.
pub trait Observer: Sync {
    /// `done` of `total` input bytes are through; the last one was part of `tensor`.
    fn progress(&self, done: u64, total: u64, tensor: &str);

    /// Whether the run should stop at the next band of rows.
    fn cancelled(&self) -> bool;
}

/// Nobody watches, nobody stops it.
#[derive(Debug, Clone, Copy)]
pub struct Unobserved;

impl Observer for Unobserved {
    fn progress(&self, _done: u64, _total: u64, _tensor: &str) {}

    fn cancelled(&self) -> bool {
        false
    }
}
