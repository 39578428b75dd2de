//! Corrects a tile of products before the sweep.

use std::ops::Range;

use crate::screen::tiling::{columns_up_to, reaches_diagonal};

/// Sets values to −∞ in padding columns and, for pairs of a single array, where the row doesn't
/// come before the column. Tiles consist of `width` columns; `rows` and `columns` are the items.
#[inline]
pub(crate) fn mask_excluded(
    tile: &mut [f32],
    width: usize,
    rows: &Range<usize>,
    columns: &Range<usize>,
    symmetric: bool,
) {
    let on_diagonal = symmetric && reaches_diagonal(rows, columns);
    if !on_diagonal && columns.len() == width {
        return;
    }
    for (row, line) in rows.clone().zip(tile.chunks_exact_mut(width)) {
        if on_diagonal {
            line[..columns_up_to(row, columns.start, width)].fill(f32::NEG_INFINITY);
        }
        line[columns.len()..].fill(f32::NEG_INFINITY);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exactly_the_excluded_values_are_masked(
            first_row in 0usize..12, height in 1usize..6, first_column in 0usize..12,
            width in 1usize..8, padding in 0usize..3, symmetric in any::<bool>(),
        ) {
            let (rows, columns) =
                (first_row..first_row + height, first_column..first_column + width);
            let width = width + padding;
            let mut tile = vec![1.0; (height + 1) * width];
            mask_excluded(&mut tile, width, &rows, &columns, symmetric);
            for (at, value) in tile.into_iter().enumerate() {
                let (row, column) = (first_row + at / width, first_column + at % width);
                // Lines below the last row needn't be masked, because the kernel skips these lines.
                let counts =
                    row >= rows.end || column < columns.end && (!symmetric || row < column);
                prop_assert_eq!(value == 1.0, counts);
            }
        }
    }
}
