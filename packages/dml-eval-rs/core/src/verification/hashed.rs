//! Samples pairs by a hash, so the sample does not depend on the order, or on the division into
//! blocks or over processes.

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate, collect, zeros};
use crate::random::Random;
use crate::rows::dense::Dense;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::pairs::PairLabels;

/// Computes the hash of a pair from the indices of the query and the item in the full sides.
pub(crate) fn hash(query: u64, item: u64) -> u64 {
    hash_query(query) ^ hash_item(item)
}

fn hash_query(query: u64) -> u64 {
    Random::new(query).bits()
}

fn hash_item(item: u64) -> u64 {
    Random::new(!item).bits()
}

/// Scores with the hashes of pairs, for all pairs with a hash that ends in at least `zeros` zeros.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HashedScores {
    /// Scores, and the hashes of the pairs.
    pub scores: Vec<(f64, u64)>,
    /// The minimum number of trailing zeros in a hash.
    pub zeros: u32,
}

impl HashedScores {
    /// Adds scores. When there are more than `capacity`, requires more zeros and drops scores,
    /// until they fit.
    pub fn append(&mut self, scores: &[(f64, u64)], capacity: usize) -> Result<()> {
        let zeros = self.zeros;
        let kept = || scores.iter().filter(|(_, hash)| hash.trailing_zeros() >= zeros);
        self.scores.make_room(kept().count())?;
        self.scores.try_extend(kept().copied())?;
        while self.scores.len() > capacity && self.zeros < u64::BITS {
            self.zeros += 1;
            let zeros = self.zeros;
            self.scores.retain(|(_, hash)| hash.trailing_zeros() >= zeros);
        }
        Ok(())
    }

    /// Adds a sample that may require a different number of zeros.
    pub(crate) fn join(&mut self, other: &HashedScores, capacity: usize) -> Result<()> {
        self.zeros = self.zeros.max(other.zeros);
        let zeros = self.zeros;
        self.scores.retain(|(_, hash)| hash.trailing_zeros() >= zeros);
        self.append(&other.scores, capacity)
    }
}

/// Samples the negatives of two blocks, or of a single block: at most `capacity` with a hash that
/// ends in at least `least` zeros. `first` contains the indices of the first query and the first
/// item in the full sides.
///
/// The hash is an exclusive or, so it ends in z zeros if the hashes of query and item agree in the
/// last z bits. These bits divide both sides into 2^z buckets, and a table of scores is computed
/// per pair of buckets with equal bits.
pub fn sample_block(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    first: (u64, u64),
    least: u32,
    capacity: usize,
    control: &Control,
) -> Result<HashedScores> {
    const MOST_ZEROS: u32 = 24;
    let (queries, items) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let fits = |zeros: &u32| {
        queries as f64 * items as f64 / 2f64.powi(*zeros as i32) <= capacity.max(1) as f64
    };
    let ending = (least..MOST_ZEROS).find(fits).unwrap_or(MOST_ZEROS.max(least));
    let mask = (1u64 << ending.min(MOST_ZEROS)) - 1;
    let by_bucket = |number: usize, hash_index: &dyn Fn(u32) -> u64| -> Result<Vec<(u32, u32)>> {
        let mut order = allocate(number)?;
        order.try_extend((0..number as u32).map(|i| ((hash_index(i) & mask) as u32, i)))?;
        order.sort_unstable();
        Ok(order)
    };
    let indices = |query: u32, item: u32| (first.0 + u64::from(query), first.1 + u64::from(item));
    let query_buckets = by_bucket(queries, &|query| hash_query(indices(query, 0).0))?;
    let item_buckets = by_bucket(items, &|item| hash_item(indices(0, item).1))?;
    let mut sample = HashedScores { scores: Vec::new(), zeros: ending };
    let mut rest = &item_buckets[..];
    for bucket in query_buckets.chunk_by(|a, b| a.0 == b.0) {
        rest = &rest[rest.partition_point(|item| item.0 < bucket[0].0)..];
        let same_bucket = &rest[..rest.partition_point(|item| item.0 == bucket[0].0)];
        let items = collect(same_bucket.iter().map(|item| item.1))?;
        if items.is_empty() {
            continue;
        }
        // Divide the queries into parts, so that a table isn't larger than the sample.
        for part in bucket.chunks((capacity / items.len()).max(1)) {
            let queries = collect(part.iter().map(|query| query.1))?;
            let mut table: Vec<f64> = zeros(queries.len() * items.len())?;
            space.score_table(&queries, &items, &mut table, control)?;
            control.check()?;
            let pairs = queries.iter().flat_map(|q| items.iter().map(move |g| (*q, *g)));
            let negatives = pairs
                .zip(table)
                .filter(|((q, g), _)| labels.counts(*q, *g) && labels.kind(*q, *g) == 0);
            let pair_hash = |(query, item): (u32, u32)| {
                let (query, item) = indices(query, item);
                hash(query, item)
            };
            let mut hashed = allocate(queries.len() * items.len())?;
            hashed.try_extend(negatives.map(|(pair, score)| (score, pair_hash(pair))))?;
            sample.append(&hashed, capacity)?;
        }
    }
    Ok(sample)
}
