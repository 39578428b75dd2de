//! Computes the keys of a query's items in the buffers of a thread.

use crate::error::Result;
use crate::memory::Grow;
use crate::rows::space::{Scratch, Space};

/// Buffers that a thread uses for keys.
#[derive(Default)]
pub(crate) struct Keys {
    pairs: Vec<(u32, u32)>,
    pub keys: Vec<f64>,
    scratch: Scratch,
}

impl Keys {
    /// Lists the pairs, and reserves memory for a number per pair.
    fn begin(&mut self, query: usize, items: impl Iterator<Item = u32>) -> Result<()> {
        self.pairs.clear();
        self.pairs.try_extend(items.map(|item| (query as u32, item)))?;
        self.keys.clear();
        self.keys.make_room(self.pairs.len())
    }

    /// Computes the keys of `items`.
    pub fn compute<S: Space>(
        &mut self,
        space: &S,
        query: usize,
        items: impl Iterator<Item = u32>,
    ) -> Result<&[f64]> {
        self.begin(query, items)?;
        space.keys(&self.pairs, &mut self.scratch, &mut self.keys)?;
        Ok(&self.keys)
    }

    /// Iterates over items and keys (or scores) as last computed.
    pub fn with_items(&self) -> impl Iterator<Item = (u32, f64)> {
        self.pairs.iter().map(|pair| pair.1).zip(self.keys.iter().copied())
    }

    /// Computes the scores of `items`.
    pub fn compute_scores<S: Space>(
        &mut self,
        space: &S,
        query: usize,
        items: impl Iterator<Item = u32>,
    ) -> Result<&[f64]> {
        self.begin(query, items)?;
        space.scores(&self.pairs, &mut self.scratch, &mut self.keys)?;
        Ok(&self.keys)
    }
}
