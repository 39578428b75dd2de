//! The metrics of every query, from the counts of its negatives. docs/reference/metrics.md has the definitions.

use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory::{allocate, collect, full};
use crate::peers::{Peers, gather};
use crate::rank::definite::Ranks;
use crate::rank::expected::Groups;
use crate::rank::gains::{Discounts, Grades};
use crate::rank::metric::Metric;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::ties::Ties;

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
        let columns = metrics.iter().map(|_| full(queries, f64::NAN)).collect::<Result<_>>()?;
        Ok(PerQuery { metrics: metrics.to_vec(), columns })
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
        let discounts = Discounts::new(last_discount(counts, &self.metrics), control)?;
        let metrics = &self.metrics;
        let all = first_query..first_query + counts.queries();
        let mut columns = collect(self.columns.iter_mut().map(|column| column[all.clone()].chunks_mut(CHUNK)))?;
        let starts = (0..counts.queries()).step_by(CHUNK);
        let tasks = starts.map(|start| (start, columns.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>()));
        tasks.collect::<Vec<_>>().into_par_iter().for_each(|(start, mut columns)| {
            let queries = start..(start + CHUNK).min(counts.queries());
            for (at, q) in queries.enumerate().filter(|(_, q)| !counts.positives(*q).is_empty()) {
                // One query may take long where very many items are tied.
                if control.is_cancelled() {
                    return;
                }
                let grades = grades.map(|grades| (grades, first_query + q));
                let values = row(metrics, counts, ties, q, grades, &discounts, control);
                for (column, value) in columns.iter_mut().zip(values) {
                    column[at] = value;
                }
            }
        });
        control.check()
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
            rows.push(q as f64);
            rows.extend(self.columns.iter().map(|column| column[q]));
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
            for (column, value) in self.columns.iter_mut().zip(values) {
                column[q] = *value;
            }
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
fn last_discount(counts: &PartialCounts, metrics: &[Metric]) -> usize {
    let ks = metrics.iter().filter_map(|metric| if let Metric::Ndcg(k) = metric { Some(*k) } else { None });
    let Some(k) = ks.max() else { return 0 };
    let items = |q: usize| {
        counts.positives(q).len() as u64 + counts.slots(q).iter().map(|slot| slot.load(Relaxed)).sum::<u64>()
    };
    (0..counts.queries()).map(items).max().unwrap_or(0).min(k) as usize
}

/// Computes the metrics of a query that has positives.
fn row(
    metrics: &[Metric],
    counts: &PartialCounts,
    ties: Ties,
    q: usize,
    grades: Option<(&Grades<'_>, usize)>,
    discounts: &Discounts,
    control: &Control,
) -> Vec<f64> {
    let positives = counts.positives(q);
    let gain = |i: usize| grades.map_or(1.0, |(grades, query)| grades.grade(query, positives[i].index));
    let mut gains = Vec::new();
    if grades.is_some() && metrics.iter().any(|metric| matches!(metric, Metric::Ndcg(_))) {
        gains.extend((0..positives.len()).map(gain));
    }
    let mut sorted = gains.clone();
    sorted.sort_unstable_by(|a, b| b.total_cmp(a));
    let best = |k: u64| {
        let first = positives.len().min(k as usize);
        if grades.is_none() {
            discounts.best(std::iter::repeat_n(1.0, first))
        } else {
            discounts.best(sorted[..first].iter().copied())
        }
    };
    let gain = |i: usize| gains.get(i).copied().unwrap_or(1.0);
    let counted = counts.counts_under(ties, q);
    if ties == Ties::Expected {
        let groups = Groups::new(positives, &counted);
        metrics.iter().map(|metric| groups.value(*metric, discounts, gain, best, control)).collect()
    } else {
        let ranks = Ranks::new(counted);
        metrics.iter().map(|metric| ranks.value(*metric, discounts, gain, best)).collect()
    }
}
