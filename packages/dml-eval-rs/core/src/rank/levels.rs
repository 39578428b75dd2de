//! Metrics under several relations of the same queries and gallery, such as the levels of a hierarchy, from one pass over the pairs.

use std::ops::Range;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::{collect, collect_counted, try_collect};
use crate::peers::Peers;
use crate::rank::choice::Choice;
use crate::rank::count_job::CountJob;
use crate::rank::evaluate::{Options, count_bytes, evaluate};
use crate::rank::levels_counter::LevelsCounter;
use crate::rank::metric::Metric;
use crate::rank::metrics::PerQuery;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::plan::batches;
use crate::rank::positives::PositiveFinder;
use crate::rank::relation::Relation;
use crate::rank::tables::Ranking;
use crate::rank::ties::Ties;
use crate::rows::comparable::Comparable;
use crate::rows::space::Space;
use crate::screen::traverse::{traverse_rectangle, traverse_triangle};
use crate::side::Side;

/// Computes the metrics of every query at each level: those of [`evaluate`] with each relation. A query without a match at a level is
/// NaN there.
///
/// With peers the levels are evaluated one by one.
pub fn evaluate_levels<S: Comparable>(
    space: &S,
    relations: &[Relation<'_>],
    ties: Ties,
    options: &Options,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Vec<PerQuery>> {
    let options = Options { may_lack_matches: true, metrics: collect(options.metrics.iter().copied())? };
    if relations.len() < 2 || !peers.is_alone() {
        let each = relations.iter().map(|relation| evaluate(space, relation, ties, &options, peers, control));
        return try_collect(each);
    }
    for relation in relations {
        relation.check(space)?;
    }
    let queries = relations[0].queries();
    if relations.iter().any(|relation| relation.queries() != queries) {
        return argument("the levels have different numbers of queries; expected the same queries at each level");
    }
    let depth = options.metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
    let tabled = relations.iter().map(|relation| Choice { space, relation, control }.for_evaluation(depth));
    let tabled = try_collect(tabled)?;
    let levels = Levels { space, relations, ties, metrics: &options.metrics, control };
    // All keys of a query that is tabled at some level serve all levels.
    let is_tabled = |q: usize| tabled.iter().any(|tabled| tabled[q]);
    let number = |q: usize| relations.iter().map(|relation| relation.number(q)).sum::<usize>();
    let screened = |q: usize| if is_tabled(q) { 0 } else { number(q) };
    let budget = count_bytes(space, control) / PartialCounts::bytes_per_positive(ties.into());
    let screened_batches = batches(0..queries, screened, budget)?;
    let tabled = collect_counted((0..queries).filter(|q| is_tabled(*q)).map(|q| q as u32))?;
    let is_symmetric = relations.iter().all(Relation::is_symmetric) && screened_batches.len() == 1;
    let gallery = space.rows(Side::Gallery);
    let rows = |batches: &[Range<usize>]| batches.iter().map(ExactSizeIterator::len).sum::<usize>();
    let screens = if is_symmetric { queries * (queries - 1) / 2 } else { rows(&screened_batches) * gallery };
    control.add_to_total((screens + tabled.len() * gallery) as u64);

    let mut results = try_collect(relations.iter().map(|_| PerQuery::new(queries, &options.metrics)))?;
    let mut compute = |counts: Vec<PartialCounts>, first_query: usize| -> Result<()> {
        for ((result, counts), relation) in results.iter_mut().zip(counts).zip(relations) {
            result.compute(&counts, ties, first_query, relation.grades(), control)?;
        }
        Ok(())
    };
    if screened_batches.len() > 1 {
        control.took(|| "screened in batches");
    }
    for batch in screened_batches {
        let batch = if is_symmetric { 0..queries } else { batch };
        let start = batch.start;
        compute(levels.count_by_screen(batch, is_symmetric, &|q| !is_tabled(q))?, start)?;
    }
    let all = collect(relations.iter())?;
    let ranking = Ranking { relations: &all, ties: &[ties], metrics: &options.metrics };
    ranking.compute(space, &tabled, &mut results, control)?;
    Ok(results)
}

/// The inputs of a screen, which returns the counts of each level.
struct Levels<'a, S> {
    space: &'a S,
    relations: &'a [Relation<'a>],
    ties: Ties,
    metrics: &'a [Metric],
    control: &'a Control,
}

impl<S: Space> Levels<'_, S> {
    /// Finds the positives of the wanted queries at each level, and starts their counts.
    fn start(&self, queries: &Range<usize>, wanted: &dyn Fn(usize) -> bool) -> Result<Vec<PartialCounts>> {
        let find = |relation: &Relation<'_>| {
            let finder = PositiveFinder(relation);
            let (offsets, positives) =
                finder.find(self.space, queries.clone(), &|q| usize::from(wanted(q)), self.control)?;
            PartialCounts::new(self.ties, self.metrics, offsets, positives, &[])
        };
        try_collect(self.relations.iter().map(find))
    }

    fn jobs<'b>(&'b self, counts: &'b [PartialCounts], first_query: usize) -> Result<Vec<CountJob<'b>>> {
        let levels = counts.iter().zip(self.relations);
        collect(levels.map(|(counts, relation)| CountJob { counts, first_query, relation }))
    }

    /// Screens the wanted queries against the gallery, or each pair once for both where the queries are their own.
    fn count_by_screen(
        &self,
        queries: Range<usize>,
        is_symmetric: bool,
        wanted: &dyn Fn(usize) -> bool,
    ) -> Result<Vec<PartialCounts>> {
        let counts = self.start(&queries, wanted)?;
        let counter = LevelsCounter::new(self.space, self.jobs(&counts, queries.start)?, self.control)?;
        let items = self.space.rows(Side::Gallery);
        let pairs = if is_symmetric { items * items.saturating_sub(1) / 2 } else { queries.len() * items };
        let packing = counter.packing(self.space, pairs as u64, self.control)?;
        if is_symmetric {
            traverse_triangle(self.space, &packing, &counter, queries.clone(), queries, self.control)?;
        } else {
            traverse_rectangle(self.space, &packing, &counter, queries, self.control)?;
        }
        drop(packing);
        drop(counter);
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::select;
    use crate::peers::Alone;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::matrix::Matrix;
    use crate::rows::similarity::Similarity;
    use crate::sizes::Sizes;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_level_has_the_bits_of_its_own_evaluation(
            values in proptest::collection::vec(-2i8..=2, 60 * 3), n in 2usize..60, classes in 2u32..20, coarser in 1u32..6,
            many in prop_oneof![Just(None), (1usize..20).prop_map(Some)], expected: bool, gallery: bool,
        ) {
            let x = Array2::from_shape_fn((n, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.5);
            let fine: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect();
            let coarse: Vec<u32> = fine.iter().map(|class| class / coarser).collect();
            let other: Vec<u32> = (0..n as u32).map(|i| i % 2).collect();
            let sizes = Sizes { many_positives: many, ..Sizes::default() };
            let (kernel, control, rows) = (select(None).unwrap(), Control::traced(sizes), Matrix::F32(x.view()));
            let items = gallery.then_some(rows);
            let space = Dense::new(rows, items, Similarity::Dot, Precision::SixteenBit, kernel, &control).unwrap();
            let relations: Vec<Relation<'_>> = [&fine, &coarse, &other]
                .map(|labels| Relation::of_labels(labels, gallery.then_some(&labels[..])).unwrap())
                .into();
            let options = Options {
                metrics: vec![Metric::Recall(2), Metric::MapAtR, Metric::ReciprocalRank, Metric::Precision(5)],
                may_lack_matches: true,
            };
            let ties = if expected { Ties::Expected } else { Ties::Index };
            let levels = evaluate_levels(&space, &relations, ties, &options, &Alone, &control).unwrap();
            for (level, relation) in levels.iter().zip(&relations) {
                let alone = evaluate(&space, relation, ties, &options, &Alone, &control).unwrap();
                for (found, expected) in level.columns.iter().flatten().zip(alone.columns.iter().flatten()) {
                    prop_assert_eq!(found.to_bits(), expected.to_bits());
                }
            }
        }
    }
}
