//! The screen: approximate values of all pairs, each decided where it lies outside its error bound.

mod block;
pub(crate) mod rounding;
mod tile;
mod tiling;
pub(crate) mod traverse;
