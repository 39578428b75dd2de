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
use crate::memory::{Grow, allocate, collect, collect_counted, try_collect, zeros};
use crate::rank::partial_counts::{PartialCounts, split};
use crate::rank::relation::Relation;
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::space::{Scratch, Space};
use crate::screen::expected::SampledValues;
use crate::screen::traverse::{Observer, Task};
use crate::side::Side;

/// Counts in progress, with a `Level` per relation.
pub(crate) struct ScreenCounter<'a> {
    first: Level<'a>,
    others: Vec<Level<'a>>,
    /// Classes of queries, then of items, joined over multiple levels. A pair is skipped if it
    /// matches at every level.
    joined: Option<Vec<u32>>,
}

/// The count for a relation.
struct Level<'a> {
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

/// If a query has at least `MANY` active positives, binary search finds the place of a negative
/// among the positives. If a task lists many negatives, the negatives after fewer than `MANY`
/// positives are first added up in a thread's buffer.
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
    /// The negatives per query and per number of preceding positives (below `MANY`); empty if a
    /// task lists few.
    added: Vec<u32>,
    /// For a level, `listed` holds the listed values, and `queries` the lowest threshold and the
    /// class of each query.
    listed: Vec<Listed>,
    queries: Vec<(f64, u32)>,
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

/// Encodes the classes of the queries, then of the items, so that codes are equal if and only if
/// the classes are equal at all levels.
fn join_classes<S: Space>(space: &S, relations: &[Relation<'_>]) -> Result<Vec<u32>> {
    let queries = space.rows(Side::Query);
    let mut joined: Vec<u32> = zeros(queries + space.rows(Side::Gallery))?;
    let mut distinct = allocate(joined.len())?;
    for relation in relations {
        let class = |(i, code): (usize, &u32)| {
            let (side, item) =
                if i < queries { (Side::Query, i) } else { (Side::Gallery, i - queries) };
            (*code, relation.class(side, item))
        };
        distinct.clear();
        distinct.try_extend(joined.iter().enumerate().map(class))?;
        distinct.par_sort_unstable();
        distinct.dedup();
        joined.par_iter_mut().enumerate().for_each(|(i, code)| {
            *code = distinct.partition_point(|other| *other < class((i, code))) as u32;
        });
    }
    Ok(joined)
}

impl<'a> ScreenCounter<'a> {
    /// Starts a count per relation. Queries that are ranked from tables have no thresholds, so
    /// their negatives are not counted.
    pub fn new<S: Space>(
        space: &S,
        (counts, relations): (&'a [PartialCounts], &'a [Relation<'a>]),
        first_query: usize,
        is_tabled: &(dyn Fn(usize) -> bool + Sync),
        control: &'a Control,
    ) -> Result<Self> {
        let level = |i: usize| {
            Level::new(space, &counts[i], &relations[i], first_query, is_tabled, control)
        };
        let others = try_collect((1..relations.len()).map(level))?;
        let joined = (relations.len() > 1).then(|| join_classes(space, relations)).transpose()?;
        Ok(ScreenCounter { first: level(0)?, others, joined })
    }

    fn levels(&self) -> impl Iterator<Item = &Level<'a>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Chooses the packing to screen `pairs` pairs, using the level with the most positives.
    pub fn packing<'s, S: Space>(
        &self,
        space: &'s S,
        pairs: u64,
        control: &Control,
    ) -> Result<S::Packing<'s>> {
        let most = self
            .others
            .iter()
            .fold(&self.first, |a, b| if a.values.len() > b.values.len() { a } else { b });
        most.packing(space, pairs, control)
    }

    /// Drops the positives that are inactive according to the current counts.
    pub fn refresh(&self) {
        for level in self.levels() {
            for (q, active) in level.active.iter().enumerate() {
                active.store(
                    level.counts.count_active(q, active.load(Relaxed) as usize) as u32,
                    Relaxed,
                );
            }
        }
    }

    /// Counts the values of a side of a task at all levels. Listed values may match at some levels,
    /// or be below a level's thresholds. Values that are only counted are above the first positive
    /// at all levels, and do not match at any.
    fn count_side<S: Space>(
        &self,
        space: &S,
        side: &TaskSide<'_>,
        listed: impl ExactSizeIterator<Item = Listed> + Clone,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        if self.joined.is_none() {
            return self.first.count_side(space, side, listed, scratch, buffers);
        }
        for level in self.levels() {
            buffers.queries.clear();
            buffers
                .queries
                .try_extend(side.queries.clone().map(|query| level.lowest_and_class(query)))?;
            let mut at_level = std::mem::take(&mut buffers.listed);
            at_level.clear();
            at_level.try_extend(listed.clone().filter(|(i, item, (_, highest))| {
                let (lowest, class) = buffers.queries[*i as usize];
                *highest >= lowest
                    && level.is_negative(side.queries.start + *i as usize, class, *item)
            }))?;
            level.count_side(space, side, at_level.iter().copied(), scratch, buffers)?;
            buffers.listed = at_level;
        }
        Ok(())
    }
}

impl<'a> Level<'a> {
    fn new<S: Space>(
        space: &S,
        counts: &'a PartialCounts,
        relation: &'a Relation<'a>,
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
        Ok(Level {
            counts,
            first_query,
            relation,
            values,
            active,
            counted: zeros(queries)?,
            control,
        })
    }

    fn packing<'s, S: Space>(
        &self,
        space: &'s S,
        pairs: u64,
        control: &Control,
    ) -> Result<S::Packing<'s>> {
        let Level { counts, first_query, relation, .. } = *self;
        let thresholds = || {
            let counted = (0..counts.queries()).filter(|q| !self.active_values(*q).is_empty());
            let queries = collect_counted(counted.map(|q| (q + first_query) as u32))?;
            let is_match = |query: u32, item: u32| {
                let [query_class, item_class] = [(Side::Query, query), (Side::Gallery, item)]
                    .map(|(side, i)| relation.class(side, i as usize));
                query_class == item_class
                    || relation.excluded_others(query as usize).binary_search(&item).is_ok()
            };
            let sampled = SampledValues::compute(space, &queries, is_match, control)?;
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

    /// Returns the value of a query's lowest active positive, or ∞ if there is none, and the
    /// query's class.
    fn lowest_and_class(&self, query: usize) -> (f64, u32) {
        let lowest = self.active_values(query - self.first_query).last().copied();
        (lowest.unwrap_or(f64::INFINITY), self.relation.class(Side::Query, query))
    }

    /// Returns the values of the lowest and the first active positive.
    fn lowest_and_first(&self, query: usize) -> Option<(f64, f64)> {
        let values = self.active_values(query - self.first_query);
        Some((*values.last()?, *values.first()?))
    }

    /// Whether `item` is a negative of `query`, given the class `class` of the query.
    #[inline]
    fn is_negative(&self, query: usize, class: u32, item: u32) -> bool {
        let relation = self.relation;
        relation.class(Side::Gallery, item as usize) != class
            && (relation.is_symmetric()
                || relation.excluded_others(query).binary_search(&item).is_err())
    }

    fn active_values(&self, q: usize) -> &[f64] {
        &self.values[self.counts.offsets[q]..][..self.active[q].load(Relaxed) as usize]
    }

    /// Returns the number of positives before a negative, given bounds for its value, or `None` if
    /// the bounds leave this open.
    #[inline]
    fn positives_before(&self, q: usize, (lowest, highest): (f64, f64)) -> Option<usize> {
        let values = self.active_values(q);
        let (above, not_below) = if values.len() < MANY {
            // Count without a branch, because the CPU would mispredict half of the branches.
            values.iter().fold((0, 0), |(above, not_below), v| {
                (above + usize::from(*v > highest), not_below + usize::from(*v >= lowest))
            })
        } else {
            let above = values.partition_point(|v| *v > highest);
            (above, above + values[above..].partition_point(|v| *v >= lowest))
        };
        (above == not_below).then_some(above)
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
        let Buffers { open, keys, negatives, added, .. } = buffers;
        let Level { counts, relation, first_query, .. } = *self;
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
        added.clear();
        added.try_resize(
            if listed.len() > MANY * queries.len() { MANY * queries.len() } else { 0 },
            0,
        )?;
        for (i, item, bounds) in listed {
            let q = first + i as usize;
            negatives[i as usize] += 1;
            if let Some(key) = space.key_of_screened(bounds.0) {
                counts.add(q, counts.slot(q, key, relation.gallery_index(item)), 1);
            } else if let Some(before) = self.positives_before(q, bounds) {
                match added.get_mut(MANY * i as usize + before) {
                    Some(added) if before < MANY => *added += 1,
                    _ => counts.add(q, counts.slots_per_positive * before, 1),
                }
            } else {
                open.try_push(((q + first_query) as u32, item))?;
            }
        }
        for (at, &negatives) in added.iter().enumerate().filter(|(_, negatives)| **negatives > 0) {
            counts.add(
                first + at / MANY,
                counts.slots_per_positive * (at % MANY),
                u64::from(negatives),
            );
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
        match &self.joined {
            None => self.first.relation.class(side, item),
            Some(joined) if side == Side::Query => joined[item],
            Some(joined) => joined[self.first.relation.queries() + item],
        }
    }

    fn excluded_others(&self, query: usize) -> &[u32] {
        if self.joined.is_some() { &[] } else { self.first.relation.excluded_others(query) }
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        if self.joined.is_some() {
            let by_level = self.levels().filter_map(|level| level.lowest_and_first(query));
            let all =
                by_level.reduce(|(low, high), (lowest, first)| (low.min(lowest), high.max(first)));
            // An item above all brackets does not match at any level, so it is counted at all
            // levels, unless a level excludes items.
            let counts_unlisted =
                self.levels().all(|level| level.relation.excludes_only_own_item());
            all.map(|(low, high)| (low, if counts_unlisted { high } else { f64::INFINITY }))
                .into_iter()
                .for_each(visit);
            return;
        }
        let level = &self.first;
        let values = level.active_values(query - level.first_query);
        // When only the first ranks matter, thresholds rise quickly and few values are listed, so a
        // single bracket is cheaper.
        if level.counts.every_rank_matters()
            && values.len() <= level.control.sizes().counted_brackets
        {
            values.iter().for_each(|value| visit((*value, *value)));
        } else {
            level.lowest_and_first(query).into_iter().for_each(visit);
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
