//! Computes the values of metrics per query. Under the rule `expected`, this is the mean over all
//! orders of tied items.

use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::logarithm::ln;
use crate::memory::{Grow, allocate, collect, full};
use crate::rank::grades::Grades;
use crate::rank::metric::Metric;
use crate::rank::ties::{Positive, TieRules, Ties, tied_slot};

/// The order of a query's positives (not empty). Ranks too deep to matter may be wrong, but are
/// still too deep.
pub(crate) enum Order {
    /// The ranks, in ascending order.
    Ranks(Vec<u64>),
    /// Groups of items with equal keys.
    Groups(Vec<Group>),
}

impl Order {
    /// Derives the order under the rule `ties` from the positives and complete counts, in the slots
    /// of `rules`, which must serve `ties`.
    pub fn new(
        positives: &[Positive],
        counts: &[u64],
        (rules, ties): (TieRules, Ties),
    ) -> Result<Self> {
        if rules == TieRules::Index {
            return Ok(Order::from_counts(collect(counts.iter().copied())?));
        }
        let groups = || {
            let mut end = 0;
            positives.chunk_by(|a, b| a.key == b.key).map(move |tied| {
                end += tied.len();
                end - tied.len()..end
            })
        };
        let tied = |group: &Range<usize>, before| counts[tied_slot(group.start, before)];
        if ties == Ties::Expected {
            let sizes = groups().map(|group| {
                let negatives = (group.start..=group.end).map(|before| tied(&group, before)).sum();
                (counts[3 * group.start], group.len() as u64, negatives)
            });
            return Order::from_groups(groups().count(), sizes);
        }
        let mut own = full(positives.len() + 1, 0)?;
        for group in groups() {
            own[group.start] += counts[3 * group.start];
            for before in group.start..=group.end {
                let slot = match ties {
                    Ties::Index => before,
                    Ties::Optimistic => group.end,
                    _ => group.start,
                };
                own[slot] += tied(&group, before);
            }
        }
        Ok(Order::from_counts(own))
    }

    /// Computes ranks. `counts` are the negatives before the first positive, between consecutive
    /// ones, and after the last.
    pub fn from_counts(mut counts: Vec<u64>) -> Self {
        counts.pop();
        let mut negatives = 0;
        for (count, position) in counts.iter_mut().zip(1..) {
            negatives += *count;
            *count = negatives + position;
        }
        Order::Ranks(counts)
    }

    /// Takes `number` groups in order: the negatives since the previous group, then the positives
    /// and negatives in the group.
    pub fn from_groups(
        number: usize,
        groups: impl Iterator<Item = (u64, u64, u64)>,
    ) -> Result<Self> {
        let (mut before, mut positives_before) = (0, 0);
        let mut collected = allocate(number)?;
        collected.try_extend(groups.map(|(negatives_before, positives, negatives)| {
            before += negatives_before;
            let group =
                Group { before: before + positives_before, positives_before, positives, negatives };
            before += negatives;
            positives_before += positives;
            group
        }))?;
        Ok(Order::Groups(collected))
    }

    fn positives(&self) -> usize {
        match self {
            Order::Ranks(ranks) => ranks.len(),
            Order::Groups(groups) => groups[groups.len() - 1].members().end,
        }
    }

    /// Computes the metrics. `graded` contains all positives in order, the grades, and the query's
    /// index in the grades. If the computation is cancelled, the values are arbitrary.
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
            gains
                .try_extend(positives.iter().map(|positive| grades.grade(query, positive.index)))?;
        }
        let mut sorted = collect(gains.iter().copied())?;
        sorted.sort_unstable_by(|a, b| b.total_cmp(a));
        let best = |k: u64| {
            let first = self.positives().min(k as usize);
            match graded {
                None => discounts.best(std::iter::repeat_n(1.0, first)),
                Some(_) => discounts.best(sorted[..first].iter().copied()),
            }
        };
        let r = self.positives() as u64;
        let mut so_far = (0, 0.0);
        let mut precisions = |k| self.precisions(k, &mut so_far, control);
        let value = |metric: &Metric| match *metric {
            Metric::Recall(k) => self.recall(k),
            Metric::RPrecision => self.hits(r) / r as f64,
            Metric::MapAtR => precisions(r) / r as f64,
            Metric::ReciprocalRank => self.reciprocal_rank(u64::MAX, control),
            Metric::RecallShare(k) => (self.hits(k) / r as f64).min(1.0),
            Metric::ReciprocalRankAt(k) => self.reciprocal_rank(k, control),
            Metric::Precision(k) => self.hits(k) / k as f64,
            Metric::AveragePrecisionAt(k) => precisions(k) / k.min(r) as f64,
            Metric::AveragePrecision => precisions(u64::MAX) / r as f64,
            Metric::InverseNegativePenalty => self.over_last_rank(r as f64, control),
            Metric::Ndcg(k) => (self.gain(k, &gains, discounts, control) / best(k)).min(1.0),
        };
        collect(metrics.iter().map(value))
    }

    /// Computes the probability that at least one positive is in the first `k` items.
    fn recall(&self, k: u64) -> f64 {
        match self {
            Order::Ranks(ranks) => f64::from(u8::from(ranks[0] <= k)),
            Order::Groups(groups) => groups[0].recall(k),
        }
    }

    /// Computes the expected number of positives in the first `k` items.
    fn hits(&self, k: u64) -> f64 {
        match self {
            Order::Ranks(ranks) => up_to(ranks, k).len() as f64,
            Order::Groups(groups) => within(groups, k)
                .fold(0.0, |sum, group| sum + group.places_within(k) as f64 * group.density()),
        }
    }

    /// Computes the expected sum of the precisions at the positives in the first `k` items. Ranks
    /// go on from the number of positives and the sum `so_far` of a smaller k.
    fn precisions(&self, k: u64, so_far: &mut (usize, f64), control: &Control) -> f64 {
        match self {
            Order::Ranks(ranks) => {
                let first = up_to(ranks, k);
                if first.len() < so_far.0 {
                    *so_far = (0, 0.0);
                }
                let rest = first[so_far.0..].iter().zip(so_far.0 as u64 + 1..);
                let sum = rest.fold(so_far.1, |sum, (rank, hits)| sum + hits as f64 / *rank as f64);
                *so_far = (first.len(), sum);
                sum
            }
            Order::Groups(groups) => {
                within(groups, k).fold(0.0, |sum, group| group.add_precisions(sum, k, control))
            }
        }
    }

    /// Computes the expected 1 / rank of the first positive, where ranks greater than `k` give 0.
    fn reciprocal_rank(&self, k: u64, control: &Control) -> f64 {
        match self {
            Order::Ranks(ranks) if ranks[0] > k => 0.0,
            Order::Ranks(ranks) => 1.0 / ranks[0] as f64,
            Order::Groups(groups) => {
                let first = groups[0];
                first.mean_over_outermost_rank(1.0, k, |places| first.before + places + 1, control)
            }
        }
    }

    /// Computes the expected `value` / rank of the last positive.
    fn over_last_rank(&self, value: f64, control: &Control) -> f64 {
        match self {
            Order::Ranks(ranks) => value / ranks[ranks.len() - 1] as f64,
            Order::Groups(groups) => {
                let last = groups[groups.len() - 1];
                last.mean_over_outermost_rank(
                    value,
                    u64::MAX,
                    |places| last.before + last.size() - places,
                    control,
                )
            }
        }
    }

    /// Computes the expected sum of discounted gains over the first `k` items. If `gains` is empty,
    /// the gain of a positive is 1.
    fn gain(&self, k: u64, gains: &[f64], discounts: &Discounts, control: &Control) -> f64 {
        let gain = |i: usize| gains.get(i).copied().unwrap_or(1.0);
        match self {
            Order::Ranks(ranks) => {
                let hits = up_to(ranks, k).iter().enumerate();
                hits.fold(0.0, |sum, (i, rank)| sum + gain(i) * discounts.at(*rank))
            }
            Order::Groups(groups) => within(groups, k).fold(0.0, |sum, group| {
                let gains = group.members().map(gain).sum::<f64>();
                let places = places(group.places_within(k), control);
                let discounted =
                    places.fold(0.0, |sum, place| sum + discounts.at(group.before + 1 + place));
                sum + gains / group.size() as f64 * discounted
            }),
        }
    }
}

fn up_to(ranks: &[u64], k: u64) -> &[u64] {
    &ranks[..ranks.partition_point(|rank| *rank <= k)]
}

/// Iterates over the groups that begin in the first `k` items.
fn within(groups: &[Group], k: u64) -> impl Iterator<Item = &Group> {
    groups.iter().take_while(move |group| group.before < k)
}

/// The discounts 1/log₂(i + 1) of ranks i.
pub(crate) struct Discounts(Vec<f64>);

impl Discounts {
    /// Computes the discounts for ranks from 1 to `last`.
    pub fn new(last: usize, control: &Control) -> Result<Self> {
        const BETWEEN_LOOKS: usize = 1 << 20;
        let mut discounts = allocate(last)?;
        for start in (1..=last).step_by(BETWEEN_LOOKS) {
            control.check()?;
            let ranks = start..=last.min(start + BETWEEN_LOOKS - 1);
            discounts
                .try_extend(ranks.map(|rank| std::f64::consts::LN_2 / ln((rank + 1) as f64)))?;
        }
        Ok(Discounts(discounts))
    }

    /// Returns the discount for `rank`, which must be at least 1.
    pub fn at(&self, rank: u64) -> f64 {
        self.0[rank as usize - 1]
    }

    /// Computes Σ gainᵢ · discount(i) for the gains of ranks 1, 2, ….
    pub fn best(&self, gains: impl Iterator<Item = f64>) -> f64 {
        gains.zip(&self.0).fold(0.0, |sum, (gain, discount)| sum + gain * discount)
    }
}

/// Iterates over the places in a group. Ends early when the computation is cancelled, since results
/// will then be dropped.
fn places(number: u64, control: &Control) -> impl Iterator<Item = u64> {
    const BETWEEN_LOOKS: u64 = 1 << 16;
    (0..number).take_while(|place| place % BETWEEN_LOOKS != 0 || !control.is_cancelled())
}

/// Items with equal keys, including at least one positive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
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

    /// Counts the places of this group that are in the first `k` items.
    fn places_within(&self, k: u64) -> u64 {
        k.saturating_sub(self.before).min(self.size())
    }

    /// Returns the proportion of positives in the group.
    fn density(&self) -> f64 {
        self.positives as f64 / self.size() as f64
    }

    /// Returns the range of this group's positives among all positives.
    fn members(&self) -> Range<usize> {
        self.positives_before as usize..(self.positives_before + self.positives) as usize
    }

    /// Computes the probability that a positive of this group is in the first `k` items: 1 − P(all
    /// come later).
    fn recall(&self, k: u64) -> f64 {
        let drawn = k.saturating_sub(self.before);
        if drawn > self.negatives {
            return 1.0;
        }
        // C(negatives, drawn) / C(size, drawn), as a product with `drawn` or `positives` factors,
        // whichever is less.
        let (m, t, s) = (self.negatives, self.positives, self.size());
        let none = if drawn <= t {
            (0..drawn).fold(1.0, |p, i| p * ((m - i) as f64 / (s - i) as f64))
        } else {
            (0..t).fold(1.0, |p, i| p * ((s - drawn - i) as f64 / (s - i) as f64))
        };
        1.0 - none
    }

    /// Computes the expected `value` / rank of the group's first positive or, if `rank` counts from
    /// the end, of the last. Ranks greater than `most` give 0.
    fn mean_over_outermost_rank(
        &self,
        value: f64,
        most: u64,
        rank: impl Fn(u64) -> u64,
        control: &Control,
    ) -> f64 {
        let mut mean = 0.0;
        // The probability that earlier places do not contain a positive.
        let mut none = 1.0;
        for k in places(self.negatives + 1, control) {
            let here = self.positives as f64 / (self.size() - k) as f64;
            if rank(k) <= most {
                mean += none * here * value / rank(k) as f64;
            }
            none *= 1.0 - here;
        }
        mean
    }

    /// Adds the expected precisions at the group's positives in the first `k` items, place by
    /// place.
    fn add_precisions(&self, mut precisions: f64, k: u64, control: &Control) -> f64 {
        let density = self.density();
        // Given a positive in a place, the other positives are equally likely in all other places.
        let rest = if self.size() > 1 {
            (self.positives - 1) as f64 / (self.size() - 1) as f64
        } else {
            0.0
        };
        // Compute terms in batches of 64, for SIMD, but add them one by one, because the order of
        // additions must not change.
        let mut terms = [0.0; 64];
        let (before, found) = ((self.before + 1) as f64, (self.positives_before + 1) as f64);
        let number = self.places_within(k);
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
        precisions
    }
}
