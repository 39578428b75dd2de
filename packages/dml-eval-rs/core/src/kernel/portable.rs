//! Plain Rust: the reference for other kernels, also used as the default on CPUs that they don't
//! support.

use crate::exact::combine_tiles;

use super::brackets::Thresholds;
use super::exact_macros::{exact_routines, single_precision_routines};
use super::instructions::Instructions;
use super::routines::{CHUNK, CodeProduct, ExactProducts, Kernel, ONE_CHUNK};
use super::sweep::{self, Hit, SweepResult};
use super::tiles::Tiles;

pub(super) const ROWS: usize = 4;
pub(super) const COLUMNS: usize = 16;
const EXACT_ROWS: usize = 4;
const EXACT_COLUMNS: usize = 8;

const TILES: Tiles = Tiles {
    rows: ROWS,
    columns: COLUMNS,
    sweep: sweep::<COLUMNS, true>,
    sweep_rows: sweep::<COLUMNS, false>,
    sweep_brackets: sweep::several::<COLUMNS>,
};
const CODES: CodeProduct = CodeProduct { tiles: TILES, hamming, arrange: None };

pub(super) static KERNEL: Kernel = Kernel {
    name: "portable",
    number_tiles: TILES,
    float32: float32::<ONE_CHUNK>,
    float32_in_chunks: float32::<CHUNK>,
    bfloat16: None,
    int16: None,
    partial: None,
    bytes: None,
    codes: CODES,
    dots32,
    dot64,
    distances32,
    distance64,
    bits,
    exact: ExactProducts {
        rows: EXACT_ROWS,
        columns: EXACT_COLUMNS,
        dots32: dots,
        dots64: dots,
        distances,
        fused: dots_in_order,
    },
    instructions: Instructions::Baseline,
    available: || true,
};

fn float32<const TERMS: usize>(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    let (rows, _) = rows.as_chunks::<ROWS>();
    let (columns, _) = columns.as_chunks::<COLUMNS>();
    tile[..ROWS * COLUMNS].fill(0.0);
    for (rows, columns) in rows[..steps].chunks(TERMS).zip(columns[..steps].chunks(TERMS)) {
        let mut sums = [[0.0f32; COLUMNS]; ROWS];
        for (row, column) in rows.iter().zip(columns) {
            for r in 0..ROWS {
                let x = f32::from_bits(row[r]);
                for c in 0..COLUMNS {
                    sums[r][c] += x * f32::from_bits(column[c]);
                }
            }
        }
        tile.iter_mut().zip(sums.as_flattened()).for_each(|(value, sum)| *value += sum);
    }
}

/// Fills a tile with sums of `LANES` lanes. Eight lanes give the order that `exact` defines.
#[inline(always)]
fn exact<const LANES: usize>(
    rows: &[f64],
    columns: &[f64],
    tile: &mut [f64],
    term: impl Fn(f64, f64, f64) -> f64,
) {
    let (rows, _) = rows.as_chunks::<EXACT_ROWS>();
    let (columns, _) = columns.as_chunks::<EXACT_COLUMNS>();
    let each = rows.len() / LANES;
    for (l, lane) in tile.chunks_exact_mut(EXACT_ROWS * EXACT_COLUMNS).take(LANES).enumerate() {
        let mut sums = [[0.0f64; EXACT_COLUMNS]; EXACT_ROWS];
        for (row, column) in rows[l * each..][..each].iter().zip(&columns[l * each..][..each]) {
            for r in 0..EXACT_ROWS {
                for c in 0..EXACT_COLUMNS {
                    sums[r][c] = term(sums[r][c], row[r], column[c]);
                }
            }
        }
        lane.copy_from_slice(sums.as_flattened());
    }
    if LANES == 8 {
        combine_tiles(tile, EXACT_ROWS * EXACT_COLUMNS);
    }
}

fn dots(rows: &[f64], columns: &[f64], tile: &mut [f64]) {
    exact::<8>(rows, columns, tile, |sum, q, g| sum + q * g);
}

fn dots_in_order(rows: &[f64], columns: &[f64], tile: &mut [f64]) {
    exact::<1>(rows, columns, tile, |sum, q, g| sum + q * g);
}

fn distances(rows: &[f64], columns: &[f64], tile: &mut [f64]) {
    exact::<8>(rows, columns, tile, |sum, q, g| sum + (q - g) * (q - g));
}

/// Computes minus the number of differing bits.
#[inline(always)]
pub(super) fn hamming_tile<const R: usize, const C: usize>(
    steps: usize,
    rows: &[u32],
    columns: &[u32],
    tile: &mut [f32],
) {
    let (rows, _) = rows.as_chunks::<R>();
    let (columns, _) = columns.as_chunks::<C>();
    let mut bits = [[0u32; C]; R];
    for (row, column) in rows[..steps].iter().zip(&columns[..steps]) {
        for r in 0..R {
            for c in 0..C {
                bits[r][c] += (row[r] ^ column[c]).count_ones();
            }
        }
    }
    for (out, sums) in tile.chunks_exact_mut(C).zip(bits) {
        for (o, s) in out.iter_mut().zip(sums) {
            *o = -(s as f32);
        }
    }
}

fn hamming(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
    hamming_tile::<ROWS, COLUMNS>(steps, rows, columns, tile);
}

/// Counts and lists values, for both sides or only for the rows.
fn sweep<const C: usize, const BOTH: bool>(
    tile: &[f32],
    rows: Thresholds<'_>,
    columns: Thresholds<'_>,
    origin: (u32, u32),
    result: &mut SweepResult,
) {
    const WIDTH: usize = 8;
    for r in 0..rows.group.len() {
        let (low, high, group) = (rows.low[r], rows.high[r], rows.group[r]);
        let row = origin.0 + r as u32;
        for start in (0..C).step_by(WIDTH) {
            let values: &[f32; WIDTH] =
                tile[r * C + start..][..WIDTH].try_into().expect("a chunk of WIDTH");
            let column_low: &[f32; WIDTH] =
                columns.low[start..][..WIDTH].try_into().expect("a chunk of WIDTH");
            let mut any = false;
            for k in 0..WIDTH {
                any |= (values[k] >= low) | (BOTH && values[k] >= column_low[k]);
            }
            if !any {
                continue;
            }
            for (k, &value) in values.iter().enumerate() {
                let c = start + k;
                if columns.group[c] == group {
                    continue;
                }
                let column = origin.1 + c as u32;
                if value > high {
                    result.row_above.of(0)[row as usize] += 1;
                } else if value >= low {
                    sweep::add(&mut result.row_hits, Hit { row, column, value });
                }
                if !BOTH {
                    continue;
                }
                if value > columns.high[c] {
                    result.column_above.of(0)[column as usize] += 1;
                } else if value >= columns.low[c] {
                    sweep::add(&mut result.column_hits, Hit { row, column, value });
                }
            }
        }
    }
}

exact_routines!();
single_precision_routines!(false);
