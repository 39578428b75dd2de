//! The screen: approximate values of all pairs, compared with thresholds that allow for their error bounds.

pub(crate) mod block;
pub(crate) mod expected;
mod preview;
pub(crate) mod rounding;
mod tile;
pub(crate) mod tiling;
pub(crate) mod traverse;
mod uncounted;
