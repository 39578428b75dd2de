//! What an evaluation has found so far: every query's positives in order, and the negatives counted between them.
//!
//! All of the metrics depend on the ranks of a query's positives alone, and a rank is a count. A negative is put into one of a
//! query's *slots*: slot b holds those that b positives come before. Counts add up, so the order of work cannot matter, and
//! the books of several parts of a gallery are the books of the whole.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::error::{Error, Result, argument};
use crate::memory::{collected, room};
use crate::peers::Peers;

/// Which of a match and a non-match with the same key comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ties {
    /// The one with the lower gallery index.
    Index,
    /// The match.
    Optimistic,
    /// The non-match.
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
            _ => argument(format!("ties is {name:?}; expected 'index', 'optimistic', 'pessimistic' or 'expected'")),
        }
    }
}

/// A gallery item with the query's label.
#[derive(Clone, Copy, Debug, FromZeros, PartialEq)]
pub struct Positive {
    /// What orders the gallery: larger is nearer.
    pub key: f64,
    /// Its index in the whole gallery.
    pub index: u64,
}

/// Positives and counts of some queries.
#[derive(Debug)]
pub struct Books {
    pub(crate) ties: Ties,
    /// Where each query's positives begin; one more at the end.
    pub(crate) offsets: Vec<usize>,
    /// By key, descending; of equal keys the lower index first.
    positives: Vec<Positive>,
    slots: Vec<AtomicU64>,
}

impl Books {
    /// Bytes that one positive takes, here and in a ledger.
    pub(crate) const BYTES_PER_POSITIVE: usize = size_of::<Positive>() + 8 + 2 * 8;

    /// Opens the books. `offsets` delimits each query's part of `positives`, which is put in order here; `counts` holds what
    /// was counted before, or is empty.
    pub fn open(ties: Ties, offsets: Vec<usize>, mut positives: Vec<Positive>, counts: &[u64]) -> Result<Self> {
        let sound = offsets.first() == Some(&0) && offsets.last() == Some(&positives.len()) && offsets.is_sorted();
        if !sound {
            return argument(format!(
                "offsets do not delimit {} positives; expected numbers from 0 up to that, none falling",
                positives.len()
            ));
        }
        let mut parts = room(offsets.len() - 1)?;
        let mut rest = positives.as_mut_slice();
        for part in offsets.windows(2) {
            let (own, after) = rest.split_at_mut(part[1] - part[0]);
            parts.push(own);
            rest = after;
        }
        parts.into_par_iter().with_min_len(64).for_each(|part| {
            part.sort_unstable_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
        });
        let mut books = Books { ties, offsets, positives, slots: Vec::new() };
        let slots = books.wide() * books.positives.len() + books.queries();
        if !(counts.is_empty() || counts.len() == slots) {
            return argument(format!("there are {} counts; expected {slots}, or none", counts.len()));
        }
        books.slots = collected((0..slots).map(|i| AtomicU64::new(counts.get(i).copied().unwrap_or(0))))?;
        Ok(books)
    }

    /// Slots a positive.
    pub(crate) fn wide(&self) -> usize {
        if self.ties == Ties::Expected { 2 } else { 1 }
    }

    /// The number of queries.
    pub fn queries(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The positives of the `q`-th query of these books.
    pub fn positives(&self, q: usize) -> &[Positive] {
        &self.positives[self.offsets[q]..self.offsets[q + 1]]
    }

    /// The counts of the `q`-th query. Slot b (with expected ties, 2b) holds the negatives that come right after b positives;
    /// with expected ties slot 2b + 1 holds those that are tied with the group of positives beginning with the b-th.
    pub(crate) fn slots(&self, q: usize) -> &[AtomicU64] {
        &self.slots[self.wide() * self.offsets[q] + q..self.wide() * self.offsets[q + 1] + q + 1]
    }

    /// All counts, query by query.
    pub fn counts(&self) -> Result<Vec<u64>> {
        collected(self.slots.iter().map(|c| c.load(Relaxed)))
    }

    /// Adds what the peers have counted in the same books since all had the counts `shared`, which are brought up to date.
    pub(crate) fn add_up(&self, shared: &mut [u64], peers: &dyn Peers) -> Result<()> {
        let new = collected(self.slots.iter().zip(&*shared).map(|(slot, before)| slot.load(Relaxed) - before))?;
        for ((slot, shared), counted) in self.slots.iter().zip(shared).zip(peers.sum(&new)?) {
            *shared += counted;
            slot.store(*shared, Relaxed);
        }
        Ok(())
    }

    pub(crate) fn count(&self, q: usize, slot: usize, negatives: u64) {
        self.slots(q)[slot].fetch_add(negatives, Relaxed);
    }

    /// The slot of a negative with this key and index.
    pub(crate) fn slot(&self, q: usize, key: f64, index: u64) -> usize {
        self.slot_among(q, 0..self.positives(q).len(), key, index)
    }

    /// The same, where it is known that all positives before `range` have larger keys, and all after it smaller ones.
    pub(crate) fn slot_among(&self, q: usize, range: Range<usize>, key: f64, index: u64) -> usize {
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

    /// How many of the first `active` positives still matter, by what is counted so far.
    ///
    /// A positive's rank beyond R matters to no metric, save the first one's (reciprocal rank, Recall@K). Counts only grow, so
    /// that one seen early is safe.
    pub(crate) fn still_active(&self, q: usize, active: usize) -> usize {
        let positives = self.positives(q);
        let (slots, wide) = (self.slots(q), self.wide());
        let tied = |i: usize| self.ties == Ties::Expected && positives[i].key == positives[i - 1].key;
        let count = |slots: &[AtomicU64]| slots.iter().map(|c| c.load(Relaxed)).sum::<u64>();
        let mut negatives = count(&slots[..1]);
        for i in 1..active {
            negatives += count(&slots[wide * (i - 1) + 1..=wide * i]);
            if !tied(i) && i as u64 + 1 + negatives > positives.len() as u64 {
                return i;
            }
        }
        active
    }
}
