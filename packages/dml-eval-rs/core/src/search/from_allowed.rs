//! Finds nearest neighbours when a filter allows few items, by computing the keys of all of them.

use crate::control::Control;
use crate::error::Result;
use crate::rows::keys::Keys;
use crate::rows::space::Space;
use crate::screen::tiling::blocks;
use crate::search::filter::Filter;
use crate::search::places::{Nearest, Results};
use crate::side::Side;

/// Finds the `k` nearest of the allowed items per query, by computing the keys of all allowed
/// items.
pub(super) fn nearest_allowed<S: Space, T: Send, F: Fn(usize, f64) -> T + Sync>(
    space: &S,
    filter: Filter<'_>,
    pairs: u64,
    control: &Control,
    mut results: Results<'_, T, F>,
) -> Result<()> {
    let (k, queries) = (results.k, space.rows(Side::Query));
    control.add_to_total(pairs);
    let batch = (control.sizes().candidate_bytes / Nearest::bytes(k)).clamp(1, queries);
    let mut places = Nearest::places(k, batch)?;
    let mut lists = Nearest::lists(k, &mut places)?;
    for rows in blocks(0..queries, batch) {
        results.store(rows.start, &mut lists[..rows.len()], control, |query, list, found| {
            add_all(space, query, &filter, list, &mut found.keys)?;
            control.advance(filter.allowed.map_or(0, |allowed| allowed.of(query).len() as u64));
            list.finish(found)
        })?;
    }
    Ok(())
}

/// Compares a query with all items that the filter allows, and lists the nearest.
pub(super) fn add_all<S: Space>(
    space: &S,
    query: usize,
    filter: &Filter<'_>,
    list: &mut Nearest<'_>,
    keys: &mut Keys,
) -> Result<()> {
    filter.visit(query, space.rows(Side::Gallery), |items| {
        filter.drop_beyond(space, query, items, keys)?;
        keys.compute(space, query, items.iter().copied())?;
        list.add(keys.with_items(), None);
        Ok(())
    })
}
