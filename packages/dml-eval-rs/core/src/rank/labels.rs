//! Labels of both sides, and the part of a gallery whose negatives are counted.

use crate::error::{Result, argument};
use crate::rank::partial_counts::PartialCounts;
use crate::rows::space::Space;
use crate::side::Side;

/// Dense label codes of both sides, one for each row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Labels<'a> {
    pub queries: &'a [u32],
    pub gallery: &'a [u32],
}

impl<'a> Labels<'a> {
    /// Checks that each row of the space has a label.
    pub fn new<S: Space>(space: &S, queries: &'a [u32], gallery: &'a [u32]) -> Result<Self> {
        let rows = (space.rows(Side::Query), space.rows(Side::Gallery));
        if queries.len() != rows.0 {
            return argument(format!("labels has {} entries; expected {}, one for each query", queries.len(), rows.0));
        }
        if gallery.len() != rows.1 {
            return argument(format!(
                "gallery_labels has {} entries; expected {}, one for each gallery row",
                gallery.len(),
                rows.1
            ));
        }
        Ok(Labels { queries, gallery })
    }
}

/// A count to complete: the negatives of some queries in a part of a gallery.
#[derive(Clone, Copy)]
pub(crate) struct CountJob<'a> {
    pub counts: &'a PartialCounts,
    /// The query of the space that the counts begin with.
    pub first_query: usize,
    pub labels: Labels<'a>,
    /// The index, in the whole gallery, of this part's first item.
    pub first_item: u64,
}

impl CountJob<'_> {
    /// Returns the index in the whole gallery of an item of this part.
    pub fn gallery_index(&self, item: u32) -> u64 {
        self.first_item + u64::from(item)
    }
}
