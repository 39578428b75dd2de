//! Metrics of a query, from the ranks of its positives. docs/reference/metrics.md has the definitions.

use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory::{allocate, collect, full};
use crate::peers::{Peers, gather};
use crate::rank::partial_counts::{PartialCounts, Ties};

/// Metrics of every query, in order; NaN where a query has no match.
#[derive(Debug, Clone, PartialEq)]
pub struct PerQuery {
    /// For each requested K, in that order: 1 if any of the K nearest is a match.
    pub recall: Vec<Vec<f64>>,
    /// 1 if the nearest is a match.
    pub precision_at_1: Vec<f64>,
    /// Matches among the R nearest, over R.
    pub r_precision: Vec<f64>,
    /// (1/R) Σ over i ≤ R of precision(i)·match(i).
    pub map_at_r: Vec<f64>,
    /// 1 over the rank of the first match.
    pub reciprocal_rank: Vec<f64>,
}

/// The metrics of one query.
struct Row {
    recall: Vec<f64>,
    precision_at_1: f64,
    r_precision: f64,
    map_at_r: f64,
    reciprocal_rank: f64,
}

impl PerQuery {
    /// Starts with NaN for every query.
    pub fn new(queries: usize, recall_at: usize) -> Result<Self> {
        let column = || full(queries, f64::NAN);
        Ok(PerQuery {
            recall: (0..recall_at).map(|_| column()).collect::<Result<_>>()?,
            precision_at_1: column()?,
            r_precision: column()?,
            map_at_r: column()?,
            reciprocal_rank: column()?,
        })
    }

    /// Computes the metrics of the queries that have positives, from complete counts that begin with query `first_query`.
    pub fn compute(
        &mut self,
        counts: &PartialCounts,
        first_query: usize,
        recall_at: &[u64],
        control: &Control,
    ) -> Result<()> {
        // Queries between two looks for a cancellation: one query may take long where very many items are tied.
        const CHUNK: usize = 1 << 14;
        for start in (0..counts.queries()).step_by(CHUNK) {
            let queries = start..(start + CHUNK).min(counts.queries());
            let rows: Vec<Option<Row>> = queries.into_par_iter().map(|q| row(counts, q, recall_at, control)).collect();
            control.check()?;
            for (at, row) in (first_query + start..).zip(rows) {
                let Some(row) = row else { continue };
                for (column, value) in self.recall.iter_mut().zip(row.recall) {
                    column[at] = value;
                }
                self.precision_at_1[at] = row.precision_at_1;
                self.r_precision[at] = row.r_precision;
                self.map_at_r[at] = row.map_at_r;
                self.reciprocal_rank[at] = row.reciprocal_rank;
            }
        }
        Ok(())
    }

    /// Exchanges the metrics with the peers, each of which computed those of other queries; together, those that are `expected`.
    pub(crate) fn exchange(
        &mut self,
        computed: &[usize],
        expected: impl Fn(usize) -> bool,
        peers: &dyn Peers,
    ) -> Result<()> {
        if peers.is_alone() {
            return Ok(());
        }
        let mut columns: Vec<&mut Vec<f64>> = self.recall.iter_mut().collect();
        columns.extend([
            &mut self.precision_at_1,
            &mut self.r_precision,
            &mut self.map_at_r,
            &mut self.reciprocal_rank,
        ]);
        let mut rows = allocate(computed.len() * (1 + columns.len()))?;
        for &q in computed {
            rows.push(q as f64);
            rows.extend(columns.iter().map(|column| column[q]));
        }
        let mut missing = collect((0..columns[0].len()).map(expected))?;
        let number = missing.iter().filter(|missing| **missing).count();
        let rows = gather(peers, &rows, number * (1 + columns.len()))?;
        for row in rows.chunks_exact(1 + columns.len()) {
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
            for (column, value) in columns.iter_mut().zip(values) {
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

/// Computes one query's metrics; none without positives.
fn row(counts: &PartialCounts, q: usize, recall_at: &[u64], control: &Control) -> Option<Row> {
    if counts.positives(q).is_empty() || control.is_cancelled() {
        None
    } else if counts.ties == Ties::Expected {
        Some(expected(&groups(counts, q), recall_at))
    } else {
        Some(definite(&ranks(counts, q), recall_at))
    }
}

/// Computes the ranks of the positives, ascending. Those beyond R may be too small, but stay beyond R.
fn ranks(counts: &PartialCounts, q: usize) -> Vec<u64> {
    let mut negatives = 0;
    counts.slots(q)[..counts.positives(q).len()]
        .iter()
        .zip(1..)
        .map(|(count, position)| {
            negatives += count.load(Relaxed);
            negatives + position
        })
        .collect()
}

/// Computes the metrics of definite ranks.
fn definite(ranks: &[u64], recall_at: &[u64]) -> Row {
    let r = ranks.len() as u64;
    let mut hits = 0u64;
    let mut precisions = 0.0;
    for &rank in ranks.iter().take_while(|rank| **rank <= r) {
        hits += 1;
        precisions += hits as f64 / rank as f64;
    }
    Row {
        recall: recall_at.iter().map(|k| f64::from(u8::from(ranks[0] <= *k))).collect(),
        precision_at_1: f64::from(u8::from(ranks[0] == 1)),
        r_precision: hits as f64 / r as f64,
        map_at_r: precisions / r as f64,
        reciprocal_rank: 1.0 / ranks[0] as f64,
    }
}

/// Items with equal keys, positives among them.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// Items before the group.
    before: u64,
    /// Positives before the group.
    positives_before: u64,
    positives: u64,
    negatives: u64,
}

impl Group {
    fn size(&self) -> u64 {
        self.positives + self.negatives
    }
}

/// Groups the positives by key, with the negatives tied with them. Returns the number of positives, too.
fn groups(counts: &PartialCounts, q: usize) -> (Vec<Group>, u64) {
    let slots: Vec<u64> = counts.slots(q).iter().map(|c| c.load(Relaxed)).collect();
    let mut groups = Vec::new();
    let mut at = 0;
    let mut negatives = 0;
    for tied in counts.positives(q).chunk_by(|a, b| a.key == b.key) {
        negatives += slots[2 * at];
        let group = Group {
            before: at as u64 + negatives,
            positives_before: at as u64,
            positives: tied.len() as u64,
            negatives: slots[2 * at + 1],
        };
        negatives += group.negatives;
        at += tied.len();
        groups.push(group);
    }
    (groups, at as u64)
}

/// Computes the chance that a positive is among the first K: 1 less the chance that the first group's all come later.
fn expected_recall(first: Group, k: u64) -> f64 {
    let drawn = k.saturating_sub(first.before);
    if drawn > first.negatives {
        return 1.0;
    }
    // C(negatives, drawn) / C(size, drawn), as a product over the fewer of drawn and positives.
    let (m, t, s) = (first.negatives, first.positives, first.size());
    let none = if drawn <= t {
        (0..drawn).fold(1.0, |p, i| p * ((m - i) as f64 / (s - i) as f64))
    } else {
        (0..t).fold(1.0, |p, i| p * ((s - drawn - i) as f64 / (s - i) as f64))
    };
    1.0 - none
}

/// Computes the means of the metrics over all orders of tied items.
fn expected((groups, r): &(Vec<Group>, u64), recall_at: &[u64]) -> Row {
    let r = *r;
    let mut hits = 0.0;
    let mut precisions = 0.0;
    for group in groups.iter().take_while(|g| g.before < r) {
        let drawn = group.size().min(r - group.before);
        let density = group.positives as f64 / group.size() as f64;
        hits += drawn as f64 * density;
        // Given a positive at the group's k-th place, the rest are equally likely at each other place.
        let rest = if group.size() > 1 { (group.positives - 1) as f64 / (group.size() - 1) as f64 } else { 0.0 };
        for k in 0..drawn {
            let found = (group.positives_before + 1) as f64 + k as f64 * rest;
            precisions += density * found / (group.before + k + 1) as f64;
        }
    }
    let first = groups[0];
    let (t, s) = (first.positives, first.size());
    let mut reciprocal_rank = 0.0;
    // The chance that the first k places hold no positive.
    let mut none = 1.0;
    for k in 0..=first.negatives {
        let here = t as f64 / (s - k) as f64;
        reciprocal_rank += none * here / (first.before + k + 1) as f64;
        none *= 1.0 - here;
    }
    Row {
        recall: recall_at.iter().map(|k| expected_recall(first, *k)).collect(),
        precision_at_1: if first.before == 0 { t as f64 / s as f64 } else { 0.0 },
        r_precision: hits / r as f64,
        map_at_r: precisions / r as f64,
        reciprocal_rank,
    }
}
