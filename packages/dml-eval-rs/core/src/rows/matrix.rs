//! Rows of numbers as they lie in memory: with any float width and any strides, including mapped
//! files.

use half::f16;
use ndarray::ArrayView2;

use crate::kernel::prefetch;
use crate::rows::byte_rows::ByteRow;

/// Rows that can be read one by one, widened exactly to float64.
pub trait Source: Sync + std::fmt::Debug {
    /// Returns the number of rows.
    fn rows(&self) -> usize;
    /// Returns the number of columns.
    fn dim(&self) -> usize;
    /// Whether some numbers have double precision.
    fn is_double(&self) -> bool;
    /// Returns the number of bytes that the numbers occupy.
    fn bytes(&self) -> usize;
    /// Copies row `row` into `out`, widened exactly.
    fn widen(&self, row: usize, out: &mut [f64]);
    /// Returns row `row` in place, if it is float32 and contiguous.
    fn slice32(&self, row: usize) -> Option<&[f32]>;
}

/// A read-only view with shape (rows, dim).
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Half precision.
    F16(ArrayView2<'a, f16>),
    /// Single precision. Contiguous rows are used in place.
    F32(ArrayView2<'a, f32>),
    /// Double precision.
    F64(ArrayView2<'a, f64>),
    /// Signed bytes.
    I8(ArrayView2<'a, i8>),
    /// Unsigned bytes.
    U8(ArrayView2<'a, u8>),
    /// Packed bits, to be read as numbers 0 and 1, with the number of bits per row.
    Bits(ArrayView2<'a, u8>, usize),
    /// Rows that are derived from other rows.
    Derived(&'a dyn Source),
}

impl Matrix<'_> {
    /// Borrows these rows for a shorter lifetime.
    pub fn view(&self) -> Matrix<'_> {
        match self {
            Matrix::F16(x) => Matrix::F16(x.view()),
            Matrix::F32(x) => Matrix::F32(x.view()),
            Matrix::F64(x) => Matrix::F64(x.view()),
            Matrix::I8(x) => Matrix::I8(x.view()),
            Matrix::U8(x) => Matrix::U8(x.view()),
            Matrix::Bits(x, dim) => Matrix::Bits(x.view(), *dim),
            Matrix::Derived(source) => Matrix::Derived(*source),
        }
    }
}

impl Source for Matrix<'_> {
    fn rows(&self) -> usize {
        match self {
            Matrix::F16(x) => x.nrows(),
            Matrix::F32(x) => x.nrows(),
            Matrix::F64(x) => x.nrows(),
            Matrix::I8(x) => x.nrows(),
            Matrix::U8(x) => x.nrows(),
            Matrix::Bits(x, _) => x.nrows(),
            Matrix::Derived(source) => source.rows(),
        }
    }

    fn dim(&self) -> usize {
        match self {
            Matrix::F16(x) => x.ncols(),
            Matrix::F32(x) => x.ncols(),
            Matrix::F64(x) => x.ncols(),
            Matrix::I8(x) => x.ncols(),
            Matrix::U8(x) => x.ncols(),
            Matrix::Bits(_, dim) => *dim,
            Matrix::Derived(source) => source.dim(),
        }
    }

    fn is_double(&self) -> bool {
        match self {
            Matrix::F16(_) | Matrix::F32(_) => false,
            Matrix::I8(_) | Matrix::U8(_) | Matrix::Bits(..) => false,
            Matrix::F64(_) => true,
            Matrix::Derived(source) => source.is_double(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Matrix::F16(x) => 2 * x.len(),
            Matrix::F32(x) => 4 * x.len(),
            Matrix::F64(x) => 8 * x.len(),
            Matrix::I8(x) => x.len(),
            Matrix::U8(x) => x.len(),
            Matrix::Bits(x, _) => x.len(),
            Matrix::Derived(source) => source.bytes(),
        }
    }

    fn widen(&self, row: usize, out: &mut [f64]) {
        match self {
            Matrix::F16(x) => copy(x, row, out, |v| f64::from(widen_half(v))),
            Matrix::F32(x) => copy(x, row, out, f64::from),
            Matrix::F64(x) => copy(x, row, out, |v| v),
            Matrix::I8(x) => copy(x, row, out, f64::from),
            Matrix::U8(x) => copy(x, row, out, f64::from),
            Matrix::Bits(x, _) => {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = f64::from(x[(row, i / 8)] >> (7 - i % 8) & 1);
                }
            }
            Matrix::Derived(source) => source.widen(row, out),
        }
    }

    fn slice32(&self, row: usize) -> Option<&[f32]> {
        match self {
            Matrix::F32(x) => contiguous(x, row),
            Matrix::Derived(source) => source.slice32(row),
            Matrix::F16(_) | Matrix::F64(_) => None,
            Matrix::I8(_) | Matrix::U8(_) | Matrix::Bits(..) => None,
        }
    }
}

impl Matrix<'_> {
    /// Returns row `row` in place, if it consists of bytes and is contiguous.
    #[inline(always)]
    pub(crate) fn bytes_of(&self, row: usize) -> Option<ByteRow<'_>> {
        match self {
            Matrix::I8(x) => contiguous(x, row).map(ByteRow::Signed),
            Matrix::U8(x) => contiguous(x, row).map(ByteRow::Unsigned),
            _ => None,
        }
    }

    /// Prefetches a row that is float32 or consists of bytes, and is contiguous.
    #[inline(always)]
    pub(super) fn prefetch(&self, row: usize) {
        match self.bytes_of(row) {
            Some(ByteRow::Signed(row)) => prefetch(row),
            Some(ByteRow::Unsigned(row)) => prefetch(row),
            None => {
                self.slice32(row).map(prefetch);
            }
        }
    }
}

/// Widens a number exactly, without branches or calls, so that the compiler can vectorize the loop
/// around it.
#[inline(always)]
pub(super) fn widen_half(x: f16) -> f32 {
    const INFINITY: u32 = 0x7c00 << 13;
    let bits = u32::from(x.to_bits());
    // After the shift, the bits are a float32 with an exponent that is too small by 112, also for
    // subnormal numbers.
    let magnitude = (bits & 0x7fff) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits((127 + 112) << 23);
    let magnitude = if magnitude >= INFINITY { magnitude | 0xff << 23 } else { finite.to_bits() };
    f32::from_bits(magnitude | (bits & 0x8000) << 16)
}

fn contiguous<'a, T>(x: &ArrayView2<'a, T>, row: usize) -> Option<&'a [T]> {
    x.index_axis_move(ndarray::Axis(0), row).to_slice()
}

fn copy<T: Copy>(x: &ArrayView2<'_, T>, row: usize, out: &mut [f64], widen: impl Fn(T) -> f64) {
    if let Some(slice) = contiguous(x, row) {
        for (o, v) in out.iter_mut().zip(slice) {
            *o = widen(*v);
        }
    } else {
        for (o, v) in out.iter_mut().zip(x.row(row)) {
            *o = widen(*v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_is_widened_exactly() {
        for bits in 0..=u16::MAX {
            let half = f16::from_bits(bits);
            let found = widen_half(half);
            assert!(
                found.to_bits() == half.to_f32().to_bits() || found.is_nan() && half.is_nan(),
                "{bits:#x}"
            );
        }
    }
}
