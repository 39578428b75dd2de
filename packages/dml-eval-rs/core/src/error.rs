//! Errors. Messages describe the problem, the expected value and how to fix it.

use crate::side::Side;

/// The reason why an evaluation, a search or a clustering failed or ended early.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument is out of range, or arrays don't match.
    #[error("{0}")]
    Argument(String),
    /// The shape of an array is not supported.
    #[error("{side} has shape ({rows}, {columns}); expected {expected}")]
    Shape {
        /// The side that the array belongs to.
        side: Side,
        /// The number of rows.
        rows: usize,
        /// The number of columns: elements, or bytes of codes.
        columns: usize,
        /// The supported shapes.
        expected: String,
    },
    /// The data contains NaN or infinity.
    #[error(
        "{side} row {row} holds NaN or infinity (the first of {count} such rows); expected finite \
         numbers: drop or repair these rows"
    )]
    NonFinite {
        /// The side that the rows belong to.
        side: Side,
        /// The first row with NaN or infinity.
        row: usize,
        /// The number of rows with NaN or infinity.
        count: usize,
    },
    /// A row consists of zeros, but the similarity is the cosine.
    #[error(
        "{side} row {row} is all zeros (the first of {count} such rows), so its cosine is \
         undefined; drop these rows, or use the dot product or the Euclidean distance"
    )]
    ZeroNorm {
        /// The side that the rows belong to.
        side: Side,
        /// The first row of zeros.
        row: usize,
        /// The number of rows of zeros.
        count: usize,
    },
    /// Numbers are so large that products would exceed the range of float64.
    #[error(
        "{side} row {row} has an element of magnitude {magnitude:e}; expected at most 2^500, so \
         that sums of products stay within float64: scale the rows down, or use the cosine"
    )]
    TooLarge {
        /// The side that the row belongs to.
        side: Side,
        /// The first row with a number that is too large.
        row: usize,
        /// The magnitude of this number.
        magnitude: f64,
    },
    /// None of the queries has a match, so means are not defined.
    #[error(
        "none of the {queries} queries has a match in the gallery, so no metric is defined; \
         expected at least one label that occurs twice (or in queries and gallery, if these are \
         separate), in different groups if labels have groups"
    )]
    NoMatches {
        /// The number of queries.
        queries: usize,
    },
    /// An allocation failed.
    #[error("out of memory: {bytes} more bytes were needed")]
    Memory {
        /// The size of the allocation.
        bytes: usize,
    },
    /// Exchanging data with the peers failed.
    #[error("exchanging data with the other processes failed: {0}")]
    Exchange(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// The result of a function that can fail.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns an [`Error::Argument`] with this message.
pub(crate) fn argument<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Argument(message.into()))
}

impl Error {
    /// Converts an error about `rows`, selected from an array, so that it names the row's index in
    /// the full array.
    #[must_use]
    pub fn of_selected(mut self, selected: Side, rows: &[usize]) -> Self {
        if let Error::NonFinite { side, row, .. }
        | Error::ZeroNorm { side, row, .. }
        | Error::TooLarge { side, row, .. } = &mut self
            && *side == selected
        {
            *row = rows[*row];
        }
        self
    }
}
