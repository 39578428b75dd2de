//! An evaluation in parts: the positives, and then the negatives, of one part of a gallery at a time.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::collect_counted;
use crate::rank::choice::Choice;
use crate::rank::count_job::CountJob;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::positive::Positive;
use crate::rank::positives::PositiveFinder;
use crate::rank::relation::Relation;
use crate::rank::screen_counter::ScreenCounter;
use crate::rank::tables::count_from_tables;
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
    let tabled = Choice { space, relation, control }.for_count(counts)?;
    let many = collect_counted((0..queries as u32).filter(|q| tabled[*q as usize]))?;
    count_from_tables(space, &job, &many, 0..space.rows(Side::Gallery), control)?;
    if many.len() == queries {
        return Ok(());
    }
    let counter = ScreenCounter::new(space, job, &|q| tabled[q], control)?;
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
    let tabled = Choice { space, relation, control }.for_count(counts)?;
    let sides = [(&rows, &columns), (&columns, &rows)];
    for &(queries, others) in &sides[..if split.is_some() { 2 } else { 1 }] {
        let many = collect_counted((queries.start as u32..queries.end as u32).filter(|q| tabled[*q as usize]))?;
        count_from_tables(space, &job, &many, others.clone(), control)?;
    }
    let counter = ScreenCounter::new(space, job, &|q| tabled[q], control)?;
    let packing = counter.packing(space, pairs, control)?;
    traverse_triangle(space, &packing, &counter, rows, columns, control)
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::select;
    use crate::rank::metric::Metric;
    use crate::rank::ties::Ties;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::matrix::Matrix;
    use crate::rows::similarity::Similarity;
    use crate::rows::space::{Scratch, Space};

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn pairs_of_two_blocks_are_counted_once_for_both_items(
            values in proptest::collection::vec(-2i8..=2, 90 * 3), n in 2usize..90, classes in 1u32..30, split in 0usize..90,
            is_split in any::<bool>(), gap in 0u64..3, first in 0u64..3,
        ) {
            let split = is_split.then_some(split.min(n));
            let x = Array2::from_shape_fn((n, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.5);
            let labels: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect();
            let (kernel, control, rows) = (select(None).unwrap(), Control::default(), Matrix::F32(x.view()));
            let space = Dense::new(rows, None, Similarity::Dot, Precision::SixteenBit, kernel, &control).unwrap();
            let at = split.unwrap_or(n);
            let first_items = [first, first + at as u64 + gap];
            let relation = Relation::of_labels(&labels, None).unwrap().with_blocks(at, first_items).unwrap();
            let (offsets, positives) = find_positives(&space, &relation, &control).unwrap();
            for ties in [Ties::Index, Ties::Expected] {
                let new = || PartialCounts::new(ties, &[Metric::AveragePrecision], offsets.clone(), positives.clone(), &[]);
                let (found, expected) = (new().unwrap(), new().unwrap());
                count_symmetric_negatives(&space, &found, &relation, split, &control).unwrap();
                for query in 0..n {
                    for item in (0..n).filter(|item| labels[*item] != labels[query]) {
                        if offsets[query] == offsets[query + 1] || split.is_some_and(|at| (query < at) == (item < at)) {
                            continue;
                        }
                        let mut keys = Vec::new();
                        space.keys(&[(query as u32, item as u32)], &mut Scratch::default(), &mut keys).unwrap();
                        let index = if item < at { first + item as u64 } else { first_items[1] + (item - at) as u64 };
                        expected.add(query, expected.slot(query, keys[0], index), 1);
                    }
                }
                // Negatives after the last positive matter to no metric, and are not counted.
                for query in (0..n).filter(|q| offsets[*q] < offsets[*q + 1]) {
                    let of = |counts: &PartialCounts| -> Vec<u64> {
                        let slots = counts.slots(query);
                        slots[..slots.len() - 1].iter().map(|s| s.load(std::sync::atomic::Ordering::Relaxed)).collect()
                    };
                    prop_assert_eq!(of(&found), of(&expected));
                }
            }
        }
    }

    #[test]
    fn blocks_that_overlap_and_relations_of_lists_are_refused() {
        let x = Array2::from_shape_fn((4, 2), |(i, j)| (i + j) as f32 + 1.0);
        let (kernel, control) = (select(None).unwrap(), Control::default());
        let rows = Matrix::F32(x.view());
        let space = Dense::new(rows, None, Similarity::Dot, Precision::Float32, kernel, &control).unwrap();
        let labels = [0, 0, 1, 1];
        let relation = || Relation::of_labels(&labels, None).unwrap();
        assert!(relation().with_blocks(2, [5, 6]).is_err());
        assert!(relation().with_blocks(5, [0, 9]).is_err());
        let counts = |queries: usize| {
            PartialCounts::new(Ties::Index, &[Metric::RPrecision], vec![0; queries + 1], vec![], &[]).unwrap()
        };
        let count = |queries, relation: &Relation<'_>, split| {
            count_symmetric_negatives(&space, &counts(queries), relation, split, &control)
        };
        assert!(count(4, &relation(), Some(4)).is_ok());
        assert!(count(4, &relation(), Some(5)).is_err());
        assert!(count(3, &relation(), None).is_err());
        let own = [-1, -1, -1, -1];
        assert!(count(4, &relation().with_own_items(&own).unwrap(), None).is_err());
    }
}
