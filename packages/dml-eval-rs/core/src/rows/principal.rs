//! Finds the directions along which rows vary most, by orthogonal iteration on a sample.
//!
//! Any orthonormal directions give correct bounds, but only principal ones give bounds so tight
//! that prefixes can exclude pairs (prefix.rs says how much this gains).

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::{Grow, allocate, collect, zeros};
use crate::rows::key_table::{Shape, fill};
use crate::side::Side;

const ITERATIONS: usize = 2;

/// Multiplies all rows of `a`, (rows, dim), by all rows of `b`.
pub(super) fn multiply(
    kernel: &'static Kernel,
    a: &[f64],
    b: &[f64],
    dim: usize,
    control: &Control,
) -> Result<Vec<f64>> {
    let (rows, columns) = (a.len() / dim, b.len() / dim);
    let mut products: Vec<f64> = zeros(rows * columns)?;
    let (rows, columns) = (collect(0..rows as u32)?, collect(0..columns as u32)?);
    fill(
        Shape { rows: kernel.exact.rows, columns: kernel.exact.columns, steps: dim, tiles: 1 },
        (&rows, &columns),
        |side, rows, width, panel| {
            let of = if side == Side::Query { a } else { b };
            for (lane, row) in rows.iter().enumerate() {
                let words = panel[lane..].iter_mut().step_by(width);
                words.zip(&of[*row as usize * dim..][..dim]).for_each(|(word, v)| *word = *v);
            }
            Ok(())
        },
        |rows, columns, tile: &mut [f64]| kernel.fused_tile(rows, columns, tile),
        (|_| (), |_: &[()], sums: &[f64], products: &mut [f64]| products.copy_from_slice(sums)),
        &mut products,
        control,
    )?;
    Ok(products)
}

/// Transposes `x`, of shape (rows, dim).
fn transpose(x: &[f64], dim: usize) -> Result<Vec<f64>> {
    let rows = x.len() / dim;
    let mut columns: Vec<f64> = zeros(x.len())?;
    for (r, row) in x.chunks_exact(dim).enumerate() {
        for (c, v) in row.iter().enumerate() {
            columns[c * rows + r] = *v;
        }
    }
    Ok(columns)
}

/// Subtracts `factor` times `other` from `row`.
#[inline(always)]
fn subtract(row: &mut [f64], factor: f64, other: &[f64]) {
    for (v, o) in row.iter_mut().zip(other) {
        *v -= factor * o;
    }
}

/// Makes `rows`, (count, dim), orthonormal, each to all previous rows, and omits rows that depend
/// on previous rows. A second pass removes the rounding errors of the first.
fn orthonormalize(kernel: &'static Kernel, rows: &mut Vec<f64>, dim: usize, passes: usize) {
    /// The least share of a row's length that must remain. A shorter remainder consists mostly of
    /// rounding errors.
    const LEAST: f64 = 1e-9;
    let mut kept = 0;
    for index in 0..rows.len() / dim {
        let (before, from) = rows.split_at_mut(index * dim);
        let row = &mut from[..dim];
        let length = kernel.dot64(row, row).sqrt();
        for _ in 0..passes {
            for other in before[..kept * dim].chunks_exact(dim) {
                let along = kernel.dot64(row, other);
                kernel.vectorize(|| subtract(row, along, other));
            }
        }
        let left = kernel.dot64(row, row).sqrt();
        if left > LEAST * length {
            for v in &mut *row {
                *v /= left;
            }
            rows.copy_within(index * dim..(index + 1) * dim, kept * dim);
            kept += 1;
        }
    }
    rows.truncate(kept * dim);
}

/// Finds about `count` orthonormal directions, (count, dim), along which the rows of `sample`,
/// (rows, dim), are long: approximate eigenvectors of the second moments, largest eigenvalue first.
/// `count` must not exceed the number of rows.
pub(super) fn principal_directions(
    kernel: &'static Kernel,
    sample: &[f64],
    dim: usize,
    count: usize,
    control: &Control,
) -> Result<Vec<f64>> {
    let columns = transpose(sample, dim)?;
    let rows = sample.len() / dim;
    let mut directions = collect(sample[..count * dim].iter().copied())?;
    orthonormalize(kernel, &mut directions, dim, 1);
    for iteration in 1..=ITERATIONS {
        let coordinates = multiply(kernel, &directions, sample, dim, control)?;
        directions = multiply(kernel, &coordinates, &columns, rows, control)?;
        // Sort the longest first: orthonormalizing keeps the first direction, and only the
        // orthogonal part of the others.
        let lengths = collect(directions.chunks_exact(dim).map(|row| kernel.dot64(row, row)))?;
        let mut order = collect(0..lengths.len())?;
        order.sort_unstable_by(|&a, &b| lengths[b].total_cmp(&lengths[a]).then(a.cmp(&b)));
        let mut sorted = allocate(directions.len())?;
        for row in order {
            sorted.try_extend(directions[row * dim..][..dim].iter().copied())?;
        }
        directions = sorted;
        orthonormalize(kernel, &mut directions, dim, if iteration == ITERATIONS { 2 } else { 1 });
    }
    Ok(directions)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{names, select};
    use crate::random::Random;

    /// Makes rows that are long in three directions, and short in all other directions.
    fn sample(rows: usize, dim: usize) -> Vec<f64> {
        let mut random = Random::new(2);
        let mut x = vec![0.0; rows * dim];
        for row in x.chunks_exact_mut(dim) {
            for (i, v) in row.iter_mut().enumerate() {
                *v = (random.uniform() - 0.5) * [9.0, 5.0, 3.0].get(i).copied().unwrap_or(0.01);
            }
        }
        x
    }

    #[test]
    fn products_are_those_of_rows() {
        let (a, b) = (sample(13, 21), sample(50, 21));
        for name in names() {
            let kernel = select(Some(name)).unwrap();
            let found = multiply(kernel, &a, &b, 21, &Control::default()).unwrap();
            for (i, x) in a.chunks_exact(21).enumerate() {
                for (j, y) in b.chunks_exact(21).enumerate() {
                    assert!((found[i * 50 + j] - kernel.dot64(x, y)).abs() < 1e-12);
                }
            }
        }
    }

    #[test]
    fn the_longest_directions_come_first_and_are_orthonormal() {
        let (kernel, dim) = (select(None).unwrap(), 40);
        let found =
            principal_directions(kernel, &sample(300, dim), dim, 8, &Control::default()).unwrap();
        assert_eq!(found.len(), 8 * dim);
        let products = multiply(kernel, &found, &found, dim, &Control::default()).unwrap();
        for (at, product) in products.iter().enumerate() {
            assert!((product - f64::from(u8::from(at / 8 == at % 8))).abs() < 1e-14, "{product}");
        }
        // The long axes must be in the span of the first three directions.
        for axis in 0..3 {
            let within: f64 =
                found.chunks_exact(dim).take(3).map(|direction| direction[axis].powi(2)).sum();
            assert!(within > 0.9999, "{axis}: {within}");
        }
    }

    #[test]
    fn dependent_rows_are_omitted() {
        let mut rows = vec![3.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0];
        orthonormalize(select(None).unwrap(), &mut rows, 3, 2);
        assert_eq!(rows, [1.0, 0.0, 0.0, 0.0, 1.0, 0.0]);
    }
}
