//! Rules for ties, and the slots used to count a query's negatives.
//!
//! Positives are sorted by key in descending order, then by index. A negative comes after b
//! positives with larger keys, and may be tied with a *group* of positives, where j have lower
//! indices. The slot depends on the rules:
//!
//! | rules | slots per positive | not tied | tied |
//! |---|---|---|---|
//! | index | 1 | b | b + j |
//! | all | 3 | 3b | 3b + 1 if j = 0, otherwise 3(b + j) − 1 |
//!
//! Counts for all rules reveal b, j and whether a negative is tied, so they determine the ranks
//! under each rule.

use zerocopy::FromZeros;

use crate::error::{Error, Result, argument};

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
    /// The rule `index`.
    Index,
    /// Every rule.
    All,
}

impl From<Ties> for TieRules {
    fn from(ties: Ties) -> Self {
        if ties == Ties::Index { TieRules::Index } else { TieRules::All }
    }
}

impl From<&[Ties]> for TieRules {
    /// Chooses the rules that serve all of `rules` with the fewest slots.
    fn from(rules: &[Ties]) -> Self {
        if rules == [Ties::Index] { TieRules::Index } else { TieRules::All }
    }
}

impl TieRules {
    pub(crate) fn serves(self, ties: Ties) -> bool {
        self == TieRules::All || ties == Ties::Index
    }

    pub(crate) fn slots_per_positive(self) -> usize {
        if self == TieRules::Index { 1 } else { 3 }
    }

    /// Finds the slot of a negative. Positives may be omitted: `first` positives with larger keys,
    /// and any number at the end with smaller keys.
    pub(crate) fn slot(self, first: usize, positives: &[Positive], key: f64, index: u64) -> usize {
        let before =
            positives.partition_point(|p| p.key > key || (p.key == key && p.index < index));
        if self == TieRules::Index {
            return first + before;
        }
        let above = positives.partition_point(|p| p.key > key);
        if positives.get(above).is_some_and(|p| p.key == key) {
            tied_slot(first + above, first + before)
        } else {
            3 * (first + above)
        }
    }
}

/// Returns the slot for all rules of a tied negative: `above` positives precede the group, and
/// `before` the negative.
pub(crate) fn tied_slot(above: usize, before: usize) -> usize {
    if before == above { 3 * above + 1 } else { 3 * before - 1 }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positives_with_larger_keys_may_be_omitted(
            keys in proptest::collection::vec(-2i8..=2, 1..40), key in -3i8..=3,
            index in 0u64..41, start in 0usize..40,
        ) {
            let mut positives: Vec<Positive> = (0..)
                .zip(&keys)
                .map(|(i, key)| Positive { key: (*key).into(), index: 2 * i })
                .collect();
            positives.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            let key = f64::from(key);
            let start = start.min(positives.partition_point(|p| p.key > key));
            for rules in [TieRules::Index, TieRules::All] {
                prop_assert_eq!(
                    rules.slot(start, &positives[start..], key, 2 * index + 1),
                    rules.slot(0, &positives, key, 2 * index + 1)
                );
            }
        }
    }
}
