//! AVX2: computes distances of binary codes with tables, in tiles of 8 × 32.
//!
//! A byte of a row selects a table. A shuffle looks up the low halves of 16 columns' bytes in one
//! half of the table, and the high halves in the other. With the addition to the sums, this takes
//! two operations for 128 bits. An exclusive or, and counting the bits by half bytes, would take
//! four.

use std::arch::x86_64::*;

use super::avx2_sweep::{sweep, sweep_brackets};
use super::half_byte_tables::{GROUP, TABLES, arrange};
use super::routines::CodeProduct;
use super::tiles::Tiles;

const ROWS: usize = 8;
const COLUMNS: usize = 8 * VECTORS;
/// Registers per line of a tile.
const VECTORS: usize = 4;
const GROUPS: usize = COLUMNS / GROUP;
/// The number of rows whose sums are in registers at a time.
const ROWS_TOGETHER: usize = 4;

pub(super) const CODES: CodeProduct = CodeProduct {
    tiles: Tiles {
        rows: ROWS,
        columns: COLUMNS,
        sweep: sweep::<VECTORS, true>,
        sweep_rows: sweep::<VECTORS, false>,
        sweep_brackets: sweep_brackets::<VECTORS>,
    },
    hamming,
    arrange: Some(arrange_pairs),
};

#[target_feature(enable = "avx2")]
fn arrange_pairs(columns: &mut [u32]) {
    arrange(columns, [(0, 1), (2, 3)]);
}

/// Computes minus the number of differing bits, for a panel of rows and an arranged panel of
/// columns.
#[target_feature(enable = "avx2")]
fn hamming(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    /// The sum in a byte grows by at most 16 per step. It must stay below 256.
    const STEPS_PER_BYTE: usize = 15;
    /// The sum of two bytes grows by at most 32 per step. It must stay below 2¹⁶.
    const STEPS_PER_SUM: usize = 136 * STEPS_PER_BYTE;
    let half_bytes_u8x32 = _mm256_set1_epi8(0x0f);
    tile[..ROWS * COLUMNS].fill(0.0);
    let (lines, _) = tile.as_chunks_mut::<COLUMNS>();
    for first_row in (0..ROWS).step_by(ROWS_TOGETHER) {
        for first_step in (0..steps).step_by(STEPS_PER_SUM) {
            let end = (first_step + STEPS_PER_SUM).min(steps);
            let mut sums_u16x16 = [[_mm256_setzero_si256(); GROUPS]; ROWS_TOGETHER];
            for from in (first_step..end).step_by(STEPS_PER_BYTE) {
                let mut bytes_u8x32 = [[_mm256_setzero_si256(); GROUPS]; ROWS_TOGETHER];
                for step in from..(from + STEPS_PER_BYTE).min(end) {
                    for i in 0..4 {
                        let column_u8x32: [_; GROUPS] = std::array::from_fn(|g| {
                            let at = step * COLUMNS + g * GROUP + i / 2 * 8;
                            // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels
                            // have `steps` steps of ROWS and COLUMNS words.
                            let pair =
                                unsafe { _mm256_loadu_si256(columns.as_ptr().add(at).cast()) };
                            let first =
                                if i % 2 == 0 { pair } else { _mm256_srli_epi16::<4>(pair) };
                            _mm256_and_si256(first, half_bytes_u8x32)
                        });
                        for (r, bytes_u8x32) in bytes_u8x32.iter_mut().enumerate() {
                            // SAFETY: as above, and the tables are aligned.
                            let table_u8x32 = unsafe {
                                let byte = *rows
                                    .as_ptr()
                                    .add(step * ROWS + first_row + r)
                                    .cast::<u8>()
                                    .add(i);
                                _mm256_load_si256(TABLES.of(byte).as_ptr().cast())
                            };
                            for (byte, column_u8x32) in bytes_u8x32.iter_mut().zip(column_u8x32) {
                                *byte = _mm256_add_epi8(
                                    *byte,
                                    _mm256_shuffle_epi8(table_u8x32, column_u8x32),
                                );
                            }
                        }
                    }
                }
                for (sum_u16x16, byte) in
                    sums_u16x16.as_flattened_mut().iter_mut().zip(bytes_u8x32.as_flattened())
                {
                    let low_u16x16 = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(*byte));
                    let high_u16x16 = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(*byte));
                    *sum_u16x16 =
                        _mm256_add_epi16(*sum_u16x16, _mm256_add_epi16(low_u16x16, high_u16x16));
                }
            }
            for (sums_u16x16, line) in sums_u16x16.into_iter().zip(&mut lines[first_row..]) {
                for (sum_u16x16, out) in
                    sums_u16x16.into_iter().zip(line.as_chunks_mut::<GROUP>().0)
                {
                    let halves_u16x8 = [
                        _mm256_castsi256_si128(sum_u16x16),
                        _mm256_extracti128_si256::<1>(sum_u16x16),
                    ];
                    for (half_u16x8, out) in
                        halves_u16x8.into_iter().zip(out.as_chunks_mut::<8>().0)
                    {
                        let counts_f32x8 = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(half_u16x8));
                        // SAFETY: `out` contains eight numbers.
                        unsafe {
                            let before_f32x8 = _mm256_loadu_ps(out.as_ptr());
                            _mm256_storeu_ps(
                                out.as_mut_ptr(),
                                _mm256_sub_ps(before_f32x8, counts_f32x8),
                            );
                        }
                    }
                }
            }
        }
    }
}
