//! A list of gallery items per query.

use std::ops::Range;

use crate::error::{Result, argument};

/// Items per query, stored in a single array. Queries can share a list.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    /// The start of the items per list, then the end of the last list.
    pub offsets: &'a [u64],
    /// The items, which must be sorted and distinct per list.
    pub items: &'a [u32],
    /// The index of the list per query, or `None` if query i has list i.
    pub of_queries: Option<&'a [u32]>,
}

impl<'a> Lists<'a> {
    /// Returns the number of queries.
    #[expect(clippy::len_without_is_empty, reason = "callers always have queries")]
    pub fn len(&self) -> usize {
        self.of_queries.map_or(self.offsets.len().saturating_sub(1), <[u32]>::len)
    }

    /// Checks that each of the `queries` has a list, and that lists are sorted and contain only
    /// gallery items.
    pub(crate) fn check(&self, name: &str, queries: usize, gallery: usize) -> Result<()> {
        let (ends, all) = ((self.offsets.first(), self.offsets.last()), self.items.len());
        let delimits = ends == (Some(&0), Some(&(all as u64))) && self.offsets.is_sorted();
        let lists = self.offsets.len().saturating_sub(1);
        let exist = self.of_queries.is_none_or(|of| of.iter().all(|list| (*list as usize) < lists));
        if self.len() != queries || !delimits || !exist {
            return argument(format!(
                "{name} has lists for {} queries, with {} offsets for {all} items; expected lists \
                 for {queries} queries, and ascending offsets from 0 to {all}",
                self.len(),
                self.offsets.len(),
            ));
        }
        let valid = |items: &[u32]| {
            items.is_sorted_by(|a, b| a < b)
                && items.last().is_none_or(|last| (*last as usize) < gallery)
        };
        match (0..lists).map(|list| &self.items[self.range(list)]).find(|items| !valid(items)) {
            Some(items) => argument(format!(
                "{name} lists {items:?}; expected distinct items below {gallery}, in ascending \
                 order"
            )),
            None => Ok(()),
        }
    }

    fn range(&self, list: usize) -> Range<usize> {
        self.offsets[list] as usize..self.offsets[list + 1] as usize
    }

    /// Returns where a query's items are in the array.
    pub(crate) fn places(&self, query: usize) -> Range<usize> {
        self.range(self.of_queries.map_or(query, |of| of[query] as usize))
    }

    /// Returns a query's items.
    pub(crate) fn of(&self, query: usize) -> &'a [u32] {
        &self.items[self.places(query)]
    }

    /// Returns the only list, if all queries share it.
    pub(crate) fn of_all(&self) -> Option<&'a [u32]> {
        (self.of_queries.is_some() && self.offsets.len() == 2).then_some(self.items)
    }

    /// Whether `item` is listed for `query`.
    pub(crate) fn holds(&self, query: usize, item: u32) -> bool {
        self.of(query).binary_search(&item).is_ok()
    }
}
