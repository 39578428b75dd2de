//! A sort by few small numbers.

use crate::error::Result;
use crate::memory::Grow;

/// Sorts items by the number of their part, below `parts`. Items of a part keep their order; `ends` receives the end of each part's.
#[inline(always)]
pub(crate) fn sort_by_part<T: Copy>(
    items: impl Iterator<Item = T> + Clone,
    parts: usize,
    part: impl Fn(&T) -> usize,
    ends: &mut Vec<u32>,
    sorted: &mut Vec<T>,
) -> Result<()> {
    ends.clear();
    ends.try_resize(parts + 1, 0)?;
    items.clone().for_each(|item| ends[part(&item) + 1] += 1);
    (0..parts).for_each(|i| ends[i + 1] += ends[i]);
    match items.clone().next() {
        Some(any) => sorted.try_resize(ends[parts] as usize, any)?,
        None => sorted.clear(),
    }
    for item in items {
        let end = &mut ends[part(&item)];
        sorted[*end as usize] = item;
        *end += 1;
    }
    ends.truncate(parts);
    Ok(())
}
