//! Metrics of definite ranks: those under every rule for ties but the expected order.

use crate::rank::gains::Discounts;
use crate::rank::metric::Metric;

/// The ranks of a query's positives, ascending. Those beyond the counts' depth may be too small, but stay beyond it.
pub(crate) struct Ranks(Vec<u64>);

impl Ranks {
    /// Computes the ranks of at least one positive from complete counts: of the negatives before it and after the positive before,
    /// and of those after all.
    pub fn new(mut counts: Vec<u64>) -> Self {
        counts.pop();
        let mut negatives = 0;
        for (count, position) in counts.iter_mut().zip(1..) {
            negatives += *count;
            *count = negatives + position;
        }
        Ranks(counts)
    }

    /// Returns the number of positives.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Counts the positives among the first `k` items.
    fn hits(&self, k: u64) -> usize {
        self.0.partition_point(|rank| *rank <= k)
    }

    /// Adds up the precisions at the positives among the first `k` items.
    fn precisions(&self, k: u64) -> f64 {
        let ranks = self.0[..self.hits(k)].iter().zip(1u64..);
        ranks.fold(0.0, |sum, (rank, hits)| sum + hits as f64 / *rank as f64)
    }

    /// Computes a metric, given the gain of each positive, and the sum of discounted gains of the best order.
    pub fn value(
        &self,
        metric: Metric,
        discounts: &Discounts,
        gain: impl Fn(usize) -> f64,
        best: impl Fn(u64) -> f64,
    ) -> f64 {
        let r = self.0.len() as u64;
        let flag = |hit: bool| f64::from(u8::from(hit));
        match metric {
            Metric::Recall(k) => flag(self.0[0] <= k),
            Metric::RPrecision => self.hits(r) as f64 / r as f64,
            Metric::MapAtR => self.precisions(r) / r as f64,
            Metric::ReciprocalRank => 1.0 / self.0[0] as f64,
            Metric::RecallShare(k) => self.hits(k) as f64 / r as f64,
            Metric::ReciprocalRankAt(k) if self.0[0] > k => 0.0,
            Metric::ReciprocalRankAt(_) => 1.0 / self.0[0] as f64,
            Metric::Precision(k) => self.hits(k) as f64 / k as f64,
            Metric::AveragePrecisionAt(k) => self.precisions(k) / k.min(r) as f64,
            Metric::AveragePrecision => self.precisions(u64::MAX) / r as f64,
            Metric::InverseNegativePenalty => r as f64 / self.0[self.0.len() - 1] as f64,
            Metric::Ndcg(k) => {
                let hits = self.0[..self.hits(k)].iter().enumerate();
                let sum = hits.fold(0.0, |sum, (i, rank)| sum + gain(i) * discounts.at(*rank));
                (sum / best(k)).min(1.0)
            }
        }
    }
}
