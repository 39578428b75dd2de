//! AVX-512 with VNNI: products of bytes, four per lane and instruction.

use std::arch::x86_64::*;

use super::avx512_sums::{byte_sums, load};
use super::avx512_sweep::{COLUMNS, ROWS};
use super::routines::{BYTE_AFFINE_STEPS, Bytes};

pub(super) const BYTES: Bytes = Bytes { tile, tile_reaching };

#[target_feature(enable = "avx512f,avx512vnni")]
fn tile(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    tile_reaching(steps, rows, columns, &[i32::MIN; ROWS], tile);
}

#[target_feature(enable = "avx512f,avx512vnni")]
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
        let sums_i32x16 = byte_sums(quads, rows.as_ptr(), columns.as_ptr(), load(column));
        let mut any = 0;
        for (r, sums_i32x16) in sums_i32x16.iter().enumerate() {
            let least_i32x16 = _mm512_set1_epi32(*least.as_ptr().add(r));
            for sum_i32x16 in sums_i32x16 {
                any |= _mm512_cmpge_epi32_mask(*sum_i32x16, least_i32x16);
            }
        }
        if any == 0 {
            return false;
        }
        let (scales, biases) = (load(column.add(COLUMNS)), load(column.add(2 * COLUMNS)));
        for (r, sums_i32x16) in sums_i32x16.iter().enumerate() {
            let integer = _mm512_set1_epi32(*row.add(r));
            let scale = _mm512_set1_ps(*row.add(ROWS + r).cast::<f32>());
            let bias = _mm512_set1_ps(*row.add(2 * ROWS + r).cast::<f32>());
            for (v, sum_i32x16) in sums_i32x16.iter().enumerate() {
                let sum_f32x16 = _mm512_cvtepi32_ps(_mm512_add_epi32(*sum_i32x16, integer));
                let scale = _mm512_mul_ps(scale, _mm512_castsi512_ps(scales[v]));
                let bias = _mm512_add_ps(bias, _mm512_castsi512_ps(biases[v]));
                let value_f32x16 = _mm512_fmadd_ps(sum_f32x16, scale, bias);
                _mm512_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS + 16 * v), value_f32x16);
            }
        }
    }
    true
}
