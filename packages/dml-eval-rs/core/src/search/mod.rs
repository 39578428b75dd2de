//! Searches of a gallery.

mod cells;
mod first_candidates;
mod from_tables;
pub(crate) mod index_recall;
pub(crate) mod nearest;
pub(crate) mod range;
mod shortlist;
