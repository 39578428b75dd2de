//! Coordinates of rows along a few orthonormal directions, and the length of the rest.
//!
//! Let Q be the (count, dim) directions, and |QQᵀ − I| ≤ ε. The directions' span is orthogonal to the rest of a row, so
//! |cᵢ·cⱼ − Qcᵢ·Qcⱼ| ≤ ρᵢρⱼ + ε|cᵢ||cⱼ| with ρ² = |c|² − |Qc|²/(1 + ε): docs/internals/evaluator-exactness.md.

use crate::control::Control;
use crate::error::Result;
use crate::exact::UNIT64;
use crate::kernel::Kernel;
use crate::rows::panels::Panels;
use crate::rows::principal::multiply;

/// Orthonormal directions, measured.
pub(super) struct Prefix {
    kernel: &'static Kernel,
    count: usize,
    directions: Panels<f64>,
    error: f64,
}

impl Prefix {
    /// Packs directions, (count, dim), and measures how far from orthonormal they are.
    pub fn new(kernel: &'static Kernel, directions: &[f64], dim: usize, control: &Control) -> Result<Self> {
        let count = directions.len() / dim;
        let products = multiply(kernel, directions, directions, dim, control)?;
        let departure = |(at, v): (usize, &f64)| (v - f64::from(u8::from(at / count == at % count))).powi(2);
        let departure = products.iter().enumerate().map(departure).sum::<f64>().sqrt();
        // The departure's own rounding, that of coordinates (each along one direction), of their squares and of the row's.
        let rounding = 32.0 * (dim as f64 + 8.0) * UNIT64 * (1.0 + (count as f64).sqrt());
        let (directions, _) = Panels::load(count, kernel.exact.columns, dim, |index, _, row| {
            row.copy_from_slice(&directions[index * dim..][..dim]);
        })?;
        Ok(Prefix { kernel, count, directions, error: 2.0 * departure + rounding + count as f64 * rounding })
    }

    pub fn len(&self) -> usize {
        self.count
    }

    /// Rows that are multiplied together.
    pub fn rows(&self) -> usize {
        self.kernel.exact.rows
    }

    /// Bounds the errors of products of coordinates, relative to the rows' lengths.
    pub fn error(&self) -> f64 {
        self.error
    }

    /// Computes the coordinates, (rows, count), of a panel of rows.
    pub fn coordinates(&self, rows: &[f64]) -> Vec<f64> {
        let (height, width) = (self.kernel.exact.rows, self.kernel.exact.columns);
        let mut tile = vec![0.0; height * width];
        let mut found = vec![0.0; height * self.count];
        for (panel, first) in (0..self.count).step_by(width).enumerate() {
            self.kernel.fused_tile(rows, self.directions.panel(panel), &mut tile);
            let columns = width.min(self.count - first);
            for (found, line) in found.chunks_exact_mut(self.count).zip(tile.chunks_exact(width)) {
                found[first..first + columns].copy_from_slice(&line[..columns]);
            }
        }
        found
    }

    /// Bounds the length of the rest of a row from the squared lengths of the row and of its coordinates. Rounding errors are
    /// relative to `length`.
    pub fn rest(&self, square: f64, coordinates_square: f64, length: f64) -> f64 {
        ((square - coordinates_square).max(0.0) + self.error * length * length).sqrt()
    }
}
