//! The metrics of every query, from the counts of its negatives. docs/reference/metrics.md has the definitions.

use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory::{Grow, allocate, collect, full, try_collect};
use crate::peers::{Peers, gather};
use crate::rank::gains::{Discounts, Grades};
use crate::rank::metric::Metric;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::positive::Positive;
use crate::rank::ties::Ties;
use crate::rank::values::{Groups, Ranks};

/// Metrics of every query, in order; NaN where a query has no match.
#[derive(Debug, Clone, PartialEq)]
pub struct PerQuery {
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// Each metric's values, one for each query.
    pub columns: Vec<Vec<f64>>,
}

impl PerQuery {
    /// Starts with NaN for every query.
    pub fn new(queries: usize, metrics: &[Metric]) -> Result<Self> {
        let columns = try_collect(metrics.iter().map(|_| full(queries, f64::NAN)))?;
        Ok(PerQuery { metrics: collect(metrics.iter().copied())?, columns })
    }

    /// Returns a metric's values, one for each query; `None` if it was not requested.
    pub fn values(&self, metric: Metric) -> Option<&[f64]> {
        self.metrics.iter().position(|own| *own == metric).map(|at| &self.columns[at][..])
    }

    /// Computes the metrics of the queries that have positives, under one of the rules that these complete counts serve. They begin
    /// with query `first_query`.
    ///
    /// Without `grades` every positive has the gain 1.
    pub fn compute(
        &mut self,
        counts: &PartialCounts,
        ties: Ties,
        first_query: usize,
        grades: Option<&Grades<'_>>,
        control: &Control,
    ) -> Result<()> {
        // Queries of a task.
        const CHUNK: usize = 256;
        counts.check(ties)?;
        let items = |q: usize| {
            counts.positives(q).len() as u64 + counts.slots(q).iter().map(|slot| slot.load(Relaxed)).sum::<u64>()
        };
        let most_items = (0..counts.queries()).map(items).max().unwrap_or(0);
        let discounts = Discounts::new(last_discount(&self.metrics, most_items), control)?;
        let metrics = &self.metrics;
        let all = first_query..first_query + counts.queries();
        let mut columns = collect(self.columns.iter_mut().map(|column| column[all.clone()].chunks_mut(CHUNK)))?;
        let starts = (0..counts.queries()).step_by(CHUNK);
        let tasks = try_collect(starts.map(|start| {
            let mut parts = allocate(columns.len())?;
            parts.try_extend(columns.iter_mut().filter_map(Iterator::next))?;
            Ok((start, parts))
        }))?;
        tasks.into_par_iter().try_for_each(|(start, mut columns)| {
            let queries = start..(start + CHUNK).min(counts.queries());
            for (at, q) in queries.enumerate().filter(|(_, q)| !counts.positives(*q).is_empty()) {
                // One query may take long where very many items are tied.
                control.check()?;
                let positives = counts.positives(q);
                let order = Order::new(positives, counts.counts_under(ties, q)?, ties)?;
                let graded = grades.map(|grades| (positives, grades, first_query + q));
                let values = order.metrics(metrics, graded, &discounts, control)?;
                for (column, value) in columns.iter_mut().zip(values) {
                    column[at] = value;
                }
            }
            Ok(())
        })?;
        control.check()
    }

    /// Stores the metrics of a query.
    pub(crate) fn set(&mut self, query: usize, values: &[f64]) {
        self.columns.iter_mut().zip(values).for_each(|(column, value)| column[query] = *value);
    }

    /// Exchanges the metrics with the peers, each of which computed those of other queries; together, those that are `expected`.
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
            // A number that is no index saturates to one, which then is another's or none.
            let (q, values) = (row[0] as usize, &row[1..]);
            let is_metric = |value: &f64| (0.0..=1.0).contains(value);
            if q as f64 != row[0] || missing.get(q) != Some(&true) || !values.iter().all(is_metric) {
                return Err(Error::Exchange(format!(
                    "all_gather returned {values:?} as metrics of query {}; expected numbers from 0 to 1, once for each query",
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
    let (sum, n) = values.iter().filter(|v| !v.is_nan()).fold((0.0, 0u64), |(sum, n), v| (sum + v, n + 1));
    sum / n as f64
}

/// Returns the last rank whose discount matters: no rank exceeds the number of a query's items.
pub(crate) fn last_discount(metrics: &[Metric], items: u64) -> usize {
    let ks = metrics.iter().filter_map(|metric| if let Metric::Ndcg(k) = metric { Some(*k) } else { None });
    ks.max().map_or(0, |k| items.min(k) as usize)
}

/// The order of a query's positives, of which there is one at least.
pub(crate) enum Order {
    Definite(Ranks),
    Expected(Groups),
}

impl Order {
    /// Derives the order from positives and complete counts, in the slots of a rule for ties.
    pub fn new(positives: &[Positive], counts: Vec<u64>, ties: Ties) -> Result<Self> {
        Ok(match ties {
            Ties::Expected => Order::Expected(Groups::new(positives, &counts)?),
            _ => Order::Definite(Ranks::new(counts)),
        })
    }

    /// Computes the metrics, given all positives, in order, with their grades and the query's index in these.
    pub fn metrics(
        &self,
        metrics: &[Metric],
        graded: Option<(&[Positive], &Grades<'_>, usize)>,
        discounts: &Discounts,
        control: &Control,
    ) -> Result<Vec<f64>> {
        let mut gains = Vec::new();
        if let Some((positives, grades, query)) = graded
            && metrics.iter().any(|metric| matches!(metric, Metric::Ndcg(_)))
        {
            gains.try_extend(positives.iter().map(|positive| grades.grade(query, positive.index)))?;
        }
        let mut sorted = collect(gains.iter().copied())?;
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let number = match self {
            Order::Definite(ranks) => ranks.len(),
            Order::Expected(groups) => groups.positives(),
        };
        let best = |k: u64| {
            let first = number.min(k as usize);
            if graded.is_none() {
                discounts.best(std::iter::repeat_n(1.0, first))
            } else {
                discounts.best(sorted[..first].iter().copied())
            }
        };
        let gain = |i: usize| gains.get(i).copied().unwrap_or(1.0);
        let value = |metric: &Metric| match self {
            Order::Definite(ranks) => ranks.value(*metric, discounts, gain, best),
            Order::Expected(groups) => groups.value(*metric, discounts, gain, best, control),
        };
        collect(metrics.iter().map(value))
    }
}
