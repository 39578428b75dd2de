//! Errors. Every message says what came, what was expected and how to fix it.

use crate::side::Side;

/// Why an evaluation, a search or a clustering was refused, or ended early.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument outside its range, or arrays that do not match.
    #[error("{0}")]
    Argument(String),
    /// An array with a shape that the function does not take.
    #[error("{side} has shape ({rows}, {columns}); expected {expected}")]
    Shape {
        /// The array.
        side: Side,
        /// Its rows.
        rows: usize,
        /// Its columns: elements, or bytes of codes.
        columns: usize,
        /// The shapes that the function takes.
        expected: String,
    },
    /// NaN or infinity in the data.
    #[error(
        "{side} row {row} holds NaN or infinity (the first of {count} such rows); expected finite numbers: \
         drop or repair those rows"
    )]
    NonFinite {
        /// The array.
        side: Side,
        /// The first such row.
        row: usize,
        /// The number of such rows.
        count: usize,
    },
    /// A row of zeros under the cosine.
    #[error(
        "{side} row {row} is all zeros (the first of {count} such rows), and the cosine with it is undefined; \
         drop those rows, or use the dot product or the Euclidean distance"
    )]
    ZeroNorm {
        /// The array.
        side: Side,
        /// The first such row.
        row: usize,
        /// The number of such rows.
        count: usize,
    },
    /// Numbers whose products leave the range of float64.
    #[error(
        "{side} row {row} has an element of magnitude {magnitude:e}; expected at most 2^500, so that sums of products \
         stay within float64: scale the rows down, or use the cosine"
    )]
    TooLarge {
        /// The array.
        side: Side,
        /// The first such row.
        row: usize,
        /// The element's magnitude.
        magnitude: f64,
    },
    /// No query has a match, so every mean is empty.
    #[error(
        "none of the {queries} queries has a match in the gallery, so no metric is defined; expected at least one label \
         that occurs twice (or, with a separate gallery, in both), in different groups if labels have groups"
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
    /// The peers could not be reached.
    #[error("the exchange with the other processes failed: {0}")]
    Exchange(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// The result of a function that can refuse its arguments.
pub type Result<T> = std::result::Result<T, Error>;

/// Returns an [`Error::Argument`] with a message.
pub(crate) fn argument<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Argument(message.into()))
}

impl Error {
    /// Replaces the index of a row among selected ones by that in the whole array.
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
