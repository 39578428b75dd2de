//! A packing: rows in the words of a screen, and bounds of the values that their products approximate.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::Word;
use crate::side::Side;

/// Sizes of a packed row, in the units of the screen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// The length of the exact row, or of the part of it that is packed.
    pub norm: f64,
    /// The distance between that and its rounded numbers.
    pub residual: f64,
    /// The length of the part that is not packed, at least.
    pub rest: f64,
    /// The magnitude of the number subtracted from every product of this row.
    pub bias: f64,
    /// The length of the given row, and of the centre subtracted from it, together: rounding errors are relative to these.
    pub length: f64,
}

impl Extent {
    /// Returns the larger of each size.
    pub fn max(self, other: Extent) -> Extent {
        Extent {
            norm: self.norm.max(other.norm),
            residual: self.residual.max(other.residual),
            rest: self.rest.max(other.rest),
            bias: self.bias.max(other.bias),
            length: self.length.max(other.length),
        }
    }
}

/// The axis of a tile that a panel serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Rows,
    Columns,
}

/// A value below which a query's items are ignored during a share of the screen, as far as it is known in advance.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedThreshold {
    pub query: u32,
    pub value: f64,
    pub share: f64,
}

/// The work that a screen is for.
pub struct Goal<'a> {
    /// Pairs to screen.
    pub pairs: u64,
    /// Computes the expected thresholds of some queries.
    pub thresholds: &'a (dyn Fn() -> Result<Vec<ExpectedThreshold>> + Sync),
}

/// Rows in the words of a screen.
///
/// With s a product of packed rows plus `offset`, m the margin of their extents, and r, r' their rests, the value is between
/// s − m − 2rr' and s + m. Where two values' bounds don't overlap, their keys differ in the same direction.
pub trait Packing: Sync {
    fn word(&self) -> Word;
    /// Words in a packed row.
    fn steps(&self) -> usize;
    /// Whether the first numbers of a row are mostly the largest.
    fn is_sorted(&self) -> bool;
    /// Packs some rows into a panel, `panel[step * width + lane]`; lanes beyond the rows keep their zeros.
    fn encode(
        &self,
        side: Side,
        axis: Axis,
        rows: Range<usize>,
        width: usize,
        panel: &mut [u32],
        extents: &mut [Extent],
    ) -> Result<()>;
    /// Bounds the rounding errors for any pair of a row and a column within these extents.
    fn margin(&self, row: Extent, column: Extent) -> f64;
    /// The number to add to every product.
    fn offset(&self) -> f64;
}
