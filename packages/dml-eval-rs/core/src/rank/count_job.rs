//! A count to complete.

use crate::rank::partial_counts::PartialCounts;
use crate::rank::relation::Relation;

/// A count to complete: the negatives of some queries in a gallery, or in a part of it.
#[derive(Clone, Copy)]
pub(crate) struct CountJob<'a> {
    pub counts: &'a PartialCounts,
    /// The query of the space that the counts begin with.
    pub first_query: usize,
    pub relation: &'a Relation<'a>,
}
