//! A space: two sides of rows, the keys that order one for the other, and the error bound of the screen.

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Kernel, Word};
use crate::side::Side;

/// Sizes of a row that bound the error of its screened values, in the units of the screen.
#[derive(Clone, Copy, Debug, Default)]
pub struct Extent {
    /// The length of the exact row.
    pub norm: f64,
    /// The distance between the exact row and the packed one.
    pub residual: f64,
    /// The number subtracted from every product of this row.
    pub bias: f64,
}

impl Extent {
    /// Returns the larger of each size.
    pub fn max(self, other: Extent) -> Extent {
        Extent {
            norm: self.norm.max(other.norm),
            residual: self.residual.max(other.residual),
            bias: self.bias.max(other.bias),
        }
    }
}

/// Buffers of one thread.
#[derive(Default)]
pub struct Scratch {
    pub query: Vec<f64>,
    pub other: Vec<f64>,
    pub packed: Vec<f32>,
}

/// Two sides of rows, and the order of the gallery for each query.
///
/// The *key* decides: larger is nearer, equal is tied. The *value* grows with the key, and a product of packed rows approximates
/// it within `margin`: where two values differ by more than the margin, their keys differ in the same direction.
pub trait Space: Sync {
    fn rows(&self, side: Side) -> usize;
    fn kernel(&self) -> &'static Kernel;
    fn word(&self) -> Word;
    /// Words in a packed row.
    fn steps(&self) -> usize;
    /// Whether biases are subtracted from the products.
    fn biased(&self) -> bool;
    /// Packs a row into `words`, of length `steps`.
    fn encode(&self, side: Side, row: usize, scratch: &mut Scratch, words: &mut [u32]) -> Extent;
    /// Bounds |screened − value| for any pair of a row and a column within these extents.
    fn margin(&self, row: Extent, column: Extent) -> f64;
    /// Returns the value of a key of this query.
    fn value(&self, query: usize, key: f64) -> f64;
    /// Bounds the distance of a value from that of the exact key: keys are rounded.
    fn value_slack(&self) -> f64;
    /// Returns the key, where the screened value determines it.
    fn key_of_screened(&self, screened: f32) -> Option<f64>;
    /// Appends the keys of some pairs (query, gallery item) to `keys`; fastest where pairs of one query adjoin.
    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>);
    /// Fills `keys` with those of all pairs of these queries and gallery items, query by query: faster per pair than `keys`
    /// where there are many of both. After a cancellation the table is incomplete.
    fn key_table(&self, queries: &[u32], items: &[u32], keys: &mut [f64], control: &Control) -> Result<()>;
    /// Gallery items per positive from which on a query has *many positives*, so that computing all of its keys takes less time
    /// than screening: measured (docs/internals/evaluator-speed.md).
    fn items_per_positive(&self) -> usize;
    /// The size of both sides in memory, as given.
    fn bytes(&self) -> usize;
}
