//! The value of each metric for a query: of definite ranks ([`Ranks`]), and, under the rule `expected`, the mean over all orders of
//! tied items ([`Groups`]). A new metric needs an arm in both.

use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate};
use crate::rank::gains::Discounts;
use crate::rank::metric::Metric;
use crate::rank::positive::Positive;

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

    /// Counts the group's places among the first `k` items.
    fn places_within(&self, k: u64) -> u64 {
        k.saturating_sub(self.before).min(self.size())
    }

    /// Returns the share of positives.
    fn density(&self) -> f64 {
        self.positives as f64 / self.size() as f64
    }

    /// Returns the group's positives among all, as indices.
    fn members(&self) -> Range<usize> {
        self.positives_before as usize..(self.positives_before + self.positives) as usize
    }

    /// Computes the chance that a positive is among the first K: 1 less the chance that this group's all come later.
    fn recall(&self, k: u64) -> f64 {
        let drawn = k.saturating_sub(self.before);
        if drawn > self.negatives {
            return 1.0;
        }
        // C(negatives, drawn) / C(size, drawn), as a product over the fewer of drawn and positives.
        let (m, t, s) = (self.negatives, self.positives, self.size());
        let none = if drawn <= t {
            (0..drawn).fold(1.0, |p, i| p * ((m - i) as f64 / (s - i) as f64))
        } else {
            (0..t).fold(1.0, |p, i| p * ((s - drawn - i) as f64 / (s - i) as f64))
        };
        1.0 - none
    }

    /// Computes the mean of `of` / rank, for the positive that comes first or, if `rank` counts from the end, last. Ranks beyond
    /// `most` count as 0.
    fn mean_over_outermost_rank(&self, of: f64, most: u64, rank: impl Fn(u64) -> u64, control: &Control) -> f64 {
        let mut mean = 0.0;
        // The chance that the places so far hold no positive.
        let mut none = 1.0;
        for k in places(self.negatives + 1, control) {
            let here = self.positives as f64 / (self.size() - k) as f64;
            if rank(k) <= most {
                mean += none * here * of / rank(k) as f64;
            }
            none *= 1.0 - here;
        }
        mean
    }

    /// Computes the mean of 1 / rank of the first positive; 0 beyond the first K.
    fn reciprocal_rank(&self, k: u64, control: &Control) -> f64 {
        self.mean_over_outermost_rank(1.0, k, |places| self.before + places + 1, control)
    }
}

/// Iterates over the places of a group; none follow once the computation is cancelled, and its results are then dropped.
fn places(number: u64, control: &Control) -> impl Iterator<Item = u64> {
    const BETWEEN_LOOKS: u64 = 1 << 16;
    (0..number).take_while(|place| place % BETWEEN_LOOKS != 0 || !control.is_cancelled())
}

/// A query's positives by key, with the negatives tied with them. Groups beyond the counts' depth may be too early, but stay
/// beyond it.
pub(crate) struct Groups {
    groups: Vec<Group>,
    positives: u64,
}

impl Groups {
    /// Groups at least one positive by complete counts, in the slots of expected ties.
    pub fn new(positives: &[Positive], slots: &[u64]) -> Result<Self> {
        let mut at = 0;
        let tied = |a: &Positive, b: &Positive| a.key == b.key;
        let number = positives.chunk_by(tied).count();
        Self::of(
            number,
            positives.chunk_by(tied).map(|tied| {
                let [before, own] = [slots[2 * at], slots[2 * at + 1]];
                at += tied.len();
                (before, tied.len() as u64, own)
            }),
        )
    }

    /// Takes so many groups in order: the negatives before each and after the last, its positives, and its negatives.
    pub fn of(number: usize, groups: impl Iterator<Item = (u64, u64, u64)>) -> Result<Self> {
        let (mut before, mut positives_before) = (0, 0);
        let mut collected = allocate(number)?;
        collected.try_extend(groups.map(|(negatives_before, positives, negatives)| {
            before += negatives_before;
            let group = Group { before: before + positives_before, positives_before, positives, negatives };
            before += negatives;
            positives_before += positives;
            group
        }))?;
        Ok(Groups { groups: collected, positives: positives_before })
    }

    /// Returns the number of positives.
    pub fn positives(&self) -> usize {
        self.positives as usize
    }

    fn within(&self, k: u64) -> impl Iterator<Item = &Group> {
        self.groups.iter().take_while(move |group| group.before < k)
    }

    /// Computes the mean number of positives among the first `k` items.
    fn hits(&self, k: u64) -> f64 {
        self.within(k).fold(0.0, |sum, group| sum + group.places_within(k) as f64 * group.density())
    }

    /// Computes the mean of the sum of the precisions at the positives among the first `k` items.
    fn precisions(&self, k: u64, control: &Control) -> f64 {
        let mut precisions = 0.0;
        for group in self.within(k) {
            let density = group.density();
            // Given a positive at the group's k-th place, the rest are equally likely at each other place.
            let rest = if group.size() > 1 { (group.positives - 1) as f64 / (group.size() - 1) as f64 } else { 0.0 };
            // Terms are computed side by side, which their order of addition doesn't allow of the sum. Whole numbers are exact.
            let mut terms = [0.0; 64];
            let (before, found) = ((group.before + 1) as f64, (group.positives_before + 1) as f64);
            let number = group.places_within(k);
            for start in (0..number).step_by(terms.len()) {
                if start % (1 << 16) == 0 && control.is_cancelled() {
                    break;
                }
                let terms = &mut terms[..(number - start).min(64) as usize];
                for (i, term) in (0u32..).zip(terms.iter_mut()) {
                    let place = start as f64 + f64::from(i);
                    *term = density * (found + place * rest) / (before + place);
                }
                precisions = terms.iter().fold(precisions, |sum, term| sum + term);
            }
        }
        precisions
    }

    /// Computes the mean of a metric, given the gain of each positive, and the sum of discounted gains of the best order; any
    /// number once the computation is cancelled.
    pub fn value(
        &self,
        metric: Metric,
        discounts: &Discounts,
        gain: impl Fn(usize) -> f64,
        best: impl Fn(u64) -> f64,
        control: &Control,
    ) -> f64 {
        let (r, first, last) = (self.positives, self.groups[0], self.groups[self.groups.len() - 1]);
        match metric {
            Metric::Recall(k) => first.recall(k),
            Metric::RPrecision => self.hits(r) / r as f64,
            Metric::MapAtR => self.precisions(r, control) / r as f64,
            Metric::ReciprocalRank => first.reciprocal_rank(u64::MAX, control),
            Metric::RecallShare(k) => (self.hits(k) / r as f64).min(1.0),
            Metric::ReciprocalRankAt(k) => first.reciprocal_rank(k, control),
            Metric::Precision(k) => self.hits(k) / k as f64,
            Metric::AveragePrecisionAt(k) => self.precisions(k, control) / k.min(r) as f64,
            Metric::AveragePrecision => self.precisions(u64::MAX, control) / r as f64,
            Metric::InverseNegativePenalty => {
                last.mean_over_outermost_rank(r as f64, u64::MAX, |k| last.before + last.size() - k, control)
            }
            Metric::Ndcg(k) => {
                let sum = self.within(k).fold(0.0, |sum, group| {
                    let gains = group.members().map(&gain).sum::<f64>();
                    let places = places(group.places_within(k), control);
                    let discounted = places.fold(0.0, |sum, place| sum + discounts.at(group.before + 1 + place));
                    sum + gains / group.size() as f64 * discounted
                });
                (sum / best(k)).min(1.0)
            }
        }
    }
}
