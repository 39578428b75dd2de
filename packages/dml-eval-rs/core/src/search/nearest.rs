//! Finds exact nearest neighbours by comparing keys of items that a screen can't rule out or, if k
//! is large, of all items.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::counting_sort::sort_by_part;
use crate::error::{Result, argument};
use crate::kernel::{Hit, Kernel, SweepResult};
use crate::memory::{Grow, allocate, collect, each, try_collect};
use crate::rows::comparable::Comparable;
use crate::rows::dense::{Dense, Precision};
use crate::rows::keys::Keys;
use crate::rows::matrix::{Matrix, Source};
use crate::rows::packing::{ExpectedThreshold, Goal, Packing};
use crate::rows::similarity::Similarity;
use crate::rows::space::{Scratch, Space};
use crate::screen::block::Blocks;
use crate::screen::expected::SampledValues;
use crate::screen::rounding::round_down;
use crate::screen::tiling::blocks;
use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
use crate::search::filter::Filter;
use crate::search::from_tables::nearest_from_tables;
use crate::search::guess::{Guess, Start};
use crate::search::places::{Nearest, Results};
use crate::side::Side;

/// Thresholds are estimated for this number of parts of a search: the last half, the quarter
/// before, the eighth before, ….
const HALVES: usize = 5;

/// A search in progress.
struct Search<'a, 'f> {
    first_query: usize,
    filter: &'a Filter<'f>,
    guess: Option<&'a Guess>,
    lists: &'a [Mutex<Nearest>],
    /// The smallest value per query that is listed, as float32 bits: first the guess, then the
    /// value of the k-th nearest item so far.
    thresholds: Vec<AtomicU32>,
    /// The first threshold per query, if it comes from a sample.
    guesses: Vec<AtomicU32>,
    /// The value of the bound per query. Items that reach the bound are excluded.
    below: Vec<f64>,
    control: &'a Control,
}

/// Computes a lower bound for the value of a key.
fn least_value<S: Space>(space: &S, query: usize, key: f64) -> f32 {
    round_down(space.value(query, key) - space.value_slack())
}

fn float(bits: &AtomicU32) -> f32 {
    f32::from_bits(bits.load(Relaxed))
}

/// Pairs (query, item), and a key per pair.
#[derive(Default)]
struct Found {
    pairs: Vec<(u32, u32)>,
    keys: Vec<f64>,
    of_query: (Vec<u32>, Keys),
}

impl Search<'_, '_> {
    /// Adds hits, sorted by row, to the lists of the queries. `margins` are the margins of the
    /// rows.
    fn receive<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        (first_query, first_item, margins): (usize, usize, &[f64]),
        hits: &[Hit],
        (scratch, Found { pairs, keys, of_query: (items, scores) }): (&mut Scratch, &mut Found),
    ) -> Result<()> {
        pairs.clear();
        keys.clear();
        for hits in hits.chunk_by(|a, b| a.row == b.row) {
            let (query, margin) =
                (first_query + hits[0].row as usize, margins[hits[0].row as usize]);
            let q = query - self.first_query;
            // The threshold may have increased since the task began, so compare the hits again.
            let least = task.least_product(f64::from(float(&self.thresholds[q])), margin);
            let hits = hits.iter().filter(|hit| hit.value >= least);
            items.clear();
            items.try_extend(hits.clone().map(|hit| first_item as u32 + hit.column))?;
            if self.filter.below.is_some() {
                let most = task.least_product(self.below[q], margin);
                if hits.clone().any(|hit| hit.value >= most) {
                    self.control.took(|| "bounds decided by scores");
                    self.filter.drop_beyond(space, query, items, scores)?;
                }
            } else {
                let screened = hits.map(|hit| space.key_of_screened(f64::from(hit.value)));
                keys.try_extend(screened.map_while(|key| key))?;
            }
            pairs.try_extend(items.iter().map(|item| (query as u32, *item)))?;
        }
        if keys.len() < pairs.len() {
            keys.clear();
            space.keys(pairs, scratch, keys)?;
        }
        let mut keys = keys.iter().copied();
        for of_query in pairs.chunk_by(|a, b| a.0 == b.0) {
            let query = of_query[0].0 as usize;
            let q = query - self.first_query;
            let mut list = self.lists[q].lock().expect("no thread panics while it holds the lock");
            if list.add(of_query.iter().map(|pair| pair.1).zip(&mut keys), None) {
                let threshold = least_value(space, query, list.worst().key());
                self.thresholds[q].store(threshold.to_bits(), Relaxed);
            }
        }
        Ok(())
    }

    /// Adds the queries to the lists, since a triangle lacks the diagonal.
    fn add_own<S: Space>(&self, space: &S) -> Result<()> {
        let make = || Ok(Keys::default());
        each(self.lists.par_iter().enumerate(), make, |keys, (query, list)| {
            keys.compute(space, query, [query as u32].into_iter())?;
            let mut list = list.lock().expect("no thread panics while it holds the lock");
            list.add(keys.with_items(), None);
            Ok(())
        })
    }
}

impl Observer for Search<'_, '_> {
    /// Where the hits of each row end in the sorted hits; the hits sorted by row; and the pairs.
    type Buffers = (Vec<u32>, Vec<Hit>, Found);

    fn group(&self, side: Side, item: usize) -> u32 {
        self.filter.group(side, item)
    }

    fn excluded_others(&self, query: usize) -> &[u32] {
        self.filter.excluded(query)
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        let q = query - self.first_query;
        visit((f64::from(float(&self.thresholds[q])), self.below[q]));
    }

    fn begin<S: Space>(
        &self,
        space: &S,
        packing: &impl Packing,
        blocks: Blocks<'_>,
        control: &Control,
    ) -> Result<()> {
        let Some(guess) = self.guess else { return Ok(()) };
        let below = |query: usize| self.below[query - self.first_query];
        guess.starts(
            space.kernel(),
            packing,
            blocks,
            (self.filter, below),
            control,
            |query, start, keys| {
                let q = query - self.first_query;
                let threshold = match start {
                    Start::Value(value) => {
                        self.guesses[q].store(value.to_bits(), Relaxed);
                        value
                    }
                    Start::Items(found) => {
                        keys.compute(space, query, found.iter().map(|(_, item)| *item))?;
                        let mut list =
                            self.lists[q].lock().expect("no thread panics while it holds the lock");
                        match list.begin(keys.with_items()) {
                            Some(key) => least_value(space, query, key),
                            None => return Ok(()),
                        }
                    }
                };
                self.thresholds[q].store(threshold.to_bits(), Relaxed);
                Ok(())
            },
        )
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        (ends, hits, found): &mut Self::Buffers,
    ) -> Result<()> {
        let rows = (&task.rows, &task.columns, task.row_margins);
        let columns = (&task.columns, &task.rows, task.column_margins);
        let transposed = |hit: &Hit| Hit { row: hit.column, column: hit.row, ..*hit };
        for is_row in [true, false] {
            let (queries, others, margins) = if is_row { rows } else { columns };
            let of_side = if is_row { &result.row_hits } else { &result.column_hits };
            let of_side = of_side.iter().map(|hit| if is_row { *hit } else { transposed(hit) });
            let is_allowed = |hit: &Hit| {
                let query = queries.start + hit.row as usize;
                self.filter.allows(query, others.start as u32 + hit.column)
            };
            let allowed = of_side.filter(is_allowed);
            sort_by_part(allowed, queries.len(), |hit| hit.row as usize, ends, hits)?;
            let side = (queries.start, others.start, margins);
            self.receive(space, task, side, hits, (scratch, found))?;
        }
        Ok(())
    }
}

/// Finds the `k` nearest gallery items that the filter allows, per query: scores and indices,
/// nearest first, ties by index.
///
/// `scores` and `indices` have the shape (queries, k). `score` must compute a score from a query
/// and a key. If there are fewer than k items, or the filter allows fewer, the remaining indices
/// will be −1, but the remaining scores will not be changed.
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
    if k < 1 {
        return argument("k is 0; expected at least 1");
    }
    if scores.len() != queries * k || indices.len() != queries * k {
        return argument(format!(
            "scores and indices have {} and {} entries; expected {queries} × {k}",
            scores.len(),
            indices.len()
        ));
    }
    let results = Results { k, score, scores, indices };
    if let Some(pairs) = filter.few_allowed(gallery, control) {
        nearest_allowed(space, filter, pairs, control, results)
    } else if filter.excludes_only_own() && prefers_tables(k, gallery, control) {
        nearest_from_tables(space, filter.own, control, results)
    } else {
        nearest_screened(space, filter, control, results)
    }
}

/// Finds the `k` nearest of the allowed items per query, by computing the keys of all allowed
/// items.
fn nearest_allowed<S: Space, T: Send, F: Fn(usize, f64) -> T + Sync>(
    space: &S,
    filter: Filter<'_>,
    pairs: u64,
    control: &Control,
    mut results: Results<'_, T, F>,
) -> Result<()> {
    let (k, queries) = (results.k, space.rows(Side::Query));
    control.add_to_total(pairs);
    let batch = (control.sizes().candidate_bytes / Nearest::bytes(k)).clamp(1, queries);
    let mut lists = try_collect((0..batch).map(|_| Nearest::new(k).map(Mutex::new)))?;
    for rows in blocks(0..queries, batch) {
        results.store(rows.start, &mut lists[..rows.len()], control, |query, _, list, keys| {
            add_all(space, query, &filter, list, keys)?;
            control.advance(filter.allowed.map_or(0, |allowed| allowed.of(query).len() as u64));
            Ok(true)
        })?;
    }
    Ok(())
}

/// Validates rows and finds the `k` nearest gallery items per query, as [`nearest`] does. If
/// queries are few, each gallery row is compared with all queries when the row is validated,
/// because packing the gallery for a screen would take longer.
pub fn knn<'a>(
    (queries, gallery): (Matrix<'a>, Option<Matrix<'a>>),
    (similarity, precision, kernel): (Similarity, Precision, &'static Kernel),
    (k, filter): (usize, Filter<'_>),
    control: &Control,
    similarities: &mut [f32],
    indices: &mut [i64],
) -> Result<()> {
    let (few, items) = (queries.rows(), gallery.as_ref().map_or(0, Source::rows));
    let unread = Dense::unread(queries, gallery, similarity, precision, kernel, control)?;
    let sizes = control.sizes();
    let is_few = filter.excludes_only_own()
        && few <= sizes.few_queries
        && (1..items).contains(&k)
        && few * Nearest::bytes(k) <= sizes.nearest_bytes;
    if !is_few {
        let space = unread.read(control)?;
        let score = |query, key| space.similarity_of_key(query, key);
        return nearest(&space, k, filter, control, score, similarities, indices);
    }
    let own = filter.own;
    own.check(few, items as u64)?;
    control.took(|| "few queries");
    control.add_to_total(few as u64 * items as u64);
    let mut lists = try_collect((0..few).map(|_| Nearest::new(k).map(Mutex::new)))?;
    let space = unread.compare_few(control, |query, first, keys| {
        let own = own.of(query).map(|own| own as u32);
        let mut list = lists[query].lock().expect("no thread panics while it holds the lock");
        list.add((first as u32..).zip(keys.iter().copied()), own);
    })?;
    let mut results = Results {
        k,
        score: |query, key| space.similarity_of_key(query, key),
        scores: similarities,
        indices,
    };
    results.store(0, &mut lists, control, |_, _, _, _| Ok(false))
}

/// Whether tables of keys are faster than a screen, as measured in
/// docs/internals/evaluator-speed.md.
fn prefers_tables(k: usize, gallery: usize, control: &Control) -> bool {
    let sizes = control.sizes();
    gallery <= sizes.few_items
        || k >= sizes.table_neighbours.max(gallery / sizes.items_per_table_neighbour)
}

/// Finds the `k` nearest gallery items per query among the items that a screen can't rule out.
pub(crate) fn nearest_screened<S: Space, T: Send, F: Fn(usize, f64) -> T + Sync>(
    space: &S,
    filter: Filter<'_>,
    control: &Control,
    mut results: Results<'_, T, F>,
) -> Result<()> {
    let (k, queries, gallery) = (results.k, space.rows(Side::Query), space.rows(Side::Gallery));
    let (sizes, of_query) = (control.sizes(), Nearest::bytes(k));
    let bytes = sizes.candidate_bytes;
    // A pair is compared once for both items if the lists of all queries fit into memory.
    let is_symmetric = space.is_own_gallery()
        && filter.is_symmetric()
        && queries * of_query <= bytes.max(sizes.bytes_per_input_byte * space.bytes());
    let (batch, pairs) = if is_symmetric {
        (queries, queries as u64 * (queries as u64 - 1) / 2)
    } else {
        ((bytes / of_query).clamp(1, queries), queries as u64 * gallery as u64)
    };
    control.add_to_total(pairs);
    let value_of_bound = |query: usize| {
        filter.below.map_or(f64::INFINITY, |bounds| space.value_of_score(bounds[query]))
    };
    let thresholds = || {
        let all = collect(0..queries as u32)?;
        let sampled = SampledValues::compute(
            space,
            &all,
            |query, item| filter.excludes(query, item),
            control,
        )?;
        // The k-th nearest in a share 1/m of the items has about rank m·k among all items.
        let mut thresholds = allocate(sampled.queries.len() * HALVES)?;
        for (i, &query) in sampled.queries.iter().enumerate() {
            let beyond = sampled.above(i, value_of_bound(query as usize)) as usize;
            for half in 0..HALVES {
                let (value, share) =
                    (sampled.at_rank(i, beyond + (k << half)), 0.5f64.powi(half as i32 + 1));
                thresholds.try_push(ExpectedThreshold { query, value, share })?;
            }
        }
        Ok(thresholds)
    };
    let packing = space.packing(&Goal { pairs, thresholds: &thresholds }, control)?;
    let guess = Guess::draw(space, &packing, k, &filter, control)?;
    if batch < queries {
        control.took(|| "neighbours in batches");
    }
    let mut lists = try_collect((0..batch).map(|_| Nearest::new(k).map(Mutex::new)))?;
    for rows in blocks(0..queries, batch) {
        let least = || collect(rows.clone().map(|_| AtomicU32::new(f32::MIN.to_bits())));
        let search = Search {
            first_query: rows.start,
            filter: &filter,
            below: collect(rows.clone().map(value_of_bound))?,
            guess: guess.as_ref(),
            lists: &lists,
            thresholds: least()?,
            guesses: least()?,
            control,
        };
        if is_symmetric {
            traverse_triangle(space, &packing, &search, rows.clone(), rows.clone(), control)?;
            if filter.finds_own() {
                search.add_own(space)?;
            }
        } else {
            traverse_rectangle(space, &packing, &search, rows.clone(), control)?;
        }
        let guesses = search.guesses;
        results.store(
            rows.start,
            &mut lists[..rows.len()],
            control,
            |query, last, list, keys| {
                let guess = float(&guesses[query - rows.start]);
                // When the k-th key is below the guess, items that were not listed may be nearer.
                let is_complete = guess == f32::MIN
                    || last.is_some_and(|last| least_value(space, query, last.key()) >= guess);
                if !is_complete {
                    control.took(|| "neighbours of all items");
                    add_all(space, query, &filter, list, keys)?;
                }
                Ok(!is_complete)
            },
        )?;
    }
    Ok(())
}

/// Compares a query with all items that the filter allows, and lists the nearest.
fn add_all<S: Space>(
    space: &S,
    query: usize,
    filter: &Filter<'_>,
    list: &mut Nearest,
    keys: &mut Keys,
) -> Result<()> {
    list.clear();
    filter.visit(query, space.rows(Side::Gallery), |items| {
        filter.drop_beyond(space, query, items, keys)?;
        keys.compute(space, query, items.iter().copied())?;
        list.add(keys.with_items(), None);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{names, select};
    use crate::random::Random;
    use crate::rows::own_item::OwnItem;
    use crate::search::filter::SharedLists;
    use crate::sizes::Sizes;

    const DIM: usize = 40;
    const ITEMS: usize = 900;

    /// Makes classes of similar rows, some rows equal, in class order or not.
    fn rows(of_a_class: usize, is_in_order: bool, seed: u64) -> Array2<f32> {
        let mut random = Random::new(seed);
        let classes = ITEMS.div_ceil(of_a_class);
        let centres = Array2::from_shape_fn((classes, DIM), |(_, j)| {
            (random.uniform() - 0.5) * (-0.1 * j as f64).exp()
        });
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
            k in 1usize..60, of_a_class in 2usize..80, is_in_order in any::<bool>(),
            excludes in any::<bool>(), seed in any::<u64>(),
            (has_labels, has_lists, has_bounds) in (any::<bool>(), any::<bool>(), any::<bool>()),
            (allows_some, have_own_lists) in (any::<bool>(), any::<bool>()),
        ) {
            let x = rows(of_a_class, is_in_order, seed);
            let own = if excludes || has_labels { OwnItem::SameIndex } else { OwnItem::Absent };
            let mut random = Random::new(seed ^ 1);
            let labels: Vec<u32> = (0..ITEMS as u32)
                .map(|i| if is_in_order { i % 2 } else { i / of_a_class as u32 })
                .collect();
            let lists: Vec<Vec<u32>> = (0..ITEMS)
                .map(|_| (0..ITEMS as u32).filter(|_| random.below(9) == 0).collect())
                .collect();
            let some: Vec<u32> = (0..ITEMS as u32).filter(|_| random.below(4) == 0).collect();
            // Some queries have an empty list, or all queries share a list.
            let (offsets, of_queries) = (
                [0, 0, some.len() as u64],
                (0..ITEMS as u32)
                    .map(|i| u32::from(have_own_lists && i % 50 > 0))
                    .collect::<Vec<_>>(),
            );
            let allowed = allows_some.then_some(SharedLists {
                offsets: if have_own_lists { &offsets } else { &offsets[1..] },
                items: &some,
                lists: &of_queries,
            });
            let mut below = Vec::new();
            let mut expected: Vec<Vec<(f64, i64)>> = Vec::new();
            let guesses = |guess_percent| Sizes {
                guessed_neighbours: 1,
                guess_spacing: 2,
                guess_percent,
                ..Sizes::default()
            };
            let whole = |sizes| Sizes { directions: Some(0), ..sizes };
            let sizes = [
                whole(Sizes::default()),
                Sizes { directions: Some(30), guess_spacing: 2, ..Sizes::default() },
                Sizes { candidate_bytes: 1, bytes_per_input_byte: 0, ..whole(guesses(10_000)) },
                Sizes { block_bytes: 20_000, ..whole(guesses(40)) },
            ];
            for (kernel, sizes) in
                names().into_iter().flat_map(|name| sizes.clone().map(|sizes| (name, sizes)))
            {
                let (rows, kernel) = (Matrix::F32(x.view()), select(Some(kernel)).unwrap());
                let control = Control::traced(sizes.clone());
                let dense = Dense::new(
                    rows,
                    None,
                    Similarity::Euclidean,
                    Precision::SixteenBit,
                    kernel,
                    &control,
                )
                .unwrap();
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
                                && !(allows_some
                                    && (have_own_lists && query % 50 == 0
                                        || !some.contains(&(other as u32))))
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
                    excluded: if has_lists { Some(&list) } else { None },
                    below: has_bounds.then_some(&bounds),
                    allowed,
                };
                let results =
                    Results { k, score: |_, key| key, scores: &mut keys, indices: &mut items };
                nearest_screened(&dense, filter, &control, results).unwrap();
                if allows_some && sizes.directions == Some(0) {
                    let (mut again, mut again_items) = (vec![0.0; ITEMS * k], vec![0; ITEMS * k]);
                    let results = Results {
                        k,
                        score: |_, key| key,
                        scores: &mut again,
                        indices: &mut again_items,
                    };
                    nearest_allowed(&dense, filter, 0, &control, results).unwrap();
                    prop_assert_eq!((&again, &again_items), (&keys, &items));
                }
                let found = keys.chunks(k).zip(items.chunks(k));
                for (query, (expected, (keys, items))) in expected.iter().zip(found).enumerate() {
                    let mut found: Vec<(f64, i64)> =
                        keys.iter().copied().zip(items.iter().copied()).collect();
                    found.truncate(expected.len());
                    prop_assert!(items[expected.len()..].iter().all(|item| *item == -1));
                    prop_assert_eq!(
                        &found,
                        expected,
                        "{} {:?}, query {}",
                        kernel.name,
                        sizes,
                        query
                    );
                }
                let is_guessed = sizes.directions == Some(0)
                    && k >= sizes.guessed_neighbours
                    && k < if allows_some { some.len() } else { ITEMS }
                    && !(has_labels || has_lists || has_bounds || allows_some && have_own_lists);
                prop_assert_eq!(control.paths().contains_key("thresholds guessed"), is_guessed);
            }
        }
    }
}
