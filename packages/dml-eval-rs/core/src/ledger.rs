//! The books of an evaluation: every query's positives in order, and how many negatives fall between them.
//!
//! All of the metrics depend on the ranks of a query's positives alone, and a rank is a count. A negative is put into one of a
//! query's *slots*: slot b holds those that b positives come before. Counts add up, so the order of work cannot matter.
//!
//! A positive's rank beyond R matters to no metric, save the first one's (reciprocal rank, Recall@K). So once the counts show
//! that a positive's rank is beyond R it is dropped, which raises the threshold that a negative has to pass to be looked at.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::error::{Error, Result};
use crate::kernel::Found;
use crate::space::{Scratch, Side, Space, round_down, round_up};
use crate::traverse::{Observer, Task};

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
            _ => Err(Error::Argument(format!(
                "ties is {name:?}; expected 'index', 'optimistic', 'pessimistic' or 'expected'"
            ))),
        }
    }
}

/// A gallery item with the query's label.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Positive {
    pub key: f64,
    pub index: u32,
}

/// The books of the queries `first_query..first_query + len`.
pub(crate) struct Ledger<'a> {
    pub ties: Ties,
    first_query: usize,
    query_labels: &'a [u32],
    gallery_labels: &'a [u32],
    /// Where each query's positives begin; one more at the end.
    offsets: Vec<usize>,
    /// By key, descending; of equal keys the lower index first.
    positives: Vec<Positive>,
    /// The positives' values, in the units of the screen.
    values: Vec<f64>,
    slots: Vec<AtomicU32>,
    /// How many of a query's positives still matter: always a prefix of them, and at least the first.
    active: Vec<AtomicU32>,
    /// Negatives counted since `active` was last brought up to date.
    fresh: Vec<AtomicU32>,
}

impl<'a> Ledger<'a> {
    /// Bytes that one positive takes.
    pub const BYTES_PER_POSITIVE: usize = size_of::<Positive>() + 8 + 2 * 4;

    /// Opens the books. `positives` holds, query by query, what `offsets` delimits, each query's part in order.
    pub fn open<S: Space>(
        space: &S,
        ties: Ties,
        first_query: usize,
        labels: (&'a [u32], &'a [u32]),
        offsets: Vec<usize>,
        positives: Vec<Positive>,
    ) -> Self {
        let queries = offsets.len() - 1;
        let mut values = Vec::with_capacity(positives.len());
        for q in 0..queries {
            values.extend(positives[offsets[q]..offsets[q + 1]].iter().map(|p| space.value(first_query + q, p.key)));
        }
        let zeros = |n: usize| (0..n).map(|_| AtomicU32::new(0)).collect::<Vec<_>>();
        let wide = if ties == Ties::Expected { 2 } else { 1 };
        let active = (0..queries).map(|q| AtomicU32::new((offsets[q + 1] - offsets[q]) as u32)).collect();
        let slots = zeros(wide * positives.len() + queries);
        let (query_labels, gallery_labels) = labels;
        Ledger {
            ties,
            first_query,
            query_labels,
            gallery_labels,
            offsets,
            positives,
            values,
            slots,
            active,
            fresh: zeros(queries),
        }
    }

    pub fn queries(&self) -> usize {
        self.offsets.len() - 1
    }

    /// The positives of the `q`-th query of these books.
    pub fn positives(&self, q: usize) -> &[Positive] {
        &self.positives[self.offsets[q]..self.offsets[q + 1]]
    }

    fn slots(&self, q: usize) -> &[AtomicU32] {
        let wide = if self.ties == Ties::Expected { 2 } else { 1 };
        &self.slots[wide * self.offsets[q] + q..wide * self.offsets[q + 1] + q + 1]
    }

    /// The counts of the `q`-th query. Slot b (with expected ties, 2b) holds the negatives that come right after b positives;
    /// with expected ties slot 2b + 1 holds those that are tied with the group of positives beginning with the b-th.
    pub fn counts(&self, q: usize) -> impl ExactSizeIterator<Item = u64> + '_ {
        self.slots(q).iter().map(|c| u64::from(c.load(Relaxed)))
    }

    /// The slot of a negative with this key and index.
    fn slot(&self, q: usize, key: f64, index: u32) -> usize {
        let positives = self.positives(q);
        let above = positives.partition_point(|p| p.key > key);
        match self.ties {
            Ties::Pessimistic => above,
            Ties::Optimistic => positives.partition_point(|p| p.key >= key),
            Ties::Index => positives.partition_point(|p| p.key > key || (p.key == key && p.index < index)),
            Ties::Expected => 2 * above + usize::from(positives.get(above).is_some_and(|p| p.key == key)),
        }
    }

    /// The slot of a negative whose value is within `margin` of `screened`, if that settles it.
    fn screened_slot(&self, q: usize, screened: f64, margin: f64) -> Option<usize> {
        let active = self.active[q].load(Relaxed) as usize;
        let values = &self.values[self.offsets[q]..][..active];
        let above = values.partition_point(|v| *v > screened + margin);
        let not_below = above + values[above..].partition_point(|v| *v >= screened - margin);
        (above == not_below).then_some(if self.ties == Ties::Expected { 2 * above } else { above })
    }

    /// Drops positives whose rank is beyond R for certain. Counts only grow, so that a count seen early is safe.
    fn settle(&self, q: usize, counted: u32) {
        let before = self.active[q].load(Relaxed);
        if before <= 1 || 2 * (self.fresh[q].fetch_add(counted, Relaxed) + counted) < before {
            return;
        }
        self.fresh[q].store(0, Relaxed);
        let positives = self.positives(q);
        let slots = self.slots(q);
        let wide = if self.ties == Ties::Expected { 2 } else { 1 };
        let tied = |i: usize| self.ties == Ties::Expected && positives[i].key == positives[i - 1].key;
        let count = |slots: &[AtomicU32]| slots.iter().map(|c| c.load(Relaxed) as usize).sum::<usize>();
        let mut negatives = count(&slots[..1]);
        for i in 1..before as usize {
            negatives += count(&slots[wide * (i - 1) + 1..=wide * i]);
            if !tied(i) && i + 1 + negatives > positives.len() {
                self.active[q].fetch_min(i as u32, Relaxed);
                return;
            }
        }
    }
}

/// What is left to decide in a task, and per-thread buffers.
#[derive(Default)]
pub(crate) struct Notes {
    undecided: Vec<(u32, u32)>,
    keys: Vec<f64>,
    touched: Vec<u32>,
}

impl Ledger<'_> {
    fn count(&self, q: usize, slot: usize, negatives: u32) {
        self.slots(q)[slot].fetch_add(negatives, Relaxed);
    }

    /// Counts one side of a task. `items` gives the query and the other item of a hit.
    #[expect(clippy::too_many_arguments, reason = "the two sides of a task, spelt out")]
    fn absorb_side<S: Space>(
        &self,
        space: &S,
        first: usize,
        margins: &[f64],
        above: &[u32],
        hits: impl Iterator<Item = (u32, u32, f32)>,
        scratch: &mut Scratch,
        notes: &mut Notes,
    ) {
        let Notes { undecided, keys, touched } = notes;
        undecided.clear();
        touched.clear();
        touched.extend_from_slice(&above[..margins.len()]);
        for (i, &negatives) in touched.iter().enumerate() {
            if negatives > 0 {
                self.count(first + i - self.first_query, 0, negatives);
            }
        }
        for (i, other, screened) in hits {
            let q = first + i as usize - self.first_query;
            touched[i as usize] += 1;
            if let Some(key) = space.settled(screened) {
                self.count(q, self.slot(q, key, other), 1);
            } else if let Some(slot) = self.screened_slot(q, f64::from(screened), margins[i as usize]) {
                self.count(q, slot, 1);
            } else {
                undecided.push(((q + self.first_query) as u32, other));
            }
        }
        undecided.sort_unstable();
        keys.clear();
        space.keys(undecided, scratch, keys);
        for (&(query, other), &key) in undecided.iter().zip(keys.iter()) {
            let q = query as usize - self.first_query;
            self.count(q, self.slot(q, key, other), 1);
        }
        for (i, &counted) in touched.iter().enumerate() {
            if counted > 0 {
                self.settle(first + i - self.first_query, counted);
            }
        }
    }
}

impl Observer for Ledger<'_> {
    type Notes = Notes;

    fn group(&self, side: Side, item: usize) -> u32 {
        if side == Side::Query { self.query_labels[item] } else { self.gallery_labels[item] }
    }

    fn limits(&self, query: usize, margin: f64) -> (f32, f32) {
        let q = query - self.first_query;
        match &self.values[self.offsets[q]..][..self.active[q].load(Relaxed) as usize] {
            [] => (f32::INFINITY, f32::INFINITY),
            values @ [first, ..] => (round_down(values[values.len() - 1] - margin), round_up(first + margin)),
        }
    }

    fn absorb<S: Space>(&self, space: &S, task: &Task<'_>, found: &Found, scratch: &mut Scratch, notes: &mut Notes) {
        let column = |h: &crate::kernel::Hit| (h.row, (task.first_column + h.column as usize) as u32, h.value);
        let row = |h: &crate::kernel::Hit| (h.column, (task.first_row + h.row as usize) as u32, h.value);
        let rows = found.row_hits.iter().map(column);
        self.absorb_side(space, task.first_row, task.row_margins, &found.row_above, rows, scratch, notes);
        if task.symmetric {
            let columns = found.column_hits.iter().map(row);
            self.absorb_side(space, task.first_column, task.column_margins, &found.column_above, columns, scratch, notes);
        }
    }
}
