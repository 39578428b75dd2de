//! Retrieval metrics: positives first, then one count over all pairs.

use std::ops::Range;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::memory::{collect_counted, try_collect};
use crate::peers::Peers;
use crate::rank::choice::Choice;
use crate::rank::count_job::CountJob;
use crate::rank::metric::Metric;
use crate::rank::metrics::PerQuery;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::plan::{Matches, Plan, Round};
use crate::rank::positive::Positive;
use crate::rank::positives::PositiveFinder;
use crate::rank::relation::Relation;
use crate::rank::screen_counter::ScreenCounter;
use crate::rank::tables::Ranking;
use crate::rank::ties::{TieRules, Ties};
use crate::rows::comparable::Comparable;
use crate::rows::space::Space;
use crate::screen::traverse::{traverse_rectangle, traverse_triangle};
use crate::side::Side;

/// Options of an evaluation.
#[derive(Clone, Debug)]
pub struct Options {
    /// The metrics.
    pub metrics: Vec<Metric>,
    /// Whether to accept that no query has a match. All values are then NaN.
    pub may_lack_matches: bool,
}

/// Returns the most bytes of positives and counts in memory.
pub(crate) fn count_bytes<S: Space>(space: &S, control: &Control) -> usize {
    let sizes = control.sizes();
    sizes.count_bytes.max(sizes.count_bytes_per_input_byte * space.bytes())
}

/// Computes the metrics of every query. With peers each does a part of the work, and all get the same result: that of one alone.
pub fn evaluate<S: Comparable>(
    space: &S,
    relation: &Relation<'_>,
    ties: Ties,
    options: &Options,
    peers: &dyn Peers,
    control: &Control,
) -> Result<PerQuery> {
    let mut results = evaluate_ties(space, relation, &[ties], options, peers, control)?;
    Ok(results.remove(0))
}

/// Computes the metrics of every query under each of these rules for ties, from one count: those of [`evaluate`] with each.
pub fn evaluate_ties<S: Comparable>(
    space: &S,
    relation: &Relation<'_>,
    rules: &[Ties],
    options: &Options,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Vec<PerQuery>> {
    if rules.is_empty() {
        return argument("there is no rule for ties; expected at least one");
    }
    relation.check(space)?;
    let queries = relation.queries();
    if !options.may_lack_matches && (0..queries).all(|q| relation.number(q) == 0) {
        return Err(Error::NoMatches { queries });
    }
    let depth = options.metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
    let tabled = Choice { space, relation, control }.for_evaluation(depth)?;
    let matches = Matches { relation, tabled: &tabled };
    let evaluation = Evaluation { space, matches, rules: rules.into(), metrics: &options.metrics, control };
    let budget = count_bytes(space, control) / PartialCounts::bytes_per_positive(rules.into());
    let plan = Plan::new(&matches, budget, peers)?;
    control.add_to_total(plan.pairs(space.rows(Side::Gallery)) as u64);

    let mut results = try_collect(rules.iter().map(|_| PerQuery::new(queries, &options.metrics)))?;
    let compute = |results: &mut [PerQuery], counts: &PartialCounts, first_query: usize| {
        let mut each = results.iter_mut().zip(rules);
        each.try_for_each(|(result, ties)| result.compute(counts, *ties, first_query, relation.grades(), control))
    };
    if plan.screened.len() > 1 {
        control.took(|| "screened in batches");
    }
    for batch in &plan.screened {
        let counts = evaluation.count_by_screen(batch.clone())?;
        compute(&mut results, &counts, batch.start)?;
    }
    let ranking = Ranking { relations: &[relation], ties: rules, metrics: &options.metrics };
    ranking.compute(space, &plan.tabled, &mut results, control)?;
    let screened = plan.screened.iter().cloned().flatten().filter(|q| matches.few(*q) > 0);
    let is_exchanged = |q: usize| tabled[q] || plan.rounds.is_none() && matches.few(q) > 0;
    let computed = collect_counted(screened.chain(plan.tabled.iter().map(|q| *q as usize)))?;
    for result in &mut results {
        result.exchange(&computed, queries, is_exchanged, peers)?;
    }
    if let Some(rounds) = plan.rounds {
        let counts = evaluation.count_by_symmetry(rounds, peers)?;
        compute(&mut results, &counts, 0)?;
    }
    Ok(results)
}

/// The inputs of an evaluation, and its two strategies of screening. Each returns counts that suffice for all metrics.
struct Evaluation<'a, S> {
    space: &'a S,
    matches: Matches<'a>,
    rules: TieRules,
    metrics: &'a [Metric],
    control: &'a Control,
}

impl<S: Space> Evaluation<'_, S> {
    fn finder(&self) -> PositiveFinder<'_> {
        PositiveFinder(self.matches.relation)
    }

    fn counts(&self, offsets: Vec<usize>, positives: Vec<Positive>) -> Result<PartialCounts> {
        PartialCounts::new(self.rules, self.metrics, offsets, positives, &[])
    }

    fn job<'b>(&'b self, counts: &'b PartialCounts, first_query: usize) -> CountJob<'b> {
        CountJob { counts, first_query, relation: self.matches.relation }
    }

    /// Screens queries with few positives against the gallery.
    fn count_by_screen(&self, queries: Range<usize>) -> Result<PartialCounts> {
        let few = |q: usize| self.matches.few(q);
        let (offsets, positives) = self.finder().find(self.space, queries.clone(), &few, self.control)?;
        let counts = self.counts(offsets, positives)?;
        let counter = ScreenCounter::new(self.space, self.job(&counts, queries.start), &|_| false, self.control)?;
        let pairs = queries.len() as u64 * self.space.rows(Side::Gallery) as u64;
        let packing = counter.packing(self.space, pairs, self.control)?;
        traverse_rectangle(self.space, &packing, &counter, queries, self.control)?;
        Ok(counts)
    }

    /// Screens each pair of queries once for both, where the queries are their own gallery. Peers add up their counts.
    fn count_by_symmetry(&self, rounds: Vec<Round>, peers: &dyn Peers) -> Result<PartialCounts> {
        let few = |q: usize| self.matches.few(q);
        let (offsets, positives) = self.finder().find_with_peers(self.space, &few, peers, self.control)?;
        let counts = self.counts(offsets, positives)?;
        let counter = ScreenCounter::new(self.space, self.job(&counts, 0), &|_| false, self.control)?;
        let mut shared = if peers.is_alone() { Vec::new() } else { counts.counts()? };
        let pairs = rounds.iter().map(Round::pairs).sum::<usize>() as u64;
        let packing = counter.packing(self.space, pairs, self.control)?;
        if rounds.len() > 1 {
            self.control.took(|| "rounds of peers");
        }
        for round in rounds {
            traverse_triangle(self.space, &packing, &counter, round.rows, round.columns, self.control)?;
            if !peers.is_alone() {
                counts.exchange(&mut shared, peers)?;
                counter.refresh();
            }
        }
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
    use crate::rows::space::Scratch;
    use crate::sizes::Sizes;

    /// Computes R-precision and reciprocal rank of a query by comparing every pair, ties by index; NaN without positives.
    fn reference<S: Space>(space: &S, labels: &[u32], query: usize) -> [f64; 2] {
        let key = |item: usize| {
            let mut keys = Vec::new();
            space.keys(&[(query as u32, item as u32)], &mut Scratch::default(), &mut keys).unwrap();
            keys[0]
        };
        let others: Vec<usize> = (0..labels.len()).filter(|item| *item != query).collect();
        let before = |a: usize, b: usize| key(a) > key(b) || key(a) == key(b) && a < b;
        let rank = |positive: usize| 1 + others.iter().filter(|item| before(**item, positive)).count();
        let ranks: Vec<usize> = others.iter().filter(|i| labels[**i] == labels[query]).map(|i| rank(*i)).collect();
        let Some(first) = ranks.iter().min() else { return [f64::NAN; 2] };
        let hits = ranks.iter().filter(|rank| **rank <= ranks.len()).count();
        [hits as f64 / ranks.len() as f64, 1.0 / *first as f64]
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn each_strategy_alone_gives_the_metrics_of_all_comparisons(
            values in proptest::collection::vec(-2i8..=2, 60 * 3), n in 2usize..60, classes in 1u32..6, start in 0usize..60,
            all_rules: bool,
        ) {
            let x = Array2::from_shape_fn((n, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.5);
            let codes: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect();
            let (kernel, control, rows) = (select(None).unwrap(), Control::default(), Matrix::F32(x.view()));
            let space = Dense::new(rows, None, Similarity::Dot, Precision::SixteenBit, kernel, &control).unwrap();
            let relation = Relation::of_labels(&codes, None).unwrap();
            let metrics = [Metric::RPrecision, Metric::ReciprocalRank];
            let screened = vec![false; n];
            let evaluation = Evaluation {
                space: &space,
                matches: Matches { relation: &relation, tabled: &screened },
                rules: if all_rules { TieRules::All } else { TieRules::One(Ties::Index) },
                metrics: &metrics,
                control: &control,
            };
            let batch = start.min(n - 1)..n;
            let matches = Matches { relation: &relation, tabled: &screened };
            let rounds = Plan::new(&matches, usize::MAX, &Alone).unwrap().rounds.unwrap_or_default();
            let of_counts = |counts: PartialCounts, first_query: usize| {
                let mut results = PerQuery::new(n, &metrics).unwrap();
                results.compute(&counts, Ties::Index, first_query, None, &control).unwrap();
                results
            };
            let mut tabled = [PerQuery::new(n, &metrics).unwrap()];
            let tabled_queries: Vec<u32> = batch.clone().map(|q| q as u32).collect();
            let ranking = Ranking { relations: &[&relation], ties: &[Ties::Index], metrics: &metrics };
            ranking.compute(&space, &tabled_queries, &mut tabled, &control).unwrap();
            let [tabled] = tabled;
            for (results, queries) in [
                (of_counts(evaluation.count_by_screen(batch.clone()).unwrap(), batch.start), batch.clone()),
                (of_counts(evaluation.count_by_symmetry(rounds, &Alone).unwrap(), 0), 0..n),
                (tabled, batch),
            ] {
                for q in queries {
                    let found = [results.columns[0][q], results.columns[1][q]];
                    prop_assert_eq!(found.map(f64::to_bits), reference(&space, &codes, q).map(f64::to_bits));
                }
            }
        }

        #[test]
        fn each_rule_for_ties_has_the_bits_of_its_own_evaluation(
            values in proptest::collection::vec(-2i8..=2, 60 * 3), n in 2usize..60, classes in 1u32..20, deep: bool, gallery: bool,
            many in prop_oneof![Just(None), (1usize..20).prop_map(Some)], last in 1usize..=4,
        ) {
            let x = Array2::from_shape_fn((n, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.5);
            let labels: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect();
            let sizes = Sizes { many_positives: many, ..Sizes::default() };
            let (kernel, control, rows) = (select(None).unwrap(), Control::traced(sizes), Matrix::F32(x.view()));
            let items = gallery.then_some(rows);
            let space = Dense::new(rows, items, Similarity::Dot, Precision::SixteenBit, kernel, &control).unwrap();
            let relation = Relation::of_labels(&labels, gallery.then_some(&labels[..])).unwrap();
            let mut metrics = vec![Metric::Recall(2), Metric::MapAtR, Metric::ReciprocalRank, Metric::Ndcg(5)];
            metrics.extend(deep.then_some(Metric::AveragePrecision));
            let options = Options { metrics, may_lack_matches: true };
            let rules = &[Ties::Expected, Ties::Pessimistic, Ties::Optimistic, Ties::Index][..last];
            let found = evaluate_ties(&space, &relation, rules, &options, &Alone, &control).unwrap();
            prop_assert_eq!(found.len(), rules.len());
            prop_assert!(evaluate_ties(&space, &relation, &[], &options, &Alone, &control).is_err());
            for (found, &ties) in found.iter().zip(rules) {
                let alone = evaluate(&space, &relation, ties, &options, &Alone, &control).unwrap();
                for (found, expected) in found.columns.iter().flatten().zip(alone.columns.iter().flatten()) {
                    prop_assert_eq!(found.to_bits(), expected.to_bits(), "{:?}", ties);
                }
            }
        }
    }
}
