//! Queries with very many matches: their keys are all computed, since a screen would leave too much of them to decide.
//!
//! A negative's slot then lies between two positives of perhaps thousands. A guide finds it: even buckets from the largest key to the
//! lowest one that matters, each knowing which positives are in it.

use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use crate::books::{Books, Positive};
use crate::control::Control;
use crate::error::Result;
use crate::memory::{collected, zeros};
use crate::space::{Side, Space};

/// Keys that are held at a time, in all.
const KEYS: usize = 4 << 20;
/// Queries that are taken together: enough that packing the gallery for them costs little beside the products.
const QUERIES: usize = 512;
/// Keys after which positives that no longer matter are dropped, at least: as many as there are positives to look through.
const PIECE: usize = 1024;

/// From how many matches on all keys of a query are computed.
pub(crate) fn least_matches<S: Space>(space: &S) -> usize {
    const FEW: usize = 32;
    (space.rows(Side::Gallery) / space.crowd_share()).max(FEW)
}

/// What is counted: the negatives of a part of a gallery whose first item has the index `first_item` in the whole.
pub(crate) struct Count<'a> {
    pub books: &'a Books,
    /// The query that the books begin with.
    pub first_query: usize,
    pub query_labels: &'a [u32],
    pub gallery_labels: &'a [u32],
    pub first_item: u64,
}

impl Count<'_> {
    /// Counts for these queries, each once.
    pub fn run<S: Space>(&self, space: &S, queries: &[u32], control: &Control) -> Result<()> {
        let items = space.rows(Side::Gallery) as u32;
        let span = (KEYS / QUERIES.min(queries.len()).max(1)) as u32;
        let mut keys: Vec<f64> = zeros(QUERIES.min(queries.len()) * items.min(span) as usize)?;
        for queries in queries.chunks(QUERIES) {
            for start in (0..items).step_by(span as usize) {
                let columns = collected(start..items.min(start.saturating_add(span)))?;
                let keys = &mut keys[..queries.len() * columns.len()];
                space.key_table(queries, &columns, keys, control)?;
                control.check()?;
                keys.par_chunks(columns.len()).zip(queries).for_each_init(
                    Buffers::default,
                    |buffers, (keys, &query)| {
                        self.tally(query as usize, keys, start as usize, buffers);
                    },
                );
                control.advance(keys.len() as u64);
            }
        }
        Ok(())
    }

    /// Counts the negatives among the items from `start` on, whose keys are given.
    fn tally(&self, query: usize, keys: &[f64], start: usize, buffers: &mut Buffers) {
        let Buffers { guide, candidates } = buffers;
        let (q, label) = (query - self.first_query, self.query_labels[query]);
        let positives = self.books.positives(q);
        let slots = self.books.slots(q);
        let mut active = self.books.still_active(q, positives.len());
        let Some(lowest) = positives[..active].last() else { return };
        let mut lowest = lowest.key;
        guide.draw(&positives[..active]);
        let piece = PIECE.max(active);
        for (p, keys) in keys.chunks(piece).enumerate() {
            let first = start + p * piece;
            let labels = &self.gallery_labels[first..first + keys.len()];
            // Without a branch, which would be guessed wrong half of the time.
            candidates.resize(keys.len(), 0);
            let mut found = 0;
            for (i, (&key, &other)) in keys.iter().zip(labels).enumerate() {
                candidates[found] = i as u32;
                found += usize::from((key >= lowest) & (other != label));
            }
            for &i in &candidates[..found] {
                let key = keys[i as usize];
                let index = self.first_item + (first + i as usize) as u64;
                let slot = &slots[self.books.slot_among(q, guide.range(key), key, index)];
                // Nobody else counts for this query.
                slot.store(slot.load(Relaxed) + 1, Relaxed);
            }
            active = self.books.still_active(q, active);
            lowest = positives[active - 1].key;
        }
    }
}

#[derive(Default)]
struct Buffers {
    guide: Guide,
    candidates: Vec<u32>,
}

/// Which of the sorted positives can be near a key.
#[derive(Default)]
struct Guide {
    highest: f64,
    scale: f64,
    /// How many positives are in the buckets before each, and in all.
    starts: Vec<u32>,
}

impl Guide {
    /// For positives by key, descending, at least one.
    fn draw(&mut self, positives: &[Positive]) {
        let buckets = 2 * positives.len();
        self.highest = positives[0].key;
        let width = self.highest - positives[positives.len() - 1].key;
        self.scale = if width > 0.0 { (buckets as f64 / width).min(f64::MAX) } else { 0.0 };
        self.starts.clear();
        self.starts.resize(buckets + 1, positives.len() as u32);
        let mut next = 0;
        for (i, positive) in positives.iter().enumerate() {
            let bucket = self.bucket(positive.key);
            while next <= bucket {
                self.starts[next] = i as u32;
                next += 1;
            }
        }
    }

    /// The bucket of a key that is no lower than the lowest. It never falls as keys fall, so that positives in earlier buckets
    /// have larger keys, and those in later ones smaller keys.
    fn bucket(&self, key: f64) -> usize {
        (((self.highest - key) * self.scale) as usize).min(self.starts.len() - 2)
    }

    /// All positives before this range have larger keys, and all after it smaller ones.
    fn range(&self, key: f64) -> std::ops::Range<usize> {
        let bucket = self.bucket(key);
        self.starts[bucket] as usize..self.starts[bucket + 1] as usize
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_guide_points_to_where_a_search_would_end(
            mut keys in proptest::collection::vec(prop_oneof![(-4i8..4).prop_map(f64::from), -1e3f64..1e3, Just(1e300), Just(1e-310)], 1..80),
            asked in proptest::collection::vec(prop_oneof![(-4i8..4).prop_map(f64::from), -1e3f64..1e3], 1..40),
        ) {
            keys.sort_by(|a, b| b.total_cmp(a));
            let positives: Vec<Positive> = keys.iter().map(|&key| Positive { key, index: 0 }).collect();
            let mut guide = Guide::default();
            guide.draw(&positives);
            for key in keys.iter().chain(&asked).copied().filter(|k| *k >= keys[keys.len() - 1]) {
                let range = guide.range(key);
                prop_assert!(keys[..range.start].iter().all(|k| *k > key));
                prop_assert!(keys[range.end..].iter().all(|k| *k < key));
            }
        }
    }
}
