//! Many nearest neighbours of a gallery many times as large: the keys of the items from a guessed threshold on, computed while a task's
//! rows are in a core's caches.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::SweepResult;
use crate::memory::{collect, try_collect};
use crate::rows::own_item::OwnItem;
use crate::rows::packing::Packing;
use crate::rows::space::{Scratch, Space};
use crate::screen::block::Blocks;
use crate::screen::rounding::round_down;
use crate::screen::tiling::blocks;
use crate::screen::traverse::{Observer, Task, traverse_rectangle};
use crate::search::by_row::ByRow;
use crate::search::filter::Filter;
use crate::search::guess::Guess;
use crate::search::places::{Nearest, Place};
use crate::search::shortlist::Keys;
use crate::side::Side;

/// A search in progress.
struct Search<'a> {
    first_query: usize,
    guess: &'a Guess,
    filter: Filter<'a>,
    /// Each query's nearest items among those from its guess on, and the guess.
    lists: &'a [Mutex<(Nearest, f32)>],
    /// For each query the value from which on items are listed, as float32 bits: the guess, or that of the k-th nearest item so far.
    thresholds: Vec<AtomicU32>,
}

/// Bounds the value of a query's key from below.
fn least_value<S: Space>(space: &S, query: usize, key: f64) -> f32 {
    round_down(space.value(query, key) - space.value_slack())
}

impl Search<'_> {
    fn list(&self, query: usize) -> std::sync::MutexGuard<'_, (Nearest, f32)> {
        self.lists[query - self.first_query].lock().expect("no thread panics while it holds the lock")
    }

    fn receive<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        (by_row, keys): &mut (ByRow, Keys),
    ) -> Result<()> {
        by_row.sort(task.rows.len(), &result.row_hits)?;
        let mut start = 0;
        for (query, end) in task.rows.clone().zip(&by_row.ends) {
            let hits = by_row.order[start..*end].iter().map(|h| result.row_hits[*h as usize]);
            start = *end;
            if hits.len() == 0 {
                continue;
            }
            let items = hits.clone().map(|hit| task.columns.start as u32 + hit.column);
            let screened = hits.clone().map(|hit| space.key_of_screened(f64::from(hit.value)));
            let found = keys.take_or_compute(space, query, items.clone(), screened)?;
            let nearest = &mut self.list(query).0;
            if nearest.add(items, found, None) {
                let threshold = least_value(space, query, nearest.worst().key());
                self.thresholds[query - self.first_query].store(threshold.to_bits(), Relaxed);
            }
        }
        Ok(())
    }
}

impl Observer for Search<'_> {
    type Buffers = (ByRow, Keys);

    fn group(&self, side: Side, item: usize) -> u32 {
        self.filter.group(side, item)
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        let threshold = f32::from_bits(self.thresholds[query - self.first_query].load(Relaxed));
        visit((f64::from(threshold), f64::INFINITY));
    }

    fn begin<S: Space>(&self, space: &S, packing: &impl Packing, blocks: Blocks<'_>, control: &Control) -> Result<()> {
        self.guess.thresholds(space.kernel(), packing, blocks.rows, control, |query, value| {
            self.list(query).1 = value;
            self.thresholds[query - self.first_query].store(value.to_bits(), Relaxed);
        })
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        _scratch: &mut Scratch,
        buffers: &mut Self::Buffers,
    ) -> Result<()> {
        self.receive(space, task, result, buffers)
    }
}

/// Finds the `k` nearest gallery items of every query, as [`nearest`](super::nearest::nearest) does, by guessed thresholds.
#[expect(clippy::too_many_arguments, reason = "those of `nearest`, and what it prepared")]
pub(super) fn nearest_from_guess<S: Space, T: Send>(
    space: &S,
    packing: &impl Packing,
    guess: &Guess,
    (k, own): (usize, OwnItem<'_>),
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let batch = (control.sizes().candidate_bytes / Nearest::bytes(k)).max(1);
    let queries = space.rows(Side::Query);
    let list = |_| Ok(Mutex::new((Nearest::new(k)?, 0.0)));
    let mut lists = try_collect((0..batch.min(queries)).map(list))?;
    for rows in blocks(0..queries, batch) {
        let search = Search {
            first_query: rows.start,
            guess,
            filter: own.into(),
            lists: &lists,
            thresholds: collect(rows.clone().map(|_| AtomicU32::new(0)))?,
        };
        traverse_rectangle(space, packing, &search, rows.clone(), control)?;
        let out = scores[rows.start * k..].par_chunks_mut(k).zip(indices[rows.start * k..].par_chunks_mut(k));
        lists.par_iter_mut().zip(out).zip(rows).try_for_each_init(
            <(Vec<Place>, Keys)>::default,
            |(spare, keys), ((list, (scores, indices)), query)| -> Result<()> {
                let (nearest, guess) = list.get_mut().expect("no thread panics while it holds the lock");
                let mut found = nearest.sorted(spare)?;
                if found.len() < k || least_value(space, query, found[k - 1].key()) < *guess {
                    // Items that were not listed may be nearer.
                    control.took(|| "neighbours of all items");
                    nearest.clear();
                    add_all(space, query, own, nearest, keys)?;
                    found = nearest.sorted(spare)?;
                }
                for ((out_score, index), place) in scores.iter_mut().zip(indices).zip(found) {
                    *out_score = score(query, place.key());
                    *index = i64::from(place.item());
                }
                nearest.clear();
                control.check()
            },
        )?;
    }
    Ok(())
}

/// Compares a query with all items.
fn add_all<S: Space>(space: &S, query: usize, own: OwnItem<'_>, nearest: &mut Nearest, keys: &mut Keys) -> Result<()> {
    const TOGETHER: usize = 512;
    let own = own.of(query).map(|own| own as u32);
    for items in blocks(0..space.rows(Side::Gallery), TOGETHER) {
        let items = items.start as u32..items.end as u32;
        nearest.add(items.clone(), keys.compute(space, query, items)?, own);
    }
    Ok(())
}
