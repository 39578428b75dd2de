//! NEON: 8 × 12 tiles, in 24 of the 32 registers, and comparisons with masks.

use std::arch::aarch64::*;
use std::arch::asm;
use std::ops::Range;

use crate::exact::{PAIRS, combine};

use super::brackets::{ItemBrackets, Thresholds};
use super::exact_macros::{exact_product, exact_routines};
use super::instructions::Instructions;
use super::routines::{CHUNK, CodeProduct, ExactProducts, Kernel, ONE_CHUNK, Pairs32};
use super::sweep::{self, Hit, Sides, SweepResult};
use super::tiles::Tiles;

const ROWS: usize = 8;
const COLUMNS: usize = 12;
const VECTORS: usize = COLUMNS / 4;
const EXACT_ROWS: usize = 6;
const EXACT_COLUMNS: usize = 8;

const TILES: Tiles =
    Tiles { rows: ROWS, columns: COLUMNS, sweep, sweep_rows: sweep, sweep_brackets };
const CODES: CodeProduct = CodeProduct { tiles: TILES, hamming, arrange: None };

pub(super) static WITH_BFLOAT16: Kernel = Kernel {
    name: "neon-bf16",
    bfloat16: Some(bfloat16::<ONE_CHUNK>),
    available: || {
        std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("bf16")
    },
    ..PLAIN
};

pub(super) static PLAIN: Kernel = Kernel {
    name: "neon",
    number_tiles: TILES,
    float32: float32::<ONE_CHUNK>,
    float32_in_chunks: float32::<CHUNK>,
    bfloat16: None,
    int16: None,
    partial: None,
    bytes: None,
    codes: CODES,
    instructions: Instructions::Baseline,
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
    available: || std::arch::is_aarch64_feature_detected!("neon"),
};

/// Defines a product of panels. `$add::<LANE>(sums, columns, rows)` adds the terms of one row, a
/// lane of `rows`, and four columns.
macro_rules! product {
    ($name:ident, $feature:literal, $load:ident, $add:ident) => {
        #[target_feature(enable = $feature)]
        fn $name<const TERMS: usize>(
            steps: usize,
            rows: &[u32],
            columns: &[u32],
            tile: &mut [f32],
        ) {
            let (mut row, mut column) = (rows.as_ptr().cast(), columns.as_ptr().cast());
            for first in (0..steps.max(1)).step_by(TERMS) {
                let mut sums = [[vdupq_n_f32(0.0); VECTORS]; ROWS];
                // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels have `steps`
                // steps and the tile ROWS × COLUMNS values.
                unsafe {
                    for _ in 0..TERMS.min(steps - first) {
                        let panel = [$load(column), $load(column.add(4)), $load(column.add(8))];
                        let (upper, lower) = ($load(row), $load(row.add(4)));
                        for (v, p) in panel.into_iter().enumerate() {
                            sums[0][v] = $add::<0>(sums[0][v], p, upper);
                            sums[1][v] = $add::<1>(sums[1][v], p, upper);
                            sums[2][v] = $add::<2>(sums[2][v], p, upper);
                            sums[3][v] = $add::<3>(sums[3][v], p, upper);
                            sums[4][v] = $add::<0>(sums[4][v], p, lower);
                            sums[5][v] = $add::<1>(sums[5][v], p, lower);
                            sums[6][v] = $add::<2>(sums[6][v], p, lower);
                            sums[7][v] = $add::<3>(sums[7][v], p, lower);
                        }
                        row = row.add(ROWS);
                        column = column.add(COLUMNS);
                    }
                    for (at, sum) in sums.as_flattened().iter().enumerate() {
                        let to = tile.as_mut_ptr().add(4 * at);
                        let sum = if first == 0 { *sum } else { vaddq_f32(vld1q_f32(to), *sum) };
                        vst1q_f32(to, sum);
                    }
                }
            }
        }
    };
}
product!(float32, "neon", vld1q_f32, vfmaq_laneq_f32);
product!(bfloat16, "neon,bf16", vld1q_u32, add_pairs);

/// Adds the products of bfloat16 pairs, between four words of `columns` and the word `LANE` of
/// `rows`. BFDOT rounds twice, to odd (see docs/internals/evaluator-exactness.md).
#[target_feature(enable = "neon,bf16")]
#[inline]
fn add_pairs<const LANE: i32>(
    mut sums: float32x4_t,
    columns: uint32x4_t,
    rows: uint32x4_t,
) -> float32x4_t {
    // SAFETY: the instruction changes only the first register. Rust does not provide a stable
    // intrinsic.
    unsafe {
        asm!(
            "bfdot {sums:v}.4s, {columns:v}.8h, {rows:v}.2h[{lane}]",
            sums = inout(vreg) sums,
            columns = in(vreg) columns,
            rows = in(vreg) rows,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

#[target_feature(enable = "neon")]
fn hamming(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    /// The sum in a byte grows by at most 8 per step. It must stay below 256.
    const STEPS_PER_BYTE: usize = 31;
    let (mut row, mut column) = (rows.as_ptr(), columns.as_ptr());
    let mut totals = [[vdupq_n_u32(0); VECTORS]; ROWS];
    let mut from = 0;
    while from < steps {
        let to = (from + STEPS_PER_BYTE).min(steps);
        let mut bytes = [[vdupq_n_u8(0); VECTORS]; ROWS];
        for _ in from..to {
            // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels have `steps`
            // steps of ROWS and COLUMNS words.
            unsafe {
                let panel = [vld1q_u32(column), vld1q_u32(column.add(4)), vld1q_u32(column.add(8))];
                for (r, bytes) in bytes.iter_mut().enumerate() {
                    let word = vld1q_dup_u32(row.add(r));
                    for (byte, p) in bytes.iter_mut().zip(panel) {
                        *byte = vaddq_u8(*byte, vcntq_u8(vreinterpretq_u8_u32(veorq_u32(word, p))));
                    }
                }
                row = row.add(ROWS);
                column = column.add(COLUMNS);
            }
        }
        for (total, byte) in totals.as_flattened_mut().iter_mut().zip(bytes.as_flattened()) {
            *total = vpadalq_u16(*total, vpaddlq_u8(*byte));
        }
        from = to;
    }
    for (at, total) in totals.as_flattened().iter().enumerate() {
        let negative = vcvtq_f32_s32(vnegq_s32(vreinterpretq_s32_u32(*total)));
        // SAFETY: the caller checked that the tile contains ROWS × COLUMNS values.
        unsafe { vst1q_f32(tile.as_mut_ptr().add(4 * at), negative) };
    }
}

#[target_feature(enable = "neon")]
fn sweep(
    tile: &[f32],
    rows: Thresholds<'_>,
    columns: Thresholds<'_>,
    origin: (u32, u32),
    result: &mut SweepResult,
) {
    let mut group = [vdupq_n_u32(0); VECTORS];
    let mut low = [vdupq_n_f32(0.0); VECTORS];
    let mut high = [vdupq_n_f32(0.0); VECTORS];
    let mut above = [vdupq_n_u32(0); VECTORS];
    for v in 0..VECTORS {
        // SAFETY: the caller (`Tiles::sweep`) checked that all arrays of `columns` contain COLUMNS
        // elements.
        unsafe {
            group[v] = vld1q_u32(columns.group.as_ptr().add(4 * v));
            low[v] = vld1q_f32(columns.low.as_ptr().add(4 * v));
            high[v] = vld1q_f32(columns.high.as_ptr().add(4 * v));
        }
    }
    for r in 0..rows.group.len() {
        let row_group = vdupq_n_u32(rows.group[r]);
        let row_low = vdupq_n_f32(rows.low[r]);
        let row_high = vdupq_n_f32(rows.high[r]);
        let (mut row_above, mut listed) = (vdupq_n_u32(0), vdupq_n_u32(0));
        for v in 0..VECTORS {
            // SAFETY: the caller checked that the tile contains ROWS × COLUMNS values.
            let values = unsafe { vld1q_f32(tile.as_ptr().add(r * COLUMNS + 4 * v)) };
            let together = vceqq_u32(group[v], row_group);
            let row_counted = vbicq_u32(vcgtq_f32(values, row_high), together);
            let column_counted = vbicq_u32(vcgtq_f32(values, high[v]), together);
            // Lanes of a mask are −1 or 0.
            row_above = vsubq_u32(row_above, row_counted);
            above[v] = vsubq_u32(above[v], column_counted);
            let row_listed = vbicq_u32(vcgeq_f32(values, row_low), row_counted);
            let column_listed = vbicq_u32(vcgeq_f32(values, low[v]), column_counted);
            listed = vorrq_u32(listed, vbicq_u32(vorrq_u32(row_listed, column_listed), together));
        }
        result.row_above.of(0)[origin.0 as usize + r] += vaddvq_u32(row_above);
        // Counting must not branch; listing may, because it is rare.
        if vmaxvq_u32(listed) != 0 {
            list(r, tile, rows, columns, origin, result);
        }
    }
    for (v, counts) in above.iter().enumerate() {
        let out = &mut result.column_above.of(0)[origin.1 as usize + 4 * v..][..4];
        // SAFETY: `out` contains four elements.
        unsafe { vst1q_u32(out.as_mut_ptr(), vaddq_u32(vld1q_u32(out.as_ptr()), *counts)) };
    }
}

/// Lists the values between thresholds in row `r` of a tile.
#[cold]
fn list(
    r: usize,
    tile: &[f32],
    rows: Thresholds<'_>,
    columns: Thresholds<'_>,
    origin: (u32, u32),
    result: &mut SweepResult,
) {
    for (c, &value) in tile[r * COLUMNS..][..COLUMNS].iter().enumerate() {
        if columns.group[c] == rows.group[r] {
            continue;
        }
        let hit = Hit { row: origin.0 + r as u32, column: origin.1 + c as u32, value };
        if value >= rows.low[r] && value <= rows.high[r] {
            sweep::add(&mut result.row_hits, hit);
        }
        if value >= columns.low[c] && value <= columns.high[c] {
            sweep::add(&mut result.column_hits, hit);
        }
    }
}

/// Counts and lists values when items are given multiple brackets.
#[target_feature(enable = "neon")]
fn sweep_brackets(
    sides: Sides,
    tile: &[f32],
    brackets: (&ItemBrackets, &ItemBrackets),
    at: (Range<usize>, usize),
    result: &mut SweepResult,
) {
    sweep::several::<COLUMNS>(sides, tile, brackets, at, result);
}

exact_routines!("neon");

#[target_feature(enable = "neon")]
#[inline]
fn zeros() -> float64x2_t {
    vdupq_n_f64(0.0)
}

/// Widens eight numbers into four registers, which have the lanes that `exact` defines.
///
/// # Safety
///
/// `at` must point to eight numbers.
#[target_feature(enable = "neon")]
#[inline]
unsafe fn widen(at: *const f32) -> [float64x2_t; 4] {
    // SAFETY: the caller ensures that eight numbers can be read.
    let [a, b, c, d] =
        unsafe { [vld1_f32(at), vld1_f32(at.add(2)), vld1_f32(at.add(4)), vld1_f32(at.add(6))] };
    [vcvt_f64_f32(a), vcvt_f64_f32(b), vcvt_f64_f32(c), vcvt_f64_f32(d)]
}

/// Defines exact sums of pairs of rows. `$step(sum, q, g)` adds a term.
macro_rules! single_precision {
    ($name:ident, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = "neon")]
        fn $name(q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
            let mut sums = [[zeros(); 4]; PAIRS];
            let add = |sums: &mut [float64x2_t; 4], q: [float64x2_t; 4], g: [float64x2_t; 4]| {
                for (sum, ($q, $g)) in sums.iter_mut().zip(q.into_iter().zip(g)) {
                    let $sum = *sum;
                    *sum = $step;
                }
            };
            let whole = q[0].len() / 8 * 8;
            for at in (0..whole).step_by(8) {
                for (sums, (q, g)) in sums.iter_mut().zip(q.iter().zip(g)) {
                    // SAFETY: `at + 8` is at most the length of `q`, and `Kernel` checks that all
                    // rows have equal lengths.
                    let (q, g) = unsafe { (widen(q.as_ptr().add(at)), widen(g.as_ptr().add(at))) };
                    add(sums, q, g);
                }
            }
            if whole < q[0].len() {
                for (sums, (q, g)) in sums.iter_mut().zip(q.iter().zip(g)) {
                    // Terms of the padding are zero and don't change the sums.
                    let (mut last_q, mut last_g) = ([0.0; 8], [0.0; 8]);
                    last_q[..q.len() - whole].copy_from_slice(&q[whole..]);
                    last_g[..g.len() - whole].copy_from_slice(&g[whole..]);
                    // SAFETY: both arrays have eight numbers.
                    let (q, g) = unsafe { (widen(last_q.as_ptr()), widen(last_g.as_ptr())) };
                    add(sums, q, g);
                }
            }
            sums.map(|sums| {
                let mut lanes = [0.0; 8];
                for (lanes, sum) in lanes.chunks_exact_mut(2).zip(sums) {
                    // SAFETY: a chunk contains two numbers.
                    unsafe { vst1q_f64(lanes.as_mut_ptr(), sum) };
                }
                combine(lanes)
            })
        }
    };
}

// Products of float32 numbers are exact in float64, so fused operations do not change bits.
single_precision!(dots32, |sum, q, g| vfmaq_f64(sum, q, g));
single_precision!(distances32, |sum, q, g| {
    let difference = vsubq_f64(q, g);
    vaddq_f64(sum, vmulq_f64(difference, difference))
});

macro_rules! exact {
    ($name:ident, $lanes:literal, |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        exact_product!(
            $name,
            "neon",
            (EXACT_ROWS, EXACT_COLUMNS, 2, $lanes),
            (zeros, vld1q_f64, vdupq_n_f64, vst1q_f64),
            |$sum, $q, $g| $step
        );
    };
}
exact!(dots_fused, 8, |sum, q, g| vfmaq_f64(sum, q, g));
exact!(fused, 1, |sum, q, g| vfmaq_f64(sum, q, g));
exact!(dots, 8, |sum, q, g| vaddq_f64(sum, vmulq_f64(q, g)));
exact!(distances, 8, |sum, q, g| {
    let difference = vsubq_f64(q, g);
    vaddq_f64(sum, vmulq_f64(difference, difference))
});
