//! Thresholds guessed from a random sample of the gallery, for many neighbours.
//!
//! The k-th nearest of the items seen so far is far below the k-th nearest of all until most are seen, so a search that starts by it
//! lists several times k items. Of a sample, the value that a little more than the expected share of k exceeds is below that of the k-th
//! nearest item, but for a few queries in a thousand. A search of these notices it, and compares them with all items.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Kernel, MAX_TILE, Tiles, Word};
use crate::memory::{collect, ready, zeros};
use crate::random::Random;
use crate::rows::narrow_panels::{NarrowPanels, multiply};
use crate::rows::packing::{Axis, Extent, Packing};
use crate::rows::space::Space;
use crate::screen::block::Block;
use crate::screen::rounding::round_down;
use crate::side::Side;
use crate::sizes::Sizes;

/// Neighbours that a sample contains on average, unless it were too large a part of the gallery.
const SAMPLED_NEIGHBOURS: usize = 128;
/// Standard deviations of the sampled neighbours' number by which a guess is lower than expected.
const DEVIATIONS: f64 = 3.0;
/// One of so many lanes of a sample holds a neighbour at most, where several items share a lane.
const LANES_PER_NEIGHBOUR: usize = 8;

/// A packed sample. Its panels form groups, and each lane of a group keeps the largest value of its items.
pub(super) struct Guess {
    panels: NarrowPanels,
    worst: Extent,
    count: usize,
    groups: usize,
    /// Of the lanes' largest values, the rank of the guess, from 0.
    rank: usize,
}

impl Guess {
    /// Draws and packs a sample for k neighbours; `None` if it were less than a panel.
    pub fn draw<S: Space>(space: &S, packing: &impl Packing, k: usize, sizes: &Sizes) -> Result<Option<Guess>> {
        let (kernel, items, steps) = (space.kernel(), space.rows(Side::Gallery), packing.steps());
        let width = kernel.tiles(packing.word()).columns;
        let count = (SAMPLED_NEIGHBOURS * items / k).min(items / sizes.guess_spacing.max(1)) / width;
        if count == 0 {
            return Ok(None);
        }
        let drawn = collect(Random::new(4).spread(items, count * width))?;
        // A product of codes takes columns that are arranged together.
        let is_code = packing.word() == Word::Bits;
        let axis = if is_code { Axis::Rows } else { Axis::Columns };
        let encode = |lanes: std::ops::Range<usize>, width: usize, panel: &mut [u32], extents: &mut [Extent]| {
            for (lane, &item) in drawn[lanes].iter().enumerate() {
                let extent = &mut extents[lane..=lane];
                packing.encode(Side::Gallery, axis, item..item + 1, width, &mut panel[lane..], extent)?;
            }
            if is_code {
                kernel.arrange_codes(panel);
            }
            Ok(())
        };
        let (panels, extents) = NarrowPanels::load(drawn.len(), width, steps, encode, usize::MAX)?;
        let worst = extents.into_iter().fold(Extent::default(), Extent::max);
        let groups = count.div_ceil((items / (LANES_PER_NEIGHBOUR * k)).max(1));
        let lanes = groups * width;
        let share = 1.0 - (1.0 - k as f64 / items as f64).powf(count as f64 / groups as f64);
        let mean = share * lanes as f64;
        let rank = ((mean + DEVIATIONS * mean.sqrt()) as usize * sizes.guess_percent / 100).min(lanes - 1);
        Ok(Some(Guess { panels, worst, count, groups, rank }))
    }

    /// Calls `take` with each query of a block and its guess.
    pub fn thresholds(
        &self,
        kernel: &Kernel,
        packing: &impl Packing,
        rows: &Block,
        control: &Control,
        take: impl Fn(usize, f32) + Sync,
    ) -> Result<()> {
        let Tiles { rows: height, columns: width, .. } = *kernel.tiles(packing.word());
        let (product, size) = (kernel.product(packing.word()), height * width);
        control.took(|| "thresholds guessed");
        (0..rows.rows.len().div_ceil(height)).into_par_iter().try_for_each_init(
            || Ok((zeros(MAX_TILE)?, zeros(self.groups * size)?, zeros(self.groups * width)?)),
            |buffers, panel| -> Result<()> {
                let (tile, largest, of_row): &mut (Vec<f32>, Vec<f32>, Vec<f32>) = ready(buffers)?;
                largest.fill(f32::NEG_INFINITY);
                for p in 0..self.count {
                    multiply(product, packing.steps(), (rows.panel(panel), self.panels.panel(p)), tile)?;
                    let largest = &mut largest[p % self.groups * size..][..size];
                    kernel.vectorize(|| keep_larger(tile, largest));
                }
                for (row, extent) in rows.extents[panel * height..].iter().take(height).enumerate() {
                    let lines = largest.chunks_exact(width).skip(row).step_by(height);
                    of_row.chunks_exact_mut(width).zip(lines).for_each(|(out, line)| out.copy_from_slice(line));
                    let value = *of_row.select_nth_unstable_by(self.rank, |a, b| b.total_cmp(a)).1;
                    let value = f64::from(value) + packing.offset() - packing.margin(*extent, self.worst);
                    take(rows.rows.start + panel * height + row, round_down(value));
                }
                control.check()
            },
        )
    }
}

#[inline(always)]
fn keep_larger(values: &[f32], largest: &mut [f32]) {
    for (value, most) in values.iter().zip(largest) {
        *most = if value > most { *value } else { *most };
    }
}
