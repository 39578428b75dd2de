//! The negatives between all positives: exact counts from tables of scores, which give the whole ROC curve and its area.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{allocate, zeros};
use crate::peers::{Peers, part, reduce};
use crate::rows::dense::Dense;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::pairs::{PairLabels, indices};

/// The most bytes of counters that threads keep apart, to be added up at the end.
const COUNTER_BYTES: usize = 48 << 20;
/// The most buckets of an index, unless there are more scores.
const MOST_BUCKETS: usize = 4 << 20;
/// Lines of a table that a thread takes at a time.
const LINES: usize = 16;
/// Lists of scores that a counter keeps by range, and the length of a full one: while it is counted, its range of the positives
/// and counts stays in the first-level cache.
const LISTS: usize = 256;
const LENGTH: usize = 2048;

/// Positives and negatives, by score.
#[derive(Debug, PartialEq)]
pub struct Slots {
    /// The distinct scores of the positives, ascending.
    pub scores: Vec<f64>,
    /// The number of positives with each score.
    pub positives: Vec<u64>,
    /// Negatives: below the first score, equal to it, between it and the second, and so on, and above the last.
    pub negatives: Vec<u64>,
}

/// An index of ascending distinct scores: buckets of equal width.
struct Grid<'a> {
    scores: &'a [f64],
    scale: f64,
    /// The number of scores before each bucket, and in all.
    starts: Vec<u32>,
    /// The binary logarithm of a list's number of buckets.
    list_shift: u32,
}

impl<'a> Grid<'a> {
    fn new(scores: &'a [f64]) -> Result<Self> {
        // Most buckets are empty, so that the CPU seldom mispredicts how many scores one holds.
        let buckets = (8 * scores.len()).min(MOST_BUCKETS.max(scores.len()));
        let width = scores[scores.len() - 1] - scores[0];
        let scale = if width > 0.0 { (buckets as f64 / width).min(f64::MAX) } else { 0.0 };
        let buckets_per_list = buckets.div_ceil(LISTS).next_power_of_two();
        let mut grid =
            Grid { scores, scale, starts: zeros(buckets + 1)?, list_shift: buckets_per_list.trailing_zeros() };
        for score in scores {
            let bucket = grid.bucket(*score);
            grid.starts[bucket + 1] += 1;
        }
        for b in 0..buckets {
            grid.starts[b + 1] += grid.starts[b];
        }
        Ok(grid)
    }

    /// Returns the bucket of a score. It never decreases as scores increase.
    fn bucket(&self, score: f64) -> usize {
        (((score - self.scores[0]) * self.scale) as usize).min(self.starts.len() - 2)
    }

    /// Returns the slot of a negative: twice the number of smaller scores, and one more if its score is among them.
    fn slot(&self, score: f64) -> usize {
        let bucket = self.bucket(score);
        let (start, end) = (self.starts[bucket] as usize, self.starts[bucket + 1] as usize);
        let smaller = start + self.scores[start..end].iter().take_while(|s| **s < score).count();
        2 * smaller + usize::from(self.scores.get(smaller) == Some(&score))
    }
}

/// Counts of negatives in slots. A score goes to the list of its range, and is counted when the list is full.
struct Counter<'a> {
    grid: &'a Grid<'a>,
    lists: Vec<Vec<f64>>,
    counts: Vec<u64>,
}

impl<'a> Counter<'a> {
    fn new(grid: &'a Grid<'a>) -> Result<Self> {
        let lists = (0..LISTS).map(|_| allocate(LENGTH)).collect::<Result<_>>()?;
        Ok(Counter { grid, lists, counts: zeros(2 * grid.scores.len() + 1)? })
    }

    #[inline]
    fn add(&mut self, score: f64) {
        let list = self.grid.bucket(score) >> self.grid.list_shift;
        self.lists[list].push(score);
        if self.lists[list].len() == LENGTH {
            self.count(list);
        }
    }

    fn count(&mut self, list: usize) {
        for &score in &self.lists[list] {
            self.counts[self.grid.slot(score)] += 1;
        }
        self.lists[list].clear();
    }

    /// Counts the listed scores, and returns all counts.
    fn finish(mut self) -> Vec<u64> {
        (0..LISTS).for_each(|list| self.count(list));
        self.counts
    }
}

/// Counts the negatives between the positives, of which there is at least one; `positives` are their scores, ascending. Peers each
/// count a part, and get the whole.
pub fn count_slots(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    positives: &[f64],
    peers: &dyn Peers,
    control: &Control,
) -> Result<Slots> {
    let groups = || positives.chunk_by(|a, b| a == b);
    let scores: Vec<f64> = groups().map(|group| group[0]).collect();
    let numbers = groups().map(|group| group.len() as u64).collect();
    let grid = Grid::new(&scores)?;
    let slots = 2 * scores.len() + 1;
    let copies = (COUNTER_BYTES / (8 * (slots + LISTS * LENGTH))).clamp(1, rayon::current_num_threads());
    let counters = (0..copies).map(|_| Counter::new(&grid).map(Mutex::new)).collect::<Result<Vec<_>>>()?;
    let (own, side) = (labels.gallery.is_none(), control.sizes().score_table);
    let (queries, items) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let first_item = |query: usize| if own { query } else { 0 };
    let part = part(peers, queries, |query| (items - first_item(query)) as u64);
    let starts = || part.clone().step_by(side);
    control.add_to_total(starts().map(|q| ((items - first_item(q)) * side.min(part.end - q)) as u64).sum());
    let mut table: Vec<f64> = zeros(side.min(part.len()) * side.min(items))?;
    for query in starts() {
        let rows = indices(query..part.end.min(query + side))?;
        for item in (first_item(query)..items).step_by(side) {
            let columns = indices(item..items.min(item + side))?;
            let table = &mut table[..rows.len() * columns.len()];
            space.score_table(&rows, &columns, table, control)?;
            control.check()?;
            let others = &labels.gallery()[item..item + columns.len()];
            table.par_chunks(LINES * columns.len()).zip(rows.par_chunks(LINES)).for_each(|(lines, rows)| {
                let thread = rayon::current_thread_index().unwrap_or(0);
                let mut counter = counters[thread % copies].lock().expect("no thread panics while it holds the lock");
                for (scores, &row) in lines.chunks(columns.len()).zip(rows) {
                    let label = labels.queries[row as usize];
                    let skipped = if own { (row as usize + 1).saturating_sub(item).min(scores.len()) } else { 0 };
                    for (&score, &other) in scores.iter().zip(others).skip(skipped) {
                        if other != label {
                            counter.add(score);
                        }
                    }
                }
            });
            control.advance(table.len() as u64);
        }
    }
    let mut negatives: Vec<u64> = zeros(slots)?;
    for counter in counters {
        let counts = counter.into_inner().expect("no thread panics while it holds the lock").finish();
        negatives.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    let negatives = if peers.is_alone() { negatives } else { reduce(peers, &negatives)? };
    Ok(Slots { scores, positives: numbers, negatives })
}
