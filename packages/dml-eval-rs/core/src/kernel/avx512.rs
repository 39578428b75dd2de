//! Kernels for AVX-512, and the exact sums.

use std::arch::x86_64::*;
use std::ptr;

use crate::exact::{PAIRS, combine};

use super::amx;
use super::avx512_codes::{COUNTED_IF_POSSIBLE, LOOKED_UP};
use super::avx512_products::{BYTES, PARTIAL, PARTIAL_FUSED, float32, int16, int16_fused};
use super::avx512_sweep::TILES;
use super::exact_macros::{exact_product, exact_routines};
use super::instructions::Instructions;
use super::routines::{CHUNK, ExactProducts, Kernel, ONE_CHUNK, Pairs32};

const EXACT_ROWS: usize = 8;
const EXACT_COLUMNS: usize = 24;

pub(super) static WITH_AMX: Kernel = Kernel {
    name: "avx512-amx",
    partial: Some(amx::PARTIAL),
    available: || (WITH_VNNI.available)() && amx::is_permitted(),
    ..WITH_VNNI
};

pub(super) static WITH_VNNI: Kernel = Kernel {
    name: "avx512-vnni",
    int16: Some(int16_fused),
    partial: Some(PARTIAL_FUSED),
    bytes: Some(BYTES),
    codes: COUNTED_IF_POSSIBLE,
    available: || has_avx512() && is_x86_feature_detected!("avx512vnni"),
    ..PLAIN
};

/// The kernel for CPUs that do not support VNNI, for example Skylake-SP.
pub(super) static PLAIN: Kernel = Kernel {
    name: "avx512",
    number_tiles: TILES,
    float32: float32::<ONE_CHUNK>,
    float32_in_chunks: float32::<CHUNK>,
    bfloat16: None,
    int16: Some(int16),
    partial: Some(PARTIAL),
    bytes: None,
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

exact_routines!("avx512f,avx512vl,avx512dq,avx512bw,popcnt");

/// A register contains the eight lanes that `exact` defines. `$step(sum, q, g)` adds a term to all
/// lanes.
macro_rules! single_precision {
    ($name:ident, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = "avx512f,avx512vl")]
        fn $name(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
            #[target_feature(enable = "avx512f,avx512vl")]
            fn sums<const SHARED: bool>(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
                // So the compiler can see that the query is shared, and converts it once.
                let q = if SHARED { [q[0]; PAIRS] } else { q };
                let mut sums_f64x8 = [_mm512_setzero_pd(); PAIRS];
                let length = q[0].len();
                let whole = length / 8 * 8;
                for at in (0..whole).step_by(8) {
                    for (sum_f64x8, (q, g)) in sums_f64x8.iter_mut().zip(q.iter().zip(g)) {
                        // SAFETY: `at + 8` is at most the length of `q`, and `Kernel` checks that
                        // all rows have equal lengths.
                        let $q = unsafe { _mm256_loadu_ps(q.as_ptr().add(at)) };
                        // SAFETY: as above.
                        let $g = unsafe { _mm256_loadu_ps(g.as_ptr().add(at)) };
                        let ($sum, $q, $g) = (*sum_f64x8, _mm512_cvtps_pd($q), _mm512_cvtps_pd($g));
                        *sum_f64x8 = $step;
                    }
                }
                let mask = (1u8 << (length - whole)) - 1;
                if mask != 0 {
                    for (sum_f64x8, (q, g)) in sums_f64x8.iter_mut().zip(q.iter().zip(g)) {
                        // SAFETY: only elements under the mask are read, and these are in the rows.
                        let ($q, $g) = unsafe {
                            (
                                _mm256_maskz_loadu_ps(mask, q.as_ptr().add(whole)),
                                _mm256_maskz_loadu_ps(mask, g.as_ptr().add(whole)),
                            )
                        };
                        // Terms outside the mask are zero and don't change the sums.
                        let ($sum, $q, $g) = (*sum_f64x8, _mm512_cvtps_pd($q), _mm512_cvtps_pd($g));
                        *sum_f64x8 = $step;
                    }
                }
                // Don't use `map`: the compiler doesn't inline intrinsics into it.
                let mut found = [0.0; PAIRS];
                for (found, sum_f64x8) in found.iter_mut().zip(sums_f64x8) {
                    let mut lanes = [0.0; 8];
                    // SAFETY: `lanes` contains eight numbers.
                    unsafe { _mm512_storeu_pd(lanes.as_mut_ptr(), sum_f64x8) };
                    *found = combine(lanes);
                }
                found
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
single_precision!(dots32, |sum_f64x8, q_f64x8, g_f64x8| _mm512_fmadd_pd(
    q_f64x8, g_f64x8, sum_f64x8
));
single_precision!(distances32, |sum_f64x8, q_f64x8, g_f64x8| {
    let difference = _mm512_sub_pd(q_f64x8, g_f64x8);
    _mm512_add_pd(sum_f64x8, _mm512_mul_pd(difference, difference))
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
exact!(dots_fused, 8, |sum_f64x8, q_f64x8, g_f64x8| _mm512_fmadd_pd(q_f64x8, g_f64x8, sum_f64x8));
exact!(fused, 1, |sum_f64x8, q_f64x8, g_f64x8| _mm512_fmadd_pd(q_f64x8, g_f64x8, sum_f64x8));
exact!(dots, 8, |sum_f64x8, q_f64x8, g_f64x8| _mm512_add_pd(
    sum_f64x8,
    _mm512_mul_pd(q_f64x8, g_f64x8)
));
exact!(distances, 8, |sum_f64x8, q_f64x8, g_f64x8| {
    let difference = _mm512_sub_pd(q_f64x8, g_f64x8);
    _mm512_add_pd(sum_f64x8, _mm512_mul_pd(difference, difference))
});
