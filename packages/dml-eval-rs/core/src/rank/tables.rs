//! Ranks the positives of queries from tables of all keys. This is used if a screen would leave
//! most comparisons open.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::{Grow, allocate, collect, collect_each, full, try_collect, zeros};
use crate::rank::distance_ranker::DistanceRanker;
use crate::rank::metric::Metric;
use crate::rank::metrics::{PerQuery, last_discount};
use crate::rank::partial_counts::PartialCounts;
use crate::rank::relation::{Kind, Relation};
use crate::rank::row_ranker::{Row, RowRanker};
use crate::rank::ties::{Positive, TieRules, Ties};
use crate::rank::values::{Discounts, Order};
use crate::rows::space::Space;
use crate::side::Side;

/// What to compute for the queries: metrics, per relation and rule for ties.
pub(crate) struct Ranking<'a> {
    pub relations: &'a [Relation<'a>],
    pub ties: &'a [Ties],
    pub metrics: &'a [Metric],
}

impl Ranking<'_> {
    /// Computes the metrics of `queries` from all keys. `results` must contain an entry per
    /// relation and rule.
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
                |(ranker, marks, kinds), query, distances, _| {
                    let rank = |relation: &Relation<'_>, kinds: &[Kind], take: &mut Take<'_>| {
                        control.took(|| "ranks from distances");
                        ranker.count(distances, kinds, marks, space.kernel())?;
                        let mut positives = Vec::new();
                        if relation.grades().is_some() {
                            positives = ranker.list_positives(marks, |place| {
                                relation.gallery_index(place as u32)
                            })?;
                        }
                        self.ties
                            .iter()
                            .try_for_each(|ties| take(ranker.order(marks, *ties)?, &positives))
                    };
                    Ok((
                        query,
                        self.each_relation(
                            (query, distances.len()),
                            kinds,
                            rank,
                            discounts,
                            control,
                        )?,
                    ))
                },
                &mut store,
                control,
            )
        } else {
            for_each_row(
                (queries, items, space.bytes()),
                |queries, items, table: &mut [f64]| space.key_table(queries, items, table, control),
                || Ok(<(RowRanker, Vec<Kind>)>::default()),
                |(ranker, kinds), query, keys, _| {
                    let rank = |relation: &Relation<'_>, kinds: &[Kind], take: &mut Take<'_>| {
                        control.took(|| "ranks from keys");
                        self.rank_keys(
                            relation,
                            query,
                            (keys, kinds),
                            ranker,
                            space.kernel(),
                            take,
                            control,
                        )
                    };
                    Ok((
                        query,
                        self.each_relation((query, keys.len()), kinds, rank, discounts, control)?,
                    ))
                },
                &mut store,
                control,
            )
        }
    }

    /// Computes the metrics of a query per relation and rule. `rank` must call the given function
    /// once per rule, with the order of the positives and, if matches are graded, with the
    /// positives.
    fn each_relation(
        &self,
        (query, items): (u32, usize),
        kinds: &mut Vec<Kind>,
        mut rank: impl FnMut(&Relation<'_>, &[Kind], &mut Take<'_>) -> Result<()>,
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<Vec<f64>>> {
        let query = query as usize;
        let mut rows = allocate(self.relations.len() * self.ties.len())?;
        for relation in self.relations {
            if relation.number(query) == 0 {
                rows.try_extend(try_collect(
                    self.ties.iter().map(|_| full(self.metrics.len(), f64::NAN)),
                )?)?;
                continue;
            }
            relation.kinds(query, 0..items, kinds)?;
            rank(relation, kinds, &mut |order, positives| {
                let graded = relation.grades().map(|grades| (positives, grades, query));
                rows.try_push(order.metrics(self.metrics, graded, discounts, control)?)
            })?;
        }
        Ok(rows)
    }

    /// Orders the positives of a query by key, under each rule.
    #[expect(
        clippy::too_many_arguments,
        reason = "a row, a thread's buffers, and arguments that all queries share"
    )]
    fn rank_keys(
        &self,
        relation: &Relation<'_>,
        query: u32,
        (keys, kinds): (&[f64], &[Kind]),
        ranker: &mut RowRanker,
        kernel: &Kernel,
        take: &mut Take<'_>,
        control: &Control,
    ) -> Result<()> {
        let number = relation.number(query as usize);
        let row =
            Row { keys, kinds, index: |place| relation.gallery_index(place as u32), given: &[] };
        let depth = self.metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
        ranker.sort(&row, depth.max(number as u64), kernel, control)?;
        let mut positives = Vec::new();
        if relation.grades().is_some() || self.ties != [Ties::Index] {
            positives = ranker.list_positives(&row)?;
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
        for &ties in self.ties {
            let rules = TieRules::One(ties);
            let mut counts = ranker.counts(&row, rules, &positives)?;
            // Positives that weren't sorted must get ranks too deep to matter.
            *counts.last_mut().expect("the last slot counts negatives after all positives") +=
                keys.len() as u64;
            counts.try_resize(rules.slots_per_positive() * number + 1, 0)?;
            take(Order::new(&positives, counts, ties)?, &positives)?;
        }
        Ok(())
    }
}

/// Receives the order of a query's positives, and the positives.
type Take<'a> = dyn FnMut(Order, &[Positive]) -> Result<()> + 'a;

/// Counts the negatives among `items`, a range of a part of the gallery, for `queries`, which must
/// be distinct.
pub(crate) fn count_from_tables<S: Space>(
    space: &S,
    (counts, relation): (&PartialCounts, &Relation<'_>),
    queries: &[u32],
    items: Range<usize>,
    control: &Control,
) -> Result<()> {
    let mut ignore = |()| ();
    for_each_row(
        (queries, items.start as u32..items.end as u32, space.bytes()),
        |queries, items, table: &mut [f64]| space.key_table(queries, items, table, control),
        || Ok(<(RowRanker, Vec<Kind>)>::default()),
        |(ranker, kinds), query, keys, start| {
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
            let row = Row { keys, kinds, index, given: &positives[..active] };
            ranker.sort(&row, u64::MAX, space.kernel(), control)?;
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
/// query and the first item.
fn for_each_row<T: FromZeros + Send + Sync, B: Send, R: Default + Send>(
    (queries, items, bytes): (&[u32], Range<u32>, usize),
    fill: impl Fn(&[u32], &[u32], &mut [T]) -> Result<()>,
    buffers: impl Fn() -> Result<B> + Sync + Send,
    compute: impl Fn(&mut B, u32, &[T], usize) -> Result<R> + Sync + Send,
    receive: &mut impl FnMut(R),
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
        fill(queries, &columns, table)?;
        control.check()?;
        let rows = table.par_chunks_exact(columns.len()).zip(queries);
        let found = collect_each(rows, &buffers, |buffers, (row, &query)| {
            compute(buffers, query, row, items.start as usize)
        })?;
        found.into_iter().for_each(&mut *receive);
        control.advance(table.len() as u64);
    }
    Ok(())
}
