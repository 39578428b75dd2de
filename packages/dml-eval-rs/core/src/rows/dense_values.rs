//! Fills tables of values in float32, which cost half as much as keys and decide the order of most
//! items.
//!
//! The product of two rows is added up in chunks of `CHUNK` terms, the chunks in groups of `GROUP`
//! terms, and then the groups. Let u be the unit of float32. Rounding a partial sum over the terms
//! in S changes it by at most u·|Σ_S aᵢbᵢ| ≤ u·|a_S|·|b_S|, except for factors 1 + u of later
//! roundings. By Cauchy–Schwarz, all roundings together add at most u·w(a)·w(b), where
//! w(a)² = Σ_S |a_S|² counts the square of a number as often as partial sums contain the number.
//! For 128 and 512 numbers, this bound is 1/12 and 1/36 of the bound for a single sum in any order.

use std::ops::Range;
use std::slice;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::exact::UNIT32;
use crate::kernel::{CHUNK, Kernel, Word, prefetch};
use crate::memory::{collect, each, full};
use crate::rows::dense::Dense;
use crate::rows::dense_packing::DensePacking;
use crate::rows::packing::{Axis, Extent, Packing};
use crate::rows::panels::{LINE, Panels};
use crate::rows::space::Values;
use crate::side::Side;

/// The terms of the chunks that are added up before a group is added to the sum of earlier groups.
const GROUP: usize = 8 * CHUNK;
/// The approximate maximum number of queries that a thread compares with a panel of items while the
/// panel is in the cache.
const QUERIES_PER_GROUP: usize = 64;

/// Packed rows, with sizes that bound the errors.
struct Rows {
    panels: Panels<u32>,
    extent: Extent,
    /// The largest w, as defined above.
    weighted: f64,
}

/// Tables of values, which grow with keys like the values of a screen.
pub struct DenseValues<'s, 'a> {
    packing: DensePacking<'s, 'a>,
    /// The last packed items. If they fit into a block, they are packed once.
    items: Option<(Range<usize>, Rows)>,
}

impl<'s, 'a> DenseValues<'s, 'a> {
    pub(super) fn new(space: &'s Dense<'a>) -> Result<Self> {
        let packing = DensePacking { word: Word::Float32, ..DensePacking::whole(space)? };
        Ok(DenseValues { packing, items: None })
    }

    /// Fills the values of packed queries, and packs the items in blocks of `block` rows.
    fn fill_block(
        &mut self,
        rows: &Rows,
        queries: usize,
        values: &mut [f32],
        block: usize,
        control: &Control,
    ) -> Result<f64> {
        let (kernel, number) = self.sizes();
        let (height, width) = (kernel.number_tiles.rows, kernel.number_tiles.columns);
        // Each thread gets the same number of groups, so that threads don't wait for each other.
        let each_thread = queries.div_ceil(rayon::current_num_threads());
        let group = each_thread.div_ceil(each_thread.div_ceil(QUERIES_PER_GROUP)).div_ceil(height);
        let mut margin = 0.0f64;
        for start in (0..number).step_by(block) {
            let range = start..(start + block).min(number);
            if self.items.as_ref().is_none_or(|(packed, _)| *packed != range) {
                self.items = None;
                let all = collect(range.start as u32..range.end as u32)?;
                let items = self.pack(Side::Gallery, Axis::Columns, &all)?;
                self.items = Some((range.clone(), items));
            }
            let (_, items) = self.items.as_ref().expect("the items were packed");
            margin = margin.max(self.margin(rows, items));
            each(
                values.par_chunks_mut(group * height * number).enumerate(),
                || full(2 * height * width + LINE / size_of::<f32>(), 0.0),
                |tiles, (first, values)| {
                    let aligned = tiles.as_ptr().align_offset(LINE);
                    let mut tiles = tiles[aligned..].chunks_exact_mut(height * width);
                    let mut next = || tiles.next().expect("memory for two tiles");
                    let (tile, sums) = (next(), next());
                    for (c, start) in range.clone().step_by(width).enumerate() {
                        let columns = start..(start + width).min(range.end);
                        control.check()?;
                        for (r, lines) in values.chunks_mut(height * number).enumerate() {
                            let row_panel = rows.panels.panel(first * group + r);
                            self.multiply((row_panel, items.panels.panel(c)), tile, sums);
                            let lines = lines.chunks_exact_mut(number);
                            for (line, values) in lines.zip(tile.chunks_exact(width)) {
                                line[columns.clone()].copy_from_slice(&values[..columns.len()]);
                                // The next columns are stored later, in memory that isn't cached.
                                prefetch(&line[columns.end..(columns.end + width).min(number)]);
                            }
                        }
                    }
                    Ok(())
                },
            )?;
        }
        Ok(margin)
    }

    fn sizes(&self) -> (&'static Kernel, usize) {
        (self.packing.space.kernel(), self.packing.space.rows(Side::Gallery))
    }

    fn pack(&self, side: Side, axis: Axis, rows: &[u32]) -> Result<Rows> {
        let tiles = self.sizes().0.number_tiles;
        let width = if axis == Axis::Rows { tiles.rows } else { tiles.columns };
        let (steps, numbers) = (self.packing.steps(), self.packing.space.dim());
        let weights = collect((0..numbers).map(|i| roundings(i, steps) as f64))?;
        let encode = |lanes: Range<usize>, panel: &mut [u32], sizes: &mut [(Extent, f64)]| {
            for (lane, (row, (extent, weighted))) in rows[lanes].iter().zip(sizes).enumerate() {
                let row = *row as usize..*row as usize + 1;
                let words = &mut panel[lane..];
                self.packing.encode(side, axis, row, width, words, slice::from_mut(extent))?;
                let terms = words.iter().step_by(width).zip(&weights);
                let sum: f64 = terms.map(|(v, w)| w * f64::from(f32::from_bits(*v)).powi(2)).sum();
                *weighted = sum.sqrt();
            }
            Ok(())
        };
        let (panels, sizes) = Panels::load(rows.len(), width, steps, Vec::new(), encode)?;
        let (extent, weighted) =
            sizes.into_iter().fold((Extent::default(), 0.0f64), |(extent, w), own| {
                (extent.max(own.0), w.max(own.1))
            });
        Ok(Rows { panels, extent, weighted })
    }

    /// Multiplies the panels, using a buffer for a group.
    #[inline]
    fn multiply(&self, (rows, columns): (&[u32], &[u32]), tile: &mut [f32], group: &mut [f32]) {
        let (kernel, steps) = (self.sizes().0, self.packing.steps());
        let (product, tiles) = (kernel.product_in_chunks(), kernel.number_tiles);
        for first in (0..steps).step_by(GROUP) {
            let (rows, columns) = (&rows[first * tiles.rows..], &columns[first * tiles.columns..]);
            let sums = if first == 0 { &mut *tile } else { &mut *group };
            product.tile(GROUP.min(steps - first), rows, columns, sums);
            if first > 0 {
                kernel.vectorize(|| {
                    tile.iter_mut().zip(&*group).for_each(|(sum, value)| *sum += value)
                });
            }
        }
    }

    /// Bounds the error of a value.
    fn margin(&self, rows: &Rows, items: &Rows) -> f64 {
        let steps = self.packing.steps();
        let operations = roundings(0, steps) as f64 * UNIT32;
        if operations >= 0.5 {
            return f64::INFINITY;
        }
        let gamma = operations / (1.0 - operations);
        let products = UNIT32 * (1.0 + 2.0 * gamma) * rows.weighted * items.weighted;
        self.packing.bound(rows.extent, items.extent, gamma, products)
    }
}

impl Values for DenseValues<'_, '_> {
    fn fill(&mut self, queries: &[u32], values: &mut [f32], control: &Control) -> Result<f64> {
        let (kernel, number) = self.sizes();
        let (height, width) = (kernel.number_tiles.rows, kernel.number_tiles.columns);
        let row_bytes = self.packing.steps() * size_of::<u32>();
        let rows_per_block =
            |lanes: usize| (control.sizes().block_bytes / row_bytes / lanes).max(1) * lanes;
        let together = rows_per_block(height);
        let mut margin = 0.0f64;
        for (queries, values) in queries.chunks(together).zip(values.chunks_mut(together * number))
        {
            let rows = self.pack(Side::Query, Axis::Rows, queries)?;
            margin = margin.max(self.fill_block(
                &rows,
                queries.len(),
                values,
                rows_per_block(width),
                control,
            )?);
        }
        Ok(margin)
    }
}

/// Bounds the number of roundings that term `i` takes part in: of the product, of the sums in a
/// chunk, of the sums of chunks in a group, and of the sums of groups. The first number of each sum
/// is added to zero, which is exact.
fn roundings(i: usize, steps: usize) -> usize {
    let sums = |each: usize, together: usize| {
        let start = i / together * together;
        let number = together.min(steps - start).div_ceil(each);
        number - ((i - start) / each).max(1)
    };
    1 + sums(1, CHUNK) + sums(CHUNK, GROUP) + sums(GROUP, usize::MAX)
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::kernel::{names, select};
    use crate::random::Random;
    use crate::rows::dense::Precision;
    use crate::rows::keys::Keys;
    use crate::rows::matrix::Matrix;
    use crate::rows::similarity::Similarity;
    use crate::rows::space::Space;
    use crate::sizes::Sizes;

    /// Returns the largest error of a value as a share of the margin.
    fn worst_share(rows: &Array2<f32>, similarity: Similarity, sizes: &Sizes) -> f64 {
        let control = Control::traced(sizes.clone());
        let mut worst = 0.0f64;
        for name in names() {
            let (kernel, rows) = (select(Some(name)).unwrap(), Matrix::F32(rows.view()));
            let precision = Precision::SixteenBit;
            let space = Dense::new(rows, None, similarity, precision, kernel, &control).unwrap();
            let mut tables = DenseValues::new(&space).unwrap();
            let number = space.rows(Side::Gallery);
            let queries: Vec<u32> = (0..number as u32).step_by(2).collect();
            let mut values = vec![f32::NAN; queries.len() * number];
            // The second time, packed items are used again unless they fill more than a block.
            for _ in 0..2 {
                let margin = tables.fill(&queries, &mut values, &control).unwrap();
                for (query, values) in queries.iter().zip(values.chunks_exact(number)) {
                    let mut keys = Keys::default();
                    let keys = keys.compute(&space, *query as usize, 0..number as u32).unwrap();
                    for (value, key) in values.iter().zip(keys) {
                        let exact = Space::value(&space, *query as usize, *key);
                        let error = f64::from(*value) + tables.packing.offset() - exact;
                        worst = worst.max(error.abs() / margin);
                    }
                }
            }
        }
        worst
    }

    #[test]
    fn errors_of_values_stay_within_the_margin() {
        let mut random = Random::new(1);
        for dim in [1, 15, 16, 17, 130, 400] {
            for (shift, scale) in [(0.5, 1.0), (-3.0, 1.0), (0.5, 1e-30)] {
                let x = Array2::from_shape_simple_fn((50, dim), || {
                    ((random.uniform() - shift) * scale) as f32
                });
                for similarity in [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean] {
                    for block_bytes in [1, Sizes::default().block_bytes] {
                        let sizes = Sizes { block_bytes, ..Sizes::default() };
                        let share = worst_share(&x, similarity, &sizes);
                        assert!(share <= 1.0, "{dim} {shift} {scale} {similarity:?}: {share}");
                    }
                }
            }
        }
    }

    #[test]
    fn sizes_of_packed_rows_include_their_rounding() {
        // 0.6 and 0.8 aren't float32 numbers.
        let x = Array2::from_shape_fn((2, 2), |(row, i)| [3.0, 4.0][i] * [1.0, -1.0][row]);
        let (kernel, control) = (select(None).unwrap(), Control::default());
        let (rows, precision) = (Matrix::F32(x.view()), Precision::SixteenBit);
        let space =
            Dense::new(rows, None, Similarity::Cosine, precision, kernel, &control).unwrap();
        let tables = DenseValues::new(&space).unwrap();
        for (side, axis) in [(Side::Query, Axis::Rows), (Side::Gallery, Axis::Columns)] {
            let extent = tables.pack(side, axis, &[0, 1]).unwrap().extent;
            assert!(extent.residual > 0.0 && extent.norm >= 1.0 - UNIT32);
        }
    }

    #[test]
    fn terms_that_a_partial_sum_loses_reach_most_of_the_margin() {
        // Each product but the first is just less than half a unit in the last place of 1. Each sum
        // adds these one by one to the first product.
        let lost = (0.99 * UNIT32).sqrt() as f32;
        let number = |i: usize| match i {
            0 => 1.0,
            _ if i < CHUNK || i < GROUP && i.is_multiple_of(CHUNK) => lost,
            _ if i.is_multiple_of(GROUP) => lost,
            _ => 0.0,
        };
        for dim in [CHUNK, GROUP, 8 * GROUP] {
            // Opposite rows have no mean, so they aren't centred.
            let x = Array2::from_shape_fn((2, dim), |(row, i)| number(i) * [1.0, -1.0][row]);
            let share = worst_share(&x, Similarity::Dot, &Sizes::default());
            assert!((0.8..=1.0).contains(&share), "{dim}: {share}");
        }
    }
}
