//! Searches of a gallery.

pub(crate) mod index_recall;
pub(crate) mod nearest;
pub(crate) mod range;
