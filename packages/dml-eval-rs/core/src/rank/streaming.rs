//! An evaluation in parts: the positives, and then the negatives, of one part of a gallery at a time.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::rank::count_job::CountJob;
use crate::rank::partial_counts::{PartialCounts, Positive};
use crate::rank::positives::PositiveFinder;
use crate::rank::relation::Relation;
use crate::rank::screen_counter::ScreenCounter;
use crate::rank::table_counter::{count_from_tables, many_positives};
use crate::rows::comparable::Comparable;
use crate::screen::traverse::traverse_rectangle;
use crate::side::Side;

/// Finds the positives of all queries in one part of a gallery.
///
/// Returns the start of each query's positives (and the end of the last), and the positives.
pub fn find_positives<S: Comparable>(
    space: &S,
    relation: &Relation<'_>,
    control: &Control,
) -> Result<(Vec<usize>, Vec<Positive>)> {
    relation.check(space)?;
    PositiveFinder(relation).find(space, 0..relation.queries(), &|_| 1, control)
}

/// Counts the negatives of all queries in one part of a gallery.
pub fn count_negatives<S: Comparable>(
    space: &S,
    counts: &PartialCounts,
    relation: &Relation<'_>,
    control: &Control,
) -> Result<()> {
    relation.check(space)?;
    let queries = relation.queries();
    if counts.queries() != queries {
        return argument(format!("the counts are of {} queries; expected {queries}", counts.queries()));
    }
    control.add_to_total(queries as u64 * space.rows(Side::Gallery) as u64);
    let job = CountJob { counts, first_query: 0, relation };
    let threshold = many_positives(space);
    let (many, few): (Vec<u32>, Vec<u32>) =
        (0..queries as u32).partition(|q| counts.positives(*q as usize).len() >= threshold);
    count_from_tables(space, &[job], &many, control)?;
    if few.is_empty() {
        return Ok(());
    }
    let counter = ScreenCounter::new(space, job, threshold)?;
    let packing = counter.packing(space, queries as u64 * space.rows(Side::Gallery) as u64, control)?;
    traverse_rectangle(space, &packing, &counter, 0..queries, control)
}
