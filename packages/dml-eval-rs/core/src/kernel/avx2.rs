//! Kernels for AVX2 with FMA, and the exact sums.

use std::arch::x86_64::*;
use std::ptr;

use crate::exact::{PAIRS, combine};

use super::avx2_codes::CODES;
use super::avx2_products::{
    BYTES, COLUMNS, PARTIAL, PARTIAL_FUSED, ROWS, VECTORS, float32, int16, int16_fused,
};
use super::avx2_sweep::{sweep, sweep_brackets};
use super::exact_macros::{exact_product, exact_routines};
use super::instructions::Instructions;
use super::routines::{CHUNK, ExactProducts, Kernel, ONE_CHUNK, Pairs32};
use super::tiles::Tiles;

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
    int16: Some(int16_fused),
    partial: Some(PARTIAL_FUSED),
    bytes: Some(BYTES),
    available: || (PLAIN.available)() && is_x86_feature_detected!("avxvnni"),
    ..PLAIN
};

/// The kernel for CPUs that do not support VNNI, for example Zen 3.
pub(super) static PLAIN: Kernel = Kernel {
    name: "avx2",
    number_tiles: TILES,
    float32: float32::<ONE_CHUNK>,
    float32_in_chunks: float32::<CHUNK>,
    bfloat16: None,
    int16: Some(int16),
    partial: Some(PARTIAL),
    bytes: None,
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
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("popcnt")
    },
};

exact_routines!("avx2,popcnt");

/// Two registers contain the eight lanes that `exact` defines. `$step(sum, q, g)` adds a term to
/// half of the lanes.
macro_rules! single_precision {
    ($name:ident, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = "avx2,fma")]
        fn $name(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
            #[target_feature(enable = "avx2,fma")]
            fn sums<const SHARED: bool>(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
                // So the compiler can see that the query is shared, and converts it once.
                let q = if SHARED { [q[0]; PAIRS] } else { q };
                let mut sums_f64x4 = [[_mm256_setzero_pd(); 2]; PAIRS];
                let length = q[0].len();
                let whole = length / 8 * 8;
                for at in (0..whole).step_by(8) {
                    for (sums_f64x4, (q, g)) in sums_f64x4.iter_mut().zip(q.iter().zip(g)) {
                        for (half, sum_f64x4) in sums_f64x4.iter_mut().enumerate() {
                            // SAFETY: `at + 8` is at most the length of `q`, and `Kernel` checks
                            // that all rows have equal lengths.
                            let ($q, $g) = unsafe {
                                (
                                    _mm_loadu_ps(q.as_ptr().add(at + 4 * half)),
                                    _mm_loadu_ps(g.as_ptr().add(at + 4 * half)),
                                )
                            };
                            let ($sum, $q, $g) =
                                (*sum_f64x4, _mm256_cvtps_pd($q), _mm256_cvtps_pd($g));
                            *sum_f64x4 = $step;
                        }
                    }
                }
                if whole < length {
                    for (sums_f64x4, (q, g)) in sums_f64x4.iter_mut().zip(q.iter().zip(g)) {
                        // Pad the last numbers with zeros, which don't change the sums.
                        let (mut q_rest, mut g_rest) = ([0.0; 8], [0.0; 8]);
                        q_rest[..length - whole].copy_from_slice(&q[whole..]);
                        g_rest[..length - whole].copy_from_slice(&g[whole..]);
                        for (half, sum_f64x4) in sums_f64x4.iter_mut().enumerate() {
                            // SAFETY: both arrays have eight numbers.
                            let ($q, $g) = unsafe {
                                (
                                    _mm_loadu_ps(q_rest.as_ptr().add(4 * half)),
                                    _mm_loadu_ps(g_rest.as_ptr().add(4 * half)),
                                )
                            };
                            let ($sum, $q, $g) =
                                (*sum_f64x4, _mm256_cvtps_pd($q), _mm256_cvtps_pd($g));
                            *sum_f64x4 = $step;
                        }
                    }
                }
                sums_f64x4.map(|[low_f64x4, high_f64x4]| {
                    let mut lanes = [0.0; 8];
                    // SAFETY: `lanes` contains eight numbers.
                    unsafe {
                        _mm256_storeu_pd(lanes.as_mut_ptr(), low_f64x4);
                        _mm256_storeu_pd(lanes.as_mut_ptr().add(4), high_f64x4);
                    }
                    combine(lanes)
                })
            }
            if q.iter().all(|row| ptr::eq(*row, q[0])) {
                sums::<true>(q, g)
            } else {
                sums::<false>(q, g)
            }
        }
    };
}

// Products of float32 numbers are exact in float64, so fused operations do not change bits.
single_precision!(dots32, |sum_f64x4, q_f64x4, g_f64x4| _mm256_fmadd_pd(
    q_f64x4, g_f64x4, sum_f64x4
));
single_precision!(distances32, |sum_f64x4, q_f64x4, g_f64x4| {
    let difference = _mm256_sub_pd(q_f64x4, g_f64x4);
    _mm256_add_pd(sum_f64x4, _mm256_mul_pd(difference, difference))
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
exact!(dots_fused, 8, |sum_f64x4, q_f64x4, g_f64x4| _mm256_fmadd_pd(q_f64x4, g_f64x4, sum_f64x4));
exact!(fused, 1, |sum_f64x4, q_f64x4, g_f64x4| _mm256_fmadd_pd(q_f64x4, g_f64x4, sum_f64x4));
exact!(dots, 8, |sum_f64x4, q_f64x4, g_f64x4| _mm256_add_pd(
    sum_f64x4,
    _mm256_mul_pd(q_f64x4, g_f64x4)
));
exact!(distances, 8, |sum_f64x4, q_f64x4, g_f64x4| {
    let difference = _mm256_sub_pd(q_f64x4, g_f64x4);
    _mm256_add_pd(sum_f64x4, _mm256_mul_pd(difference, difference))
});
