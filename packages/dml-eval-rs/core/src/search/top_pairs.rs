//! Finds the most similar of all pairs: a screen is used to find candidates, then scores decide.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::SweepResult;
use crate::memory::{Grow, collect, collect_counted};
use crate::rows::comparable::Comparable;
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::space::{Scratch, Space};
use crate::screen::expected::SampledValues;
use crate::screen::traverse::{Observer, Task, traverse_triangle};
use crate::search::places::{Nearest, Place};
use crate::side::Side;

struct Search<'a, 'm, S> {
    space: &'a S,
    /// The most similar pairs so far.
    best: Mutex<Nearest<'m>>,
    /// The bits of the value that a pair must reach to be listed.
    lowest: AtomicU64,
}

impl<S: Space> Observer for Search<'_, '_, S> {
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
        pairs
            .iter()
            .zip(&*scores)
            .for_each(|(pair, score)| best.insert(Place::of_pair(*score, *pair)));
        if let Some(worst) = best.worst() {
            let lowest = self.space.value_of_score(worst.score_of_pair());
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
    let mut places = Nearest::places(n, 1)?;
    let best = Mutex::new(Nearest::new(n, &mut places));
    let search = Search { space, best, lowest: AtomicU64::new(f64::MIN.to_bits()) };
    traverse_triangle(space, &packing, &search, 0..rows, 0..rows, control)?;
    let best = search.best.into_inner().expect("no thread panics while it holds the lock");
    let pairs = best.into_sorted();
    control.check()?;
    let scores = collect(pairs.iter().map(|place| space.report_score(place.score_of_pair())))?;
    let sides = pairs.iter().flat_map(|place| place.pair().map(i64::from));
    Ok((scores, collect_counted(sides)?))
}
