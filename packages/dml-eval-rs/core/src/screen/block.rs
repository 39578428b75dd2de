//! Blocks of packed rows.

use std::ops::Range;

use crate::error::Result;
use crate::memory::zeros;
use crate::rows::narrow_panels::{NarrowPanels, Panel};
use crate::rows::space::{Extent, Space};
use crate::side::Side;

/// Some rows of one side, packed for the products, with the sizes that bound their errors.
pub(crate) struct Block {
    pub rows: Range<usize>,
    /// The largest of each size of an extent.
    pub worst: Extent,
    pub extents: Vec<Extent>,
    /// The biases of the extents in float32, padded to whole panels.
    pub biases: Vec<f32>,
    panels: NarrowPanels,
}

impl Block {
    /// Packs `rows` into panels of `width` lanes.
    pub fn load<S: Space>(space: &S, side: Side, rows: Range<usize>, width: usize) -> Result<Block> {
        let (panels, extents) = NarrowPanels::load(rows.len(), width, space.steps(), |row, scratch, words| {
            space.encode(side, rows.start + row, scratch, words)
        })?;
        let worst = extents.iter().copied().fold(Extent::default(), Extent::max);
        let mut biases: Vec<f32> = zeros(rows.len().next_multiple_of(width))?;
        biases.iter_mut().zip(&extents).for_each(|(bias, extent)| *bias = extent.bias as f32);
        Ok(Block { rows, worst, extents, biases, panels })
    }

    pub fn panel(&self, p: usize) -> Panel<'_> {
        self.panels.panel(p)
    }
}
