//! Excludes single pairs from a task.

use std::ops::Range;

use crate::error::Result;
use crate::memory::Grow;

/// Pairs of a row and a column, sorted by tile, so that a tile finds the pairs even if other tiles
/// were skipped.
#[derive(Default)]
pub(crate) struct ExcludedPairs {
    /// Rows and columns per tile.
    shape: (usize, usize),
    pairs: Vec<(u32, u32)>,
}

impl ExcludedPairs {
    /// Collects the pairs in a task, given the sorted items to exclude per row and the items in
    /// columns.
    pub fn fill<'a>(
        &mut self,
        shape: (usize, usize),
        rows: impl Iterator<Item = &'a [u32]>,
        columns: &Range<usize>,
    ) -> Result<()> {
        self.shape = shape;
        self.pairs.clear();
        for (row, items) in rows.enumerate().filter(|(_, items)| !items.is_empty()) {
            let from = items.partition_point(|item| (*item as usize) < columns.start);
            let of_columns =
                items[from..].iter().take_while(|item| (**item as usize) < columns.end);
            self.pairs
                .try_extend(of_columns.map(|item| (row as u32, item - columns.start as u32)))?;
        }
        self.pairs.sort_unstable_by_key(|pair| tile_of(shape, pair));
        Ok(())
    }

    /// Whether the task does not exclude any pair.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// Sets the values of excluded pairs in a tile to −∞. The tile begins at row `i` and column `j`
    /// of the task.
    #[inline]
    pub fn mask(&self, tile: &mut [f32], (i, j): (usize, usize)) {
        let (height, width) = self.shape;
        let this = (j / width, i / height);
        let first = self.pairs.partition_point(|pair| tile_of(self.shape, pair) < this);
        for (row, column) in
            self.pairs[first..].iter().take_while(|pair| tile_of(self.shape, pair) == this)
        {
            tile[(*row as usize - i) * width + *column as usize - j] = f32::NEG_INFINITY;
        }
    }
}

/// Returns the column and the row of the tile with this pair.
fn tile_of((height, width): (usize, usize), (row, column): &(u32, u32)) -> (usize, usize) {
    (*column as usize / width, *row as usize / height)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::Random;

    proptest! {
        #[test]
        fn exactly_the_listed_pairs_are_masked_whichever_tiles_are_skipped(
            height in 1usize..4, width in 1usize..5, start in 0usize..9, columns in 1usize..14,
            skipped in any::<u64>(),
            lists in
                proptest::collection::vec(proptest::collection::btree_set(0u32..25, 0..8), 1..9),
        ) {
            let lists: Vec<Vec<u32>> =
                lists.into_iter().map(|items| items.into_iter().collect()).collect();
            let mut excluded = ExcludedPairs::default();
            for task in [start + 1..start + 2, start..start + columns] {
                excluded
                    .fill((height, width), lists.iter().map(|items| &items[..]), &task)
                    .unwrap();
                let any_in_task =
                    lists.iter().flatten().any(|item| task.contains(&(*item as usize)));
                prop_assert_eq!(excluded.is_empty(), !any_in_task);
                let mut random = Random::new(skipped);
                for j in (0..task.len()).step_by(width) {
                    for i in (0..lists.len()).step_by(height).filter(|_| random.below(2) == 0) {
                        let mut tile = vec![1.0; height * width];
                        excluded.mask(&mut tile, (i, j));
                        for (at, value) in tile.into_iter().enumerate() {
                            let (row, column) = (i + at / width, j + at % width);
                            let item = (task.start + column) as u32;
                            let listed = column < task.len()
                                && lists.get(row).is_some_and(|items| items.contains(&item));
                            prop_assert_eq!(value == f32::NEG_INFINITY, listed);
                        }
                    }
                }
            }
        }
    }
}
