//! Computes the metrics per query from the counts of negatives. docs/reference/metrics.md defines
//! the metrics.

use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory::{Grow, allocate, collect, collect_each, full, try_collect};
use crate::peers::{Peers, gather};
use crate::rank::grades::Grades;
use crate::rank::metric::Metric;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::ties::Ties;
use crate::rank::values::{Discounts, Order};
use crate::screen::tiling::blocks;

/// Metrics per query, in order; NaN if a query does not have a match.
#[derive(Debug, Clone, PartialEq)]
pub struct PerQuery {
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// The values of the metrics, one per query.
    pub columns: Vec<Vec<f64>>,
}

impl PerQuery {
    /// Starts with NaN for all queries.
    pub fn new(queries: usize, metrics: &[Metric]) -> Result<Self> {
        let columns = try_collect(metrics.iter().map(|_| full(queries, f64::NAN)))?;
        Ok(PerQuery { metrics: collect(metrics.iter().copied())?, columns })
    }

    /// Returns the values of a metric, one per query, or `None` if the metric was not requested.
    pub fn values(&self, metric: Metric) -> Option<&[f64]> {
        self.metrics.iter().position(|own| *own == metric).map(|at| &self.columns[at][..])
    }

    /// Computes the metrics of queries that have positives, under a rule that `counts` serves.
    /// `counts` must be complete, and must begin with query `first_query`.
    ///
    /// If `grades` are not given, the gain of a positive is 1.
    pub fn compute(
        &mut self,
        counts: &PartialCounts,
        ties: Ties,
        first_query: usize,
        grades: Option<&Grades<'_>>,
        control: &Control,
    ) -> Result<()> {
        // The maximum number of queries whose values are collected before they are stored.
        const TOGETHER: usize = 1 << 14;
        counts.check(ties)?;
        let items = |q: usize| {
            counts.positives(q).len() as u64
                + counts.slots(q).iter().map(|slot| slot.load(Relaxed)).sum::<u64>()
        };
        let most_items = (0..counts.queries()).map(items).max().unwrap_or(0);
        let discounts = Discounts::new(last_discount(&self.metrics, most_items), control)?;
        for queries in blocks(0..counts.queries(), TOGETHER) {
            let compute = |(): &mut (), q: usize| {
                // Note that a single query may take long when a great number of items are tied.
                control.check()?;
                let positives = counts.positives(q);
                if positives.is_empty() {
                    return Ok(Vec::new());
                }
                let own = collect(counts.slots(q).iter().map(|slot| slot.load(Relaxed)))?;
                let order = Order::new(positives, &own, (counts.rules, ties))?;
                let graded = grades.map(|grades| (positives, grades, first_query + q));
                order.metrics(&self.metrics, graded, &discounts, control)
            };
            let values = collect_each(queries.clone().into_par_iter(), || Ok(()), compute)?;
            queries.zip(values).for_each(|(q, values)| self.set(first_query + q, &values));
        }
        control.check()
    }

    /// Stores the metrics for this query.
    pub(crate) fn set(&mut self, query: usize, values: &[f64]) {
        self.columns.iter_mut().zip(values).for_each(|(column, value)| column[query] = *value);
    }

    /// Exchanges metrics with the peers. Queries that are `expected` must be computed by a single
    /// process, this or another.
    pub(crate) fn exchange(
        &mut self,
        computed: &[usize],
        queries: usize,
        expected: impl Fn(usize) -> bool,
        peers: &dyn Peers,
    ) -> Result<()> {
        if peers.is_alone() {
            return Ok(());
        }
        let width = 1 + self.columns.len();
        let mut rows = allocate(computed.len() * width)?;
        for &q in computed {
            rows.try_push(q as f64)?;
            rows.try_extend(self.columns.iter().map(|column| column[q]))?;
        }
        let mut missing = collect((0..queries).map(expected))?;
        let number = missing.iter().filter(|missing| **missing).count();
        let rows = gather(peers, &rows, number * width)?;
        for row in rows.chunks_exact(width) {
            // Casting a number that isn't an index saturates; the comparison below then rejects it.
            let (q, values) = (row[0] as usize, &row[1..]);
            let is_metric = |value: &f64| (0.0..=1.0).contains(value);
            if q as f64 != row[0] || missing.get(q) != Some(&true) || !values.iter().all(is_metric)
            {
                return Err(Error::Exchange(format!(
                    "all_gather returned {values:?} as metrics of query {}; expected numbers from \
                     0 to 1, once per query",
                    row[0]
                )));
            }
            missing[q] = false;
            self.set(q, values);
        }
        Ok(())
    }
}

/// Computes the mean of the values that are not NaN, added in order.
pub fn mean(values: &[f64]) -> f64 {
    let (sum, n) =
        values.iter().filter(|v| !v.is_nan()).fold((0.0, 0u64), |(sum, n), v| (sum + v, n + 1));
    sum / n as f64
}

/// Returns the last rank that needs a discount. `items` is the largest number of items that a query
/// ranks.
pub(crate) fn last_discount(metrics: &[Metric], items: u64) -> usize {
    let ks = metrics
        .iter()
        .filter_map(|metric| if let Metric::Ndcg(k) = metric { Some(*k) } else { None });
    ks.max().map_or(0, |k| items.min(k) as usize)
}
