//! Tests that products are within the error bound that docs/internals/evaluator-exactness.md
//! derives.

use proptest::prelude::*;

use super::*;
use crate::random::Random;

const UNIT: f64 = 1.0 / (1 << 24) as f64;
const FLOATS: [Word; 2] = [Word::Float32, Word::BFloat16Pair];

/// Returns the kernels and words with rounded products.
fn rounding_kernels() -> impl Iterator<Item = (&'static Kernel, Word)> {
    let kernels = KERNELS.iter().copied().filter(|k| (k.available)());
    kernels
        .flat_map(|k| FLOATS.map(|word| (k, word)))
        .filter(|(k, word)| *word == Word::Float32 || k.has_bfloat16())
}

fn numbers(word: Word, bits: u32) -> Vec<f64> {
    match word {
        Word::BFloat16Pair => {
            [bits << 16, bits & 0xffff_0000].map(|b| f64::from(f32::from_bits(b))).to_vec()
        }
        _ => vec![f64::from(f32::from_bits(bits))],
    }
}

/// Returns the largest error in a tile of products, as a fraction of the bound, for factors of at
/// most 1.
fn largest_fraction(
    kernel: &Kernel,
    word: Word,
    steps: usize,
    rows: &[u32],
    columns: &[u32],
) -> f64 {
    let (height, width) = (kernel.number_tiles.rows, kernel.number_tiles.columns);
    let mut tile = vec![f32::NAN; height * width];
    kernel.product(word).tile(steps, rows, columns, &mut tile);
    let mut largest = 0.0f64;
    for (at, computed) in tile.into_iter().enumerate() {
        let (mut dim, mut sum, mut magnitudes) = (0.0, 0.0, 0.0);
        for step in 0..steps {
            let (row, column) =
                (rows[step * height + at / width], columns[step * width + at % width]);
            for (x, y) in numbers(word, row).into_iter().zip(numbers(word, column)) {
                dim += 1.0;
                sum += x * y;
                magnitudes += (x * y).abs();
            }
        }
        let operations = (2.0 * dim + 8.0) * UNIT;
        let underflow = 4.0 * (dim + 8.0) * f64::from(f32::MIN_POSITIVE);
        let bound = operations / (1.0 - operations) * magnitudes + underflow;
        largest = largest.max((f64::from(computed) - sum).abs() / bound);
    }
    largest
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Some products are subnormal if `exponent` is below about 55, and all are if it is below 47.
    #[test]
    fn products_of_any_magnitude_are_within_their_bound(
        steps in 0usize..60, exponent in prop_oneof![0u32..111, 40u32..66], seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        // Numbers below 1 in both halves of a word: a sign, one of sixteen exponents, and a
        // fraction.
        let mut half = || {
            (random.below(2) << 15
                | (exponent as usize + random.below(16)) << 7
                | random.below(128)) as u32
        };
        let mut words = |n: usize| (0..n).map(|_| half() << 16 | half()).collect::<Vec<_>>();
        for (kernel, word) in rounding_kernels() {
            let fraction = largest_fraction(
                kernel,
                word,
                steps,
                &words(steps * kernel.number_tiles.rows),
                &words(steps * kernel.number_tiles.columns),
            );
            prop_assert!(fraction <= 1.0, "{} {word:?}: {fraction}", kernel.name);
        }
    }
}

/// Sums rows (1, x, x, ...), where x² is slightly below 2⁻²⁴, half a unit in the last place of sums
/// from 1 to 2. When rounded to nearest, a sum loses every x². When rounded to odd, it loses every
/// pair of x², because the last bit is 1 after the first pair.
#[test]
fn terms_that_a_sum_of_bfloat16_loses_reach_half_of_the_bound() {
    const STEPS: usize = 256;
    let x = (255.0 / 256.0 / 4096.0f32).to_bits();
    for (kernel, word) in rounding_kernels().filter(|(_, word)| *word == Word::BFloat16Pair) {
        let panel = |lanes: usize| {
            let mut panel = vec![x | x >> 16; STEPS * lanes];
            panel[..lanes].fill(x | 1.0f32.to_bits() >> 16);
            panel
        };
        let fraction = largest_fraction(
            kernel,
            word,
            STEPS,
            &panel(kernel.number_tiles.rows),
            &panel(kernel.number_tiles.columns),
        );
        assert!(fraction > 0.45 && fraction <= 1.0, "{}: {fraction}", kernel.name);
    }
}

/// Returns integers with squares that add up to less than 2³¹, or to almost 2³¹ if `is_long`.
fn integers(random: &mut Random, count: usize, is_long: bool) -> Vec<i16> {
    let mut numbers: Vec<f64> =
        (0..count).map(|_| (random.uniform() - 0.5) * random.uniform().powi(3)).collect();
    let length = numbers.iter().map(|v| v * v).sum::<f64>().sqrt().max(1e-9);
    let largest = numbers.iter().fold(1e-9f64, |most, v| most.max(v.abs()));
    let most = (46_340.0 / length).min(32_767.0 / largest);
    numbers
        .iter_mut()
        .for_each(|v| *v = (*v * if is_long { most } else { most * random.uniform() }).trunc());
    numbers.into_iter().map(|v| v as i16).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Integer sums are exact up to the largest that 32 bits can represent; four roundings follow.
    #[test]
    fn products_of_integers_are_rounded_four_times(
        pairs in 1usize..40, exponents in (-100i32..3, -100i32..3), are_equal in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let steps = pairs + AFFINE_STEPS;
        for kernel in KERNELS.iter().copied().filter(|k| (k.available)() && k.has_int16()) {
            let mut random = Random::new(seed);
            let same = integers(&mut random, 2 * pairs, true);
            let mut panel = |lanes: usize, exponent: i32| {
                let mut words = vec![0; steps * lanes];
                let mut rows = Vec::new();
                for lane in 0..lanes {
                    let row = if are_equal {
                        same.clone()
                    } else {
                        integers(&mut random, 2 * pairs, lane % 2 == 0)
                    };
                    for (step, pair) in row.chunks(2).enumerate() {
                        words[step * lanes + lane] =
                            u32::from(pair[0] as u16) | u32::from(pair[1] as u16) << 16;
                    }
                    let [scale, bias] = [1.0, 1.0]
                        .map(|one| ((one + random.uniform()) * 2f64.powi(exponent)) as f32);
                    words[pairs * lanes + lane] = scale.to_bits();
                    words[(pairs + 1) * lanes + lane] = bias.to_bits();
                    rows.push((row, f64::from(scale), f64::from(bias)));
                }
                (words, rows)
            };
            let ((rows, left), (columns, right)) = (
                panel(kernel.number_tiles.rows, exponents.0),
                panel(kernel.number_tiles.columns, exponents.1),
            );
            let mut tile = vec![f32::NAN; kernel.number_tiles.rows * kernel.number_tiles.columns];
            kernel.product(Word::Int16Pair).tile(steps, &rows, &columns, &mut tile);
            for (at, found) in tile.into_iter().enumerate() {
                let ((q, q_scale, q_bias), (g, g_scale, g_bias)) = (
                    &left[at / kernel.number_tiles.columns],
                    &right[at % kernel.number_tiles.columns],
                );
                let sum: i64 = q.iter().zip(g).map(|(a, b)| i64::from(*a) * i64::from(*b)).sum();
                prop_assert!(sum.abs() < 1 << 31);
                let product = sum as f64 * q_scale * g_scale;
                let roundings = 4.0 * UNIT / (1.0 - 4.0 * UNIT);
                let bound = roundings * (product.abs() + q_bias + g_bias) + 2f64.powi(-116);
                let error = (f64::from(found) - (product + q_bias + g_bias)).abs();
                prop_assert!(error <= bound, "{}: {error} {bound}", kernel.name);
            }
        }
    }
}
