//! Counts negatives from screened values.
//!
//! The active positives of a query are its thresholds. When the counts show that the rank of a
//! positive can't change a metric, the positive is dropped. This raises the lowest threshold, so
//! that the screen will skip negatives below it.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Above, SweepResult};
use crate::memory::{Grow, allocate, collect, collect_counted, zeros};
use crate::rank::partial_counts::{PartialCounts, split};
use crate::rank::relation::Relation;
use crate::rows::packing::{ExpectedThreshold, Goal, Packing};
use crate::rows::space::{Scratch, Space};
use crate::screen::block::Blocks;
use crate::screen::expected::SampledValues;
use crate::screen::guess::{Guess, Start};
use crate::screen::traverse::{Observer, Task};
use crate::side::Side;

/// Counts in progress.
pub(crate) struct ScreenCounter<'a> {
    counts: &'a PartialCounts,
    /// The index in the space of the first query that the counts cover.
    first_query: usize,
    relation: &'a Relation<'a>,
    /// The values of the positives, in the units of the screen.
    values: Vec<f64>,
    /// The number of active positives per query. These are the first positives in order.
    active: Vec<AtomicU32>,
    /// The negatives per query that were counted since the last update of `active`.
    counted: Vec<AtomicU32>,
    guess: Option<Guess>,
    /// The number of positives per query after the guess. If fewer are active, counts dropped them.
    kept: Vec<AtomicU32>,
    control: &'a Control,
}

/// A side of a task: the rows are queries and the columns items, or the reverse.
struct TaskSide<'a> {
    queries: &'a Range<usize>,
    items: &'a Range<usize>,
    /// The number of unlisted values above a bracket, per bracket and query.
    above: &'a Above,
}

/// A listed value: the place of the query in `TaskSide::queries`, the item, and bounds for the
/// value.
type Listed = (u32, u32, (f64, f64));

/// If a query has at least this number of active positives, binary search finds the place of a
/// negative among the positives.
const MANY: usize = 16;

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct Buffers {
    /// Pairs that the screen leaves open.
    open: Vec<(u32, u32)>,
    /// The keys of `open`.
    keys: Vec<f64>,
    /// The negatives per query that a task found.
    negatives: Vec<u32>,
}

/// Computes the keys of `pairs`, which must be sorted and lie within `queries` and `items`.
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
    // A table of a few rows is mostly padding, and takes a gigabyte if the rows are long.
    let are_few = queries.len().min(items.len()) < sizes.class_table;
    if are_few || pairs.len().saturating_mul(sizes.pairs_per_open_key) < all || pairs.is_empty() {
        return space.keys(pairs, scratch, keys);
    }
    let indices = |range: &Range<usize>| collect(range.start as u32..range.end as u32);
    let mut table: Vec<f64> = zeros(all)?;
    space.key_table(&indices(queries)?, &indices(items)?, &mut table, &Control::default())?;
    let key = |&(query, item): &(u32, u32)| {
        table[(query as usize - queries.start) * items.len() + item as usize - items.start]
    };
    keys.try_extend(pairs.iter().map(key))?;
    control.took(|| "open pairs from a table");
    Ok(())
}

impl<'a> ScreenCounter<'a> {
    /// Starts a count. Queries that are ranked from tables have no thresholds, so their negatives
    /// are not counted.
    pub fn new<S: Space>(
        space: &S,
        (counts, relation): (&'a PartialCounts, &'a Relation<'a>),
        first_query: usize,
        is_tabled: &(dyn Fn(usize) -> bool + Sync),
        control: &'a Control,
    ) -> Result<Self> {
        let queries = counts.queries();
        let mut values: Vec<f64> = zeros(counts.offsets[queries])?;
        let mut active: Vec<AtomicU32> = zeros(queries)?;
        let few = |q: usize| if is_tabled(q) { 0 } else { counts.positives(q).len() };
        let by_query =
            split(&mut values, &counts.offsets)?.into_par_iter().zip(&mut active).with_min_len(64);
        by_query.enumerate().for_each(|(q, (values, active))| {
            for (value, positive) in values.iter_mut().zip(counts.positives(q)) {
                *value = space.value(first_query + q, positive.key);
            }
            *active.get_mut() = counts.count_active(q, few(q)) as u32;
        });
        Ok(ScreenCounter {
            counts,
            first_query,
            relation,
            values,
            active,
            counted: zeros(queries)?,
            guess: None,
            kept: Vec::new(),
            control,
        })
    }

    /// Drops the positives that are inactive according to the current counts.
    pub fn refresh(&self) {
        for (q, active) in self.active.iter().enumerate() {
            let left = self.counts.count_active(q, active.load(Relaxed) as usize);
            active.store(left as u32, Relaxed);
        }
    }

    /// Drops positives that are unlikely to matter, from the beginning of a screen, if this saves
    /// time. The caller must use `queries_too_high` afterwards.
    pub fn guess<S: Space>(&mut self, space: &S, packing: &impl Packing) -> Result<()> {
        let (counts, sizes) = (self.counts, self.control.sizes());
        let ranks = (0..counts.queries()).filter(|q| !self.active_values(*q).is_empty());
        let k = ranks.map(|q| counts.last_rank(q)).max().unwrap_or(0);
        if counts.every_rank_matters() || k <= sizes.counted_brackets as u64 {
            return Ok(());
        }
        let Some(guess) = Guess::draw(space, packing, k as usize, None, self.control)? else {
            return Ok(());
        };
        let sampled = self.sample(space)?;
        // See `Choice` for the number of listed values. A guess saves at least about 1.
        let saved = sampled.queries.iter().enumerate().map(|(i, query)| {
            let q = *query as usize - self.first_query;
            let lowest = *self.active_values(q).last().expect("an active positive");
            let last = counts.last_rank(q) as f64;
            1.0 + last * (sampled.above(i, lowest) / last).max(1.0).ln()
        });
        let saved = saved.sum::<f64>() * sizes.sampled_per_listed as f64;
        if saved > (sampled.queries.len() * guess.sampled) as f64 {
            self.guess = Some(guess);
            self.kept = zeros(counts.queries())?;
        }
        Ok(())
    }

    /// Returns the queries that may lack a positive that matters, since the guess was too high.
    pub fn queries_too_high(&self) -> Result<Vec<u32>> {
        let counts = self.counts;
        let is_too_high = |q: &usize| {
            let kept = self.kept[*q].load(Relaxed);
            // All dropped positives come after the last one that was kept.
            kept > 0
                && kept == self.active[*q].load(Relaxed)
                && (kept as usize) < counts.positives(*q).len()
                && counts.rank(*q, kept as usize - 1) < counts.last_rank(*q)
        };
        let queries = (0..self.kept.len()).filter(is_too_high);
        collect_counted(queries.map(|q| (self.first_query + q) as u32))
    }

    /// Samples queries with active positives, and items that don't match.
    fn sample<S: Space>(&self, space: &S) -> Result<SampledValues> {
        let ScreenCounter { counts, first_query, relation, control, .. } = *self;
        let counted = (0..counts.queries()).filter(|q| !self.active_values(*q).is_empty());
        let queries = collect_counted(counted.map(|q| (q + first_query) as u32))?;
        let is_match = |query: u32, item: u32| {
            let [query_class, item_class] = [(Side::Query, query), (Side::Gallery, item)]
                .map(|(side, i)| relation.class(side, i as usize));
            query_class == item_class
                || relation.excluded_others(query as usize).binary_search(&item).is_ok()
        };
        SampledValues::compute(space, &queries, is_match, control)
    }

    /// Chooses the packing to screen `pairs` pairs.
    pub fn packing<'s, S: Space>(&self, space: &'s S, pairs: u64) -> Result<S::Packing<'s>> {
        let ScreenCounter { counts, first_query, control, .. } = *self;
        let thresholds = || {
            let sampled = self.sample(space)?;
            let mut expected = allocate(2 * sampled.queries.len())?;
            for (i, &query) in sampled.queries.iter().enumerate() {
                let q = query as usize - first_query;
                let values = self.active_values(q);
                let (Some(&first), Some(&lowest)) = (values.first(), values.last()) else {
                    continue;
                };
                let rank = usize::try_from(counts.last_rank(q))
                    .unwrap_or(usize::MAX)
                    .min(space.rows(Side::Gallery));
                let last = first.min(sampled.at_rank(i, rank)).max(lowest);
                // The lowest positive is dropped as soon as `rank` negatives above it are counted.
                let share = (rank as f64 / sampled.above(i, lowest).max(1.0)).min(1.0);
                expected.try_push(ExpectedThreshold { query, value: lowest, share })?;
                expected.try_push(ExpectedThreshold { query, value: last, share: 1.0 - share })?;
            }
            Ok(expected)
        };
        space.packing(&Goal { pairs, thresholds: &thresholds }, control)
    }

    fn active_values(&self, q: usize) -> &[f64] {
        &self.values[self.counts.offsets[q]..][..self.active[q].load(Relaxed) as usize]
    }

    /// Returns the number of positives before a negative, given bounds for its value, or `None` if
    /// the bounds leave this open.
    #[inline]
    fn positives_before(&self, q: usize, (lowest, highest): (f64, f64)) -> Option<usize> {
        let values = self.active_values(q);
        let above = if values.len() < MANY {
            // Count without a branch, because the CPU would mispredict half of the branches.
            values.iter().map(|v| usize::from(*v > highest)).sum()
        } else {
            values.partition_point(|v| *v > highest)
        };
        values.get(above).is_none_or(|next| *next < lowest).then_some(above)
    }

    /// Drops inactive positives, once the negatives counted since the last update reach half the
    /// number of active positives.
    fn update_active(&self, q: usize, negatives: u32) {
        let before = self.active[q].load(Relaxed);
        if before <= 1 || 2 * (self.counted[q].fetch_add(negatives, Relaxed) + negatives) < before {
            return;
        }
        self.counted[q].store(0, Relaxed);
        let active = self.counts.count_active(q, before as usize);
        if active < before as usize {
            self.control.took(|| "positives dropped");
        }
        self.active[q].fetch_min(active as u32, Relaxed);
    }

    /// Counts the values on one side of the task.
    fn count_side<S: Space>(
        &self,
        space: &S,
        &TaskSide { queries, items, above }: &TaskSide<'_>,
        listed: impl ExactSizeIterator<Item = Listed>,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let Buffers { open, keys, negatives } = buffers;
        let ScreenCounter { counts, relation, first_query, .. } = *self;
        let first = queries.start - first_query;
        open.clear();
        negatives.clear();
        negatives.try_resize(queries.len(), 0)?;
        for (before, above) in above.by_bracket().enumerate() {
            for (i, (&above, negatives)) in above.iter().zip(&mut *negatives).enumerate() {
                // `above` includes the negatives above earlier brackets, or is 0 if the query lacks
                // this bracket.
                if above > *negatives {
                    counts.add(
                        first + i,
                        counts.slots_per_positive * before,
                        u64::from(above - *negatives),
                    );
                    *negatives = above;
                }
            }
        }
        for (i, item, bounds) in listed {
            let q = first + i as usize;
            negatives[i as usize] += 1;
            if let Some(key) = space.key_of_screened(bounds.0) {
                counts.add(q, counts.slot(q, key, relation.gallery_index(item)), 1);
            } else if let Some(before) = self.positives_before(q, bounds) {
                counts.add(q, counts.slots_per_positive * before, 1);
            } else {
                open.try_push(((q + first_query) as u32, item))?;
            }
        }
        open.sort_unstable();
        keys.clear();
        compute_keys(space, open, queries, items, scratch, keys, self.control)?;
        for (&(query, item), &key) in open.iter().zip(keys.iter()) {
            let q = query as usize - first_query;
            counts.add(q, counts.slot(q, key, relation.gallery_index(item)), 1);
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
        self.relation.class(side, item)
    }

    fn excluded_others(&self, query: usize) -> &[u32] {
        self.relation.excluded_others(query)
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        let values = self.active_values(query - self.first_query);
        // When only the first ranks matter, thresholds rise quickly and few values are listed, so a
        // single bracket is cheaper.
        if self.counts.every_rank_matters() && values.len() <= self.control.sizes().counted_brackets
        {
            values.iter().for_each(|value| visit((*value, *value)));
        } else if let (Some(first), Some(lowest)) = (values.first(), values.last()) {
            visit((*lowest, *first));
        }
    }

    fn begin<S: Space>(
        &self,
        space: &S,
        packing: &impl Packing,
        blocks: Blocks<'_>,
        control: &Control,
    ) -> Result<()> {
        let Some(guess) = &self.guess else { return Ok(()) };
        let take = |query: usize, start: Start| {
            let least = match start {
                Start::Key(key) => space.value(query, key),
                Start::Value(value) => f64::from(value),
            };
            let q = query - self.first_query;
            // The next positive shows whether the guess is too high.
            let kept = 1 + self.active_values(q).partition_point(|value| *value >= least) as u32;
            self.kept[q].store(kept, Relaxed);
            self.active[q].fetch_min(kept, Relaxed);
        };
        guess.starts(space, packing, blocks, (self, |_| f64::INFINITY, false), control, take)
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        let row_hits = result.row_hits.iter().map(|h| {
            let bounds = task.bounds(h.row, h.column, h.value, task.row_margins[h.row as usize]);
            (h.row, (task.columns.start + h.column as usize) as u32, bounds)
        });
        let rows = TaskSide { queries: &task.rows, items: &task.columns, above: &result.row_above };
        self.count_side(space, &rows, row_hits, scratch, buffers)?;
        if task.symmetric {
            let column_hits = result.column_hits.iter().map(|h| {
                let bounds =
                    task.bounds(h.row, h.column, h.value, task.column_margins[h.column as usize]);
                (h.column, (task.rows.start + h.row as usize) as u32, bounds)
            });
            let columns =
                TaskSide { queries: &task.columns, items: &task.rows, above: &result.column_above };
            self.count_side(space, &columns, column_hits, scratch, buffers)?;
        }
        Ok(())
    }
}
