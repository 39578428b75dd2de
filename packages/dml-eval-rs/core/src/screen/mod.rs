//! The screen: compares approximate values of all pairs with thresholds, allowing for error bounds.

pub(crate) mod block;
pub(crate) mod expected;
mod preview;
pub(crate) mod rounding;
mod tile;
pub(crate) mod tiling;
pub(crate) mod traverse;
mod uncounted;
