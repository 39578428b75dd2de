//! AVX2: sums of products of two panels.

use std::arch::x86_64::*;

pub(super) const ROWS: usize = 6;
pub(super) const VECTORS: usize = 2;
pub(super) const COLUMNS: usize = 8 * VECTORS;

/// Products of bytes are added in 16 bits for this number of steps, then in 32.
const STEPS_IN_16_BITS: usize = 8;
/// With bytes up to `LARGEST`, 16-bit sums are exact.
pub(super) const LARGEST: i8 = 31;
const _: () = assert!(
    STEPS_IN_16_BITS as i32 * 2 * (2 * LARGEST as i32 + 1) * LARGEST as i32 <= i16::MAX as i32
);

/// The sums of a tile.
pub(super) type Sums = [[__m256i; VECTORS]; ROWS];

/// Loads a word per column.
///
/// # Safety
///
/// `at` must point to COLUMNS words.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn load(at: *const u32) -> [__m256i; VECTORS] {
    // SAFETY: the caller checked the number of words.
    unsafe { [_mm256_loadu_si256(at.cast()), _mm256_loadu_si256(at.add(8).cast())] }
}

/// Defines a function that multiplies two panels word by word: `$step(sum, x, y)` adds the products
/// of two words to a 32-bit sum.
macro_rules! sums {
    ($features:literal, $name:ident, |$sum:ident, $x:ident, $y:ident| $step:expr) => {
        /// # Safety
        ///
        /// The panels must have `steps` steps.
        #[target_feature(enable = $features)]
        #[inline]
        pub(super) unsafe fn $name(
            steps: usize,
            mut row: *const u32,
            mut column: *const u32,
            first: [__m256i; VECTORS],
        ) -> Sums {
            let mut sums_i32x8 = [first; ROWS];
            for _ in 0..steps {
                // SAFETY: the caller checked the number of steps.
                unsafe {
                    let panel = load(column);
                    for (r, sums_i32x8) in sums_i32x8.iter_mut().enumerate() {
                        let $x = _mm256_set1_epi32(*row.add(r) as i32);
                        for (sum_i32x8, $y) in sums_i32x8.iter_mut().zip(panel) {
                            let $sum = *sum_i32x8;
                            *sum_i32x8 = $step;
                        }
                    }
                    row = row.add(ROWS);
                    column = column.add(COLUMNS);
                }
            }
            sums_i32x8
        }
    };
}
sums!("avx2,avxvnni", int16_sums_fused, |sum, x, y| _mm256_dpwssd_avx_epi32(sum, x, y));
sums!("avx2", int16_sums, |sum, x, y| _mm256_add_epi32(sum, _mm256_madd_epi16(x, y)));
sums!("avx2,avxvnni", byte_sums, |sum, x, y| _mm256_dpbusd_avx_epi32(sum, x, y));

/// Sums products of bytes, which are at most 2 · LARGEST + 1 in rows, and ±LARGEST in columns.
///
/// # Safety
///
/// The panels must have `steps` steps.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn byte_sums_in_parts(
    steps: usize,
    mut row: *const u32,
    mut column: *const u32,
    first: [__m256i; VECTORS],
) -> Sums {
    let mut sums_i32x8 = [first; ROWS];
    // SAFETY: the caller checked the number of steps.
    unsafe {
        for first in (0..steps).step_by(STEPS_IN_16_BITS) {
            let mut part_i16x16 = [[_mm256_setzero_si256(); VECTORS]; ROWS];
            for _ in first..steps.min(first + STEPS_IN_16_BITS) {
                let panel_i8x32 = load(column);
                for (r, part_i16x16) in part_i16x16.iter_mut().enumerate() {
                    let row_u8x32 = _mm256_set1_epi32(*row.add(r) as i32);
                    for (sum_i16x16, column_i8x32) in part_i16x16.iter_mut().zip(panel_i8x32) {
                        let pair_i16x16 = _mm256_maddubs_epi16(row_u8x32, column_i8x32);
                        *sum_i16x16 = _mm256_add_epi16(*sum_i16x16, pair_i16x16);
                    }
                }
                row = row.add(ROWS);
                column = column.add(COLUMNS);
            }
            let one_i16x16 = _mm256_set1_epi16(1);
            for (sums_i32x8, part_i16x16) in sums_i32x8.iter_mut().zip(&part_i16x16) {
                for (sum_i32x8, sum_i16x16) in sums_i32x8.iter_mut().zip(part_i16x16) {
                    let wide_i32x8 = _mm256_madd_epi16(*sum_i16x16, one_i16x16);
                    *sum_i32x8 = _mm256_add_epi32(*sum_i32x8, wide_i32x8);
                }
            }
        }
    }
    sums_i32x8
}
