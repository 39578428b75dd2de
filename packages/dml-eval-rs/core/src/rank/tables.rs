//! Queries whose ranks come from tables of all their keys, since a screen would leave most values open.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate, collect, collect_each, full, zeros};
use crate::rank::count_job::CountJob;
use crate::rank::distance_ranker::DistanceRanker;
use crate::rank::gains::Discounts;
use crate::rank::metric::Metric;
use crate::rank::metrics::{Order, PerQuery, last_discount};
use crate::rank::positive::Positive;
use crate::rank::relation::{Kind, Relation};
use crate::rank::row_ranker::{Row, RowRanker};
use crate::rank::ties::{TieRules, Ties};
use crate::rows::space::Space;
use crate::side::Side;

/// What the tables' queries are evaluated for: levels of matches, each under some rules for ties.
pub(crate) struct Ranking<'a> {
    pub relations: &'a [&'a Relation<'a>],
    pub ties: &'a [Ties],
    pub metrics: &'a [Metric],
}

impl Ranking<'_> {
    /// Computes the metrics of these queries by all of their keys. There is a result for each relation and each rule.
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
        if let Some(codes) = space.distances().filter(|codes| codes.largest() <= DistanceRanker::LARGEST) {
            for_each_row(
                (queries, items, space.bytes()),
                |queries, items, table: &mut [u16]| codes.distance_table(queries, items, table, control),
                || Ok((DistanceRanker::new(codes.largest())?, Buffers::default())),
                |(ranker, buffers), query, row, _| {
                    Ok((query, self.by_distances(space, query, row, ranker, buffers, discounts, control)?))
                },
                &mut store,
                control,
            )
        } else {
            for_each_row(
                (queries, items, space.bytes()),
                |queries, items, table: &mut [f64]| space.key_table(queries, items, table, control),
                || Ok((RowRanker::default(), Buffers::default())),
                |(ranker, buffers), query, row, _| {
                    Ok((query, self.by_keys(space, query, row, ranker, buffers, discounts, control)?))
                },
                &mut store,
                control,
            )
        }
    }

    /// Computes the metrics of a query at each level and under each rule from its keys.
    #[expect(clippy::too_many_arguments, reason = "a thread's buffers, and what all queries share")]
    fn by_keys<S: Space>(
        &self,
        space: &S,
        query: u32,
        keys: &[f64],
        ranker: &mut RowRanker,
        buffers: &mut Buffers,
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<Vec<f64>>> {
        let mut rows = allocate(self.relations.len() * self.ties.len())?;
        for relation in self.relations {
            let number = relation.number(query as usize);
            control.took(|| "ranks from keys");
            relation.kinds(query as usize, 0..keys.len(), &mut buffers.kinds)?;
            let index = |place: usize| relation.gallery_index(place as u32);
            let row = Row { keys, kinds: &buffers.kinds, index, given: &[] };
            ranker.sort(&row, self.last_rank(number), space.kernel(), control)?;
            let mut positives = Vec::new();
            if relation.grades().is_some() || self.ties != [Ties::Index] {
                positives = ranker.list_positives(&row)?;
                if positives.len() < number {
                    // Gains of the best order are those of all.
                    let mut known = collect(positives.iter().map(|positive| positive.index))?;
                    known.sort_unstable();
                    let all = relation.matches(query as usize).map(|item| relation.gallery_index(item));
                    let rest = all.filter(|index| known.binary_search(index).is_err());
                    positives.try_extend(rest.map(|index| Positive { key: f64::NEG_INFINITY, index }))?;
                }
            }
            for &ties in self.ties {
                let rules = TieRules::One(ties);
                let mut counts = ranker.counts(&row, rules, &positives)?;
                // Positives beyond the kept items are beyond all ranks that matter.
                *counts.last_mut().expect("there is one of the negatives after all positives") += keys.len() as u64;
                counts.try_resize(rules.slots_per_positive() * number + 1, 0)?;
                let order = || Order::new(&positives, counts, ties);
                rows.try_push(self.metrics(relation, query, order, &positives, discounts, control)?)?;
            }
        }
        Ok(rows)
    }

    /// Computes the metrics of a query at each level and under each rule from its distances.
    #[expect(clippy::too_many_arguments, reason = "a thread's buffers, and what all queries share")]
    fn by_distances<S: Space>(
        &self,
        space: &S,
        query: u32,
        distances: &[u16],
        ranker: &mut DistanceRanker,
        buffers: &mut Buffers,
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<Vec<f64>>> {
        let mut rows = allocate(self.relations.len() * self.ties.len())?;
        let Buffers { kinds, marks } = buffers;
        for relation in self.relations {
            control.took(|| "ranks from distances");
            relation.kinds(query as usize, 0..distances.len(), kinds)?;
            ranker.count(distances, kinds, marks, space.kernel())?;
            let mut positives = Vec::new();
            if relation.grades().is_some() {
                positives = ranker.list_positives(marks, |place| relation.gallery_index(place as u32))?;
            }
            for &ties in self.ties {
                let order = || ranker.order(marks, ties);
                rows.try_push(self.metrics(relation, query, order, &positives, discounts, control)?)?;
            }
        }
        Ok(rows)
    }

    /// Computes the metrics of a query from the order of its positives. These are listed if they have grades.
    fn metrics(
        &self,
        relation: &Relation<'_>,
        query: u32,
        order: impl FnOnce() -> Result<Order>,
        positives: &[Positive],
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<f64>> {
        if relation.number(query as usize) == 0 {
            return full(self.metrics.len(), f64::NAN);
        }
        let graded = relation.grades().map(|grades| (positives, grades, query as usize));
        order()?.metrics(self.metrics, graded, discounts, control)
    }

    /// Returns the last rank that matters to a query with so many positives.
    fn last_rank(&self, positives: usize) -> u64 {
        let depth = self.metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
        depth.max(positives as u64)
    }
}

/// Counts the negatives of these queries, each given once, among some of the items of a part of a gallery.
pub(crate) fn count_from_tables<S: Space>(
    space: &S,
    job: &CountJob<'_>,
    queries: &[u32],
    items: Range<usize>,
    control: &Control,
) -> Result<()> {
    let counts = job.counts;
    let mut ignore = |()| ();
    for_each_row(
        (queries, items.start as u32..items.end as u32, space.bytes()),
        |queries, items, table: &mut [f64]| space.key_table(queries, items, table, control),
        || Ok((RowRanker::default(), Buffers::default())),
        |(ranker, buffers), query, keys, start| {
            control.took(|| "counts from keys");
            let q = query as usize - job.first_query;
            let positives = counts.positives(q);
            let active = counts.count_active(q, positives.len());
            job.relation.kinds(query as usize, start..start + keys.len(), &mut buffers.kinds)?;
            // Its own positives are given.
            buffers.kinds.iter_mut().filter(|kind| **kind == Kind::Match).for_each(|kind| *kind = Kind::LeftOut);
            let index = |place: usize| job.relation.gallery_index((start + place) as u32);
            let row = Row { keys, kinds: &buffers.kinds, index, given: &positives[..active] };
            ranker.sort(&row, u64::MAX, space.kernel(), control)?;
            let found = ranker.counts(&row, counts.rules(), positives)?;
            // Those after the last active positive matter to no metric.
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

/// A thread's buffers.
#[derive(Default)]
struct Buffers {
    kinds: Vec<Kind>,
    marks: Vec<u16>,
}

/// Bytes of the input for each key of a table: with more queries in a table, the gallery is packed less often.
const BYTES_PER_KEY: usize = 16;

/// Fills tables of some queries and all items, and computes a result from each row, given with its query and its first item.
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
        let found =
            collect_each(rows, &buffers, |buffers, (row, &query)| compute(buffers, query, row, items.start as usize))?;
        found.into_iter().for_each(&mut *receive);
        control.advance(table.len() as u64);
    }
    Ok(())
}
