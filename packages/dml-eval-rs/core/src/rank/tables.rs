//! Ranks the positives of queries from tables of all keys. This is used if a screen would leave
//! most comparisons open.

use std::iter::once;
use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, collect, collect_counted, collect_each, try_collect, zeros};
use crate::random::Random;
use crate::rank::distance_ranker::DistanceRanker;
use crate::rank::metric::Metric;
use crate::rank::metrics::{PerQuery, last_discount};
use crate::rank::partial_counts::PartialCounts;
use crate::rank::relation::{Kind, Relation};
use crate::rank::row_ranker::{Row, RowRanker};
use crate::rank::ties::{Positive, TieRules, Ties};
use crate::rank::values::{Discounts, Order};
use crate::rows::keys::Keys;
use crate::rows::space::{Space, Values};
use crate::side::Side;

/// The queries to rank from values first, to find out whether tables of keys cost less.
const SAMPLE: usize = 16;
/// If values suffice for most of the sample, other queries may leave this number of times as many
/// items open: to begin again with a table of keys costs more.
const MORE_OPEN: usize = 3;

/// What to compute for the queries: metrics, per rule for ties.
pub(crate) struct Ranking<'a> {
    pub relation: &'a Relation<'a>,
    pub ties: &'a [Ties],
    pub metrics: &'a [Metric],
}

impl Ranking<'_> {
    /// Computes the metrics of `queries` from all keys. `results` must contain an entry per rule.
    pub fn compute<S: Space>(
        &self,
        space: &S,
        queries: &[u32],
        results: &mut [PerQuery],
        control: &Control,
    ) -> Result<()> {
        if queries.is_empty() {
            return Ok(());
        }
        let items = 0..space.rows(Side::Gallery) as u32;
        let discounts = &Discounts::new(last_discount(self.metrics, items.len() as u64), control)?;
        let mut store = |(query, rows): (u32, Vec<Vec<f64>>)| {
            results.iter_mut().zip(rows).for_each(|(result, row)| result.set(query as usize, &row));
            Ok(())
        };
        if let Some(codes) =
            space.distances().filter(|codes| codes.largest() <= DistanceRanker::LARGEST)
        {
            for_each_row(
                (queries, items, space.bytes()),
                |queries, items, table: &mut [u16]| {
                    codes.distance_table(queries, items, table, control)
                },
                || Ok((DistanceRanker::new(codes.largest())?, Vec::new(), Vec::new())),
                |(ranker, marks, kinds), query, distances, (_, ())| {
                    control.took(|| "ranks from distances");
                    self.relation.kinds(query as usize, 0..distances.len(), kinds)?;
                    ranker.count(distances, kinds, marks, space.kernel())?;
                    let mut positives = Vec::new();
                    if self.relation.grades().is_some() {
                        positives = ranker.list_positives(marks, |place| {
                            self.relation.gallery_index(place as u32)
                        })?;
                    }
                    let depth = self.depth(query);
                    let orders =
                        self.ties.iter().map(|ties| ranker.order(marks, *ties, depth, control));
                    Ok((query, self.metrics(query, orders, &positives, discounts, control)?))
                },
                &mut store,
                control,
            )
        } else {
            let left = self.rank_by_values(space, queries, discounts, &mut store, control)?;
            for_each_row(
                (&left, items, space.bytes()),
                |queries, items, table: &mut [f64]| space.key_table(queries, items, table, control),
                || Ok(<(RowRanker, Vec<Kind>)>::default()),
                |(ranker, kinds), query, keys, (_, ())| {
                    control.took(|| "ranks from keys");
                    self.relation.kinds(query as usize, 0..keys.len(), kinds)?;
                    let row = Row { keys, slack: 0.0, kinds, index: self.index(), given: &[] };
                    let compute = |places: &[u32], keys: &mut Vec<f64>| row.keys_at(places, keys);
                    let (depth, with) = (self.depth(query), (space.kernel(), control));
                    ranker.sort(&row, depth, with, usize::MAX, compute)?;
                    Ok((query, self.metrics_of_sorted(query, &row, ranker, discounts, control)?))
                },
                &mut store,
                control,
            )
        }
    }

    /// Ranks from tables of values, and computes the keys of items that the values leave open.
    /// Returns the queries that tables of keys rank faster.
    fn rank_by_values<S: Space>(
        &self,
        space: &S,
        queries: &[u32],
        discounts: &Discounts,
        store: &mut impl FnMut((u32, Vec<Vec<f64>>)) -> Result<()>,
        control: &Control,
    ) -> Result<Vec<u32>> {
        let mut left = Vec::new();
        let suits = self.suits_values(queries.len(), control);
        let Some(mut values) = (if suits { space.values()? } else { None }) else {
            left.try_extend(queries.iter().copied())?;
            return Ok(left);
        };
        let items = 0..space.rows(Side::Gallery) as u32;
        let most = items.len().checked_div(control.sizes().items_per_open_value);
        let most = most.unwrap_or(usize::MAX);
        let mut rank = |queries: &[u32], most: usize, left: &mut Vec<u32>| {
            let mut receive = |(query, rows): (u32, Option<Vec<Vec<f64>>>)| match rows {
                Some(rows) => store((query, rows)),
                None => left.try_push(query),
            };
            for_each_row(
                (queries, items.clone(), space.bytes()),
                |queries, _, table: &mut [f32]| values.fill(queries, table, control),
                || Ok(<(RowRanker, Vec<Kind>, Keys)>::default()),
                |(ranker, kinds, buffer), query, values, (_, margin)| {
                    self.relation.kinds(query as usize, 0..values.len(), kinds)?;
                    let slack = 2.0 * margin;
                    let row = Row { keys: values, slack, kinds, index: self.index(), given: &[] };
                    let compute = |places: &[u32], keys: &mut Vec<f64>| {
                        let items = places.iter().copied();
                        let computed = buffer.compute(space, query as usize, items)?;
                        keys.try_extend(computed.iter().copied())
                    };
                    let (depth, with) = (self.depth(query), (space.kernel(), control));
                    if !ranker.sort(&row, depth, with, most, compute)? {
                        control.took(|| "values leave too much open");
                        return Ok((query, None));
                    }
                    control.took(|| "ranks from values");
                    let rows = self.metrics_of_sorted(query, &row, ranker, discounts, control)?;
                    Ok((query, Some(rows)))
                },
                &mut receive,
                control,
            )
        };
        let sample = collect(Random::new(4).spread(queries.len(), SAMPLE).map(|i| queries[i]))?;
        rank(&sample, most, &mut left)?;
        let others = queries.iter().filter(|query| sample.binary_search(query).is_err()).copied();
        let suits = 2 * left.len() <= sample.len();
        if suits {
            let most = most.saturating_mul(MORE_OPEN);
            rank(&collect_counted(others.clone())?, most, &mut left)?;
        }
        // Pairs of these queries are compared twice.
        control.add_to_total(left.len() as u64 * items.len() as u64);
        if !suits {
            left.try_extend(others)?;
        }
        Ok(left)
    }

    /// Whether values can rank this number of queries: the order of two positives must not matter,
    /// as it does to grades and to rules that ask which positives are tied.
    pub fn suits_values(&self, queries: usize, control: &Control) -> bool {
        queries >= control.sizes().value_queries
            && self.ties == [Ties::Index]
            && self.relation.grades().is_none()
    }

    /// Returns the last rank on which the query's metrics depend, except the first positive's rank.
    fn depth(&self, query: u32) -> u64 {
        let depth = self.metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
        depth.max(self.relation.number(query as usize) as u64)
    }

    /// Returns the function from a place in a row to the index in the full gallery.
    fn index(&self) -> impl Fn(usize) -> u64 {
        |place| self.relation.gallery_index(place as u32)
    }

    /// Computes the metrics of a query per rule, from an order of the positives per rule. If
    /// matches are graded, `positives` must contain all matches.
    fn metrics(
        &self,
        query: u32,
        orders: impl ExactSizeIterator<Item = Result<Order>>,
        positives: &[Positive],
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<Vec<f64>>> {
        let graded = self.relation.grades().map(|grades| (positives, grades, query as usize));
        try_collect(orders.map(|order| order?.metrics(self.metrics, graded, discounts, control)))
    }

    /// Computes the metrics of a query per rule from a sorted row.
    fn metrics_of_sorted<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &self,
        query: u32,
        row: &Row<'_, K, I>,
        ranker: &RowRanker,
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<Vec<f64>>> {
        let (relation, number) = (self.relation, self.relation.number(query as usize));
        let mut positives = Vec::new();
        if relation.grades().is_some() || self.ties != [Ties::Index] {
            positives = ranker.list_positives(row)?;
            if positives.len() < number {
                // nDCG's best order contains all positives, so add the positives that weren't
                // sorted.
                let mut known = collect(positives.iter().map(|positive| positive.index))?;
                known.sort_unstable();
                let all = relation.matches(query as usize).map(|item| relation.gallery_index(item));
                let rest = all.filter(|index| known.binary_search(index).is_err());
                positives
                    .try_extend(rest.map(|index| Positive { key: f64::NEG_INFINITY, index }))?;
            }
        }
        // Positives that weren't sorted get ranks too deep to matter.
        if self.ties == [Ties::Index] {
            let mut ranks = ranker.ranks()?;
            ranks.try_resize(number, row.len() as u64)?;
            return self.metrics(
                query,
                once(Ok(Order::Ranks(ranks))),
                &positives,
                discounts,
                control,
            );
        }
        let rules = TieRules::All;
        let mut counts = ranker.counts(row, rules, &positives)?;
        counts.try_resize(rules.slots_per_positive() * number + 1, 0)?;
        let orders = self.ties.iter().map(|ties| Order::new(&positives, &counts, (rules, *ties)));
        self.metrics(query, orders, &positives, discounts, control)
    }
}

/// Counts the negatives among `items`, a range of a part of the gallery, for `queries`, which must
/// be distinct.
pub(crate) fn count_from_tables<S: Space>(
    space: &S,
    (counts, relation): (&PartialCounts, &Relation<'_>),
    queries: &[u32],
    items: Range<usize>,
    control: &Control,
) -> Result<()> {
    let mut ignore = |()| Ok(());
    for_each_row(
        (queries, items.start as u32..items.end as u32, space.bytes()),
        |queries, items, table: &mut [f64]| space.key_table(queries, items, table, control),
        || Ok(<(RowRanker, Vec<Kind>)>::default()),
        |(ranker, kinds), query, keys, (start, ())| {
            control.took(|| "counts from keys");
            let q = query as usize;
            let positives = counts.positives(q);
            let active = counts.count_active(q, positives.len());
            relation.kinds(q, start..start + keys.len(), kinds)?;
            // All positives are in `given`, so exclude the positives in this row.
            kinds
                .iter_mut()
                .filter(|kind| **kind == Kind::Match)
                .for_each(|kind| *kind = Kind::Excluded);
            let index = |place: usize| relation.gallery_index((start + place) as u32);
            let row = Row { keys, slack: 0.0, kinds, index, given: &positives[..active] };
            ranker.sort(
                &row,
                u64::MAX,
                (space.kernel(), control),
                usize::MAX,
                |places, keys| row.keys_at(places, keys),
            )?;
            let found = ranker.counts(&row, counts.rules, positives)?;
            // Negatives after the last active positive don't matter to any metric.
            let slots = counts.slots(q).iter().zip(&found[..found.len() - 1]);
            slots.filter(|(_, found)| **found > 0).for_each(|(slot, found)| {
                slot.fetch_add(*found, Relaxed);
            });
            Ok(())
        },
        &mut ignore,
        control,
    )
}

/// A table may contain a key per this number of input bytes. In large tables, the gallery is packed
/// less often.
const BYTES_PER_KEY: usize = 16;

/// Fills tables with the keys of `queries` and all items, and computes a result per row, given the
/// query, the first item and what `fill` returned.
fn for_each_row<T: FromZeros + Send + Sync, F: Copy + Sync, B: Send, R: Default + Send>(
    (queries, items, bytes): (&[u32], Range<u32>, usize),
    mut fill: impl FnMut(&[u32], &[u32], &mut [T]) -> Result<F>,
    buffers: impl Fn() -> Result<B> + Sync + Send,
    compute: impl Fn(&mut B, u32, &[T], (usize, F)) -> Result<R> + Sync + Send,
    receive: &mut impl FnMut(R) -> Result<()>,
    control: &Control,
) -> Result<()> {
    if queries.is_empty() || items.is_empty() {
        return Ok(());
    }
    let sizes = control.sizes();
    let columns = collect(items.clone())?;
    let keys = sizes.table_keys.max(bytes / BYTES_PER_KEY);
    let together = (keys / columns.len()).clamp(1, sizes.table_queries).min(queries.len());
    let mut table: Vec<T> = zeros(together * columns.len())?;
    for queries in queries.chunks(together) {
        let table = &mut table[..queries.len() * columns.len()];
        let filled = fill(queries, &columns, table)?;
        control.check()?;
        let rows = table.par_chunks_exact(columns.len()).zip(queries);
        let found = collect_each(rows, &buffers, |buffers, (row, &query)| {
            compute(buffers, query, row, (items.start as usize, filled))
        })?;
        found.into_iter().try_for_each(&mut *receive)?;
        control.advance(table.len() as u64);
    }
    Ok(())
}
