//! Finds the gallery item that is the query itself.

use crate::error::{Result, argument};

/// Per query, the gallery item that is the query itself, which is excluded from the ranking.
#[derive(Clone, Copy, Debug)]
pub enum OwnItem<'a> {
    /// There is none, because queries and gallery are different items.
    Absent,
    /// The item with the query's index, because the queries are also the gallery.
    SameIndex,
    /// The item with this index, or −1 for queries that aren't in the gallery.
    Listed(&'a [i64]),
}

impl OwnItem<'_> {
    /// Returns the index of the gallery item that is the query itself.
    pub(crate) fn of(&self, query: usize) -> Option<u64> {
        match self {
            OwnItem::Absent => None,
            OwnItem::SameIndex => Some(query as u64),
            OwnItem::Listed(indices) => u64::try_from(indices[query]).ok(),
        }
    }

    /// Checks that an index is given per query, and that indices are less than `gallery`.
    pub(crate) fn check(&self, queries: usize, gallery: u64) -> Result<()> {
        let OwnItem::Listed(indices) = self else { return Ok(()) };
        if indices.len() != queries {
            return argument(format!(
                "indices has {} entries; expected {queries}, one per query",
                indices.len()
            ));
        }
        match indices.iter().position(|index| *index < -1 || *index >= gallery as i64) {
            Some(at) => argument(format!(
                "indices[{at}] is {}; expected -1, or an index below {gallery}",
                indices[at]
            )),
            None => Ok(()),
        }
    }
}
