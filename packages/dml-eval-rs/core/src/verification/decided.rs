//! Finds crossings that the screen can't find, mostly because a great number of scores are equal.
//! In each traversal, float64 decides all negatives near a bracket, and the bracket shrinks, until
//! it contains only the crossing.
//!
//! A bracket keeps a limited number of scores: the fuller it is, the more zeros the hash of a pair
//! must end in to be kept. The kept scores are a sample to estimate the next bracket, or all
//! scores, which determine the crossing.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::control::Control;
use crate::error::Result;
use crate::kernel::SweepResult;
use crate::memory::{Grow, collect, zeros};
use crate::rows::dense::Dense;
use crate::rows::space::Scratch;
use crate::screen::rounding::{round_down, round_up};
use crate::screen::traverse::Task;
use crate::verification::hashed::{HashedScores, hash};
use crate::verification::level::{Crossing, Level};
use crate::verification::pairs::{PairLabels, indices};
use crate::verification::sample::{Bracket, estimate, sort_descending};

/// The search for the crossing of a level.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Search {
    /// The level whose crossing is to be found.
    pub level: Level,
    /// A range that includes the crossing.
    pub outer: (f64, f64),
    /// The part of `outer` that the next traversal examines.
    pub inner: (f64, f64),
}

/// The negatives that a whole traversal, or a part of a traversal, found for a search.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// The number of negatives above the inner range.
    pub above: u64,
    /// The number of negatives inside the inner range.
    pub inside: u64,
    /// Scores inside the inner range: all, or a sample.
    pub kept: HashedScores,
}

/// The counters for a search. Threads add to these.
#[derive(Default)]
struct Counters {
    above: AtomicU64,
    inside: AtomicU64,
    kept: Mutex<HashedScores>,
}

/// Counts and keeps the negatives in the brackets of multiple searches, during a traversal.
pub(crate) struct Decider<'a, 'rows> {
    space: &'a Dense<'rows>,
    pub labels: &'a PairLabels<'a>,
    searches: &'a [Search],
    /// Per search, the range of products that scores in the bracket can have. A screened value is a
    /// product plus `offset`.
    open: Vec<(f32, f32)>,
    offset: f64,
    observed: Vec<Counters>,
    capacity: usize,
    /// The indices of the first query and the first item in the full sides.
    first: (u64, u64),
    /// The number of brackets in the traversal that precede the decider's.
    pub brackets_before: usize,
    control: &'a Control,
}

impl Search {
    /// Begins with a bracket that may not include the crossing.
    pub(crate) fn new(level: Level, bracket: Bracket) -> Self {
        Search {
            level,
            outer: (f64::NEG_INFINITY, f64::INFINITY),
            inner: (bracket.low, bracket.high),
        }
    }

    /// Uses the result of a traversal to return the crossing, or to narrow the range that includes
    /// it.
    pub fn advance(&mut self, observed: Observed, positives: &[f64]) -> Result<Option<Crossing>> {
        let Search { level, outer, inner: (low, high) } = *self;
        let Observed { above, inside, kept: HashedScores { scores, zeros } } = observed;
        if level.reached_above(high, above, positives) {
            self.outer = (high.next_up(), outer.1);
            self.inner = self.outer;
            return Ok(None);
        }
        if !level.reached_at(low, above + inside, positives) {
            self.outer = (outer.0, low.next_down());
            self.inner = self.outer;
            return Ok(None);
        }
        if low == high {
            // The number after the largest negative number is −0, which is not a score.
            return Ok(Some(Crossing { score: 0.0 + low, above, at_least: above + inside }));
        }
        let mut scores = collect(scores.iter().map(|(score, _)| *score))?;
        sort_descending(&mut scores);
        if zeros == 0 {
            return Ok(level.cross(above, &scores, |s| *s, positives, low, high));
        }
        self.outer = (low, high);
        self.inner = self.outer;
        let mut middle = low.max(f64::MIN) / 2.0 + high.min(f64::MAX) / 2.0;
        if !scores.is_empty() {
            let bracket = estimate(level, &scores, above, inside, positives);
            self.inner = (bracket.low.max(low), bracket.high.min(high));
            middle = bracket.middle;
        }
        if self.inner == self.outer {
            // Examine a single score, so that the range shrinks in any case.
            self.inner = (middle, middle);
        }
        Ok(None)
    }
}

impl<'a, 'rows> Decider<'a, 'rows> {
    /// Prepares a traversal that keeps at most `capacity` scores per search.
    pub fn new(
        space: &'a Dense<'rows>,
        labels: &'a PairLabels<'a>,
        searches: &'a [Search],
        capacity: usize,
        (margin, offset): (f64, f64),
        first: (u64, u64),
        control: &'a Control,
    ) -> Result<Self> {
        let value = |score: f64| space.value_of_score(score).clamp(f64::MIN, f64::MAX) - offset;
        let range = |s: &Search| {
            (round_down(value(s.inner.0) - margin), round_up(value(s.inner.1) + margin))
        };
        Ok(Decider {
            space,
            labels,
            searches,
            open: collect(searches.iter().map(range))?,
            offset,
            observed: collect(searches.iter().map(|_| Counters::default()))?,
            capacity,
            first,
            brackets_before: 0,
            control,
        })
    }

    /// Takes the scores of `pairs` from a table of all pairs in the task, or returns false if this
    /// would be slower.
    fn take_from_table(
        &self,
        task: &Task<'_>,
        pairs: &[(u32, u32)],
        scores: &mut Vec<f64>,
    ) -> Result<bool> {
        let (rows, columns, sizes) =
            (task.rows.clone(), task.columns.clone(), self.control.sizes());
        let all = rows.len() * columns.len();
        // A table of a few rows is mostly padding.
        if rows.len().min(columns.len()) < sizes.class_table
            || pairs.len().saturating_mul(sizes.pairs_per_open_key) < all
        {
            return Ok(false);
        }
        let mut table: Vec<f64> = zeros(all)?;
        let (queries, items) = (indices(rows.clone())?, indices(columns.clone())?);
        self.space.score_table(&queries, &items, &mut table, self.control)?;
        let at = |pair: &(u32, u32)| {
            (pair.0 as usize - rows.start) * columns.len() + pair.1 as usize - columns.start
        };
        scores.try_extend(pairs.iter().map(|pair| table[at(pair)]))?;
        self.control.took(|| "negatives decided from a table");
        Ok(true)
    }

    /// Returns the result of the traversal for each search.
    pub fn finish(self) -> Result<Vec<Observed>> {
        let observed = self.observed.into_iter().map(|counters| Observed {
            above: counters.above.into_inner(),
            inside: counters.inside.into_inner(),
            kept: counters.kept.into_inner().expect("no thread panicked while it held the lock"),
        });
        collect(observed)
    }
}

#[derive(Default)]
pub(crate) struct Buffers {
    pairs: Vec<(u32, u32)>,
    values: Vec<f32>,
    scores: Vec<f64>,
    kept: Vec<(f64, u64)>,
}

impl Decider<'_, '_> {
    /// Visits the brackets in units of values.
    pub fn brackets(&self, visit: impl FnMut((f64, f64))) {
        let to_values = |(low, high): &(f32, f32)| {
            (f64::from(*low) + self.offset, f64::from(*high) + self.offset)
        };
        self.open.iter().map(to_values).for_each(visit);
    }

    /// Decides the negatives of a task that are near brackets.
    pub fn observe(
        &self,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        Buffers { pairs, values, scores, kept }: &mut Buffers,
    ) -> Result<()> {
        pairs.clear();
        values.clear();
        for hit in &result.row_hits {
            if self.open.iter().any(|(low, high)| (*low..=*high).contains(&hit.value)) {
                let (row, column) =
                    (task.rows.start + hit.row as usize, task.columns.start + hit.column as usize);
                pairs.try_push((row as u32, column as u32))?;
                values.try_push(hit.value)?;
            }
        }
        scores.clear();
        kept.clear();
        if !self.take_from_table(task, pairs, scores)? {
            self.space.scores(pairs, scratch, scores)?;
        }
        let unlisted = result.row_above.by_bracket().skip(self.brackets_before);
        for (((search, open), observed), unlisted) in
            self.searches.iter().zip(&self.open).zip(&self.observed).zip(unlisted)
        {
            self.control.check()?;
            let above_all: u64 = unlisted.iter().map(|above| u64::from(*above)).sum();
            let (low, high) = search.inner;
            let mut above =
                above_all + result.row_hits.iter().filter(|hit| hit.value > open.1).count() as u64;
            let mut inside = 0;
            kept.clear();
            for ((&pair, &value), &score) in pairs.iter().zip(values.iter()).zip(scores.iter()) {
                if value < open.0 || value > open.1 || score < low {
                    continue;
                }
                if score > high {
                    above += 1;
                } else {
                    inside += 1;
                    let (query, item) =
                        (self.first.0 + u64::from(pair.0), self.first.1 + u64::from(pair.1));
                    kept.try_push((score, hash(query, item)))?;
                }
            }
            observed.above.fetch_add(above, Relaxed);
            observed.inside.fetch_add(inside, Relaxed);
            if low < high && !kept.is_empty() {
                observed
                    .kept
                    .lock()
                    .expect("no thread panicked while it held the lock")
                    .append(kept, self.capacity)?;
            }
        }
        Ok(())
    }
}
