//! Abridges rows of int16: keeps the first words, and replaces the others by a single word that is
//! at least as long.
//!
//! This makes `knn` 1.16 times as fast for 19,744 x 256 rows with a decaying spectrum if the rows
//! of a class (of 32) are adjacent, and does not help otherwise
//! (`benchmarks/evaluator/compare.py --work trained-knn` measures trained embeddings).
//!
//! By Cauchy–Schwarz, the product of abridged rows is at least the product of the full rows. A
//! kernel's values never decrease when products grow, so they are not below the values of the full
//! rows: see docs/internals/evaluator-exactness.md.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::AFFINE_STEPS;
use crate::rows::narrow_panels::NarrowPanels;
use crate::rows::panels::Panels;
use crate::sizes::Sizes;

/// Panels of int16 rows that are abridged to half of the words.
pub(crate) struct Abridged {
    panels: Panels<u32>,
    pub steps: usize,
}

impl Abridged {
    /// Abridges `rows` rows, in panels of `width` lanes and `steps` words. Returns `None` if there
    /// are few words.
    pub fn new(
        panels: &NarrowPanels,
        rows: usize,
        width: usize,
        steps: usize,
        sizes: &Sizes,
    ) -> Result<Option<Abridged>> {
        let words = steps - AFFINE_STEPS;
        if words < sizes.abridged_words.max(2) {
            return Ok(None);
        }
        let kept = words / 2 - 1;
        let abridge = |rows: Range<usize>, out: &mut [u32], _: &mut [()]| {
            let (words, lanes) = (panels.panel(rows.start / width).words(), width);
            let (integers, affine) = words.split_at(words.len() - AFFINE_STEPS * lanes);
            let (first, others) = integers.split_at(kept * lanes);
            let (out_first, out) = out.split_at_mut(first.len());
            let (lengths, out_affine) = out.split_at_mut(lanes);
            out_first.copy_from_slice(first);
            out_affine.copy_from_slice(affine);
            write_lengths(others, lengths);
            Ok(())
        };
        let steps = kept + 1 + AFFINE_STEPS;
        let (panels, _) = Panels::load_together(rows, width, steps, abridge)?;
        Ok(Some(Abridged { panels, steps }))
    }

    /// Returns the words of a range of panels.
    pub fn panels(&self, panels: Range<usize>) -> &[u32] {
        self.panels.panels(panels)
    }
}

/// Writes a lane's length as two equal integers, rounded up so that their squares add up to at
/// least the squared length.
fn write_lengths(words: &[u32], lengths: &mut [u32]) {
    lengths.fill(0);
    for step in words.chunks_exact(lengths.len()) {
        for (square, word) in lengths.iter_mut().zip(step) {
            let (low, high) = (i32::from(*word as i16), i32::from((*word >> 16) as i16));
            *square += (low * low + high * high) as u32;
        }
    }
    for length in lengths {
        let half = (f64::from(*length) / 2.0).sqrt().ceil() as u32;
        *length = half | half << 16;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{Word, names, select};
    use crate::random::Random;
    use crate::rows::packing::Axis;
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
        NarrowPanels::load(rows.len(), lanes, steps, encode, usize::MAX).unwrap().0
    }

    proptest! {
        #[test]
        fn products_of_abridged_rows_are_at_least_those_of_rows(
            pairs in 4usize..60, decay in 0.0f64..0.3, are_equal in any::<bool>(),
            exponent in -60i32..2, seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed);
            let unit = 2f64.powi(exponent);
            let mut row = || -> Vec<f64> {
                (0..2 * pairs)
                    .map(|i| (random.uniform() - 0.5) * unit * (-decay * i as f64).exp())
                    .collect()
            };
            let same = row();
            let bias = if are_equal { 0.0 } else { 0.125 };
            let mut rows = |n: usize| -> Vec<_> {
                (0..n).map(|_| if are_equal { same.clone() } else { row() }).collect()
            };
            for name in names() {
                let kernel = select(Some(name)).unwrap();
                if !kernel.has_int16() {
                    continue;
                }
                let (height, width, steps) =
                    (kernel.number_tiles.rows, kernel.number_tiles.columns, pairs + AFFINE_STEPS);
                let (rows, columns) =
                    (pack(&rows(height), bias, height), pack(&rows(width), bias, width));
                let abridged = |panels: &NarrowPanels, lanes| {
                    Abridged::new(
                        panels,
                        lanes,
                        lanes,
                        steps,
                        &Sizes { abridged_words: 4, ..Sizes::default() },
                    )
                    .unwrap()
                    .unwrap()
                };
                let (few_rows, few_columns) = (abridged(&rows, height), abridged(&columns, width));
                prop_assert!(few_rows.steps < steps);
                for word in few_columns
                    .panels(0..1)
                    .chunks(width)
                    .take(few_columns.steps - AFFINE_STEPS)
                    .flatten()
                {
                    prop_assert!(*word as i16 > i16::MIN && (*word >> 16) as i16 > i16::MIN);
                }
                let (mut whole, mut few) = (vec![0.0; height * width], vec![0.0; height * width]);
                let product = kernel.product(Word::Int16Pair);
                product.tile(steps, rows.panel(0).words(), columns.panel(0).words(), &mut whole);
                product.tile(
                    few_rows.steps,
                    few_rows.panels(0..1),
                    few_columns.panels(0..1),
                    &mut few,
                );
                for (whole, few) in whole.into_iter().zip(few) {
                    prop_assert!(few >= whole, "{name}: {few} {whole}");
                    // The product of equal rows is the squared length, except that the length of
                    // the replaced words is rounded up.
                    prop_assert!(!are_equal || few <= whole * 1.001, "{name}: {few} {whole}");
                }
            }
        }
    }

    #[test]
    fn lengths_of_the_longest_rows_leave_sums_exact() {
        // All of this row's length is in the replaced words, and the integers' square is the
        // largest that row_words.rs allows.
        let integers = [32_766i16, 32_766, 285, 0];
        let square: i64 = integers.iter().map(|v| i64::from(*v).pow(2)).sum();
        assert!((46_338i64.pow(2)..=46_339i64.pow(2)).contains(&square), "{square}");
        let words = integers
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[a, b]| u32::from(*a as u16) | u32::from(*b as u16) << 16);
        let mut length = [0];
        write_lengths(&words.collect::<Vec<u32>>(), &mut length);
        let half = i64::from(length[0] as i16);
        assert_eq!(half, i64::from((length[0] >> 16) as i16));
        assert!(2 * half * half >= square && 2 * half * half < 1 << 31, "{half}");
    }
}
