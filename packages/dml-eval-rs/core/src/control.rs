//! Progress and cancellation of a long computation.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::{Error, Result};

/// Progress of a computation and the flag that cancels it, shared between the computing and the waiting thread.
#[derive(Debug, Default)]
pub struct Control {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

impl Control {
    /// Asks the computation to stop at the next block, within milliseconds.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Returns the pairs compared so far, and in all. The total is 0 until it is known.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Relaxed), self.total.load(Relaxed))
    }

    pub(crate) fn add_to_total(&self, pairs: u64) {
        self.total.fetch_add(pairs, Relaxed);
    }

    pub(crate) fn advance(&self, pairs: u64) {
        self.done.fetch_add(pairs, Relaxed);
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.cancelled.load(Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }
}
