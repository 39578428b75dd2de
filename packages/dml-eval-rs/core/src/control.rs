//! How a long computation is watched and stopped from outside.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::error::{Error, Result};

/// Progress of a computation, and the flag that ends it. Shared between the thread that computes and the one that waits.
#[derive(Debug, Default)]
pub struct Control {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
}

impl Control {
    /// Asks the computation to end at the next block, within milliseconds.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Pairs compared so far, and in all. The total is 0 until it is known.
    pub fn progress(&self) -> (u64, u64) {
        (self.done.load(Relaxed), self.total.load(Relaxed))
    }

    pub(crate) fn expect(&self, pairs: u64) {
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
