//! The partial result of an evaluation: the positives per query in order, and the numbers of
//! negatives in between.
//!
//! Metrics depend only on the ranks of positives, and a rank is a count. A negative is counted in a
//! *slot* of the query, which is chosen by the positives before the negative (see `TieRules`).
//! Counts can be added, so work may be done in any order, and the counts of the parts of a gallery
//! add up to the counts of the gallery.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::error::{Result, argument};
use crate::memory::{Grow, allocate, collect, zeros};
use crate::peers::{Peers, reduce};
use crate::rank::metric::Metric;
use crate::rank::ties::{Positive, TieRules, Ties};

/// Splits an array into parts that threads can write to. `offsets` contains the starts, then the
/// end of the last part.
pub(crate) fn split<'a, T>(all: &'a mut [T], offsets: &[usize]) -> Result<Vec<&'a mut [T]>> {
    let mut parts = allocate(offsets.len() - 1)?;
    let mut rest = all;
    for part in offsets.windows(2) {
        let (own, after) = rest.split_at_mut(part[1] - part[0]);
        parts.try_push(own)?;
        rest = after;
    }
    Ok(parts)
}

/// Positives and counts of some queries.
#[derive(Debug)]
pub struct PartialCounts {
    pub(crate) rules: TieRules,
    pub(crate) slots_per_positive: usize,
    /// The last rank that matters to a metric, if this is greater than R.
    depth: u64,
    /// The start of the positives per query, then the end for the last query.
    pub(crate) offsets: Vec<usize>,
    /// The positives per query, sorted by key in descending order, ties by index.
    positives: Vec<Positive>,
    slots: Vec<AtomicU64>,
}

impl PartialCounts {
    /// Returns the bytes per positive, in this struct and a `ScreenCounter`.
    pub(crate) fn bytes_per_positive(rules: TieRules) -> usize {
        size_of::<Positive>() + 8 + 8 * rules.slots_per_positive()
    }

    /// Sorts the positives per query, then continues from `counts`.
    ///
    /// The final counts can be used for these rules and metrics. `offsets` delimits the positives
    /// per query. `counts` are earlier counts for these positives, or empty to start from 0.
    pub fn new(
        rules: impl Into<TieRules>,
        metrics: &[Metric],
        offsets: Vec<usize>,
        mut positives: Vec<Positive>,
        counts: &[u64],
    ) -> Result<Self> {
        let valid = offsets.first() == Some(&0)
            && offsets.last() == Some(&positives.len())
            && offsets.is_sorted();
        if !valid {
            return argument(format!(
                "offsets don't delimit {} positives; expected ascending numbers from 0 to the \
                 number of positives",
                positives.len()
            ));
        }
        split(&mut positives, &offsets)?.into_par_iter().with_min_len(64).for_each(|part| {
            part.sort_unstable_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
        });
        let depth = metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
        let rules = rules.into();
        let slots_per_positive = rules.slots_per_positive();
        let mut partial = PartialCounts {
            rules,
            slots_per_positive,
            depth,
            offsets,
            positives,
            slots: Vec::new(),
        };
        let slots = partial.slots_per_positive * partial.positives.len() + partial.queries();
        if !(counts.is_empty() || counts.len() == slots) {
            return argument(format!(
                "counts has {} entries; expected {slots}, or none to start from 0",
                counts.len()
            ));
        }
        partial.slots = if counts.is_empty() {
            zeros(slots)?
        } else {
            collect(counts.iter().copied().map(AtomicU64::new))?
        };
        Ok(partial)
    }

    /// Returns the number of queries.
    pub fn queries(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the positives of the `q`-th query.
    pub fn positives(&self, q: usize) -> &[Positive] {
        &self.positives[self.offsets[q]..self.offsets[q + 1]]
    }

    /// Returns the counts of the `q`-th query, in the slots of `self.rules`.
    pub(crate) fn slots(&self, q: usize) -> &[AtomicU64] {
        let per_positive = self.slots_per_positive;
        &self.slots[per_positive * self.offsets[q] + q..per_positive * self.offsets[q + 1] + q + 1]
    }

    /// Checks that the counts can be used under a rule for ties.
    pub(crate) fn check(&self, ties: Ties) -> Result<()> {
        if !self.rules.serves(ties) {
            return argument(format!(
                "counts serves only {:?}; expected counts that also serve {ties:?}",
                self.rules
            ));
        }
        Ok(())
    }

    /// Copies all counts, query by query.
    pub fn counts(&self) -> Result<Vec<u64>> {
        collect(self.slots.iter().map(|c| c.load(Relaxed)))
    }

    /// Adds the negatives that peers counted since the last exchange, and updates `shared`, the
    /// counts after an exchange.
    pub(crate) fn exchange(&self, shared: &mut [u64], peers: &dyn Peers) -> Result<()> {
        let new = collect(
            self.slots.iter().zip(&*shared).map(|(slot, before)| slot.load(Relaxed) - before),
        )?;
        for ((slot, shared), counted) in self.slots.iter().zip(shared).zip(reduce(peers, &new)?) {
            *shared += counted;
            slot.store(*shared, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn add(&self, q: usize, slot: usize, negatives: u64) {
        self.slots(q)[slot].fetch_add(negatives, Relaxed);
    }

    /// Finds the slot of a negative with this key and index.
    pub(crate) fn slot(&self, q: usize, key: f64, index: u64) -> usize {
        self.rules.slot(0, self.positives(q), key, index)
    }

    /// Returns the last rank that matters. The first positive's rank can matter even if it is
    /// greater.
    pub(crate) fn last_rank(&self, q: usize) -> u64 {
        self.depth.max(self.positives(q).len() as u64)
    }

    /// Returns the rank of the `i`-th positive (from 0), given the counts so far.
    pub(crate) fn rank(&self, q: usize, i: usize) -> u64 {
        let before = &self.slots(q)[..=self.slots_per_positive * i];
        i as u64 + 1 + before.iter().map(|count| count.load(Relaxed)).sum::<u64>()
    }

    /// Whether some metric needs all ranks.
    pub(crate) fn every_rank_matters(&self) -> bool {
        self.depth == u64::MAX
    }

    /// Counts the *active* positives in the first `at_most`: those with ranks that can still
    /// matter, given the counts so far.
    ///
    /// A rank above both R and the depth of the metrics never matters, unless it is the first
    /// positive's (reciprocal rank, Recall@K). Counts only grow, so an inactive positive will stay
    /// inactive.
    ///
    /// With counts for `expected` or for all rules, the end of a group of tied positives may become
    /// inactive. If the group's first positive is still active, negatives above the group or tied
    /// with it are still counted, and only these decide the ranks in the group, under any rule.
    /// Later groups come after the inactive positive and the negatives that made it inactive, so
    /// their ranks don't matter. A negative below the active positives doesn't matter, even if it
    /// is counted.
    pub(crate) fn count_active(&self, q: usize, at_most: usize) -> usize {
        if self.every_rank_matters() {
            return at_most;
        }
        let (slots, per_positive) = (self.slots(q), self.slots_per_positive);
        let last = self.last_rank(q);
        let sum = |slots: &[AtomicU64]| slots.iter().map(|c| c.load(Relaxed)).sum::<u64>();
        let mut negatives = sum(&slots[..1]);
        for i in 1..at_most {
            negatives += sum(&slots[per_positive * (i - 1) + 1..=per_positive * i]);
            if i as u64 + 1 + negatives > last {
                return i;
            }
        }
        at_most
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::Control;
    use crate::rank::metrics::PerQuery;

    const RULES: [TieRules; 2] = [TieRules::Index, TieRules::All];

    /// Returns counts for a query with three positives. The second and the third are tied.
    fn counts(rules: TieRules, slots: &[u64]) -> PartialCounts {
        let positives = [(2.0, 0), (1.0, 1), (1.0, 2)].map(|(key, index)| Positive { key, index });
        PartialCounts::new(rules, &[], vec![0, 3], positives.to_vec(), slots).unwrap()
    }

    /// Lists all ways to fill `slots` with counts from 0 to `most`.
    fn all_counts(slots: usize, most: u64) -> Vec<Vec<u64>> {
        (0..slots).fold(vec![vec![]], |lists, _| {
            lists
                .iter()
                .flat_map(|list| (0..=most).map(move |n| [list.as_slice(), &[n]].concat()))
                .collect()
        })
    }

    /// A thread may read the slots while others write, with relaxed ordering, and so see any
    /// mixture of earlier and later counts. Counts seen are at most the final counts, so comparing
    /// all pairs of counts covers every interleaving and reordering.
    #[test]
    fn a_positive_inactive_in_any_view_of_the_counts_is_inactive_in_the_end() {
        for rules in RULES {
            let slots = 3 * rules.slots_per_positive() + 1;
            let most = if slots == 4 { 3 } else { 1 };
            let lists = all_counts(slots, most);
            let active: Vec<usize> =
                lists.iter().map(|list| counts(rules, list).count_active(0, 3)).collect();
            assert!(active.contains(&1) && active.contains(&3));
            for (seen, active_seen) in lists.iter().zip(&active) {
                for (last, active_last) in lists.iter().zip(&active) {
                    let earlier = seen.iter().zip(last).all(|(seen, last)| seen <= last);
                    assert!(!earlier || active_last <= active_seen, "{rules:?} {seen:?} {last:?}");
                    // A search that continues from an earlier view must find the same number.
                    assert!(
                        !earlier
                            || counts(rules, last).count_active(0, *active_seen) == *active_last
                    );
                }
            }
        }
    }

    proptest! {
        /// Counters search only the active positives. A negative below these is omitted or counted
        /// after the last one.
        #[test]
        fn no_metric_depends_on_the_negatives_below_active_positives(
            mut items in proptest::collection::vec(
                (-2i8..=2, any::<bool>(), any::<bool>(), any::<bool>()),
                1..30,
            ),
            order in any::<prop::sample::Index>(), depth in 0u64..8,
        ) {
            items[0].1 = true;
            let metrics = [
                Metric::Recall(3),
                Metric::RPrecision,
                Metric::MapAtR,
                Metric::ReciprocalRank,
                Metric::RecallShare(depth + 1),
                Metric::ReciprocalRankAt(9),
                Metric::Precision(depth + 1),
                Metric::AveragePrecisionAt(depth + 1),
                Metric::Ndcg(depth + 1),
            ];
            let metrics = &metrics[..if depth == 0 { 4 } else { metrics.len() }];
            let item = |(place, &(key, ..)): (usize, &(i8, bool, bool, bool))| Positive {
                key: key.into(),
                index: place as u64,
            };
            let positives: Vec<_> = items
                .iter()
                .enumerate()
                .filter(|(_, (_, is_match, ..))| *is_match)
                .map(item)
                .collect();
            let number = positives.len();
            let start = order.index(items.len());
            for rules in RULES {
                let new = || {
                    PartialCounts::new(rules, metrics, vec![0, number], positives.clone(), &[])
                        .unwrap()
                };
                let (complete, partial) = (new(), new());
                let mut active = number;
                for at in (start..items.len()).chain(0..start) {
                    let (key, is_match, looks, omits) = items[at];
                    if is_match {
                        continue;
                    }
                    let (key, index) = (f64::from(key), at as u64);
                    complete.add(0, complete.slot(0, key, index), 1);
                    if key >= partial.positives(0)[active - 1].key {
                        let slot = rules.slot(0, &partial.positives(0)[..active], key, index);
                        partial.add(0, slot, 1);
                    } else if !omits {
                        partial.add(0, partial.slots_per_positive * active, 1);
                    }
                    if looks {
                        active = partial.count_active(0, active);
                    }
                }
                for ties in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected] {
                    let values = |counts: &PartialCounts| {
                        let mut values = PerQuery::new(1, metrics).unwrap();
                        values.compute(counts, ties, 0, None, &Control::default()).unwrap();
                        values
                    };
                    prop_assert_eq!(complete.check(ties).is_ok(), rules.serves(ties));
                    if rules.serves(ties) {
                        prop_assert_eq!(
                            values(&partial),
                            values(&complete),
                            "{:?} {:?}",
                            rules,
                            ties
                        );
                    }
                }
            }
        }
    }
}
