//! The gallery item that a query is itself.

use crate::error::{Result, argument};

/// Each query's own item in the whole gallery, which its ranking leaves out.
#[derive(Clone, Copy, Debug)]
pub enum OwnItem<'a> {
    /// None: queries and gallery are different items.
    Absent,
    /// The item with the query's index: the queries are their own gallery.
    SameIndex,
    /// The item with this index; −1 for queries outside the gallery.
    Listed(&'a [i64]),
}

impl OwnItem<'_> {
    /// Returns the index of a query's own item.
    pub(crate) fn of(&self, query: usize) -> Option<u64> {
        match self {
            OwnItem::Absent => None,
            OwnItem::SameIndex => Some(query as u64),
            OwnItem::Listed(indices) => u64::try_from(indices[query]).ok(),
        }
    }

    /// Checks that each query has an index, below that of the gallery's end.
    pub(crate) fn check(&self, queries: usize, gallery: u64) -> Result<()> {
        let OwnItem::Listed(indices) = self else { return Ok(()) };
        if indices.len() != queries {
            return argument(format!("indices has {} entries; expected {queries}, one for each query", indices.len()));
        }
        match indices.iter().position(|index| *index < -1 || *index >= gallery as i64) {
            Some(at) => {
                argument(format!("indices has {} at {at}; expected -1, or an index below {gallery}", indices[at]))
            }
            None => Ok(()),
        }
    }
}
