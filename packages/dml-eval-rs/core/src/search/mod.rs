//! Searches of a gallery.

mod first_thresholds;
mod from_tables;
pub(crate) mod index_recall;
pub(crate) mod nearest;
pub(crate) mod range;

mod shortlist;
