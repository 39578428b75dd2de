//! The public name of the spaces, and the types that searches report.

use crate::rows::codes::Codes;
use crate::rows::dense::Dense;
use crate::rows::space::Space;

/// Queries and items that can be compared: [`Dense`] or [`Codes`].
///
/// This trait is sealed, because exact results depend on an error bound that a space must state and
/// keep.
pub trait Comparable: Space {
    /// The type that a search reports: similarities of embeddings, or distances of codes.
    type Reported: Copy + Send + Sync;

    /// The value to report if an item is missing.
    const ABSENT: Self::Reported;

    /// Converts the key of a query and an item to the reported type.
    fn report(&self, query: usize, key: f64) -> Self::Reported;

    /// Converts a score to the reported type.
    fn report_score(&self, score: f64) -> Self::Reported;

    /// Returns the score for a number in the reported units.
    fn score_of(&self, reported: f64) -> f64;
}

impl Comparable for Dense<'_> {
    type Reported = f32;

    const ABSENT: f32 = f32::NAN;

    fn report(&self, query: usize, key: f64) -> f32 {
        self.similarity_of_key(query, key)
    }

    fn report_score(&self, score: f64) -> f32 {
        score as f32
    }

    fn score_of(&self, similarity: f64) -> f64 {
        similarity
    }
}

impl Comparable for Codes<'_> {
    type Reported = i32;

    const ABSENT: i32 = -1;

    fn report(&self, query: usize, key: f64) -> i32 {
        Codes::distance(query, key)
    }

    fn report_score(&self, score: f64) -> i32 {
        -score as i32
    }

    fn score_of(&self, distance: f64) -> f64 {
        -distance
    }
}
