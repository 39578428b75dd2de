//! Rules for ties, and the slots used to count a query's negatives for a single rule or for all
//! rules.
//!
//! Positives are sorted by key in descending order, then by index. A negative comes after b
//! positives with larger keys, and may be tied with a *group* of t positives, where j have lower
//! indices. The slot depends on the rules:
//!
//! | rules | slots per positive | not tied | tied |
//! |---|---|---|---|
//! | index | 1 | b | b + j |
//! | optimistic | 1 | b | b + t |
//! | pessimistic | 1 | b | b |
//! | expected | 2 | 2b | 2b + 1 |
//! | all | 3 | 3b | 3b + 1 if j = 0, otherwise 3(b + j) − 1 |
//!
//! Counts for all rules reveal b, j and whether a negative is tied, so they determine the counts
//! for each rule.

use std::ops::Range;

use zerocopy::FromZeros;

use crate::error::{Error, Result, argument};
use crate::memory::full;

/// A gallery item that matches.
#[derive(Clone, Copy, Debug, FromZeros, PartialEq)]
pub struct Positive {
    /// The key that orders the gallery: items with larger keys are nearer.
    pub key: f64,
    /// The index in the full gallery.
    pub index: u64,
}

/// How to order a match and a non-match with equal keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The lower gallery index comes first.
    Index,
    /// The match comes first.
    Optimistic,
    /// The non-match comes first.
    Pessimistic,
    /// Neither comes first: metrics are means over all orders of tied items.
    Expected,
}

impl std::str::FromStr for Ties {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "index" => Ok(Ties::Index),
            "optimistic" => Ok(Ties::Optimistic),
            "pessimistic" => Ok(Ties::Pessimistic),
            "expected" => Ok(Ties::Expected),
            _ => argument(format!(
                "unknown ties {name:?}; expected index, optimistic, pessimistic or expected"
            )),
        }
    }
}

/// The rules for ties under which counts can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TieRules {
    /// A single rule.
    One(Ties),
    /// Every rule.
    All,
}

impl From<Ties> for TieRules {
    fn from(ties: Ties) -> Self {
        TieRules::One(ties)
    }
}

impl From<&[Ties]> for TieRules {
    /// Chooses the rules that serve all of `rules` with the fewest slots.
    fn from(rules: &[Ties]) -> Self {
        if let [ties] = rules { TieRules::One(*ties) } else { TieRules::All }
    }
}

impl TieRules {
    pub(crate) fn serves(self, ties: Ties) -> bool {
        self == TieRules::All || self == TieRules::One(ties)
    }

    pub(crate) fn slots_per_positive(self) -> usize {
        match self {
            TieRules::One(Ties::Index | Ties::Optimistic | Ties::Pessimistic) => 1,
            TieRules::One(Ties::Expected) => 2,
            TieRules::All => 3,
        }
    }

    /// Finds the slot of a negative. Positives may be omitted: `first` positives with larger keys,
    /// and any number at the end with smaller keys.
    pub(crate) fn slot(self, first: usize, positives: &[Positive], key: f64, index: u64) -> usize {
        let above = || positives.partition_point(|p| p.key > key);
        let is_tied = |at: usize| positives.get(at).is_some_and(|p| p.key == key);
        match self {
            TieRules::One(Ties::Pessimistic) => first + above(),
            TieRules::One(Ties::Optimistic) => first + positives.partition_point(|p| p.key >= key),
            TieRules::One(Ties::Index) => {
                first
                    + positives
                        .partition_point(|p| p.key > key || (p.key == key && p.index < index))
            }
            TieRules::One(Ties::Expected) => {
                let above = above();
                2 * (first + above) + usize::from(is_tied(above))
            }
            TieRules::All => {
                let above = above();
                if !is_tied(above) {
                    return 3 * (first + above);
                }
                let before =
                    above + positives[above..].partition_point(|p| p.key == key && p.index < index);
                Self::tied_slot(first + above, first + before)
            }
        }
    }

    /// Returns the slot for all rules of a tied negative: `above` positives precede the group, and
    /// `before` the negative.
    fn tied_slot(above: usize, before: usize) -> usize {
        if before == above { 3 * above + 1 } else { 3 * before - 1 }
    }

    /// Moves a query's counts from the slots of `self` to the slots of `ties`.
    pub(crate) fn counts_under(
        self,
        ties: Ties,
        positives: &[Positive],
        counts: Vec<u64>,
    ) -> Result<Vec<u64>> {
        if self != TieRules::All {
            return Ok(counts);
        }
        let per_positive = TieRules::One(ties).slots_per_positive();
        let mut own = full(per_positive * positives.len() + 1, 0)?;
        let mut above = 0;
        for group in positives.chunk_by(|a, b| a.key == b.key) {
            let Range { start, end } = above..above + group.len();
            own[per_positive * start] += counts[3 * start];
            for before in start..=end {
                let slot = match ties {
                    Ties::Index => before,
                    Ties::Optimistic => end,
                    Ties::Pessimistic => start,
                    Ties::Expected => 2 * start + 1,
                };
                own[slot] += counts[Self::tied_slot(start, before)];
            }
            above = end;
        }
        own[per_positive * above] += counts[3 * above];
        Ok(own)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn count(rules: TieRules, positives: &[Positive], negatives: &[Positive]) -> Vec<u64> {
        let mut counts = vec![0; rules.slots_per_positive() * positives.len() + 1];
        for negative in negatives {
            counts[rules.slot(0, positives, negative.key, negative.index)] += 1;
        }
        counts
    }

    proptest! {
        #[test]
        fn counts_for_all_rules_give_those_for_each(
            keys in proptest::collection::vec((-2i8..=2, proptest::bool::ANY), 1..40),
            start in 0usize..40,
        ) {
            let items = keys.iter().zip(0..).map(|((key, is_match), index)| {
                (Positive { key: (*key).into(), index }, *is_match)
            });
            let (positives, negatives): (Vec<_>, Vec<_>) =
                items.partition(|(_, is_match)| *is_match);
            let [mut positives, negatives] = [positives, negatives]
                .map(|side| side.iter().map(|(item, _)| *item).collect::<Vec<_>>());
            positives.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            let all = count(TieRules::All, &positives, &negatives);
            for ties in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected] {
                let own = count(ties.into(), &positives, &negatives);
                prop_assert_eq!(
                    TieRules::All.counts_under(ties, &positives, all.clone()),
                    Ok(own.clone()),
                    "{:?}",
                    ties
                );
                prop_assert_eq!(
                    TieRules::One(ties).counts_under(ties, &positives, own.clone()),
                    Ok(own)
                );
            }
            // Positives with larger keys may be omitted.
            let start = start.min(positives.len());
            for negative in
                negatives.iter().filter(|n| positives[..start].iter().all(|p| p.key > n.key))
            {
                for rules in
                    [TieRules::All, TieRules::One(Ties::Expected), TieRules::One(Ties::Index)]
                {
                    let whole = rules.slot(0, &positives, negative.key, negative.index);
                    prop_assert_eq!(
                        rules.slot(start, &positives[start..], negative.key, negative.index),
                        whole
                    );
                }
            }
        }
    }
}
