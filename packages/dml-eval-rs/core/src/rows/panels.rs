//! Rows packed for products: panels with a lane per row or column of a tile, step by step.

use std::ops::Range;

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::error::Result;
use crate::memory::{full, zeros};

/// Packed rows. A panel contains the words of `width` rows: `panel[step * width + lane]`.
pub(crate) struct Panels<T> {
    words: Vec<T>,
    /// The first word of the first panel, which begins a cache line.
    first: usize,
    words_per_panel: usize,
}

/// Bytes per cache line. Vector loads that cross lines are slower.
pub(crate) const LINE: usize = 64;

impl<T: Copy + Default + FromZeros + Send + Sync> Panels<T> {
    /// Packs `rows` rows of `steps` words, and pads the last panel with zeros. `encode` must write
    /// the words and the extras of a panel's rows; the extras are returned, too. `memory` may come
    /// from panels that are no longer used.
    pub fn load<E: Clone + Default + Send>(
        rows: usize,
        width: usize,
        steps: usize,
        memory: Vec<T>,
        encode: impl Fn(Range<usize>, &mut [T], &mut [E]) -> Result<()> + Sync,
    ) -> Result<(Self, Vec<E>)> {
        let (mut panels, mut extras) =
            (Self::new(rows, width, steps, memory)?, full(rows, E::default())?);
        let parts = panels.par_iter_mut().zip(extras.par_chunks_mut(width)).enumerate();
        parts.try_for_each(|(p, (panel, extras))| {
            encode(p * width..p * width + extras.len(), panel, extras)
        })?;
        Ok((panels, extras))
    }

    /// Makes panels. Only padding is zero if there is enough `memory`.
    pub fn new(rows: usize, width: usize, steps: usize, memory: Vec<T>) -> Result<Self> {
        let (panels, words_per_panel) = (rows.div_ceil(width), steps * width);
        let len = panels * words_per_panel + LINE / size_of::<T>();
        let mut words = if len <= memory.len() { memory } else { zeros(len)? };
        let first = words.as_ptr().align_offset(LINE);
        if !rows.is_multiple_of(width) {
            words[first..][(panels - 1) * words_per_panel..panels * words_per_panel]
                .fill(T::default());
        }
        Ok(Panels { words, first, words_per_panel })
    }

    /// Returns the memory, for other panels.
    pub fn into_memory(self) -> Vec<T> {
        self.words
    }

    fn par_iter_mut(&mut self) -> impl IndexedParallelIterator<Item = &mut [T]> {
        self.words[self.first..].par_chunks_exact_mut(self.words_per_panel)
    }

    pub fn panel_mut(&mut self, p: usize) -> &mut [T] {
        &mut self.words[self.first + p * self.words_per_panel..][..self.words_per_panel]
    }

    pub fn panel(&self, p: usize) -> &[T] {
        self.panels(p..p + 1)
    }

    pub fn panels(&self, panels: Range<usize>) -> &[T] {
        &self.words[self.first..]
            [panels.start * self.words_per_panel..panels.end * self.words_per_panel]
    }
}
