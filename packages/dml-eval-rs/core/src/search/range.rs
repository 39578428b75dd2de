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
use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
use crate::search::filter::Filter;
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

/// A search in progress for some queries.
struct Search<'a, 'f, S> {
    space: &'a S,
    threshold: f64,
    first_query: usize,
    filter: &'a Filter<'f>,
    found: Vec<Mutex<Vec<(f64, u32)>>>,
    total: &'a AtomicU64,
    most: u64,
}

impl<S: Space> Search<'_, '_, S> {
    /// Counts items, to tell whether the limit is exceeded. Items above the limit are only counted,
    /// for the error message.
    fn exceeds(&self, items: usize) -> bool {
        self.total.fetch_add(items as u64, Relaxed) + items as u64 > self.most
    }

    fn push(&self, query: u32, score: f64, item: u32) -> Result<()> {
        let list = &self.found[query as usize - self.first_query];
        list.lock().expect("no thread panics while it holds the lock").try_push((score, item))
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
                    let found =
                        || items.iter().zip(scores).filter(|(_, score)| **score >= threshold);
                    if !self.exceeds(found().count()) {
                        found()
                            .try_for_each(|(item, score)| self.push(query as u32, *score, *item))?;
                    }
                    control.advance(items.len() as u64);
                    control.check()
                })
            },
        )
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
        let found = pairs.iter().zip(&*scores).filter(|(_, score)| **score >= self.threshold);
        if self.exceeds(found.clone().count() * if task.symmetric { 2 } else { 1 }) {
            return Ok(());
        }
        for (&(query, item), &score) in found {
            self.push(query, score, item)?;
            if task.symmetric {
                self.push(item, score, query)?;
            }
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
    let total = AtomicU64::new(0);
    let mut found =
        Ranges { offsets: allocate(queries + 1)?, indices: Vec::new(), values: Vec::new() };
    found.offsets.try_push(0)?;
    let search = |first_query: usize, end: usize| -> Result<Search<'_, '_, S>> {
        let found = collect((first_query..end).map(|_| Mutex::default()))?;
        Ok(Search { space, threshold, first_query, filter: &filter, found, total: &total, most })
    };
    if space.is_own_gallery() && filter.is_symmetric() {
        control.add_to_total(queries as u64 * (queries as u64 - 1) / 2);
        // A pair is compared once and found for both items, so results can be sorted only after the
        // traversal.
        let all = OwnItem::Absent.into();
        let search = Search { filter: &all, ..search(0, queries)? };
        traverse_triangle(space, &packing, &search, 0..queries, 0..queries, control)?;
        if filter.finds_own() {
            let (mut scores, mut scratch) = (Vec::new(), Scratch::default());
            for query in 0..queries as u32 {
                control.check()?;
                scores.clear();
                space.scores(&[(query, query)], &mut scratch, &mut scores)?;
                if scores[0] >= threshold && !search.exceeds(1) {
                    search.push(query, scores[0], query)?;
                }
            }
        }
        append(space, &mut found, search.found, &total, most, control)?;
    } else {
        control.add_to_total(few.unwrap_or(queries as u64 * gallery as u64));
        let batch = control.sizes().range_queries;
        if batch < queries {
            control.took(|| "ranges in batches");
        }
        for first in (0..queries).step_by(batch) {
            let end = queries.min(first + batch);
            let search = search(first, end)?;
            if few.is_some() {
                search.compare_allowed(first..end, control)?;
            } else {
                traverse_rectangle(space, &packing, &search, first..end, control)?;
            }
            append(space, &mut found, search.found, &total, most, control)?;
        }
    }
    let total = total.into_inner();
    if total > most {
        return argument(format!(
            "{total} pairs reach the threshold {given}; expected at most {most}: choose a stricter \
             threshold, or allow more"
        ));
    }
    Ok(found)
}

/// Sorts the items of some queries and appends them, unless the limit is exceeded.
fn append<S: Comparable>(
    space: &S,
    found: &mut Ranges<S::Reported>,
    lists: Vec<Mutex<Vec<(f64, u32)>>>,
    total: &AtomicU64,
    most: u64,
    control: &Control,
) -> Result<()> {
    if total.load(Relaxed) > most {
        return Ok(());
    }
    let unlock =
        |list: Mutex<Vec<_>>| list.into_inner().expect("no thread panics while it holds the lock");
    let mut lists: Vec<Vec<(f64, u32)>> = collect(lists.into_iter().map(unlock))?;
    lists.par_iter_mut().try_for_each(|list| {
        list.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
        control.check()
    })?;
    let number = lists.iter().map(Vec::len).sum();
    found.indices.make_room(number)?;
    found.values.make_room(number)?;
    for list in lists {
        control.check()?;
        found.indices.try_extend(list.iter().map(|(_, item)| i64::from(*item)))?;
        found.values.try_extend(list.iter().map(|(score, _)| space.report_score(*score)))?;
        found.offsets.try_push(found.indices.len() as i64)?;
    }
    Ok(())
}
