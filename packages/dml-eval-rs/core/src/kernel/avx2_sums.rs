//! AVX2: sums of products of two panels.

use std::arch::x86_64::*;

use super::routines::Rounding;

pub(super) const ROWS: usize = 6;
pub(super) const VECTORS: usize = 2;
pub(super) const COLUMNS: usize = 8 * VECTORS;

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

sums!("avx2", wrapping_sums, |sum, x, y| _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, y)));

/// Sums products of rows rounded [`IN_32_BITS`](Rounding::IN_32_BITS).
///
/// # Safety
///
/// The panels must have `steps` steps, at least one.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
pub(super) unsafe fn section_in_32_bits(
    steps: usize,
    row: *const u32,
    column: *const u32,
) -> Sums {
    // SAFETY: the caller checked the number of steps.
    unsafe { byte_sums(steps - 1, row.add(ROWS), column.add(COLUMNS), load(column)) }
}

/// Sums products of rows rounded [`IN_16_BITS`](Rounding::IN_16_BITS).
///
/// # Safety
///
/// The panels must have `steps` steps.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) unsafe fn sections_in_16_bits(
    steps: usize,
    row: *const u32,
    column: *const u32,
) -> Sums {
    const SECTION: usize = Rounding::IN_16_BITS.section;
    let one_i16x16 = _mm256_set1_epi16(1);
    let mut sums_i32x8 = [[_mm256_setzero_si256(); VECTORS]; ROWS];
    for at in (0..steps).step_by(1 + SECTION) {
        let words = SECTION.min(steps - at - 1);
        // SAFETY: the caller checked the number of steps.
        let section_i16x16 = unsafe {
            let (row, column) = (row.add(at * ROWS), column.add(at * COLUMNS));
            wrapping_sums(words, row.add(ROWS), column.add(COLUMNS), load(column))
        };
        for (sums_i32x8, section_i16x16) in sums_i32x8.iter_mut().zip(&section_i16x16) {
            for (sum_i32x8, sum_i16x16) in sums_i32x8.iter_mut().zip(section_i16x16) {
                let wide_i32x8 = _mm256_madd_epi16(*sum_i16x16, one_i16x16);
                *sum_i32x8 = _mm256_add_epi32(*sum_i32x8, wide_i32x8);
            }
        }
    }
    sums_i32x8
}
