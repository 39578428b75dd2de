//! AVX-512: 8 × 48 tiles in 24 of the 32 registers.

use std::arch::x86_64::*;

use crate::exact::{PAIRS, combine};

use super::avx512_codes::{COUNTED_IF_POSSIBLE, LOOKED_UP};
use super::avx512_sweep::{COLUMNS, ROWS, TILES, VECTORS};
use super::exact_macros::{exact_product, exact_routines};
use super::instructions::Instructions;
use super::routines::{AFFINE_STEPS, ExactProducts, Int16, Kernel, Pairs32};

const EXACT_ROWS: usize = 8;
const EXACT_COLUMNS: usize = 24;

pub(super) static WITH_VNNI: Kernel = Kernel {
    name: "avx512-vnni",
    int16: Some(Int16 { tile: int16_fused, reaches: reaches_fused }),
    codes: COUNTED_IF_POSSIBLE,
    available: || has_avx512() && is_x86_feature_detected!("avx512vnni"),
    ..PLAIN
};

/// For Skylake-SP.
pub(super) static PLAIN: Kernel = Kernel {
    name: "avx512",
    number_tiles: TILES,
    float32,
    bfloat16: None,
    int16: Some(Int16 { tile: int16, reaches }),
    codes: LOOKED_UP,
    dots32,
    dot64,
    distances32,
    distance64,
    bits,
    exact: ExactProducts {
        rows: EXACT_ROWS,
        columns: EXACT_COLUMNS,
        dots32: dots_fused,
        dots64: dots,
        distances,
        fused,
    },
    instructions: Instructions::Avx512,
    available: has_avx512,
};

fn has_avx512() -> bool {
    is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl")
        && is_x86_feature_detected!("popcnt")
}

#[target_feature(enable = "avx512f")]
fn float32(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    let (mut row, mut column) = (rows.as_ptr().cast::<f32>(), columns.as_ptr().cast::<f32>());
    let mut sums = [[_mm512_setzero_ps(); VECTORS]; ROWS];
    // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels hold `steps` steps and the tile ROWS × COLUMNS values.
    unsafe {
        for _ in 0..steps {
            let panel = [_mm512_loadu_ps(column), _mm512_loadu_ps(column.add(16)), _mm512_loadu_ps(column.add(32))];
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_ps(*row.add(r));
                for (s, p) in sum.iter_mut().zip(panel) {
                    *s = _mm512_fmadd_ps(x, p, *s);
                }
            }
            row = row.add(ROWS);
            column = column.add(COLUMNS);
        }
        for (r, sum) in sums.iter().enumerate() {
            for (v, s) in sum.iter().enumerate() {
                _mm512_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS + 16 * v), *s);
            }
        }
    }
}

/// Products of int16: `$step(sum, x, p)` adds the products of two pairs to a 32-bit sum.
macro_rules! int16 {
    ($features:literal, $values:ident, $tile:ident, $reaches:ident, |$sum:ident, $x:ident, $p:ident| $step:expr) => {
        /// Calls `take` with each row, vector and its values.
        #[target_feature(enable = $features)]
        #[inline]
        fn $values(steps: usize, rows: &[u32], columns: &[u32], mut take: impl FnMut(usize, usize, __m512)) {
            let (mut row, mut column) = (rows.as_ptr().cast::<i32>(), columns.as_ptr());
            let mut sums = [[_mm512_setzero_si512(); VECTORS]; ROWS];
            // SAFETY: as in `float32`; there are at least AFFINE_STEPS steps.
            unsafe {
                for _ in 0..steps - AFFINE_STEPS {
                    // Not by `from_fn`, into which the compiler may inline no intrinsics.
                    let mut panel = [_mm512_setzero_si512(); VECTORS];
                    for (v, p) in panel.iter_mut().enumerate() {
                        *p = _mm512_loadu_si512(column.add(16 * v).cast());
                    }
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let $x = _mm512_set1_epi32(*row.add(r));
                        for (s, $p) in sum.iter_mut().zip(panel) {
                            let $sum = *s;
                            *s = $step;
                        }
                    }
                    row = row.add(ROWS);
                    column = column.add(COLUMNS);
                }
                let (row, column) = (row.cast::<f32>(), column.cast::<f32>());
                let (mut scales, mut biases) = ([_mm512_setzero_ps(); VECTORS], [_mm512_setzero_ps(); VECTORS]);
                for v in 0..VECTORS {
                    scales[v] = _mm512_loadu_ps(column.add(16 * v));
                    biases[v] = _mm512_loadu_ps(column.add(COLUMNS + 16 * v));
                }
                for (r, sum) in sums.iter().enumerate() {
                    let (scale, bias) = (_mm512_set1_ps(*row.add(r)), _mm512_set1_ps(*row.add(ROWS + r)));
                    for (v, s) in sum.iter().enumerate() {
                        let (scale, bias) = (_mm512_mul_ps(scale, scales[v]), _mm512_add_ps(bias, biases[v]));
                        take(r, v, _mm512_fmadd_ps(_mm512_cvtepi32_ps(*s), scale, bias));
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        fn $tile(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
            let tile = tile.as_mut_ptr();
            $values(steps, rows, columns, |r, v, value| {
                // SAFETY: the caller checked that the tile holds ROWS × COLUMNS values.
                unsafe { _mm512_storeu_ps(tile.add(r * COLUMNS + 16 * v), value) }
            });
        }

        #[target_feature(enable = $features)]
        fn $reaches(steps: usize, rows: &[u32], columns: &[u32], least: (&[f32], &[f32])) -> u64 {
            let of_columns = least.1.as_ptr();
            let mut reached = 0;
            for (p, (rows, of_rows)) in rows.chunks_exact(steps * ROWS).zip(least.0.chunks_exact(ROWS)).enumerate() {
                let mut any = 0;
                $values(steps, rows, columns, |r, v, value| {
                    // SAFETY: the caller checked that there are COLUMNS thresholds.
                    let of_column = unsafe { _mm512_loadu_ps(of_columns.add(16 * v)) };
                    let least = _mm512_min_ps(_mm512_set1_ps(of_rows[r]), of_column);
                    any |= _mm512_cmp_ps_mask::<_CMP_GE_OQ>(value, least);
                });
                reached |= u64::from(any != 0) << p;
            }
            reached
        }
    };
}
int16!("avx512f,avx512vnni", values_fused, int16_fused, reaches_fused, |sum, x, p| _mm512_dpwssd_epi32(sum, x, p));
int16!("avx512f,avx512bw", values, int16, reaches, |sum, x, p| _mm512_add_epi32(sum, _mm512_madd_epi16(x, p)));

exact_routines!("avx512f,avx512vl,avx512dq,avx512bw,popcnt");

/// The stated lanes are those of a register. `$step(sum, q, g)` adds a term.
macro_rules! single_precision {
    ($name:ident, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = "avx512f,avx512vl")]
        fn $name(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
            let mut sums = [_mm512_setzero_pd(); PAIRS];
            let length = q[0].len();
            let whole = length / 8 * 8;
            for at in (0..whole).step_by(8) {
                for (sum, (q, g)) in sums.iter_mut().zip(q.iter().zip(g)) {
                    // SAFETY: `at + 8` is at most the length of `q`; `Kernel` checks that all rows have one length.
                    let $q = unsafe { _mm256_loadu_ps(q.as_ptr().add(at)) };
                    // SAFETY: as above.
                    let $g = unsafe { _mm256_loadu_ps(g.as_ptr().add(at)) };
                    let ($sum, $q, $g) = (*sum, _mm512_cvtps_pd($q), _mm512_cvtps_pd($g));
                    *sum = $step;
                }
            }
            let mask = (1u8 << (length - whole)) - 1;
            if mask != 0 {
                for (sum, (q, g)) in sums.iter_mut().zip(q.iter().zip(g)) {
                    // SAFETY: only the elements under the mask are read, and these are within the rows.
                    let ($q, $g) = unsafe {
                        (
                            _mm256_maskz_loadu_ps(mask, q.as_ptr().add(whole)),
                            _mm256_maskz_loadu_ps(mask, g.as_ptr().add(whole)),
                        )
                    };
                    // The terms beyond the mask are zero and change no sum.
                    let ($sum, $q, $g) = (*sum, _mm512_cvtps_pd($q), _mm512_cvtps_pd($g));
                    *sum = $step;
                }
            }
            // Not by `map`, into which the compiler inlines no intrinsics.
            let mut found = [0.0; PAIRS];
            for (found, sum) in found.iter_mut().zip(sums) {
                let mut lanes = [0.0; 8];
                // SAFETY: `lanes` holds eight numbers.
                unsafe { _mm512_storeu_pd(lanes.as_mut_ptr(), sum) };
                *found = combine(lanes);
            }
            found
        }
    };
}

// The product of two float32 is exact in float64, so fusing changes no bit.
single_precision!(dots32, |sum, q, g| _mm512_fmadd_pd(q, g, sum));
single_precision!(distances32, |sum, q, g| {
    let difference = _mm512_sub_pd(q, g);
    _mm512_add_pd(sum, _mm512_mul_pd(difference, difference))
});

macro_rules! exact {
    ($name:ident, $lanes:literal, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        exact_product!(
            $name,
            "avx512f",
            (EXACT_ROWS, EXACT_COLUMNS, 8, $lanes),
            (_mm512_setzero_pd, _mm512_loadu_pd, _mm512_set1_pd, _mm512_storeu_pd),
            |$sum, $q, $g| $step
        );
    };
}
exact!(dots_fused, 8, |sum, q, g| _mm512_fmadd_pd(q, g, sum));
exact!(fused, 1, |sum, q, g| _mm512_fmadd_pd(q, g, sum));
exact!(dots, 8, |sum, q, g| _mm512_add_pd(sum, _mm512_mul_pd(q, g)));
exact!(distances, 8, |sum, q, g| {
    let difference = _mm512_sub_pd(q, g);
    _mm512_add_pd(sum, _mm512_mul_pd(difference, difference))
});
