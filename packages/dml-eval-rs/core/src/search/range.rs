//! Finds all gallery items that reach a threshold: a screen is used to find candidates, then scores
//! decide.

use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::{Hit, SweepResult};
use crate::memory::{Grow, allocate, collect, each};
use crate::random::Random;
use crate::rows::comparable::Comparable;
use crate::rows::keys::Keys;
use crate::rows::own_item::OwnItem;
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::space::{Scratch, Space};
use crate::screen::tiling::blocks;
use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
use crate::search::filter::Filter;
use crate::search::places::{descending, from_descending};
use crate::side::Side;

/// The items found for all queries, query by query.
#[derive(Debug, PartialEq)]
pub struct Ranges<T> {
    /// The start of the items per query, then the end for the last query.
    pub offsets: Vec<i64>,
    /// Gallery indices, nearest first, ties by index.
    pub indices: Vec<i64>,
    /// The similarities or distances of these items.
    pub values: Vec<T>,
}

/// A search in progress.
struct Search<'a, 'f, S> {
    space: &'a S,
    threshold: f64,
    filter: Filter<'f>,
    /// The items found for some queries, as integers: the query, an integer that is smaller if the
    /// score is larger, and the item.
    found: Mutex<Vec<u128>>,
    /// The number of items found for all queries.
    total: AtomicU64,
    most: u64,
}

impl<S: Space> Search<'_, '_, S> {
    /// Adds pairs (query, item), unless the limit is exceeded; then pairs are only counted, for the
    /// error message.
    fn add(&self, pairs: impl Iterator<Item = ((u32, u32), f64)> + Clone) -> Result<()> {
        let number = pairs.clone().count() as u64;
        if self.total.fetch_add(number, Relaxed) + number > self.most {
            return Ok(());
        }
        let mut found = self.found.lock().expect("no thread panics while it holds the lock");
        found.try_extend(pairs.map(|((query, item), score)| {
            u128::from(query) << 96 | u128::from(descending(score)) << 32 | u128::from(item)
        }))
    }
}

impl<S: Comparable> Search<'_, '_, S> {
    /// Compares queries with all allowed items.
    fn compare_allowed(&self, queries: Range<usize>, control: &Control) -> Result<()> {
        let (gallery, threshold) = (self.space.rows(Side::Gallery), self.threshold);
        each(
            queries.into_par_iter(),
            || Ok(Keys::default()),
            |keys, query| {
                self.filter.visit(query, gallery, |items| {
                    let scores = keys.compute_scores(self.space, query, items.iter().copied())?;
                    let pairs = items.iter().map(|item| (query as u32, *item));
                    let pairs = pairs.zip(scores.iter().copied());
                    self.add(pairs.filter(|(_, score)| *score >= threshold))?;
                    control.advance(items.len() as u64);
                    control.check()
                })
            },
        )
    }

    /// Sorts the items that were found for `queries`, and appends them to `ranges`, unless the
    /// limit is exceeded.
    fn append(
        &mut self,
        queries: Range<usize>,
        ranges: &mut Ranges<S::Reported>,
        control: &Control,
    ) -> Result<()> {
        let found = self.found.get_mut().expect("no thread panics while it holds the lock");
        if *self.total.get_mut() > self.most {
            return Ok(());
        }
        found.par_sort_unstable();
        ranges.indices.make_room(found.len())?;
        ranges.values.make_room(found.len())?;
        let mut places = found.iter().peekable();
        for query in queries {
            control.check()?;
            while let Some(place) = places.next_if(|place| **place >> 96 == query as u128) {
                let score = from_descending((place >> 32) as u64);
                ranges.indices.try_push(i64::from(*place as u32))?;
                ranges.values.try_push(self.space.report_score(score))?;
            }
            ranges.offsets.try_push(ranges.indices.len() as i64)?;
        }
        found.clear();
        Ok(())
    }
}

impl<S: Space> Observer for Search<'_, '_, S> {
    /// A thread's buffers: pairs (query, item), and their scores.
    type Buffers = (Vec<(u32, u32)>, Vec<f64>);

    fn group(&self, side: Side, item: usize) -> u32 {
        self.filter.group(side, item)
    }

    fn brackets(&self, _query: usize, mut visit: impl FnMut((f64, f64))) {
        visit((lowest_value(self.space, self.threshold), f64::INFINITY));
    }

    /// All queries have the same threshold, so a pair that is a hit for the row's item is a hit for
    /// the column's, too.
    fn compares_columns(&self) -> bool {
        false
    }

    fn observe<Screened: Space>(
        &self,
        _space: &Screened,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        (pairs, scores): &mut Self::Buffers,
    ) -> Result<()> {
        let (first_row, first_column) = (task.rows.start as u32, task.columns.start as u32);
        pairs.clear();
        let pair = |hit: &Hit| (first_row + hit.row, first_column + hit.column);
        let is_allowed = |pair: &(u32, u32)| self.filter.allows(pair.0 as usize, pair.1);
        pairs.try_extend(result.row_hits.iter().map(pair).filter(is_allowed))?;
        pairs.sort_unstable();
        scores.clear();
        scores.make_room(pairs.len())?;
        self.space.scores(pairs, scratch, scores)?;
        let found = pairs.iter().copied().zip(scores.iter().copied());
        let found = found.filter(|(_, score)| *score >= self.threshold);
        self.add(found.clone())?;
        if task.symmetric {
            self.add(found.map(|((query, item), score)| ((item, query), score)))?;
        }
        Ok(())
    }
}

fn lowest_value(space: &impl Space, threshold: f64) -> f64 {
    space.value_of_score(threshold).clamp(f64::MIN, f64::MAX)
}

/// The number of sampled queries used to choose the packing.
const SAMPLE: usize = 48;

/// Finds all gallery items with a similarity of at least `threshold` (or a distance of at most
/// `threshold`) per query. Fails if there are more than `most` in total.
///
/// The filter must not have labels, lists of excluded items or bounds.
pub fn range_search<S: Comparable>(
    space: &S,
    threshold: f64,
    filter: Filter<'_>,
    most: u64,
    control: &Control,
) -> Result<Ranges<S::Reported>> {
    if !threshold.is_finite() {
        return argument(format!("threshold is {threshold}; expected a finite number"));
    }
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    filter.check(queries, gallery)?;
    let few = filter.few_allowed(gallery, control);
    let (given, threshold) = (threshold, space.score_of(threshold));
    let value = lowest_value(space, threshold);
    let thresholds = || {
        let queries = Random::new(0).spread(queries, SAMPLE);
        collect(queries.map(|query| ExpectedThreshold { query: query as u32, value, share: 1.0 }))
    };
    let pairs = queries as u64 * gallery as u64 / if space.is_own_gallery() { 2 } else { 1 };
    let packing = space.packing(&Goal { pairs, thresholds: &thresholds }, control)?;
    let mut found =
        Ranges { offsets: allocate(queries + 1)?, indices: Vec::new(), values: Vec::new() };
    found.offsets.try_push(0)?;
    let (list, total) = (Mutex::default(), AtomicU64::new(0));
    let mut search = Search { space, threshold, filter, found: list, total, most };
    if space.is_own_gallery() && filter.is_symmetric() {
        control.add_to_total(queries as u64 * (queries as u64 - 1) / 2);
        // A pair is compared once and found for both items.
        search.filter = OwnItem::Absent.into();
        traverse_triangle(space, &packing, &search, 0..queries, 0..queries, control)?;
        if filter.finds_own() {
            let own = collect((0..queries as u32).map(|query| (query, query)))?;
            let mut scores = Vec::new();
            space.scores(&own, &mut Scratch::default(), &mut scores)?;
            // By reference, since `add` clones the iterator: clones of vectors allocate.
            let pairs = own.iter().copied().zip(scores.iter().copied());
            search.add(pairs.filter(|(_, score)| *score >= threshold))?;
        }
        search.append(0..queries, &mut found, control)?;
    } else {
        control.add_to_total(few.unwrap_or(queries as u64 * gallery as u64));
        let batch = control.sizes().range_queries;
        if batch < queries {
            control.took(|| "ranges in batches");
        }
        for queries in blocks(0..queries, batch) {
            if few.is_some() {
                search.compare_allowed(queries.clone(), control)?;
            } else {
                traverse_rectangle(space, &packing, &search, queries.clone(), control)?;
            }
            search.append(queries, &mut found, control)?;
        }
    }
    let total = search.total.into_inner();
    if total > most {
        return argument(format!(
            "{total} pairs reach the threshold {given}; expected at most {most}: choose a stricter \
             threshold, or allow more"
        ));
    }
    Ok(found)
}
