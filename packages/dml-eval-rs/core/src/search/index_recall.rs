//! Computes the recall of an approximate index by comparing the results with the exact nearest
//! neighbours.

use ndarray::{ArrayView1, ArrayView2};
use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::{Grow, zeros};
use crate::rows::comparable::Comparable;
use crate::rows::keys::Keys;
use crate::search::filter::Filter;
use crate::search::nearest::nearest;
use crate::side::Side;

/// The id that an index returns in places for which it did not find an item.
const NONE: i64 = -1;

/// Computes per query the share of the first `k` found items with at least the key of the k-th
/// nearest item. If the filter allows n < k items, the share is that of n, or NaN if n is 0.
///
/// `found` must be of shape (queries, k or more) and contain gallery indices in the order that the
/// index returned, or −1 if missing. The query itself is skipped in `found`; other items that the
/// filter doesn't allow are wrong. The filter must not have bounds.
pub fn index_recall<S: Comparable>(
    space: &S,
    found: ArrayView2<'_, i64>,
    k: usize,
    filter: Filter<'_>,
    control: &Control,
) -> Result<Vec<f64>> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    if found.nrows() != queries || found.ncols() < k {
        return argument(format!(
            "found has shape ({}, {}); expected ({queries}, {k}) or more columns",
            found.nrows(),
            found.ncols()
        ));
    }
    // Report the first invalid row, even when a thread finds a later row earlier.
    let rows = found.outer_iter().into_par_iter().enumerate();
    let fault = rows
        .map_init(Vec::new, |sorted, (query, row)| check_row(query, row, gallery, sorted).err());
    if let Some(fault) = fault.find_map_first(|fault| fault) {
        return Err(fault);
    }

    let mut keys: Vec<f64> = zeros(queries * k)?;
    let mut indices: Vec<i64> = zeros(queries * k)?;
    nearest(space, k, filter, control, |_, key| key, &mut keys, &mut indices)?;
    let mut recall: Vec<f64> = zeros(queries)?;
    let exact = keys.par_chunks(k).zip(indices.par_chunks(k));
    recall.par_iter_mut().zip(exact).enumerate().try_for_each_init(
        Keys::default,
        |keys, (query, (recall, (nearest, indices)))| -> Result<()> {
            let own = filter.own.of(query).map(|own| own as i64);
            let others = found.row(query).into_iter().filter(|id| Some(**id) != own);
            let items = others.take(k).filter(|id| **id != NONE).map(|id| *id as u32);
            let keys =
                keys.compute(space, query, items.filter(|item| filter.allows(query, *item)))?;
            let exist = indices.iter().filter(|index| **index != NONE).count();
            let least = exist.checked_sub(1).map_or(f64::INFINITY, |last| nearest[last]);
            *recall = keys.iter().filter(|key| **key >= least).count() as f64 / exist as f64;
            control.check()
        },
    )?;
    Ok(recall)
}

fn check_row(
    query: usize,
    row: ArrayView1<'_, i64>,
    gallery: usize,
    sorted: &mut Vec<i64>,
) -> Result<()> {
    if let Some(id) = row.iter().find(|id| **id < NONE || **id >= gallery as i64) {
        return argument(format!(
            "found row {query} contains {id}; expected indices of the gallery, 0 to {}, or -1 for \
             none",
            gallery - 1
        ));
    }
    sorted.clear();
    sorted.try_extend(row.iter().copied().filter(|id| *id != NONE))?;
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => argument(format!(
            "found row {query} contains {} twice; expected each index once",
            pair[0]
        )),
        None => Ok(()),
    }
}
