//! A space: two sides of rows, and the keys that order one for the other.

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::rows::packing::{Goal, Packing};
use crate::side::Side;

/// Buffers of one thread.
#[derive(Default)]
pub struct Scratch {
    pub query: Vec<f64>,
    pub other: Vec<f64>,
}

/// Distances that are small integers: minus the keys.
pub trait Distances: Sync {
    /// Returns the largest distance there may be.
    fn largest(&self) -> usize;
    /// Fills `distances` with those of all pairs of these queries and gallery items, query by query, where none exceeds 2^16 − 1.
    fn distance_table(&self, queries: &[u32], items: &[u32], distances: &mut [u16], control: &Control) -> Result<()>;
}

/// Two sides of rows, and the order of the gallery for each query.
///
/// The *key* decides: larger is nearer, equal is tied. The *value* grows with the key. A [`Packing`] bounds it.
pub trait Space: Sync {
    type Packing<'s>: Packing
    where
        Self: 's;

    fn rows(&self, side: Side) -> usize;
    fn kernel(&self) -> &'static Kernel;
    /// Whether the queries are their own gallery.
    fn is_own_gallery(&self) -> bool;
    /// Chooses how rows are packed for a screen.
    fn packing(&self, goal: &Goal<'_>, control: &Control) -> Result<Self::Packing<'_>>;
    /// Returns the value of a key of this query.
    fn value(&self, query: usize, key: f64) -> f64;
    /// Bounds the distance of a value from that of the exact key: keys are rounded.
    fn value_slack(&self) -> f64;
    /// Returns the key, where the screened value determines it.
    fn key_of_screened(&self, screened: f64) -> Option<f64>;
    /// Appends the keys of some pairs (query, gallery item) to `keys`; fastest where pairs of one query adjoin.
    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>) -> Result<()>;
    /// Appends the scores of some pairs, as `keys` does: numbers that can be compared across queries.
    fn scores(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, scores: &mut Vec<f64>) -> Result<()>;
    /// Returns the value of an item with this score. A screen's margin covers the rounding of scores, too.
    fn value_of_score(&self, score: f64) -> f64;
    /// Fills `keys` with those of all pairs of these queries and gallery items, query by query: faster per pair than `keys`
    /// where there are many of both. After a cancellation the table is incomplete.
    fn key_table(&self, queries: &[u32], items: &[u32], keys: &mut [f64], control: &Control) -> Result<()>;
    /// Fills `scores` with those of these queries and gallery items, as `key_table` does.
    fn score_table(&self, queries: &[u32], items: &[u32], scores: &mut [f64], control: &Control) -> Result<()>;
    /// Returns the distances, if they are small integers that alone make the keys.
    fn distances(&self) -> Option<&dyn Distances> {
        None
    }
    /// Returns the share of a query's items from which on listing them in a screen takes longer than a table of all keys: measured
    /// (docs/internals/evaluator-speed.md).
    fn listed_share(&self) -> f64;
    /// The size of both sides in memory, as given.
    fn bytes(&self) -> usize;
}
