//! Compares a few queries with the whole gallery, reading gallery rows once, where they lie in
//! memory.

use rayon::prelude::*;

use super::{Dense, Unread};
use crate::control::Control;
use crate::error::Result;
use crate::exact::PAIRS;
use crate::kernel::prefetch;
use crate::memory::{ready, zeros};
use crate::rows::matrix::{Matrix, Source, widen_half};
use crate::rows::scaling::rescale;
use crate::rows::similarity::Similarity;
use crate::rows::validation::is_suspect;
use crate::side::Side;

/// The number of items that a thread processes per batch.
const ITEMS: usize = 256;
/// Prefetch this number of rows ahead: rows are read in groups of four, too fast for the hardware
/// prefetchers.
const AHEAD: usize = 16;

/// The queries as float64 numbers; if neither side is float64, also as float32 numbers.
struct Few {
    len: usize,
    wide: Vec<f64>,
    single: Option<Vec<f32>>,
}

/// A thread's buffers.
struct Buffers {
    /// The sums (of products or squared differences) for all pairs of a query and an item of the
    /// block, query by query.
    sums: Vec<f64>,
    /// The squared lengths of the items, or 1 if neither keys nor validation need the lengths.
    squares: Vec<f64>,
    wide: Vec<f64>,
    single: Vec<f32>,
}

impl<'a> Unread<'a> {
    /// Computes the keys of all pairs of the few queries and the items, and validates the gallery
    /// on the way. `visit` receives the query's index, the first item of a block, and the keys of
    /// this block.
    pub fn compare_few(
        self,
        control: &Control,
        visit: impl Fn(usize, usize, &[f64]) + Sync,
    ) -> Result<Dense<'a>> {
        let (space, items) = (&self.0, self.0.gallery.rows());
        let few = space.widen_few()?;
        let is_valid = (0..items.div_ceil(ITEMS))
            .into_par_iter()
            .map_init(
                || -> Result<_> {
                    let (wide, single) = (zeros(space.dim())?, zeros(PAIRS * space.dim())?);
                    Ok(Buffers {
                        sums: zeros(few.len * ITEMS)?,
                        squares: zeros(ITEMS)?,
                        wide,
                        single,
                    })
                },
                |buffers, block| -> Result<bool> {
                    control.check()?;
                    let buffers = ready(buffers)?;
                    let (first, number) = (block * ITEMS, ITEMS.min(items - block * ITEMS));
                    match &few.single {
                        Some(queries) => space.sum_singles(queries, first, number, buffers),
                        None => space.sum_doubles(&few, first, number, buffers),
                    }
                    let (squares, sums) =
                        (&buffers.squares[..number], &mut buffers.sums[..few.len * number]);
                    let mut is_valid = !is_suspect(squares, space.similarity);
                    for (query, keys) in sums.chunks_exact_mut(number).enumerate() {
                        // If a number in a row isn't finite, the sums aren't finite.
                        is_valid &= keys.iter().fold(true, |finite, key| finite & key.is_finite());
                        space.keys_of_sums(squares, keys);
                        visit(query, first, keys);
                    }
                    control.advance(sums.len() as u64);
                    Ok(is_valid)
                },
            )
            .try_reduce(|| true, |a, b| Ok(a & b))?;
        if is_valid { Ok(self.0) } else { self.read(control) }
    }
}

impl Dense<'_> {
    fn widen_few(&self) -> Result<Few> {
        let (len, dim, mut buffer) = (self.rows(Side::Query), self.dim(), Vec::new());
        let mut wide: Vec<f64> = zeros(len * dim)?;
        for (query, out) in wide.chunks_exact_mut(dim).enumerate() {
            self.widen(Side::Query, query, &mut buffer)?;
            out.copy_from_slice(&buffer);
        }
        let mut single = None;
        if !self.queries.is_double() && !self.gallery.is_double() {
            let mut numbers: Vec<f32> = zeros(len * dim)?;
            numbers.iter_mut().zip(&wide).for_each(|(single, wide)| *single = *wide as f32);
            single = Some(numbers);
        }
        Ok(Few { len, wide, single })
    }

    /// Computes the sums of a block of items with all queries, in the order of summation that
    /// `exact` defines, in groups of four items.
    fn sum_singles(&self, queries: &[f32], first: usize, number: usize, buffers: &mut Buffers) {
        let (dim, Buffers { sums, squares, wide, single }) = (self.dim(), buffers);
        let in_place = if let Matrix::F32(x) = &self.gallery { x.as_slice() } else { None };
        let halves = if let Matrix::F16(x) = &self.gallery { x.as_slice() } else { None };
        // For single precision, products and squares are finite if the numbers are, so only the
        // cosine needs squares.
        let needs_squares = self.similarity == Similarity::Cosine;
        squares[..number].fill(1.0);
        for start in (0..number).step_by(PAIRS) {
            let together = PAIRS.min(number - start);
            let at = first + start;
            let rows = match in_place {
                Some(numbers) => {
                    let ahead = |row: usize| numbers.len().min(row * dim);
                    prefetch(&numbers[ahead(at + AHEAD)..ahead(at + AHEAD + PAIRS)]);
                    &numbers[at * dim..(at + together) * dim]
                }
                None => {
                    for (i, row) in single.chunks_exact_mut(dim).take(together).enumerate() {
                        if let Some(numbers) = halves {
                            let numbers = &numbers[(at + i) * dim..];
                            self.kernel.vectorize(|| {
                                let numbers = row.iter_mut().zip(numbers);
                                numbers.for_each(|(single, half)| *single = widen_half(*half))
                            });
                        } else if let Some(bytes) = self.gallery.bytes_of(at + i) {
                            self.kernel.vectorize(
                                #[inline(always)]
                                || bytes.for_each(|i, v| row[i] = v as f32),
                            );
                        } else {
                            self.gallery.widen(at + i, wide);
                            row.iter_mut()
                                .zip(&*wide)
                                .for_each(|(single, wide)| *single = *wide as f32);
                        }
                    }
                    &single[..together * dim]
                }
            };
            // Repeat the last row to fill a group of four.
            let row = |i: usize| &rows[i.min(together - 1) * dim..][..dim];
            let rows = [row(0), row(1), row(2), row(3)];
            if needs_squares {
                squares[start..start + together]
                    .copy_from_slice(&self.kernel.dots32(rows, rows)[..together]);
            }
            for (query, sums) in queries.chunks_exact(dim).zip(sums.chunks_exact_mut(number)) {
                let found = match self.similarity {
                    Similarity::Euclidean => self.kernel.distances32([query; PAIRS], rows),
                    Similarity::Cosine | Similarity::Dot => {
                        self.kernel.dots32([query; PAIRS], rows)
                    }
                };
                sums[start..start + together].copy_from_slice(&found[..together]);
            }
        }
    }

    /// Computes the sums of a block of items with all queries, in the order of summation that
    /// `exact` defines, item by item.
    fn sum_doubles(&self, few: &Few, first: usize, number: usize, buffers: &mut Buffers) {
        let (dim, Buffers { sums, squares, wide, .. }) = (self.dim(), buffers);
        let in_place = match &self.gallery {
            Matrix::F64(x) if !self.is_rescaled(Side::Gallery) => x.as_slice(),
            _ => None,
        };
        for (i, square) in squares[..number].iter_mut().enumerate() {
            let row = match in_place {
                Some(numbers) => &numbers[(first + i) * dim..][..dim],
                None => {
                    self.gallery.widen(first + i, wide);
                    if self.is_rescaled(Side::Gallery) {
                        self.kernel.vectorize(|| rescale(wide));
                    }
                    &wide[..]
                }
            };
            *square = self.kernel.dot64(row, row);
            for (query, sums) in few.wide.chunks_exact(dim).zip(sums.chunks_exact_mut(number)) {
                sums[i] = match self.similarity {
                    Similarity::Euclidean => self.kernel.distance64(query, row),
                    Similarity::Cosine | Similarity::Dot => self.kernel.dot64(query, row),
                };
            }
        }
    }
}
