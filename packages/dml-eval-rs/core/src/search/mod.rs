//! Searches of a gallery.

mod by_row;
mod cells;
pub(crate) mod few_queries;
pub(crate) mod filter;
mod from_tables;
mod guess;
pub(crate) mod hard_negatives;
pub(crate) mod index_recall;
mod keys;
pub(crate) mod nearest;
mod places;
pub(crate) mod range;
pub(crate) mod results;
