//! The first threshold of each query, from a sample of the gallery, before all of it is screened.
//!
//! A search that starts without a threshold lists several times k items until its lists are full, and computes their keys. The k-th
//! largest lower bound of a sample is a threshold, since these are bounds of k different items. Without it `knn` of 20,000 x 128
//! isotropic rows takes 2.0 times as long for k = 10.
//!
//! For many neighbours (from `guessed_neighbours` on) a *guess* lists fewer: of a sample, the value that a little more than the expected
//! share of the k nearest exceeds is below that of the k-th nearest item, but for a few queries in a thousand. The search notices, and
//! compares these queries with all items. For k = 1,000 of the same rows it is 2.0 times as fast as the k-th of the sample
//! (`benchmarks/evaluator/cliffs.py rows --only knn`).

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Kernel, MAX_TILE, Tiles, Word};
use crate::memory::{Grow, collect, each, zeros};
use crate::random::Random;
use crate::rows::narrow_panels::{NarrowPanels, multiply};
use crate::rows::packing::{Axis, Extent, Packing};
use crate::rows::space::Space;
use crate::screen::block::{Block, Blocks};
use crate::screen::rounding::round_down;
use crate::search::cells::{Cells, Nearness, keep_larger};
use crate::search::filter::Filter;
use crate::side::Side;

/// Neighbours that a sample contains on average, unless it were too large a part of the gallery.
const SAMPLED_NEIGHBOURS: usize = 128;
/// Standard deviations of the sampled neighbours' number by which a guess is lower than expected.
const DEVIATIONS: f64 = 3.0;
/// One of so many lanes of a sample holds a neighbour at most, where several items share a lane.
const LANES_PER_NEIGHBOUR: usize = 8;
/// Items of a sample without a guess: the least, and for each neighbour.
const LEAST_SAMPLED: usize = 1536;
const SAMPLED_PER_NEIGHBOUR: usize = 64;

/// A packed sample. Its panels form groups, and each lane of a group keeps the largest value of its items.
pub(super) struct Guess {
    packed: Block,
    /// The items of the lanes, ascending.
    items: Vec<u32>,
    /// Their labels, if items of a query's label don't count.
    labels: Vec<u32>,
    /// The number of panels.
    count: usize,
    groups: usize,
    /// Of the lanes' largest values, the rank of the guess, from 0.
    rank: usize,
    /// Whether fewer than k items of the sample may reach the threshold.
    is_guess: bool,
}

impl Guess {
    /// Draws and packs a sample for k neighbours; `None` if the gallery is too small.
    pub fn draw<S: Space>(
        space: &S,
        packing: &impl Packing,
        k: usize,
        filter: &Filter<'_>,
        control: &Control,
    ) -> Result<Option<Guess>> {
        let (kernel, items, steps, sizes) =
            (space.kernel(), space.rows(Side::Gallery), packing.steps(), control.sizes());
        let width = kernel.tiles(packing.word()).columns;
        let is_guess = k >= sizes.guessed_neighbours && !packing.is_sorted() && filter.leaves_out_own_alone();
        let wanted =
            if is_guess { SAMPLED_NEIGHBOURS * items / k } else { LEAST_SAMPLED.max(SAMPLED_PER_NEIGHBOUR * k) };
        let count = wanted.min(items / sizes.guess_spacing.max(1)) / width;
        let groups =
            if is_guess { count.div_ceil((items / (LANES_PER_NEIGHBOUR * k)).max(1)) } else { (2 * k).div_ceil(width) };
        if count < groups || count == 0 {
            return Ok(None);
        }
        let drawn = collect(Random::new(4).spread(items, count * width).map(|item| item as u32))?;
        // A product of codes takes columns that are arranged together.
        let is_code = packing.word() == Word::Bits;
        let axis = if is_code { Axis::Rows } else { Axis::Columns };
        let encode = |lanes: Range<usize>, width: usize, panel: &mut [u32], extents: &mut [Extent]| {
            for (lane, &item) in drawn[lanes].iter().enumerate() {
                let (extent, item) = (&mut extents[lane..=lane], item as usize);
                packing.encode(Side::Gallery, axis, item..item + 1, width, &mut panel[lane..], extent)?;
            }
            if is_code {
                kernel.arrange_codes(panel);
            }
            Ok(())
        };
        let (panels, extents) = NarrowPanels::load(drawn.len(), width, steps, encode, usize::MAX)?;
        let packed = Block::new(0..drawn.len(), panels, extents)?;
        let lanes = groups * width;
        let share = 1.0 - (1.0 - k as f64 / items as f64).powf(count as f64 / groups as f64);
        let mean = share * lanes as f64;
        let rank =
            if is_guess { (mean + DEVIATIONS * mean.sqrt()) as usize * sizes.guess_percent / 100 } else { k - 1 };
        let labels = match filter.labels {
            Some((_, labels)) => collect(drawn.iter().map(|item| labels[*item as usize]))?,
            None => Vec::new(),
        };
        Ok(Some(Guess { packed, items: drawn, labels, count, groups, rank: rank.min(lanes - 1), is_guess }))
    }

    /// Calls `take` with each query of a row block and its threshold.
    pub fn thresholds(
        &self,
        kernel: &Kernel,
        packing: &impl Packing,
        Blocks { rows, columns }: Blocks<'_>,
        (filter, below): (&Filter<'_>, impl Fn(usize) -> f64 + Sync),
        control: &Control,
        take: impl Fn(usize, f32) + Sync + Send,
    ) -> Result<()> {
        let Tiles { rows: height, columns: width, .. } = *kernel.tiles(packing.word());
        let (product, size) = (kernel.product(packing.word()), height * width);
        let may_adjoin = packing.is_sorted() && self.labels.is_empty() && filter.below.is_none();
        let cells = if may_adjoin { Cells::of(columns, packing, kernel, control)? } else { None };
        control.took(|| match (&cells, self.is_guess) {
            (Some(_), _) => "thresholds from cells",
            (None, true) => "thresholds guessed",
            (None, false) => "thresholds sampled",
        });
        let lanes = if cells.is_some() { columns } else { &self.packed };
        let place_of = |item: &u32| match cells {
            Some(_) => (*item as usize).checked_sub(columns.rows.start),
            None => self.items.binary_search(item).ok(),
        };
        let all = collect(0..self.count as u32)?;
        each(
            (0..rows.rows.len().div_ceil(height)).into_par_iter(),
            || {
                let (largest, of_row) = (zeros(self.groups * size)?, zeros(self.groups * width)?);
                Ok((zeros(MAX_TILE)?, largest, of_row, Vec::new(), Nearness::default()))
            },
            |(tile, largest, of_row, left_out, nearness), panel| {
                let first = rows.rows.start + panel * height;
                let queries = first..rows.rows.end.min(first + height);
                let row_panel = rows.panel(panel);
                let panels = match &cells {
                    Some(cells) => cells.nearest(kernel, row_panel, queries.len(), self.count, nearness)?,
                    None => &all,
                };
                // Items that don't count: their panels, and their places in a tile.
                left_out.clear();
                for (row, query) in queries.clone().enumerate() {
                    let own = filter.own.of(query).map(|own| own as u32);
                    let places = own.iter().chain(filter.left_out(query)).filter_map(place_of);
                    left_out.try_extend(places.map(|place| (place / width, row * width + place % width)))?;
                }
                largest.fill(f32::NEG_INFINITY);
                for (number, &p) in panels.iter().enumerate() {
                    let p = p as usize;
                    multiply(product, packing.steps(), (row_panel, lanes.panel(p)), tile)?;
                    if !lanes.rests.is_empty() || !self.labels.is_empty() || filter.below.is_some() {
                        for (line, query) in tile.chunks_exact_mut(width).zip(queries.clone()) {
                            let (extent, rest) =
                                (rows.extents[query - rows.rows.start], rows.rests.get(query - rows.rows.start));
                            let margin = packing.margin(extent, lanes.worst);
                            let most = round_down(below(query) - packing.offset() - margin);
                            let rests = rest.map(|rest| (2.0 * rest, &lanes.rests[p * width..][..width]));
                            let labels =
                                filter.labels.map(|(queries, _)| (queries[query], &self.labels[p * width..][..width]));
                            kernel.vectorize(|| mask(line, labels, rests, most));
                        }
                    }
                    for (_, at) in left_out.iter().filter(|(of, _)| *of == p) {
                        tile[*at] = f32::NEG_INFINITY;
                    }
                    let largest = &mut largest[number % self.groups * size..][..size];
                    kernel.vectorize(|| keep_larger(largest, tile));
                }
                for (row, query) in queries.enumerate() {
                    let extent = rows.extents[query - rows.rows.start];
                    let lines = largest.chunks_exact(width).skip(row).step_by(height);
                    of_row.chunks_exact_mut(width).zip(lines).for_each(|(out, line)| out.copy_from_slice(line));
                    let value = *of_row.select_nth_unstable_by(self.rank, |a, b| b.total_cmp(a)).1;
                    let value = f64::from(value) + packing.offset() - packing.margin(extent, lanes.worst);
                    take(query, round_down(value));
                }
                control.check()
            },
        )
    }
}

/// Sets the values of items with the query's label, and values from `most` on, to −∞, and subtracts the width of the others' bounds.
#[inline(always)]
fn mask(values: &mut [f32], labels: Option<(u32, &[u32])>, rests: Option<(f64, &[f64])>, most: f32) {
    for value in &mut *values {
        *value = if *value < most { *value } else { f32::NEG_INFINITY };
    }
    if let Some((own, labels)) = labels {
        for (value, label) in values.iter_mut().zip(labels) {
            *value = if *label == own { f32::NEG_INFINITY } else { *value };
        }
    }
    if let Some((rest, rests)) = rests {
        for (value, of_item) in values.iter_mut().zip(rests) {
            *value -= (rest * of_item) as f32;
        }
    }
}
