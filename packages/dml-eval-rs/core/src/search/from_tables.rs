//! Finds nearest neighbours from tables of keys, to be used when the gallery is small or k is a
//! large share of it.
//!
//! A screen would rule out few items, and computing the remaining keys one by one costs more than
//! computing a table.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, collect, each, zeros};
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::screen::tiling::blocks;
use crate::search::candidates::Candidates;
use crate::search::places::{Nearest, Place, Results, lock};
use crate::side::Side;

/// If the gallery is small, a table contains this share of the maximum number of keys, so that it
/// stays in the cores' caches.
const SMALL: usize = 8;

/// Finds the `k` nearest gallery items per query, as [`nearest`](super::nearest::nearest) does.
pub(super) fn nearest_from_tables<S: Space, T: Send, F: Fn(usize, f64) -> T + Sync>(
    space: &S,
    own: OwnItem<'_>,
    control: &Control,
    mut results: Results<'_, T, F>,
) -> Result<()> {
    let (k, sizes) = (results.k, control.sizes());
    let (all_queries, all_items) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let small_table = sizes.table_keys / SMALL / all_items;
    let together = (sizes.nearest_bytes / Nearest::bytes(k))
        .clamp(1, sizes.table_queries.max(small_table).clamp(1, all_queries));
    let items = (sizes.table_keys / together).clamp(1, all_items);
    control.took(|| {
        if items == all_items {
            "neighbours from tables"
        } else {
            "neighbours from tables of parts"
        }
    });
    control.add_to_total(all_queries as u64 * all_items as u64);
    let mut keys: Vec<f64> = zeros(together * items)?;
    // The nearest items of all parts but the last.
    let mut places = Nearest::places(k, if items == all_items { 0 } else { together })?;
    let lists = Nearest::lists(k, &mut places)?;
    let own = |query: usize| own.of(query).map(|own| own as u32);
    for queries in blocks(0..all_queries, together) {
        let rows = collect(queries.start as u32..queries.end as u32)?;
        let mut last = 0..0;
        for part in blocks(0..all_items, items) {
            let columns = collect(part.start as u32..part.end as u32)?;
            let keys = &mut keys[..rows.len() * part.len()];
            space.key_table(&rows, &columns, keys, control)?;
            control.check()?;
            if part.end < all_items {
                each(
                    keys.par_chunks(part.len()).zip(&lists).zip(queries.clone()),
                    || Ok(Candidates::default()),
                    |candidates, ((keys, list), query)| {
                        let found = candidates.find(k, keys, part.start, space.kernel())?;
                        lock(list).add(found, own(query));
                        Ok(())
                    },
                )?;
            }
            control.advance(keys.len() as u64);
            last = part;
        }
        results.store(queries.clone(), control, |query, found| {
            let row = query - queries.start;
            found.places.clear();
            if let Some(list) = lists.get(row) {
                lock(list).move_to(found)?;
            }
            let keys = &keys[row * last.len()..][..last.len()];
            let others = found.candidates.find(k, keys, last.start, space.kernel())?;
            let others = others.filter(|(item, _)| Some(*item) != own(query));
            found.places.try_extend(others.map(|(item, key)| Place::new(key, item)))?;
            found.sort(k, space.kernel())
        })?;
    }
    Ok(())
}
