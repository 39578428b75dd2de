//! Rounds int16 rows to bytes, which are multiplied in about half the time.
//!
//! Let a be a row's numbers, b·σ the rounded numbers with bytes b, e ≥ |a − b·σ| and n ≥ |a| + e.
//! Then, by Cauchy–Schwarz,
//!
//! aᵢ·aⱼ ≤ (bᵢ·bⱼ) σᵢσⱼ + nᵢeⱼ + eᵢnⱼ.
//!
//! A comparison computes the right side plus the biases.
//!
//! Columns contain b, and rows contain b + o, where the offset o makes bytes positive. So the sum
//! of products is bᵢ·bⱼ + o Σbⱼ, and columns also contain −o Σb.

use crate::kernel::{ABRIDGED_AFFINE_STEPS, AFFINE_STEPS, Work};
use crate::rows::packing::Axis;

/// Lanes that are rounded together.
const LANES: usize = 8;
/// Adding `ROUNDING` to a number below 2²² puts the nearest integer into the low bits.
const ROUNDING: f32 = 12_582_912.0;
/// Allows for the rounding of squared errors, in units of integers.
const SQUARE_ROUNDING: f64 = 1.0 / (1u64 << 16) as f64;
/// Allows for roundings: four for values of int16 rows, eight for values of rounded rows.
const SLACK: f64 = 1.0 / (1u64 << 19) as f64;
/// Allows for numbers that the CPU flushes to zero, see `DensePacking::bound`.
const LEAST: f64 = (1u64 << 12) as f64 * f32::MIN_POSITIVE as f64;

/// Computes the words per rounded row, given the words of integers in an int16 row.
pub(super) fn rounded_steps(words: usize) -> usize {
    words.div_ceil(2) + ABRIDGED_AFFINE_STEPS
}

/// The work to round the integers in a panel to bytes.
pub(super) struct Rounding<'a> {
    pub words: &'a [u32],
    pub width: usize,
    pub largest: i8,
    pub axis: Axis,
    pub out: &'a mut [u32],
}

impl Work for Rounding<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Rounding { words, width, largest, axis, out } = self;
        let (words, affine) = words.split_at(words.len() - AFFINE_STEPS * width);
        let (quads, out_affine) = out.split_at_mut(out.len() - ABRIDGED_AFFINE_STEPS * width);
        let offset = i32::from(largest) + 1;
        let added = if axis == Axis::Rows { offset } else { 0 };
        for first in (0..width).step_by(LANES) {
            let sums = round((words, quads), (width, first), (largest, added));
            for (i, lane) in (first..width).take(LANES).enumerate() {
                let [scale, bias] = [affine[lane], affine[width + lane]].map(f32::from_bits);
                let factor = sums.most[i] as f32 / f32::from(largest);
                let [scale, bias, norm, error] = sums.measure(i, factor, scale, bias);
                let integer = if axis == Axis::Columns { -offset * sums.bytes[i] } else { 0 };
                let of_lane = [integer as u32, scale, bias, norm, error];
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
    /// The largest |a|, or the largest byte if this is larger.
    most: [i32; LANES],
    squares: [i32; LANES],
    products: [i32; LANES],
    byte_squares: [i32; LANES],
    bytes: [i32; LANES],
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

/// Rounds the integers of the lanes from `first` on. `added` is added to bytes.
#[inline(always)]
fn round(
    (words, quads): (&[u32], &mut [u32]),
    (width, first): (usize, usize),
    (largest, added): (i8, i32),
) -> Sums {
    let mut sums = Sums { most: [i32::from(largest); LANES], ..Sums::default() };
    for step in words.chunks_exact(width) {
        for (most, word) in sums.most.iter_mut().zip(read(step, first)) {
            let [low, high] = integers(word);
            *most = low.abs().max(high.abs()).max(*most);
        }
    }
    let inverse = sums.most.map(|most| f32::from(largest) / most as f32);
    for (steps, out) in words.chunks(2 * width).zip(quads.chunks_exact_mut(width)) {
        let mut quad = [0u32; LANES];
        for (half, step) in steps.chunks_exact(width).enumerate() {
            let words = read(step, first);
            for i in 0..LANES {
                for (position, a) in integers(words[i]).into_iter().enumerate() {
                    let shifted = a as f32 * inverse[i] + ROUNDING;
                    let b = shifted.to_bits() as i32 - ROUNDING.to_bits() as i32;
                    sums.squares[i] += a * a;
                    sums.products[i] += a * b;
                    sums.byte_squares[i] += b * b;
                    sums.bytes[i] += b;
                    quad[i] |= ((b + added) as u32 & 0xff) << (16 * half + 8 * position);
                }
            }
        }
        out[first..].iter_mut().zip(quad).for_each(|(out, word)| *out = word);
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
