//! Estimates from a sample the thresholds that a screen will reach, to choose a packing.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{collect, zeros};
use crate::random::Random;
use crate::rows::space::Space;
use crate::side::Side;

/// Queries in a sample.
const QUERIES: usize = 48;
/// Gallery items in a sample.
const ITEMS: usize = 1024;

/// Some queries, and the values of sampled items per query, in descending order.
pub(crate) struct SampledValues {
    pub queries: Vec<u32>,
    items: usize,
    gallery: usize,
    values: Vec<f64>,
}

impl SampledValues {
    /// Computes the values for some of `queries`. The value of an excluded item is −∞.
    pub fn compute<S: Space>(
        space: &S,
        queries: &[u32],
        is_excluded: impl Fn(u32, u32) -> bool + Sync,
        control: &Control,
    ) -> Result<Self> {
        let gallery = space.rows(Side::Gallery);
        let queries = collect(Random::new(0).spread(queries.len(), QUERIES).map(|i| queries[i]))?;
        let items = collect(Random::new(1).spread(gallery, ITEMS).map(|i| i as u32))?;
        let mut values: Vec<f64> = zeros(queries.len() * items.len())?;
        space.key_table(&queries, &items, &mut values, control)?;
        values.par_chunks_exact_mut(items.len()).zip(&queries).for_each(|(values, &query)| {
            for (value, &item) in values.iter_mut().zip(&items) {
                *value = if is_excluded(query, item) {
                    f64::NEG_INFINITY
                } else {
                    space.value(query as usize, *value)
                };
            }
            values.sort_unstable_by(|a, b| b.total_cmp(a));
        });
        Ok(SampledValues { queries, items: items.len(), gallery, values })
    }

    fn of(&self, i: usize) -> &[f64] {
        &self.values[i * self.items..][..self.items]
    }

    /// Estimates the value of the item at `rank` (from 1) for the `i`-th query.
    pub fn at_rank(&self, i: usize, rank: usize) -> f64 {
        self.of(i)[(rank.saturating_sub(1) * self.items / self.gallery).min(self.items - 1)]
    }

    /// Estimates the number of items above a value for the `i`-th query.
    pub fn above(&self, i: usize, value: f64) -> f64 {
        let above = self.of(i).partition_point(|v| *v > value);
        above as f64 * self.gallery as f64 / self.items as f64
    }
}
