//! Verifies codes by distance. Distances are few, so two histograms contain all that a verification
//! can ask for.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate, collect, try_collect, zeros};
use crate::peers::{Peers, part, reduce};
use crate::rows::codes::Codes;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::pairs::{PairLabels, indices};

/// Lines of a table that a thread processes per batch.
const LINES: usize = 16;
/// The kinds of pairs: negative, positive, excluded.
const KINDS: usize = 3;
/// Copies per counter, because a CPU can add to two copies at once, but not to a single copy.
const COPIES: usize = 2;

/// The numbers of pairs per distance, starting at 0.
#[derive(Debug, PartialEq)]
pub struct Distances {
    /// The number of pairs with equal labels, per distance.
    pub positives: Vec<u64>,
    /// The number of pairs with different labels, per distance.
    pub negatives: Vec<u64>,
}

/// Counts all pairs of queries and items by distance, or all unordered pairs of distinct items of a
/// single array. Peers count parts, and all return the complete result.
pub fn count_distances(
    space: &Codes<'_>,
    labels: &PairLabels<'_>,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Distances> {
    labels.check(space, space.is_own_gallery())?;
    let (own, side) = (labels.gallery.is_none(), control.sizes().distance_table);
    let (queries, items) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let first_item = |query: usize| if own { query } else { 0 };
    let part = part(peers, queries, |query| (items - first_item(query)) as u64);
    let starts = || part.clone().step_by(side);
    control.add_to_total(
        starts().map(|q| ((items - first_item(q)) * side.min(part.end - q)) as u64).sum(),
    );
    let distances = space.bits() + 1;
    let counters = (0..rayon::current_num_threads())
        .map(|_| zeros::<u64>(COPIES * KINDS * distances).map(Mutex::new));
    let counters = try_collect(counters)?;
    let mut table: Vec<f64> = zeros(side.min(part.len()) * side.min(items))?;
    for query in starts() {
        let rows = indices(query..part.end.min(query + side))?;
        for item in (first_item(query)..items).step_by(side) {
            let columns = indices(item..items.min(item + side))?;
            let table = &mut table[..rows.len() * columns.len()];
            space.key_table(&rows, &columns, table, control)?;
            control.check()?;
            table.par_chunks(LINES * columns.len()).zip(rows.par_chunks(LINES)).for_each(
                |(lines, rows)| {
                    let thread = rayon::current_thread_index().unwrap_or(0);
                    let mut counts =
                        counters[thread].lock().expect("no thread panicked while it held the lock");
                    for (keys, &row) in lines.chunks(columns.len()).zip(rows) {
                        let skipped = if own {
                            (row as usize + 1).saturating_sub(item).min(keys.len())
                        } else {
                            0
                        };
                        for (i, (key, &column)) in
                            keys.iter().zip(&columns).enumerate().skip(skipped)
                        {
                            let at = distances * (KINDS * (i % COPIES) + labels.kind(row, column))
                                + (-key) as usize;
                            counts[at] += 1;
                        }
                    }
                },
            );
            control.advance(table.len() as u64);
        }
    }
    let mut sums: Vec<u64> = zeros(2 * distances)?;
    for counter in counters {
        let counts = counter.into_inner().expect("no thread panicked while it held the lock");
        for copy in counts.chunks(KINDS * distances) {
            sums.iter_mut().zip(copy).for_each(|(sum, count)| *sum += count);
        }
    }
    let mut negatives = if peers.is_alone() { sums } else { reduce(peers, &sums)? };
    let mut positives = allocate(distances)?;
    positives.try_extend(negatives.drain(distances..))?;
    Ok(Distances { positives, negatives: collect(negatives.into_iter())? })
}
