//! Verifies in parts: two blocks at a time, or a block with itself, in more than one pass over all
//! pairs of blocks.
//!
//! The first pass finds the scores of positives, and samples negatives to estimate brackets around
//! the crossings of all levels. Later passes decide the negatives in the brackets in float64, like
//! `decided` does, until all crossings are found.

use crate::control::Control;
use crate::error::Result;
use crate::peers::Alone;
use crate::rows::dense::Dense;
use crate::rows::dense_packing::DensePacking;
use crate::rows::packing::Packing;
use crate::verification::crossings::levels;
use crate::verification::decided::{Decider, Observed, Search};
use crate::verification::hashed::{HashedScores, sample_block};
use crate::verification::level::{Crossing, Level};
use crate::verification::pairs::PairLabels;
use crate::verification::sample::{Bracket, estimate, sort_descending};
use crate::verification::sieve::Sieve;
use crate::verification::traversal::{Both, traverse};

/// Finds the scores of all positives between two blocks, in ascending order, and samples negatives
/// with a hash that ends in at least `least` zeros, at most `capacity`. `first` contains the
/// indices of the blocks' first query and first item in all rows.
pub fn begin_block(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    first: (u64, u64),
    least: u32,
    capacity: usize,
    control: &Control,
) -> Result<(Vec<f64>, HashedScores)> {
    labels.check(space, space.is_own_gallery())?;
    let positives = labels.sorted_positives(space, labels.count_same()? as usize, control)?;
    Ok((positives, sample_block(space, labels, first, least, capacity, control)?))
}

/// Begins to search for the scores of the negatives with `ranks` and, if `equal_errors`, for the
/// score of equal errors.
///
/// `positives` are all positives' scores in ascending order, `negatives` counts all negatives, and
/// `sample` is some scores.
#[expect(clippy::disallowed_methods, reason = "levels are few")]
pub fn begin_searches(
    ranks: &[u64],
    equal_errors: bool,
    positives: &[f64],
    negatives: u64,
    mut sample: Vec<f64>,
) -> Vec<Search> {
    sort_descending(&mut sample);
    let all = Bracket { low: f64::NEG_INFINITY, middle: 0.0, high: f64::INFINITY };
    let bracket = |level: Level| match &sample[..] {
        [] => all,
        sample => estimate(level, sample, 0, negatives, positives),
    };
    let levels = levels(ranks, equal_errors.then_some((positives.len() as u64, negatives)));
    levels.into_iter().map(|level| Search::new(level, bracket(level))).collect()
}

/// Counts the negatives of two blocks per search, and keeps at most `capacity` scores per search.
pub fn observe_block(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    searches: &[Search],
    first: (u64, u64),
    capacity: usize,
    control: &Control,
) -> Result<Vec<Observed>> {
    labels.check(space, space.is_own_gallery())?;
    let packing = DensePacking::whole(space)?;
    let approximation = (packing.largest_margin()?, packing.offset());
    let decider = Decider::new(space, labels, searches, capacity, approximation, first, control)?;
    let both = Both::new(Sieve::new(space, &[], 0, approximation)?, decider);
    traverse(space, &packing, &both, &Alone, control)?;
    both.decider.finish()
}

/// Advances searches by the results of a pass over all pairs of blocks. Returns the crossings
/// found; narrows other searches.
#[expect(clippy::disallowed_methods, reason = "levels are few")]
pub fn advance_searches(
    searches: &mut [Search],
    observed: Vec<Observed>,
    positives: &[f64],
) -> Result<Vec<Option<Crossing>>> {
    searches
        .iter_mut()
        .zip(observed)
        .map(|(search, observed)| search.advance(observed, positives))
        .collect()
}
