//! Computes the scores of all pairs, tile by tile.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::exact::padded_len;
use crate::memory::{ready, zeros};
use crate::rows::dense::Dense;
use crate::rows::space::Space;
use crate::screen::tiling::{blocks, count_pairs, reaches_above_diagonal};
use crate::side::Side;

/// The approximate number of queries that a thread takes per batch, so that the panels stay in the
/// second-level cache.
const QUERIES: usize = 64;

/// Computes the scores of all pairs of `queries` and the gallery. For each tile, `visit` receives a
/// state, the queries, the items, and the scores, (queries, columns of a tile). For a single array,
/// a tile may include pairs with a query that isn't before the item. `begin` makes the state for a
/// group of tiles, and `end` receives the final state.
pub(crate) fn visit_scores<T>(
    space: &Dense<'_>,
    queries: Range<usize>,
    control: &Control,
    begin: impl Fn() -> Result<T> + Sync,
    visit: impl Fn(&mut T, Range<usize>, Range<usize>, &[f64]) + Sync,
    end: impl Fn(T) + Sync,
) -> Result<()> {
    let exact = &space.kernel().exact;
    let (height, width, own) = (exact.rows, exact.columns, space.is_own_gallery());
    let rows_per_panels = |lanes: usize| {
        let panels = control.sizes().table_item_words / (padded_len(space.dim()) * lanes);
        panels.max(1) * lanes
    };
    let all = 0..space.rows(Side::Gallery);
    control.add_to_total(count_pairs(&queries, &all, own));
    for rows in blocks(queries, rows_per_panels(height)) {
        let row_panels = space.score_panels(Side::Query, rows.clone())?;
        for columns in blocks(all.clone(), rows_per_panels(width)) {
            if own && !reaches_above_diagonal(&rows, &columns) {
                continue;
            }
            control.check()?;
            let column_panels = space.score_panels(Side::Gallery, columns.clone())?;
            let panels = rows.len().div_ceil(height);
            let together =
                (QUERIES / height).min(panels / (4 * rayon::current_num_threads())).max(1);
            (0..panels.div_ceil(together)).into_par_iter().try_for_each_init(
                || zeros(8 * height * width),
                |tile, group| -> Result<()> {
                    let tile = ready(tile)?;
                    let mut state = begin()?;
                    let group = group * together..panels.min((group + 1) * together);
                    for (c, items) in blocks(columns.clone(), width).enumerate() {
                        for r in group.clone() {
                            let start = rows.start + r * height;
                            let queries = start..rows.end.min(start + height);
                            if !own || reaches_above_diagonal(&queries, &items) {
                                let (row_panel, column_panel) =
                                    (row_panels.panel(r), column_panels.panel(c));
                                space.score_tile(
                                    (queries.clone(), row_panel),
                                    (items.clone(), column_panel),
                                    tile,
                                );
                                visit(&mut state, queries, items.clone(), tile);
                            }
                        }
                        control.check()?;
                    }
                    end(state);
                    let queries = rows.start + group.start * height
                        ..rows.end.min(rows.start + group.end * height);
                    control.advance(count_pairs(&queries, &columns, own));
                    Ok(())
                },
            )?;
        }
    }
    control.check()
}
