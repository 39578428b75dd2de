//! Finds exact nearest neighbours, and chooses the way by the data.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::Kernel;
use crate::rows::comparable::Comparable;
use crate::rows::dense::{Dense, Precision};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::similarity::Similarity;
use crate::search::filter::Filter;
use crate::search::from_allowed::nearest_allowed;
use crate::search::from_tables::nearest_from_tables;
use crate::search::places::{Nearest, Results, lock};
use crate::search::screened::nearest_screened;
use crate::side::Side;

/// Finds the `k` nearest gallery items that the filter allows, per query: scores and indices,
/// nearest first, ties by index.
///
/// `scores` and `indices` have the shape (queries, k). `score` must compute a score from a query
/// and a key. If there are fewer than k items, or the filter allows fewer, the remaining indices
/// will be −1, but the remaining scores will not be changed.
pub fn nearest<'a, S: Comparable, T: Send>(
    space: &S,
    k: usize,
    filter: impl Into<Filter<'a>>,
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    let filter = filter.into();
    filter.check(queries, gallery)?;
    if k < 1 {
        return argument("k is 0; expected at least 1");
    }
    if scores.len() != queries * k || indices.len() != queries * k {
        return argument(format!(
            "scores and indices have {} and {} entries; expected {queries} × {k}",
            scores.len(),
            indices.len()
        ));
    }
    let results = Results { k, score, scores, indices };
    if let Some(pairs) = filter.few_allowed(gallery, control) {
        nearest_allowed(space, filter, pairs, control, results)
    } else if filter.excludes_only_own() && prefers_tables(k, gallery, control) {
        nearest_from_tables(space, filter.own, control, results)
    } else {
        nearest_screened(space, filter, control, results)
    }
}

/// Validates rows and finds the `k` nearest gallery items per query, as [`nearest`] does. If
/// queries are few, each gallery row is compared with all queries when the row is validated,
/// because packing the gallery for a screen would take longer.
pub fn knn<'a>(
    (queries, gallery): (Matrix<'a>, Option<Matrix<'a>>),
    (similarity, precision, kernel): (Similarity, Precision, &'static Kernel),
    (k, filter): (usize, Filter<'_>),
    control: &Control,
    similarities: &mut [f32],
    indices: &mut [i64],
) -> Result<()> {
    let (few, items) = (queries.rows(), gallery.as_ref().map_or(0, Source::rows));
    let unread = Dense::unread(queries, gallery, similarity, precision, kernel, control)?;
    let sizes = control.sizes();
    let is_few = filter.excludes_only_own()
        && few <= sizes.few_queries
        && (1..items).contains(&k)
        && few * Nearest::bytes(k) <= sizes.nearest_bytes;
    if !is_few {
        let space = unread.read(control)?;
        let score = |query, key| space.similarity_of_key(query, key);
        return nearest(&space, k, filter, control, score, similarities, indices);
    }
    let own = filter.own;
    own.check(few, items as u64)?;
    control.took(|| "few queries");
    control.add_to_total(few as u64 * items as u64);
    let mut places = Nearest::places(k, few)?;
    let lists = Nearest::lists(k, &mut places)?;
    let space = unread.compare_few(control, |query, first, keys| {
        let own = own.of(query).map(|own| own as u32);
        let mut list = lock(&lists[query]);
        list.add((first as u32..).zip(keys.iter().copied()), own);
    })?;
    let mut results = Results {
        k,
        score: |query, key| space.similarity_of_key(query, key),
        scores: similarities,
        indices,
    };
    results.store(0..few, control, |query, found| lock(&lists[query]).finish(found, kernel))
}

/// Whether tables of keys are faster than a screen, as measured in
/// docs/internals/evaluator-speed.md.
fn prefers_tables(k: usize, gallery: usize, control: &Control) -> bool {
    gallery as f64 <= control.sizes().table_items as f64 * (2.0 + (k as f64).powi(2).cbrt())
}
