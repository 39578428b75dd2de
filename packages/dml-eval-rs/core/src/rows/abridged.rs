//! Abridged rows: shorter rows, used to rule out parts of tiles before full rows are multiplied.
//!
//! A comparison of abridged rows computes a bound that is not below the value of the full int16
//! rows. So if all bounds in a part are below the thresholds, no value in it reaches one.
//!
//! For prefixes, whose first numbers are the longest, rows are [halved](super::halved_rows): for
//! trained embeddings, this makes `knn` 1.5 times as fast. Other rows are [rounded to
//! bytes](super::rounded_rows), if the kernel multiplies bytes.
//!
//! After the numbers, a row has the words of an integer, a scale, a bias, a norm n and an error e.
//! If N is the sum of the products, a bound is (N + integerⱼ)·(σᵢσⱼ) + (βᵢ + βⱼ) + nᵢeⱼ + eᵢnⱼ.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::{AFFINE_STEPS, Kernel};
use crate::rows::halved_rows::{halve, halved_steps};
use crate::rows::narrow_panels::NarrowPanels;
use crate::rows::packing::Axis;
use crate::rows::panels::Panels;
use crate::rows::rounded_rows::{Rounding, rounded_steps};

/// Panels of abridged rows.
pub(crate) struct Abridged {
    panels: Panels<u32>,
    pub steps: usize,
    /// Whether rows are rounded to bytes, not halved.
    pub is_rounded: bool,
}

impl Abridged {
    /// Abridges `rows` int16 rows, in panels of `width` lanes and `steps` words. Rows must have at
    /// least two words of integers.
    pub fn new(
        kernel: &Kernel,
        is_rounded: bool,
        panels: &NarrowPanels,
        axis: Axis,
        (rows, width, steps): (usize, usize, usize),
    ) -> Result<Abridged> {
        let largest = kernel.largest_byte().filter(|_| is_rounded);
        let abridge = |rows: Range<usize>, out: &mut [u32], _: &mut [()]| {
            let words = panels.panel(rows.start / width).words();
            match largest {
                Some(largest) => kernel.vectorize(Rounding { words, width, largest, axis, out }),
                None => halve(words, width, out),
            }
            Ok(())
        };
        let words = steps - AFFINE_STEPS;
        let steps = if is_rounded { rounded_steps(words) } else { halved_steps(words) };
        let (panels, _) = Panels::load_together(rows, width, steps, abridge)?;
        Ok(Abridged { panels, steps, is_rounded })
    }

    /// Returns the words of a range of panels.
    pub fn panels(&self, panels: Range<usize>) -> &[u32] {
        self.panels.panels(panels)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{ABRIDGED_AFFINE_STEPS, Tiles, Word, names, select};
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
        NarrowPanels::load(rows.len(), lanes, steps, encode, usize::MAX).unwrap().0
    }

    /// Returns what the errors of a row and a column may add to a bound.
    fn added(
        rows: &Abridged,
        columns: &Abridged,
        (height, width): (usize, usize),
        at: usize,
    ) -> f32 {
        let float = |abridged: &Abridged, lanes: usize, word: usize, lane: usize| {
            let step = abridged.steps - ABRIDGED_AFFINE_STEPS + word;
            f32::from_bits(abridged.panels(0..1)[step * lanes + lane])
        };
        let of_row = |word| float(rows, height, word, at / width);
        let of_column = |word| float(columns, width, word, at % width);
        of_row(3) * of_column(4) + of_row(4) * of_column(3)
    }

    proptest! {
        #[test]
        fn bounds_are_at_least_the_values_and_near_them(
            pairs in 4usize..60, decay in 0.0f64..0.3, are_equal in any::<bool>(),
            exponent in -60i32..2, seed in any::<u64>(), share in 0.0f64..1.0,
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
                let Some(partial) = &kernel.partial else { continue };
                let Tiles { rows: height, columns: width, .. } = kernel.number_tiles;
                let steps = pairs + AFFINE_STEPS;
                let (rows, columns) =
                    (pack(&rows(height), bias, height), pack(&rows(width), bias, width));
                let mut tile = vec![0.0; height * width];
                let words = (rows.panel(0).words(), columns.panel(0).words());
                kernel.product(Word::Int16Pair).tile(steps, words.0, words.1, &mut tile);
                for is_rounded in [false, true] {
                    if is_rounded && kernel.largest_byte().is_none() {
                        continue;
                    }
                    let abridge = |panels: &NarrowPanels, axis, lanes| {
                        Abridged::new(kernel, is_rounded, panels, axis, (lanes, lanes, steps))
                            .unwrap()
                    };
                    let few_rows = abridge(&rows, Axis::Rows, height);
                    let few_columns = abridge(&columns, Axis::Columns, width);
                    prop_assert!(few_rows.steps < steps + ABRIDGED_AFFINE_STEPS - AFFINE_STEPS);
                    let words = (few_rows.panels(0..1), few_columns.panels(0..1));
                    let reached = |least: (&[f32], &[f32])| {
                        let mut parts = [0];
                        kernel.reaching_parts(is_rounded, few_rows.steps, words, least, &mut parts);
                        parts[0]
                    };
                    // Only one row or column has a threshold.
                    let (none_of_rows, none_of_columns) =
                        (vec![f32::INFINITY; height], vec![f32::INFINITY; width]);
                    let at = (share * tile.len() as f64) as usize;
                    let (r, c) = (at / width, at % width);
                    let part = r * (partial.parts / height) + c * (partial.parts / height) / width;
                    let (mut of_rows, mut of_columns) =
                        (none_of_rows.clone(), none_of_columns.clone());
                    (of_rows[r], of_columns[c]) = (tile[at], tile[at]);
                    prop_assert!(reached((&of_rows, &none_of_columns)) >> part & 1 == 1, "{name}");
                    prop_assert!(reached((&none_of_rows, &of_columns)) >> part & 1 == 1, "{name}");
                    // Bounds exceed values at most by twice the errors if rows are rounded. If rows
                    // are halved, the bounds of equal rows only exceed values by the rounding of
                    // lengths.
                    if is_rounded || are_equal {
                        for (at, value) in tile.iter().enumerate() {
                            let errors =
                                added(&few_rows, &few_columns, (height, width), at);
                            let above = if is_rounded {
                                value + 2.0 * errors + 1e-4 * bias as f32 + 1e-33
                            } else {
                                value * 1.001 + 1e-33
                            };
                            of_rows[at / width] = if at % width == 0 {
                                above
                            } else {
                                of_rows[at / width].max(above)
                            };
                        }
                        let slack = 1.0 + 1e-5;
                        of_rows.iter_mut().for_each(|v| *v += v.abs() * (slack - 1.0));
                        prop_assert_eq!(reached((&of_rows, &none_of_columns)), 0, "{}", name);
                    }
                    if is_rounded {
                        // The error is about half a byte's step per number.
                        let (errors, most) = (
                            added(&few_rows, &few_columns, (height, width), 0),
                            f32::from(kernel.largest_byte().unwrap()),
                        );
                        let numbers = 2.0 * pairs as f32;
                        let longest = tile.iter().fold(0.0f32, |most, v| most.max(v.abs()));
                        prop_assert!(
                            !are_equal
                                || errors <= 2.0 * longest * (numbers.sqrt() / most) + 1e-30
                        );
                    }
                }
            }
        }
    }
}
