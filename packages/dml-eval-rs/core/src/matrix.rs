//! Rows of numbers as they lie in memory: any float width, any strides, perhaps a mapped file.

use half::f16;
use ndarray::ArrayView2;

/// A read-only (rows, dim) view. Rows are widened to float64, exactly, when they are needed and never all at once.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Half precision.
    F16(ArrayView2<'a, f16>),
    /// Single precision; contiguous rows are used in place.
    F32(ArrayView2<'a, f32>),
    /// Double precision.
    F64(ArrayView2<'a, f64>),
}

impl Matrix<'_> {
    /// The same rows, borrowed for a shorter time.
    pub(crate) fn view(&self) -> Matrix<'_> {
        match self {
            Matrix::F16(x) => Matrix::F16(x.view()),
            Matrix::F32(x) => Matrix::F32(x.view()),
            Matrix::F64(x) => Matrix::F64(x.view()),
        }
    }

    /// Does something with a copy of some rows.
    pub(crate) fn select<T>(&self, rows: &[usize], work: impl FnOnce(&Matrix<'_>) -> T) -> T {
        match self {
            Matrix::F16(x) => work(&Matrix::F16(x.select(ndarray::Axis(0), rows).view())),
            Matrix::F32(x) => work(&Matrix::F32(x.select(ndarray::Axis(0), rows).view())),
            Matrix::F64(x) => work(&Matrix::F64(x.select(ndarray::Axis(0), rows).view())),
        }
    }

    /// The number of rows.
    pub fn rows(&self) -> usize {
        match self {
            Matrix::F16(x) => x.nrows(),
            Matrix::F32(x) => x.nrows(),
            Matrix::F64(x) => x.nrows(),
        }
    }

    /// The number of columns.
    pub fn dim(&self) -> usize {
        match self {
            Matrix::F16(x) => x.ncols(),
            Matrix::F32(x) => x.ncols(),
            Matrix::F64(x) => x.ncols(),
        }
    }

    /// Copies row `row` into `out`, widened exactly.
    pub(crate) fn widen(&self, row: usize, out: &mut [f64]) {
        match self {
            Matrix::F16(x) => copy(x, row, out, |v| v.to_f64()),
            Matrix::F32(x) => copy(x, row, out, f64::from),
            Matrix::F64(x) => copy(x, row, out, |v| v),
        }
    }

    /// Row `row` in place, if it is float32 and contiguous.
    pub(crate) fn slice32(&self, row: usize) -> Option<&[f32]> {
        match self {
            Matrix::F32(x) => contiguous(x, row),
            _ => None,
        }
    }

    /// Bytes of the numbers themselves.
    pub(crate) fn bytes(&self) -> usize {
        let width = match self {
            Matrix::F16(_) => 2,
            Matrix::F32(_) => 4,
            Matrix::F64(_) => 8,
        };
        self.rows() * self.dim() * width
    }
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
