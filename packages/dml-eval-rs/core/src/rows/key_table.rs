//! Fills tables of keys, for all pairs of some queries and some items, tile by tile.

use std::ops::Range;

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate, each, full};
use crate::rows::panels::Panels;
use crate::side::Side;

/// The approximate maximum number of queries that a thread packs, and compares with a panel of
/// items while the panel is in the cache.
const QUERIES_PER_GROUP: usize = 64;

/// The shape of tiles and packed rows.
#[derive(Clone, Copy)]
pub(crate) struct Shape {
    /// Rows per tile.
    pub rows: usize,
    /// Columns per tile.
    pub columns: usize,
    /// Words per packed row.
    pub steps: usize,
    /// The number of tiles that a product writes.
    pub tiles: usize,
}

/// Fills `keys`, (queries, items), from tiles. `pack` packs rows of a side into a panel with a
/// number of lanes, `tile` multiplies a panel of queries by a panel of items, and `convert` turns
/// values, and the result of `prepare` for the items, into keys.
pub(crate) fn fill<T: Copy + Default + FromZeros + Send + Sync, V: Copy + Default, I, K: Send>(
    shape: Shape,
    (queries, items): (&[u32], &[u32]),
    pack: impl Fn(Side, &[u32], usize, &mut [T]) -> Result<()> + Sync,
    tile: impl Fn(&[T], &[T], &mut [V]) + Sync,
    (prepare, convert): (impl Fn(u32) -> I + Sync, impl Fn(&[I], &[V], &mut [K]) + Sync),
    keys: &mut [K],
    control: &Control,
) -> Result<()> {
    if queries.is_empty() {
        return Ok(());
    }
    let Shape { rows: height, columns: width, steps, tiles } = shape;
    // When queries are few, groups should be smaller, so that threads don't wait for each other.
    let group = QUERIES_PER_GROUP.min(queries.len() / (4 * rayon::current_num_threads()));
    let together = (group / height).max(1) * height;
    // A block must contain at least one panel.
    let item_block = (control.sizes().table_item_words / (steps * width)).max(1) * width;
    let is_one = items.len() <= item_block;
    control.took(|| if is_one { "table of keys" } else { "table of keys in blocks" });
    for (b, block_items) in items.chunks(item_block).enumerate() {
        let encode = |items: Range<usize>, panel: &mut [T], _: &mut [()]| {
            pack(Side::Gallery, &block_items[items], width, panel)
        };
        let (item_panels, _) = Panels::load(block_items.len(), width, steps, Vec::new(), encode)?;
        each(
            queries.par_chunks(together).zip(keys.par_chunks_mut(together * items.len())),
            || {
                let panels = Panels::new(together, height, steps, Vec::new())?;
                Ok((panels, full(tiles * height * width, V::default())?, allocate(width)?))
            },
            |(query_panels, values, prepared), (queries, keys)| {
                for (r, queries) in queries.chunks(height).enumerate() {
                    pack(Side::Query, queries, height, query_panels.panel_mut(r))?;
                }
                for (c, columns) in block_items.chunks(width).enumerate() {
                    prepared.clear();
                    prepared.try_extend(columns.iter().map(|item| prepare(*item)))?;
                    control.check()?;
                    for (r, lines) in keys.chunks_mut(height * items.len()).enumerate() {
                        tile(query_panels.panel(r), item_panels.panel(c), values);
                        for (line, values) in
                            lines.chunks_exact_mut(items.len()).zip(values.chunks_exact(width))
                        {
                            let line = &mut line[b * item_block + c * width..][..columns.len()];
                            convert(prepared, &values[..columns.len()], line);
                        }
                    }
                }
                Ok(())
            },
        )?;
    }
    Ok(())
}
