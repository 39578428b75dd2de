//! Exact nearest neighbours: of screened candidates decided by their keys, or from tables of keys if k is large.

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
use crate::screen::block::Blocks;
use crate::screen::expected::SampledValues;
use crate::screen::rounding::{round_down, round_up};
use crate::screen::traverse::{Observer, Task, traverse_rectangle};
use crate::search::first_candidates::first_candidates;
use crate::search::from_tables::nearest_from_tables;
use crate::search::shortlist::{Keys, Shortlist};
use crate::side::Side;

/// Halves of a search, each of the rest, whose thresholds are expected.
const HALVES: i32 = 5;
/// The group of a query that is no gallery item; an item's group is its index, which is below this.
const NO_GROUP: u32 = u32::MAX;

/// A search in progress.
struct Search<'a> {
    k: usize,
    first_query: usize,
    own: OwnItem<'a>,
    shortlists: Vec<Mutex<Shortlist>>,
    /// For each query a lower bound of the k-th nearest item's value, as float32 bits.
    thresholds: Vec<AtomicU32>,
    control: &'a Control,
}

impl Search<'_> {
    fn threshold(&self, q: usize) -> f32 {
        f32::from_bits(self.thresholds[q].load(Relaxed))
    }
}

impl Observer for Search<'_> {
    type Buffers = Buffers;

    fn group(&self, side: Side, item: usize) -> u32 {
        match side {
            Side::Gallery => item as u32,
            Side::Query => self.own.of(item).map_or(NO_GROUP, |own| own as u32),
        }
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        visit((f64::from(self.threshold(query - self.first_query)), f64::INFINITY));
    }

    fn begin<S: Space>(&self, space: &S, packing: &impl Packing, blocks: Blocks<'_>, control: &Control) -> Result<()> {
        first_candidates(space, packing, blocks, (self.k, self.own), control, |query, candidates| {
            let q = query - self.first_query;
            let mut list = self.shortlists[q].lock().expect("no thread panics while it holds the lock");
            self.thresholds[q].store(list.begin(space, candidates).to_bits(), Relaxed);
        })
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        Buffers { by_row, keys }: &mut Buffers,
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
                if list.push(index, (lower, upper)) {
                    threshold = list.prune(space, scratch, keys, self.control);
                    self.thresholds[q].store(threshold.to_bits(), Relaxed);
                }
            }
        }
    }
}

#[derive(Default)]
struct Buffers {
    by_row: ByRow,
    keys: Keys,
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
    if prefers_tables(k, gallery, control) {
        nearest_from_tables(space, k, own, control, score, scores, indices)
    } else {
        nearest_screened(space, k, own, control, score, scores, indices)
    }
}

/// Whether so many neighbours take less time from tables of keys than from a screen, by the measurements in
/// docs/internals/evaluator-speed.md.
fn prefers_tables(k: usize, gallery: usize, control: &Control) -> bool {
    let sizes = control.sizes();
    k >= sizes.table_neighbours.max(gallery / sizes.items_per_table_neighbour)
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
    let batch = (control.sizes().candidate_bytes / Shortlist::bytes(k)).clamp(1, queries);
    if batch < queries {
        control.took(|| "neighbours in batches");
    }
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
            shortlists: collect(rows.clone().map(|query| Mutex::new(Shortlist::new(query, k))))?,
            thresholds: collect(rows.clone().map(|_| AtomicU32::new(f32::NEG_INFINITY.to_bits())))?,
            control,
        };
        traverse_rectangle(space, &packing, &search, rows, control)?;
        let out = scores[first * k..].par_chunks_mut(k).zip(indices[first * k..].par_chunks_mut(k));
        search.shortlists.par_iter_mut().zip(out).enumerate().for_each_init(
            <(Scratch, Keys)>::default,
            |(scratch, keys), (q, (list, (scores, indices)))| {
                let list = list.get_mut().expect("no thread panics while it holds the lock");
                for ((out_score, index), (key, item)) in
                    scores.iter_mut().zip(indices).zip(list.decide(space, scratch, keys))
                {
                    *out_score = score(first + q, key);
                    *index = i64::from(item);
                }
            },
        );
        control.check()?;
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
        ) {
            let x = rows(of_a_class, is_in_order, seed);
            let own = if leaves_out { OwnItem::SameIndex } else { OwnItem::Absent };
            let mut expected: Vec<Vec<(f64, i64)>> = Vec::new();
            for (kernel, directions) in names().into_iter().flat_map(|name| [(name, Some(0)), (name, Some(30))]) {
                let (rows, kernel) = (Matrix::F32(x.view()), select(Some(kernel)).unwrap());
                let control = Control::traced(Sizes { directions, ..Sizes::default() });
                let dense = Dense::new(rows, None, Similarity::Euclidean, Precision::SixteenBit, kernel, &control).unwrap();
                if expected.is_empty() {
                    for query in 0..ITEMS as u32 {
                        let pairs: Vec<_> = (0..ITEMS as u32).map(|item| (query, item)).collect();
                        let mut keys = Vec::new();
                        dense.keys(&pairs, &mut Scratch::default(), &mut keys);
                        let mut all: Vec<(f64, i64)> = keys.into_iter().zip(0..).collect();
                        all.retain(|(_, item)| !leaves_out || *item != i64::from(query));
                        all.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                        all.truncate(k);
                        expected.push(all);
                    }
                }
                let (mut keys, mut items) = (vec![0.0; ITEMS * k], vec![0; ITEMS * k]);
                nearest_screened(&dense, k, own, &control, |_, key| key, &mut keys, &mut items).unwrap();
                let found = keys.chunks(k).zip(items.chunks(k));
                for (query, (expected, (keys, items))) in expected.iter().zip(found).enumerate() {
                    let found: Vec<(f64, i64)> = keys.iter().copied().zip(items.iter().copied()).collect();
                    prop_assert_eq!(&found, expected, "{} {:?}, query {}", kernel.name, directions, query);
                }
            }
        }
    }
}
