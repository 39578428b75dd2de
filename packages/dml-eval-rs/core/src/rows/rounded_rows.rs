//! Rows rounded to bytes, used to rule out parts of tiles before int16 rows are multiplied: the
//! products of bytes take about half the time.
//!
//! Let a be the numbers of an int16 row, b·σ the rounded numbers with bytes b, e ≥ |a − b·σ| and
//! n ≥ |a| + e. Then, by Cauchy–Schwarz,
//!
//! aᵢ·aⱼ ≤ (bᵢ·bⱼ) σᵢσⱼ + nᵢeⱼ + eᵢnⱼ.
//!
//! A comparison computes the right side plus the biases βᵢ + βⱼ, which is not below the value of
//! the int16 rows. So if all bounds in a part are below the thresholds, no value in it reaches one.
//!
//! Columns contain b, and rows contain b + o, where the offset o makes bytes positive. So the sum
//! of products is bᵢ·bⱼ + o Σbⱼ, and a column starts from −o Σb. Without VNNI, sums have 16 bits.
//! They wrap around, but a sum of bᵢ·bⱼ fits, since it is at most the product of the lengths of
//! bytes, and rows are divided into sections and scaled to limit these.
//!
//! The last words of a row are σ, β, n and e.

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
/// Allows for roundings: four for values of int16 rows, eight for values of rounded rows.
const SLACK: f64 = 1.0 / (1u64 << 19) as f64;
/// Allows for numbers that the CPU flushes to zero, see `DensePacking::bound`.
const LEAST: f64 = (1u64 << 12) as f64 * f32::MIN_POSITIVE as f64;

/// Panels of rounded rows.
pub(crate) struct RoundedRows {
    panels: Panels<u32>,
    pub steps: usize,
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
        let rounding = kernel.partial.as_ref().expect("the caller checks `partial`").rounding;
        let round = |rows: Range<usize>, out: &mut [u32], _: &mut [()]| {
            let words = panels.panel(rows.start / width).words();
            kernel.vectorize(RoundPanel { words, width, rounding, axis, out });
            Ok(())
        };
        let quads = (steps - AFFINE_STEPS).div_ceil(2);
        let steps = quads + quads.div_ceil(rounding.section) + ROUNDED_AFFINE_STEPS;
        let (panels, _) = Panels::load_together(rows, width, steps, memory, round)?;
        Ok(RoundedRows { panels, steps })
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

/// The work to round the integers in a panel to bytes.
struct RoundPanel<'a> {
    words: &'a [u32],
    width: usize,
    rounding: Rounding,
    axis: Axis,
    out: &'a mut [u32],
}

impl Work for RoundPanel<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let RoundPanel { words, width, rounding, axis, out } = self;
        let (words, affine) = words.split_at(words.len() - AFFINE_STEPS * width);
        let (sections, out_affine) = out.split_at_mut(out.len() - ROUNDED_AFFINE_STEPS * width);
        for first in (0..width).step_by(LANES) {
            let factors = factors(words, (width, first), rounding);
            let sums = round((words, sections), (width, first), factors, (rounding, axis));
            for (i, lane) in (first..width).take(LANES).enumerate() {
                let [scale, bias] = [affine[lane], affine[width + lane]].map(f32::from_bits);
                let of_lane = sums.measure(i, factors[i], scale, bias);
                for (word, of_lane) in of_lane.into_iter().enumerate() {
                    out_affine[word * width + lane] = of_lane;
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
    (words, sections): (&[u32], &mut [u32]),
    (width, first): (usize, usize),
    factors: [f32; LANES],
    (rounding, axis): (Rounding, Axis),
) -> Sums {
    let offset = i32::from(rounding.largest) + 1;
    let inverse = factors.map(|factor| 1.0 / factor);
    let mut sums = Sums::default();
    let sections = sections.chunks_mut(rounding.section.saturating_add(1).saturating_mul(width));
    for (words, out) in words.chunks(rounding.section.saturating_mul(2 * width)).zip(sections) {
        let (integers_out, quads_out) = out.split_at_mut(width);
        // The sums of the bytes in the first and in the second half of the words.
        let mut bytes = [[0; LANES]; 2];
        for (steps, out) in words.chunks(2 * width).zip(quads_out.chunks_exact_mut(width)) {
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
            out[first..].iter_mut().zip(quad).for_each(|(out, word)| *out = word);
        }
        if axis == Axis::Columns {
            for (i, out) in integers_out[first..].iter_mut().take(LANES).enumerate() {
                *out = rounding.integers(bytes.map(|bytes| -offset * bytes[i]));
            }
        }
    }
    sums
}

impl Sums {
    /// Returns the bits of the scale, the bias, the norm and the error of a row, given the number
    /// `factor` of integers per byte, and the scale and the bias of the integers.
    #[inline(always)]
    fn measure(&self, i: usize, factor: f32, scale: f32, bias: f32) -> [u32; 4] {
        let rounded = scale * factor;
        // Lanes that aren't used have no scale.
        let ratio = if scale > 0.0 { f64::from(rounded) / f64::from(scale) } else { 1.0 };
        let [square, product, byte_square] =
            [self.squares[i], self.products[i], self.byte_squares[i]].map(f64::from);
        let error = square - 2.0 * ratio * product + ratio * ratio * byte_square;
        let error = (error.max(0.0) + SQUARE_ROUNDING).sqrt();
        let (norm, scale) = ((square.sqrt() + error) * (1.0 + SLACK), f64::from(scale));
        let bias = f64::from(bias);
        let above = |x: f64| (x as f32).next_up().to_bits();
        [
            rounded.to_bits(),
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
    use crate::kernel::{Tiles, Word, names, select};
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

    /// Returns what the errors of a row and a column may add to a bound.
    fn added(
        rows: &RoundedRows,
        columns: &RoundedRows,
        (height, width): (usize, usize),
        at: usize,
    ) -> f32 {
        let float = |rounded: &RoundedRows, lanes: usize, word: usize, lane: usize| {
            let step = rounded.steps - ROUNDED_AFFINE_STEPS + word;
            f32::from_bits(rounded.panels(0..1)[step * lanes + lane])
        };
        let of_row = |word| float(rows, height, word, at / width);
        let of_column = |word| float(columns, width, word, at % width);
        of_row(2) * of_column(3) + of_row(3) * of_column(2)
    }

    proptest! {
        #[test]
        fn bounds_are_at_least_the_values_and_near_them(
            pairs in prop_oneof![1usize..60, 60usize..200], decay in 0.0f64..0.3,
            are_equal in any::<bool>(), are_extreme in any::<bool>(), exponent in -60i32..2,
            seed in any::<u64>(), share in 0.0f64..1.0,
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
            let bias = if are_equal { 0.0 } else { 0.125 };
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
                    kernel.reaching_parts(few_rows.steps, words, least, &mut parts);
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
                    let errors = added(&few_rows, &few_columns, (height, width), at);
                    let above = value + 2.0 * errors + 1e-4 * bias as f32 + 1e-33;
                    of_rows[at / width] =
                        if at % width == 0 { above } else { of_rows[at / width].max(above) };
                }
                of_rows.iter_mut().for_each(|v| *v += v.abs() * 1e-5);
                prop_assert_eq!(reached((&of_rows, &none_of_columns)), 0, "{}", name);
                // The error is about half a byte's step per number.
                let errors = added(&few_rows, &few_columns, (height, width), 0);
                let numbers = 2.0 * pairs as f32;
                let Rounding { largest, section, longest } = partial.rounding;
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
