//! The first error of work that many threads do, and whose callers take none.

use std::sync::OnceLock;

use crate::error::{Error, Result};

/// The first error, if there was one.
#[derive(Default)]
pub(super) struct Failure(OnceLock<Error>);

impl Failure {
    /// Works, unless something failed before, and keeps the error.
    pub fn note(&self, work: impl FnOnce() -> Result<()>) {
        if self.0.get().is_none()
            && let Err(error) = work()
        {
            // Another thread's may have been first.
            let _ = self.0.set(error);
        }
    }

    /// Returns the error, if there was one.
    pub fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |error| Err(error.clone()))
    }
}
