//! Validates rows and returns the squared lengths.

use std::cell::RefCell;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::exact::{PAIRS, square};
use crate::kernel::{Kernel, prefetch};
use crate::memory::{Grow, each, full, zeros};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::scaling::rescale;
use crate::rows::similarity::Similarity;
use crate::side::Side;

/// The largest magnitude that is accepted for the dot product and the Euclidean distance.
const LARGEST: f64 = f64::from_bits((1023 + 500) << 52);

/// Prefetch this number of rows ahead: rows are read in groups of four, too fast for the hardware
/// prefetchers.
const AHEAD: usize = 16;

/// Whether rows are scaled by a power of two. This is only done for float64 rows under the cosine,
/// to prevent sums from overflowing. It does not change any bit of a cosine, or the order of keys.
pub(crate) fn rescales(matrix: &Matrix<'_>, similarity: Similarity) -> bool {
    similarity == Similarity::Cosine && matrix.is_double()
}

/// Whether some rows may be invalid, given the rows' sums of squares.
#[inline(always)]
pub(crate) fn is_suspect(squares: &[f64], similarity: Similarity) -> bool {
    let is_fine = |square: f64| match similarity {
        Similarity::Cosine => square > 0.0 && square < f64::INFINITY,
        Similarity::Dot | Similarity::Euclidean => square <= LARGEST,
    };
    !squares.iter().fold(true, |all, square| all & is_fine(*square))
}

/// Reads the rows once. Returns sums of squares, in the order that `exact` defines, or an error for
/// the first bad row.
pub(crate) fn validate(
    matrix: &Matrix<'_>,
    side: Side,
    similarity: Similarity,
    kernel: &Kernel,
    control: &Control,
) -> Result<Vec<f64>> {
    const ROWS: usize = 64;
    let mut squares: Vec<f64> = zeros(matrix.rows())?;
    let make = || Ok(Vec::new());
    each(squares.par_chunks_mut(ROWS).enumerate(), make, |buffer, (chunk, squares)| {
        control.check()?;
        if let Some(()) = square_in_place(matrix, chunk * ROWS, squares, kernel) {
            return Ok(());
        }
        buffer.try_resize(matrix.dim(), 0.0)?;
        for (i, out) in squares.iter_mut().enumerate() {
            if let Some(row) = matrix.bytes_of(chunk * ROWS + i) {
                *out = kernel.vectorize(
                    #[inline(always)]
                    || row.dot(row),
                );
                continue;
            }
            matrix.widen(chunk * ROWS + i, buffer);
            if rescales(matrix, similarity) {
                rescale(buffer);
            }
            *out = square(buffer);
        }
        Ok(())
    })?;
    // Finite rows can only overflow here if they are float64. The largest magnitude tells which
    // error to return.
    let may_overflow = squares.iter().any(|square| !square.is_finite() || *square > LARGEST);
    let buffer = RefCell::new(full(if may_overflow { matrix.dim() } else { 0 }, 0.0)?);
    let magnitude = |row: usize| {
        let buffer = &mut *buffer.borrow_mut();
        matrix.widen(row, buffer);
        buffer
            .iter()
            .fold(0.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { f64::INFINITY })
    };
    let first_and_count = |bad: &dyn Fn(usize) -> bool| -> Option<(usize, usize)> {
        let mut rows = (0..squares.len()).filter(|&row| bad(row));
        rows.next().map(|first| (first, 1 + rows.count()))
    };
    if let Some((row, count)) =
        first_and_count(&|row| !squares[row].is_finite() && magnitude(row) == f64::INFINITY)
    {
        return Err(Error::NonFinite { side, row, count });
    }
    match similarity {
        Similarity::Cosine => {
            if let Some((row, count)) = first_and_count(&|row| squares[row] == 0.0) {
                return Err(Error::ZeroNorm { side, row, count });
            }
        }
        _ => {
            let large = |row: usize| squares[row] > LARGEST && magnitude(row) > LARGEST;
            if let Some((row, _)) = first_and_count(&large) {
                return Err(Error::TooLarge { side, row, magnitude: magnitude(row) });
            }
        }
    }
    Ok(squares)
}

/// Computes the sums of squares of float32 rows in place, from row `first` on. Returns `None` if a
/// row is of a different type.
fn square_in_place(
    matrix: &Matrix<'_>,
    first: usize,
    squares: &mut [f64],
    kernel: &Kernel,
) -> Option<()> {
    for (chunk, out) in squares.chunks_mut(PAIRS).enumerate() {
        // Repeat the last row to fill a short chunk.
        let row = |i: usize| matrix.slice32(first + chunk * PAIRS + i.min(out.len() - 1));
        let rows = [row(0)?, row(1)?, row(2)?, row(3)?];
        for ahead in
            first + chunk * PAIRS + AHEAD..matrix.rows().min(first + (chunk + 1) * PAIRS + AHEAD)
        {
            matrix.slice32(ahead).map(prefetch);
        }
        out.copy_from_slice(&kernel.dots32(rows, rows)[..out.len()]);
    }
    Some(())
}
