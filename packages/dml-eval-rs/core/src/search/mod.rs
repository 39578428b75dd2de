//! Searches of a gallery.

pub(crate) mod nearest;
