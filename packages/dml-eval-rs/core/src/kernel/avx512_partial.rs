//! AVX-512: comparisons of rounded rows, and products of parts of tiles.

use std::arch::x86_64::*;

use super::avx512_sums::{section_in_32_bits, sections_in_16_bits};
use super::avx512_sweep::{COLUMNS, ROWS, VECTORS};
use super::routines::{
    AFFINE_STEPS, PartialProduct, Parts, ROUNDED_AFFINE_STEPS, Rounding, cost_or_whole,
};

pub(super) const PARTIAL: PartialProduct =
    PartialProduct { parts: ROWS * VECTORS, rounding: Rounding::IN_16_BITS, reaching, fill };
pub(super) const PARTIAL_FUSED: PartialProduct =
    PartialProduct { rounding: Rounding::IN_32_BITS, reaching: reaching_fused, ..PARTIAL };

/// Defines the comparison of rounded rows, given their sums.
macro_rules! reaching {
    ($features:literal, $name:ident, $sums:ident) => {
        #[target_feature(enable = $features)]
        fn $name(
            steps: usize,
            rows: &[u32],
            columns: &[u32],
            least: (&[f32], &[f32]),
            parts: &mut [Parts],
        ) -> u32 {
            let words = steps - ROUNDED_AFFINE_STEPS;
            let mut cost = 0;
            let panels = rows.chunks_exact(steps * ROWS).zip(least.0.chunks_exact(ROWS));
            for ((rows, row_least), parts) in panels.zip(parts) {
                // SAFETY: the caller (`Kernel::reaching_parts`) checked that panels have `steps`
                // steps, more than ROUNDED_AFFINE_STEPS, and that `least.1` has COLUMNS thresholds.
                unsafe {
                    let sums_i32x16 = $sums(words, rows.as_ptr(), columns.as_ptr());
                    let row = rows.as_ptr().add(words * ROWS).cast::<f32>();
                    let column = columns.as_ptr().add(words * COLUMNS).cast::<f32>();
                    let reached = |r: usize, v: usize| {
                        let of_row = |word: usize| _mm512_set1_ps(*row.add(word * ROWS + r));
                        let of_column =
                            |word: usize| _mm512_loadu_ps(column.add(word * COLUMNS + 16 * v));
                        let mut more = _mm512_add_ps(of_row(1), of_column(1));
                        more = _mm512_fmadd_ps(of_row(3), of_column(2), more);
                        more = _mm512_fmadd_ps(of_row(2), of_column(3), more);
                        let sum_f32x16 = _mm512_cvtepi32_ps(sums_i32x16[r][v]);
                        let scale = _mm512_mul_ps(of_row(0), of_column(0));
                        let most_f32x16 = _mm512_fmadd_ps(sum_f32x16, scale, more);
                        let least_f32x16 = _mm512_min_ps(
                            _mm512_set1_ps(row_least[r]),
                            _mm512_loadu_ps(least.1.as_ptr().add(16 * v)),
                        );
                        _mm512_cmp_ps_mask::<_CMP_GE_OQ>(most_f32x16, least_f32x16)
                    };
                    let mut any = 0;
                    for r in 0..ROWS {
                        for v in 0..VECTORS {
                            any |= reached(r, v);
                        }
                    }
                    *parts = 0;
                    if any != 0 {
                        for r in 0..ROWS {
                            for v in 0..VECTORS {
                                *parts |= Parts::from(reached(r, v) != 0) << (r * VECTORS + v);
                            }
                        }
                        cost += cost_or_whole(parts, ROWS * VECTORS);
                    }
                }
            }
            cost
        }
    };
}
reaching!("avx512f,avx512bw,popcnt", reaching, sections_in_16_bits);
reaching!("avx512f,avx512vnni,popcnt", reaching_fused, section_in_32_bits);

#[target_feature(enable = "avx512f,avx512bw")]
fn fill(steps: usize, rows: &[u32], columns: &[u32], parts: Parts, tile: &mut [f32]) {
    let pairs = steps - AFFINE_STEPS;
    tile[..ROWS * COLUMNS].fill(f32::NEG_INFINITY);
    for part in (0..ROWS * VECTORS).filter(|part| parts >> part & 1 == 1) {
        let (r, v) = (part / VECTORS, part % VECTORS);
        // SAFETY: the caller (`Kernel::fill_parts`) checked that the panels have `steps` steps, at
        // least AFFINE_STEPS, and the tile ROWS × COLUMNS values.
        unsafe {
            let (row, column) = (rows.as_ptr().add(r), columns.as_ptr().add(16 * v));
            let mut sum_i32x16 = _mm512_setzero_si512();
            for step in 0..pairs {
                let row_i16x32 = _mm512_set1_epi32(*row.add(step * ROWS) as i32);
                let column_i16x32 = _mm512_loadu_si512(column.add(step * COLUMNS).cast());
                let product_i32x16 = _mm512_madd_epi16(row_i16x32, column_i16x32);
                sum_i32x16 = _mm512_add_epi32(sum_i32x16, product_i32x16);
            }
            let (row, column) =
                (row.add(pairs * ROWS).cast::<f32>(), column.add(pairs * COLUMNS).cast::<f32>());
            let scale = _mm512_mul_ps(_mm512_set1_ps(*row), _mm512_loadu_ps(column));
            let bias =
                _mm512_add_ps(_mm512_set1_ps(*row.add(ROWS)), _mm512_loadu_ps(column.add(COLUMNS)));
            let value_f32x16 = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum_i32x16), scale, bias);
            _mm512_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS + 16 * v), value_f32x16);
        }
    }
}
