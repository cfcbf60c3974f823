//! Requests that wait for the device: first come, first served, and not too many.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use super::Job;

/// Ends a request from outside, wherever it is.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Ends the request at the next chance: before it begins, between passes over the prompt, or with
    /// the token that is being delivered.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it was asked to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Why a request was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// The queue is full.
    #[error("{waiting} requests are waiting; no more are taken")]
    Full {
        /// Requests that wait.
        waiting: usize,
    },
    /// The engine is ending.
    #[error("the engine is shutting down")]
    Closed,
}

#[derive(Debug)]
pub(super) struct Queue {
    limit: usize,
    state: Mutex<Waiting>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    jobs: VecDeque<Job>,
    running: Option<Cancel>,
    closed: bool,
}

impl Queue {
    /// `limit`: requests that may wait while one runs.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, state: Mutex::default(), changed: Condvar::new() }
    }

    /// No lock is held while foreign code runs, so a poisoned one still guards whole data.
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn push(&self, job: Job) -> Result<(), Refused> {
        let gone;
        let result = {
            let mut state = self.lock();
            // Those that nobody waits for any more take no place.
            gone = take_cancelled(&mut state.jobs);
            let waiting = state.jobs.len();
            let places = self.limit + usize::from(state.running.is_none());
            if state.closed {
                Err((job, Refused::Closed))
            } else if waiting >= places {
                Err((job, Refused::Full { waiting }))
            } else {
                state.jobs.push_back(job);
                Ok(())
            }
        };
        drop(gone);
        self.changed.notify_one();
        result.map_err(|(_, refused)| refused)
    }

    /// The next request, as soon as there is one; none when the queue is closed and empty. It counts
    /// as running until [`Queue::done`].
    pub(super) fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                state.running = Some(job.cancel.clone());
                return Some(job);
            }
            if state.closed {
                return None;
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(super) fn done(&self) {
        self.lock().running = None;
    }

    /// Takes no more; those that wait are still served.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.changed.notify_all();
    }

    /// Ends all that wait and what runs.
    pub(super) fn cancel_all(&self) {
        let state = self.lock();
        state.jobs.iter().for_each(|job| job.cancel.cancel());
        if let Some(running) = &state.running {
            running.cancel();
        }
    }

    /// Requests that run, and that wait.
    pub(super) fn load(&self) -> (usize, usize) {
        let state = self.lock();
        let waiting = state.jobs.iter().filter(|job| !job.cancel.is_cancelled()).count();
        (usize::from(state.running.is_some()), waiting)
    }
}

fn take_cancelled(jobs: &mut VecDeque<Job>) -> VecDeque<Job> {
    let (gone, kept) = jobs.drain(..).partition(|job| job.cancel.is_cancelled());
    *jobs = kept;
    gone
}
