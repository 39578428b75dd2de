//! Fills tables of keys, for all pairs of some queries and some items, tile by tile.

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate, each, full};
use crate::rows::panels::Panels;
use crate::rows::space::Scratch;
use crate::side::Side;

/// The approximate maximum number of queries that a thread compares with a panel of items while the
/// panel is in the cache.
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

/// Packs rows into panels of `width` lanes. `encode` must write the words for one row.
pub(crate) fn pack_rows<T: Copy + Default + FromZeros + Send + Sync>(
    rows: &[u32],
    width: usize,
    steps: usize,
    encode: impl Fn(usize, &mut Scratch, &mut [T]) -> Result<()> + Sync,
) -> Result<Panels<T>> {
    let row =
        |i: usize, scratch: &mut Scratch, words: &mut [T]| encode(rows[i] as usize, scratch, words);
    Panels::load(rows.len(), width, steps, row).map(|(panels, _)| panels)
}

/// Fills `keys`, (queries, items), from tiles. `pack` packs rows of a side into panels with a
/// number of lanes, `tile` multiplies a panel of queries by a panel of items, and `convert` turns
/// values, and the result of `prepare` for the items, into keys.
pub(crate) fn fill<T: Copy + Default + FromZeros + Send + Sync, V: Copy + Default, I, K: Send>(
    shape: Shape,
    (queries, items): (&[u32], &[u32]),
    pack: impl Fn(Side, &[u32], usize) -> Result<Panels<T>>,
    tile: impl Fn(&[T], &[T], &mut [V]) + Sync,
    (prepare, convert): (impl Fn(u32) -> I + Sync, impl Fn(&[I], &[V], &mut [K]) + Sync),
    keys: &mut [K],
    control: &Control,
) -> Result<()> {
    let Shape { rows: height, columns: width, steps, tiles } = shape;
    // When queries are few, groups should be smaller, so that threads don't wait for each other.
    let group = QUERIES_PER_GROUP.min(queries.len() / (4 * rayon::current_num_threads()));
    let together = (group / height).max(1);
    // A block must contain at least one panel.
    let together_in = |words: usize, lanes: usize| (words / (steps * lanes)).max(1) * lanes;
    let query_block = together_in(control.sizes().table_query_words, height);
    let item_block = together_in(control.sizes().table_item_words, width);
    control.took(|| {
        let is_one = queries.len() <= query_block && items.len() <= item_block;
        if is_one { "table of keys" } else { "table of keys in blocks" }
    });
    for (block_queries, keys) in
        queries.chunks(query_block).zip(keys.chunks_mut(query_block * items.len()))
    {
        let query_panels = pack(Side::Query, block_queries, height)?;
        for (b, block_items) in items.chunks(item_block).enumerate() {
            let item_panels = pack(Side::Gallery, block_items, width)?;
            each(
                keys.par_chunks_mut(together * height * items.len()).enumerate(),
                || Ok((full(tiles * height * width, V::default())?, allocate(width)?)),
                |(values, prepared), (group, keys)| {
                    for (c, columns) in block_items.chunks(width).enumerate() {
                        prepared.clear();
                        prepared.try_extend(columns.iter().map(|item| prepare(*item)))?;
                        control.check()?;
                        for (r, lines) in keys.chunks_mut(height * items.len()).enumerate() {
                            tile(
                                query_panels.panel(group * together + r),
                                item_panels.panel(c),
                                values,
                            );
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
    }
    Ok(())
}
