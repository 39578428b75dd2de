//! Evaluates a gallery in parts: finds the positives in all parts first, then counts the negatives
//! in all parts.

use std::ops::Range;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::collect_counted;
use crate::rank::choice::Choice;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::positives::PositiveFinder;
use crate::rank::relation::Relation;
use crate::rank::screen_counter::ScreenCounter;
use crate::rank::tables::count_from_tables;
use crate::rank::ties::Positive;
use crate::rows::comparable::Comparable;
use crate::screen::traverse::{traverse_rectangle, traverse_triangle};
use crate::side::Side;

/// Finds the positives of all queries in a part of a gallery.
///
/// Returns offsets and positives: the positives of query `q` are from `offsets[q]` to
/// `offsets[q + 1]`.
pub fn find_positives<S: Comparable>(
    space: &S,
    relation: &Relation<'_>,
    control: &Control,
) -> Result<(Vec<usize>, Vec<Positive>)> {
    relation.check(space)?;
    PositiveFinder(relation).find(space, 0..relation.queries(), &|_| 1, control)
}

/// Counts the negatives of all queries in a part of a gallery.
pub fn count_negatives<S: Comparable>(
    space: &S,
    counts: &PartialCounts,
    relation: &Relation<'_>,
    control: &Control,
) -> Result<()> {
    let (queries, items) = (0..relation.queries(), 0..space.rows(Side::Gallery));
    let pairs = queries.len() as u64 * items.len() as u64;
    let (counter, packing) =
        begin(space, counts, relation, pairs, &[(queries.clone(), items)], control)?;
    traverse_rectangle(space, &packing, &counter, queries, control)
}

/// Counts the negatives in pairs of items from a single array. Pairs are compared once and counted
/// for both items.
///
/// By default, all pairs are counted. If `split` is given, only the items before `split` are
/// compared with the other items. `relation` must relate the array to itself by labels, and must
/// not list items to exclude.
pub fn count_symmetric_negatives<S: Comparable>(
    space: &S,
    counts: &PartialCounts,
    relation: &Relation<'_>,
    split: Option<usize>,
    control: &Control,
) -> Result<()> {
    let items = relation.queries();
    if !relation.is_symmetric() {
        return argument(
            "the relation isn't symmetric; expected labels of a single array, without lists of \
             items",
        );
    }
    if let Some(split) = split.filter(|split| *split > items) {
        return argument(format!(
            "split is {split}; expected at most {items}, the number of items"
        ));
    }
    let (rows, columns) = split.map_or((0..items, 0..items), |split| (0..split, split..items));
    let pairs = if split.is_some() {
        rows.len() * columns.len()
    } else {
        items * items.saturating_sub(1) / 2
    } as u64;
    let sides = [(rows.clone(), columns.clone()), (columns.clone(), rows.clone())];
    let sides = &sides[..if split.is_some() { 2 } else { 1 }];
    let (counter, packing) = begin(space, counts, relation, pairs, sides, control)?;
    traverse_triangle(space, &packing, &counter, rows, columns, control)
}

/// Counts negatives from tables in all `sides` (queries, items), then prepares to screen the
/// queries without a table.
fn begin<'a, S: Comparable>(
    space: &'a S,
    counts: &'a PartialCounts,
    relation: &'a Relation<'a>,
    pairs: u64,
    sides: &[(Range<usize>, Range<usize>)],
    control: &'a Control,
) -> Result<(ScreenCounter<'a>, S::Packing<'a>)> {
    relation.check(space)?;
    let queries = relation.queries();
    if counts.queries() != queries {
        return argument(format!(
            "counts has {} queries; expected {queries}, as the relation has",
            counts.queries()
        ));
    }
    control.add_to_total(pairs);
    let tabled = Choice { space, relation, control }.for_count(counts)?;
    for (queries, items) in sides {
        let many = collect_counted(
            (queries.start as u32..queries.end as u32).filter(|q| tabled[*q as usize]),
        )?;
        count_from_tables(space, (counts, relation), &many, items.clone(), control)?;
    }
    let counter = ScreenCounter::new(space, (counts, relation), 0, &|q| tabled[q], control)?;
    let packing = counter.packing(space, pairs)?;
    Ok((counter, packing))
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::kernel::select;
    use crate::rank::metric::Metric;
    use crate::rank::ties::Ties;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::matrix::Matrix;
    use crate::rows::similarity::Similarity;

    #[test]
    fn overlapping_blocks_and_relations_by_lists_are_rejected() {
        let x = Array2::from_shape_fn((4, 2), |(i, j)| (i + j) as f32 + 1.0);
        let (kernel, control, rows) =
            (select(None).unwrap(), Control::default(), Matrix::F32(x.view()));
        let space =
            Dense::new(rows, None, Similarity::Dot, Precision::Float32, kernel, &control).unwrap();
        let relation = || Relation::of_labels(&[0, 0, 1, 1], None).unwrap();
        assert!(relation().with_blocks(2, [5, 6]).is_err());
        assert!(relation().with_blocks(5, [0, 9]).is_err());
        let count = |queries: usize, relation: &Relation<'_>, split| {
            let counts = PartialCounts::new(
                Ties::Index,
                &[Metric::RPrecision],
                vec![0; queries + 1],
                vec![],
                &[],
            );
            count_symmetric_negatives(&space, &counts.unwrap(), relation, split, &control)
        };
        assert!(count(4, &relation(), Some(4)).is_ok());
        assert!(count(4, &relation(), Some(5)).is_err());
        assert!(count(3, &relation(), None).is_err());
        assert!(count(4, &relation().with_own_items(&[-1; 4]).unwrap(), None).is_err());
    }
}
