//! A stable counting sort, for items with small numbers.

use crate::error::Result;
use crate::memory::Grow;

/// Sorts items by part, a number below `parts`. The order within a part does not change. `ends`
/// receives the ends of the parts.
#[inline(always)]
pub(crate) fn sort_by_part<T: Copy>(
    items: impl Iterator<Item = T> + Clone,
    parts: usize,
    part: impl Fn(&T) -> usize,
    ends: &mut Vec<u32>,
    sorted: &mut Vec<T>,
) -> Result<()> {
    ends.clear();
    ends.try_resize(parts, 0)?;
    let starts = &mut ends[..];
    items.clone().for_each(|item| starts[part(&item)] += 1);
    // Keep the sum in a register, because a sum in memory would have to wait for the last store.
    let mut before = 0;
    for start in &mut *starts {
        (*start, before) = (before, before + *start);
    }
    match items.clone().next() {
        Some(any) => sorted.try_resize(before as usize, any)?,
        None => sorted.clear(),
    }
    let sorted = &mut sorted[..];
    items.for_each(|item| {
        let start = &mut starts[part(&item)];
        let at = *start as usize;
        // First, so that the next load of a start needn't wait for the store of the item.
        *start += 1;
        sorted[at] = item;
    });
    Ok(())
}
