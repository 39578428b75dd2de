//! What can be wrong with a request. Every message says what came, what was expected and how to mend it.

/// Why an evaluation, a search or a clustering was refused, or ended early.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Error {
    /// An argument outside its range, or arrays that don't fit each other.
    #[error("{0}")]
    Argument(String),
    /// NaN or infinity in the data.
    #[error(
        "{what} row {row} holds NaN or infinity (the first of {count} such rows); expected finite numbers: \
         drop or repair those rows before evaluating"
    )]
    NonFinite {
        /// The argument, `embeddings` or `gallery`.
        what: &'static str,
        /// The first offending row.
        row: usize,
        /// How many rows offend.
        count: usize,
    },
    /// A vector without direction under the cosine.
    #[error(
        "{what} row {row} is all zeros (the first of {count} such rows), and the cosine with it is undefined; \
         drop those rows, or use similarity='dot' or 'euclidean'"
    )]
    ZeroNorm {
        /// The argument, `embeddings` or `gallery`.
        what: &'static str,
        /// The first offending row.
        row: usize,
        /// How many rows offend.
        count: usize,
    },
    /// Numbers whose products leave the range of float64.
    #[error(
        "{what} row {row} has an element of magnitude {magnitude:e}; expected at most 2**500 so that sums of products \
         stay within float64: scale the embeddings down, or use similarity='cosine'"
    )]
    TooLarge {
        /// The argument, `embeddings` or `gallery`.
        what: &'static str,
        /// The first offending row.
        row: usize,
        /// The element's magnitude.
        magnitude: f64,
    },
    /// No query has a match, so that every mean is empty.
    #[error(
        "none of the {queries} queries has a match in the gallery, so no metric is defined; expected at least one label \
         that occurs twice (or, with a separate gallery, in both)"
    )]
    NoMatches {
        /// The number of queries.
        queries: usize,
    },
    /// The system has no more memory to give.
    #[error("{bytes} more bytes of memory were needed and could not be had")]
    Memory {
        /// How many were asked for at once.
        bytes: usize,
    },
    /// What the work is shared with could not be reached.
    #[error("the exchange with the other processes failed: {0}")]
    Exchange(String),
    /// The caller asked to stop.
    #[error("cancelled")]
    Cancelled,
}

/// The result of anything that can be refused.
pub type Result<T> = std::result::Result<T, Error>;

/// An [`Error::Argument`] from a message.
pub(crate) fn argument<T>(message: impl Into<String>) -> Result<T> {
    Err(Error::Argument(message.into()))
}
