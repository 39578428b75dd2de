//! AVX2: distances of binary codes by tables, in tiles of 8 × 32.
//!
//! A byte of a row selects a table. One shuffle looks up the low halves of 16 columns' bytes in one part of the table and their high
//! halves in the other. With the addition to the sums these are two operations for 128 bits; an exclusive or and a count of bits
//! by their halves would be four.

use std::arch::x86_64::*;

use super::avx2_sweep::{sweep, sweep_brackets};
use super::half_byte_tables::{GROUP, TABLES, arrange};
use super::routines::CodeProduct;
use super::tiles::Tiles;

const ROWS: usize = 8;
const COLUMNS: usize = 8 * VECTORS;
/// Registers of a line of a tile.
const VECTORS: usize = 4;
const GROUPS: usize = COLUMNS / GROUP;
/// Rows whose sums the registers hold at a time.
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

/// Counts differing bits, negated, of a panel of rows and an arranged panel of columns.
#[target_feature(enable = "avx2")]
fn hamming(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    /// A byte's sum grows by at most 16 a step, and must stay below 256.
    const STEPS_PER_BYTE: usize = 15;
    /// The sum of two bytes grows by at most 32 a step, and must stay below 2¹⁶.
    const STEPS_PER_SUM: usize = 136 * STEPS_PER_BYTE;
    let half_bytes = _mm256_set1_epi8(0x0f);
    tile[..ROWS * COLUMNS].fill(0.0);
    let (lines, _) = tile.as_chunks_mut::<COLUMNS>();
    for first_row in (0..ROWS).step_by(ROWS_TOGETHER) {
        for first_step in (0..steps).step_by(STEPS_PER_SUM) {
            let end = (first_step + STEPS_PER_SUM).min(steps);
            let mut sums = [[_mm256_setzero_si256(); GROUPS]; ROWS_TOGETHER];
            for from in (first_step..end).step_by(STEPS_PER_BYTE) {
                let mut bytes = [[_mm256_setzero_si256(); GROUPS]; ROWS_TOGETHER];
                for step in from..(from + STEPS_PER_BYTE).min(end) {
                    for i in 0..4 {
                        let column: [_; GROUPS] = std::array::from_fn(|g| {
                            let at = step * COLUMNS + g * GROUP + i / 2 * 8;
                            // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels hold `steps` steps of ROWS and
                            // COLUMNS words.
                            let pair = unsafe { _mm256_loadu_si256(columns.as_ptr().add(at).cast()) };
                            let first = if i % 2 == 0 { pair } else { _mm256_srli_epi16::<4>(pair) };
                            _mm256_and_si256(first, half_bytes)
                        });
                        for (r, bytes) in bytes.iter_mut().enumerate() {
                            // SAFETY: as above; the tables are aligned.
                            let table = unsafe {
                                let byte = *rows.as_ptr().add(step * ROWS + first_row + r).cast::<u8>().add(i);
                                _mm256_load_si256(TABLES.of(byte).as_ptr().cast())
                            };
                            for (byte, column) in bytes.iter_mut().zip(column) {
                                *byte = _mm256_add_epi8(*byte, _mm256_shuffle_epi8(table, column));
                            }
                        }
                    }
                }
                for (sum, byte) in sums.as_flattened_mut().iter_mut().zip(bytes.as_flattened()) {
                    let low = _mm256_cvtepu8_epi16(_mm256_castsi256_si128(*byte));
                    let high = _mm256_cvtepu8_epi16(_mm256_extracti128_si256::<1>(*byte));
                    *sum = _mm256_add_epi16(*sum, _mm256_add_epi16(low, high));
                }
            }
            for (sums, line) in sums.into_iter().zip(&mut lines[first_row..]) {
                for (sum, out) in sums.into_iter().zip(line.as_chunks_mut::<GROUP>().0) {
                    let halves = [_mm256_castsi256_si128(sum), _mm256_extracti128_si256::<1>(sum)];
                    for (half, out) in halves.into_iter().zip(out.as_chunks_mut::<8>().0) {
                        let counts = _mm256_cvtepi32_ps(_mm256_cvtepu16_epi32(half));
                        // SAFETY: `out` holds eight numbers.
                        unsafe {
                            _mm256_storeu_ps(out.as_mut_ptr(), _mm256_sub_ps(_mm256_loadu_ps(out.as_ptr()), counts));
                        }
                    }
                }
            }
        }
    }
}
