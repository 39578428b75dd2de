//! AVX2 with FMA: 6 × 16 tiles in sixteen 256-bit registers.

use std::arch::x86_64::*;

use crate::exact::{PAIRS, combine};

use super::avx2_codes::CODES;
use super::avx2_sweep::{sweep, sweep_brackets};
use super::exact_macros::{exact_product, exact_routines};
use super::instructions::Instructions;
use super::routines::{AFFINE_STEPS, ExactProducts, Int16, Kernel, Pairs32};
use super::tiles::Tiles;

const ROWS: usize = 6;
const VECTORS: usize = 2;
const COLUMNS: usize = 8 * VECTORS;
const EXACT_ROWS: usize = 4;
const EXACT_COLUMNS: usize = 12;

const TILES: Tiles = Tiles {
    rows: ROWS,
    columns: COLUMNS,
    sweep: sweep::<VECTORS, true>,
    sweep_rows: sweep::<VECTORS, false>,
    sweep_brackets: sweep_brackets::<VECTORS>,
};

pub(super) static WITH_VNNI: Kernel = Kernel {
    name: "avx2-vnni",
    int16: Some(Int16 { tile: int16_fused, reaches: reaches_fused }),
    available: || (KERNEL.available)() && is_x86_feature_detected!("avxvnni"),
    ..KERNEL
};

pub(super) static KERNEL: Kernel = Kernel {
    name: "avx2",
    number_tiles: TILES,
    float32,
    bfloat16: None,
    int16: Some(Int16 { tile: int16, reaches }),
    codes: CODES,
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
    instructions: Instructions::Avx2,
    available: || {
        is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("popcnt")
    },
};

#[target_feature(enable = "avx2,fma")]
fn float32(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    let (mut row, mut column) = (rows.as_ptr().cast::<f32>(), columns.as_ptr().cast::<f32>());
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; ROWS];
    // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels hold `steps` steps and the tile ROWS × COLUMNS values.
    unsafe {
        for _ in 0..steps {
            let (left, right) = (_mm256_loadu_ps(column), _mm256_loadu_ps(column.add(8)));
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = _mm256_broadcast_ss(&*row.add(r));
                sum[0] = _mm256_fmadd_ps(x, left, sum[0]);
                sum[1] = _mm256_fmadd_ps(x, right, sum[1]);
            }
            row = row.add(ROWS);
            column = column.add(COLUMNS);
        }
        for (r, sum) in sums.iter().enumerate() {
            _mm256_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS), sum[0]);
            _mm256_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS + 8), sum[1]);
        }
    }
}

/// Products of int16: `$step(sum, x, p)` adds the products of two pairs to a 32-bit sum.
macro_rules! int16 {
    ($features:literal, $values:ident, $tile:ident, $reaches:ident, |$sum:ident, $x:ident, $p:ident| $step:expr) => {
        /// Calls `take` with each row, vector and its values.
        #[target_feature(enable = $features)]
        #[inline]
        fn $values(steps: usize, rows: &[u32], columns: &[u32], mut take: impl FnMut(usize, usize, __m256)) {
            let (mut row, mut column) = (rows.as_ptr().cast::<i32>(), columns.as_ptr());
            let mut sums = [[_mm256_setzero_si256(); VECTORS]; ROWS];
            // SAFETY: as in `float32`; there are at least AFFINE_STEPS steps.
            unsafe {
                for _ in 0..steps - AFFINE_STEPS {
                    let panel = [_mm256_loadu_si256(column.cast()), _mm256_loadu_si256(column.add(8).cast())];
                    for (r, sum) in sums.iter_mut().enumerate() {
                        let $x = _mm256_set1_epi32(*row.add(r));
                        for (s, $p) in sum.iter_mut().zip(panel) {
                            let $sum = *s;
                            *s = $step;
                        }
                    }
                    row = row.add(ROWS);
                    column = column.add(COLUMNS);
                }
                let (row, column) = (row.cast::<f32>(), column.cast::<f32>());
                for (r, sum) in sums.iter().enumerate() {
                    let (scale, bias) = (_mm256_broadcast_ss(&*row.add(r)), _mm256_broadcast_ss(&*row.add(ROWS + r)));
                    for (v, s) in sum.iter().enumerate() {
                        let scale = _mm256_mul_ps(scale, _mm256_loadu_ps(column.add(8 * v)));
                        let bias = _mm256_add_ps(bias, _mm256_loadu_ps(column.add(COLUMNS + 8 * v)));
                        take(r, v, _mm256_fmadd_ps(_mm256_cvtepi32_ps(*s), scale, bias));
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        fn $tile(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
            let tile = tile.as_mut_ptr();
            $values(steps, rows, columns, |r, v, value| {
                // SAFETY: the caller checked that the tile holds ROWS × COLUMNS values.
                unsafe { _mm256_storeu_ps(tile.add(r * COLUMNS + 8 * v), value) }
            });
        }

        #[target_feature(enable = $features)]
        fn $reaches(steps: usize, rows: &[u32], columns: &[u32], least: (&[f32], &[f32])) -> u64 {
            let of_columns = least.1.as_ptr();
            let mut reached = 0;
            for (p, (rows, of_rows)) in rows.chunks_exact(steps * ROWS).zip(least.0.chunks_exact(ROWS)).enumerate() {
                let mut any = _mm256_setzero_ps();
                $values(steps, rows, columns, |r, v, value| {
                    // SAFETY: the caller checked that there are COLUMNS thresholds.
                    let of_column = unsafe { _mm256_loadu_ps(of_columns.add(8 * v)) };
                    let least = _mm256_min_ps(_mm256_set1_ps(of_rows[r]), of_column);
                    any = _mm256_or_ps(any, _mm256_cmp_ps::<_CMP_GE_OQ>(value, least));
                });
                reached |= u64::from(_mm256_movemask_ps(any) != 0) << p;
            }
            reached
        }
    };
}
int16!("avx2,fma,avxvnni", values_fused, int16_fused, reaches_fused, |sum, x, p| _mm256_dpwssd_avx_epi32(sum, x, p));
int16!("avx2,fma", values, int16, reaches, |sum, x, p| _mm256_add_epi32(sum, _mm256_madd_epi16(x, p)));

exact_routines!("avx2,popcnt");

/// The stated lanes are those of two registers. `$step(sum, q, g)` adds a term to half of them.
macro_rules! single_precision {
    ($name:ident, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = "avx2,fma")]
        fn $name(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
            let mut sums = [[_mm256_setzero_pd(); 2]; PAIRS];
            let length = q[0].len();
            let whole = length / 8 * 8;
            for at in (0..whole).step_by(8) {
                for (sums, (q, g)) in sums.iter_mut().zip(q.iter().zip(g)) {
                    for (half, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: `at + 8` is at most the length of `q`; `Kernel` checks that all rows have one length.
                        let ($q, $g) = unsafe {
                            (_mm_loadu_ps(q.as_ptr().add(at + 4 * half)), _mm_loadu_ps(g.as_ptr().add(at + 4 * half)))
                        };
                        let ($sum, $q, $g) = (*sum, _mm256_cvtps_pd($q), _mm256_cvtps_pd($g));
                        *sum = $step;
                    }
                }
            }
            if whole < length {
                for (sums, (q, g)) in sums.iter_mut().zip(q.iter().zip(g)) {
                    // Terms of zeros change no sum.
                    let (mut q_rest, mut g_rest) = ([0.0; 8], [0.0; 8]);
                    q_rest[..length - whole].copy_from_slice(&q[whole..]);
                    g_rest[..length - whole].copy_from_slice(&g[whole..]);
                    for (half, sum) in sums.iter_mut().enumerate() {
                        // SAFETY: both arrays hold eight numbers.
                        let ($q, $g) = unsafe {
                            (_mm_loadu_ps(q_rest.as_ptr().add(4 * half)), _mm_loadu_ps(g_rest.as_ptr().add(4 * half)))
                        };
                        let ($sum, $q, $g) = (*sum, _mm256_cvtps_pd($q), _mm256_cvtps_pd($g));
                        *sum = $step;
                    }
                }
            }
            sums.map(|[low, high]| {
                let mut lanes = [0.0; 8];
                // SAFETY: `lanes` holds eight numbers.
                unsafe {
                    _mm256_storeu_pd(lanes.as_mut_ptr(), low);
                    _mm256_storeu_pd(lanes.as_mut_ptr().add(4), high);
                }
                combine(lanes)
            })
        }
    };
}

// The product of two float32 is exact in float64, so fusing changes no bit.
single_precision!(dots32, |sum, q, g| _mm256_fmadd_pd(q, g, sum));
single_precision!(distances32, |sum, q, g| {
    let difference = _mm256_sub_pd(q, g);
    _mm256_add_pd(sum, _mm256_mul_pd(difference, difference))
});

macro_rules! exact {
    ($name:ident, $lanes:literal, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        exact_product!(
            $name,
            "avx2,fma",
            (EXACT_ROWS, EXACT_COLUMNS, 4, $lanes),
            (_mm256_setzero_pd, _mm256_loadu_pd, _mm256_set1_pd, _mm256_storeu_pd),
            |$sum, $q, $g| $step
        );
    };
}
exact!(dots_fused, 8, |sum, q, g| _mm256_fmadd_pd(q, g, sum));
exact!(fused, 1, |sum, q, g| _mm256_fmadd_pd(q, g, sum));
exact!(dots, 8, |sum, q, g| _mm256_add_pd(sum, _mm256_mul_pd(q, g)));
exact!(distances, 8, |sum, q, g| {
    let difference = _mm256_sub_pd(q, g);
    _mm256_add_pd(sum, _mm256_mul_pd(difference, difference))
});
