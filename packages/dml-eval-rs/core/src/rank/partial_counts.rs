//! The partial result of an evaluation: every query's positives in order, and the negatives counted between them.
//!
//! Every metric depends on the ranks of a query's positives alone, and a rank is a count. Each negative is counted in one of its
//! query's *slots*: slot b holds those that b positives come before. Counts add up, so the order of work does not matter, and
//! the counts of a gallery's parts add up to those of the whole.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::error::{Error, Result, argument};
use crate::memory::{collect, zeros};
use crate::peers::{Peers, reduce};
use crate::rank::metric::Metric;
use crate::rank::split::split;

/// The order of a match and a non-match with the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The lower gallery index first.
    Index,
    /// The match first.
    Optimistic,
    /// The non-match first.
    Pessimistic,
    /// Neither: metrics are means over all orders of tied items.
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
            _ => argument(format!("unknown ties {name:?}; expected index, optimistic, pessimistic or expected")),
        }
    }
}

/// A gallery item with the query's label.
#[derive(Clone, Copy, Debug, FromZeros, PartialEq)]
pub struct Positive {
    /// The key that orders the gallery: larger is nearer.
    pub key: f64,
    /// Its index in the whole gallery.
    pub index: u64,
}

/// Positives and counts of some queries.
#[derive(Debug)]
pub struct PartialCounts {
    pub(crate) ties: Ties,
    /// The last rank that matters to a metric, where it is beyond R.
    depth: u64,
    /// The start of each query's positives, and the end of the last.
    pub(crate) offsets: Vec<usize>,
    /// By key, descending; of equal keys the lower index first.
    positives: Vec<Positive>,
    slots: Vec<AtomicU64>,
}

impl PartialCounts {
    /// Bytes of one positive, here and in a `ScreenCounter`.
    pub(crate) const BYTES_PER_POSITIVE: usize = size_of::<Positive>() + 8 + 2 * 8;

    /// Sorts the positives of each query and takes the counts so far.
    ///
    /// The counts suffice for these metrics. `offsets` delimits each query's part of `positives`; `counts` holds earlier counts of
    /// the same positives, or is empty.
    pub fn new(
        ties: Ties,
        metrics: &[Metric],
        offsets: Vec<usize>,
        mut positives: Vec<Positive>,
        counts: &[u64],
    ) -> Result<Self> {
        let valid = offsets.first() == Some(&0) && offsets.last() == Some(&positives.len()) && offsets.is_sorted();
        if !valid {
            return argument(format!(
                "offsets do not delimit {} positives; expected ascending numbers from 0 to that number",
                positives.len()
            ));
        }
        split(&mut positives, &offsets)?.into_par_iter().with_min_len(64).for_each(|part| {
            part.sort_unstable_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
        });
        let depth = metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
        let mut partial = PartialCounts { ties, depth, offsets, positives, slots: Vec::new() };
        let slots = partial.slots_per_positive() * partial.positives.len() + partial.queries();
        if !(counts.is_empty() || counts.len() == slots) {
            return argument(format!("counts has {} entries; expected {slots}, or none", counts.len()));
        }
        partial.slots =
            if counts.is_empty() { zeros(slots)? } else { collect(counts.iter().copied().map(AtomicU64::new))? };
        Ok(partial)
    }

    pub(crate) fn slots_per_positive(&self) -> usize {
        if self.ties == Ties::Expected { 2 } else { 1 }
    }

    /// Returns the number of queries.
    pub fn queries(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Returns the positives of the `q`-th query.
    pub fn positives(&self, q: usize) -> &[Positive] {
        &self.positives[self.offsets[q]..self.offsets[q + 1]]
    }

    /// Returns the counts of the `q`-th query.
    ///
    /// Slot b (with expected ties, 2b) holds the negatives right after b positives. With expected ties slot 2b + 1 holds those
    /// that are tied with the group of positives beginning with the b-th.
    pub(crate) fn slots(&self, q: usize) -> &[AtomicU64] {
        let per_positive = self.slots_per_positive();
        &self.slots[per_positive * self.offsets[q] + q..per_positive * self.offsets[q + 1] + q + 1]
    }

    /// Copies all counts, query by query.
    pub fn counts(&self) -> Result<Vec<u64>> {
        collect(self.slots.iter().map(|c| c.load(Relaxed)))
    }

    /// Adds the counts of the peers, all of which had the counts `shared` before. Updates `shared`.
    pub(crate) fn exchange(&self, shared: &mut [u64], peers: &dyn Peers) -> Result<()> {
        let new = collect(self.slots.iter().zip(&*shared).map(|(slot, before)| slot.load(Relaxed) - before))?;
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
        self.slot_in(q, 0..self.positives(q).len(), key, index)
    }

    /// Finds the slot of a negative, given that all positives before `range` have larger keys and all after it smaller ones.
    pub(crate) fn slot_in(&self, q: usize, range: Range<usize>, key: f64, index: u64) -> usize {
        let (first, positives) = (range.start, &self.positives(q)[range]);
        match self.ties {
            Ties::Pessimistic => first + positives.partition_point(|p| p.key > key),
            Ties::Optimistic => first + positives.partition_point(|p| p.key >= key),
            Ties::Index => first + positives.partition_point(|p| p.key > key || (p.key == key && p.index < index)),
            Ties::Expected => {
                let above = positives.partition_point(|p| p.key > key);
                2 * (first + above) + usize::from(positives.get(above).is_some_and(|p| p.key == key))
            }
        }
    }

    /// Returns the last rank that matters to a metric other than by the first positive.
    pub(crate) fn last_rank(&self, q: usize) -> u64 {
        self.depth.max(self.positives(q).len() as u64)
    }

    /// Whether no rank is too deep for a metric.
    pub(crate) fn every_rank_matters(&self) -> bool {
        self.depth == u64::MAX
    }

    /// Counts the *active* ones of the first `at_most` positives: those whose ranks still matter, given the counts so far.
    ///
    /// A rank beyond R and the metrics' depth matters to no metric, except the first positive's (reciprocal rank, Recall@K).
    /// Counts only grow, so a positive that is inactive once stays so.
    pub(crate) fn count_active(&self, q: usize, at_most: usize) -> usize {
        if self.every_rank_matters() {
            return at_most;
        }
        let positives = self.positives(q);
        let (slots, per_positive) = (self.slots(q), self.slots_per_positive());
        let last = self.last_rank(q);
        let tied = |i: usize| self.ties == Ties::Expected && positives[i].key == positives[i - 1].key;
        let sum = |slots: &[AtomicU64]| slots.iter().map(|c| c.load(Relaxed)).sum::<u64>();
        let mut negatives = sum(&slots[..1]);
        for i in 1..at_most {
            negatives += sum(&slots[per_positive * (i - 1) + 1..=per_positive * i]);
            if !tied(i) && i as u64 + 1 + negatives > last {
                return i;
            }
        }
        at_most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIES: [Ties; 4] = [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected];

    /// Three positives of one query, two of them tied.
    fn counts(ties: Ties, slots: &[u64]) -> PartialCounts {
        let positives = [(2.0, 0), (1.0, 1), (1.0, 2)].map(|(key, index)| Positive { key, index });
        PartialCounts::new(ties, &[], vec![0, 3], positives.to_vec(), slots).unwrap()
    }

    /// Lists all counts from 0 to `most` of so many slots.
    fn all_counts(slots: usize, most: u64) -> Vec<Vec<u64>> {
        (0..slots).fold(vec![vec![]], |lists, _| {
            lists.iter().flat_map(|list| (0..=most).map(move |n| [list.as_slice(), &[n]].concat())).collect()
        })
    }

    /// A thread that reads the slots while others add to them sees any mixture of earlier and later counts, since the reads are
    /// relaxed. Each count that it sees is at most the final one, so this covers every interleaving and every reordering.
    #[test]
    fn a_positive_inactive_in_any_view_of_the_counts_is_inactive_in_the_end() {
        for ties in TIES {
            let slots = if ties == Ties::Expected { 7 } else { 4 };
            let most = if ties == Ties::Expected { 1 } else { 3 };
            let lists = all_counts(slots, most);
            let active: Vec<usize> = lists.iter().map(|list| counts(ties, list).count_active(0, 3)).collect();
            assert!(active.contains(&1) && active.contains(&3));
            for (seen, active_seen) in lists.iter().zip(&active) {
                for (last, active_last) in lists.iter().zip(&active) {
                    let earlier = seen.iter().zip(last).all(|(seen, last)| seen <= last);
                    assert!(!earlier || active_last <= active_seen, "{ties:?} {seen:?} {last:?}");
                    // A search that begins where an earlier view ended finds the same.
                    assert!(!earlier || counts(ties, last).count_active(0, *active_seen) == *active_last);
                }
            }
        }
    }

    #[test]
    fn threads_that_count_at_once_lose_no_negative_and_see_active_positives_become_fewer() {
        const EACH: u64 = 20_000;
        for ties in TIES {
            let shared = counts(ties, &[]);
            std::thread::scope(|scope| {
                for thread in 0..4 {
                    let shared = &shared;
                    scope.spawn(move || {
                        let mut active = 3;
                        for i in 0..EACH {
                            // Slowly from the last slot to the first, so that positives become inactive one by one.
                            let key = [0.5, 1.0, 1.5, 2.5][(4 * i / EACH) as usize];
                            shared.add(0, shared.slot(0, key, 9 + thread), 1);
                            let now = shared.count_active(0, 3);
                            assert!(now <= active);
                            active = now;
                        }
                    });
                }
            });
            assert_eq!(shared.counts().unwrap().iter().sum::<u64>(), 4 * EACH);
            assert_eq!(shared.slots(0)[0].load(Relaxed), EACH);
            assert_eq!(shared.count_active(0, 3), 1);
        }
    }
}
