//! A list of gallery items for each query.

use crate::error::{Result, argument};

/// Items for each query, in one array.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    /// The start of each query's items, and the end of the last's.
    pub offsets: &'a [u64],
    /// The items, ascending and distinct for each query.
    pub items: &'a [u32],
}

impl<'a> Lists<'a> {
    /// Returns the number of queries.
    #[expect(clippy::len_without_is_empty, reason = "an offset ends the last query, so none is empty")]
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Checks that there is a list for each query, and that it names items of the gallery in order.
    pub(crate) fn check(&self, name: &str, queries: usize, gallery: usize) -> Result<()> {
        let (first, last) = (self.offsets.first(), self.offsets.last());
        let delimits = first == Some(&0) && last == Some(&(self.items.len() as u64)) && self.offsets.is_sorted();
        if self.offsets.len() != queries + 1 || !delimits {
            return argument(format!(
                "{name} has {} offsets that don't delimit {} items for {queries} queries; expected {} ascending numbers from 0",
                self.offsets.len(),
                self.items.len(),
                queries + 1
            ));
        }
        let valid = |items: &[u32]| {
            items.is_sorted_by(|a, b| a < b) && items.last().is_none_or(|last| (*last as usize) < gallery)
        };
        match (0..queries).find(|q| !valid(self.of(*q))) {
            Some(q) => argument(format!(
                "{name} lists {:?} for query {q}; expected ascending and distinct items below {gallery}",
                self.of(q)
            )),
            None => Ok(()),
        }
    }

    /// Returns a query's items.
    pub(crate) fn of(&self, query: usize) -> &'a [u32] {
        &self.items[self.offsets[query] as usize..self.offsets[query + 1] as usize]
    }

    /// Whether an item is listed for a query.
    pub(crate) fn holds(&self, query: usize, item: u32) -> bool {
        self.of(query).binary_search(&item).is_ok()
    }
}
