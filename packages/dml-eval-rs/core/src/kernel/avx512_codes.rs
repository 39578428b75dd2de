//! AVX-512: distances of binary codes, by VPOPCNTDQ or by tables.
//!
//! Skylake-SP, Cascade Lake and Cooper Lake have no VPOPCNTDQ. There, two bytes of a row select their tables, the parts of a register. One
//! shuffle looks up the halves of two bytes of 16 columns: two operations for 256 bits, and a part of one for the tables.

use std::arch::x86_64::*;

use super::avx512_sweep::{COLUMNS, ROWS, TILES, VECTORS};
use super::half_byte_tables::{TABLES, arrange};
use super::routines::CodeProduct;

pub(super) const LOOKED_UP: CodeProduct =
    CodeProduct { tiles: TILES, hamming: hamming_by_tables, arrange: Some(arrange_pairs) };

/// By VPOPCNTDQ where the CPU has it.
pub(super) const COUNTED_IF_POSSIBLE: CodeProduct =
    CodeProduct { hamming: hamming_of_this_cpu, arrange: Some(arrange_for_this_cpu), ..LOOKED_UP };

fn has_vpopcntdq() -> bool {
    is_x86_feature_detected!("avx512vpopcntdq")
}

#[target_feature(enable = "avx512f,avx512bw")]
fn hamming_of_this_cpu(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    if has_vpopcntdq() {
        // SAFETY: the CPU has the instructions; the caller checked the lengths, which both routines need alike.
        unsafe { hamming_by_count(steps, rows, columns, tile) }
    } else {
        hamming_by_tables(steps, rows, columns, tile);
    }
}

/// Arranges a panel for [`hamming_of_this_cpu`].
#[target_feature(enable = "avx512f,avx512bw")]
fn arrange_for_this_cpu(columns: &mut [u32]) {
    if !has_vpopcntdq() {
        arrange_pairs(columns);
    }
}

#[target_feature(enable = "avx512f,avx512vpopcntdq")]
fn hamming_by_count(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    let (mut row, mut column) = (rows.as_ptr().cast::<i32>(), columns.as_ptr());
    let mut sums = [[_mm512_setzero_si512(); VECTORS]; ROWS];
    // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels hold `steps` steps and the tile ROWS × COLUMNS values.
    unsafe {
        for _ in 0..steps {
            let panel = [
                _mm512_loadu_si512(column.cast()),
                _mm512_loadu_si512(column.add(16).cast()),
                _mm512_loadu_si512(column.add(32).cast()),
            ];
            for (r, sum) in sums.iter_mut().enumerate() {
                let x = _mm512_set1_epi32(*row.add(r));
                for (s, p) in sum.iter_mut().zip(panel) {
                    *s = _mm512_add_epi32(*s, _mm512_popcnt_epi32(_mm512_xor_si512(x, p)));
                }
            }
            row = row.add(ROWS);
            column = column.add(COLUMNS);
        }
        for (r, sum) in sums.iter().enumerate() {
            for (v, s) in sum.iter().enumerate() {
                let negative = _mm512_sub_epi32(_mm512_setzero_si512(), *s);
                _mm512_storeu_ps(tile.as_mut_ptr().add(r * COLUMNS + 16 * v), _mm512_cvtepi32_ps(negative));
            }
        }
    }
}

/// Arranges a panel for [`hamming_by_tables`]: a register holds both parts of a group, and so bytes 0 and 1 or 2 and 3 of its words.
#[target_feature(enable = "avx512f,avx512bw")]
fn arrange_pairs(columns: &mut [u32]) {
    arrange(columns, [(0, 2), (1, 3)]);
}

/// Counts differing bits, negated, of a panel of rows and an arranged panel of columns.
#[target_feature(enable = "avx512f,avx512bw")]
fn hamming_by_tables(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    /// A byte's sum grows by at most 8 a step, and must stay below 256.
    const STEPS_PER_BYTE: usize = 31;
    let half_bytes = _mm512_set1_epi8(0x0f);
    let zero = _mm512_setzero_si512();
    let (lines, _) = tile.as_chunks_mut::<16>();
    lines[..ROWS * VECTORS].fill([0.0; 16]);
    for from in (0..steps).step_by(STEPS_PER_BYTE) {
        let mut bytes = [[zero; VECTORS]; ROWS];
        for step in from..(from + STEPS_PER_BYTE).min(steps) {
            for i in 0..2 {
                let column: [_; VECTORS] = std::array::from_fn(|v| {
                    // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels hold `steps` steps of ROWS and COLUMNS words.
                    let pair = unsafe { _mm512_loadu_si512(columns.as_ptr().add(step * COLUMNS + 16 * v).cast()) };
                    _mm512_and_si512(if i == 0 { pair } else { _mm512_srli_epi16::<4>(pair) }, half_bytes)
                });
                for (r, bytes) in bytes.iter_mut().enumerate() {
                    // SAFETY: as above; the tables are aligned.
                    let table = unsafe {
                        let of = rows.as_ptr().add(step * ROWS + r).cast::<u8>().add(2 * i);
                        let table = |byte: u8| _mm256_load_si256(TABLES.of(byte).as_ptr().cast());
                        _mm512_inserti64x4::<1>(_mm512_castsi256_si512(table(*of)), table(*of.add(1)))
                    };
                    for (byte, column) in bytes.iter_mut().zip(column) {
                        *byte = _mm512_add_epi8(*byte, _mm512_shuffle_epi8(table, column));
                    }
                }
            }
        }
        for (byte, line) in bytes.as_flattened().iter().zip(&mut *lines) {
            // The sums of a column are the same bytes of four parts.
            let mut counts = zero;
            for part in [
                _mm512_castsi512_si128(*byte),
                _mm512_extracti32x4_epi32::<1>(*byte),
                _mm512_extracti32x4_epi32::<2>(*byte),
                _mm512_extracti32x4_epi32::<3>(*byte),
            ] {
                counts = _mm512_add_epi32(counts, _mm512_cvtepu8_epi32(part));
            }
            // SAFETY: `line` holds 16 numbers.
            unsafe {
                let before = _mm512_loadu_ps(line.as_ptr());
                _mm512_storeu_ps(line.as_mut_ptr(), _mm512_sub_ps(before, _mm512_cvtepi32_ps(counts)));
            }
        }
    }
}
