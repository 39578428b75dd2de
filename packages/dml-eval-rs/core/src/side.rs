//! The sides of a comparison.

use std::fmt;

/// One of two arrays that are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The queries, or the array of a function that takes only a single array.
    Query,
    /// The gallery.
    Gallery,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Side::Query => "queries",
            Side::Gallery => "gallery",
        })
    }
}
