//! Searches a gallery.

mod candidates;
pub(crate) mod filter;
mod from_allowed;
mod from_tables;
pub(crate) mod hard_negatives;
pub(crate) mod index_recall;
pub(crate) mod nearest;
pub(crate) mod places;
pub(crate) mod range;
pub(crate) mod screened;
pub(crate) mod top_pairs;
