//! The screen: approximate values of all pairs, compared with thresholds that allow for their error bounds.

mod block;
pub(crate) mod expected;
pub(crate) mod rounding;
mod tile;
mod tiling;
pub(crate) mod traverse;
mod uncounted;
