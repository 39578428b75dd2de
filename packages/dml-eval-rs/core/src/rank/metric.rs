//! The metrics by name, and the ranks on which a metric depends.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, argument};

/// A metric per query, as defined in docs/reference/metrics.md. R is the number of matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// 1 if any of the K nearest items is a match.
    Recall(u64),
    /// Matches in the R nearest, over R.
    RPrecision,
    /// (1/R) Σ over i ≤ R of precision(i)·match(i).
    MapAtR,
    /// 1 over the rank of the first match.
    ReciprocalRank,
    /// Matches in the K nearest, over R.
    RecallShare(u64),
    /// 1 over the rank of the first match, or 0 if this rank exceeds K.
    ReciprocalRankAt(u64),
    /// Matches in the K nearest, over K.
    Precision(u64),
    /// 1/min(K, R) Σ over i ≤ K of precision(i)·match(i).
    AveragePrecisionAt(u64),
    /// Σ over i ≤ K of gain(i)/log₂(i + 1), divided by the largest sum that any order gives.
    Ndcg(u64),
    /// (1/R) Σ over all i of precision(i)·match(i).
    AveragePrecision,
    /// R over the rank of the last match.
    InverseNegativePenalty,
}

impl Metric {
    /// Lists all metrics, using `k` for those that have a K.
    fn all_with_k(k: u64) -> [Self; 11] {
        [
            Metric::Recall(k),
            Metric::RPrecision,
            Metric::MapAtR,
            Metric::ReciprocalRank,
            Metric::RecallShare(k),
            Metric::ReciprocalRankAt(k),
            Metric::Precision(k),
            Metric::AveragePrecisionAt(k),
            Metric::Ndcg(k),
            Metric::AveragePrecision,
            Metric::InverseNegativePenalty,
        ]
    }

    /// Returns the last rank that matters to this metric, besides ranks up to R and the first
    /// positive's rank.
    #[must_use]
    pub fn depth(self) -> u64 {
        match self {
            // Only the rank of the first positive matters.
            Metric::Precision(1) => 0,
            Metric::RecallShare(k)
            | Metric::Precision(k)
            | Metric::AveragePrecisionAt(k)
            | Metric::Ndcg(k) => k,
            Metric::AveragePrecision | Metric::InverseNegativePenalty => u64::MAX,
            _ => 0,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Metric::Recall(k) => write!(f, "recall@{k}"),
            Metric::RPrecision => f.write_str("r_precision"),
            Metric::MapAtR => f.write_str("map@r"),
            Metric::ReciprocalRank => f.write_str("mrr"),
            Metric::RecallShare(k) => write!(f, "ir_recall@{k}"),
            Metric::ReciprocalRankAt(k) => write!(f, "mrr@{k}"),
            Metric::Precision(k) => write!(f, "precision@{k}"),
            Metric::AveragePrecisionAt(k) => write!(f, "map@{k}"),
            Metric::Ndcg(k) => write!(f, "ndcg@{k}"),
            Metric::AveragePrecision => f.write_str("map"),
            Metric::InverseNegativePenalty => f.write_str("minp"),
        }
    }
}

impl FromStr for Metric {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let k = name.split_once('@').and_then(|(_, k)| k.parse().ok());
        if k == Some(0) {
            return argument(format!("metric {name:?} has K = 0; expected K of at least 1"));
        }
        // Comparing names rejects other spellings, for example recall@05 and recall@+5.
        let found = Metric::all_with_k(k.unwrap_or(1))
            .into_iter()
            .find(|metric| metric.to_string() == name);
        found.map_or_else(
            || {
                argument(format!(
                    "unknown metric {name:?}; expected a name like recall@1, map@r or ndcg@10"
                ))
            },
            Ok,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_found_by_its_name() {
        for metric in [1, 5, u64::MAX].into_iter().flat_map(Metric::all_with_k) {
            assert_eq!(metric.to_string().parse(), Ok(metric));
        }
        let none = "recall recall@ recall@0 recall@x recall@r recall@05 recall@+5 map@R map@ \
                    map@r@3 ndcg minp@2 mrr@ map_at_r";
        for name in none.split(' ').chain(["", "precision_at_1"]) {
            assert!(name.parse::<Metric>().is_err(), "{name}");
        }
    }
}
