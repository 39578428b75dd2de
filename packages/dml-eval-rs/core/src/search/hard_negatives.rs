//! Finds hard negatives: the nearest items with different labels, optionally only items that are
//! less similar than a positive.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::memory::{Grow, collect, each, full};
use crate::rows::classes::Classes;
use crate::rows::comparable::Comparable;
use crate::rows::keys::Keys;
use crate::rows::lists::Lists;
use crate::rows::own_item::OwnItem;
use crate::rows::space::Scratch;
use crate::search::filter::Filter;
use crate::search::nearest::nearest;
use crate::side::Side;

/// Chooses the positive whose score bounds the scores of the negatives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hardness {
    /// The positive with the lowest score.
    Hardest,
    /// The positive with the highest score.
    Easiest,
}

impl Hardness {
    /// Returns the function that picks the score of this positive.
    fn pick(self) -> fn(f64, f64) -> f64 {
        match self {
            Hardness::Hardest => f64::min,
            Hardness::Easiest => f64::max,
        }
    }
}

impl std::str::FromStr for Hardness {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "hardest" => Ok(Hardness::Hardest),
            "easiest" => Ok(Hardness::Easiest),
            _ => argument(format!("unknown bound {name:?}; expected hardest or easiest")),
        }
    }
}

/// The items that match a query.
#[derive(Clone, Copy, Debug)]
pub enum Positives<'a> {
    /// Labels for queries and items. Items with the query's label match.
    Labels(&'a [u32], &'a [u32]),
    /// The matches per query.
    Listed(Lists<'a>),
}

/// The bound of the negatives' scores: the score of a positive times a factor, minus a margin.
#[derive(Clone, Copy, Debug)]
pub struct Ceiling {
    /// Chooses the positive whose score is used.
    pub positive: Hardness,
    /// The factor, which is 1 or smaller.
    pub factor: f64,
    /// The margin, which is at least 0.
    pub margin: f64,
}

/// Finds the `k` nearest items that don't match, per query, as [`nearest`] does; further places are
/// absent. If there is a bound, the scores must be lower, unless the query has no positive. If
/// `allowed` is given, a search chooses from these items.
pub fn hard_negatives<S: Comparable>(
    space: &S,
    (positives, allowed): (Positives<'_>, Option<Lists<'_>>),
    k: usize,
    bound: Option<Ceiling>,
    control: &Control,
    reported: &mut [S::Reported],
    indices: &mut [i64],
) -> Result<()> {
    let own = if space.is_own_gallery() { OwnItem::SameIndex } else { OwnItem::Absent };
    let listed = |query: usize| match positives {
        Positives::Listed(lists) => lists.of(query),
        Positives::Labels(..) => &[],
    };
    let mut filter = Filter { allowed, ..own.into() };
    match positives {
        Positives::Labels(queries, items) => filter.labels = Some((queries, items)),
        Positives::Listed(lists) => {
            lists.check("positives", space.rows(Side::Query), space.rows(Side::Gallery))?;
            filter.excluded = Some(&listed);
        }
    }
    filter.check(space.rows(Side::Query), space.rows(Side::Gallery))?;
    let mut scores;
    if let Some(Ceiling { positive, factor, margin }) = bound {
        scores = match positives {
            Positives::Labels(labels, _) if space.is_own_gallery() => {
                positive_scores(space, labels, positive, control)?
            }
            Positives::Labels(labels, items) => {
                let classes = Classes::new(items)?;
                listed_scores(
                    space,
                    |query| classes.members(labels[query]),
                    own,
                    positive,
                    control,
                )?
            }
            Positives::Listed(_) => listed_scores(space, listed, own, positive, control)?,
        };
        scores.iter_mut().for_each(|score| *score = *score * factor - margin);
        filter.below = Some(&scores);
    }
    reported.fill(S::ABSENT);
    nearest(space, k, filter, control, |query, key| space.report(query, key), reported, indices)
}

/// Computes the scores of the queries with the hardest or easiest of the listed items, or infinity
/// if a list is empty.
fn listed_scores<'a, S: Comparable>(
    space: &S,
    listed: impl Fn(usize) -> &'a [u32] + Sync,
    own: OwnItem<'_>,
    hardness: Hardness,
    control: &Control,
) -> Result<Vec<f64>> {
    control.took(|| "bounds by lists");
    let mut bounds = full(space.rows(Side::Query), f64::INFINITY)?;
    let pick = hardness.pick();
    each(
        bounds.par_iter_mut().enumerate(),
        || Ok(Keys::default()),
        |keys, (query, bound)| {
            let own = own.of(query).map(|own| own as u32);
            let items = listed(query).iter().copied().filter(|item| Some(*item) != own);
            if let Some(score) =
                keys.compute_scores(space, query, items)?.iter().copied().reduce(pick)
            {
                *bound = score;
            }
            control.check()
        },
    )?;
    Ok(bounds)
}

/// Computes the items' scores with the hardest or easiest positive, or infinity if a positive is
/// missing. Small classes are computed pair by pair, large classes from tables.
fn positive_scores<S: Comparable>(
    space: &S,
    labels: &[u32],
    hardness: Hardness,
    control: &Control,
) -> Result<Vec<f64>> {
    let classes = Classes::new(labels)?;
    let count = labels.iter().max().map_or(0, |last| last + 1);
    let pick = hardness.pick();
    let worst = if hardness == Hardness::Hardest { f64::INFINITY } else { f64::NEG_INFINITY };
    // Items belong to a single label, so threads write different items.
    let out: Vec<AtomicU64> =
        collect(labels.iter().map(|_| AtomicU64::new(f64::INFINITY.to_bits())))?;
    (0..count).into_par_iter().try_for_each_init(
        <(Scratch, Vec<_>)>::default,
        |(scratch, pairs), label| {
            let (members, sizes) = (classes.members(label), control.sizes());
            let mut of_class =
                full(members.len(), if members.len() > 1 { worst } else { f64::INFINITY })?;
            let is_small = members.len() < sizes.class_table;
            control.took(|| if is_small { "bounds by pairs" } else { "bounds from tables" });
            let mut scores: Vec<f64> = Vec::new();
            let mut start = 0;
            while start < members.len() {
                control.check()?;
                // To compute a pair only once, compare some items with these and later items, but
                // not with earlier ones.
                let items = &members[start..];
                let queries = &items[..(sizes.table_keys / items.len()).clamp(1, items.len())];
                scores.clear();
                scores.try_resize(queries.len() * items.len(), 0.0)?;
                if is_small {
                    pairs.clear();
                    pairs.try_extend(
                        queries.iter().flat_map(|query| items.iter().map(|item| (*query, *item))),
                    )?;
                    scores.clear();
                    space.scores(pairs, scratch, &mut scores)?;
                } else {
                    space.score_table(queries, items, &mut scores, control)?;
                }
                for (i, line) in scores.chunks(items.len()).enumerate() {
                    let (first, others) =
                        of_class[start + i..].split_first_mut().expect("the line's own item");
                    for (bound, score) in others.iter_mut().zip(&line[i + 1..]) {
                        *bound = pick(*bound, *score);
                        *first = pick(*first, *score);
                    }
                }
                start += queries.len();
            }
            let bounds = members.iter().zip(of_class);
            bounds.for_each(|(item, bound)| out[*item as usize].store(bound.to_bits(), Relaxed));
            Ok(())
        },
    )?;
    control.check()?;
    collect(out.into_iter().map(|bits| f64::from_bits(bits.into_inner())))
}
