//! Levels: totals that the weighted number of accepted pairs reaches at some score.

/// A total to reach as the threshold falls.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Level {
    /// The weight of an accepted negative, at least 1.
    pub negative: u64,
    /// The weight of an accepted positive.
    pub positive: u64,
    /// The total weight to reach, at least 1, and at most the weight of all pairs.
    pub total: u128,
}

/// The score at which a level is reached, with counts of the negatives above this score, and with
/// at least this score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// The largest score of any pair at which the level is reached.
    pub score: f64,
    /// The number of negatives with larger scores.
    pub above: u64,
    /// The number of negatives with at least this score.
    pub at_least: u64,
}

impl Level {
    /// Whether these numbers of accepted pairs reach the level.
    pub(crate) fn reached(self, negatives: u64, positives: u64) -> bool {
        u128::from(self.negative) * u128::from(negatives)
            + u128::from(self.positive) * u128::from(positives)
            >= self.total
    }

    /// Whether all pairs with a score of at least `score` reach the level; `negatives` is the
    /// number of negatives in these pairs.
    pub(crate) fn reached_at(self, score: f64, negatives: u64, positives: &[f64]) -> bool {
        let below = positives.partition_point(|p| *p < score);
        self.reached(negatives, (positives.len() - below) as u64)
    }

    /// Whether all pairs with a score above `score` reach the level; `negatives` is the number of
    /// negatives in these pairs.
    pub(crate) fn reached_above(self, score: f64, negatives: u64, positives: &[f64]) -> bool {
        let below = positives.partition_point(|p| *p <= score);
        self.reached(negatives, (positives.len() - below) as u64)
    }

    /// Finds the crossing if it is between `low` and `high`.
    ///
    /// `positives` are all positives in ascending order. `negatives` must include all negatives in
    /// the range, and may include others, sorted by `score` in descending order. `above` is the
    /// number of other negatives above the range.
    pub(crate) fn cross<T>(
        self,
        above: u64,
        negatives: &[T],
        score: impl Fn(&T) -> f64,
        positives: &[f64],
        low: f64,
        high: f64,
    ) -> Option<Crossing> {
        let at_least = |limit: f64| above + negatives.partition_point(|n| score(n) >= limit) as u64;
        let reached = |limit: f64| self.reached_at(limit, at_least(limit), positives);
        let negative = negatives.get(negatives.partition_point(|n| !reached(score(n)))).map(&score);
        // Of the positives in the range, in ascending order, take the last that reaches the level.
        let first = positives.partition_point(|p| *p < low);
        let in_range = &positives[first..first.max(positives.partition_point(|p| *p <= high))];
        let positive = match in_range.partition_point(|p| reached(*p)) {
            n if n > 0 && self.positive > 0 => Some(in_range[n - 1]),
            _ => None,
        };
        let limit = match (negative, positive) {
            (Some(n), Some(p)) => n.max(p),
            (Some(limit), None) | (None, Some(limit)) => limit,
            (None, None) => return None,
        };
        let found = Crossing {
            score: limit,
            above: above + negatives.partition_point(|n| score(n) > limit) as u64,
            at_least: at_least(limit),
        };
        let crosses =
            (low..=high).contains(&limit) && !self.reached_above(limit, found.above, positives);
        crosses.then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_crossing_is_the_largest_score_at_which_the_level_is_reached(
            mut negatives in proptest::collection::vec(-4i8..4, 1..20),
            mut positives in proptest::collection::vec(-4i8..4, 0..20),
            weights in (1u64..4, 0u64..4),
            share in 0.0f64..1.0,
        ) {
            negatives.sort_by(|a, b| b.cmp(a));
            positives.sort();
            let negatives: Vec<f64> = negatives.into_iter().map(f64::from).collect();
            let positives: Vec<f64> = positives.into_iter().map(f64::from).collect();
            let all = weights.0 * negatives.len() as u64 + weights.1 * positives.len() as u64;
            let level = Level {
                negative: weights.0,
                positive: weights.1,
                total: ((all as f64 * share) as u128).max(1),
            };
            let weight = |score: f64| {
                let count = |scores: &[f64]| scores.iter().filter(|s| **s >= score).count() as u64;
                u128::from(weights.0 * count(&negatives) + weights.1 * count(&positives))
            };
            let scores = negatives.iter().chain(positives.iter().filter(|_| weights.1 > 0));
            let expected = scores
                .copied()
                .filter(|s| weight(*s) >= level.total)
                .fold(f64::NEG_INFINITY, f64::max);
            let found = level
                .cross(0, &negatives, |n| *n, &positives, f64::NEG_INFINITY, f64::INFINITY)
                .unwrap();
            prop_assert_eq!(found.score, expected);
            prop_assert_eq!(
                found.above,
                negatives.iter().filter(|n| **n > expected).count() as u64
            );
            prop_assert_eq!(
                found.at_least,
                negatives.iter().filter(|n| **n >= expected).count() as u64
            );
        }
    }
}
