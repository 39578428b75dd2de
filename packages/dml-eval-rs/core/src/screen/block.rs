//! Blocks of packed rows.

use std::ops::Range;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Word;
use crate::memory::collect;
use crate::rows::narrow_panels::{NarrowPanels, Panel};
use crate::rows::packing::{Axis, Extent, Packing};
use crate::rows::rounded_rows::RoundedRows;
use crate::side::Side;

/// Some rows of one side, packed for products, with the extents that bound the errors.
pub(crate) struct Block {
    pub rows: Range<usize>,
    /// The elementwise maximum of all extents.
    pub worst: Extent,
    pub extents: Vec<Extent>,
    /// The residual norms of the extents, or an empty list if all are 0.
    pub residual_norms: Vec<f64>,
    panels: NarrowPanels,
    /// The rows rounded to bytes, if the kernel compares these.
    pub rounded: Option<RoundedRows>,
}

/// The memory of a block that is no longer used. Fresh memory takes longer to pack, because the
/// system clears it.
#[derive(Default)]
pub(crate) struct Memory {
    panels: Vec<u32>,
    rounded: Vec<u32>,
}

impl Block {
    /// Packs `rows` for an axis of a tile into panels of `width` lanes, padded with zeros.
    pub fn load(
        packing: &impl Packing,
        (side, axis): (Side, Axis),
        rows: Range<usize>,
        width: usize,
        memory: Memory,
        control: &Control,
    ) -> Result<Block> {
        let start = rows.start;
        let encode = |rows: Range<usize>,
                      lanes: usize,
                      panel: &mut [u32],
                      extents: &mut [Extent]| {
            packing.encode(side, axis, start + rows.start..start + rows.end, lanes, panel, extents)
        };
        // Products of int16 rows and of codes require full panels. These rows are never long.
        let may_be_narrow = matches!(packing.word(), Word::Float32 | Word::BFloat16Pair);
        let narrow_from =
            if may_be_narrow { control.sizes().narrow_panel_words } else { usize::MAX };
        let (panels, extents) = NarrowPanels::load(
            rows.len(),
            width,
            packing.steps(),
            encode,
            (narrow_from, memory.panels),
        )?;
        if panels.ends_narrow() {
            control.took(|| "narrow panel");
        }
        let shape = (rows.len(), width, packing.steps());
        let round = |kernel| RoundedRows::new(kernel, &panels, axis, shape, memory.rounded);
        let rounded = packing.rounding().map(round).transpose()?;
        Ok(Block { rounded, ..Block::new(rows, panels, extents)? })
    }

    /// Makes a block from packed rows.
    pub fn new(rows: Range<usize>, panels: NarrowPanels, extents: Vec<Extent>) -> Result<Block> {
        let worst = extents.iter().copied().fold(Extent::default(), Extent::max);
        let residual_norms = if worst.residual_norm > 0.0 {
            collect(extents.iter().map(|extent| extent.residual_norm))?
        } else {
            Vec::new()
        };
        Ok(Block { rows, worst, extents, residual_norms, panels, rounded: None })
    }

    /// Returns the memory, so that the next block can use it.
    pub fn into_memory(self) -> Memory {
        let rounded = self.rounded.map_or_else(Vec::new, RoundedRows::into_memory);
        Memory { panels: self.panels.into_memory(), rounded }
    }

    pub fn panel(&self, p: usize) -> Panel<'_> {
        self.panels.panel(p)
    }
}

/// Packed rows and columns.
#[derive(Clone, Copy)]
pub(crate) struct Blocks<'a> {
    pub rows: &'a Block,
    pub columns: &'a Block,
}
