//! Groups adjacent panels of a block into cells, and computes a mean per cell. If similar items are
//! adjacent, as in a data set sorted by class, the means show which cells are likely to contain a
//! query's nearest items. With thresholds from these items, most tiles can be ruled out. Compared
//! with thresholds from a random sample, `knn` (k = 10) of 19,744 x 256 rows with a decaying
//! spectrum, sorted by class, is 1.04, 1.1, 1.3 and 1.8 times as fast for 8, 16, 32 and 64 rows per
//! class. See `benchmarks/evaluator/compare.py --work trained-knn` for trained embeddings.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{AFFINE_STEPS, Kernel, MAX_TILE, Word, Work};
use crate::memory::{Grow, zeros};
use crate::rows::narrow_panels::{NarrowPanels, Panel, multiply};
use crate::rows::packing::Packing;
use crate::rows::row_words::{Numbers, RowWords};
use crate::screen::block::Block;

/// Cells are used if the variance of their means is at least this multiple of the variance expected
/// for random cells.
const LEAST_VARIANCE: f64 = 2.0;
/// Lanes that are summed in a vector register. Must divide the width of int16 panels.
const LANES: usize = 16;

/// The packed means of all cells in a block.
pub(super) struct Cells {
    means: NarrowPanels,
    cells: usize,
    /// Panels per cell.
    together: usize,
    steps: usize,
}

/// Buffers for a thread.
#[derive(Default)]
pub(super) struct Nearness {
    tile: Vec<f32>,
    /// The largest value per cell, with the index of the cell.
    values: Vec<(f32, u32)>,
    panels: Vec<u32>,
}

impl Cells {
    /// Makes cells from a block. Returns `None` if rows aren't int16 prefixes, or if adjacent items
    /// aren't similar.
    pub fn of(
        block: &Block,
        packing: &impl Packing,
        kernel: &Kernel,
        control: &Control,
    ) -> Result<Option<Cells>> {
        let (width, steps) = (kernel.number_tiles.columns, packing.steps());
        let together = (control.sizes().cell_items / width).max(1);
        let cells = block.rows.len() / (together * width);
        if packing.word() != Word::Int16Pair || !packing.is_sorted() || cells == 0 {
            return Ok(None);
        }
        // A mean is stored as these numbers and then a bias.
        let numbers = 2 * (steps - AFFINE_STEPS);
        let mut means: Vec<f64> = zeros(cells * (numbers + 1))?;
        means.par_chunks_exact_mut(numbers + 1).enumerate().for_each(|(cell, mean)| {
            for p in cell * together..(cell + 1) * together {
                kernel.vectorize(AddRows { words: block.panel(p).words(), width, sums: mean });
            }
            mean.iter_mut().for_each(|v| *v /= (together * width) as f64);
        });
        if variance_ratio(&means, numbers, block, together * width)? < LEAST_VARIANCE {
            return Ok(None);
        }
        let encode = |cells: Range<usize>, lanes: usize, panel: &mut [u32], _: &mut [()]| {
            let mut words = RowWords::new(Word::Int16Pair);
            for (lane, cell) in cells.enumerate() {
                let (mean, bias) = means[cell * (numbers + 1)..][..numbers + 1].split_at(numbers);
                words.round(&Numbers::of_mean(mean, bias[0]))?;
                words.write(lane, lanes, panel);
            }
            Ok(())
        };
        let (means, _) = NarrowPanels::load(cells, width, steps, encode, (usize::MAX, Vec::new()))?;
        Ok(Some(Cells { means, cells, together, steps }))
    }

    /// Returns about `panels` panels, from the cells with means nearest to any of the first
    /// `queries` queries in `rows`.
    pub fn nearest<'a>(
        &self,
        kernel: &Kernel,
        rows: Panel<'_>,
        queries: usize,
        panels: usize,
        nearness: &'a mut Nearness,
    ) -> Result<&'a [u32]> {
        let Nearness { tile, values, panels: nearest } = nearness;
        tile.try_resize(MAX_TILE, 0.0)?;
        values.clear();
        let product = kernel.product(Word::Int16Pair);
        for p in 0..self.cells.div_ceil(kernel.number_tiles.columns) {
            multiply(product, self.steps, (rows, self.means.panel(p)), tile)?;
            let (largest, others) = tile.split_at_mut(kernel.number_tiles.columns);
            for line in others.chunks_exact(kernel.number_tiles.columns).take(queries - 1) {
                kernel.vectorize(|| keep_larger(largest, line));
            }
            let first = (p * kernel.number_tiles.columns) as u32;
            values.try_extend(largest.iter().copied().zip(first..self.cells as u32))?;
        }
        let most = (panels / self.together).clamp(1, values.len());
        values.select_nth_unstable_by(most - 1, |a, b| b.0.total_cmp(&a.0));
        nearest.clear();
        for (_, cell) in &values[..most] {
            let first = cell * self.together as u32;
            nearest.try_extend(first..first + self.together as u32)?;
        }
        Ok(nearest)
    }
}

/// Replaces `largest` by the elementwise maximum, without branches.
#[inline(always)]
pub(crate) fn keep_larger<T: Copy + PartialOrd>(largest: &mut [T], values: &[T]) {
    for (most, value) in largest.iter_mut().zip(values) {
        *most = if value > most { *value } else { *most };
    }
}

/// Computes the variance of the means, relative to the variance if items were assigned to cells at
/// random.
fn variance_ratio(means: &[f64], numbers: usize, block: &Block, items: usize) -> Result<f64> {
    let cells = (means.len() / (numbers + 1)) as f64;
    let mut common: Vec<f64> = zeros(numbers)?;
    let mut squares = 0.0;
    for mean in means.chunks_exact(numbers + 1) {
        for (sum, v) in common.iter_mut().zip(mean) {
            *sum += v / cells;
            squares += v * v / cells;
        }
    }
    let common: f64 = common.iter().map(|v| v * v).sum();
    let rows: f64 =
        block.extents.iter().map(|e| e.norm * e.norm + e.residual_norm * e.residual_norm).sum();
    let within = rows / block.extents.len() as f64 - common;
    Ok(if within > 0.0 { (squares - common) * items as f64 / within } else { 0.0 })
}

/// Adds the numbers in a panel's rows to `sums`, followed by the biases.
struct AddRows<'a> {
    words: &'a [u32],
    width: usize,
    sums: &'a mut [f64],
}

impl Work for AddRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (integers, affine) = self.words.split_at(self.words.len() - AFFINE_STEPS * self.width);
        let (scales, biases) = affine.split_at(self.width);
        let (numbers, bias) = self.sums.split_at_mut(self.sums.len() - 1);
        for (step, sums) in integers.chunks_exact(self.width).zip(numbers.as_chunks_mut::<2>().0) {
            let (mut low, mut high) = ([0.0; LANES], [0.0; LANES]);
            for (words, scales) in
                step.as_chunks::<LANES>().0.iter().zip(scales.as_chunks::<LANES>().0)
            {
                for lane in 0..LANES {
                    let scale = f32::from_bits(scales[lane]);
                    low[lane] += f32::from(words[lane] as i16) * scale;
                    high[lane] += f32::from((words[lane] >> 16) as i16) * scale;
                }
            }
            sums[0] += f64::from(low.iter().sum::<f32>());
            sums[1] += f64::from(high.iter().sum::<f32>());
        }
        bias[0] += biases.iter().map(|bias| f64::from(f32::from_bits(*bias))).sum::<f64>();
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::kernel::{names, select};
    use crate::random::Random;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::dense_packing::DensePacking;
    use crate::rows::matrix::Matrix;
    use crate::rows::packing::Axis;
    use crate::rows::similarity::Similarity;
    use crate::screen::block::Memory;
    use crate::side::Side;

    #[test]
    fn the_nearest_panels_are_those_of_the_queries_classes() {
        const CLASSES: usize = 30;
        const OF_A_CLASS: usize = 96;
        let (mut random, control) = (Random::new(3), Control::default());
        let centres = Array2::from_shape_fn((CLASSES, 24), |_| random.uniform() - 0.5);
        for is_in_order in [true, false] {
            let class = |i: usize| if is_in_order { i / OF_A_CLASS } else { i % CLASSES };
            let x = Array2::from_shape_fn((CLASSES * OF_A_CLASS, 24), |(i, j)| {
                (centres[[class(i), j]] + 0.05 * (random.uniform() - 0.5)) as f32
            });
            for kernel in names()
                .into_iter()
                .map(|name| select(Some(name)).unwrap())
                .filter(|kernel| kernel.has_int16())
            {
                let (rows, precision) = (Matrix::F32(x.view()), Precision::SixteenBit);
                let dense =
                    Dense::new(rows, None, Similarity::Euclidean, precision, kernel, &control)
                        .unwrap();
                let packing = DensePacking::of_each_kind(&dense).pop().unwrap();
                let (height, width) = (kernel.number_tiles.rows, kernel.number_tiles.columns);
                let load = |side, axis, lanes| {
                    Block::load(
                        &packing,
                        (side, axis),
                        0..x.nrows(),
                        lanes,
                        Memory::default(),
                        &control,
                    )
                    .unwrap()
                };
                let columns = load(Side::Gallery, Axis::Columns, width);
                let rows = load(Side::Query, Axis::Rows, height);
                let cells = Cells::of(&columns, &packing, kernel, &control).unwrap();
                assert_eq!(cells.is_some(), is_in_order);
                for (class, cells) in
                    (0..CLASSES).flat_map(|class| cells.iter().map(move |cells| (class, cells)))
                {
                    // All queries in this panel belong to `class`.
                    let panel = rows.panel((class * OF_A_CLASS).div_ceil(height));
                    let (of_class, mut nearness) = (OF_A_CLASS / width, Nearness::default());
                    let mut found = cells
                        .nearest(kernel, panel, height, of_class, &mut nearness)
                        .unwrap()
                        .to_vec();
                    found.sort_unstable();
                    assert!(
                        found
                            .into_iter()
                            .eq((class * of_class..(class + 1) * of_class).map(|p| p as u32))
                    );
                }
            }
        }
    }
}
