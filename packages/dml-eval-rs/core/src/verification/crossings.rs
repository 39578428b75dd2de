//! Finds the scores where levels are reached, then counts the positives with at least these scores.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::{Grow, allocate, collect, full};
use crate::peers::Peers;
use crate::rows::dense::Dense;
use crate::rows::dense_packing::DensePacking;
use crate::rows::packing::Packing;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::decided::{Decider, Search};
use crate::verification::exchange::{exchange_kept, exchange_observed, exchange_sieved};
use crate::verification::level::{Crossing, Level};
use crate::verification::pairs::PairLabels;
use crate::verification::sample::{Bracket, draw, estimate, share_inside, sort_descending};
use crate::verification::sieve::{LISTED_MARGINS, Sieve, SievedCrossing};
use crate::verification::slots::{Place, Slots, count_and_keep};
use crate::verification::traversal::{Both, traverse};

/// A sample to estimate brackets contains one in this number of negatives, and at least
/// `LEAST_SAMPLE` negatives.
const NEGATIVES_PER_SAMPLED: u64 = 256;
const LEAST_SAMPLE: usize = 1 << 12;

/// The values to compute in a verification.
#[derive(Clone, Debug)]
pub struct VerifyTasks {
    /// The number of positive pairs.
    pub positives: u64,
    /// The number of negative pairs.
    pub negatives: u64,
    /// Ranks of negatives, from 1 for the largest score to `negatives`.
    pub ranks: Vec<u64>,
    /// Whether to find where the proportions of accepted negatives and rejected positives are
    /// equal.
    pub equal_errors: bool,
    /// Whether to count the negatives between adjacent positives.
    pub slots: bool,
}

/// A crossing, with the numbers of positives at this score.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// The score, with the numbers of negatives at this score.
    pub negatives: Crossing,
    /// The number of positives with larger scores.
    pub above: u64,
    /// The number of positives with at least this score.
    pub at_least: u64,
}

/// The result of a verification.
#[derive(Debug, PartialEq)]
pub struct Verified {
    /// The scores of the negatives at `VerifyTasks::ranks`, in this order; then, if requested, the
    /// score where errors are equal.
    pub points: Vec<Point>,
    /// The numbers of negatives between adjacent positives, if requested.
    pub slots: Option<Slots>,
}

/// Verifies all pairs of queries and items by score, or all unordered pairs of distinct items of a
/// single array. Peers compare parts of the negatives, and all return the complete result.
pub fn verify(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    tasks: &VerifyTasks,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Verified> {
    labels.check(space, space.is_own_gallery())?;
    let &VerifyTasks { positives: number, negatives, equal_errors, slots, .. } = tasks;
    let counted = labels.count_negatives()?;
    if counted != negatives || tasks.ranks.iter().any(|rank| !(1..=negatives).contains(rank)) {
        return argument(format!(
            "there are {counted} negatives; expected {negatives}, and ranks of at most this"
        ));
    }
    let most = control.sizes().verify_held as u64;
    let held = number <= most;
    if !held && (equal_errors || slots) {
        return argument(format!(
            "there are {number} positive pairs; 'eer' and 'auc' keep the score of each, at most \
             {most}: omit 'eer' and 'auc', or verify given pairs"
        ));
    }
    let positives =
        if held { labels.sorted_positives(space, number as usize, control)? } else { Vec::new() };
    if number == 0 || negatives == 0 || held && positives.len() as u64 != number {
        return argument(format!(
            "too few pairs; expected {number} positives (at least 1) and a negative"
        ));
    }
    let levels = levels(&tasks.ranks, equal_errors.then_some((number, negatives)));
    let find = Finding {
        space,
        labels,
        levels: &levels,
        positives: &positives,
        negatives,
        peers,
        control,
    };
    let (crossings, slots) = if slots {
        let (crossings, slots) = find.among_slots()?;
        (crossings, Some(slots))
    } else {
        (find.by_screen()?, None)
    };

    let mut points =
        collect(crossings.into_iter().map(|negatives| Point { negatives, above: 0, at_least: 0 }))?;
    let mut count = |scores: &[f64]| {
        for point in &mut points {
            control.check()?;
            point.above +=
                scores.iter().filter(|score| **score > point.negatives.score).count() as u64;
            point.at_least +=
                scores.iter().filter(|score| **score >= point.negatives.score).count() as u64;
        }
        Ok(())
    };
    if held {
        count(&positives)?
    } else {
        labels.for_positives(space, control, count)?
    }
    Ok(Verified { points, slots })
}

/// Lists the levels for `ranks`, and for equal errors if the numbers of positives and negatives are
/// given.
#[expect(clippy::disallowed_methods, reason = "levels are few")]
pub(crate) fn levels(ranks: &[u64], equal_errors: Option<(u64, u64)>) -> Vec<Level> {
    let mut levels: Vec<Level> = ranks.iter().map(|&rank| Level::for_rank(rank)).collect();
    levels.extend(
        equal_errors.map(|(positives, negatives)| Level::for_equal_errors(positives, negatives)),
    );
    levels
}

impl Level {
    /// Returns the level that is reached by the negative with this rank, counted from the largest
    /// score.
    fn for_rank(rank: u64) -> Level {
        Level { negative: 1, positive: 0, total: u128::from(rank) }
    }

    /// Returns the level at which the proportions of accepted negatives and accepted positives add
    /// up to 1.
    fn for_equal_errors(positives: u64, negatives: u64) -> Level {
        Level {
            negative: positives,
            positive: negatives,
            total: u128::from(positives) * u128::from(negatives),
        }
    }
}

/// The search for the crossings of all levels.
struct Finding<'a, 'rows> {
    space: &'a Dense<'rows>,
    labels: &'a PairLabels<'a>,
    levels: &'a [Level],
    /// The scores of all positives, in ascending order.
    positives: &'a [f64],
    negatives: u64,
    peers: &'a dyn Peers,
    control: &'a Control,
}

impl Finding<'_, '_> {
    /// Samples negatives to estimate a bracket per level.
    fn estimate(&self) -> Result<(Vec<Bracket>, Option<Vec<f64>>)> {
        if self.levels.is_empty() {
            return Ok((Vec::new(), None));
        }
        let most = self.control.sizes().verify_sample;
        let size =
            ((self.negatives / NEGATIVES_PER_SAMPLED) as usize).clamp(most.min(LEAST_SAMPLE), most);
        let sample =
            draw(self.space, self.labels, size, self.control)?.filter(|sample| !sample.is_empty());
        let all = Bracket { low: f64::NEG_INFINITY, middle: 0.0, high: f64::INFINITY };
        let bracket = |level: &Level| match &sample {
            Some(sample) => estimate(*level, sample, 0, self.negatives, self.positives),
            None => all,
        };
        Ok((collect(self.levels.iter().map(bracket))?, sample))
    }

    /// Counts the negatives between adjacent positives, which shows between which positives a
    /// crossing is. The crossing is then found in the kept scores, if these include all negatives
    /// between these positives.
    fn among_slots(&self) -> Result<(Vec<Crossing>, Slots)> {
        let &Finding { space, labels, positives, peers, control, .. } = self;
        let (brackets, sample) = self.estimate()?;
        let capacity = control.sizes().verify_listed / brackets.len().max(1);
        let expected =
            |b: &Bracket| sample.as_ref().map_or(1.0, |sample| share_inside(sample, b, 0.0));
        let most =
            |b: &Bracket| (2.0 * expected(b) * self.negatives as f64) as usize + LEAST_SAMPLE;
        let kept = collect(brackets.iter().map(|b| (*b, most(b).min(capacity))))?;
        drop(sample);
        let (slots, kept) = count_and_keep(space, labels, positives, &kept, peers, control)?;
        let mut found = full(self.levels.len(), None)?;
        let mut searches = allocate(self.levels.len())?;
        for (((&level, kept), bracket), found) in
            self.levels.iter().zip(kept).zip(&brackets).zip(&mut found)
        {
            let mut search = Search::new(level, *bracket);
            match slots.place(level) {
                Place::At(crossing) => *found = Some(crossing),
                Place::Between((low, high), above) => {
                    (search.outer, search.inner) = ((low, high), (low, high));
                    let kept = kept.filter(|_| bracket.low <= low && high <= bracket.high);
                    let inside = kept.map(|mut kept| {
                        kept.retain(|score| (low..=high).contains(score));
                        kept
                    });
                    let inside =
                        if peers.is_alone() { inside } else { exchange_kept(inside, peers)? };
                    if let Some(mut inside) = inside {
                        sort_descending(&mut inside);
                        *found = level.cross(above, &inside, |score| *score, positives, low, high);
                    }
                }
            }
            control.took(|| {
                if found.is_some() { "crossings among slots" } else { "crossings between slots" }
            });
            searches.try_push(search)?;
        }
        Ok((self.decide(found, searches, None)?, slots))
    }

    /// Finds the crossings by traversals of screened values.
    fn by_screen(&self) -> Result<Vec<Crossing>> {
        let (brackets, sample) = self.estimate()?;
        let searches =
            collect(self.levels.iter().zip(&brackets).map(|(l, b)| Search::new(*l, *b)))?;
        self.decide(full(self.levels.len(), None)?, searches, Some((&brackets, sample)))
    }

    /// Finds the remaining crossings. Given brackets and a sample, uses a sieve for brackets with
    /// so few negatives that the lists fit, and searches for the other crossings.
    #[expect(clippy::disallowed_methods, reason = "levels are few")]
    fn decide(
        &self,
        mut found: Vec<Option<Crossing>>,
        mut searches: Vec<Search>,
        sieve: Option<(&[Bracket], Option<Vec<f64>>)>,
    ) -> Result<Vec<Crossing>> {
        let &Finding { space, labels, levels, positives, peers, control, .. } = self;
        if found.iter().all(Option::is_some) {
            return Ok(found.into_iter().flatten().collect());
        }
        let capacity = control.sizes().verify_listed;
        let packing = DensePacking::whole(space)?;
        // Use the largest error bound of any pair for all values.
        let (margin, offset) = (packing.largest_margin()?, packing.offset());
        let wide = space.score_of_value(LISTED_MARGINS * margin);
        let (brackets, sample) = sieve.unwrap_or_default();
        let share =
            |b: &Bracket| sample.as_ref().map_or(0.0, |sample| share_inside(sample, b, wide));
        let sizes: Vec<f64> = brackets.iter().map(|b| share(b) * self.negatives as f64).collect();
        drop(sample);
        let mut sieved = choose_listed(&sizes, capacity);
        let mut decided: Vec<usize> =
            (0..levels.len()).filter(|i| found[*i].is_none() && !sieved.contains(i)).collect();
        let rows = (space.rows(Side::Query), space.rows(Side::Gallery));
        let kept = (capacity / 16).max(1);
        while !(sieved.is_empty() && decided.is_empty()) {
            let listed: Vec<Bracket> = sieved.iter().map(|&i| brackets[i]).collect();
            let asked: Vec<Search> = decided.iter().map(|&i| searches[i]).collect();
            for (kind, levels) in [("sieved", sieved.len()), ("decided", decided.len())] {
                if levels > 0 {
                    control.took(|| format!("crossings {kind}"));
                }
            }
            let both = Both::new(
                Sieve::new(space, &listed, capacity, (margin, offset))?,
                Decider::new(space, labels, &asked, kept, (margin, offset), (0, 0), control)?,
            );
            traverse(space, &packing, &both, peers, control)?;
            let mut observed = both.decider.finish()?;
            let (widened, mut in_brackets) = both.sieve.finish()?;
            if !peers.is_alone() {
                observed = exchange_observed(observed, kept, peers)?;
                in_brackets = exchange_sieved(in_brackets, capacity, rows, peers)?;
            }
            for (&i, observed) in decided.iter().zip(observed) {
                found[i] = searches[i].advance(observed, positives)?;
            }
            let crossing = SievedCrossing { space, positives, margin, offset };
            for ((&i, bracket), in_bracket) in sieved.iter().zip(widened).zip(in_brackets) {
                found[i] = crossing.find(levels[i], bracket, in_bracket, control)?;
            }
            sieved.clear();
            decided = (0..levels.len()).filter(|i| found[*i].is_none()).collect();
        }
        Ok(found.into_iter().flatten().collect())
    }
}

/// Chooses the brackets with negatives to be listed, given the estimated sizes: the smallest
/// brackets that fit.
#[expect(clippy::disallowed_methods, reason = "levels are few")]
fn choose_listed(sizes: &[f64], capacity: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..sizes.len()).collect();
    order.sort_unstable_by(|a, b| sizes[*a].total_cmp(&sizes[*b]).then(a.cmp(b)));
    let mut left = 0.95 * capacity as f64;
    order.retain(|i| {
        left -= sizes[*i];
        left >= 0.0
    });
    order
}
