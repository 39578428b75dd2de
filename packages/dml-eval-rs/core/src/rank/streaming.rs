//! An evaluation in parts: the positives, and then the negatives, of one part of a gallery at a time.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::rank::labels::{CountJob, Labels};
use crate::rank::partial_counts::{PartialCounts, Positive};
use crate::rank::positives::PositiveFinder;
use crate::rank::screen_counter::ScreenCounter;
use crate::rank::table_counter::{count_from_tables, many_positives};
use crate::rows::classes::Classes;
use crate::rows::comparable::Comparable;
use crate::screen::traverse::traverse_rectangle;

/// Finds the positives of all queries in one part of a gallery. The part's first item has the index `first_item` in the whole.
///
/// `query_indices` holds each query's own index in the whole gallery, by which it is left out, and −1 for queries outside it.
/// Returns the start of each query's positives (and the end of the last), and the positives.
pub fn find_positives<S: Comparable>(
    space: &S,
    labels: &[u32],
    gallery_labels: &[u32],
    first_item: u64,
    query_indices: Option<&[i64]>,
    control: &Control,
) -> Result<(Vec<usize>, Vec<Positive>)> {
    let labels = Labels::new(space, labels, gallery_labels)?;
    let classes = Classes::new(labels.gallery)?;
    let finder = PositiveFinder { labels: labels.queries, classes: &classes, first_item, query_indices };
    finder.find(space, 0..labels.queries.len(), &|_| 1, control)
}

/// Counts the negatives of all queries in one part of a gallery.
pub fn count_negatives<S: Comparable>(
    space: &S,
    counts: &PartialCounts,
    labels: &[u32],
    gallery_labels: &[u32],
    first_item: u64,
    control: &Control,
) -> Result<()> {
    let labels = Labels::new(space, labels, gallery_labels)?;
    let queries = labels.queries.len();
    if counts.queries() != queries {
        return argument(format!("the counts are of {} queries; expected {queries}", counts.queries()));
    }
    control.add_to_total(queries as u64 * gallery_labels.len() as u64);
    let job = CountJob { counts, first_query: 0, labels, first_item };
    let threshold = many_positives(space);
    let (many, few): (Vec<u32>, Vec<u32>) =
        (0..queries as u32).partition(|q| counts.positives(*q as usize).len() >= threshold);
    count_from_tables(space, &job, &many, control)?;
    if few.is_empty() {
        return Ok(());
    }
    let counter = ScreenCounter::new(space, job, threshold)?;
    let packing = counter.packing(space, queries as u64 * gallery_labels.len() as u64, control)?;
    traverse_rectangle(space, &packing, &counter, 0..queries, control)
}
