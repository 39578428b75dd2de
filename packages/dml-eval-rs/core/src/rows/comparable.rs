//! The public name of the spaces, and the numbers that their searches report.

use crate::rows::codes::Codes;
use crate::rows::dense::Dense;
use crate::rows::space::Space;

/// Two sides of rows that can be compared: [`Dense`] or [`Codes`].
///
/// Sealed: results are exact because every space states a bound of its screen's error, and keeps it.
pub trait Comparable: Space {
    /// What a search reports of an item: a similarity of embeddings, or a distance of codes.
    type Reported: Copy + Send + Sync;

    /// Reported in the place of an item that is absent.
    const ABSENT: Self::Reported;

    /// Reports an item of this query by its key.
    fn report(&self, query: usize, key: f64) -> Self::Reported;

    /// Reports an item by its score.
    fn report_score(&self, score: f64) -> Self::Reported;

    /// Returns the score of a number in the units of those reported.
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
