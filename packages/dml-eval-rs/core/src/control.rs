//! Control of a long computation: progress, cancellation, the sizes that it works by, and the paths that it took.

#[expect(clippy::disallowed_types, reason = "paths are few")]
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::sizes::Sizes;

/// How often a computation took each path, by name.
#[expect(clippy::disallowed_types, reason = "paths are few")]
pub type Paths = BTreeMap<String, u64>;

/// Progress of a computation and the flag that cancels it, shared between the computing and the waiting thread.
#[derive(Debug, Default)]
pub struct Control {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
    sizes: Sizes,
    /// `None` where nobody asks, so that a path costs a branch.
    paths: Option<Mutex<Paths>>,
}

impl Control {
    /// Works by these sizes instead of the default ones, and counts the paths taken.
    pub fn traced(sizes: Sizes) -> Self {
        Control { sizes, paths: Some(Mutex::default()), ..Control::default() }
    }

    /// Returns how often each path was taken; nothing unless the control is traced.
    pub fn paths(&self) -> Paths {
        self.paths
            .as_ref()
            .map_or_else(Paths::new, |paths| paths.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Counts a path, whose name is built only if the control is traced.
    #[inline]
    pub(crate) fn took<S: Into<String>>(&self, path: impl FnOnce() -> S) {
        if let Some(paths) = &self.paths {
            *paths.lock().unwrap_or_else(PoisonError::into_inner).entry(path().into()).or_default() += 1;
        }
    }

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
