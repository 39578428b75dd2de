//! Index arithmetic for a traversal: blocks limit memory, tasks fit into caches, and pairs on one
//! side of the diagonal are skipped.

use std::ops::Range;

use crate::sizes::Sizes;

/// The approximate size of a task's packed rows and columns, which must stay in the second-level
/// cache of a core.
const TASK_ROW_BYTES: usize = 192 << 10;
const TASK_COLUMN_BYTES: usize = 512 << 10;
/// The approximate size of a band of tasks, which must stay in a core's share of the third-level
/// cache.
const BAND_BYTES: usize = 2 << 20;
/// Bytes per packed word.
const WORD_BYTES: usize = 4;

/// The shapes on which the tiling depends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TileShape {
    /// Rows per tile.
    pub height: usize,
    /// Columns per tile.
    pub width: usize,
    /// Words per packed row, including the words of the rounded row.
    pub steps: usize,
}

impl TileShape {
    /// Computes the number of rows (or columns) per block: full panels of `lanes` rows, at least
    /// one panel.
    pub fn rows_per_block(self, lanes: usize, sizes: &Sizes) -> usize {
        (sizes.block_bytes / (WORD_BYTES * self.steps * lanes)).max(1) * lanes
    }

    /// Computes the number of rows (or columns) per task: full panels of `lanes` rows, limited by
    /// `bytes` and `most_panels`.
    fn lanes_per_task(self, bytes: usize, lanes: usize, most_panels: usize) -> usize {
        (bytes / (WORD_BYTES * self.steps * lanes)).clamp(1, most_panels) * lanes
    }
}

/// Splits a range into blocks of `size`. The last block may be shorter.
pub(crate) fn blocks(
    range: Range<usize>,
    size: usize,
) -> impl DoubleEndedIterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(size).map(move |start| start..(start + size).min(end))
}

/// The tasks for a pair of blocks: a grid of rectangles, in an order that suits the caches.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TaskGrid {
    /// The number of rows in one block, and of columns in the other.
    rows: usize,
    columns: usize,
    /// Rows and columns per task.
    task_rows: usize,
    task_columns: usize,
    /// Rows of tasks per band.
    band_tasks: usize,
}

impl TaskGrid {
    /// Divides blocks into tasks.
    pub fn new(rows: usize, columns: usize, shape: TileShape, sizes: &Sizes) -> Self {
        TaskGrid {
            rows,
            columns,
            task_rows: shape.lanes_per_task(TASK_ROW_BYTES, shape.height, sizes.task_row_panels),
            task_columns: shape.lanes_per_task(
                TASK_COLUMN_BYTES,
                shape.width,
                sizes.task_column_panels,
            ),
            band_tasks: (BAND_BYTES / TASK_ROW_BYTES).max(1),
        }
    }

    fn row_tasks(self) -> usize {
        self.rows.div_ceil(self.task_rows)
    }

    fn column_tasks(self) -> usize {
        self.columns.div_ceil(self.task_columns)
    }

    /// Counts the tasks.
    pub fn len(self) -> usize {
        self.row_tasks() * self.column_tasks()
    }

    /// Returns the rows and columns for task `index`, relative to the start of the blocks.
    ///
    /// Consecutive tasks share columns, which stay in the second-level cache while the rows of a
    /// band change. The rows of the band stay in the third-level cache while the columns change.
    pub fn task(self, index: usize) -> (Range<usize>, Range<usize>) {
        let tasks_per_band = self.band_tasks * self.column_tasks();
        let (band, within) = (index / tasks_per_band, index % tasks_per_band);
        let height = self.band_tasks.min(self.row_tasks() - band * self.band_tasks);
        let (row_task, column_task) = (band * self.band_tasks + within % height, within / height);
        let range =
            |task: usize, size: usize, end: usize| task * size..((task + 1) * size).min(end);
        (
            range(row_task, self.task_rows, self.rows),
            range(column_task, self.task_columns, self.columns),
        )
    }
}

/// Whether any row comes before any column of the array.
#[inline]
pub(crate) fn reaches_above_diagonal(rows: &Range<usize>, columns: &Range<usize>) -> bool {
    rows.start + 1 < columns.end
}

/// Whether any row doesn't come before a column of the array.
#[inline]
pub(crate) fn reaches_diagonal(rows: &Range<usize>, columns: &Range<usize>) -> bool {
    rows.end > columns.start
}

/// Counts the columns among `width` columns from `first_column` that don't come after the row, for
/// rows and columns of a single array.
#[inline]
pub(crate) fn columns_up_to(row: usize, first_column: usize, width: usize) -> usize {
    (row + 1).saturating_sub(first_column).min(width)
}

/// Counts pairs of a row and a column. For a single array, only pairs with a row before the column
/// count.
pub(crate) fn count_pairs(rows: &Range<usize>, columns: &Range<usize>, symmetric: bool) -> u64 {
    if !symmetric {
        return rows.len() as u64 * columns.len() as u64;
    }
    rows.clone().map(|row| columns.end.saturating_sub(columns.start.max(row + 1)) as u64).sum()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn ranges() -> impl Strategy<Value = (Range<usize>, Range<usize>)> {
        let range = || (0usize..30, 1usize..20).prop_map(|(start, len)| start..start + len);
        (range(), range())
    }

    proptest! {
        #[test]
        fn blocks_adjoin_and_have_at_most_their_size(
            start in 0usize..50, len in 0usize..100, size in 1usize..40,
        ) {
            let found: Vec<_> = blocks(start..start + len, size).collect();
            prop_assert!(found.iter().all(|block| (1..=size).contains(&block.len())));
            prop_assert_eq!(
                found.into_iter().flatten().collect::<Vec<_>>(),
                (start..start + len).collect::<Vec<_>>()
            );
        }

        #[test]
        fn tasks_cover_every_pair_of_their_blocks_once(
            rows in 1usize..40, columns in 1usize..40, task_rows in 1usize..9,
            task_columns in 1usize..9, band_tasks in 1usize..5,
        ) {
            let grid = TaskGrid { rows, columns, task_rows, task_columns, band_tasks };
            let mut times = vec![0; rows * columns];
            for index in 0..grid.len() {
                let (task_rows, task_columns) = grid.task(index);
                prop_assert!(!task_rows.is_empty() && !task_columns.is_empty());
                task_rows.for_each(|row| {
                    task_columns.clone().for_each(|column| times[row * columns + column] += 1)
                });
            }
            prop_assert!(times.iter().all(|times| *times == 1));
        }

        #[test]
        fn consecutive_tasks_of_a_band_share_their_columns(
            rows in 1usize..40, columns in 1usize..40, task_rows in 1usize..9,
            task_columns in 1usize..9, band_tasks in 1usize..5,
        ) {
            let grid = TaskGrid { rows, columns, task_rows, task_columns, band_tasks };
            let changes = (1..grid.len())
                .filter(|index| grid.task(*index).1 != grid.task(index - 1).1)
                .count();
            let bands = grid.row_tasks().div_ceil(band_tasks);
            prop_assert!(changes < bands * grid.column_tasks());
        }

        #[test]
        fn blocks_and_tasks_are_whole_panels(
            height in 1usize..9, width in 1usize..49, steps in 1usize..100_000,
        ) {
            let (shape, sizes) = (TileShape { height, width, steps }, Sizes::default());
            for lanes in [height, width] {
                let block = shape.rows_per_block(lanes, &sizes);
                prop_assert!(block > 0 && block.is_multiple_of(lanes));
                prop_assert!(block == lanes || block * steps * WORD_BYTES <= sizes.block_bytes);
                prop_assert!((block + lanes) * steps * WORD_BYTES > sizes.block_bytes);
            }
            let grid = TaskGrid::new(1, 1, shape, &sizes);
            prop_assert!(
                grid.task_rows.is_multiple_of(height)
                    && (1..=sizes.task_row_panels).contains(&(grid.task_rows / height))
            );
            prop_assert!(
                grid.task_columns.is_multiple_of(width)
                    && (1..=sizes.task_column_panels).contains(&(grid.task_columns / width))
            );
        }

        #[test]
        fn the_diagonal_is_where_rows_meet_columns(
            (rows, columns) in ranges(), symmetric in any::<bool>(),
        ) {
            let before = |row: usize, column: usize| row < column;
            let pairs =
                || rows.clone().flat_map(|row| columns.clone().map(move |column| (row, column)));
            prop_assert_eq!(
                reaches_above_diagonal(&rows, &columns),
                pairs().any(|(r, c)| before(r, c))
            );
            prop_assert_eq!(reaches_diagonal(&rows, &columns), pairs().any(|(r, c)| !before(r, c)));
            let counted = pairs().filter(|(r, c)| !symmetric || before(*r, *c)).count();
            prop_assert_eq!(count_pairs(&rows, &columns, symmetric), counted as u64);
            for row in rows.clone() {
                let expected = columns.clone().filter(|column| !before(row, *column)).count();
                prop_assert_eq!(columns_up_to(row, columns.start, columns.len()), expected);
            }
        }
    }
}
