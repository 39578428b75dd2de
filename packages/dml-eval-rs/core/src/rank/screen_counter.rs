//! Counts of negatives from screened values.
//!
//! A query's thresholds are its active positives. Once the counts show that a positive's rank matters to no metric, the
//! positive is dropped, which raises the threshold below which negatives are ignored.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Above, Hit, SweepResult};
use crate::memory::{Grow, allocate, collect, collect_counted, zeros};
use crate::rank::count_job::CountJob;
use crate::rank::split::split;
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::space::{Scratch, Space};
use crate::screen::expected::SampledValues;
use crate::screen::traverse::{Observer, Task};
use crate::side::Side;

/// A count in progress.
pub(crate) struct ScreenCounter<'a> {
    job: CountJob<'a>,
    /// The positives' values, in the units of the screen.
    values: Vec<f64>,
    /// The number of each query's active positives: always a prefix of them, and at least the first.
    active: Vec<AtomicU32>,
    /// Negatives counted since the last update of `active`.
    counted: Vec<AtomicU32>,
    control: &'a Control,
}

/// The screened values of one side of a task: of its rows with the columns as items, or the reverse.
pub(crate) struct TaskSide<'a, H> {
    pub first_query: usize,
    pub queries: usize,
    pub items: Range<usize>,
    /// Counts of the unlisted values above the first positive of each query, the second, and so on.
    pub above: &'a Above,
    /// Values to decide: the query counted from `first_query`, the item, and bounds of the value.
    pub hits: H,
}

/// The most slots of a query for which a thread adds up a task's counts by itself, where they are many.
const LOCAL_SLOTS: usize = 16;

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Pairs that the screen leaves open.
    open: Vec<(u32, u32)>,
    /// Their keys.
    keys: Vec<f64>,
    /// Each query's negatives in a task.
    negatives: Vec<u32>,
    /// Each query's negatives in a task after fewer than `LOCAL_SLOTS` positives; empty in tasks with few hits.
    local: Vec<u32>,
}

/// Computes the keys of sorted pairs among these queries and items.
fn compute_keys<S: Space>(
    space: &S,
    pairs: &[(u32, u32)],
    queries: &Range<usize>,
    items: &Range<usize>,
    scratch: &mut Scratch,
    keys: &mut Vec<f64>,
    control: &Control,
) -> Result<()> {
    let (all, sizes) = (queries.len() * items.len(), control.sizes());
    // A table of a few rows is mostly padding, which takes a gigabyte if they are long.
    let are_few = queries.len().min(items.len()) < sizes.class_table;
    if are_few || pairs.len().saturating_mul(sizes.pairs_per_open_key) < all || pairs.is_empty() {
        return space.keys(pairs, scratch, keys);
    }
    let indices = |of: &Range<usize>| collect(of.start as u32..of.end as u32);
    let mut table: Vec<f64> = zeros(all)?;
    space.key_table(&indices(queries)?, &indices(items)?, &mut table, &Control::default())?;
    let of_pair = |&(query, item): &(u32, u32)| {
        table[(query as usize - queries.start) * items.len() + item as usize - items.start]
    };
    keys.try_extend(pairs.iter().map(of_pair))?;
    control.took(|| "open pairs from a table");
    Ok(())
}

impl<'a> ScreenCounter<'a> {
    /// Starts a count for the queries that tables of keys don't serve.
    pub fn new<S: Space>(
        space: &S,
        job: CountJob<'a>,
        is_tabled: &(dyn Fn(usize) -> bool + Sync),
        control: &'a Control,
    ) -> Result<Self> {
        let (counts, first_query) = (job.counts, job.first_query);
        let queries = counts.queries();
        let mut values: Vec<f64> = zeros(counts.offsets[queries])?;
        let mut active: Vec<AtomicU32> = zeros(queries)?;
        let few = |q: usize| if is_tabled(q) { 0 } else { counts.positives(q).len() };
        let of_queries = split(&mut values, &counts.offsets)?.into_par_iter().zip(&mut active).with_min_len(64);
        of_queries.enumerate().for_each(|(q, (values, active))| {
            for (value, positive) in values.iter_mut().zip(counts.positives(q)) {
                *value = space.value(first_query + q, positive.key);
            }
            *active.get_mut() = counts.count_active(q, few(q)) as u32;
        });
        Ok(ScreenCounter { job, values, active, counted: zeros(queries)?, control })
    }

    /// Chooses a packing for the screen of so many pairs.
    pub fn packing<'s, S: Space>(&self, space: &'s S, pairs: u64, control: &Control) -> Result<S::Packing<'s>> {
        let (job, counts) = (&self.job, self.job.counts);
        let thresholds = || {
            let counted = (0..counts.queries()).filter(|q| !self.active_values(*q).is_empty());
            let queries = collect_counted(counted.map(|q| (q + job.first_query) as u32))?;
            let is_match = |query: u32, item: u32| {
                let [query_class, item_class] =
                    [(Side::Query, query), (Side::Gallery, item)].map(|(side, i)| job.relation.class(side, i as usize));
                query_class == item_class || job.relation.uncounted(query as usize).binary_search(&item).is_ok()
            };
            let sampled = SampledValues::compute(space, &queries, is_match, control)?;
            let mut expected = allocate(2 * sampled.queries.len())?;
            for (i, &query) in sampled.queries.iter().enumerate() {
                let q = query as usize - job.first_query;
                let values = self.active_values(q);
                let (Some(&first), Some(&lowest)) = (values.first(), values.last()) else { continue };
                let rank = usize::try_from(counts.last_rank(q)).unwrap_or(usize::MAX).min(space.rows(Side::Gallery));
                let last = first.min(sampled.at_rank(i, rank)).max(lowest);
                // The lowest positive is dropped once as many negatives above it are counted as ranks matter.
                let share = (rank as f64 / sampled.above(i, lowest).max(1.0)).min(1.0);
                expected.try_push(ExpectedThreshold { query, value: lowest, share })?;
                expected.try_push(ExpectedThreshold { query, value: last, share: 1.0 - share })?;
            }
            Ok(expected)
        };
        space.packing(&Goal { pairs, thresholds: &thresholds }, control)
    }

    /// Drops the positives that are inactive by the present counts.
    pub fn refresh(&self) {
        for (q, active) in self.active.iter().enumerate() {
            active.store(self.job.counts.count_active(q, active.load(Relaxed) as usize) as u32, Relaxed);
        }
    }

    /// Returns the number of all positives.
    pub fn positives(&self) -> usize {
        self.values.len()
    }

    /// Returns the value of a query's lowest active positive (∞ without one), and its class.
    pub fn lowest_and_class(&self, query: usize) -> (f64, u32) {
        let lowest = self.active_values(query - self.job.first_query).last().copied();
        (lowest.unwrap_or(f64::INFINITY), self.job.relation.class(Side::Query, query))
    }

    /// Returns the values of a query's lowest and first active positives.
    pub fn lowest_and_first(&self, query: usize) -> Option<(f64, f64)> {
        let values = self.active_values(query - self.job.first_query);
        Some((*values.last()?, *values.first()?))
    }

    /// Whether an item is a negative of a query of this class.
    #[inline]
    pub fn is_negative(&self, query: usize, class: u32, item: u32) -> bool {
        let relation = self.job.relation;
        relation.class(Side::Gallery, item as usize) != class
            && (relation.is_symmetric() || relation.uncounted(query).binary_search(&item).is_err())
    }

    fn active_values(&self, q: usize) -> &[f64] {
        &self.values[self.job.counts.offsets[q]..][..self.active[q].load(Relaxed) as usize]
    }

    /// Returns the number of positives before a negative whose value is between two bounds, if it is the same for all such values.
    fn positives_before(&self, q: usize, (lowest, highest): (f64, f64)) -> Option<usize> {
        let values = self.active_values(q);
        let (above, not_below) = if values.len() < LOCAL_SLOTS {
            // Without a branch, which the CPU would mispredict half of the time.
            values.iter().fold((0, 0), |(above, not_below), v| {
                (above + usize::from(*v > highest), not_below + usize::from(*v >= lowest))
            })
        } else {
            let above = values.partition_point(|v| *v > highest);
            (above, above + values[above..].partition_point(|v| *v >= lowest))
        };
        (above == not_below).then_some(above)
    }

    /// Drops inactive positives once the negatives since the last update reach half of the active positives.
    fn update_active(&self, q: usize, negatives: u32) {
        let before = self.active[q].load(Relaxed);
        if before <= 1 || 2 * (self.counted[q].fetch_add(negatives, Relaxed) + negatives) < before {
            return;
        }
        self.counted[q].store(0, Relaxed);
        let active = self.job.counts.count_active(q, before as usize);
        if active < before as usize {
            self.control.took(|| "positives dropped");
        }
        self.active[q].fetch_min(active as u32, Relaxed);
    }

    /// Counts the screened values of one side of a task.
    pub fn count_side<S: Space>(
        &self,
        space: &S,
        side: TaskSide<'_, impl ExactSizeIterator<Item = (u32, u32, (f64, f64))>>,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let TaskSide { first_query, queries, items, above, hits } = side;
        let Buffers { open, keys, negatives, local } = buffers;
        let (job, counts, first) = (&self.job, self.job.counts, first_query - self.job.first_query);
        open.clear();
        negatives.clear();
        negatives.try_resize(queries, 0)?;
        for (before, above) in above.by_bracket().enumerate() {
            for (i, (&above, negatives)) in above.iter().zip(&mut *negatives).enumerate() {
                // The negatives above a positive are those above the one before it, and some more. A query without it has none.
                if above > *negatives {
                    counts.add(first + i, counts.slots_per_positive() * before, u64::from(above - *negatives));
                    *negatives = above;
                }
            }
        }
        local.clear();
        if hits.len() > self.control.sizes().local_hits * queries {
            self.control.took(|| "counts of a task added up");
            local.try_resize(LOCAL_SLOTS * queries, 0)?;
        }
        for (i, item, bounds) in hits {
            let q = first + i as usize;
            negatives[i as usize] += 1;
            if let Some(key) = space.key_of_screened(bounds.0) {
                counts.add(q, counts.slot(q, key, job.relation.gallery_index(item)), 1);
            } else if let Some(before) = self.positives_before(q, bounds) {
                if before < LOCAL_SLOTS && !local.is_empty() {
                    local[LOCAL_SLOTS * i as usize + before] += 1;
                } else {
                    counts.add(q, counts.slots_per_positive() * before, 1);
                }
            } else {
                open.try_push(((q + job.first_query) as u32, item))?;
            }
        }
        for (at, &negatives) in local.iter().enumerate().filter(|(_, negatives)| **negatives > 0) {
            let (i, before) = (at / LOCAL_SLOTS, at % LOCAL_SLOTS);
            counts.add(first + i, counts.slots_per_positive() * before, u64::from(negatives));
        }
        open.sort_unstable();
        keys.clear();
        compute_keys(space, open, &(first_query..first_query + queries), &items, scratch, keys, self.control)?;
        for (&(query, item), &key) in open.iter().zip(keys.iter()) {
            let q = query as usize - job.first_query;
            counts.add(q, counts.slot(q, key, job.relation.gallery_index(item)), 1);
        }
        for (i, &negatives) in negatives.iter().enumerate() {
            if negatives > 0 {
                self.update_active(first + i, negatives);
            }
        }
        Ok(())
    }
}

impl Observer for ScreenCounter<'_> {
    type Buffers = Buffers;

    fn group(&self, side: Side, item: usize) -> u32 {
        self.job.relation.class(side, item)
    }

    fn uncounted(&self, query: usize) -> &[u32] {
        self.job.relation.uncounted(query)
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        let values = self.active_values(query - self.job.first_query);
        // Where only the first ranks matter, thresholds rise, and so few values are listed that one bracket costs less.
        if self.job.counts.every_rank_matters() && values.len() <= self.control.sizes().counted_brackets {
            values.iter().for_each(|value| visit((*value, *value)));
        } else {
            self.lowest_and_first(query).into_iter().for_each(visit);
        }
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let column = |h: &Hit| {
            let bounds = task.bounds(h.row, h.column, h.value, task.row_margins[h.row as usize]);
            (h.row, (task.columns.start + h.column as usize) as u32, bounds)
        };
        let rows = TaskSide {
            first_query: task.rows.start,
            queries: task.rows.len(),
            items: task.columns.clone(),
            above: &result.row_above,
            hits: result.row_hits.iter().map(column),
        };
        self.count_side(space, rows, scratch, buffers)?;
        if task.symmetric {
            let row = |h: &Hit| {
                let bounds = task.bounds(h.row, h.column, h.value, task.column_margins[h.column as usize]);
                (h.column, (task.rows.start + h.row as usize) as u32, bounds)
            };
            let columns = TaskSide {
                first_query: task.columns.start,
                queries: task.columns.len(),
                items: task.rows.clone(),
                above: &result.column_above,
                hits: result.column_hits.iter().map(row),
            };
            self.count_side(space, columns, scratch, buffers)?;
        }
        Ok(())
    }
}
