//! Spaces: queries and items, with keys used to rank the items per query.

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::rows::packing::{Goal, Packing};
use crate::side::Side;

/// Buffers of a thread.
#[derive(Default)]
pub struct Scratch {
    pub query: Vec<f64>,
    pub other: Vec<f64>,
}

/// Distances that are small integers, equal to minus the keys.
pub trait Distances: Sync {
    /// Returns the largest possible distance.
    fn largest(&self) -> usize;
    /// Fills `distances` for all pairs of `queries` and `items`, query by query. Distances must not
    /// exceed 2^16 − 1.
    fn distance_table(
        &self,
        queries: &[u32],
        items: &[u32],
        distances: &mut [u16],
        control: &Control,
    ) -> Result<()>;
}

/// Tables of approximate values.
pub trait Values {
    /// Fills `values` with the values of all pairs of `queries` and gallery items, query by query.
    /// Returns a bound for the errors of all values. When cancelled, leaves the table incomplete.
    fn fill(&mut self, queries: &[u32], values: &mut [f32], control: &Control) -> Result<f64>;
}

/// Queries and items, with a ranking of the gallery per query.
///
/// The *key* decides the rank: larger keys are nearer, equal keys are ties. The *value*, which a
/// [`Packing`] bounds, grows too.
pub trait Space: Sync {
    type Packing<'s>: Packing
    where
        Self: 's;

    fn rows(&self, side: Side) -> usize;
    fn kernel(&self) -> &'static Kernel;
    /// Whether the queries are also the gallery.
    fn is_own_gallery(&self) -> bool;
    /// Chooses a packing of the rows for a screen.
    fn packing(&self, goal: &Goal<'_>, control: &Control) -> Result<Self::Packing<'_>>;
    /// Returns the value for a key of `query`.
    fn value(&self, query: usize, key: f64) -> f64;
    /// Bounds the difference between a value and the value of the exact key, because keys are
    /// rounded.
    fn value_slack(&self) -> f64;
    /// Returns the key if the screened value determines it.
    fn key_of_screened(&self, screened: f64) -> Option<f64>;
    /// Appends the keys of `pairs` (query, gallery item) to `keys`. For speed, pairs of a query
    /// should be adjacent.
    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>) -> Result<()>;
    /// Appends the scores of `pairs`, like `keys` does. Scores can be compared across queries.
    fn scores(
        &self,
        pairs: &[(u32, u32)],
        scratch: &mut Scratch,
        scores: &mut Vec<f64>,
    ) -> Result<()>;
    /// Returns the value for a score. The margin of a screen covers the rounding of scores, too.
    fn value_of_score(&self, score: f64) -> f64;
    /// Fills `keys` with the keys of all pairs of `queries` and `items`, query by query. When both
    /// are large, this is faster per pair than `keys`. When cancelled, leaves the table incomplete.
    fn key_table(
        &self,
        queries: &[u32],
        items: &[u32],
        keys: &mut [f64],
        control: &Control,
    ) -> Result<()>;
    /// Fills `scores` with the scores of all pairs of `queries` and `items`, like `key_table` does.
    fn score_table(
        &self,
        queries: &[u32],
        items: &[u32],
        scores: &mut [f64],
        control: &Control,
    ) -> Result<()>;
    /// Returns the distances, if they are small integers and determine the keys.
    fn distances(&self) -> Option<&dyn Distances> {
        None
    }
    /// Returns tables of values in float32, if they cost less than tables of keys.
    fn values(&self) -> Result<Option<impl Values>>;
    /// Returns a share of the items. A screen that lists a larger share is slower than a table of
    /// all keys, as measured in docs/internals/evaluator-speed.md.
    fn listed_share(&self) -> f64;
    /// Returns the number of bytes that both sides occupy in memory, as given.
    fn bytes(&self) -> usize;
}
