//! Rules out parts of tiles by comparisons of rounded rows, as long as this saves time.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::{Kernel, Parts, WHOLE};
use crate::memory::Grow;
use crate::screen::block::Blocks;

/// Comparisons pay if they leave at most this share of the cost, in percent.
const WORTH: usize = 45;
/// A task first compares the tiles of this number of row panels.
const TRIAL: usize = 8;

/// The comparisons of a task.
#[derive(Default)]
pub(super) struct Preview {
    /// The parts of tiles that were compared, and the cost to multiply the parts that were left.
    compared: usize,
    cost: usize,
    /// The parts that are left, per row panel.
    parts: Vec<Parts>,
}

impl Preview {
    /// Starts a task.
    pub fn start(&mut self) {
        (self.compared, self.cost) = (0, 0);
    }

    /// Whether some parts were excluded.
    pub fn has_ruled_out(&self) -> bool {
        self.cost < self.compared
    }

    fn pays(&self) -> bool {
        self.cost * 100 <= self.compared * WORTH
    }

    /// Finds per row panel the parts of the tile with a column panel that may contain values that
    /// reach the threshold `least` of the row or column.
    pub fn left(
        &mut self,
        kernel: &Kernel,
        Blocks { rows, columns }: Blocks<'_>,
        (row_panels, column_panel): (Range<usize>, usize),
        least: (&[f32], &[f32]),
    ) -> Result<&[Parts]> {
        self.parts.clear();
        self.parts.try_resize(row_panels.len(), WHOLE)?;
        let (Some(rows), Some(columns), Some(partial)) =
            (&rows.rounded, &columns.rounded, &kernel.partial)
        else {
            return Ok(&self.parts);
        };
        let all = row_panels.len();
        let first = if self.compared == 0 { TRIAL.min(all) } else { all };
        let of_column = columns.panels(column_panel..column_panel + 1);
        let height = kernel.number_tiles.rows;
        for some in [0..first, first..all] {
            if self.pays() && !some.is_empty() {
                let of_rows =
                    rows.panels(row_panels.start + some.start..row_panels.start + some.end);
                let least = (&least.0[some.start * height..some.end * height], least.1);
                let (words, parts) = ((of_rows, of_column), &mut self.parts[some.clone()]);
                let cost = kernel.reaching_parts(rows.steps(), words, least, parts);
                self.compared += partial.parts * some.len();
                self.cost += cost as usize;
            }
        }
        Ok(&self.parts)
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
    use crate::kernel::{Hit, SweepResult, Tiles, Word, names, select};
    use crate::random::Random;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::dense_packing::DensePacking;
    use crate::rows::matrix::Matrix;
    use crate::rows::packing::{Axis, Packing};
    use crate::rows::similarity::Similarity;
    use crate::rows::space::{Scratch, Space};
    use crate::screen::block::{Block, Memory};
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
                for packing in &DensePacking::of_each_kind(&dense) {
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
            let along = DensePacking::along(&dense, &longest_axes());
            let whole = DensePacking::of_each_kind(&dense).into_iter().find(|kind| {
                !kind.is_sorted() && kind.word() == Word::Int16Pair && kind.rounding().is_some()
            });
            assert_eq!(whole.is_some(), kernel.partial.is_some());
            let Tiles { rows: height, columns: width, .. } = kernel.number_tiles;
            for packing in [along].iter().chain(&whole) {
                let block = |axis, width| {
                    Block::load(
                        packing,
                        (Side::Query, axis),
                        0..ROWS,
                        width,
                        Memory::default(),
                        &control,
                    )
                    .unwrap()
                };
                let (rows, columns) = (block(Axis::Rows, height), block(Axis::Columns, width));
                let blocks = Blocks { rows: &rows, columns: &columns };
                let panels = ROWS / height;
                let left = |preview: &mut Preview, threshold: f32| {
                    let least = (vec![threshold; panels * height], vec![f32::INFINITY; width]);
                    // Later than the panels that are tried first.
                    let at = (0..panels, ROWS / width - 1);
                    let parts = preview.left(kernel, blocks, at, (&least.0, &least.1)).unwrap();
                    parts.iter().filter(|parts| **parts != 0).count()
                };
                let mut preview = Preview::default();
                // Only the rows of this panel and few others are similar.
                let found = left(&mut preview, 0.95);
                assert!(0 < found && found < panels / 2, "{}: {found} of {panels}", kernel.name);
                assert!(preview.has_ruled_out());
                assert_eq!(left(&mut preview, -2.0), panels);
                // Most tiles could not be ruled out, so the next tiles are not tried, even if they
                // could be ruled out.
                assert_eq!(left(&mut preview, 2.0), panels);
                // The next task tries some tiles first.
                preview.start();
                assert_eq!(left(&mut preview, -2.0), panels);
                assert_eq!(preview.compared, TRIAL * kernel.partial.as_ref().unwrap().parts);
                assert!(!preview.has_ruled_out());
                preview.start();
                assert_eq!(left(&mut preview, 2.0), 0);
            }
        }
    }
}
