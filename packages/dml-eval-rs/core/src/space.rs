//! What is compared with what: the two sides of an evaluation, packed for the products and measured for their error bounds.

use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Kernel, Word};
use crate::memory::zeros;
use crate::panels::Panels;

/// Which array an item is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Query,
    Gallery,
}

/// Sizes that bound the error of a screened value. In the units of the screen.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    /// Length of the exact row.
    pub norm: f64,
    /// Distance between the exact row and the packed one.
    pub residual: f64,
    /// What is subtracted from every product of this row.
    pub bias: f64,
}

impl Extent {
    fn max(self, other: Extent) -> Extent {
        Extent {
            norm: self.norm.max(other.norm),
            residual: self.residual.max(other.residual),
            bias: self.bias.max(other.bias),
        }
    }
}

/// Buffers of one thread.
#[derive(Default)]
pub(crate) struct Scratch {
    pub query: Vec<f64>,
    pub other: Vec<f64>,
    pub packed: Vec<f32>,
}

/// Two sides and the order that a query puts the gallery in.
///
/// The *key* decides: larger is nearer, equal is tied. The *value* is a number that grows with the key and that a product of
/// packed rows approximates within `margin`: where two values differ by more than the margin, their keys differ the same way.
pub(crate) trait Space: Sync {
    fn rows(&self, side: Side) -> usize;
    fn kernel(&self) -> &'static Kernel;
    fn word(&self) -> Word;
    /// Words a packed row.
    fn steps(&self) -> usize;
    /// Whether products have biases to subtract.
    fn biased(&self) -> bool;
    /// Packs a row into `words`, `steps` of them.
    fn encode(&self, side: Side, row: usize, scratch: &mut Scratch, words: &mut [u32]) -> Extent;
    /// Bound of |screened − value| for any pair of a row and a column within these extents.
    fn margin(&self, row: Extent, column: Extent) -> f64;
    /// The value that belongs to a key of this query.
    fn value(&self, query: usize, key: f64) -> f64;
    /// How far a value may be from that of the exact key, the key being rounded.
    fn value_slack(&self) -> f64;
    /// The key, where the screened value gives it away.
    fn settled(&self, screened: f32) -> Option<f64>;
    /// The keys of some pairs (query, gallery item), appended to `keys`. Pairs with one query are best next to each other.
    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>);
    /// The keys of all pairs of these queries and these gallery items, query by query: quicker than `keys`, pair for pair,
    /// where there are many of both. What is left unfilled after a cancellation is of no use.
    fn key_table(&self, queries: &[u32], items: &[u32], keys: &mut [f64], control: &Control) -> Result<()>;
    /// From how many matches on, as one part in so many of a gallery, all keys of a query are computed: measured, where the two
    /// ways take equal time (docs/internals/evaluator-speed.md).
    fn crowd_share(&self) -> usize;
    /// Bytes of both sides as given.
    fn bytes(&self) -> usize;
}

/// Some rows of one side, packed.
pub(crate) struct Block {
    pub rows: Range<usize>,
    pub worst: Extent,
    pub extents: Vec<Extent>,
    /// The biases again, as the tile needs them, padded to whole panels.
    pub biases: Vec<f32>,
    panels: Panels<u32>,
}

impl Block {
    /// Packs `rows` into panels of `width` lanes, the last one filled up with zeros.
    pub fn load<S: Space>(space: &S, side: Side, rows: Range<usize>, width: usize) -> Result<Block> {
        let (panels, extents) = Panels::load(rows.len(), width, space.steps(), |row, scratch, words| {
            space.encode(side, rows.start + row, scratch, words)
        })?;
        let worst = extents.iter().copied().fold(Extent::default(), Extent::max);
        let mut biases: Vec<f32> = zeros(rows.len().next_multiple_of(width))?;
        biases.iter_mut().zip(&extents).for_each(|(bias, extent)| *bias = extent.bias as f32);
        Ok(Block { rows, worst, extents, biases, panels })
    }

    pub fn panel(&self, p: usize) -> &[u32] {
        self.panels.panel(p)
    }
}

/// The largest float32 that is not above `x`, kept finite.
pub(crate) fn round_down(x: f64) -> f32 {
    let y = x as f32;
    let y = if f64::from(y) > x { y.next_down() } else { y };
    y.max(f32::MIN)
}

/// The smallest float32 that is not below `x`.
pub(crate) fn round_up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}
