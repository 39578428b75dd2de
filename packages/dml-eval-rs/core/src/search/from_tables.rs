//! Finds nearest neighbours from tables of keys, to be used when k is a large share of the gallery.
//!
//! A screen would rule out few items, and computing the remaining keys one by one costs more than
//! computing a table.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::{Grow, collect, each, zeros};
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::screen::cells::keep_larger;
use crate::screen::tiling::blocks;
use crate::search::places::{Nearest, Results};
use crate::side::Side;

/// Finds the `k` nearest gallery items per query, as [`nearest`](super::nearest::nearest) does.
pub(super) fn nearest_from_tables<S: Space, T: Send, F: Fn(usize, f64) -> T + Sync>(
    space: &S,
    own: OwnItem<'_>,
    control: &Control,
    mut results: Results<'_, T, F>,
) -> Result<()> {
    let (k, sizes) = (results.k, control.sizes());
    let (all_queries, all_items) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let queries = (sizes.nearest_bytes / Nearest::bytes(k))
        .clamp(1, sizes.table_queries.clamp(1, all_queries));
    let items = (sizes.table_keys / queries).clamp(1, all_items);
    control.took(|| {
        if items == all_items {
            "neighbours from tables"
        } else {
            "neighbours from tables of parts"
        }
    });
    control.add_to_total(all_queries as u64 * all_items as u64);
    let mut keys: Vec<f64> = zeros(queries * items)?;
    let mut places = Nearest::places(k, queries)?;
    let mut lists = Nearest::lists(k, &mut places)?;
    for queries in blocks(0..all_queries, queries) {
        let (rows, lists) =
            (collect(queries.start as u32..queries.end as u32)?, &mut lists[..queries.len()]);
        for items in blocks(0..all_items, items) {
            let columns = collect(items.start as u32..items.end as u32)?;
            let keys = &mut keys[..rows.len() * columns.len()];
            space.key_table(&rows, &columns, keys, control)?;
            control.check()?;
            each(
                keys.par_chunks(columns.len()).zip(&mut *lists).zip(&rows),
                || Ok(<(Vec<f64>, Vec<u32>)>::default()),
                |(maxima, found), ((keys, list), &query)| {
                    let least = least_of_nearest(k, keys, maxima, space.kernel())?;
                    found.try_resize(keys.len(), 0)?;
                    let mut count = 0;
                    for (i, key) in keys.iter().enumerate() {
                        // Store each index, and keep it by adding 0 or 1: a branch would often be
                        // mispredicted.
                        found[count] = i as u32;
                        count += usize::from(*key >= least);
                    }
                    let list = list.get_mut().expect("no thread panics while it holds the lock");
                    let found = found[..count].iter();
                    let found = found.map(|i| (columns[*i as usize], keys[*i as usize]));
                    list.add(found, own.of(query as usize).map(|own| own as u32));
                    Ok(())
                },
            )?;
            control.advance(keys.len() as u64);
        }
        results.store(queries.start, lists, control, |_, list, found| list.finish(found))?;
    }
    Ok(())
}

/// The number of lanes is a multiple of this, so that the compiler can use vector registers.
const LANES: usize = 8;

/// Computes a lower bound for the key of the k-th nearest item in a row of a table, where any item
/// may be the query itself.
///
/// Each lane keeps the largest of its keys, and these belong to different items. Therefore at least
/// k items other than the query have a key that is not smaller than the (k + 1)-th largest.
fn least_of_nearest(k: usize, keys: &[f64], maxima: &mut Vec<f64>, kernel: &Kernel) -> Result<f64> {
    let lanes = (2 * k + 1).next_multiple_of(LANES);
    if keys.len() < 2 * lanes {
        return Ok(f64::NEG_INFINITY);
    }
    maxima.clear();
    maxima.try_extend(keys[..lanes].iter().copied())?;
    for keys in keys[lanes..].chunks(lanes) {
        kernel.vectorize(|| keep_larger(maxima, keys));
    }
    Ok(*maxima.select_nth_unstable_by(k, |a, b| b.total_cmp(a)).1)
}
