//! Rows packed for products: panels with a lane per row or column of a tile, step by step.

use std::ops::Range;

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::error::Result;
use crate::memory::{each, full, zeros};
use crate::rows::space::Scratch;

/// Packed rows. A panel contains the words of `width` rows: `panel[step * width + lane]`.
pub(crate) struct Panels<T> {
    words: Vec<T>,
    words_per_panel: usize,
}

impl<T: Copy + Default + FromZeros + Send + Sync> Panels<T> {
    /// Packs `rows` rows of `steps` words, and pads the last panel with zeros. `encode` must write the words for one row; the
    /// results of `encode` are returned, too.
    pub fn load<E: Clone + Default + Send>(
        rows: usize,
        width: usize,
        steps: usize,
        encode: impl Fn(usize, &mut Scratch, &mut [T]) -> Result<E> + Sync,
    ) -> Result<(Self, Vec<E>)> {
        let words_per_panel = steps * width;
        let mut words = zeros(rows.div_ceil(width) * words_per_panel)?;
        let mut extras = full(rows, E::default())?;
        each(
            words.par_chunks_mut(words_per_panel).zip(extras.par_chunks_mut(width)).enumerate(),
            || Ok((Scratch::default(), full(steps, T::default())?)),
            |(scratch, row), (p, (panel, extras))| {
                for (lane, extra) in extras.iter_mut().enumerate() {
                    *extra = encode(p * width + lane, scratch, row)?;
                    for (step, word) in row.iter().enumerate() {
                        panel[step * width + lane] = *word;
                    }
                }
                Ok(())
            },
        )?;
        Ok((Panels { words, words_per_panel }, extras))
    }

    /// Packs like [`load`](Self::load), except that `encode` must write all rows in a panel.
    pub fn load_together<E: Clone + Default + Send>(
        rows: usize,
        width: usize,
        steps: usize,
        encode: impl Fn(Range<usize>, &mut [T], &mut [E]) -> Result<()> + Sync,
    ) -> Result<(Self, Vec<E>)> {
        let words_per_panel = steps * width;
        let mut words = zeros(rows.div_ceil(width) * words_per_panel)?;
        let mut extras = full(rows, E::default())?;
        let panels = words.par_chunks_mut(words_per_panel).zip(extras.par_chunks_mut(width)).enumerate();
        panels.try_for_each(|(p, (panel, extras))| encode(p * width..p * width + extras.len(), panel, extras))?;
        Ok((Panels { words, words_per_panel }, extras))
    }

    pub fn panel(&self, p: usize) -> &[T] {
        self.panels(p..p + 1)
    }

    pub fn panels(&self, panels: Range<usize>) -> &[T] {
        &self.words[panels.start * self.words_per_panel..panels.end * self.words_per_panel]
    }
}
