//! Brackets: ranges to be compared with a task's products. An item can be given any number of
//! brackets, including 0.
//!
//! Products above a bracket are counted for this bracket. A product within any bracket of a query
//! is listed instead of being counted. So comparisons and counts suffice for all products except
//! the few near a threshold, which cost more time.

use std::ops::Range;

use crate::error::Result;
use crate::memory::Grow;

/// Thresholds for the rows or columns of a tile. Items with the same `group` are never compared.
#[derive(Clone, Copy)]
pub(crate) struct Thresholds<'a> {
    /// Values below this are skipped.
    pub low: &'a [f32],
    /// Values above this are counted; values from `low` to `high` are listed.
    pub high: &'a [f32],
    pub group: &'a [u32],
}

/// The number of rows in the largest tile of any kernel.
pub(super) const MAX_ROWS: usize = 8;
/// Both ends of a bracket that products can't reach.
const IMPASSABLE: f32 = f32::INFINITY;

/// The brackets of some items. The ends of an item's b-th bracket are at `b * items + item`.
#[derive(Default)]
pub(crate) struct ItemBrackets {
    items: usize,
    /// The largest number of brackets per item, at least 1.
    count: usize,
    low: Vec<f32>,
    high: Vec<f32>,
    /// The lowest end per item, then `MAX_ROWS` more ends, so that tiles may extend past the last
    /// item.
    lowest: Vec<f32>,
    group: Vec<u32>,
}

impl ItemBrackets {
    /// Starts with `items` items in a single group. They do not have brackets yet.
    pub fn reset(&mut self, items: usize) -> Result<()> {
        self.items = items;
        self.count = 1;
        for (ends, len) in
            [(&mut self.low, items), (&mut self.high, items), (&mut self.lowest, items + MAX_ROWS)]
        {
            ends.clear();
            ends.try_resize(len, IMPASSABLE)?;
        }
        self.group.clear();
        self.group.try_resize(items, u32::MAX)
    }

    /// Sets the group of `item`.
    pub fn set_group(&mut self, item: usize, group: u32) {
        self.group[item] = group;
    }

    /// Makes room for a further bracket per item.
    #[cold]
    pub fn grow(&mut self) -> Result<()> {
        for ends in [&mut self.low, &mut self.high] {
            ends.try_resize((self.count + 1) * self.items, IMPASSABLE)?;
        }
        self.count += 1;
        Ok(())
    }

    /// Sets the b-th bracket of `item`. There must be room for it.
    pub fn set(&mut self, item: usize, b: usize, (low, high): (f32, f32)) {
        self.low[b * self.items + item] = low;
        self.high[b * self.items + item] = high;
        self.lowest[item] = self.lowest[item].min(low);
    }

    /// Returns the largest number of brackets per item, at least 1.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Whether no product can reach a bracket.
    pub fn are_impassable(&self) -> bool {
        self.lowest.iter().all(|low| *low == IMPASSABLE)
    }

    pub(super) fn group(&self, item: usize) -> u32 {
        self.group[item]
    }

    /// Returns the lowest ends of `items` items from `first` on. No product reaches the ends after
    /// the last item.
    pub fn lowest_from(&self, first: usize, items: usize) -> &[f32] {
        &self.lowest[first..first + items]
    }

    pub(super) fn lowest(&self, item: usize) -> f32 {
        self.lowest[item]
    }

    /// Returns the ends of an item's b-th bracket. If the item is given fewer brackets, products
    /// will not reach these ends.
    pub(super) fn ends(&self, item: usize, b: usize) -> (f32, f32) {
        (self.low[b * self.items + item], self.high[b * self.items + item])
    }

    /// Returns the brackets of `items` items from `first` on.
    pub(super) fn part(&self, first: usize, items: usize) -> PartBrackets<'_> {
        let range = first..first + items;
        PartBrackets {
            all: self,
            group: &self.group[range.clone()],
            lowest: &self.lowest[range.clone()],
            range,
        }
    }

    pub(super) fn first(&self, items: Range<usize>) -> Thresholds<'_> {
        Thresholds {
            low: &self.low[items.clone()],
            high: &self.high[items.clone()],
            group: &self.group[items],
        }
    }
}

/// The brackets of a range of items.
pub(super) struct PartBrackets<'a> {
    all: &'a ItemBrackets,
    range: Range<usize>,
    pub group: &'a [u32],
    pub lowest: &'a [f32],
}

impl<'a> PartBrackets<'a> {
    /// Returns the lower ends of the items' b-th brackets.
    pub fn low(&self, b: usize) -> &'a [f32] {
        &self.all.low[b * self.all.items..][self.range.clone()]
    }

    /// Returns the upper ends of the items' b-th brackets.
    pub fn high(&self, b: usize) -> &'a [f32] {
        &self.all.high[b * self.all.items..][self.range.clone()]
    }
}
