//! Finds nearest neighbours when a filter allows few items, by computing the keys of all of them.

use crate::control::Control;
use crate::error::Result;
use crate::rows::space::Space;
use crate::search::filter::Filter;
use crate::search::places::{Found, Nearest, Results};
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
    control.add_to_total(pairs);
    let k = results.k;
    results.store(0..space.rows(Side::Query), control, |query, found| {
        find_all(space, query, &filter, k, found)?;
        control.advance(filter.allowed.map_or(0, |allowed| allowed.of(query).len() as u64));
        Ok(())
    })
}

/// Finds the `k` nearest items of a query by comparing it with all items that the filter allows.
pub(super) fn find_all<S: Space>(
    space: &S,
    query: usize,
    filter: &Filter<'_>,
    k: usize,
    found: &mut Found,
) -> Result<()> {
    let mut places = Nearest::places(k, 1)?;
    let mut list = Nearest::new(k, &mut places);
    let keys = &mut found.keys;
    filter.visit(query, space.rows(Side::Gallery), |items| {
        filter.drop_beyond(space, query, items, keys)?;
        keys.compute(space, query, items.iter().copied())?;
        list.add(keys.with_items(), None);
        Ok(())
    })?;
    list.finish(found, space.kernel())
}
