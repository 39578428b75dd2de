//! The metrics by name, and the ranks that each depends on.

use std::fmt;
use std::str::FromStr;

use crate::error::{Error, Result, argument};

/// A metric of a query. docs/reference/metrics.md has the definitions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Metric {
    /// 1 if any of the K nearest is a match.
    Recall(u64),
    /// 1 if the nearest is a match.
    PrecisionAt1,
    /// Matches among the R nearest, over R.
    RPrecision,
    /// (1/R) Σ over i ≤ R of precision(i)·match(i).
    MapAtR,
    /// 1 over the rank of the first match.
    ReciprocalRank,
    /// Matches among the K nearest, over R.
    RecallShare(u64),
    /// 1 over the rank of the first match, 0 if none is among the K nearest.
    ReciprocalRankAt(u64),
    /// Matches among the K nearest, over K.
    Precision(u64),
    /// 1/min(K, R) Σ over i ≤ K of precision(i)·match(i).
    AveragePrecisionAt(u64),
    /// Σ over i ≤ K of gain(i)/log₂(i + 1), over that of the best order.
    Ndcg(u64),
    /// (1/R) Σ over all i of precision(i)·match(i).
    AveragePrecision,
    /// R over the rank of the last match.
    InverseNegativePenalty,
}

impl Metric {
    /// Returns the last rank that matters to this metric, apart from the ranks up to R and the first positive's.
    #[must_use]
    pub fn depth(self) -> u64 {
        match self {
            Metric::RecallShare(k) | Metric::Precision(k) | Metric::AveragePrecisionAt(k) | Metric::Ndcg(k) => k,
            Metric::AveragePrecision | Metric::InverseNegativePenalty => u64::MAX,
            _ => 0,
        }
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Metric::Recall(k) => write!(f, "recall@{k}"),
            Metric::PrecisionAt1 => f.write_str("precision_at_1"),
            Metric::RPrecision => f.write_str("r_precision"),
            Metric::MapAtR => f.write_str("map_at_r"),
            Metric::ReciprocalRank => f.write_str("reciprocal_rank"),
            Metric::RecallShare(k) => write!(f, "recall_share@{k}"),
            Metric::ReciprocalRankAt(k) => write!(f, "reciprocal_rank@{k}"),
            Metric::Precision(k) => write!(f, "precision@{k}"),
            Metric::AveragePrecisionAt(k) => write!(f, "average_precision@{k}"),
            Metric::Ndcg(k) => write!(f, "ndcg@{k}"),
            Metric::AveragePrecision => f.write_str("average_precision"),
            Metric::InverseNegativePenalty => f.write_str("inverse_negative_penalty"),
        }
    }
}

impl FromStr for Metric {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let (of, k) = name.split_once('@').map_or((name, None), |(of, k)| (of, k.parse().ok()));
        match (of, k) {
            (_, Some(0)) => argument(format!("the metric {name:?} has a K of 0; expected every K to be at least 1")),
            ("recall", Some(k)) => Ok(Metric::Recall(k)),
            ("recall_share", Some(k)) => Ok(Metric::RecallShare(k)),
            ("reciprocal_rank", Some(k)) => Ok(Metric::ReciprocalRankAt(k)),
            ("precision", Some(k)) => Ok(Metric::Precision(k)),
            ("average_precision", Some(k)) => Ok(Metric::AveragePrecisionAt(k)),
            ("ndcg", Some(k)) => Ok(Metric::Ndcg(k)),
            ("precision_at_1", None) => Ok(Metric::PrecisionAt1),
            ("r_precision", None) => Ok(Metric::RPrecision),
            ("map_at_r", None) => Ok(Metric::MapAtR),
            ("reciprocal_rank", None) if of == name => Ok(Metric::ReciprocalRank),
            ("average_precision", None) if of == name => Ok(Metric::AveragePrecision),
            ("inverse_negative_penalty", None) if of == name => Ok(Metric::InverseNegativePenalty),
            _ => argument(format!("unknown metric {name:?}; expected such as recall@1, map_at_r or ndcg@10")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_is_found_by_its_name() {
        for metric in [
            Metric::Recall(1),
            Metric::PrecisionAt1,
            Metric::RPrecision,
            Metric::MapAtR,
            Metric::ReciprocalRank,
            Metric::RecallShare(3),
            Metric::ReciprocalRankAt(10),
            Metric::Precision(5),
            Metric::AveragePrecisionAt(u64::MAX),
            Metric::Ndcg(10),
            Metric::AveragePrecision,
            Metric::InverseNegativePenalty,
        ] {
            assert_eq!(metric.to_string().parse(), Ok(metric));
        }
        for name in [
            "",
            "recall",
            "recall@",
            "recall@0",
            "recall@x",
            "map_at_r@3",
            "ndcg",
            "average_precision@",
            "reciprocal_rank@",
            "mrr",
        ] {
            assert!(name.parse::<Metric>().is_err(), "{name}");
        }
    }
}
