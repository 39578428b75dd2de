//! Computes retrieval metrics: finds the positives first, then compares all pairs once to count the
//! negatives.

use std::ops::Range;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::memory::{collect, collect_counted, try_collect};
use crate::peers::{Alone, Peers};
use crate::rank::choice::Choice;
use crate::rank::metric::Metric;
use crate::rank::metrics::PerQuery;
use crate::rank::partial_counts::PartialCounts;
use crate::rank::plan::{Plan, Round};
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
    /// Whether to accept that none of the queries has a match. All values will then be NaN.
    pub may_lack_matches: bool,
}

/// Computes the metrics per query, under each of the rules for ties. Peers do a part of the work
/// each, and all return the results for all queries.
///
/// The results equal the results of separate calls, but pairs are compared only once.
pub fn evaluate<S: Comparable>(
    space: &S,
    relation: &Relation<'_>,
    rules: &[Ties],
    options: &Options,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Vec<PerQuery>> {
    if rules.is_empty() {
        return argument("rules is empty; expected at least one rule for ties");
    }
    let queries = space.rows(Side::Query);
    relation.check(space)?;
    if !options.may_lack_matches && (0..queries).all(|q| relation.number(q) == 0) {
        return Err(Error::NoMatches { queries });
    }
    let metrics = &options.metrics;
    let depth = metrics.iter().map(|metric| metric.depth()).max().unwrap_or(0);
    let ranking = Ranking { relation, ties: rules, metrics };
    let by_values = ranking.suits_values(queries, control) && space.distances().is_none();
    let sizes = control.sizes();
    let bytes = sizes.count_bytes.max(sizes.bytes_per_input_byte * space.bytes());
    let budget = bytes / PartialCounts::bytes_per_positive(rules.into());
    let is_symmetric = relation.is_symmetric();
    let is_once = is_symmetric && (0..queries).map(|q| relation.number(q)).sum::<usize>() <= budget;
    let tabled = Choice { space, relation, control }.for_evaluation(depth, by_values, is_once)?;
    let few = collect((0..queries).map(|q| if tabled[q] { 0 } else { relation.number(q) }))?;
    let evaluation =
        Evaluation { space, relation, few: &few, rules: rules.into(), metrics, control };
    let items = space.rows(Side::Gallery);
    let plan = Plan::new(&few, &tabled, is_symmetric, budget, peers)?;
    control.add_to_total(plan.pairs(items) as u64);

    let mut results = try_collect(rules.iter().map(|_| PerQuery::new(queries, metrics)))?;
    let compute = |results: &mut [PerQuery], (counts, too_high): Counted, first_query: usize| {
        for (result, ties) in results.iter_mut().zip(rules) {
            result.compute(&counts, *ties, first_query, relation.grades(), control)?;
        }
        control.add_to_total((too_high.len() * items) as u64);
        ranking.compute(space, &too_high, results, control)
    };
    if plan.screened.len() > 1 {
        control.took(|| "screened in batches");
    }
    for batch in &plan.screened {
        let found = evaluation.count_by_screen(batch.clone())?;
        compute(&mut results, found, batch.start)?;
    }
    ranking.compute(space, &plan.tabled, &mut results, control)?;
    let screened = plan.screened.iter().cloned().flatten().filter(|q| few[*q] > 0);
    let is_exchanged = |q: usize| tabled[q] || plan.rounds.is_none() && few[q] > 0;
    let computed = collect_counted(screened.chain(plan.tabled.iter().map(|q| *q as usize)))?;
    for result in &mut results {
        result.exchange(&computed, queries, is_exchanged, peers)?;
    }
    if let Some(rounds) = plan.rounds {
        let found = evaluation.count_by_symmetry(rounds, peers)?;
        compute(&mut results, found, 0)?;
    }
    Ok(results)
}

/// Counts, and the queries whose counts can't be used because a positive that matters was dropped.
type Counted = (PartialCounts, Vec<u32>);

/// The inputs of an evaluation. The methods screen queries, and return counts for all rules and
/// metrics.
struct Evaluation<'a, S> {
    space: &'a S,
    relation: &'a Relation<'a>,
    /// The number of positives per query, or 0 if the query is ranked from a table of keys.
    few: &'a [usize],
    rules: TieRules,
    metrics: &'a [Metric],
    control: &'a Control,
}

impl<S: Space> Evaluation<'_, S> {
    /// Finds the positives of `queries`, and starts the counts at 0. With peers, `queries` must be
    /// all queries.
    fn start(&self, queries: Range<usize>, peers: &dyn Peers) -> Result<PartialCounts> {
        let few = |q: usize| self.few[q];
        let finder = PositiveFinder(self.relation);
        let (offsets, positives) = match peers.is_alone() {
            true => finder.find(self.space, queries, &few, self.control)?,
            false => finder.find_with_peers(self.space, &few, peers, self.control)?,
        };
        PartialCounts::new(self.rules, self.metrics, offsets, positives, &[])
    }

    fn counter<'b>(
        &'b self,
        counts: &'b PartialCounts,
        first_query: usize,
    ) -> Result<ScreenCounter<'b>> {
        let with = (counts, self.relation);
        ScreenCounter::new(self.space, with, first_query, &|_| false, self.control)
    }

    /// Screens queries with few positives against the gallery.
    fn count_by_screen(&self, queries: Range<usize>) -> Result<Counted> {
        let counts = self.start(queries.clone(), &Alone)?;
        let mut counter = self.counter(&counts, queries.start)?;
        let pairs = queries.len() as u64 * self.space.rows(Side::Gallery) as u64;
        let packing = counter.packing(self.space, pairs)?;
        counter.guess(self.space, &packing)?;
        traverse_rectangle(self.space, &packing, &counter, queries, self.control)?;
        let too_high = counter.queries_too_high()?;
        Ok((counts, too_high))
    }

    /// Screens pairs of queries once for both, when the queries are also the gallery. Peers add up
    /// the counts.
    fn count_by_symmetry(&self, rounds: Vec<Round>, peers: &dyn Peers) -> Result<Counted> {
        let counts = self.start(0..self.space.rows(Side::Query), peers)?;
        let mut counter = self.counter(&counts, 0)?;
        let mut shared = if peers.is_alone() { Vec::new() } else { counts.counts()? };
        let pairs = rounds.iter().map(Round::pairs).sum::<usize>() as u64;
        let packing = counter.packing(self.space, pairs)?;
        if peers.is_alone() {
            counter.guess(self.space, &packing)?;
        }
        if rounds.len() > 1 {
            self.control.took(|| "rounds of peers");
        }
        for round in rounds {
            let (rows, columns) = (round.rows, round.columns);
            traverse_triangle(self.space, &packing, &counter, rows, columns, self.control)?;
            if !peers.is_alone() {
                counts.exchange(&mut shared, peers)?;
                counter.refresh();
            }
        }
        let too_high = counter.queries_too_high()?;
        Ok((counts, too_high))
    }
}
