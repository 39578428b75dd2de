//! Tiles of products: the size, and the comparison with thresholds.

use std::ops::Range;

use super::brackets::{ItemBrackets, Thresholds};
use super::sweep::{Sides, SweepResult};

/// Compares a tile with the thresholds of the rows and columns.
pub(crate) type Sweep = unsafe fn(
    tile: &[f32],
    rows: Thresholds<'_>,
    columns: Thresholds<'_>,
    origin: (u32, u32),
    result: &mut SweepResult,
);
/// Compares a tile with the brackets of the rows and columns, when items are given multiple
/// brackets.
pub(crate) type SweepBrackets = unsafe fn(
    sides: Sides,
    tile: &[f32],
    brackets: (&ItemBrackets, &ItemBrackets),
    at: (Range<usize>, usize),
    result: &mut SweepResult,
);

/// Tiles of a single size, for a kernel that this CPU can run.
#[derive(Clone, Copy)]
pub(crate) struct Tiles {
    /// Rows per tile.
    pub rows: usize,
    /// Columns per tile.
    pub columns: usize,
    pub(super) sweep: Sweep,
    /// Like `sweep`, but skips the thresholds of columns.
    pub(super) sweep_rows: Sweep,
    pub(super) sweep_brackets: SweepBrackets,
}

/// The size of the largest tile.
pub(crate) const MAX_TILE: usize = super::brackets::MAX_ROWS * 48;

impl Tiles {
    /// Compares a tile with the brackets of the rows, and of the columns if `sides` says so, and
    /// adds to the counts and hits of the task. There must be room for the hits. `tile_rows` and
    /// `column` tell where the tile begins in the task.
    #[inline]
    pub fn sweep(
        &self,
        sides: Sides,
        tile: &[f32],
        (rows, columns): (&ItemBrackets, &ItemBrackets),
        (tile_rows, column): (Range<usize>, usize),
        result: &mut SweepResult,
    ) {
        if rows.count() == 1 && columns.count() == 1 {
            let origin = (tile_rows.start as u32, column as u32);
            let column_thresholds = columns.first(column..column + self.columns);
            self.sweep_first(sides, tile, rows.first(tile_rows), column_thresholds, origin, result);
        } else {
            // SAFETY: `select` only returns kernels with instructions that the CPU supports; the
            // function checks the indices.
            unsafe {
                (self.sweep_brackets)(sides, tile, (rows, columns), (tile_rows, column), result)
            }
        }
    }

    pub(super) fn sweep_first(
        &self,
        sides: Sides,
        tile: &[f32],
        rows: Thresholds<'_>,
        columns: Thresholds<'_>,
        origin: (u32, u32),
        result: &mut SweepResult,
    ) {
        let height = rows.group.len();
        assert!(height <= self.rows && rows.low.len() == height && rows.high.len() == height);
        let width = self.columns;
        assert!(
            columns.group.len() == width
                && columns.low.len() == width
                && columns.high.len() == width
        );
        assert!(tile.len() >= self.rows * width);
        assert!(
            result.row_above.items >= origin.0 as usize + height
                && result.column_above.items >= origin.1 as usize + width
        );
        // SAFETY: `select` only returns kernels with instructions that the CPU supports; lengths
        // were checked above.
        unsafe {
            match sides {
                Sides::Both => (self.sweep)(tile, rows, columns, origin, result),
                Sides::Rows => (self.sweep_rows)(tile, rows, columns, origin, result),
            }
        }
    }
}
