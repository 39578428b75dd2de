//! The public name of the spaces.

use crate::rows::space::Space;

/// Two sides of rows that can be compared: [`Dense`](crate::Dense) or [`Codes`](crate::Codes).
///
/// Sealed: results are exact because every space states a bound of its screen's error, and keeps it.
pub trait Comparable: Space {}

impl<S: Space> Comparable for S {}
