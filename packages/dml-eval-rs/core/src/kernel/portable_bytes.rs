//! Plain Rust: products of bytes, the reference for kernels with VNNI.

use super::portable::{self, COLUMNS, ROWS};
use super::routines::{BYTE_AFFINE_STEPS, Bytes, Kernel};

/// Used by tests, on CPUs without VNNI: these products of bytes take longer than float32.
pub(super) static KERNEL: Kernel = Kernel {
    name: "portable-bytes",
    bytes: Some(Bytes { tile, tile_reaching }),
    ..portable::KERNEL
};

fn tile(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    tile_reaching(steps, rows, columns, &[i32::MIN; ROWS], tile);
}

fn tile_reaching(
    steps: usize,
    rows: &[u32],
    columns: &[u32],
    least: &[i32],
    tile: &mut [f32],
) -> bool {
    let (rows, _) = rows.as_chunks::<ROWS>();
    let (columns, _) = columns.as_chunks::<COLUMNS>();
    let (rows, row_affine) = rows[..steps].split_at(steps - BYTE_AFFINE_STEPS);
    let (columns, column_affine) = columns[..steps].split_at(steps - BYTE_AFFINE_STEPS);
    let mut sums = [column_affine[0].map(|integer| integer as i32); ROWS];
    for (row, column) in rows.iter().zip(columns) {
        for r in 0..ROWS {
            let x = row[r].to_le_bytes();
            for c in 0..COLUMNS {
                let y = column[c].to_le_bytes();
                for i in 0..4 {
                    sums[r][c] += i32::from(x[i]) * i32::from(y[i] as i8);
                }
            }
        }
    }
    if sums.iter().zip(least).all(|(sums, least)| sums.iter().all(|sum| sum < least)) {
        return false;
    }
    for (r, out) in tile.chunks_exact_mut(COLUMNS).take(ROWS).enumerate() {
        let [integer, scale, bias] = [0, 1, 2].map(|word| row_affine[word][r]);
        for (c, out) in out.iter_mut().enumerate() {
            let scale = f32::from_bits(scale) * f32::from_bits(column_affine[1][c]);
            let bias = f32::from_bits(bias) + f32::from_bits(column_affine[2][c]);
            *out = (sums[r][c] + integer as i32) as f32 * scale + bias;
        }
    }
    true
}
