//! A match of a query, with the key that orders the gallery.

use zerocopy::FromZeros;

/// A gallery item that matches the query.
#[derive(Clone, Copy, Debug, FromZeros, PartialEq)]
pub struct Positive {
    /// The key that orders the gallery: larger is nearer.
    pub key: f64,
    /// Its index in the whole gallery.
    pub index: u64,
}
