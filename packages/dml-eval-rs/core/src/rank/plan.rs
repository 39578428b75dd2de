//! Plans an evaluation: which queries (or pairs of queries) a process screens, and which queries it
//! ranks from tables.

use std::ops::Range;

use crate::error::Result;
use crate::memory::{Grow, collect_counted};
use crate::peers::{Peers, part};

/// The work of a process.
pub(crate) struct Plan {
    /// Rounds over pairs of queries, compared once and counted for both. If `None`, `screened` is
    /// used instead.
    pub rounds: Option<Vec<Round>>,
    /// Batches of queries to screen against the gallery.
    pub screened: Vec<Range<usize>>,
    /// Queries to rank by tables of keys.
    pub tabled: Vec<u32>,
}

impl Plan {
    /// Plans the part of this process. `few` is the number of positives per query, or 0 to rank the
    /// query from a table; at most `budget` positives are in memory, or a single query's positives
    /// if there are more.
    ///
    /// Pairs of queries are compared only once if the relations allow this and all positives fit
    /// into one batch.
    pub fn new(
        few: &[usize],
        tabled: &[bool],
        are_symmetric: bool,
        budget: usize,
        peers: &dyn Peers,
    ) -> Result<Plan> {
        let queries = few.len();
        let own_part =
            |counts: &dyn Fn(usize) -> bool| part(peers, queries, |q| u64::from(counts(q)));
        let symmetric = are_symmetric && batches(0..queries, few, budget)?.len() == 1;
        let screened = own_part(&|q| few[q] > 0);
        Ok(Plan {
            rounds: symmetric.then(|| Round::all(queries, peers)).transpose()?,
            screened: if symmetric { Vec::new() } else { batches(screened, few, budget)? },
            tabled: collect_counted(
                own_part(&|q| tabled[q]).filter(|q| tabled[*q]).map(|q| q as u32),
            )?,
        })
    }

    /// Counts the pairs to compare with a gallery of `gallery` items.
    pub fn pairs(&self, gallery: usize) -> usize {
        let rounds = self.rounds.iter().flatten().map(Round::pairs).sum::<usize>();
        let screened = self.screened.iter().map(|batch| batch.len() * gallery).sum::<usize>();
        rounds + screened + self.tabled.len() * gallery
    }
}

/// A part of the pairs of an array with itself: the pairs of an item in `rows` and a later item in
/// `columns`.
pub(crate) struct Round {
    pub rows: Range<usize>,
    pub columns: Range<usize>,
}

impl Round {
    /// Plans the part of this process.
    ///
    /// With peers there are multiple rounds, and counts are added up after each: the short first
    /// rounds raise the thresholds of all processes. If each process used only its own counts, it
    /// would list more values, which costs more than the products.
    fn all(items: usize, peers: &dyn Peers) -> Result<Vec<Round>> {
        let edges = [0, items / 64, items / 16, items / 4, items];
        let edges = if peers.is_alone() { &[0, items][..] } else { &edges };
        let round = |rows: Range<usize>| {
            let columns = part(peers, items, |c| Round::rows_before(&rows, c) as u64);
            Round { rows, columns }
        };
        let edges = edges.windows(2).map(|edge| edge[0]..edge[1]).filter(|rows| !rows.is_empty());
        collect_counted(edges.map(round))
    }

    /// Counts the rows before a column.
    fn rows_before(rows: &Range<usize>, column: usize) -> usize {
        column.clamp(rows.start, rows.end) - rows.start
    }

    /// Counts the pairs of this round.
    pub fn pairs(&self) -> usize {
        self.columns.clone().map(|c| Round::rows_before(&self.rows, c)).sum()
    }
}

/// Splits queries into batches of at most `budget` positives, or a single query with more. Omits
/// batches with no positive.
fn batches(queries: Range<usize>, positives: &[usize], budget: usize) -> Result<Vec<Range<usize>>> {
    let mut batches = Vec::new();
    let (mut start, mut sum) = (queries.start, 0);
    for q in queries.clone() {
        let n = positives[q];
        if sum > 0 && sum + n > budget {
            batches.try_push(start..q)?;
            (start, sum) = (q, 0);
        }
        sum += n;
    }
    if sum > 0 {
        batches.try_push(start..queries.end)?;
    }
    Ok(batches)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::peers::Isolated;
    use crate::rank::relation::Relation;

    proptest! {
        #[test]
        fn plans_of_all_processes_cover_every_query_once_within_the_budget(
            labels in proptest::collection::vec(0u32..5, 1..60),
            own_gallery in any::<bool>(),
            many_positives in 0usize..20,
            budget in 0usize..300,
            processes in 1usize..5,
        ) {
            let relation =
                Relation::of_labels(&labels, (!own_gallery).then_some(&labels[..])).unwrap();
            let tabled: Vec<bool> =
                (0..labels.len()).map(|q| relation.number(q) >= many_positives.max(1)).collect();
            let few: Vec<usize> =
                (0..labels.len()).map(|q| if tabled[q] { 0 } else { relation.number(q) }).collect();
            let plan = |rank| {
                Plan::new(&few, &tabled, own_gallery, budget, &Isolated(rank, processes)).unwrap()
            };
            let plans: Vec<Plan> = (0..processes).map(plan).collect();
            let symmetric = plans[0].rounds.is_some();
            prop_assert!(plans.iter().all(|plan| plan.rounds.is_some() == symmetric));
            for batch in plans.iter().flat_map(|plan| &plan.screened) {
                let holders = batch.clone().filter(|q| few[*q] > 0).count();
                let sum = few[batch.clone()].iter().sum::<usize>();
                prop_assert!(holders > 0 && (sum <= budget || holders == 1));
            }
            for q in 0..labels.len() {
                let times = |batches: fn(&Plan) -> &Vec<Range<usize>>| {
                    plans.iter().flat_map(batches).filter(|batch| batch.contains(&q)).count()
                };
                let times_tabled = plans
                    .iter()
                    .flat_map(|plan| &plan.tabled)
                    .filter(|tabled| **tabled as usize == q)
                    .count();
                prop_assert_eq!(times_tabled, usize::from(tabled[q]));
                if few[q] > 0 {
                    prop_assert_eq!(times(|plan| &plan.screened), usize::from(!symmetric));
                }
            }
        }
    }
}
