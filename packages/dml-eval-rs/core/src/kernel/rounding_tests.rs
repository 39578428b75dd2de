//! Every product is within the bound of its sum, which docs/internals/evaluator-exactness.md derives.

use proptest::prelude::*;

use super::*;
use crate::random::Random;

const UNIT: f64 = 1.0 / (1 << 24) as f64;
const FLOATS: [Word; 2] = [Word::Float32, Word::BFloat16Pair];

/// Returns the kernels with the kinds of word whose products are rounded.
fn rounding_kernels() -> impl Iterator<Item = (&'static Kernel, Word)> {
    let kernels = KERNELS.iter().copied().filter(|k| (k.available)());
    kernels.flat_map(|k| FLOATS.map(|word| (k, word))).filter(|(k, word)| *word == Word::Float32 || k.has_bfloat16())
}

fn numbers(word: Word, bits: u32) -> Vec<f64> {
    match word {
        Word::BFloat16Pair => [bits << 16, bits & 0xffff_0000].map(|b| f64::from(f32::from_bits(b))).to_vec(),
        _ => vec![f64::from(f32::from_bits(bits))],
    }
}

/// Returns the largest error of a tile's products, as a fraction of the bound, for factors of at most 1.
fn largest_fraction(kernel: &Kernel, word: Word, steps: usize, rows: &[u32], columns: &[u32]) -> f64 {
    let (height, width) = (kernel.rows, kernel.columns);
    let mut tile = vec![f32::NAN; height * width];
    kernel.product(word).tile(steps, rows, columns, &mut tile);
    let mut largest = 0.0f64;
    for (at, computed) in tile.into_iter().enumerate() {
        let (mut dim, mut sum, mut magnitudes) = (0.0, 0.0, 0.0);
        for step in 0..steps {
            let (row, column) = (rows[step * height + at / width], columns[step * width + at % width]);
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

    /// From about 55 on some products are subnormal; below 47 all are.
    #[test]
    fn products_of_any_magnitude_are_within_their_bound(
        steps in 0usize..60, exponent in prop_oneof![0u32..111, 40u32..66], seed in any::<u64>(),
    ) {
        let mut random = Random::new(seed);
        // Numbers below 1: a sign, one of sixteen exponents, and a fraction, in each half of a word.
        let mut half = || (random.below(2) << 15 | (exponent as usize + random.below(16)) << 7 | random.below(128)) as u32;
        let mut words = |n: usize| (0..n).map(|_| half() << 16 | half()).collect::<Vec<_>>();
        for (kernel, word) in rounding_kernels() {
            let fraction = largest_fraction(kernel, word, steps, &words(steps * kernel.rows), &words(steps * kernel.columns));
            prop_assert!(fraction <= 1.0, "{} {word:?}: {fraction}", kernel.name);
        }
    }
}

/// Sums of rows (1, x, x, ...) with x² slightly below 2⁻²⁴, half of a unit in the last place of a sum from 1 to 2. To nearest, a
/// sum loses each x². To odd, it loses each pair of them, since the last bit of the sum is one after the first pair.
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
        let fraction = largest_fraction(kernel, word, STEPS, &panel(kernel.rows), &panel(kernel.columns));
        assert!(fraction > 0.45 && fraction <= 1.0, "{}: {fraction}", kernel.name);
    }
}
