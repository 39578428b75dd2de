//! Single pairs of a task whose values do not count.

use std::ops::Range;

/// Pairs of a row and a column of a task, in the order in which its tiles are swept: by columns of tiles, then by rows.
#[derive(Default)]
pub(crate) struct UncountedPairs {
    /// Rows and columns of a tile.
    shape: (usize, usize),
    pairs: Vec<(u32, u32)>,
    /// The number of pairs in the tiles that were masked.
    masked: usize,
}

impl UncountedPairs {
    /// Replaces the pairs by those of a task, given each row's items, ascending, and the items of the task's columns.
    pub fn fill<'a>(&mut self, shape: (usize, usize), rows: impl Iterator<Item = &'a [u32]>, columns: &Range<usize>) {
        self.shape = shape;
        self.pairs.clear();
        self.masked = 0;
        for (row, items) in rows.enumerate().filter(|(_, items)| !items.is_empty()) {
            let from = items.partition_point(|item| (*item as usize) < columns.start);
            let of_columns = items[from..].iter().take_while(|item| (**item as usize) < columns.end);
            self.pairs.extend(of_columns.map(|item| (row as u32, item - columns.start as u32)));
        }
        self.pairs
            .sort_unstable_by_key(|(row, column)| (*column as usize / shape.1, *row as usize / shape.0, *row, *column));
    }

    /// Sets the values of the next tile's pairs to −∞. The tile begins at this row and column of the task.
    #[inline]
    pub fn mask(&mut self, tile: &mut [f32], (i, j): (usize, usize)) {
        let (height, width) = self.shape;
        while let Some(&(row, column)) = self.pairs.get(self.masked) {
            let (row, column) = (row as usize, column as usize);
            if !(i..i + height).contains(&row) || !(j..j + width).contains(&column) {
                break;
            }
            tile[(row - i) * width + column - j] = f32::NEG_INFINITY;
            self.masked += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn exactly_the_listed_pairs_are_masked(
            height in 1usize..4, width in 1usize..5, start in 0usize..9, columns in 1usize..14,
            lists in proptest::collection::vec(proptest::collection::btree_set(0u32..25, 0..8), 1..9),
        ) {
            let lists: Vec<Vec<u32>> = lists.into_iter().map(|items| items.into_iter().collect()).collect();
            let mut uncounted = UncountedPairs::default();
            for task in [start + 1..start + 2, start..start + columns] {
                uncounted.fill((height, width), lists.iter().map(|items| &items[..]), &task);
                for j in (0..task.len()).step_by(width) {
                    for i in (0..lists.len()).step_by(height) {
                        let mut tile = vec![1.0; height * width];
                        uncounted.mask(&mut tile, (i, j));
                        for (at, value) in tile.into_iter().enumerate() {
                            let (row, column) = (i + at / width, j + at % width);
                            let item = (task.start + column) as u32;
                            let listed = column < task.len() && lists.get(row).is_some_and(|items| items.contains(&item));
                            prop_assert_eq!(value == f32::NEG_INFINITY, listed);
                        }
                    }
                }
            }
        }
    }
}
