//! Screens all pairs: computes approximate values, and compares them with thresholds that allow for the errors.

pub(crate) mod block;
pub(crate) mod expected;
mod preview;
pub(crate) mod rounding;
mod tile;
pub(crate) mod tiling;
pub(crate) mod traverse;
mod uncounted;
