//! Rules out tiles by products of abridged rows, as long as this rules out enough tiles.

use std::ops::Range;

use crate::kernel::{ItemBrackets, Kernel};
use crate::screen::block::Blocks;

/// Counts the tiles of a task that were tried, and the tiles that could not be ruled out.
#[derive(Default)]
pub(super) struct Preview {
    tried: u32,
    left: u32,
}

impl Preview {
    /// Whether some tried tiles were excluded.
    pub fn has_ruled_out(&self) -> bool {
        self.left < self.tried
    }

    /// Finds the tiles of a column panel and at most 64 row panels that may contain values that
    /// reach a bracket. Bit p of the result stands for the p-th row panel. The brackets belong to
    /// the rows of the task, and to columns from a given column on.
    pub fn left(
        &mut self,
        kernel: &Kernel,
        Blocks { rows, columns }: Blocks<'_>,
        (row_panels, column_panel): (Range<usize>, usize),
        (of_rows, of_columns): (&ItemBrackets, (&ItemBrackets, usize)),
    ) -> u64 {
        let all = u64::MAX >> (64 - row_panels.len());
        let (Some(rows), Some(columns)) = (&rows.abridged, &columns.abridged) else { return all };
        // A tile of abridged rows costs half as much as a full tile, so a preview pays only if it
        // rules out half of the tiles.
        if 2 * self.left > self.tried {
            return all;
        }
        let least_of_rows = of_rows.lowest_from(0, row_panels.len() * kernel.number_tiles.rows);
        let least_of_columns = of_columns.0.lowest_from(of_columns.1, kernel.number_tiles.columns);
        self.tried += row_panels.len() as u32;
        let (of_rows, of_column) =
            (rows.panels(row_panels), columns.panels(column_panel..column_panel + 1));
        let left =
            kernel.reaches(rows.steps, of_rows, of_column, (least_of_rows, least_of_columns));
        self.left += left.count_ones();
        left
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::control::Control;
    use crate::error::Result;
    use crate::kernel::{Hit, SweepResult, names, select};
    use crate::random::Random;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::dense_packing::DensePacking;
    use crate::rows::matrix::Matrix;
    use crate::rows::packing::{Axis, Packing};
    use crate::rows::similarity::Similarity;
    use crate::rows::space::{Scratch, Space};
    use crate::screen::block::Block;
    use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
    use crate::side::Side;

    const ROWS: usize = 330;
    const DIM: usize = 60;

    /// Pairs with a value that may reach an item's threshold: this item, the other item, and the
    /// bits of the upper bound.
    struct Above {
        /// The smallest threshold. If a threshold is not given, all pairs are listed.
        least: Option<f64>,
        found: Mutex<BTreeSet<(usize, usize, u64)>>,
    }

    /// Returns an item's threshold. Few thresholds can be reached by values, so errors for a single
    /// item stay visible.
    fn threshold(least: f64, item: usize) -> f64 {
        if item % 61 == 5 { least } else { 2.0 }
    }

    impl Observer for Above {
        type Buffers = ();

        fn group(&self, side: Side, _item: usize) -> u32 {
            u32::from(side == Side::Query)
        }

        fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
            visit((
                self.least.map_or(f64::NEG_INFINITY, |least| threshold(least, query)),
                f64::INFINITY,
            ));
        }

        fn observe<S: Space>(
            &self,
            _: &S,
            task: &Task<'_>,
            result: &SweepResult,
            _: &mut Scratch,
            (): &mut (),
        ) -> Result<()> {
            let mut found = self.found.lock().unwrap();
            let mut add = |hit: &Hit, (own, other): (usize, usize), margin: f64| {
                let (_, upper) = task.bounds(hit.row, hit.column, hit.value, margin);
                if self.least.is_none_or(|least| upper >= threshold(least, own)) {
                    found.insert((own, other, upper.to_bits()));
                }
            };
            for (hits, is_row) in [(&result.row_hits, true), (&result.column_hits, false)] {
                for hit in hits {
                    let (r, c) = (hit.row as usize, hit.column as usize);
                    let (row, column) = (task.rows.start + r, task.columns.start + c);
                    if is_row {
                        add(hit, (row, column), task.row_margins[r]);
                    } else {
                        add(hit, (column, row), task.column_margins[c]);
                    }
                }
            }
            Ok(())
        }
    }

    /// Makes classes of ten similar rows, which differ along few directions.
    fn rows(seed: u64) -> Array2<f32> {
        let mut random = Random::new(seed);
        let mut centre = [0.0; DIM];
        Array2::from_shape_fn((ROWS, DIM), |(i, j)| {
            let length = (-0.1 * j as f64).exp();
            if i % 10 == 0 {
                centre[j] = (random.uniform() - 0.5) * length;
            }
            (centre[j] + 0.1 * (random.uniform() - 0.5) * length) as f32
        })
    }

    /// Returns the axes along which rows differ most.
    fn longest_axes() -> Vec<f64> {
        (0..40 * DIM).map(|at| f64::from(u8::from(at / DIM == at % DIM))).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 6, ..ProptestConfig::default() })]

        #[test]
        fn no_pair_above_a_threshold_is_ruled_out(
            seed in any::<u64>(), least in 0.0f64..0.9, is_triangle in any::<bool>(),
        ) {
            let x = rows(seed);
            let control = Control::default();
            for kernel in names().into_iter().map(|name| select(Some(name)).unwrap()) {
                let (rows, precision) = (Matrix::F32(x.view()), Precision::SixteenBit);
                let dense = Dense::new(rows, None, Similarity::Cosine, precision, kernel, &control)
                    .unwrap();
                for packing in
                    DensePacking::of_each_kind(&dense).iter().filter(|packing| packing.is_sorted())
                {
                    let above = |least| {
                        let above = Above { least, found: Mutex::default() };
                        if is_triangle {
                            traverse_triangle(&dense, packing, &above, 0..ROWS, 0..ROWS, &control)
                                .unwrap();
                        } else {
                            traverse_rectangle(&dense, packing, &above, 0..ROWS, &control).unwrap();
                        }
                        above.found.into_inner().unwrap()
                    };
                    let mut expected = above(None);
                    expected
                        .retain(|(own, _, upper)| f64::from_bits(*upper) >= threshold(least, *own));
                    prop_assert!(above(Some(least)) == expected, "{}", kernel.name);
                }
            }
        }
    }

    #[test]
    fn tiles_of_unlike_rows_are_ruled_out_until_they_are_too_few() {
        let x = rows(1);
        let control = Control::default();
        for kernel in names()
            .into_iter()
            .map(|name| select(Some(name)).unwrap())
            .filter(|kernel| kernel.has_int16())
        {
            let (rows, precision) = (Matrix::F32(x.view()), Precision::SixteenBit);
            let dense =
                Dense::new(rows, None, Similarity::Cosine, precision, kernel, &control).unwrap();
            let packing = DensePacking::along(&dense, &longest_axes());
            let block = |axis, width| {
                Block::load(&packing, Side::Query, axis, 0..ROWS, width, &control).unwrap()
            };
            let (rows, columns) = (
                block(Axis::Rows, kernel.number_tiles.rows),
                block(Axis::Columns, kernel.number_tiles.columns),
            );
            let blocks = Blocks { rows: &rows, columns: &columns };
            let panels = ROWS / kernel.number_tiles.rows;
            let left = |preview: &mut Preview, threshold: f32| {
                let (mut of_rows, mut of_columns) =
                    (ItemBrackets::default(), ItemBrackets::default());
                of_rows.reset(panels * kernel.number_tiles.rows).unwrap();
                of_columns.reset(kernel.number_tiles.columns).unwrap();
                for row in 0..panels * kernel.number_tiles.rows {
                    of_rows.set(row, 0, (threshold, f32::INFINITY));
                }
                preview
                    .left(kernel, blocks, (0..panels, 0), (&of_rows, (&of_columns, 0)))
                    .count_ones() as usize
            };
            let mut preview = Preview::default();
            // Only the rows of this panel and few others are similar.
            let found = left(&mut preview, 0.95);
            assert!(0 < found && found < panels / 2, "{}: {found} of {panels}", kernel.name);
            assert_eq!(left(&mut preview, -2.0), panels);
            // Most tiles could not be ruled out, so the next tiles will not be tried, even if they
            // could be ruled out.
            assert_eq!(left(&mut preview, 2.0), panels);
        }
    }
}
