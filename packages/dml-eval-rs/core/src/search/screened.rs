//! Finds nearest neighbours among the items that a screen can't rule out.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard};

use crate::control::Control;
use crate::counting_sort::sort_by_part;
use crate::error::Result;
use crate::kernel::{Hit, SweepResult};
use crate::memory::{Grow, collect};
use crate::rows::keys::Keys;
use crate::rows::packing::{ExpectedThreshold, Goal, Packing};
use crate::rows::space::{Scratch, Space};
use crate::screen::block::Blocks;
use crate::screen::expected::SampledValues;
use crate::screen::guess::{Guess, Start};
use crate::screen::rounding::round_down;
use crate::screen::tiling::blocks;
use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
use crate::search::filter::Filter;
use crate::search::from_allowed::find_all;
use crate::search::places::{Found, Nearest, Results, lock};
use crate::side::Side;

/// A search in progress.
struct Search<'a, 'f, 'm> {
    first_query: usize,
    filter: &'a Filter<'f>,
    guess: Option<&'a Guess>,
    /// The k nearest items per query so far.
    lists: &'a [Mutex<Nearest<'m>>],
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

/// Hits as pairs (query, item), and a key per pair.
#[derive(Default)]
struct Hits {
    pairs: Vec<(u32, u32)>,
    keys: Vec<f64>,
    of_query: (Vec<u32>, Keys),
}

impl<'m> Search<'_, '_, 'm> {
    fn list(&self, q: usize) -> MutexGuard<'_, Nearest<'m>> {
        lock(&self.lists[q])
    }

    fn set_threshold(&self, q: usize, threshold: f32) {
        self.thresholds[q].store(threshold.to_bits(), Relaxed);
    }

    /// Returns the hits of a row that the query's threshold, which may have increased since the
    /// task began, does not exclude.
    fn left<'h>(
        &self,
        task: &Task<'_>,
        (q, margin): (usize, f64),
        hits: &'h [Hit],
    ) -> impl Iterator<Item = &'h Hit> + Clone {
        let least = task.least_product(f64::from(float(&self.thresholds[q])), margin);
        hits.iter().filter(move |hit| hit.value >= least)
    }

    /// Adds hits, sorted by row, to the lists of the queries. `margins` are the margins of the
    /// rows.
    fn receive<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        (first_query, first_item, margins): (usize, usize, &[f64]),
        hits: &[Hit],
        (scratch, Hits { pairs, keys, of_query: (items, scores) }): (&mut Scratch, &mut Hits),
    ) -> Result<()> {
        let by_row = hits.chunk_by(|a, b| a.row == b.row).map(|hits| {
            let row = hits[0].row as usize;
            (first_query - self.first_query + row, margins[row], hits)
        });
        pairs.clear();
        keys.clear();
        for (q, margin, hits) in by_row {
            let (query, hits) = (self.first_query + q, self.left(task, (q, margin), hits));
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
            let mut list = self.list(q);
            let own = of_query.iter().map(|pair| pair.1).zip(&mut keys);
            if list.add(own, None)
                && let Some(worst) = list.worst()
            {
                self.set_threshold(q, least_value(space, query, worst.key()));
            }
        }
        Ok(())
    }
}

impl Observer for Search<'_, '_, '_> {
    /// Where the hits of each row end in the sorted hits; the hits sorted by row; and the pairs.
    type Buffers = (Vec<u32>, Vec<Hit>, Hits);

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
        let take = |query: usize, start: Start| {
            let q = query - self.first_query;
            match start {
                Start::Key(key) => self.set_threshold(q, least_value(space, query, key)),
                Start::Value(value) => {
                    self.guesses[q].store(value.to_bits(), Relaxed);
                    self.set_threshold(q, value);
                }
            }
        };
        let is_open = self.filter.labels.is_none() && self.filter.below.is_none();
        guess.starts(space, packing, blocks, (self, below, is_open), control, take)
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        (ends, hits, pairs): &mut Self::Buffers,
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
            self.receive(space, task, side, hits, (scratch, pairs))?;
        }
        Ok(())
    }
}

/// Finds the `k` nearest gallery items per query among the items that a screen can't rule out.
pub(crate) fn nearest_screened<S: Space, T: Send, F: Fn(usize, f64) -> T + Sync>(
    space: &S,
    filter: Filter<'_>,
    control: &Control,
    mut results: Results<'_, T, F>,
) -> Result<()> {
    let (k, queries, gallery) = (results.k, space.rows(Side::Query), space.rows(Side::Gallery));
    // A pair can be compared once for both items, with the lists of all queries in memory, which
    // take twice the memory of the results. New memory costs about as much per byte as a pair.
    let bytes = Nearest::bytes(k);
    let is_symmetric = space.is_own_gallery()
        && filter.is_symmetric()
        && (bytes <= queries || queries * bytes <= control.sizes().candidate_bytes);
    let pairs = if is_symmetric {
        queries as u64 * (queries as u64).saturating_sub(1) / 2
    } else {
        queries as u64 * gallery as u64
    };
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
        // Guesses are near the k-th nearest from the beginning.
        let expected = |(i, &query): (usize, &u32)| {
            let beyond = sampled.above(i, value_of_bound(query as usize)) as usize;
            ExpectedThreshold { query, value: sampled.at_rank(i, beyond + k), share: 1.0 }
        };
        collect(sampled.queries.iter().enumerate().map(expected))
    };
    let packing = space.packing(&Goal { pairs, thresholds: &thresholds }, control)?;
    let guess = Guess::draw(space, &packing, k, filter.allowed, control)?;
    let batch = if is_symmetric {
        queries
    } else {
        (control.sizes().candidate_bytes / bytes).clamp(1, queries)
    };
    control.add_to_total(pairs);
    if batch < queries {
        control.took(|| "neighbours in batches");
    }
    let mut places = Nearest::places(k, batch)?;
    let lists = Nearest::lists(k, &mut places)?;
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
        } else {
            traverse_rectangle(space, &packing, &search, rows.clone(), control)?;
        }
        let guesses = search.guesses;
        // A triangle lacks the diagonal.
        let have_own = is_symmetric && filter.finds_own();
        let own = |query: usize| have_own.then_some(query as u32);
        let complete = |query: usize, found: &mut Found| {
            let guess = float(&guesses[query - rows.start]);
            // When the k-th key is below the guess, items that were not listed may be nearer.
            let last = found.places.get(k - 1);
            let is_complete = guess == f32::MIN
                || last.is_some_and(|last| least_value(space, query, last.key()) >= guess);
            if is_complete {
                return Ok(());
            }
            control.took(|| "neighbours of all items");
            find_all(space, query, &filter, k, found)
        };
        results.store(rows.clone(), control, |query, found| {
            found.keys.compute(space, query, own(query).into_iter())?;
            let mut list = lock(&lists[query - rows.start]);
            list.add(found.keys.with_items(), None);
            list.finish(found, space.kernel())?;
            drop(list);
            complete(query, found)
        })?;
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
    use crate::rows::lists::Lists;
    use crate::rows::matrix::Matrix;
    use crate::rows::own_item::OwnItem;
    use crate::rows::similarity::Similarity;
    use crate::search::from_allowed::nearest_allowed;
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
            let allowed = allows_some.then_some(Lists {
                offsets: if have_own_lists { &offsets } else { &offsets[1..] },
                items: &some,
                of_queries: Some(&of_queries),
            });
            let mut below = Vec::new();
            let mut expected: Vec<Vec<(f64, i64)>> = Vec::new();
            let guesses = |guess_percent| Sizes {
                guess_spacing: 2,
                guess_percent,
                ..Sizes::default()
            };
            let whole = |sizes| Sizes { directions: Some(0), ..sizes };
            // A sample of the allowed items fills at least one panel of any kernel.
            let spaced = Sizes { guess_spacing: 2, ..Sizes::default() };
            let sizes = [
                whole(spaced.clone()),
                Sizes { directions: Some(30), ..spaced },
                Sizes { candidate_bytes: 1, ..whole(guesses(10_000)) },
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
                    && k < if allows_some { some.len() } else { ITEMS }
                    && !(allows_some && have_own_lists);
                prop_assert_eq!(control.paths().contains_key("thresholds guessed"), is_guessed);
            }
        }
    }
}
