//! AVX2: compares tiles with thresholds, using masks.

use std::arch::x86_64::*;
use std::ops::Range;

use super::brackets::{ItemBrackets, Thresholds};
use super::sweep::{Hit, Sides, SweepResult, add};

/// Counts and lists the values of a tile of `VECTORS` vectors per row, for both sides or only for
/// the rows.
#[target_feature(enable = "avx2,fma,popcnt")]
pub(super) fn sweep<const VECTORS: usize, const BOTH: bool>(
    tile: &[f32],
    rows: Thresholds<'_>,
    columns: Thresholds<'_>,
    origin: (u32, u32),
    result: &mut SweepResult,
) {
    let width = 8 * VECTORS;
    let mut above = [_mm256_setzero_si256(); VECTORS];
    let none = _mm256_setzero_ps();
    // SAFETY: the caller (`Tiles::sweep`) checked that all arrays of `columns` contain `width`
    // elements.
    let group: [_; VECTORS] = std::array::from_fn(|v| unsafe {
        _mm256_loadu_si256(columns.group.as_ptr().add(8 * v).cast())
    });
    let [low, high]: [[_; VECTORS]; 2] = [columns.low, columns.high].map(|of| {
        std::array::from_fn(|v| {
            // SAFETY: as above.
            if BOTH { unsafe { _mm256_loadu_ps(of.as_ptr().add(8 * v)) } } else { none }
        })
    });
    for r in 0..rows.group.len() {
        let row_low = _mm256_set1_ps(rows.low[r]);
        // SAFETY: the caller checked that the tile contains `width` values per row.
        let values: [_; VECTORS] = std::array::from_fn(|v| unsafe {
            _mm256_loadu_ps(tile.as_ptr().add(r * width + 8 * v))
        });
        let row_passing = values.map(|values| _mm256_cmp_ps::<_CMP_GE_OQ>(values, row_low));
        let mut any = row_passing.into_iter().fold(none, |any, passing| _mm256_or_ps(any, passing));
        let mut column_passing = [none; VECTORS];
        if BOTH {
            column_passing =
                std::array::from_fn(|v| _mm256_cmp_ps::<_CMP_GE_OQ>(values[v], low[v]));
            any = column_passing.into_iter().fold(any, |any, passing| _mm256_or_ps(any, passing));
        }
        // In most rows, no value reaches a threshold.
        if _mm256_movemask_ps(any) == 0 {
            continue;
        }
        let row_group = _mm256_set1_epi32(rows.group[r] as i32);
        let row_high = _mm256_set1_ps(rows.high[r]);
        let mut row_above = 0;
        for v in 0..VECTORS {
            let together = _mm256_castsi256_ps(_mm256_cmpeq_epi32(group[v], row_group));
            let row_counted =
                _mm256_andnot_ps(together, _mm256_cmp_ps::<_CMP_GT_OQ>(values[v], row_high));
            row_above += _mm256_movemask_ps(row_counted).count_ones();
            // Counting must not branch; listing may, because it is rare.
            let row_listed = _mm256_movemask_ps(_mm256_andnot_ps(
                _mm256_or_ps(together, row_counted),
                row_passing[v],
            ));
            let mut column_listed = 0;
            if BOTH {
                let column_counted =
                    _mm256_andnot_ps(together, _mm256_cmp_ps::<_CMP_GT_OQ>(values[v], high[v]));
                // Lanes of a mask are −1 or 0, so subtracting the mask adds 1 where the value is
                // counted.
                above[v] = _mm256_sub_epi32(above[v], _mm256_castps_si256(column_counted));
                let counted = _mm256_or_ps(together, column_counted);
                column_listed = _mm256_movemask_ps(_mm256_andnot_ps(counted, column_passing[v]));
            }
            if row_listed | column_listed != 0 {
                let line = &tile[r * width..][..width];
                let at = (origin.0 as usize + r, origin.1 as usize);
                list(row_listed, v, line, at, &mut result.row_hits);
                list(column_listed, v, line, at, &mut result.column_hits);
            }
        }
        result.row_above.of(0)[origin.0 as usize + r] += row_above;
    }
    if BOTH {
        for (v, counts) in above.iter().enumerate() {
            let out = &mut result.column_above.of(0)[origin.1 as usize + 8 * v..][..8];
            // SAFETY: `out` contains eight elements.
            unsafe {
                let before = _mm256_loadu_si256(out.as_ptr().cast());
                _mm256_storeu_si256(out.as_mut_ptr().cast(), _mm256_add_epi32(before, *counts));
            }
        }
    }
}

#[inline(always)]
fn list(mut mask: i32, v: usize, line: &[f32], (row, column): (usize, usize), hits: &mut Vec<Hit>) {
    while mask != 0 {
        let c = 8 * v + mask.trailing_zeros() as usize;
        add(hits, Hit { row: row as u32, column: (column + c) as u32, value: line[c] });
        mask &= mask - 1;
    }
}

/// Counts and lists values when items are given multiple brackets.
#[target_feature(enable = "avx2,popcnt")]
pub(super) fn sweep_brackets<const VECTORS: usize>(
    sides: Sides,
    tile: &[f32],
    (rows, columns): (&ItemBrackets, &ItemBrackets),
    (tile_rows, column): (Range<usize>, usize),
    result: &mut SweepResult,
) {
    let width = 8 * VECTORS;
    assert!(tile.len() >= tile_rows.len() * width);
    let load = |of: &[f32], v: usize| {
        let of = &of[8 * v..][..8];
        // SAFETY: the slice contains eight elements.
        unsafe { _mm256_loadu_ps(of.as_ptr()) }
    };
    let (column_part, first) = (columns.part(column, width), tile_rows.start);
    for row in tile_rows {
        let line = &tile[(row - first) * width..][..width];
        let row_group = _mm256_set1_epi32(rows.group(row) as i32);
        let row_lowest = _mm256_set1_ps(rows.lowest(row));
        let values: [_; VECTORS] = std::array::from_fn(|v| load(line, v));
        let group: [_; VECTORS] = std::array::from_fn(|v| {
            let group = &column_part.group[8 * v..][..8];
            // SAFETY: the slice contains eight elements.
            unsafe { _mm256_loadu_si256(group.as_ptr().cast()) }
        });
        let together = group.map(|group| _mm256_castsi256_ps(_mm256_cmpeq_epi32(group, row_group)));
        let passing = |v: usize, lowest: __m256| {
            _mm256_andnot_ps(together[v], _mm256_cmp_ps::<_CMP_GE_OQ>(values[v], lowest))
        };
        let row_passing: [_; VECTORS] = std::array::from_fn(|v| passing(v, row_lowest));
        let any = row_passing
            .into_iter()
            .fold(_mm256_setzero_ps(), |any, passing| _mm256_or_ps(any, passing));
        if _mm256_movemask_ps(any) != 0 {
            let row_passing = row_passing.map(|passing| _mm256_movemask_ps(passing));
            let mut within = [0; VECTORS];
            for b in 0..rows.count() {
                let (low, high) = rows.ends(row, b);
                let (low, high) = (_mm256_set1_ps(low), _mm256_set1_ps(high));
                let mut above = 0i32;
                for v in 0..VECTORS {
                    let is_above = row_passing[v]
                        & _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(values[v], high));
                    let is_reached = row_passing[v]
                        & _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(values[v], low));
                    above |= is_above << (8 * v);
                    within[v] |= is_reached & !is_above;
                }
                result.row_above.of(b)[row] += above.count_ones();
            }
            for v in 0..VECTORS {
                if within[v] != 0 {
                    for b in 0..rows.count() {
                        let high = _mm256_set1_ps(rows.ends(row, b).1);
                        let counted = within[v]
                            & _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_GT_OQ>(values[v], high));
                        result.row_above.of(b)[row] -= counted.count_ones();
                    }
                    list(within[v], v, line, (row, column), &mut result.row_hits);
                }
            }
        }
        if sides == Sides::Rows {
            continue;
        }
        for (v, &values) in values.iter().enumerate() {
            let passing = passing(v, load(column_part.lowest, v));
            if _mm256_movemask_ps(passing) == 0 {
                continue;
            }
            let mut within = _mm256_setzero_ps();
            for b in 0..columns.count() {
                let (low, high) = (load(column_part.low(b), v), load(column_part.high(b), v));
                let is_above = _mm256_and_ps(passing, _mm256_cmp_ps::<_CMP_GT_OQ>(values, high));
                let is_reached = _mm256_and_ps(passing, _mm256_cmp_ps::<_CMP_GE_OQ>(values, low));
                within = _mm256_or_ps(within, _mm256_andnot_ps(is_above, is_reached));
                let above = result.column_above.of(b)[column + 8 * v..][..8].as_mut_ptr().cast();
                // SAFETY: the slice contains eight elements. Lanes of a mask are −1 or 0.
                unsafe {
                    let counts = _mm256_loadu_si256(above);
                    _mm256_storeu_si256(
                        above,
                        _mm256_sub_epi32(counts, _mm256_castps_si256(is_above)),
                    );
                }
            }
            let listed = _mm256_movemask_ps(within);
            if listed != 0 {
                for b in 0..columns.count() {
                    let high = load(column_part.high(b), v);
                    let counted = _mm256_and_ps(within, _mm256_cmp_ps::<_CMP_GT_OQ>(values, high));
                    let above =
                        result.column_above.of(b)[column + 8 * v..][..8].as_mut_ptr().cast();
                    // SAFETY: as above.
                    unsafe {
                        let counts = _mm256_loadu_si256(above);
                        _mm256_storeu_si256(
                            above,
                            _mm256_add_epi32(counts, _mm256_castps_si256(counted)),
                        );
                    }
                }
                list(listed, v, line, (row, column), &mut result.column_hits);
            }
        }
    }
}
