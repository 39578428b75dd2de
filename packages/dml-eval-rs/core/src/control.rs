//! Controls a long computation: progress, cancellation, the sizes to be used, and the paths that
//! were taken.

#[expect(clippy::disallowed_types, reason = "paths are few")]
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::sizes::Sizes;

/// The number of times that a computation took a path, by the name of the path.
#[expect(clippy::disallowed_types, reason = "paths are few")]
pub type Paths = BTreeMap<String, u64>;

/// The progress of a computation and a flag to cancel it, shared between the thread that computes
/// and the thread that waits.
#[derive(Debug, Default)]
pub struct Control {
    done: AtomicU64,
    total: AtomicU64,
    cancelled: AtomicBool,
    sizes: Sizes,
    /// `None` unless the control is traced, so that recording a path costs only a branch.
    paths: Option<Mutex<Paths>>,
}

impl Control {
    /// Uses these sizes instead of the default sizes, and counts the paths taken.
    pub fn traced(sizes: Sizes) -> Self {
        Control { sizes, paths: Some(Mutex::default()), ..Control::default() }
    }

    /// Returns how often paths were taken. Empty unless the control is traced.
    pub fn paths(&self) -> Paths {
        self.paths.as_ref().map_or_else(Paths::new, |paths| {
            paths.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }

    pub(crate) fn sizes(&self) -> &Sizes {
        &self.sizes
    }

    /// Counts a path. The name is only built when the control is traced.
    #[inline]
    pub(crate) fn took<S: Into<String>>(&self, path: impl FnOnce() -> S) {
        if let Some(paths) = &self.paths {
            *paths
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .entry(path().into())
                .or_default() += 1;
        }
    }

    /// Asks the computation to stop at the next check, within milliseconds.
    pub fn cancel(&self) {
        self.cancelled.store(true, Relaxed);
    }

    /// Returns the number of compared pairs, then the total, which is 0 until it is known.
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
