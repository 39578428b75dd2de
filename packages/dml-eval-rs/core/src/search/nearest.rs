//! Exact nearest neighbours: of screened candidates decided by their keys, or from tables of keys if k is large.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::{Hit, SweepResult};
use crate::memory::{Grow, collect, try_collect};
use crate::rows::comparable::Comparable;
use crate::rows::packing::{ExpectedThreshold, Goal, Packing};
use crate::rows::space::{Scratch, Space};
use crate::screen::block::Blocks;
use crate::screen::expected::SampledValues;
use crate::screen::rounding::{round_down, round_up};
use crate::screen::traverse::{Observer, Task, traverse_rectangle};
use crate::search::by_row::ByRow;
use crate::search::filter::Filter;
use crate::search::first_candidates::first_candidates;
use crate::search::from_tables::nearest_from_tables;
use crate::search::guess::Guess;
use crate::search::many::nearest_from_guess;
use crate::search::shortlist::{Keys, Shortlist};
use crate::side::Side;

/// Halves of a search, each of the rest, whose thresholds are expected.
const HALVES: i32 = 5;
/// In place of a hit whose score reaches the query's bound.
const REJECTED: u32 = u32::MAX;

/// A search in progress.
struct Search<'a, 'f> {
    k: usize,
    first_query: usize,
    filter: Filter<'f>,
    /// The values of the filter's bounds, of the search's queries.
    below: Vec<f64>,
    shortlists: Vec<Mutex<Shortlist>>,
    /// For each query a lower bound of the k-th nearest item's value, as float32 bits.
    thresholds: Vec<AtomicU32>,
    control: &'a Control,
}

impl Search<'_, '_> {
    fn threshold(&self, q: usize) -> f32 {
        f32::from_bits(self.thresholds[q].load(Relaxed))
    }

    /// Returns the value below which items count for the q-th query.
    fn below(&self, q: usize) -> f64 {
        self.below.get(q).copied().unwrap_or(f64::INFINITY)
    }

    /// Replaces the hits of a row whose scores aren't below the bound; float64 decides those that the screen leaves open.
    fn reject<S: Space>(
        &self,
        space: &S,
        (task, all, hits): (&Task<'_>, &[Hit], &mut [u32]),
        (threshold, margin): (f32, f64),
        scratch: &mut Scratch,
        Open { places, pairs, scores }: &mut Open,
    ) -> Result<()> {
        let Some(bounds) = self.filter.below else { return Ok(()) };
        places.clear();
        pairs.clear();
        for (place, h) in hits.iter().enumerate() {
            let hit = all[*h as usize];
            let query = task.rows.start + hit.row as usize;
            let (_, upper) = task.bounds(hit.row, hit.column, hit.value, margin);
            if upper >= self.below(query - self.first_query) && round_up(upper) >= threshold {
                places.try_push(place)?;
                pairs.try_push((query as u32, (task.columns.start + hit.column as usize) as u32))?;
            }
        }
        if !pairs.is_empty() {
            self.control.took(|| "bounds decided by scores");
        }
        scores.clear();
        scores.try_resize(pairs.len(), 0.0)?;
        scores.clear();
        space.scores(pairs, scratch, scores)?;
        for ((place, pair), score) in places.iter().zip(&*pairs).zip(&*scores) {
            if *score >= bounds[pair.0 as usize] {
                hits[*place] = REJECTED;
            }
        }
        Ok(())
    }

    fn receive<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        Buffers { by_row, keys, open }: &mut Buffers,
    ) -> Result<()> {
        by_row.sort(task.rows.len(), &result.row_hits)?;
        let mut start = 0;
        for row in 0..task.rows.len() {
            let hits = &mut by_row.order[start..by_row.ends[row]];
            start = by_row.ends[row];
            if hits.is_empty() {
                continue;
            }
            let q = task.rows.start + row - self.first_query;
            let margin = task.row_margins[row];
            let mut list = self.shortlists[q].lock().expect("no thread panics while it holds the lock");
            let mut threshold = self.threshold(q);
            self.reject(space, (task, &result.row_hits, hits), (threshold, margin), scratch, open)?;
            for &h in hits.iter().filter(|h| **h != REJECTED) {
                let hit = result.row_hits[h as usize];
                let (lower, upper) = task.bounds(hit.row, hit.column, hit.value, margin);
                let (lower, upper) = (round_down(lower), round_up(upper));
                // The threshold may have risen since the task began.
                if upper < threshold {
                    continue;
                }
                let index = (task.columns.start + hit.column as usize) as u32;
                if list.push(index, (lower, upper)) {
                    threshold = list.prune(space, keys, self.control)?;
                    self.thresholds[q].store(threshold.to_bits(), Relaxed);
                }
            }
        }
        Ok(())
    }
}

impl Observer for Search<'_, '_> {
    type Buffers = Buffers;

    fn group(&self, side: Side, item: usize) -> u32 {
        self.filter.group(side, item)
    }

    fn uncounted(&self, query: usize) -> &[u32] {
        self.filter.left_out(query)
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        let q = query - self.first_query;
        visit((f64::from(self.threshold(q)), self.below(q)));
    }

    fn begin<S: Space>(&self, space: &S, packing: &impl Packing, blocks: Blocks<'_>, control: &Control) -> Result<()> {
        let below = |query: usize| self.below(query - self.first_query);
        first_candidates(space, packing, blocks, (self.k, &self.filter, below), control, |query, candidates| {
            let q = query - self.first_query;
            let mut list = self.shortlists[q].lock().expect("no thread panics while it holds the lock");
            self.thresholds[q].store(list.begin(space, candidates)?.to_bits(), Relaxed);
            Ok(())
        })
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        self.receive(space, task, result, scratch, buffers)
    }
}

#[derive(Default)]
struct Buffers {
    by_row: ByRow,
    keys: Keys,
    open: Open,
}

/// Hits of a row that may reach the bound.
#[derive(Default)]
struct Open {
    places: Vec<usize>,
    pairs: Vec<(u32, u32)>,
    scores: Vec<f64>,
}

/// Finds the `k` nearest gallery items that count for every query: keys and indices, nearest first, ties by index.
///
/// `scores` and `indices` are (queries, k), row by row; `score` computes a score from a query and a key. Where fewer than k items count,
/// the other indices are −1, and the other scores remain.
pub fn nearest<'a, S: Comparable, T: Send>(
    space: &S,
    k: usize,
    filter: impl Into<Filter<'a>>,
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let filter = filter.into();
    filter.check(queries, gallery)?;
    let leaves_out = (0..queries).any(|query| filter.own.of(query).is_some());
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
    if filter.leaves_out_own_alone() && prefers_tables(k, gallery, control) {
        nearest_from_tables(space, k, filter.own, control, score, scores, indices)
    } else {
        nearest_screened(space, k, filter, control, score, scores, indices)
    }
}

/// Whether so many neighbours of so many items take less time from tables of keys than from a screen, by the measurements in
/// docs/internals/evaluator-speed.md.
fn prefers_tables(k: usize, gallery: usize, control: &Control) -> bool {
    let sizes = control.sizes();
    gallery <= sizes.few_items || k >= sizes.table_neighbours.max(gallery / sizes.items_per_table_neighbour)
}

/// Finds the `k` nearest gallery items of every query among those that the screen can't rule out.
pub(crate) fn nearest_screened<S: Space, T: Send>(
    space: &S,
    k: usize,
    filter: Filter<'_>,
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let batch = (control.sizes().candidate_bytes / Shortlist::bytes(k)).clamp(1, queries);
    if batch < queries {
        control.took(|| "neighbours in batches");
    }
    control.add_to_total(queries as u64 * gallery as u64);
    let thresholds = || {
        let all = collect(0..queries as u32)?;
        let sampled = SampledValues::compute(space, &all, |query, item| filter.leaves_out(query, item), control)?;
        // When a share 1/m of the items was compared, the k-th nearest of these has about the rank m·k among all.
        let halves = |i: usize, query: u32| (0..HALVES).map(move |half| (i, query, k << half, 0.5f64.powi(half + 1)));
        let all = sampled.queries.iter().enumerate().flat_map(|(i, &query)| halves(i, query));
        let beyond = |i: usize, query: u32| {
            filter.below.map_or(0.0, |bounds| sampled.above(i, space.value_of_score(bounds[query as usize]))) as usize
        };
        let expected = |(i, query, rank, share)| {
            let value = sampled.at_rank(i, beyond(i, query) + rank);
            ExpectedThreshold { query, value, share }
        };
        let mut thresholds = Vec::new();
        thresholds.try_extend(all.map(expected))?;
        Ok(thresholds)
    };
    let goal = Goal { pairs: queries as u64 * gallery as u64, thresholds: &thresholds };
    let packing = space.packing(&goal, control)?;
    if filter.leaves_out_own_alone()
        && !packing.is_sorted()
        && k >= control.sizes().guessed_neighbours
        && let Some(guess) = Guess::draw(space, &packing, k, control.sizes())?
    {
        return nearest_from_guess(space, &packing, &guess, (k, filter.own), control, score, scores, indices);
    }
    for first in (0..queries).step_by(batch) {
        let rows = first..(first + batch).min(queries);
        let mut search = Search {
            k,
            first_query: first,
            filter,
            below: match filter.below {
                Some(bounds) => collect(bounds[rows.clone()].iter().map(|bound| space.value_of_score(*bound)))?,
                None => Vec::new(),
            },
            shortlists: try_collect(rows.clone().map(|query| Shortlist::new(query, k).map(Mutex::new)))?,
            thresholds: collect(rows.clone().map(|_| AtomicU32::new(f32::NEG_INFINITY.to_bits())))?,
            control,
        };
        traverse_rectangle(space, &packing, &search, rows, control)?;
        let out = scores[first * k..].par_chunks_mut(k).zip(indices[first * k..].par_chunks_mut(k));
        search.shortlists.par_iter_mut().zip(out).enumerate().try_for_each_init(
            Keys::default,
            |keys, (q, (list, (scores, indices)))| -> Result<()> {
                let list = list.get_mut().expect("no thread panics while it holds the lock");
                let found = list.decide(space, keys)?;
                for (index, place) in indices.iter_mut().zip(found) {
                    *index = i64::from(place.item());
                }
                indices[found.len()..].fill(-1);
                for (out_score, place) in scores.iter_mut().zip(found) {
                    *out_score = score(first + q, place.key());
                }
                control.check()
            },
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{names, select};
    use crate::random::Random;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::matrix::Matrix;
    use crate::rows::own_item::OwnItem;
    use crate::rows::similarity::Similarity;
    use crate::sizes::Sizes;

    const DIM: usize = 40;
    const ITEMS: usize = 900;

    /// Makes classes of some like rows, which adjoin or not, and of which some are equal.
    fn rows(of_a_class: usize, is_in_order: bool, seed: u64) -> Array2<f32> {
        let mut random = Random::new(seed);
        let classes = ITEMS.div_ceil(of_a_class);
        let centres =
            Array2::from_shape_fn((classes, DIM), |(_, j)| (random.uniform() - 0.5) * (-0.1 * j as f64).exp());
        let class = |i: usize| if is_in_order { i / of_a_class } else { i % classes };
        let mut noise = 0.0;
        Array2::from_shape_fn((ITEMS, DIM), |(i, j)| {
            if random.below(3) > 0 {
                noise = 0.02 * (random.uniform() - 0.5);
            }
            (centres[[class(i), j]] + if i % 5 == 0 { 0.0 } else { noise }) as f32
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn neighbours_are_the_first_by_key_and_index(
            k in 1usize..60, of_a_class in 2usize..80, is_in_order in any::<bool>(), leaves_out in any::<bool>(), seed in any::<u64>(),
            (has_labels, has_lists, has_bounds) in (any::<bool>(), any::<bool>(), any::<bool>()),
        ) {
            let x = rows(of_a_class, is_in_order, seed);
            let own = if leaves_out || has_labels { OwnItem::SameIndex } else { OwnItem::Absent };
            let mut random = Random::new(seed ^ 1);
            let labels: Vec<u32> = (0..ITEMS as u32).map(|i| if is_in_order { i % 2 } else { i / of_a_class as u32 }).collect();
            let lists: Vec<Vec<u32>> =
                (0..ITEMS).map(|_| (0..ITEMS as u32).filter(|_| random.below(9) == 0).collect()).collect();
            let mut below = Vec::new();
            let mut expected: Vec<Vec<(f64, i64)>> = Vec::new();
            let guesses = |guess_percent| Sizes { guessed_neighbours: 1, guess_spacing: 2, guess_percent, ..Sizes::default() };
            let whole = |sizes| Sizes { directions: Some(0), ..sizes };
            let sizes = [
                whole(Sizes::default()), Sizes { directions: Some(30), ..Sizes::default() }, whole(guesses(10_000)), whole(guesses(40)),
            ];
            for (kernel, sizes) in names().into_iter().flat_map(|name| sizes.clone().map(|sizes| (name, sizes))) {
                let (rows, kernel) = (Matrix::F32(x.view()), select(Some(kernel)).unwrap());
                let control = Control::traced(sizes.clone());
                let dense = Dense::new(rows, None, Similarity::Euclidean, Precision::SixteenBit, kernel, &control).unwrap();
                if expected.is_empty() {
                    for query in 0..ITEMS as u32 {
                        let pairs: Vec<_> = (0..ITEMS as u32).map(|item| (query, item)).collect();
                        let (mut keys, mut scores) = (Vec::new(), Vec::new());
                        dense.keys(&pairs, &mut Scratch::default(), &mut keys).unwrap();
                        dense.scores(&pairs, &mut Scratch::default(), &mut scores).unwrap();
                        let bound = scores[random.below(ITEMS)];
                        below.push(bound);
                        let mut all: Vec<(f64, i64)> = keys.into_iter().zip(0..).collect();
                        all.retain(|(_, item)| {
                            let other = *item as usize;
                            (other != query as usize || matches!(own, OwnItem::Absent))
                                && !(has_labels && labels[other] == labels[query as usize])
                                && !(has_lists && lists[query as usize].contains(&(other as u32)))
                                && (!has_bounds || scores[other] < bound)
                        });
                        all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                        all.truncate(k);
                        expected.push(all);
                    }
                }
                let (mut keys, mut items) = (vec![0.0; ITEMS * k], vec![0; ITEMS * k]);
                let (bounds, list) = (below.clone(), |query: usize| lists[query].as_slice());
                let filter = Filter {
                    own,
                    labels: has_labels.then_some((&labels, &labels)),
                    left_out: if has_lists { Some(&list) } else { None },
                    below: has_bounds.then_some(&bounds),
                };
                nearest_screened(&dense, k, filter, &control, |_, key| key, &mut keys, &mut items).unwrap();
                let found = keys.chunks(k).zip(items.chunks(k));
                for (query, (expected, (keys, items))) in expected.iter().zip(found).enumerate() {
                    let mut found: Vec<(f64, i64)> = keys.iter().copied().zip(items.iter().copied()).collect();
                    found.truncate(expected.len());
                    prop_assert!(items[expected.len()..].iter().all(|item| *item == -1));
                    prop_assert_eq!(&found, expected, "{} {:?}, query {}", kernel.name, sizes, query);
                }
                let is_guessed = sizes.directions == Some(0) && k >= sizes.guessed_neighbours && !(has_labels || has_lists || has_bounds);
                prop_assert_eq!(control.paths().contains_key("thresholds guessed"), is_guessed);
            }
        }
    }
}
