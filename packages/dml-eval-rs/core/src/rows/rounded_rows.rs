//! Rows rounded to bytes, used to rule out parts of tiles before int16 rows are multiplied: the
//! products of bytes take about half the time.
//!
//! Let a be the numbers of an int16 row, b·σ the rounded numbers with bytes b, e ≥ |a − b·σ| and
//! n ≥ |a| + e. Then, by Cauchy–Schwarz,
//!
//! aᵢ·aⱼ ≤ (bᵢ·bⱼ) σᵢσⱼ + nᵢeⱼ + eᵢnⱼ.
//!
//! The right side plus the biases βᵢ + βⱼ is not below the value of the int16 rows. So if all these
//! bounds are below the thresholds, no value in a part of a tile reaches a threshold. The rows of a
//! panel share a scale σ, and the columns of a part also share n and e. So per row and part, a
//! comparison computes the least integer bᵢ·bⱼ + ⌈βⱼ / (σᵢσⱼ)⌉ that may reach the threshold, and
//! compares sums in integers.
//!
//! Columns contain b, and rows contain b + o, where the offset o makes bytes positive. So the sum
//! of products is bᵢ·bⱼ + o Σbⱼ, and a column starts from −o Σb. AMX needs no offset. Without VNNI,
//! sums have 16 bits. They wrap around, but a sum of bᵢ·bⱼ fits, since it is at most the product of
//! the lengths of bytes, and rows are divided into sections and scaled to limit these.
//!
//! The last words of a row are 1 / σ, β, n and e.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::{AFFINE_STEPS, Kernel, ROUNDED_AFFINE_STEPS, Rounding, Work};
use crate::rows::narrow_panels::NarrowPanels;
use crate::rows::packing::Axis;
use crate::rows::panels::Panels;

/// Lanes that are rounded together.
const LANES: usize = 8;
/// Adding `NEAREST` to a number below 2²² puts the nearest integer into the low bits.
const NEAREST: f32 = 12_582_912.0;
/// Allows for the rounding of squared errors, in units of integers.
const SQUARE_ROUNDING: f64 = 1.0 / (1u64 << 16) as f64;
/// Allows for roundings: four for values of int16 rows, at most twelve for limits.
const SLACK: f64 = 1.0 / (1u64 << 19) as f64;
/// Allows for numbers that the CPU flushes to zero, see `DensePacking::bound`.
const LEAST: f64 = (1u64 << 12) as f64 * f32::MIN_POSITIVE as f64;

/// Panels of rounded rows.
pub(crate) struct RoundedRows {
    panels: Panels<u32>,
    layout: Layout,
}

impl RoundedRows {
    /// Rounds `rows` int16 rows, in panels of `width` lanes and `steps` words. `memory` may come
    /// from panels that are no longer used.
    pub fn new(
        kernel: &Kernel,
        panels: &NarrowPanels,
        axis: Axis,
        (rows, width, steps): (usize, usize, usize),
        memory: Vec<u32>,
    ) -> Result<RoundedRows> {
        let partial = kernel.partial.as_ref().expect("the caller checks `partial`");
        let (rounding, tiles) = (partial.rounding, kernel.number_tiles);
        let group = match axis {
            Axis::Rows => width,
            Axis::Columns => tiles.rows * tiles.columns / partial.parts,
        };
        let quads = (steps - AFFINE_STEPS).div_ceil(2);
        let quads = quads.next_multiple_of(rounding.words_together.unwrap_or(1));
        let steps = quads + quads.div_ceil(rounding.section) + ROUNDED_AFFINE_STEPS;
        let by_row = axis == Axis::Rows && rounding.words_together.is_some();
        let row_steps = if by_row { rounding.row_steps(steps) } else { steps };
        let layout = Layout { by_row, width, steps, row_steps };
        let round = |rows: Range<usize>, out: &mut [u32], _: &mut [()]| {
            let words = panels.panel(rows.start / width).words();
            kernel.vectorize(RoundPanel { words, layout, group, rounding, axis, out });
            Ok(())
        };
        let (panels, _) = Panels::load(rows, width, row_steps, memory, round)?;
        Ok(RoundedRows { panels, layout })
    }

    /// Returns the words per column in a column panel.
    pub fn steps(&self) -> usize {
        self.layout.steps
    }

    /// Returns the memory, for other panels.
    pub fn into_memory(self) -> Vec<u32> {
        self.panels.into_memory()
    }

    /// Returns the words of a range of panels.
    pub fn panels(&self, panels: Range<usize>) -> &[u32] {
        self.panels.panels(panels)
    }
}

/// Where the words of a panel lie.
#[derive(Clone, Copy)]
struct Layout {
    /// Whether the rows lie one after the other: see [`Rounding::row_steps`]. Otherwise, their
    /// words lie step by step.
    by_row: bool,
    width: usize,
    steps: usize,
    row_steps: usize,
}

impl Layout {
    /// Writes a word of bytes, or of integers, for the lanes from `first` on.
    #[inline(always)]
    fn write(self, step: usize, first: usize, words: [u32; LANES], out: &mut [u32]) {
        if self.by_row {
            for (lane, word) in (first..self.width).zip(words) {
                out[lane * self.row_steps + step - 1] = word;
            }
        } else {
            let lanes = &mut out[step * self.width..][first..self.width];
            lanes.iter_mut().zip(words).for_each(|(out, word)| *out = word);
        }
    }

    /// Returns the position of one of the last words.
    fn last(self, word: usize, lane: usize) -> usize {
        let (at, before) = (word * self.width + lane, self.steps - ROUNDED_AFFINE_STEPS);
        if self.by_row {
            at / ROUNDED_AFFINE_STEPS * self.row_steps + before - 1 + at % ROUNDED_AFFINE_STEPS
        } else {
            before * self.width + at
        }
    }
}

/// The work to round the integers in a panel to bytes.
struct RoundPanel<'a> {
    words: &'a [u32],
    layout: Layout,
    /// The number of lanes that share a scale: a panel of rows, or the columns in a part.
    group: usize,
    rounding: Rounding,
    axis: Axis,
    out: &'a mut [u32],
}

impl Work for RoundPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RoundPanel { words, layout, group, rounding, axis, out } = self;
        let width = layout.width;
        let (words, affine) = words.split_at(words.len() - AFFINE_STEPS * width);
        let scale_of = |lane: usize| f32::from_bits(affine[lane]);
        for group in (0..width).step_by(group).map(|first| first..(first + group).min(width)) {
            let mut scale = 0.0f32;
            for first in group.clone().step_by(LANES) {
                let factors = factors(words, (width, first), rounding);
                for (lane, factor) in (first..group.end).zip(factors) {
                    scale = scale.max(scale_of(lane) * factor);
                }
            }
            // Rows that are 0 have no scale.
            let scale = if scale > 0.0 { scale } else { 1.0 };
            let (mut norm, mut error) = (0.0f32, 0.0f32);
            for first in group.clone().step_by(LANES) {
                let mut factors = [f32::INFINITY; LANES];
                for (lane, factor) in (first..group.end).zip(&mut factors) {
                    *factor = scale / scale_of(lane);
                }
                let sums = round((words, first), factors, (rounding, axis), (layout, out));
                for (i, lane) in (first..group.end).take(LANES).enumerate() {
                    let bias = f32::from_bits(affine[width + lane]);
                    let [bias, own_norm, own_error] = sums.measure(i, scale, scale_of(lane), bias);
                    (norm, error) = (norm.max(own_norm), error.max(own_error));
                    let of_lane = [1.0 / scale, bias, own_norm, own_error];
                    for (word, of_lane) in of_lane.into_iter().enumerate() {
                        out[layout.last(word, lane)] = of_lane.to_bits();
                    }
                }
            }
            if axis == Axis::Columns {
                for lane in group {
                    out[layout.last(2, lane)] = norm.to_bits();
                    out[layout.last(3, lane)] = error.to_bits();
                }
            }
        }
    }
}

/// Sums over the integers a and the bytes b of some rows. All are below 2³¹.
#[derive(Default)]
struct Sums {
    squares: [i32; LANES],
    products: [i32; LANES],
    byte_squares: [i32; LANES],
}

/// Reads the words of some lanes.
#[inline(always)]
fn read(step: &[u32], first: usize) -> [u32; LANES] {
    let mut words = [0; LANES];
    match step[first..].first_chunk() {
        Some(all) => words = *all,
        None => words.iter_mut().zip(&step[first..]).for_each(|(word, given)| *word = *given),
    }
    words
}

/// The two integers of a word.
#[inline(always)]
fn integers(word: u32) -> [i32; 2] {
    [(word << 16) as i32 >> 16, word as i32 >> 16]
}

/// Returns the number of integers per byte for the lanes from `first` on.
#[inline(always)]
fn factors(words: &[u32], (width, first): (usize, usize), rounding: Rounding) -> [f32; LANES] {
    let (mut most, mut longest) = ([i32::from(rounding.largest); LANES], [0; LANES]);
    for section in words.chunks(rounding.section.saturating_mul(2 * width)) {
        // A sum consists of every other word.
        let mut squares = [[0; LANES]; 2];
        for (at, step) in section.chunks_exact(width).enumerate() {
            let words = read(step, first);
            for i in 0..LANES {
                let [low, high] = integers(words[i]);
                most[i] = low.abs().max(high.abs()).max(most[i]);
                squares[at % 2][i] += low * low + high * high;
            }
        }
        for square in squares.as_flattened().chunks_exact(LANES) {
            longest.iter_mut().zip(square).for_each(|(most, v)| *most = *v.max(most));
        }
    }
    let (largest, length) = (f32::from(rounding.largest), rounding.longest);
    let mut factors = [0.0; LANES];
    for (i, factor) in factors.iter_mut().enumerate() {
        *factor = (most[i] as f32 / largest).max((longest[i] as f32).sqrt() / length);
    }
    factors
}

/// Rounds the integers of the lanes from `first` on.
#[inline(always)]
fn round(
    (words, first): (&[u32], usize),
    factors: [f32; LANES],
    (rounding, axis): (Rounding, Axis),
    (layout, out): (Layout, &mut [u32]),
) -> Sums {
    let (width, offset) = (layout.width, rounding.offset());
    let inverse = factors.map(|factor| 1.0 / factor);
    let (mut sums, mut step) = (Sums::default(), 0);
    for words in words.chunks(rounding.section.saturating_mul(2 * width)) {
        // The sums of the bytes in the first and in the second half of the words.
        let (mut bytes, start) = ([[0; LANES]; 2], step);
        for steps in words.chunks(2 * width) {
            let mut quad = [0u32; LANES];
            for (half, step) in steps.chunks_exact(width).enumerate() {
                let words = read(step, first);
                for i in 0..LANES {
                    for (position, a) in integers(words[i]).into_iter().enumerate() {
                        let shifted = a as f32 * inverse[i] + NEAREST;
                        let b = shifted.to_bits() as i32 - NEAREST.to_bits() as i32;
                        sums.squares[i] += a * a;
                        sums.products[i] += a * b;
                        sums.byte_squares[i] += b * b;
                        bytes[half][i] += b;
                        let byte = if axis == Axis::Rows { b + offset } else { b };
                        quad[i] |= (byte as u32 & 0xff) << (16 * half + 8 * position);
                    }
                }
            }
            step += 1;
            layout.write(step, first, quad, out);
        }
        step += 1;
        if axis == Axis::Columns {
            let mut integers = [0; LANES];
            for (i, integers) in integers.iter_mut().enumerate() {
                *integers = rounding.integers(bytes.map(|bytes| -offset * bytes[i]));
            }
            layout.write(start, first, integers, out);
        }
    }
    for padding in step..layout.steps - ROUNDED_AFFINE_STEPS {
        layout.write(padding, first, [0; LANES], out);
    }
    sums
}

impl Sums {
    /// Returns the bias, the norm and the error of a row, given the scale of the bytes, and the
    /// scale and the bias of the integers.
    #[inline(always)]
    fn measure(&self, i: usize, rounded: f32, scale: f32, bias: f32) -> [f32; 3] {
        // Lanes that aren't used have no scale.
        let ratio = if scale > 0.0 { f64::from(rounded) / f64::from(scale) } else { 1.0 };
        let [square, product, byte_square] =
            [self.squares[i], self.products[i], self.byte_squares[i]].map(f64::from);
        let error = square - 2.0 * ratio * product + ratio * ratio * byte_square;
        let error = (error.max(0.0) + SQUARE_ROUNDING).sqrt();
        let (norm, scale) = ((square.sqrt() + error) * (1.0 + SLACK), f64::from(scale));
        let bias = f64::from(bias);
        let above = |x: f64| (x as f32).next_up();
        [
            above(bias + SLACK * bias.abs() + LEAST),
            above(norm * scale),
            above((error + SLACK * norm) * scale),
        ]
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{Tiles, WHOLE, Word, names, select};
    use crate::random::Random;
    use crate::rows::row_words::{Numbers, RowWords, measure, steps};

    /// Packs rows with a bias into panels of `lanes` lanes.
    fn pack(rows: &[Vec<f64>], bias: f64, lanes: usize) -> NarrowPanels {
        let steps = steps(Word::Int16Pair, rows[0].len(), true);
        let encode = |range: Range<usize>, lanes: usize, panel: &mut [u32], _: &mut [()]| {
            let mut words = RowWords::new(Word::Int16Pair);
            for (lane, coordinates) in rows[range].iter().enumerate() {
                let size = measure(coordinates);
                words.round(&Numbers {
                    coordinates,
                    size,
                    residual_norm: None,
                    bias: Some(bias),
                    axis: Axis::Rows,
                })?;
                words.write(lane, lanes, panel);
            }
            Ok(())
        };
        NarrowPanels::load(rows.len(), lanes, steps, encode, (usize::MAX, Vec::new())).unwrap().0
    }

    fn last_word(rounded: &RoundedRows, word: usize, lane: usize) -> f32 {
        f32::from_bits(rounded.panels(0..1)[rounded.layout.last(word, lane)])
    }

    /// Returns the sums of bytes per unit of values.
    fn sums_per_unit(rows: &RoundedRows, columns: &RoundedRows, width: usize, at: usize) -> f32 {
        last_word(rows, 0, at / width) * last_word(columns, 0, at % width)
    }

    /// Returns what the errors of a row and a column may add to a bound.
    fn added(rows: &RoundedRows, columns: &RoundedRows, width: usize, at: usize) -> f32 {
        let of_row = |word| last_word(rows, word, at / width);
        let of_column = |word| last_word(columns, word, at % width);
        // Limits and biases are rounded to sums of bytes.
        let rounded = 4.0 / sums_per_unit(rows, columns, width, at);
        of_row(2) * of_column(3) + of_row(3) * of_column(2) + rounded
    }

    #[test]
    fn limits_allow_for_the_largest_error_and_norm_in_a_part() {
        const DIM: usize = 64;
        let first = |length: f64| (0..DIM).map(|i| if i == 0 { length } else { 0.0 }).collect();
        let ones: Vec<f64> = (0..DIM).map(|i| f64::from(u8::from(i > 0))).collect();
        // Beside a long row, the bytes of these numbers are 0, so that all products are errors.
        let small = vec![0.003; DIM];
        for kernel in names().into_iter().map(|name| select(Some(name)).unwrap()) {
            let Some(partial) = &kernel.partial else { continue };
            let Tiles { rows: height, columns: width, .. } = kernel.number_tiles;
            let in_part = height * width / partial.parts;
            // The first row of a group is unlike the others, and its products are small.
            let groups = |lanes: usize, group: usize, first: Vec<f64>, other: &Vec<f64>| {
                let row = |lane: usize| if lane.is_multiple_of(group) { &first } else { other };
                (0..lanes).map(|lane| row(lane).clone()).collect::<Vec<_>>()
            };
            let steps = steps(Word::Int16Pair, DIM, true);
            let round = |rows: Vec<Vec<f64>>, axis| {
                let panels = pack(&rows, 0.0, rows.len());
                let shape = (rows.len(), rows.len(), steps);
                RoundedRows::new(kernel, &panels, axis, shape, Vec::new()).unwrap()
            };
            let of_error = (vec![ones.clone(); height], groups(width, in_part, first(1.0), &small));
            let of_norm = (
                groups(height, height, first(1.0), &small),
                groups(width, in_part, first(0.01), &ones),
            );
            for (rows, columns) in [of_error, of_norm] {
                let (rows, columns) = (round(rows, Axis::Rows), round(columns, Axis::Columns));
                let words = (rows.panels(0..1), columns.panels(0..1));
                let least = vec![0.99 * 0.003 * (DIM - 1) as f32; height];
                let mut parts = [0];
                kernel.reaching_parts(rows.steps(), words, (&least, &vec![1e9; width]), &mut parts);
                assert_eq!(parts, [WHOLE], "{}", kernel.name);
            }
        }
    }

    proptest! {
        #[test]
        fn bounds_are_at_least_the_values_and_near_them(
            pairs in prop_oneof![1usize..60, 60usize..200], decay in 0.0f64..0.3,
            are_equal in any::<bool>(), are_extreme in any::<bool>(), exponent in -60i32..2,
            sign in prop_oneof![Just(-1.0f64), Just(1.0)], seed in any::<u64>(),
            share in 0.0f64..1.0,
        ) {
            let mut random = Random::new(seed);
            let unit = 2f64.powi(exponent);
            let mut row = || -> Vec<f64> {
                (0..2 * pairs)
                    .map(|i| {
                        let v = random.uniform() - 0.5;
                        let v = if are_extreme { v.signum() * 0.5 } else { v };
                        v * unit * (-decay * i as f64).exp()
                    })
                    .collect()
            };
            let same = row();
            let bias = if are_equal { 0.0 } else { 0.125 * sign };
            let mut rows = |n: usize| -> Vec<_> {
                (0..n).map(|_| if are_equal { same.clone() } else { row() }).collect()
            };
            for name in names() {
                let kernel = select(Some(name)).unwrap();
                let Some(partial) = &kernel.partial else { continue };
                let Tiles { rows: height, columns: width, .. } = kernel.number_tiles;
                let steps = pairs + AFFINE_STEPS;
                let (rows, columns) =
                    (pack(&rows(height), bias, height), pack(&rows(width), bias, width));
                let mut tile = vec![0.0; height * width];
                let words = (rows.panel(0).words(), columns.panel(0).words());
                kernel.product(Word::Int16Pair).tile(steps, words.0, words.1, &mut tile);
                let round = |panels: &NarrowPanels, axis, lanes| {
                    let shape = (lanes, lanes, steps);
                    RoundedRows::new(kernel, panels, axis, shape, Vec::new()).unwrap()
                };
                let few_rows = round(&rows, Axis::Rows, height);
                let few_columns = round(&columns, Axis::Columns, width);
                let words = (few_rows.panels(0..1), few_columns.panels(0..1));
                let reached = |least: (&[f32], &[f32])| {
                    let mut parts = [0];
                    kernel.reaching_parts(few_rows.steps(), words, least, &mut parts);
                    parts[0]
                };
                // Only one row or column has a threshold.
                let (none_of_rows, none_of_columns) =
                    (vec![f32::INFINITY; height], vec![f32::INFINITY; width]);
                let at = (share * tile.len() as f64) as usize;
                let (r, c) = (at / width, at % width);
                let part = r * (partial.parts / height) + c * (partial.parts / height) / width;
                let (mut of_rows, mut of_columns) = (none_of_rows.clone(), none_of_columns.clone());
                (of_rows[r], of_columns[c]) = (tile[at], tile[at]);
                prop_assert!(reached((&of_rows, &none_of_columns)) >> part & 1 == 1, "{name}");
                prop_assert!(reached((&none_of_rows, &of_columns)) >> part & 1 == 1, "{name}");
                // Bounds exceed values at most by twice the errors.
                for (at, value) in tile.iter().enumerate() {
                    let errors = added(&few_rows, &few_columns, width, at);
                    let above = value + 2.0 * errors + 1e-4 * bias.abs() as f32 + 1e-33;
                    of_rows[at / width] =
                        if at % width == 0 { above } else { of_rows[at / width].max(above) };
                }
                of_rows.iter_mut().for_each(|v| *v += v.abs() * 1e-5);
                // If biases are much greater than products, every part may reach a threshold.
                let sums = |at| sums_per_unit(&few_rows, &few_columns, width, at);
                let most = (0..tile.len()).map(sums).fold(0.0, f32::max);
                let are_small = bias.abs() as f32 * most < 0.9 * (1 << 28) as f32;
                let nearly = reached((&of_rows, &none_of_columns));
                prop_assert!(nearly == 0 || !are_small, "{name}: {nearly}");
                // The error is about half a byte's step per number.
                let errors = added(&few_rows, &few_columns, width, 0);
                let numbers = 2.0 * pairs as f32;
                let Rounding { largest, section, longest, .. } = partial.rounding;
                let longest_of_sum = longest / (2.0 * section as f32).min(numbers).sqrt();
                let most = f32::from(largest).min(longest_of_sum);
                let longest = tile.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                prop_assert!(
                    !are_equal || errors <= 2.0 * longest * (numbers.sqrt() / most) + 1e-30
                );
            }
        }
    }
}
