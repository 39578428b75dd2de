//! AVX-512: computes distances of binary codes, with VPOPCNTDQ or with tables.
//!
//! Skylake-SP, Cascade Lake and Cooper Lake lack VPOPCNTDQ. On these CPUs, two bytes of a row
//! select two tables, which fill a register. One shuffle looks up the halves of two bytes for 16
//! columns. So 256 bits take two operations, plus loads of tables.

use std::arch::x86_64::*;

use super::avx512_sweep::{COLUMNS, ROWS, TILES, VECTORS};
use super::half_byte_tables::{TABLES, arrange};
use super::routines::CodeProduct;

pub(super) const LOOKED_UP: CodeProduct =
    CodeProduct { tiles: TILES, hamming: hamming_by_tables, arrange: Some(arrange_pairs) };

/// Uses VPOPCNTDQ if the CPU supports this extension.
pub(super) const COUNTED_IF_POSSIBLE: CodeProduct =
    CodeProduct { hamming: hamming_for_this_cpu, arrange: Some(arrange_for_this_cpu), ..LOOKED_UP };

fn has_vpopcntdq() -> bool {
    is_x86_feature_detected!("avx512vpopcntdq")
}

#[target_feature(enable = "avx512f,avx512bw")]
fn hamming_for_this_cpu(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    if has_vpopcntdq() {
        // SAFETY: the CPU supports the instructions, and the caller checked the lengths, as
        // `hamming_by_tables` also requires.
        unsafe { hamming_by_count(steps, rows, columns, tile) }
    } else {
        hamming_by_tables(steps, rows, columns, tile);
    }
}

/// Arranges a panel for [`hamming_for_this_cpu`].
#[target_feature(enable = "avx512f,avx512bw")]
fn arrange_for_this_cpu(columns: &mut [u32]) {
    if !has_vpopcntdq() {
        arrange_pairs(columns);
    }
}

#[target_feature(enable = "avx512f,avx512vpopcntdq")]
fn hamming_by_count(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    let (mut row, mut column) = (rows.as_ptr().cast::<i32>(), columns.as_ptr());
    let mut sums_i32x16 = [[_mm512_setzero_si512(); VECTORS]; ROWS];
    // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels have `steps` steps and
    // the tile ROWS × COLUMNS values.
    unsafe {
        for _ in 0..steps {
            let panel = [
                _mm512_loadu_si512(column.cast()),
                _mm512_loadu_si512(column.add(16).cast()),
                _mm512_loadu_si512(column.add(32).cast()),
            ];
            for (r, sums_i32x16) in sums_i32x16.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*row.add(r));
                for (sum_i32x16, p) in sums_i32x16.iter_mut().zip(panel) {
                    *sum_i32x16 =
                        _mm512_add_epi32(*sum_i32x16, _mm512_popcnt_epi32(_mm512_xor_si512(x, p)));
                }
            }
            row = row.add(ROWS);
            column = column.add(COLUMNS);
        }
        for (r, sums_i32x16) in sums_i32x16.iter().enumerate() {
            for (v, sum_i32x16) in sums_i32x16.iter().enumerate() {
                let negative_i32x16 = _mm512_sub_epi32(_mm512_setzero_si512(), *sum_i32x16);
                _mm512_storeu_ps(
                    tile.as_mut_ptr().add(r * COLUMNS + 16 * v),
                    _mm512_cvtepi32_ps(negative_i32x16),
                );
            }
        }
    }
}

/// Arranges a panel for [`hamming_by_tables`]: bytes 0 and 1 of words move to low half bytes, and
/// bytes 2 and 3 to high ones.
#[target_feature(enable = "avx512f,avx512bw")]
fn arrange_pairs(columns: &mut [u32]) {
    arrange(columns, [(0, 2), (1, 3)]);
}

/// Computes minus the number of differing bits, for a panel of rows and an arranged panel of
/// columns.
#[target_feature(enable = "avx512f,avx512bw")]
fn hamming_by_tables(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    /// The sum in a byte grows by at most 8 per step. It must stay below 256.
    const STEPS_PER_BYTE: usize = 31;
    let half_bytes_u8x64 = _mm512_set1_epi8(0x0f);
    let zero = _mm512_setzero_si512();
    let (lines, _) = tile.as_chunks_mut::<16>();
    lines[..ROWS * VECTORS].fill([0.0; 16]);
    for from in (0..steps).step_by(STEPS_PER_BYTE) {
        let mut bytes_u8x64 = [[zero; VECTORS]; ROWS];
        for step in from..(from + STEPS_PER_BYTE).min(steps) {
            for i in 0..2 {
                let column_u8x64: [_; VECTORS] = std::array::from_fn(|v| {
                    // SAFETY: the caller (`CheckedProduct::tile`) checked that panels have `steps`
                    // steps of ROWS and COLUMNS words.
                    let pair = unsafe {
                        _mm512_loadu_si512(columns.as_ptr().add(step * COLUMNS + 16 * v).cast())
                    };
                    _mm512_and_si512(
                        if i == 0 { pair } else { _mm512_srli_epi16::<4>(pair) },
                        half_bytes_u8x64,
                    )
                });
                for (r, bytes_u8x64) in bytes_u8x64.iter_mut().enumerate() {
                    // SAFETY: as above, and the tables are aligned.
                    let table_u8x64 = unsafe {
                        let first_byte = rows.as_ptr().add(step * ROWS + r).cast::<u8>().add(2 * i);
                        let table = |byte: u8| _mm256_load_si256(TABLES.of(byte).as_ptr().cast());
                        _mm512_inserti64x4::<1>(
                            _mm512_castsi256_si512(table(*first_byte)),
                            table(*first_byte.add(1)),
                        )
                    };
                    for (byte_u8x64, column_u8x64) in bytes_u8x64.iter_mut().zip(column_u8x64) {
                        *byte_u8x64 = _mm512_add_epi8(
                            *byte_u8x64,
                            _mm512_shuffle_epi8(table_u8x64, column_u8x64),
                        );
                    }
                }
            }
        }
        for (byte_u8x64, line) in bytes_u8x64.as_flattened().iter().zip(&mut *lines) {
            // In all four parts, counts for a column are in the same place.
            let mut counts_i32x16 = zero;
            for part_u8x16 in [
                _mm512_castsi512_si128(*byte_u8x64),
                _mm512_extracti32x4_epi32::<1>(*byte_u8x64),
                _mm512_extracti32x4_epi32::<2>(*byte_u8x64),
                _mm512_extracti32x4_epi32::<3>(*byte_u8x64),
            ] {
                counts_i32x16 = _mm512_add_epi32(counts_i32x16, _mm512_cvtepu8_epi32(part_u8x16));
            }
            // SAFETY: `line` contains 16 numbers.
            unsafe {
                let before_f32x16 = _mm512_loadu_ps(line.as_ptr());
                _mm512_storeu_ps(
                    line.as_mut_ptr(),
                    _mm512_sub_ps(before_f32x16, _mm512_cvtepi32_ps(counts_i32x16)),
                );
            }
        }
    }
}
