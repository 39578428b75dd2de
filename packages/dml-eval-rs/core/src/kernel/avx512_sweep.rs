//! AVX-512: compares tiles with thresholds, using masks.

use std::arch::x86_64::*;
use std::ops::Range;

use super::brackets::{ItemBrackets, Thresholds};
use super::sweep::{Hit, Sides, SweepResult, add};
use super::tiles::Tiles;

pub(super) const ROWS: usize = 8;
/// A tile has `COLUMNS` columns, so each row takes `VECTORS` registers.
pub(super) const COLUMNS: usize = 48;
pub(super) const VECTORS: usize = COLUMNS / 16;

/// The tiles for numbers and codes.
pub(super) const TILES: Tiles = Tiles {
    rows: ROWS,
    columns: COLUMNS,
    sweep: sweep::<true>,
    sweep_rows: sweep::<false>,
    sweep_brackets,
};

/// Counts and lists values, for both sides or only for the rows.
#[target_feature(enable = "avx512f,popcnt")]
pub(super) fn sweep<const BOTH: bool>(
    tile: &[f32],
    rows: Thresholds<'_>,
    columns: Thresholds<'_>,
    origin: (u32, u32),
    result: &mut SweepResult,
) {
    let mut group = [_mm512_setzero_si512(); VECTORS];
    let mut low = [_mm512_setzero_ps(); VECTORS];
    let mut high = [_mm512_setzero_ps(); VECTORS];
    let mut above = [_mm512_setzero_si512(); VECTORS];
    let ones = _mm512_set1_epi32(1);
    for v in 0..VECTORS {
        // SAFETY: the caller (`Tiles::sweep`) checked that all arrays of `columns` contain COLUMNS
        // elements.
        unsafe {
            group[v] = _mm512_loadu_si512(columns.group.as_ptr().add(16 * v).cast());
            low[v] = _mm512_loadu_ps(columns.low.as_ptr().add(16 * v));
            high[v] = _mm512_loadu_ps(columns.high.as_ptr().add(16 * v));
        }
    }
    for r in 0..rows.group.len() {
        let row_low = _mm512_set1_ps(rows.low[r]);
        let mut values = [_mm512_setzero_ps(); VECTORS];
        let (mut row_passing, mut column_passing) = ([0; VECTORS], [0; VECTORS]);
        for v in 0..VECTORS {
            // SAFETY: the caller checked that the tile contains ROWS × COLUMNS values.
            values[v] = unsafe { _mm512_loadu_ps(tile.as_ptr().add(r * COLUMNS + 16 * v)) };
            row_passing[v] = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(values[v], row_low);
            if BOTH {
                column_passing[v] = _mm512_cmp_ps_mask::<_CMP_GE_OQ>(values[v], low[v]);
            }
        }
        // In most rows, no value reaches a threshold.
        if row_passing.iter().chain(&column_passing).fold(0, |any, mask| any | mask) == 0 {
            continue;
        }
        let row_group = _mm512_set1_epi32(rows.group[r] as i32);
        let row_high = _mm512_set1_ps(rows.high[r]);
        let (mut row_above, mut row_listed, mut column_listed) = (0, 0, 0);
        for v in 0..VECTORS {
            let values = values[v];
            let apart = _mm512_cmpneq_epi32_mask(group[v], row_group);
            let row_counted = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(apart, values, row_high);
            let column_counted = if BOTH {
                _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(apart, values, high[v])
            } else {
                0
            };
            row_above += row_counted.count_ones();
            above[v] = _mm512_mask_add_epi32(above[v], column_counted, above[v], ones);
            // Counting must not branch; listing may, because it is rare.
            row_listed |= u64::from(row_passing[v] & apart & !row_counted) << (16 * v);
            column_listed |= u64::from(column_passing[v] & apart & !column_counted) << (16 * v);
        }
        let line = &tile[r * COLUMNS..][..COLUMNS];
        let at = (origin.0 as usize + r, origin.1 as usize);
        list(row_listed, line, at, &mut result.row_hits);
        list(column_listed, line, at, &mut result.column_hits);
        result.row_above.of(0)[origin.0 as usize + r] += row_above;
    }
    if !BOTH {
        return;
    }
    for (v, counts) in above.iter().enumerate() {
        let out = &mut result.column_above.of(0)[origin.1 as usize + 16 * v..][..16];
        // SAFETY: `out` contains 16 elements.
        unsafe {
            let before = _mm512_loadu_si512(out.as_ptr().cast());
            _mm512_storeu_si512(out.as_mut_ptr().cast(), _mm512_add_epi32(before, *counts));
        }
    }
}

#[inline(always)]
fn list(mut mask: u64, line: &[f32], (row, column): (usize, usize), hits: &mut Vec<Hit>) {
    while mask != 0 {
        let c = mask.trailing_zeros() as usize;
        add(hits, Hit { row: row as u32, column: (column + c) as u32, value: line[c] });
        mask &= mask - 1;
    }
}

/// Counts and lists values when items are given multiple brackets.
#[target_feature(enable = "avx512f,avx512vl,popcnt")]
pub(super) fn sweep_brackets(
    sides: Sides,
    tile: &[f32],
    (rows, columns): (&ItemBrackets, &ItemBrackets),
    (tile_rows, column): (Range<usize>, usize),
    result: &mut SweepResult,
) {
    assert!(tile.len() >= tile_rows.len() * COLUMNS);
    let load = |of: &[f32], v: usize| {
        let of = &of[16 * v..][..16];
        // SAFETY: the slice contains 16 elements.
        unsafe { _mm512_loadu_ps(of.as_ptr()) }
    };
    let (of_columns, first) = (columns.part(column, COLUMNS), tile_rows.start);
    for row in tile_rows {
        let line = &tile[(row - first) * COLUMNS..][..COLUMNS];
        let row_group = _mm512_set1_epi32(rows.group(row) as i32);
        let row_lowest = _mm512_set1_ps(rows.lowest(row));
        let mut values = [_mm512_setzero_ps(); VECTORS];
        let (mut row_passing, mut column_passing) = ([0; VECTORS], [0; VECTORS]);
        for v in 0..VECTORS {
            values[v] = load(line, v);
            // SAFETY: `part` returns COLUMNS groups.
            let group =
                unsafe { _mm512_loadu_si512(of_columns.group[16 * v..][..16].as_ptr().cast()) };
            let apart = _mm512_cmpneq_epi32_mask(group, row_group);
            row_passing[v] = _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(apart, values[v], row_lowest);
            if sides == Sides::Both {
                let lowest = load(of_columns.lowest, v);
                column_passing[v] = _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(apart, values[v], lowest);
            }
        }
        if row_passing.iter().fold(0, |any, mask| any | mask) != 0 {
            let mut within = [0; VECTORS];
            for b in 0..rows.count() {
                let (low, high) = rows.ends(row, b);
                let (low, high) = (_mm512_set1_ps(low), _mm512_set1_ps(high));
                let mut above = 0u64;
                for v in 0..VECTORS {
                    let is_above =
                        _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(row_passing[v], values[v], high);
                    let is_reached =
                        _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(row_passing[v], values[v], low);
                    above |= u64::from(is_above) << (16 * v);
                    within[v] |= is_reached & !is_above;
                }
                result.row_above.of(b)[row] += above.count_ones();
            }
            for v in 0..VECTORS {
                if within[v] != 0 {
                    for b in 0..rows.count() {
                        let high = _mm512_set1_ps(rows.ends(row, b).1);
                        let counted =
                            _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(within[v], values[v], high);
                        result.row_above.of(b)[row] -= counted.count_ones();
                    }
                    list(
                        u64::from(within[v]) << (16 * v),
                        line,
                        (row, column),
                        &mut result.row_hits,
                    );
                }
            }
        }
        for v in 0..VECTORS {
            let passing = column_passing[v];
            if passing == 0 {
                continue;
            }
            let ones = _mm512_set1_epi32(1);
            let mut within = 0;
            for b in 0..columns.count() {
                let (low, high) = (load(of_columns.low(b), v), load(of_columns.high(b), v));
                let is_above = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(passing, values[v], high);
                within |=
                    _mm512_mask_cmp_ps_mask::<_CMP_GE_OQ>(passing, values[v], low) & !is_above;
                let above = result.column_above.of(b)[column + 16 * v..][..16].as_mut_ptr().cast();
                // SAFETY: the slice contains 16 elements.
                unsafe {
                    let counts = _mm512_loadu_si512(above);
                    _mm512_storeu_si512(
                        above.cast(),
                        _mm512_mask_add_epi32(counts, is_above, counts, ones),
                    );
                }
            }
            if within != 0 {
                for b in 0..columns.count() {
                    let high = load(of_columns.high(b), v);
                    let counted = _mm512_mask_cmp_ps_mask::<_CMP_GT_OQ>(within, values[v], high);
                    let above =
                        result.column_above.of(b)[column + 16 * v..][..16].as_mut_ptr().cast();
                    // SAFETY: the slice contains 16 elements.
                    unsafe {
                        let counts = _mm512_loadu_si512(above);
                        _mm512_storeu_si512(
                            above.cast(),
                            _mm512_mask_sub_epi32(counts, counted, counts, ones),
                        );
                    }
                }
                list(u64::from(within) << (16 * v), line, (row, column), &mut result.column_hits);
            }
        }
    }
}
