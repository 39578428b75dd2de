//! Corrections of a tile of products before it is swept.

use std::ops::Range;

use crate::screen::tiling::{columns_up_to, reaches_diagonal};

/// Subtracts from each value the biases of its row and its column.
#[inline]
pub(crate) fn subtract_biases(tile: &mut [f32], row_biases: &[f32], column_biases: &[f32]) {
    for (line, row_bias) in tile.chunks_exact_mut(column_biases.len()).zip(row_biases) {
        for (value, column_bias) in line.iter_mut().zip(column_biases) {
            *value -= row_bias + column_bias;
        }
    }
}

/// Sets the values that do not count to −∞: those of padding columns, and, for the pairs of one array, those whose row does not
/// come before the column. The tile is `width` wide; `rows` and `columns` are its items.
#[inline]
pub(crate) fn mask_uncounted(
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

    #[test]
    fn biases_are_subtracted_by_row_and_by_column() {
        let mut tile = [10.0, 20.0, 30.0, 40.0, 50.0, 60.0];
        subtract_biases(&mut tile, &[1.0, 2.0], &[0.5, 0.25, 0.0]);
        assert_eq!(tile, [8.5, 18.75, 29.0, 37.5, 47.75, 58.0]);
    }

    proptest! {
        #[test]
        fn exactly_the_uncounted_values_are_masked(
            first_row in 0usize..12, height in 1usize..6, first_column in 0usize..12, width in 1usize..8, padding in 0usize..3,
            symmetric in any::<bool>(),
        ) {
            let (rows, columns) = (first_row..first_row + height, first_column..first_column + width);
            let width = width + padding;
            let mut tile = vec![1.0; (height + 1) * width];
            mask_uncounted(&mut tile, width, &rows, &columns, symmetric);
            for (at, value) in tile.into_iter().enumerate() {
                let (row, column) = (first_row + at / width, first_column + at % width);
                // The kernel ignores the lines below the last row.
                let counts = row >= rows.end || column < columns.end && (!symmetric || row < column);
                prop_assert_eq!(value == 1.0, counts);
            }
        }
    }
}
