//! Finds crossings in a single screened traversal: negatives above a bracket are counted, negatives
//! inside are listed, and float64 decides those near the crossing.
//!
//! If screened scores are off by at most m, so is the screened crossing s, and the exact crossing
//! is within s ± m. Screened scores above s + 2m are certainly above the crossing, and scores below
//! s − 2m below. For all others, exact scores are computed.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::SweepResult;
use crate::memory::{Grow, collect};
use crate::rows::dense::Dense;
use crate::screen::rounding::{round_down, round_up};
use crate::screen::traverse::Task;
use crate::verification::level::{Crossing, Level};
use crate::verification::pairs::pair_scores;
use crate::verification::sample::{Bracket, sort_descending};

/// A pair with different labels, with the product that the screen computed.
#[derive(Clone, Copy)]
pub(crate) struct Listed {
    pub value: f32,
    pub pair: (u32, u32),
}

/// The result of a traversal for a bracket: how many negatives are above, and the negatives inside
/// (`None` if too many).
pub(crate) struct Sieved {
    pub above: u64,
    pub inside: Option<Vec<Listed>>,
}

/// Brackets are widened by this number of margins on both sides, to list all negatives within two
/// margins of a crossing.
pub(crate) const LISTED_MARGINS: f64 = 2.0;

/// Counts and lists of a traversal, for multiple brackets.
pub(crate) struct Sieve {
    /// The brackets, in units of products. A value is a product plus `offset`.
    brackets: Vec<(f32, f32)>,
    offset: f64,
    /// The number of negatives above each bracket.
    above: Vec<AtomicU64>,
    lists: Mutex<Lists>,
}

/// The negatives per bracket. If all lists together exceed `capacity`, the longest is dropped and
/// becomes `None`.
struct Lists {
    lists: Vec<Option<Vec<Listed>>>,
    capacity: usize,
}

impl Lists {
    fn append(&mut self, parts: &[Vec<Listed>]) -> Result<()> {
        for (list, part) in self.lists.iter_mut().zip(parts) {
            if let Some(list) = list {
                list.try_extend(part.iter().copied())?;
            }
        }
        let length = |list: &Option<Vec<Listed>>| list.as_ref().map_or(0, Vec::len);
        while self.lists.iter().map(length).sum::<usize>() > self.capacity {
            if let Some(longest) = self.lists.iter_mut().max_by_key(|list| length(list)) {
                *longest = None;
            }
        }
        Ok(())
    }
}

impl Sieve {
    /// Prepares a traversal. The lists have at most `capacity` negatives in total.
    pub fn new(
        space: &Dense<'_>,
        brackets: &[Bracket],
        capacity: usize,
        (margin, offset): (f64, f64),
    ) -> Result<Self> {
        let value = |score: f64| space.value_of_score(score).clamp(f64::MIN, f64::MAX) - offset;
        let wide = LISTED_MARGINS * margin;
        let widened =
            |b: &Bracket| (round_down(value(b.low) - wide), round_up(value(b.high) + wide));
        let brackets = collect(brackets.iter().map(widened))?;
        let above = collect(brackets.iter().map(|_| AtomicU64::new(0)))?;
        let lists = collect(brackets.iter().map(|_| Some(Vec::new())))?;
        Ok(Sieve { brackets, offset, above, lists: Mutex::new(Lists { lists, capacity }) })
    }

    /// Returns the number of brackets.
    pub fn len(&self) -> usize {
        self.brackets.len()
    }

    /// Returns the brackets, and the results of the traversal.
    #[expect(clippy::type_complexity, reason = "pairs a list of brackets with a list of results")]
    pub fn finish(self) -> Result<(Vec<(f32, f32)>, Vec<Sieved>)> {
        let lists =
            self.lists.into_inner().expect("no thread panicked while it held the lock").lists;
        let sieved = lists.into_iter().zip(self.above);
        let sieved =
            collect(sieved.map(|(inside, above)| Sieved { above: above.into_inner(), inside }))?;
        Ok((self.brackets, sieved))
    }

    /// Visits the brackets in units of values.
    pub fn brackets(&self, visit: impl FnMut((f64, f64))) {
        let to_values = |(low, high): &(f32, f32)| {
            (f64::from(*low) + self.offset, f64::from(*high) + self.offset)
        };
        self.brackets.iter().map(to_values).for_each(visit);
    }

    /// Counts and lists the negatives in a task.
    pub fn observe(
        &self,
        task: &Task<'_>,
        result: &SweepResult,
        parts: &mut Vec<Vec<Listed>>,
    ) -> Result<()> {
        parts.try_resize(self.brackets.len(), Vec::new())?;
        let unlisted = result.row_above.by_bracket();
        for (((&(low, high), above), part), unlisted) in
            self.brackets.iter().zip(&self.above).zip(parts.iter_mut()).zip(unlisted)
        {
            part.clear();
            let mut larger: u64 = unlisted.iter().map(|above| u64::from(*above)).sum();
            for hit in &result.row_hits {
                larger += u64::from(hit.value > high);
                if hit.value >= low && hit.value <= high {
                    let (row, column) = (
                        task.rows.start + hit.row as usize,
                        task.columns.start + hit.column as usize,
                    );
                    part.try_push(Listed { value: hit.value, pair: (row as u32, column as u32) })?;
                }
            }
            above.fetch_add(larger, Relaxed);
        }
        if parts.iter().any(|part| !part.is_empty()) {
            self.lists.lock().expect("no thread panicked while it held the lock").append(parts)?;
        }
        Ok(())
    }
}

/// The inputs for finding crossings with a sieve.
pub(crate) struct SievedCrossing<'a, 'rows> {
    pub space: &'a Dense<'rows>,
    pub positives: &'a [f64],
    /// `margin` bounds the error of screened values. A screened value is a product plus `offset`.
    pub margin: f64,
    pub offset: f64,
}

impl SievedCrossing<'_, '_> {
    /// Finds the crossing of a level after the traversal, or `None` if it wasn't in the bracket, or
    /// if the limit was exceeded.
    pub fn find(
        &self,
        level: Level,
        (low, high): (f32, f32),
        Sieved { above, inside }: Sieved,
        control: &Control,
    ) -> Result<Option<Crossing>> {
        let &SievedCrossing { space, positives, .. } = self;
        let margin = space.score_of_value(self.margin);
        let score_of = |product: f32| space.score_of_value(f64::from(product) + self.offset);
        let score = |listed: &Listed| score_of(listed.value);
        let Some(mut list) = inside else { return Ok(None) };
        let ends = (score_of(low), score_of(high));
        list.par_sort_unstable_by(|a, b| b.value.total_cmp(&a.value));
        let screened = level
            .cross(above, &list, score, positives, ends.0, ends.1)
            .map(|crossing| crossing.score);
        let inside = |s: &f64| {
            (low == f32::MIN || ends.0 <= s - 2.0 * margin)
                && (high == f32::INFINITY || s + 2.0 * margin <= ends.1)
        };
        let Some(s) = screened.filter(inside) else { return Ok(None) };
        let first = list.partition_point(|listed| score(listed) > s + 2.0 * margin);
        let end = list.partition_point(|listed| score(listed) >= s - 2.0 * margin);
        let mut open = collect(list[first..end].iter().map(|listed| listed.pair))?;
        drop(list);
        open.par_sort_unstable();
        let mut scores = pair_scores(space, &open, control)?;
        sort_descending(&mut scores);
        Ok(level.cross(above + first as u64, &scores, |s| *s, positives, s - margin, s + margin))
    }
}
