//! Counts of negatives from tables of keys, for queries with many positives.
//!
//! Among many positives a screen leaves too many values open, so all keys are computed. A negative's slot then lies between two
//! of perhaps thousands of positives; a bucket index finds it.

use std::ops::Range;
use std::sync::atomic::Ordering::Relaxed;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{collect, zeros};
use crate::rank::count_job::CountJob;
use crate::rank::positive::Positive;
use crate::rows::space::Space;
use crate::side::Side;

/// Returns the number of positives from which on a query has many.
pub(crate) fn many_positives<S: Space>(space: &S, control: &Control) -> usize {
    const LEAST: usize = 32;
    let fastest = || (space.rows(Side::Gallery) / space.items_per_positive()).max(LEAST);
    control.sizes().many_positives.unwrap_or_else(fastest)
}

/// Counts the negatives of these queries, each given once, among some of the items, for jobs that begin with the same query.
pub(crate) fn count_from_tables<S: Space>(
    space: &S,
    jobs: &[CountJob<'_>],
    queries: &[u32],
    items: Range<usize>,
    control: &Control,
) -> Result<()> {
    let (first, end) = (items.start as u32, items.end as u32);
    let sizes = control.sizes();
    let together = sizes.table_queries.min(queries.len()).max(1);
    let span = (sizes.table_keys / together).max(1) as u32;
    let mut keys: Vec<f64> = zeros(together * (end - first).min(span) as usize)?;
    for queries in queries.chunks(together) {
        for start in (first..end).step_by(span as usize) {
            let columns = collect(start..end.min(start.saturating_add(span)))?;
            let keys = &mut keys[..queries.len() * columns.len()];
            space.key_table(queries, &columns, keys, control)?;
            control.check()?;
            control.took(|| if end - first > span { "counts from tables of parts" } else { "counts from tables" });
            keys.par_chunks_mut(columns.len()).zip(queries).for_each_init(
                Buffers::default,
                |buffers, (keys, &query)| {
                    for job in jobs {
                        mask_uncounted(job, query as usize, keys, start, &mut buffers.masked);
                        count_query(job, query as usize, keys, start as usize, sizes.table_chunk, buffers);
                        buffers.masked.drain(..).for_each(|(i, key)| keys[i] = key);
                    }
                },
            );
            control.advance(keys.len() as u64);
        }
    }
    Ok(())
}

/// Sets the keys of items that are never counted to −∞, given those of the items from `start` on. Keeps the former keys in `masked`.
fn mask_uncounted(job: &CountJob<'_>, query: usize, keys: &mut [f64], start: u32, masked: &mut Vec<(usize, f64)>) {
    let items = job.relation.uncounted(query);
    let end = start as usize + keys.len();
    for &item in &items[items.partition_point(|item| *item < start)..] {
        if item as usize >= end {
            break;
        }
        let i = (item - start) as usize;
        masked.push((i, keys[i]));
        keys[i] = f64::NEG_INFINITY;
    }
}

/// Counts one query's negatives among the items from `start` on, given their keys.
fn count_query(
    job: &CountJob<'_>,
    query: usize,
    keys: &[f64],
    start: usize,
    least_chunk: usize,
    buffers: &mut Buffers,
) {
    let Buffers { index, candidates, .. } = buffers;
    let (q, class) = (query - job.first_query, job.relation.class(Side::Query, query));
    let positives = job.counts.positives(q);
    let slots = job.counts.slots(q);
    let mut active = job.counts.count_active(q, positives.len());
    let Some(lowest) = positives[..active].last() else { return };
    let mut lowest = lowest.key;
    index.rebuild(&positives[..active]);
    let chunk = least_chunk.max(active);
    for (c, keys) in keys.chunks(chunk).enumerate() {
        let first = start + c * chunk;
        let classes = &job.relation.gallery_classes()[first..first + keys.len()];
        // Without a branch, which the CPU would mispredict half of the time.
        candidates.resize(keys.len(), 0);
        let mut found = 0;
        for (i, (&key, &other)) in keys.iter().zip(classes).enumerate() {
            candidates[found] = i as u32;
            found += usize::from((key >= lowest) & (other != class));
        }
        for &i in &candidates[..found] {
            let key = keys[i as usize];
            let gallery_index = job.relation.gallery_index(first as u32 + i);
            let slot = &slots[job.counts.slot_in(q, index.range(key), key, gallery_index)];
            // No other thread counts for this query.
            slot.store(slot.load(Relaxed) + 1, Relaxed);
        }
        active = job.counts.count_active(q, active);
        lowest = positives[active - 1].key;
    }
}

#[derive(Default)]
struct Buffers {
    index: BucketIndex,
    candidates: Vec<u32>,
    /// The places and keys of the items that are never counted.
    masked: Vec<(usize, f64)>,
}

/// An index of sorted positives: buckets of equal width from the largest key to the lowest.
#[derive(Default)]
struct BucketIndex {
    highest: f64,
    scale: f64,
    /// The number of positives before each bucket, and in all.
    starts: Vec<u32>,
}

impl BucketIndex {
    /// Indexes at least one positive, sorted by key, descending.
    fn rebuild(&mut self, positives: &[Positive]) {
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

    /// Returns the bucket of a key that is no lower than the lowest. It never decreases as keys decrease, so positives in
    /// earlier buckets have larger keys, and those in later ones smaller keys.
    fn bucket(&self, key: f64) -> usize {
        (((self.highest - key) * self.scale) as usize).min(self.starts.len() - 2)
    }

    /// Returns a range of positives such that all before it have larger keys, and all after it smaller ones.
    fn range(&self, key: f64) -> Range<usize> {
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
        fn an_index_finds_the_range_of_a_binary_search(
            mut keys in proptest::collection::vec(prop_oneof![(-4i8..4).prop_map(f64::from), -1e3f64..1e3, Just(1e300), Just(1e-310)], 1..80),
            asked in proptest::collection::vec(prop_oneof![(-4i8..4).prop_map(f64::from), -1e3f64..1e3], 1..40),
        ) {
            keys.sort_by(|a, b| b.total_cmp(a));
            let positives: Vec<Positive> = keys.iter().map(|&key| Positive { key, index: 0 }).collect();
            let mut index = BucketIndex::default();
            index.rebuild(&positives);
            for key in keys.iter().chain(&asked).copied().filter(|k| *k >= keys[keys.len() - 1]) {
                let range = index.range(key);
                prop_assert!(keys[..range.start].iter().all(|k| *k > key));
                prop_assert!(keys[range.end..].iter().all(|k| *k < key));
            }
        }
    }
}
