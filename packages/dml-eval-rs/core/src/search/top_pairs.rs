//! Finds the most similar of all pairs: a screen is used to find candidates, then scores decide.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::SweepResult;
use crate::memory::{Grow, allocate, collect, collect_counted};
use crate::rows::comparable::Comparable;
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::space::{Scratch, Space};
use crate::screen::expected::SampledValues;
use crate::screen::traverse::{Observer, Task, traverse_triangle};
use crate::search::places::{descending, from_descending};
use crate::side::Side;

/// The most similar pairs so far, as integers: a score and the pair. An integer is smaller if the
/// pair comes first.
struct Best {
    n: usize,
    pairs: Vec<u128>,
    /// The n-th pair when the list was last cut.
    worst: u128,
}

impl Best {
    /// Adds a pair. The list is cut to n pairs when it has twice as many.
    #[expect(clippy::disallowed_methods, reason = "a list that is full is cut")]
    fn add(&mut self, score: f64, (i, j): (u32, u32)) {
        let place = u128::from(descending(score)) << 64 | u128::from(i) << 32 | u128::from(j);
        if place < self.worst {
            self.pairs.push(place);
            if self.pairs.len() == self.pairs.capacity() {
                self.cut();
            }
        }
    }

    fn cut(&mut self) {
        if self.pairs.len() >= self.n {
            self.worst = *self.pairs.select_nth_unstable(self.n - 1).1;
            self.pairs.truncate(self.n);
        }
    }
}

struct Search<'a, S> {
    space: &'a S,
    best: Mutex<Best>,
    /// The bits of the value that a pair must reach to be listed.
    lowest: AtomicU64,
}

impl<S: Space> Observer for Search<'_, S> {
    /// A thread's buffers: pairs (i, j), and their scores.
    type Buffers = (Vec<(u32, u32)>, Vec<f64>);

    fn group(&self, side: Side, item: usize) -> u32 {
        // The groups of queries and items differ, so that all pairs are compared.
        match side {
            Side::Query => u32::MAX,
            Side::Gallery => item as u32,
        }
    }

    fn brackets(&self, _query: usize, mut visit: impl FnMut((f64, f64))) {
        visit((f64::from_bits(self.lowest.load(Relaxed)), f64::INFINITY));
    }

    /// All items have the same threshold, so a pair that is a hit for the row's item is a hit for
    /// the column's, too.
    fn compares_columns(&self) -> bool {
        false
    }

    fn observe<Screened: Space>(
        &self,
        _space: &Screened,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        (pairs, scores): &mut Self::Buffers,
    ) -> Result<()> {
        let (first_row, first_column) = (task.rows.start as u32, task.columns.start as u32);
        pairs.clear();
        pairs.try_extend(
            result.row_hits.iter().map(|hit| (first_row + hit.row, first_column + hit.column)),
        )?;
        pairs.sort_unstable();
        scores.clear();
        scores.make_room(pairs.len())?;
        self.space.scores(pairs, scratch, scores)?;
        let mut best = self.best.lock().expect("no thread panics while it holds the lock");
        pairs.iter().zip(&*scores).for_each(|(pair, score)| best.add(*score, *pair));
        if best.worst < u128::MAX {
            let lowest = self.space.value_of_score(from_descending((best.worst >> 64) as u64));
            self.lowest.store(lowest.clamp(f64::MIN, f64::MAX).to_bits(), Relaxed);
        }
        Ok(())
    }
}

/// Finds the `n` pairs i < j of rows with the highest scores, ties by i and then by j. Returns
/// scores and pairs.
pub fn top_pairs<S: Comparable>(
    space: &S,
    n: usize,
    control: &Control,
) -> Result<(Vec<S::Reported>, Vec<i64>)> {
    let rows = space.rows(Side::Query);
    let all = rows as u64 * (rows as u64 - 1) / 2;
    if n < 1 || n as u64 > all || !space.is_own_gallery() {
        return argument(format!(
            "n is {n}; expected 1 to {all}, the number of pairs, and no separate gallery"
        ));
    }
    let thresholds = || {
        let sampled =
            SampledValues::compute(space, &collect(0..rows as u32)?, |i, j| i == j, control)?;
        let value = |(i, &query): (usize, &u32)| ExpectedThreshold {
            query,
            value: sampled.at_rank(i, (2 * n / rows).max(1)),
            share: 1.0,
        };
        collect(sampled.queries.iter().enumerate().map(value))
    };
    let packing = space.packing(&Goal { pairs: all, thresholds: &thresholds }, control)?;
    control.add_to_total(all);
    let best = Mutex::new(Best { n, pairs: allocate(2 * n)?, worst: u128::MAX });
    let search = Search { space, best, lowest: AtomicU64::new(f64::MIN.to_bits()) };
    traverse_triangle(space, &packing, &search, 0..rows, 0..rows, control)?;
    let mut best = search.best.into_inner().expect("no thread panics while it holds the lock");
    best.cut();
    best.pairs.sort_unstable();
    control.check()?;
    let scores = collect(
        best.pairs.iter().map(|pair| space.report_score(from_descending((pair >> 64) as u64))),
    )?;
    let sides = best
        .pairs
        .iter()
        .flat_map(|pair| [i64::from((pair >> 32) as u32), i64::from(*pair as u32)]);
    let indices = collect_counted(sides)?;
    Ok((scores, indices))
}
