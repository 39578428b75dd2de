//! Screens all pairs: computes approximate values, to be compared with thresholds that allow for
//! the errors.

pub(crate) mod block;
pub(crate) mod cells;
mod excluded;
pub(crate) mod expected;
pub(crate) mod guess;
mod preview;
pub(crate) mod rounding;
mod tile;
pub(crate) mod tiling;
pub(crate) mod traverse;
