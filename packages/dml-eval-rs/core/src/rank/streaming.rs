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
use crate::screen::traverse::{traverse_rectangle, traverse_triangle};
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
    count_from_tables(space, &[job], &many, 0..space.rows(Side::Gallery), control)?;
    if few.is_empty() {
        return Ok(());
    }
    let counter = ScreenCounter::new(space, job, threshold)?;
    let packing = counter.packing(space, queries as u64 * space.rows(Side::Gallery) as u64, control)?;
    traverse_rectangle(space, &packing, &counter, 0..queries, control)
}

/// Counts the negatives in pairs of one array's items, each pair once for both of its items.
///
/// Without `split`, the pairs are those of any two items; with it, those of an item before it and another. The relation is that
/// of the array to itself, and must not list items to leave out.
pub fn count_symmetric_negatives<S: Comparable>(
    space: &S,
    counts: &PartialCounts,
    relation: &Relation<'_>,
    split: Option<usize>,
    control: &Control,
) -> Result<()> {
    relation.check(space)?;
    let items = relation.queries();
    if counts.queries() != items {
        return argument(format!("the counts are of {} queries; expected {items}", counts.queries()));
    }
    if !relation.is_symmetric() {
        return argument("a relation that lists items counts a pair for each of them alone; expected one of labels");
    }
    let (rows, columns) = split.map_or((0..items, 0..items), |split| (0..split, split..items));
    if rows.end > items {
        return argument(format!("split is {}; expected at most {items}, the number of items", rows.end));
    }
    let pairs = if split.is_some() { rows.len() * columns.len() } else { items * items.saturating_sub(1) / 2 } as u64;
    control.add_to_total(pairs);
    let job = CountJob { counts, first_query: 0, relation };
    let threshold = many_positives(space);
    let is_many = |q: &u32| counts.positives(*q as usize).len() >= threshold;
    let sides = if split.is_some() { vec![(&rows, &columns), (&columns, &rows)] } else { vec![(&rows, &columns)] };
    for (queries, others) in sides {
        let many: Vec<u32> = (queries.start as u32..queries.end as u32).filter(is_many).collect();
        count_from_tables(space, &[job], &many, others.clone(), control)?;
    }
    let counter = ScreenCounter::new(space, job, threshold)?;
    let packing = counter.packing(space, pairs, control)?;
    traverse_triangle(space, &packing, &counter, rows, columns, control)
}
