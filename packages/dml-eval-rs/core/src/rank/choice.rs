//! Chooses for each query whether to screen the gallery or to compute a table of all keys.
//!
//! A screen costs little per item, but much per value that it lists: the negatives above the
//! query's lowest active positive. A table costs the same per item for all data. A sample is used
//! to estimate the share of items that a screen would list.

use std::iter::once;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{collect, collect_counted, collect_each, full, zeros};
use crate::random::Random;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::relation::Relation;
use crate::rows::keys::Keys;
use crate::rows::space::Space;
use crate::side::Side;

/// One in `ITEMS_PER_SAMPLED` items is sampled, up to `SAMPLE`. The lowest positive is sought among
/// at most `POSITIVES`.
const SAMPLE: usize = 128;
/// The extra cost of a table of values over a screen, divided by the extra cost of a table of keys.
/// The first number applies if the screen compares each pair of an array once, for both items.
/// For 128 numbers and AVX2, a pair of a table takes 18 ns (keys) or 8.3 ns (values), a pair of a
/// screen 2.4 or 4.2 ns, and a listed value 80 ns. These would give 0.4 and 0.3, but VNNI makes
/// only screens faster.
const COST_OF_VALUES: f64 = 0.75;
const COST_OF_VALUES_TWICE: f64 = 0.5;
const ITEMS_PER_SAMPLED: usize = 16;
const POSITIVES: usize = 32;
/// The maximum number of queries that are compared with the sample at a time.
const TOGETHER: usize = 1 << 14;
/// The number of queries to compare with the sample first: if none of these needs a table, no other
/// query does.
const FIRST: usize = 256;

/// Chooses between a screen and tables for the queries of a relation.
pub(crate) struct Choice<'a, S> {
    pub space: &'a S,
    pub relation: &'a Relation<'a>,
    pub control: &'a Control,
}

impl<S: Space> Choice<'_, S> {
    /// Tells for each query of an evaluation whether a table is cheaper, given the last rank that
    /// matters to the metrics, whether tables may contain values instead of keys, and whether a
    /// screen compares pairs once for both items.
    pub fn for_evaluation(&self, depth: u64, by_values: bool, are_once: bool) -> Result<Vec<bool>> {
        let number = |q: usize| self.relation.number(q);
        let lowest = |query: u32, keys: &mut Keys| {
            let candidates = self.relation.candidates(query as usize);
            let some = candidates.iter().step_by(candidates.len().div_ceil(POSITIVES).max(1));
            let matches =
                some.copied().filter(|item| !self.relation.excludes(query as usize, *item));
            let keys = keys.compute(self.space, query as usize, matches)?;
            Ok(keys.iter().copied().fold(f64::INFINITY, f64::min))
        };
        let cost = match (by_values, are_once) {
            (false, _) => 1.0,
            (true, true) => COST_OF_VALUES,
            (true, false) => COST_OF_VALUES_TWICE,
        };
        let worth = self.space.listed_share() * cost;
        self.choose(number, |q| depth.max(number(q) as u64), lowest, worth)
    }

    /// Tells for each query of a count whether a table is cheaper, given the positives and the
    /// counts so far.
    pub fn for_count(&self, counts: &PartialCounts) -> Result<Vec<bool>> {
        let lowest = |query: u32, _: &mut Keys| {
            let positives = counts.positives(query as usize);
            Ok(positives[counts.count_active(query as usize, positives.len()) - 1].key)
        };
        let worth = self.space.listed_share();
        self.choose(|q| counts.positives(q).len(), |q| counts.last_rank(q), lowest, worth)
    }

    fn choose(
        &self,
        number: impl Fn(usize) -> usize,
        last_rank: impl Fn(usize) -> u64,
        lowest: impl Fn(u32, &mut Keys) -> Result<f64> + Sync,
        worth: f64,
    ) -> Result<Vec<bool>> {
        let (queries, items) = (self.relation.queries(), self.space.rows(Side::Gallery));
        if let Some(many) = self.control.sizes().many_positives {
            return collect((0..queries).map(|q| number(q) >= many.max(1)));
        }
        // In random order, the n-th value not below the lowest positive is listed only if it is one
        // of the `last` largest so far, so about last · (1 + ln(above / last)) are listed. A
        // positive costs about half as much as a listed value.
        let listed = |q: usize, share: f64| {
            let (last, above) = (last_rank(q) as f64, share * items as f64);
            let negatives = if last < above { last * (1.0 + (above / last).ln()) } else { above };
            (negatives + number(q) as f64 / 2.0) / items as f64
        };
        // A screen of embeddings can count the items between a few positives without listing them.
        // Codes are tied too often.
        let counted = if self.space.distances().is_some() {
            0
        } else {
            self.control.sizes().counted_brackets
        };
        let is_open = |q: &u32| number(*q as usize) > counted && listed(*q as usize, 1.0) > worth;
        let open = collect_counted((0..queries as u32).filter(is_open))?;
        let mut tabled = full(queries, false)?;
        let sample = collect(
            Random::new(2)
                .spread(items, SAMPLE.min(items.div_ceil(ITEMS_PER_SAMPLED)))
                .map(|i| i as u32),
        )?;
        let mut keys: Vec<f64> = zeros(open.len().min(TOGETHER) * sample.len())?;
        let first = collect(Random::new(6).spread(open.len(), FIRST).map(|i| open[i]))?;
        for queries in once(&first[..]).chain(open.chunks(TOGETHER)) {
            let keys = &mut keys[..queries.len() * sample.len()];
            self.space.key_table(queries, &sample, keys, self.control)?;
            self.control.check()?;
            self.control.took(|| "screen or tables by a sample");
            let above = |matches: &mut Keys, (keys, query): (&[f64], &u32)| {
                let lowest = lowest(*query, matches)?;
                let class = self.relation.class(Side::Query, *query as usize);
                let is_above = |(key, item): &(&f64, &u32)| {
                    **key >= lowest && self.relation.class(Side::Gallery, **item as usize) != class
                };
                Ok(keys.iter().zip(&sample).filter(is_above).count())
            };
            let rows = keys.par_chunks_exact(sample.len()).zip(queries);
            let counts = collect_each(rows, || Ok(Default::default()), above)?;
            for (query, above) in queries.iter().zip(counts) {
                tabled[*query as usize] =
                    listed(*query as usize, above as f64 / sample.len() as f64) > worth;
            }
            if !tabled.contains(&true) {
                break;
            }
        }
        // For the few queries that are left, a screen of the array would compare all pairs.
        if 4 * tabled.iter().filter(|tabled| **tabled).count() > 3 * open.len() {
            open.iter().for_each(|query| tabled[*query as usize] = true);
        }
        Ok(tabled)
    }
}
