//! Rows that are derived from other rows whenever they are read: concatenated, selected or
//! normalized.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::exact::square;
use crate::memory::{each, full, zeros};
use crate::rows::matrix::Source;
use crate::rows::scaling::rescale;

/// The rows of matrices with equal widths, concatenated.
#[derive(Debug)]
pub struct Concatenated<'a>(pub &'a dyn Source, pub &'a dyn Source);

impl Concatenated<'_> {
    /// Finds the matrix that contains the row, then the index there.
    fn find(&self, row: usize) -> (&dyn Source, usize) {
        if row < self.0.rows() { (self.0, row) } else { (self.1, row - self.0.rows()) }
    }
}

impl Source for Concatenated<'_> {
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
        let (source, row) = self.find(row);
        source.widen(row, out);
    }

    fn slice32(&self, row: usize) -> Option<&[f32]> {
        let (source, row) = self.find(row);
        source.slice32(row)
    }
}

/// Some of the rows of a matrix.
#[derive(Debug)]
pub struct Selected<'a>(pub &'a dyn Source, pub &'a [usize]);

impl Source for Selected<'_> {
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

/// Rows that are scaled to length 1 when read, then rounded to single precision unless they are
/// double.
#[derive(Debug)]
pub struct Normalized<'a> {
    source: &'a dyn Source,
    /// 1 / length per row; for double precision, the length after scaling the row by a power of
    /// two.
    factors: Vec<f64>,
}

impl<'a> Normalized<'a> {
    /// Reads all rows, which must be finite and must not be zero vectors.
    pub fn new(source: &'a dyn Source, control: &Control) -> Result<Self> {
        const ROWS: usize = 256;
        let mut factors: Vec<f64> = zeros(source.rows())?;
        let make = || full(source.dim(), 0.0);
        each(factors.par_chunks_mut(ROWS).enumerate(), make, |row, (chunk, factors)| {
            for (i, factor) in factors.iter_mut().enumerate() {
                control.check()?;
                source.widen(chunk * ROWS + i, row);
                if source.is_double() {
                    rescale(row);
                }
                *factor = 1.0 / square(row).sqrt();
            }
            Ok(())
        })?;
        Ok(Normalized { source, factors })
    }
}

impl Source for Normalized<'_> {
    fn rows(&self) -> usize {
        self.source.rows()
    }

    fn dim(&self) -> usize {
        self.source.dim()
    }

    fn is_double(&self) -> bool {
        self.source.is_double()
    }

    fn bytes(&self) -> usize {
        self.source.bytes()
    }

    fn widen(&self, row: usize, out: &mut [f64]) {
        self.source.widen(row, out);
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
