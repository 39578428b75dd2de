//! Packings: rows in the words of a screen, and bounds for the values that products of these words
//! approximate.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::{Kernel, Word};
use crate::side::Side;

/// Sizes of a packed row in the units of the screen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// An upper bound on the length of the row before rounding or, for a prefix, of the packed
    /// part.
    pub norm: f64,
    /// An upper bound on the distance between the row (or this part) and the rounded numbers.
    pub residual: f64,
    /// An upper bound on the length of the part that isn't packed.
    pub residual_norm: f64,
    /// The magnitude of the bias, which is subtracted from products of this row.
    pub bias: f64,
    /// The length of the given row plus the length of the centre: rounding errors are proportional
    /// to this sum.
    pub length: f64,
}

impl Extent {
    /// Returns the maximum per size.
    pub fn max(self, other: Extent) -> Extent {
        Extent {
            norm: self.norm.max(other.norm),
            residual: self.residual.max(other.residual),
            residual_norm: self.residual_norm.max(other.residual_norm),
            bias: self.bias.max(other.bias),
            length: self.length.max(other.length),
        }
    }
}

/// The axis of a tile that a panel belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    Rows,
    Columns,
}

/// A value that is expected to be a query's lowest threshold during a share of the screen, as far
/// as this can be predicted.
#[derive(Clone, Copy, Debug)]
pub struct ExpectedThreshold {
    pub query: u32,
    pub value: f64,
    pub share: f64,
}

/// The work that a screen must do.
pub struct Goal<'a> {
    /// The number of pairs to screen.
    pub pairs: u64,
    /// Computes the expected thresholds for a sample of the queries.
    pub thresholds: &'a (dyn Fn() -> Result<Vec<ExpectedThreshold>> + Sync),
}

/// Rows in the words of a screen.
///
/// Let s be a product of packed rows plus `offset`, m the margin for the extents, and r, r' the
/// residual norms. Then the value is between s − m − 2rr' and s + m. If the bounds of two values
/// don't overlap, the keys differ in the same direction.
pub trait Packing: Sync {
    fn word(&self) -> Word;
    /// Returns the number of words per packed row.
    fn steps(&self) -> usize;
    /// Whether rows are bytes that all have the same scale, so that sums of integers are in the
    /// order of products.
    fn has_one_scale(&self) -> bool {
        false
    }
    /// Whether the first numbers of most rows are the largest.
    fn is_sorted(&self) -> bool;
    /// Packs rows to `panel[step * width + lane]`. Lanes that aren't used stay 0.
    fn encode(
        &self,
        side: Side,
        axis: Axis,
        rows: Range<usize>,
        width: usize,
        panel: &mut [u32],
        extents: &mut [Extent],
    ) -> Result<()>;
    /// Returns the kernel to compare rounded rows, if rows are also packed in this form.
    fn rounding(&self) -> Option<&'static Kernel> {
        None
    }
    /// Bounds the rounding errors for any row and column with sizes up to these extents.
    fn margin(&self, row: Extent, column: Extent) -> f64;
    /// Returns the number to add to products.
    fn offset(&self) -> f64;
}
