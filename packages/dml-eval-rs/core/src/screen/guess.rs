//! Finds the thresholds of queries in a sample of the gallery, before a screen compares all items.
//!
//! If a search starts with no threshold, it lists a multiple of k items and computes the keys until
//! the lists are full: `knn` of 20,000 x 128 isotropic rows takes twice as long for k = 10. So the
//! threshold is *guessed*: if the sample is expected to contain n of the k nearest, somewhat more
//! than n sampled values exceed the guess. The guess is too high for few queries; searches and
//! counts notice this, and compare these queries with all items.
//!
//! For prefixes, the sample's k-th largest key is used instead, which at least k items reach.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{MAX_TILE, Tiles, Word};
use crate::memory::{Grow, collect, each, zeros};
use crate::random::Random;
use crate::rows::keys::Keys;
use crate::rows::lists::Lists;
use crate::rows::narrow_panels::{NarrowPanels, multiply};
use crate::rows::packing::{Axis, Extent, Packing};
use crate::rows::space::Space;
use crate::screen::block::{Block, Blocks};
use crate::screen::cells::{Cells, Nearness, keep_larger};
use crate::screen::rounding::round_down;
use crate::screen::traverse::Observer;
use crate::side::Side;

/// The expected number of neighbours in a sample, unless the sample would be too large a part of
/// the gallery.
const SAMPLED_NEIGHBOURS: usize = 128;
/// A sample of n items costs n products per query, and with N items, a guess lets about
/// 3 √(k N / n) items pass that aren't neighbours. The sum is least if n is proportional to the
/// cube root of N k. For N = 1,000,000 and k = 100, n is 1.9 % of the gallery.
const SAMPLED_PER_ROOT: f64 = 40.0;
/// If several items share a lane, about one in this number of lanes contains a neighbour.
const LANES_PER_NEIGHBOUR: usize = 8;
/// For prefixes, a sample has at least `LEAST_SAMPLED` items, and `SAMPLED_PER_NEIGHBOUR` items per
/// neighbour.
const LEAST_SAMPLED: usize = 1536;
const SAMPLED_PER_NEIGHBOUR: usize = 64;

/// The threshold to begin with.
pub(crate) enum Start {
    /// A guess of the k-th largest value.
    Value(f32),
    /// A key that at least k items reach: the bounds for values of prefixes are wide.
    Key(f64),
}

/// A sample of panels. The panels form groups; a lane of a group keeps the largest value.
pub(crate) struct Guess {
    /// Packed items that were drawn one by one. `None` for prefixes, which take long to pack:
    /// panels of the gallery are used.
    packed: Option<Block>,
    /// The items that were drawn, in ascending order.
    items: Vec<u32>,
    /// The number of panels, and of the items in them.
    count: usize,
    pub sampled: usize,
    groups: usize,
    /// The rank (from 0) of the threshold among the largest values of the lanes.
    rank: usize,
}

/// Chooses the rank (from 0) of a guess among sampled values. About `mean` of these values belong
/// to neighbours; if more than `rank` do, the guess is too high, and all items are compared. With
/// each rank, about 1 / `ranks` of all items pass in addition. So the cost is least where the
/// probability that exactly `rank` values do (by Poisson) falls below 1 / `ranks`.
fn cheapest_rank(mean: f64, ranks: f64) -> usize {
    let mut rank = 0;
    let mut probability = (-mean).exp();
    while (rank as f64) < mean || probability * ranks > 1.0 {
        rank += 1;
        probability *= mean / rank as f64;
    }
    rank
}

impl Guess {
    /// Draws and packs a sample for k neighbours among the items that are `allowed`. Returns `None`
    /// if there are too few, or if they differ per query.
    pub fn draw<S: Space>(
        space: &S,
        packing: &impl Packing,
        k: usize,
        allowed: Option<Lists<'_>>,
        control: &Control,
    ) -> Result<Option<Guess>> {
        let (kernel, sizes) = (space.kernel(), control.sizes());
        let width = kernel.tiles(packing.word()).columns;
        let allowed = match allowed.map(|lists| lists.of_all()) {
            None => None,
            Some(Some(items)) if !packing.is_sorted() => Some(items),
            Some(_) => return Ok(None),
        };
        let items = allowed.map_or(space.rows(Side::Gallery), <[u32]>::len);
        if k >= items {
            return Ok(None);
        }
        let is_prefix = packing.is_sorted();
        let wanted = if is_prefix {
            LEAST_SAMPLED.max(SAMPLED_PER_NEIGHBOUR * k)
        } else {
            let enough = SAMPLED_PER_ROOT * (items as f64 * k as f64).cbrt();
            (SAMPLED_NEIGHBOURS * items / k).min(enough as usize)
        };
        let Some(spaced) = items.checked_div(sizes.guess_spacing) else { return Ok(None) };
        // In a small gallery, most items would be listed without a guess.
        let count = wanted.min(spaced.max(width.min(items / 2))) / width;
        let groups = if is_prefix {
            (2 * k).div_ceil(width)
        } else {
            count.div_ceil((items / (LANES_PER_NEIGHBOUR * k)).max(1))
        };
        if count < groups || count == 0 {
            return Ok(None);
        }
        // Filters don't matter: a sample is expected to contain the same share of the k nearest
        // items that they leave.
        let rank = if is_prefix {
            k - 1
        } else {
            let share = 1.0 - (1.0 - k as f64 / items as f64).powf(count as f64 / groups as f64);
            let mean = share * (groups * width) as f64;
            let rank = cheapest_rank(mean, (count * width) as f64 * (1.0 - share));
            rank * sizes.guess_percent / 100
        };
        let rank = rank.min(groups * width - 1);
        let mut guess =
            Guess { packed: None, items: Vec::new(), count, sampled: count * width, groups, rank };
        if is_prefix {
            return Ok(Some(guess));
        }
        let item = |place: usize| allowed.map_or(place as u32, |allowed| allowed[place]);
        let drawn = collect(Random::new(4).spread(items, count * width).map(item))?;
        // Columns of codes are arranged after all lanes are packed, so pack the lanes like rows
        // first.
        let is_code = packing.word() == Word::Bits;
        let axis = if is_code { Axis::Rows } else { Axis::Columns };
        let encode =
            |lanes: Range<usize>, width: usize, panel: &mut [u32], extents: &mut [Extent]| {
                for (lane, &item) in drawn[lanes].iter().enumerate() {
                    let (extent, item) = (&mut extents[lane..=lane], item as usize);
                    packing.encode(
                        Side::Gallery,
                        axis,
                        item..item + 1,
                        width,
                        &mut panel[lane..],
                        extent,
                    )?;
                }
                if is_code {
                    kernel.arrange_codes(panel);
                }
                Ok(())
            };
        let (panels, extents) = NarrowPanels::load(
            drawn.len(),
            width,
            packing.steps(),
            encode,
            (usize::MAX, Vec::new()),
        )?;
        guess.packed = Some(Block::new(0..drawn.len(), panels, extents)?);
        guess.items = drawn;
        Ok(Some(guess))
    }

    /// Calls `take` with the queries in a row block and the thresholds. Values of at least `below`
    /// don't matter. `is_open` tells that no items but the queries themselves are excluded.
    pub fn starts<S: Space>(
        &self,
        space: &S,
        packing: &impl Packing,
        Blocks { rows, columns }: Blocks<'_>,
        (observer, below, is_open): (&impl Observer, impl Fn(usize) -> f64 + Sync, bool),
        control: &Control,
        take: impl Fn(usize, Start) + Sync + Send,
    ) -> Result<()> {
        let kernel = space.kernel();
        let Tiles { rows: height, columns: width, .. } = *kernel.tiles(packing.word());
        let (product, size) = (kernel.product(packing.word()), height * width);
        let is_prefix = self.packed.is_none();
        let cells =
            if is_prefix && is_open { Cells::of(columns, packing, kernel, control)? } else { None };
        control.took(|| match (&cells, is_prefix) {
            (Some(_), _) => "thresholds from cells",
            (None, true) => "thresholds sampled",
            (None, false) => "thresholds guessed",
        });
        let lanes = self.packed.as_ref().unwrap_or(columns);
        let place_of = |item: &u32| match is_prefix {
            true => (*item as usize).checked_sub(columns.rows.start),
            false => self.items.binary_search(item).ok(),
        };
        let group = |item: usize| observer.group(Side::Gallery, item);
        let groups = match is_prefix {
            true => collect(columns.rows.clone().map(group))?,
            false => collect(self.items.iter().map(|item| group(*item as usize)))?,
        };
        let drawn = Random::new(4).spread(lanes.rows.len() / width, self.count);
        let drawn = collect(drawn.map(|panel| panel as u32))?;
        each(
            (0..rows.rows.len().div_ceil(height)).into_par_iter(),
            || {
                // Allocate a tile, the largest value per lane with its panel, and the largest
                // values for one row.
                let (largest, of_row) = (zeros(self.groups * size)?, zeros(self.groups * width)?);
                let origins = zeros(if is_prefix { self.groups * size } else { 0 })?;
                Ok((
                    zeros(MAX_TILE)?,
                    (largest, origins),
                    of_row,
                    (Vec::new(), Vec::new()),
                    <(Nearness, Vec<_>, Keys)>::default(),
                ))
            },
            |(tile, (largest, origins), of_row, (limits, excluded), (nearness, found, keys)),
             panel| {
                let first = rows.rows.start + panel * height;
                let queries = first..rows.rows.end.min(first + height);
                let row_panel = rows.panel(panel);
                limits.clear();
                limits.try_extend(queries.clone().map(|query| {
                    let margin = packing.margin(rows.extents[query - rows.rows.start], lanes.worst);
                    let most = round_down(below(query) - packing.offset() - margin);
                    (observer.group(Side::Query, query), most)
                }))?;
                let panels = match &cells {
                    // Items in these cells are nearer than a random sample, so half of the panels
                    // suffice.
                    Some(cells) => {
                        cells.nearest(kernel, row_panel, queries.len(), self.count / 2, nearness)?
                    }
                    None => &drawn,
                };
                // Store the panel and the place in a tile of each excluded item.
                excluded.clear();
                for (row, query) in queries.clone().enumerate() {
                    let places = observer.excluded_others(query).iter().filter_map(place_of);
                    excluded.try_extend(
                        places.map(|place| (place / width, row * width + place % width)),
                    )?;
                }
                largest.fill(f32::NEG_INFINITY);
                for (number, &p) in panels.iter().enumerate() {
                    let places = p as usize * width..(p as usize + 1) * width;
                    multiply(product, packing.steps(), (row_panel, lanes.panel(p as usize)), tile)?;
                    let of_lanes = &groups[places.start..lanes.rows.len().min(places.end)];
                    // If only the query is excluded, groups are items, and few tiles contain it.
                    let items = of_lanes[0]..=of_lanes[of_lanes.len() - 1];
                    if !is_open || limits.iter().any(|(own, _)| items.contains(own)) {
                        kernel.vectorize(|| mask(tile.chunks_exact_mut(width), limits, of_lanes));
                    }
                    if !lanes.residual_norms.is_empty() && !rows.residual_norms.is_empty() {
                        let of_rows = &rows.residual_norms[first - rows.rows.start..];
                        let of_lanes = &lanes.residual_norms[places];
                        kernel.vectorize(|| subtract(&mut tile[..size], of_rows, of_lanes));
                    }
                    for (_, at) in excluded.iter().filter(|(of, _)| *of == p as usize) {
                        tile[*at] = f32::NEG_INFINITY;
                    }
                    let of_group = number % self.groups * size..(number % self.groups + 1) * size;
                    let values = &mut largest[of_group.clone()];
                    match origins.get_mut(of_group) {
                        Some(origins) => {
                            kernel.vectorize(|| keep_larger_of(values, origins, tile, p))
                        }
                        None => kernel.vectorize(|| keep_larger(values, tile)),
                    }
                }
                for (row, query) in queries.enumerate() {
                    let lines = largest.chunks_exact(width).skip(row).step_by(height);
                    if is_prefix {
                        found.clear();
                        for (line, origins) in
                            lines.zip(origins.chunks_exact(width).skip(row).step_by(height))
                        {
                            let item = |lane, panel: &u32| {
                                (columns.rows.start + *panel as usize * width + lane) as u32
                            };
                            let of_line = line.iter().zip(origins).enumerate();
                            let of_line =
                                of_line.filter(|(_, (value, _))| **value > f32::NEG_INFINITY);
                            found.try_extend(
                                of_line.map(|(lane, (value, panel))| (*value, item(lane, panel))),
                            )?;
                        }
                        // Use slightly more than k items, because the order by value may differ
                        // from the order by key.
                        let most = self.rank + self.rank / 4 + 2;
                        if found.len() > most {
                            found.select_nth_unstable_by(most - 1, |a, b| b.0.total_cmp(&a.0));
                        }
                        let nearest = found.iter().take(most).map(|(_, item)| *item);
                        keys.compute(space, query, nearest)?;
                        if self.rank < keys.keys.len() {
                            let from_largest = |a: &f64, b: &f64| b.total_cmp(a);
                            let all = &mut keys.keys;
                            let kth = *all.select_nth_unstable_by(self.rank, from_largest).1;
                            take(query, Start::Key(kth));
                        }
                        continue;
                    }
                    let extent = rows.extents[query - rows.rows.start];
                    of_row
                        .chunks_exact_mut(width)
                        .zip(lines)
                        .for_each(|(out, line)| out.copy_from_slice(line));
                    let value = *of_row.select_nth_unstable_by(self.rank, |a, b| b.total_cmp(a)).1;
                    let value =
                        f64::from(value) + packing.offset() - packing.margin(extent, lanes.worst);
                    take(query, Start::Value(round_down(value)));
                }
                control.check()
            },
        )
    }
}

/// Replaces `largest` by the elementwise maximum, and `origins` where `values` was larger, without
/// branches.
#[inline(always)]
fn keep_larger_of(largest: &mut [f32], origins: &mut [u32], values: &[f32], origin: u32) {
    for ((most, from), value) in largest.iter_mut().zip(origins).zip(values) {
        *from = if value > most { origin } else { *from };
        *most = if value > most { *value } else { *most };
    }
}

/// Sets values to −∞ if an item has the query's group, or if the value is not below the query's
/// limit.
#[inline(always)]
fn mask<'a>(lines: impl Iterator<Item = &'a mut [f32]>, limits: &[(u32, f32)], groups: &[u32]) {
    for (line, (group, most)) in lines.zip(limits) {
        for (value, other) in line.iter_mut().zip(groups) {
            *value = if other == group || *value >= *most { f32::NEG_INFINITY } else { *value };
        }
    }
}

/// Subtracts half the width of the bounds from the values in a tile of prefixes.
#[inline(always)]
fn subtract(tile: &mut [f32], rows: &[f64], columns: &[f64]) {
    for (line, row) in tile.chunks_exact_mut(columns.len()).zip(rows) {
        for (value, column) in line.iter_mut().zip(columns) {
            *value -= (row * column) as f32;
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_rank_is_much_cheaper(mean in 0.0f64..130.0, ranks in 0.5f64..1e6) {
            // The expected cost per rank, in units of the cost to compare all items.
            let (mut probability, mut at_most) = ((-mean).exp(), 0.0);
            let mut costs = Vec::new();
            for rank in 0..1000 {
                at_most += probability;
                costs.push(f64::from(rank) / ranks + (1.0 - at_most));
                probability *= mean / f64::from(rank + 1);
            }
            let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
            let rank = cheapest_rank(mean, ranks);
            // Below the mean, half of the guesses would be too high, so no such rank is chosen.
            let is_first = rank == mean.ceil() as usize;
            prop_assert!(is_first || rank as f64 > mean && costs[rank] <= least + 1.01 / ranks);
        }
    }
}
