//! Exact nearest neighbours: of screened candidates decided by their keys, or from tables of keys if k is large.

use std::cmp::Ordering;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::{Hit, SweepResult};
use crate::memory::collect;
use crate::rows::comparable::Comparable;
use crate::rows::own_item::OwnItem;
use crate::rows::packing::{ExpectedThreshold, Goal, Packing};
use crate::rows::space::{Scratch, Space};
use crate::screen::expected::SampledValues;
use crate::screen::rounding::{round_down, round_up};
use crate::screen::traverse::{Blocks, Observer, Task, traverse_rectangle};
use crate::search::first_thresholds::first_thresholds;
use crate::search::from_tables::nearest_from_tables;
use crate::side::Side;

/// Halves of a search, each of the rest, whose thresholds are expected.
const HALVES: i32 = 5;
/// The most candidates beyond k, and a quarter of k, before they are pruned. A threshold rises when they are, so few are kept
/// for a small k.
const SPARE: usize = 32;
/// The approximate most bytes of candidates in memory.
const CANDIDATE_BYTES: usize = 48 << 20;
/// The group of a query that is no gallery item; an item's group is its index, which is below this.
const NO_GROUP: u32 = u32::MAX;

/// A gallery item whose value lies between two bounds.
#[derive(Clone, Copy)]
struct Candidate {
    index: u32,
    lower: f32,
    upper: f32,
    /// Whether the bounds are those of the key.
    is_sharp: bool,
}

impl Candidate {
    fn of_key<S: Space>(space: &S, query: usize, key: f64, index: u32) -> Self {
        // The rounding of the value is far below that of its float32 bounds.
        let (value, slack) = (space.value(query, key), space.value_slack());
        Candidate { index, lower: round_down(value - slack), upper: round_up(value + slack), is_sharp: true }
    }
}

/// Returns the number of candidates beyond the k nearest at which they are pruned.
fn spare(k: usize) -> usize {
    k / 4 + SPARE.min(4 * k + 4)
}

/// Replaces the bounds of candidates by those of their keys.
fn sharpen<S: Space>(space: &S, query: usize, candidates: &mut [Candidate], scratch: &mut Scratch) {
    let blunt = || candidates.iter().filter(|c| !c.is_sharp);
    let pairs: Vec<(u32, u32)> = blunt().map(|c| (query as u32, c.index)).collect();
    let mut keys = Vec::with_capacity(pairs.len());
    space.keys(&pairs, scratch, &mut keys);
    for (candidate, key) in candidates.iter_mut().filter(|c| !c.is_sharp).zip(keys) {
        *candidate = Candidate::of_key(space, query, key, candidate.index);
    }
}

/// One query's candidates: every item that may be among the k nearest.
struct Shortlist {
    candidates: Vec<Candidate>,
    /// The number of candidates at which they are pruned next.
    limit: usize,
}

/// A search in progress.
struct Search<'a> {
    k: usize,
    first_query: usize,
    own: OwnItem<'a>,
    shortlists: Vec<Mutex<Shortlist>>,
    /// For each query a lower bound of the k-th nearest item's value, as float32 bits.
    thresholds: Vec<AtomicU32>,
}

impl Search<'_> {
    fn threshold(&self, q: usize) -> f32 {
        f32::from_bits(self.thresholds[q].load(Relaxed))
    }

    /// Drops the candidates that k others certainly beat; if the bounds leave too many, keys sharpen those of the k most promising,
    /// then all, and then decide.
    fn cut<S: Space>(&self, space: &S, q: usize, list: &mut Shortlist, scratch: &mut Scratch) {
        let (k, query) = (self.k, self.first_query + q);
        let most = k + spare(k) / 2;
        let Shortlist { candidates, limit } = list;
        if candidates.len() > k {
            self.raise_threshold(q, candidates);
        }
        if candidates.len() > most {
            candidates.select_nth_unstable_by(k - 1, |a, b| b.upper.total_cmp(&a.upper));
            sharpen(space, query, &mut candidates[..k], scratch);
            self.raise_threshold(q, candidates);
        }
        if candidates.len() > most {
            sharpen(space, query, candidates, scratch);
            self.raise_threshold(q, candidates);
        }
        if candidates.len() > most {
            let decided = decide(space, query, candidates, k, scratch);
            candidates.clear();
            candidates.extend(decided.into_iter().map(|(key, index)| Candidate::of_key(space, query, key, index)));
            self.raise_threshold(q, candidates);
        }
        *limit = candidates.len().max(k) + spare(k);
    }

    /// Raises the threshold to the k-th largest lower bound, and drops the candidates below it.
    fn raise_threshold(&self, q: usize, candidates: &mut Vec<Candidate>) {
        let (_, kth, _) = candidates.select_nth_unstable_by(self.k - 1, |a, b| b.lower.total_cmp(&a.lower));
        let threshold = kth.lower;
        candidates.retain(|c| c.upper >= threshold);
        self.thresholds[q].store(threshold.to_bits(), Relaxed);
    }
}

/// Decides the k nearest of the candidates by key, ties by index.
fn decide<S: Space>(
    space: &S,
    query: usize,
    candidates: &[Candidate],
    k: usize,
    scratch: &mut Scratch,
) -> Vec<(f64, u32)> {
    let pairs: Vec<(u32, u32)> = candidates.iter().map(|c| (query as u32, c.index)).collect();
    let mut keys = Vec::with_capacity(pairs.len());
    space.keys(&pairs, scratch, &mut keys);
    let mut order: Vec<(f64, u32)> = keys.into_iter().zip(pairs.iter().map(|p| p.1)).collect();
    let nearer = |a: &(f64, u32), b: &(f64, u32)| -> Ordering { b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)) };
    if order.len() > k {
        order.select_nth_unstable_by(k - 1, nearer);
        order.truncate(k);
    }
    order.sort_unstable_by(nearer);
    order
}

impl Observer for Search<'_> {
    type Buffers = ByRow;

    fn group(&self, side: Side, item: usize) -> u32 {
        match side {
            Side::Gallery => item as u32,
            Side::Query => self.own.of(item).map_or(NO_GROUP, |own| own as u32),
        }
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        visit((f64::from(self.threshold(query - self.first_query)), f64::INFINITY));
    }

    fn begin<S: Space>(&self, space: &S, packing: &impl Packing, blocks: Blocks<'_>, control: &Control) {
        first_thresholds(space, packing, blocks, (self.k, self.own), control, |query, threshold| {
            self.thresholds[query - self.first_query].store(threshold.to_bits(), Relaxed);
        });
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        by_row: &mut ByRow,
    ) {
        by_row.sort(task.rows.len(), &result.row_hits);
        let mut start = 0;
        for row in 0..task.rows.len() {
            let hits = &by_row.order[start..by_row.ends[row]];
            start = by_row.ends[row];
            if hits.is_empty() {
                continue;
            }
            let q = task.rows.start + row - self.first_query;
            let margin = task.row_margins[row];
            let mut list = self.shortlists[q].lock().expect("no thread panics while it holds the lock");
            let mut threshold = self.threshold(q);
            for &h in hits {
                let hit = result.row_hits[h as usize];
                let (lower, upper) = task.bounds(hit.row, hit.column, hit.value, margin);
                let (lower, upper) = (round_down(lower), round_up(upper));
                // The threshold may have risen since the task began.
                if upper < threshold {
                    continue;
                }
                let index = (task.columns.start + hit.column as usize) as u32;
                list.candidates.push(Candidate { index, lower, upper, is_sharp: false });
                if list.candidates.len() >= list.limit {
                    self.cut(space, q, &mut list, scratch);
                    threshold = self.threshold(q);
                }
            }
        }
    }
}

/// The hits of a task, sorted by row.
#[derive(Default)]
struct ByRow {
    /// The end of each row's hits in `order`.
    ends: Vec<usize>,
    /// Positions of the hits.
    order: Vec<u32>,
}

impl ByRow {
    /// Sorts hits of so many rows: a counting sort, which keeps the order within a row.
    fn sort(&mut self, rows: usize, hits: &[Hit]) {
        self.ends.clear();
        self.ends.resize(rows + 1, 0);
        for hit in hits {
            self.ends[hit.row as usize + 1] += 1;
        }
        for row in 0..rows {
            self.ends[row + 1] += self.ends[row];
        }
        self.order.resize(hits.len(), 0);
        for (h, hit) in hits.iter().enumerate() {
            self.order[self.ends[hit.row as usize]] = h as u32;
            self.ends[hit.row as usize] += 1;
        }
    }
}

/// Finds the `k` nearest gallery items of every query: keys and indices, nearest first, ties by index.
///
/// `scores` and `indices` are (queries, k), row by row; `score` computes a score from a query and a key. Each query leaves out its
/// own item.
pub fn nearest<S: Comparable, T: Send>(
    space: &S,
    k: usize,
    own: OwnItem<'_>,
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    own.check(queries, gallery as u64)?;
    let leaves_out = (0..queries).any(|query| own.of(query).is_some());
    let most = gallery - usize::from(leaves_out);
    if k < 1 || k > most {
        return argument(format!(
            "k is {k}; expected 1 to {most}, the gallery's size{}",
            if leaves_out { " without the query itself" } else { "" }
        ));
    }
    if scores.len() != queries * k || indices.len() != queries * k {
        return argument(format!(
            "scores and indices have {} and {} entries; expected {queries} × {k}",
            scores.len(),
            indices.len()
        ));
    }
    if prefers_tables(k, gallery) {
        nearest_from_tables(space, k, own, control, score, scores, indices)
    } else {
        nearest_screened(space, k, own, control, score, scores, indices)
    }
}

/// Whether so many neighbours take less time from tables of keys than from a screen, by the measurements in
/// docs/internals/evaluator-speed.md.
fn prefers_tables(k: usize, gallery: usize) -> bool {
    const LEAST: usize = 32;
    const ITEMS_PER_NEIGHBOUR: usize = 24;
    k >= LEAST.max(gallery / ITEMS_PER_NEIGHBOUR)
}

/// Finds the `k` nearest gallery items of every query among those that the screen can't rule out.
pub(crate) fn nearest_screened<S: Space, T: Send>(
    space: &S,
    k: usize,
    own: OwnItem<'_>,
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let batch = (CANDIDATE_BYTES / (size_of::<Candidate>() * (2 * k + 2 * SPARE))).clamp(1, queries);
    control.add_to_total(queries as u64 * gallery as u64);
    let thresholds = || {
        let all = collect(0..queries as u32)?;
        let sampled = SampledValues::compute(
            space,
            &all,
            |query, item| own.of(query as usize) == Some(u64::from(item)),
            control,
        )?;
        // When a share 1/m of the items was compared, the k-th nearest of these has about the rank m·k among all.
        let halves = |i: usize, query: u32| (0..HALVES).map(move |half| (i, query, k << half, 0.5f64.powi(half + 1)));
        let all = sampled.queries.iter().enumerate().flat_map(|(i, &query)| halves(i, query));
        let expected = |(i, query, rank, share)| ExpectedThreshold { query, value: sampled.at_rank(i, rank), share };
        Ok(all.map(expected).collect())
    };
    let goal = Goal { pairs: queries as u64 * gallery as u64, thresholds: &thresholds };
    let packing = space.packing(&goal, control)?;
    for first in (0..queries).step_by(batch) {
        let rows = first..(first + batch).min(queries);
        let mut search = Search {
            k,
            first_query: first,
            own,
            shortlists: collect(
                rows.clone().map(|_| Mutex::new(Shortlist { candidates: Vec::new(), limit: k + spare(k) })),
            )?,
            thresholds: collect(rows.clone().map(|_| AtomicU32::new(f32::NEG_INFINITY.to_bits())))?,
        };
        traverse_rectangle(space, &packing, &search, rows, control)?;
        let out = scores[first * k..].par_chunks_mut(k).zip(indices[first * k..].par_chunks_mut(k));
        let shortlists = std::mem::take(&mut search.shortlists);
        shortlists.into_par_iter().zip(out).enumerate().for_each_init(
            Scratch::default,
            |scratch, (q, (list, (scores, indices)))| {
                let Shortlist { mut candidates, .. } =
                    list.into_inner().expect("no thread panics while it holds the lock");
                search.raise_threshold(q, &mut candidates);
                let order = decide(space, first + q, &candidates, k, scratch);
                for ((out_score, index), (key, item)) in scores.iter_mut().zip(indices).zip(order) {
                    *out_score = score(first + q, key);
                    *index = i64::from(item);
                }
            },
        );
        control.check()?;
    }
    Ok(())
}
