//! Rows of numbers as they lie in memory: any float width, any strides, perhaps a mapped file.

use half::f16;
use ndarray::ArrayView2;
use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::square;
use crate::memory::zeros;

/// Rows that are widened to float64, exactly, when they are needed and never all at once.
pub trait Source: Sync + std::fmt::Debug {
    /// The number of rows.
    fn rows(&self) -> usize;
    /// The number of columns.
    fn dim(&self) -> usize;
    /// Whether the numbers are of double precision, at least some of them.
    fn is_double(&self) -> bool;
    /// Bytes of the numbers themselves.
    fn bytes(&self) -> usize;
    /// Copies row `row` into `out`, widened exactly.
    fn widen(&self, row: usize, out: &mut [f64]);
    /// Row `row` in place, if it is float32 and contiguous.
    fn slice32(&self, row: usize) -> Option<&[f32]>;
}

/// A read-only (rows, dim) view.
#[derive(Clone, Copy, Debug)]
pub enum Matrix<'a> {
    /// Half precision.
    F16(ArrayView2<'a, f16>),
    /// Single precision; contiguous rows are used in place.
    F32(ArrayView2<'a, f32>),
    /// Double precision.
    F64(ArrayView2<'a, f64>),
    /// Packed bits as numbers 0 and 1, and how many of a row's there are.
    Bits(ArrayView2<'a, u8>, usize),
    /// Rows made of others.
    Made(&'a dyn Source),
}

impl Matrix<'_> {
    /// The same rows, borrowed for a shorter time.
    pub(crate) fn view(&self) -> Matrix<'_> {
        match self {
            Matrix::F16(x) => Matrix::F16(x.view()),
            Matrix::F32(x) => Matrix::F32(x.view()),
            Matrix::F64(x) => Matrix::F64(x.view()),
            Matrix::Bits(x, dim) => Matrix::Bits(x.view(), *dim),
            Matrix::Made(of) => Matrix::Made(*of),
        }
    }
}

impl Source for Matrix<'_> {
    fn rows(&self) -> usize {
        match self {
            Matrix::F16(x) => x.nrows(),
            Matrix::F32(x) => x.nrows(),
            Matrix::F64(x) => x.nrows(),
            Matrix::Bits(x, _) => x.nrows(),
            Matrix::Made(of) => of.rows(),
        }
    }

    fn dim(&self) -> usize {
        match self {
            Matrix::F16(x) => x.ncols(),
            Matrix::F32(x) => x.ncols(),
            Matrix::F64(x) => x.ncols(),
            Matrix::Bits(_, dim) => *dim,
            Matrix::Made(of) => of.dim(),
        }
    }

    fn is_double(&self) -> bool {
        match self {
            Matrix::F16(_) | Matrix::F32(_) | Matrix::Bits(..) => false,
            Matrix::F64(_) => true,
            Matrix::Made(of) => of.is_double(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Matrix::F16(x) => 2 * x.len(),
            Matrix::F32(x) => 4 * x.len(),
            Matrix::F64(x) => 8 * x.len(),
            Matrix::Bits(x, _) => x.len(),
            Matrix::Made(of) => of.bytes(),
        }
    }

    fn widen(&self, row: usize, out: &mut [f64]) {
        match self {
            Matrix::F16(x) => copy(x, row, out, |v| v.to_f64()),
            Matrix::F32(x) => copy(x, row, out, f64::from),
            Matrix::F64(x) => copy(x, row, out, |v| v),
            Matrix::Bits(x, _) => {
                for (i, o) in out.iter_mut().enumerate() {
                    *o = f64::from(x[(row, i / 8)] >> (7 - i % 8) & 1);
                }
            }
            Matrix::Made(of) => of.widen(row, out),
        }
    }

    fn slice32(&self, row: usize) -> Option<&[f32]> {
        match self {
            Matrix::F32(x) => contiguous(x, row),
            Matrix::Made(of) => of.slice32(row),
            Matrix::F16(_) | Matrix::F64(_) | Matrix::Bits(..) => None,
        }
    }
}

/// The rows of two matrices of one width, one after the other.
#[derive(Debug)]
pub struct Joined<'a>(pub &'a dyn Source, pub &'a dyn Source);

impl Joined<'_> {
    fn find(&self, row: usize) -> (&dyn Source, usize) {
        if row < self.0.rows() { (self.0, row) } else { (self.1, row - self.0.rows()) }
    }
}

impl Source for Joined<'_> {
    fn rows(&self) -> usize {
        self.0.rows() + self.1.rows()
    }

    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn is_double(&self) -> bool {
        self.0.is_double() || self.1.is_double()
    }

    fn bytes(&self) -> usize {
        self.0.bytes() + self.1.bytes()
    }

    fn widen(&self, row: usize, out: &mut [f64]) {
        let (of, row) = self.find(row);
        of.widen(row, out);
    }

    fn slice32(&self, row: usize) -> Option<&[f32]> {
        let (of, row) = self.find(row);
        of.slice32(row)
    }
}

/// Some rows of a matrix.
#[derive(Debug)]
pub(crate) struct Picked<'a>(pub &'a dyn Source, pub &'a [usize]);

impl Source for Picked<'_> {
    fn rows(&self) -> usize {
        self.1.len()
    }

    fn dim(&self) -> usize {
        self.0.dim()
    }

    fn is_double(&self) -> bool {
        self.0.is_double()
    }

    fn bytes(&self) -> usize {
        self.0.bytes() / self.0.rows() * self.rows()
    }

    fn widen(&self, row: usize, out: &mut [f64]) {
        self.0.widen(self.1[row], out);
    }

    fn slice32(&self, row: usize) -> Option<&[f32]> {
        self.0.slice32(self.1[row])
    }
}

/// Rows that are scaled to length 1 when they are read, and rounded to single precision unless they have double.
#[derive(Debug)]
pub struct Unit<'a> {
    of: &'a dyn Source,
    /// 1 over every row's length; in double precision, that of the row scaled by a power of two.
    factors: Vec<f64>,
}

impl<'a> Unit<'a> {
    /// Reads through the rows once. They have been found finite, and none of them zero.
    pub fn new(of: &'a dyn Source, control: &Control) -> Result<Self> {
        const ROWS: usize = 256;
        let mut factors: Vec<f64> = zeros(of.rows())?;
        factors.par_chunks_mut(ROWS).enumerate().for_each_init(
            || vec![0.0; of.dim()],
            |row, (chunk, factors)| {
                for (i, factor) in factors.iter_mut().enumerate() {
                    if control.is_cancelled() {
                        return;
                    }
                    of.widen(chunk * ROWS + i, row);
                    if of.is_double() {
                        rescale(row);
                    }
                    *factor = 1.0 / square(row).sqrt();
                }
            },
        );
        control.check()?;
        Ok(Unit { of, factors })
    }
}

impl Source for Unit<'_> {
    fn rows(&self) -> usize {
        self.of.rows()
    }

    fn dim(&self) -> usize {
        self.of.dim()
    }

    fn is_double(&self) -> bool {
        self.of.is_double()
    }

    fn bytes(&self) -> usize {
        self.of.bytes()
    }

    fn widen(&self, row: usize, out: &mut [f64]) {
        self.of.widen(row, out);
        let factor = self.factors[row];
        if self.is_double() {
            rescale(out);
            out.iter_mut().for_each(|v| *v *= factor);
        } else {
            out.iter_mut().for_each(|v| *v = f64::from((*v * factor) as f32));
        }
    }

    fn slice32(&self, _row: usize) -> Option<&[f32]> {
        None
    }
}

fn exponent(x: f64) -> i32 {
    let bits = ((x.to_bits() >> 52) & 0x7ff) as i32;
    if bits == 0 { exponent(x * power_of_two(200)) - 200 } else { bits - 1023 }
}

/// 2 to the power `e`, for −1022 ≤ e ≤ 1023.
fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The power of two, if it is a normal number, that brings `x` between 1/4 and 1.
pub(crate) fn scale_below_one(x: f64) -> f64 {
    power_of_two(-(exponent(x) + 1).max(-1021))
}

/// Scales a row by a power of two so that its largest element is between 1 and 2.
pub(crate) fn rescale(x: &mut [f64]) {
    let largest = x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return;
    }
    let e = -exponent(largest);
    let (half, rest) = (power_of_two(e / 2), power_of_two(e - e / 2));
    for v in x {
        *v = *v * half * rest;
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
