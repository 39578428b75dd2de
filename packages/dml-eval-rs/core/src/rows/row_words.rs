//! Rounds the numbers of a row to the words of a screen (float32, bfloat16 or int16), and measures
//! the rounding errors.
//!
//! A row of int16 is given a scale σ, and represents numbers a·σ with integers a. The product of
//! the integers of any two rows is below 2³¹, so a 32-bit sum is exact in any order. The last two
//! words of a row are σ and the bias, both float32.

use crate::error::Result;
use crate::kernel::{AFFINE_STEPS, BYTE_AFFINE_STEPS, Word};
use crate::memory::Grow;
use crate::rows::packing::Axis;

/// The number of bfloat16 pieces that represent a float32.
const PIECES: usize = 3;
/// A row's integers are at most `LARGEST` in magnitude. Their length is at most `LONGEST`, so that
/// its square is below 2³¹.
const LARGEST: f64 = 32_766.0;
const LONGEST: f64 = 46_339.0;
/// The least scale, 2⁻¹⁰⁰. Shorter rows get smaller integers instead of a smaller scale.
const LEAST_SCALE: f32 = f32::from_bits((127 - 100) << 23);
/// Adding `ROUNDING` to a number below 2³¹ puts the nearest integer into the low bits. Subtracting
/// it then returns the integer.
const ROUNDING: f64 = 6_755_399_441_055_744.0;
const LANES: usize = 8;

/// The exact numbers in a row.
pub(crate) struct Numbers<'a> {
    pub coordinates: &'a [f64],
    pub size: Size,
    /// The length of the part that isn't packed, rounded up, if the row includes this number.
    pub residual_norm: Option<f32>,
    /// The number to subtract from products, if biases are used.
    pub bias: Option<f64>,
    pub axis: Axis,
}

impl<'a> Numbers<'a> {
    /// Prepares a mean of rows for rounding. `numbers` includes the mean residual norm, if any;
    /// `added` is added to products.
    pub fn of_mean(numbers: &'a [f64], added: f64) -> Self {
        Numbers {
            coordinates: numbers,
            size: measure(numbers),
            residual_norm: None,
            bias: Some(-added),
            axis: Axis::Columns,
        }
    }
}

/// A row's squared length and largest magnitude.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub square: f64,
    largest: f64,
}

/// The length of the rounding errors, and the rounded length of the part that isn't packed.
pub(crate) struct Rounded {
    pub residual: f64,
    pub residual_norm: f64,
}

/// The words for one row. A thread reuses these buffers for all rows.
pub(crate) struct RowWords {
    word: Word,
    floats: Vec<f32>,
    integers: Vec<i16>,
    words: Vec<u32>,
}

/// Computes the words per packed row, given how many numbers the row contains, including a residual
/// norm.
pub(crate) fn steps(word: Word, numbers: usize, is_biased: bool) -> usize {
    match word {
        Word::Int16Pair => numbers.div_ceil(2) + AFFINE_STEPS,
        Word::ByteQuad => numbers.div_ceil(4) + BYTE_AFFINE_STEPS,
        Word::BFloat16Pair => (numbers + if is_biased { 2 * PIECES } else { 0 }).div_ceil(2),
        Word::Float32 | Word::Bits => numbers + if is_biased { 2 } else { 0 },
    }
}

/// Calls `take` for chunks of at most `LANES` numbers, so that lanes use separate sums and don't
/// wait for each other.
#[inline(always)]
fn in_lanes<T>(x: &[f64], out: &mut [T], mut take: impl FnMut(&[f64], &mut [T])) {
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (out_chunks, out_rest) = out.as_chunks_mut::<LANES>();
    for (x, out) in chunks.iter().zip(out_chunks) {
        take(x, out);
    }
    take(rest, out_rest);
}

/// Measures the coordinates in a row.
#[inline(always)]
pub(crate) fn measure(x: &[f64]) -> Size {
    let (mut squares, mut largest) = ([0.0; LANES], [0.0; LANES]);
    let (chunks, rest) = x.as_chunks::<LANES>();
    for chunk in chunks {
        add_to_size(chunk, &mut squares, &mut largest);
    }
    add_to_size(rest, &mut squares, &mut largest);
    Size { square: squares.iter().sum(), largest: largest.into_iter().fold(0.0, f64::max) }
}

#[inline(always)]
fn add_to_size(x: &[f64], squares: &mut [f64; LANES], largest: &mut [f64; LANES]) {
    for ((v, square), largest) in x.iter().zip(squares).zip(largest) {
        *square += v * v;
        let magnitude = v.abs();
        *largest = if magnitude > *largest { magnitude } else { *largest };
    }
}

/// Rounds to the nearest bfloat16, ties to even, if the number is far from overflow.
fn bfloat16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Rounds a length up to a bfloat16.
fn bfloat16_above(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + 0xffff) & 0xffff_0000)
}

impl RowWords {
    pub fn new(word: Word) -> Self {
        RowWords { word, floats: Vec::new(), integers: Vec::new(), words: Vec::new() }
    }

    /// Rounds the numbers in a row, and replaces `words`.
    #[inline(always)]
    pub fn round(&mut self, numbers: &Numbers<'_>) -> Result<Rounded> {
        self.words.clear();
        match self.word {
            Word::Int16Pair => self.round_to_int16(numbers),
            Word::BFloat16Pair => {
                let rounded = self.round_to_floats(numbers, PIECES, bfloat16, bfloat16_above)?;
                let pair = |pair: &[f32]| {
                    pair.get(1).map_or(0, |v| v.to_bits()) | (pair[0].to_bits() >> 16)
                };
                self.words.try_extend(self.floats.chunks(2).map(pair))?;
                Ok(rounded)
            }
            Word::Float32 | Word::ByteQuad | Word::Bits => {
                let rounded = self.round_to_floats(numbers, 1, |v| v, |v| v)?;
                self.words.try_extend(self.floats.iter().map(|v| v.to_bits()))?;
                Ok(rounded)
            }
        }
    }

    /// Writes the words into a lane of a panel with `width` lanes. `panel` may begin at any lane.
    #[inline(always)]
    pub fn write(&self, lane: usize, width: usize, panel: &mut [u32]) {
        for (packed, word) in panel[lane..].iter_mut().step_by(width).zip(&self.words) {
            *packed = *word;
        }
    }

    /// Rounds to floats: the coordinates, the residual norm, and the pieces of the bias, which are
    /// multiplied by 1.
    #[inline(always)]
    fn round_to_floats(
        &mut self,
        numbers: &Numbers<'_>,
        pieces: usize,
        nearest: impl Fn(f32) -> f32,
        above: impl Fn(f32) -> f32,
    ) -> Result<Rounded> {
        let mut residual2 = [0.0; LANES];
        self.floats.clear();
        self.floats.try_resize(numbers.coordinates.len(), 0.0)?;
        in_lanes(numbers.coordinates, &mut self.floats, |x, out| {
            for ((exact, out), residual2) in x.iter().zip(out).zip(&mut residual2) {
                *out = nearest(*exact as f32);
                let difference = f64::from(*out) - exact;
                *residual2 += difference * difference;
            }
        });
        let residual_norm = numbers.residual_norm.map(above);
        self.floats.try_extend(residual_norm)?;
        if let Some(bias) = numbers.bias {
            let mut left = -bias as f32;
            let mut all = [1.0; 2 * PIECES];
            let own = if numbers.axis == Axis::Rows { 0 } else { pieces };
            for piece in &mut all[own..own + pieces] {
                *piece = nearest(left);
                left -= *piece;
            }
            self.floats.try_extend(all[..2 * pieces].iter().copied())?;
        }
        Ok(Rounded {
            residual: residual2.iter().sum::<f64>().sqrt(),
            residual_norm: f64::from(residual_norm.unwrap_or(0.0)),
        })
    }

    /// Rounds to multiples of a scale: coordinates to the nearest multiple, the residual norm up.
    #[inline(always)]
    fn round_to_int16(&mut self, numbers: &Numbers<'_>) -> Result<Rounded> {
        let Numbers { coordinates, size, residual_norm, bias, .. } = numbers;
        let exact_norm = f64::from(residual_norm.unwrap_or(0.0));
        let count = coordinates.len() + usize::from(residual_norm.is_some());
        // Rounding changes each integer by at most 1, so it increases the length by at most √count.
        let longest = LONGEST - (count as f64).sqrt();
        let scale = ((size.square + exact_norm * exact_norm).sqrt() / longest)
            .max(size.largest.max(exact_norm) / LARGEST);
        let scale = (scale as f32).next_up().max(LEAST_SCALE);
        let (step, inverse) = (f64::from(scale), 1.0 / f64::from(scale));
        let mut residual2 = [0.0; LANES];
        self.integers.clear();
        self.integers.try_resize(coordinates.len(), 0)?;
        in_lanes(coordinates, &mut self.integers, |x, out| {
            for ((exact, out), residual2) in x.iter().zip(out).zip(&mut residual2) {
                let shifted = exact * inverse + ROUNDING;
                *out = shifted.to_bits() as i16;
                let difference = (shifted - ROUNDING) * step - exact;
                *residual2 += difference * difference;
            }
        });
        let above = residual_norm.map(|_| (exact_norm * inverse) as i16 + 1);
        self.integers.try_extend(above)?;
        debug_assert!(self.integers.iter().map(|v| i64::from(*v).pow(2)).sum::<i64>() < 1 << 31);
        if self.integers.len() % 2 == 1 {
            self.integers.try_push(0)?;
        }
        let (pairs, _) = self.integers.as_chunks::<2>();
        self.words.try_extend(
            pairs.iter().map(|[low, high]| u32::from(*low as u16) | u32::from(*high as u16) << 16),
        )?;
        self.words.try_extend([scale.to_bits(), (-bias.unwrap_or(0.0) as f32).to_bits()])?;
        Ok(Rounded {
            residual: residual2.iter().sum::<f64>().sqrt(),
            residual_norm: f64::from(above.unwrap_or(0)) * step,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::random::Random;

    proptest! {
        #[test]
        fn integers_are_short_enough_for_exact_sums_and_their_errors_are_measured(
            len in 1usize..300, exponent in -140i32..2, peak in 0.0f64..2.0,
            residual_norm in proptest::option::of(0.0f32..2.0), seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed);
            let unit = 2f64.powi(exponent);
            let mut coordinates: Vec<f64> =
                (0..len).map(|_| (random.uniform() - 0.5) * unit).collect();
            // A single number may be larger than all other numbers together.
            coordinates[random.below(len)] *= 1.0 + peak * len as f64;
            let residual_norm = residual_norm.map(|residual_norm| residual_norm * unit as f32);
            let mut row = RowWords::new(Word::Int16Pair);
            let (size, bias) = (measure(&coordinates), Some(0.25));
            let numbers =
                Numbers { coordinates: &coordinates, size, residual_norm, bias, axis: Axis::Rows };
            let rounded = row.round(&numbers).unwrap();
            let count = len + usize::from(residual_norm.is_some());
            prop_assert_eq!(row.words.len(), steps(Word::Int16Pair, count, true));
            let (pairs, affine) = row.words.split_at(row.words.len() - AFFINE_STEPS);
            let scale = f64::from(f32::from_bits(affine[0]));
            prop_assert_eq!(f32::from_bits(affine[1]), -0.25);
            let integers: Vec<i16> =
                pairs.iter().flat_map(|word| [*word as i16, (*word >> 16) as i16]).collect();
            prop_assert!(integers.iter().map(|v| i64::from(*v).pow(2)).sum::<i64>() < 1 << 31);
            let errors = coordinates
                .iter()
                .zip(&integers)
                .map(|(exact, v)| (f64::from(*v) * scale - exact).powi(2));
            let residual = errors.sum::<f64>().sqrt();
            prop_assert!((rounded.residual - residual).abs() <= 1e-9 * residual);
            prop_assert!(residual <= 0.51 * scale * (len as f64).sqrt());
            if let Some(residual_norm) = residual_norm {
                prop_assert_eq!(rounded.residual_norm, f64::from(integers[len]) * scale);
                prop_assert!(
                    rounded.residual_norm >= f64::from(residual_norm)
                        && rounded.residual_norm <= f64::from(residual_norm) + 1.01 * scale
                );
            }
        }
    }
}
