//! The ledger of a count: what turns the screened values of two sides into entries in the books.
//!
//! A query's thresholds are those of its positives that still matter. Once the counts show that a positive's rank is beyond
//! all metrics it is dropped, which raises the threshold that a negative has to pass to be looked at.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::books::Books;
use crate::error::Result;
use crate::kernel::Found;
use crate::memory::{collected, room, zeros};
use crate::space::{Scratch, Side, Space, round_down, round_up};
use crate::traverse::{Observer, Task};

/// Books in use. Their queries are those of the space from `first_query` on.
pub(crate) struct Ledger<'a> {
    books: &'a Books,
    first_query: usize,
    query_labels: &'a [u32],
    gallery_labels: &'a [u32],
    /// The index, in the whole gallery, of the first item of this one.
    first_item: u64,
    /// The positives' values, in the units of the screen.
    values: Vec<f64>,
    /// How many of a query's positives still matter: always a prefix of them, and at least the first.
    active: Vec<AtomicU32>,
    /// Negatives counted since `active` was last brought up to date.
    fresh: Vec<AtomicU32>,
}

impl<'a> Ledger<'a> {
    /// For the queries with fewer than `least` positives; the others are counted elsewhere (`crowd`).
    pub fn open<S: Space>(
        space: &S,
        books: &'a Books,
        first_query: usize,
        (query_labels, gallery_labels): (&'a [u32], &'a [u32]),
        first_item: u64,
        least: usize,
    ) -> Result<Self> {
        let queries = books.queries();
        let mut values = room(books.offsets[queries])?;
        values.extend(
            (0..queries).flat_map(|q| books.positives(q).iter().map(move |p| space.value(first_query + q, p.key))),
        );
        let few = |q: &usize| Some(books.positives(*q).len()).filter(|n| *n < least).unwrap_or(0);
        let active = (0..queries).map(|q| books.still_active(q, few(&q)) as u32);
        let active = collected(active.map(AtomicU32::new))?;
        let fresh = zeros(queries)?;
        Ok(Ledger { books, first_query, query_labels, gallery_labels, first_item, values, active, fresh })
    }

    /// Drops the positives that no longer matter by what the books hold now.
    pub fn renew(&self) {
        for (q, active) in self.active.iter().enumerate() {
            active.store(self.books.still_active(q, active.load(Relaxed) as usize) as u32, Relaxed);
        }
    }

    fn active_values(&self, q: usize) -> &[f64] {
        &self.values[self.books.offsets[q]..][..self.active[q].load(Relaxed) as usize]
    }

    /// The slot of a negative whose value is within `margin` of `screened`, if that settles it.
    fn screened_slot(&self, q: usize, screened: f64, margin: f64) -> Option<usize> {
        let values = self.active_values(q);
        let above = values.partition_point(|v| *v > screened + margin);
        let not_below = above + values[above..].partition_point(|v| *v >= screened - margin);
        (above == not_below).then_some(self.books.wide() * above)
    }

    /// Drops positives whose rank is beyond R for certain. Counts only grow, so that a count seen early is safe.
    fn settle(&self, q: usize, counted: u32) {
        let before = self.active[q].load(Relaxed);
        if before <= 1 || 2 * (self.fresh[q].fetch_add(counted, Relaxed) + counted) < before {
            return;
        }
        self.fresh[q].store(0, Relaxed);
        let active = self.books.still_active(q, before as usize);
        self.active[q].fetch_min(active as u32, Relaxed);
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
                self.books.count(first + i - self.first_query, 0, u64::from(negatives));
            }
        }
        for (i, other, screened) in hits {
            let q = first + i as usize - self.first_query;
            touched[i as usize] += 1;
            if let Some(key) = space.settled(screened) {
                self.books.count(q, self.books.slot(q, key, self.first_item + u64::from(other)), 1);
            } else if let Some(slot) = self.screened_slot(q, f64::from(screened), margins[i as usize]) {
                self.books.count(q, slot, 1);
            } else {
                undecided.push(((q + self.first_query) as u32, other));
            }
        }
        undecided.sort_unstable();
        keys.clear();
        space.keys(undecided, scratch, keys);
        for (&(query, other), &key) in undecided.iter().zip(keys.iter()) {
            let q = query as usize - self.first_query;
            self.books.count(q, self.books.slot(q, key, self.first_item + u64::from(other)), 1);
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
        match self.active_values(q) {
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
            self.absorb_side(
                space,
                task.first_column,
                task.column_margins,
                &found.column_above,
                columns,
                scratch,
                notes,
            );
        }
    }
}
