//! Panels of packed rows. The last may be narrow, so that a few very long rows needn't be padded to
//! the width of a tile.

use std::ops::Range;

use crate::error::Result;
use crate::kernel::CheckedProduct;
use crate::memory::{Grow, full};
use crate::rows::panels::Panels;

/// The number of steps of a narrow panel to pad and multiply at a time.
const CHUNK: usize = 256;

/// Packed rows in panels of `width` lanes. The last panel can be narrow: it has one lane per row,
/// without padding lanes.
pub(crate) struct NarrowPanels {
    width: usize,
    whole: Panels<u32>,
    narrow: Option<Narrow>,
}

struct Narrow {
    panel: Panels<u32>,
    /// The number of panels that precede the narrow panel.
    position: usize,
    lanes: usize,
}

/// A panel: the word of a step and a lane is `words[step * lanes + lane]`. Panels with fewer than
/// `width` lanes are narrow.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    words: &'a [u32],
    lanes: usize,
    width: usize,
}

impl NarrowPanels {
    /// Packs `rows` rows of `steps` words. `encode` must write all rows in a panel, given the
    /// number of lanes. The last panel may be narrow if panels consist of more than `narrow_from`
    /// words. `memory` may come from panels that are no longer used.
    pub fn load<E: Clone + Default + Send>(
        rows: usize,
        width: usize,
        steps: usize,
        encode: impl Fn(Range<usize>, usize, &mut [u32], &mut [E]) -> Result<()> + Sync,
        (narrow_from, memory): (usize, Vec<u32>),
    ) -> Result<(Self, Vec<E>)> {
        Self::pack((rows, width, steps), steps * width > narrow_from, memory, encode)
    }

    fn pack<E: Clone + Default + Send>(
        (rows, width, steps): (usize, usize, usize),
        is_long: bool,
        memory: Vec<u32>,
        encode: impl Fn(Range<usize>, usize, &mut [u32], &mut [E]) -> Result<()> + Sync,
    ) -> Result<(Self, Vec<E>)> {
        let lanes = rows % width;
        // If more rows are left than half a panel, padding takes little memory, and a narrow panel
        // would take more time.
        let is_narrow = is_long && 0 < lanes && 2 * lanes <= width;
        let padded = if is_narrow { rows - lanes } else { rows };
        let whole_panel = |rows: Range<usize>, panel: &mut [u32], extras: &mut [E]| {
            encode(rows, width, panel, extras)
        };
        let (whole, mut extras) = Panels::load(padded, width, steps, memory, whole_panel)?;
        let mut narrow = None;
        if is_narrow {
            let (panel, last) = Panels::load(
                lanes,
                lanes,
                steps,
                Vec::new(),
                |_, panel: &mut [u32], extras: &mut [E]| encode(padded..rows, lanes, panel, extras),
            )?;
            extras.try_extend(last)?;
            narrow = Some(Narrow { panel, position: padded / width, lanes });
        }
        Ok((NarrowPanels { width, whole, narrow }, extras))
    }

    /// Returns the memory of full panels, for other panels.
    pub fn into_memory(self) -> Vec<u32> {
        self.whole.into_memory()
    }

    /// Whether the last panel has only one lane per row.
    pub fn ends_narrow(&self) -> bool {
        self.narrow.is_some()
    }

    pub fn panel(&self, p: usize) -> Panel<'_> {
        match &self.narrow {
            Some(last) if last.position == p => {
                Panel { words: last.panel.panel(0), lanes: last.lanes, width: self.width }
            }
            _ => Panel { words: self.whole.panel(p), lanes: self.width, width: self.width },
        }
    }
}

impl<'a> Panel<'a> {
    /// Returns the words, step by step.
    pub fn words(&self) -> &'a [u32] {
        self.words
    }

    /// Returns the words of a range of steps, padded in `buffer` if the panel is narrow.
    fn padded<'b>(&self, from: usize, to: usize, buffer: &'b mut [u32]) -> &'b [u32]
    where
        'a: 'b,
    {
        let words = &self.words[from * self.lanes..to * self.lanes];
        if self.lanes == self.width {
            return words;
        }
        for (padded, words) in
            buffer.chunks_exact_mut(self.width).zip(words.chunks_exact(self.lanes))
        {
            padded[..self.lanes].copy_from_slice(words);
        }
        buffer
    }
}

/// Fills a tile with the products of a pair of panels. If a panel is narrow, the sums over chunks
/// of steps are added in float32. The error bound of the screen covers this order, too.
#[inline]
pub(crate) fn multiply(
    product: CheckedProduct,
    steps: usize,
    (rows, columns): (Panel<'_>, Panel<'_>),
    tile: &mut [f32],
) -> Result<()> {
    if rows.lanes == rows.width && columns.lanes == columns.width {
        product.tile(steps, rows.words, columns.words, tile);
        Ok(())
    } else {
        multiply_in_chunks(product, steps, (rows, columns), tile)
    }
}

#[cold]
fn multiply_in_chunks(
    product: CheckedProduct,
    steps: usize,
    (rows, columns): (Panel<'_>, Panel<'_>),
    tile: &mut [f32],
) -> Result<()> {
    assert!(
        product.is_sum(),
        "narrow panels need products that are sums, but int16 rows are scaled"
    );
    let (mut row_words, mut column_words) =
        (full(CHUNK * rows.width, 0)?, full(CHUNK * columns.width, 0)?);
    let mut part = full(rows.width * columns.width, 0.0)?;
    tile.fill(0.0);
    for from in (0..steps).step_by(CHUNK) {
        let to = (from + CHUNK).min(steps);
        let (rows, columns) =
            (rows.padded(from, to, &mut row_words), columns.padded(from, to, &mut column_words));
        product.tile(to - from, rows, columns, &mut part);
        for (sum, value) in tile.iter_mut().zip(&part) {
            *sum += value;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{Word, names, select};

    proptest! {
        #[test]
        fn narrow_panels_have_the_products_of_their_rows(
            steps in 1usize..700, lanes in (1usize..9, 1usize..49), seed in any::<u64>(),
        ) {
            for name in names() {
                let kernel = select(Some(name)).unwrap();
                let (height, width) = (kernel.number_tiles.rows, kernel.number_tiles.columns);
                let (rows, columns) = (lanes.0.min(height), lanes.1.min(width));
                let mut random = crate::random::Random::new(seed);
                // Use small integers, because sums are then exact in any order.
                let mut numbers =
                    |n: usize| (0..n).map(|_| random.below(7) as f32 - 3.0).collect::<Vec<f32>>();
                let (x, y) = (numbers(rows * steps), numbers(columns * steps));
                let panel = |lanes: usize, numbers: &[f32]| {
                    let encode = |_, words: &mut [u32], _: &mut [()]| {
                        let bits = numbers.iter().map(|number| number.to_bits());
                        words.iter_mut().zip(bits).for_each(|(word, bits)| *word = bits);
                        Ok(())
                    };
                    Panels::load(lanes, lanes, steps, Vec::new(), encode).unwrap().0
                };
                let (row_panel, column_panel) = (panel(rows, &x), panel(columns, &y));
                let row_panel = Panel { words: row_panel.panel(0), lanes: rows, width: height };
                let column_panel = Panel { words: column_panel.panel(0), lanes: columns, width };
                let mut tile = vec![f32::NAN; height * width];
                multiply(
                    kernel.product(Word::Float32),
                    steps,
                    (row_panel, column_panel),
                    &mut tile,
                )
                .unwrap();
                for r in 0..rows {
                    for c in 0..columns {
                        let sum: f32 =
                            (0..steps).map(|step| x[step * rows + r] * y[step * columns + c]).sum();
                        prop_assert_eq!(tile[r * width + c], sum, "{}", name);
                    }
                }
            }
        }

        #[test]
        fn every_row_is_in_its_panel(
            rows in 1usize..30, width in 1usize..9, is_long in any::<bool>(),
        ) {
            const STEPS: usize = 3;
            let encode =
                |rows: Range<usize>, lanes: usize, panel: &mut [u32], extras: &mut [usize]| {
                    for (lane, row) in rows.enumerate() {
                        panel[(STEPS - 1) * lanes + lane] = row as u32 + 1;
                        extras[lane] = row;
                    }
                    Ok(())
                };
            let shape = (rows, width, STEPS);
            let (panels, extras) =
                NarrowPanels::pack(shape, is_long, Vec::new(), encode).unwrap();
            prop_assert_eq!(extras, (0..rows).collect::<Vec<_>>());
            for row in 0..rows {
                let panel = panels.panel(row / width);
                prop_assert_eq!(
                    panel.words[(STEPS - 1) * panel.lanes + row % width],
                    row as u32 + 1
                );
            }
            let last = panels.panel((rows - 1) / width);
            let few = 2 * (rows % width) <= width && !rows.is_multiple_of(width);
            prop_assert_eq!(last.lanes, if is_long && few { rows % width } else { width });
        }
    }
}
