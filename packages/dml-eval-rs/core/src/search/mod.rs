//! Searches of a gallery.

mod from_tables;
pub(crate) mod nearest;
