//! What rows must be, and what is known of them afterwards.

use rayon::prelude::*;

use crate::control::Control;
use crate::dense::Similarity;
use crate::error::{Error, Result};
use crate::kernel::square;
use crate::matrix::{Matrix, Source, rescale};
use crate::memory::zeros;

/// The largest magnitude that dot and euclidean take.
const LARGEST: f64 = f64::from_bits((1023 + 500) << 52);

/// Float64 rows are scaled by a power of two under the cosine, which changes no bit of a key, so that nothing overflows.
pub(crate) fn rescales(matrix: &Matrix<'_>, similarity: Similarity) -> bool {
    similarity == Similarity::Cosine && matrix.is_double()
}

/// One pass over the data: the first bad row, or every row's sum of squares in the stated order.
pub(crate) fn validate(
    matrix: &Matrix<'_>,
    what: &'static str,
    similarity: Similarity,
    control: &Control,
) -> Result<Vec<f64>> {
    const ROWS: usize = 256;
    let mut squares: Vec<f64> = zeros(matrix.rows())?;
    squares.par_chunks_mut(ROWS).enumerate().for_each_init(Vec::new, |buffer, (chunk, squares)| {
        if control.is_cancelled() {
            return;
        }
        buffer.resize(matrix.dim(), 0.0);
        for (i, out) in squares.iter_mut().enumerate() {
            matrix.widen(chunk * ROWS + i, buffer);
            if rescales(matrix, similarity) && buffer.iter().all(|v| v.is_finite()) {
                rescale(buffer);
            }
            *out = square(buffer);
        }
    });
    control.check()?;
    // Only float64 data can be finite and overflow here, so a second look decides what is wrong.
    let magnitude = |row: usize| {
        let mut buffer = vec![0.0; matrix.dim()];
        matrix.widen(row, &mut buffer);
        buffer.iter().fold(0.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { f64::INFINITY })
    };
    let suspects = |bad: &dyn Fn(usize) -> bool| -> Option<(usize, usize)> {
        let mut rows = (0..squares.len()).filter(|&row| bad(row));
        rows.next().map(|first| (first, 1 + rows.count()))
    };
    if let Some((row, count)) = suspects(&|row| !squares[row].is_finite() && magnitude(row) == f64::INFINITY) {
        return Err(Error::NonFinite { what, row, count });
    }
    match similarity {
        Similarity::Cosine => {
            if let Some((row, count)) = suspects(&|row| squares[row] == 0.0) {
                return Err(Error::ZeroNorm { what, row, count });
            }
        }
        _ => {
            let large = |row: usize| squares[row] > LARGEST && magnitude(row) > LARGEST;
            if let Some((row, _)) = suspects(&large) {
                return Err(Error::TooLarge { what, row, magnitude: magnitude(row) });
            }
        }
    }
    Ok(squares)
}
