//! Screens all pairs: computes approximate values, to be compared with thresholds that allow for
//! the errors.

pub(crate) mod block;
mod excluded;
pub(crate) mod expected;
mod preview;
pub(crate) mod rounding;
mod tile;
pub(crate) mod tiling;
pub(crate) mod traverse;
