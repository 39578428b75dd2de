//! AVX2 with VNNI: a kernel with products of bytes, four per lane and instruction.

use std::arch::x86_64::*;

use super::avx2::{KERNEL, int16_fused};
use super::avx2_partial::PARTIAL_FUSED;
use super::avx2_sums::{COLUMNS, ROWS, VECTORS, byte_sums, load};
use super::routines::{BYTE_AFFINE_STEPS, Bytes, Kernel};

pub(super) static WITH_VNNI: Kernel = Kernel {
    name: "avx2-vnni",
    int16: Some(int16_fused),
    partial: Some(PARTIAL_FUSED),
    bytes: Some(Bytes { tile, tile_reaching }),
    available: || (KERNEL.available)() && is_x86_feature_detected!("avxvnni"),
    ..KERNEL
};

#[target_feature(enable = "avx2,fma,avxvnni")]
fn tile(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    tile_reaching(steps, rows, columns, &[i32::MIN; ROWS], tile);
}

#[target_feature(enable = "avx2,fma,avxvnni")]
fn tile_reaching(
    steps: usize,
    rows: &[u32],
    columns: &[u32],
    least: &[i32],
    tile: &mut [f32],
) -> bool {
    let quads = steps - BYTE_AFFINE_STEPS;
    // SAFETY: the caller (`Kernel::tile_reaching` or `CheckedProduct::tile`) checked that the
    // panels have `steps` steps, at least BYTE_AFFINE_STEPS; that `least` has ROWS numbers; and
    // that the tile has ROWS × COLUMNS.
    unsafe {
        let row = rows.as_ptr().add(quads * ROWS).cast::<i32>();
        let column = columns.as_ptr().add(quads * COLUMNS);
        let sums_i32x8 = byte_sums(quads, rows.as_ptr(), columns.as_ptr(), load(column));
        let mut all_below = _mm256_set1_epi32(-1);
        for (r, sums_i32x8) in sums_i32x8.iter().enumerate() {
            let least_i32x8 = _mm256_set1_epi32(*least.as_ptr().add(r));
            for sum_i32x8 in sums_i32x8 {
                let below = _mm256_cmpgt_epi32(least_i32x8, *sum_i32x8);
                all_below = _mm256_and_si256(all_below, below);
            }
        }
        if _mm256_movemask_epi8(all_below) == -1 {
            return false;
        }
        let (scales, biases) = (load(column.add(COLUMNS)), load(column.add(2 * COLUMNS)));
        for (r, sums_i32x8) in sums_i32x8.iter().enumerate() {
            let integer = _mm256_set1_epi32(*row.add(r));
            let scale = _mm256_broadcast_ss(&*row.add(ROWS + r).cast::<f32>());
            let bias = _mm256_broadcast_ss(&*row.add(2 * ROWS + r).cast::<f32>());
            for v in 0..VECTORS {
                let sum_f32x8 = _mm256_cvtepi32_ps(_mm256_add_epi32(sums_i32x8[v], integer));
                let scale = _mm256_mul_ps(scale, _mm256_castsi256_ps(scales[v]));
                let bias = _mm256_add_ps(bias, _mm256_castsi256_ps(biases[v]));
                let value_f32x8 = _mm256_fmadd_ps(sum_f32x8, scale, bias);
                _mm256_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS + 8 * v), value_f32x8);
            }
        }
    }
    true
}
