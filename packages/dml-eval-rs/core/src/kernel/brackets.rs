//! What the products of a task are compared with: brackets, of which an item has none, one, or several.
//!
//! A product above a bracket is counted for it. One within any bracket of its query is listed, and counted for none. So the counts
//! place all products but the few that are near a threshold, and only these cost more than comparisons.

use std::ops::Range;

use crate::error::Result;
use crate::memory::Grow;

/// Thresholds of the rows or of the columns of a tile. Two items with the same `group` are never compared.
#[derive(Clone, Copy)]
pub(crate) struct Thresholds<'a> {
    /// Values below this are ignored.
    pub low: &'a [f32],
    /// Values above this are counted; those from `low` to `high` are listed.
    pub high: &'a [f32],
    pub group: &'a [u32],
}

/// The rows of the largest kernel's tile.
pub(super) const MAX_ROWS: usize = 8;
/// The ends of a bracket that no product reaches.
const IMPASSABLE: f32 = f32::INFINITY;

/// The brackets of some items: the b-th one's ends are at `b * items + item`.
#[derive(Default)]
pub(crate) struct ItemBrackets {
    items: usize,
    /// The most brackets of an item, at least one.
    count: usize,
    low: Vec<f32>,
    high: Vec<f32>,
    /// The lowest end of each item, and of as many beyond the last as a tile has rows.
    lowest: Vec<f32>,
    group: Vec<u32>,
}

impl ItemBrackets {
    /// Starts so many items, none of which has a bracket or is compared with another.
    pub fn reset(&mut self, items: usize) -> Result<()> {
        self.items = items;
        self.count = 1;
        for (ends, len) in [(&mut self.low, items), (&mut self.high, items), (&mut self.lowest, items + MAX_ROWS)] {
            ends.clear();
            ends.try_resize(len, IMPASSABLE)?;
        }
        self.group.clear();
        self.group.try_resize(items, u32::MAX)
    }

    /// Sets an item's group.
    pub fn set_group(&mut self, item: usize, group: u32) {
        self.group[item] = group;
    }

    /// Sets an item's b-th bracket.
    pub fn set(&mut self, item: usize, b: usize, (low, high): (f32, f32)) -> Result<()> {
        if b >= self.count {
            for ends in [&mut self.low, &mut self.high] {
                ends.try_resize((b + 1) * self.items, IMPASSABLE)?;
            }
            self.count = b + 1;
        }
        self.low[b * self.items + item] = low;
        self.high[b * self.items + item] = high;
        self.lowest[item] = self.lowest[item].min(low);
        Ok(())
    }

    /// Returns the most brackets of an item, at least one.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether no product passes.
    pub fn are_impassable(&self) -> bool {
        self.lowest.iter().all(|low| *low == IMPASSABLE)
    }

    pub(super) fn group(&self, item: usize) -> u32 {
        self.group[item]
    }

    /// Returns the lowest ends of so many items from one on; those beyond the last are passed by no product.
    pub fn lowest_from(&self, first: usize, items: usize) -> &[f32] {
        &self.lowest[first..first + items]
    }

    pub(super) fn lowest(&self, item: usize) -> f32 {
        self.lowest[item]
    }

    /// Returns the ends of an item's b-th bracket, which no product reaches if the item has fewer.
    pub(super) fn ends(&self, item: usize, b: usize) -> (f32, f32) {
        (self.low[b * self.items + item], self.high[b * self.items + item])
    }

    /// Returns the brackets of some consecutive items.
    pub(super) fn part(&self, first: usize, items: usize) -> PartBrackets<'_> {
        let range = first..first + items;
        PartBrackets { all: self, group: &self.group[range.clone()], lowest: &self.lowest[range.clone()], range }
    }

    pub(super) fn first(&self, items: Range<usize>) -> Thresholds<'_> {
        Thresholds { low: &self.low[items.clone()], high: &self.high[items.clone()], group: &self.group[items] }
    }
}

/// The brackets of some consecutive items.
pub(super) struct PartBrackets<'a> {
    all: &'a ItemBrackets,
    range: Range<usize>,
    pub group: &'a [u32],
    pub lowest: &'a [f32],
}

impl<'a> PartBrackets<'a> {
    /// Returns the lower ends of each item's b-th bracket.
    pub fn low(&self, b: usize) -> &'a [f32] {
        &self.all.low[b * self.all.items..][self.range.clone()]
    }

    /// Returns the upper ends of each item's b-th bracket.
    pub fn high(&self, b: usize) -> &'a [f32] {
        &self.all.high[b * self.all.items..][self.range.clone()]
    }
}
