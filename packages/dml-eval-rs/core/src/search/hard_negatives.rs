//! Finds hard negatives: the nearest items with different labels, optionally only items that are
//! less similar than a positive.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::memory::{Grow, collect, each};
use crate::rows::classes::Classes;
use crate::rows::comparable::Comparable;
use crate::rows::keys::Keys;
use crate::rows::lists::Lists;
use crate::rows::own_item::OwnItem;
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
        let (queries, mut parts) = (collect(0..space.rows(Side::Query) as u32)?, Vec::new());
        let (of_queries, of_items);
        match positives {
            Positives::Listed(lists) => {
                let lists = (0..lists.len()).map(|query| lists.of(query));
                parts.try_extend(queries.chunks(1).zip(lists))?;
            }
            Positives::Labels(labels, items) => {
                (of_queries, of_items) = (Classes::new(labels)?, Classes::new(items)?);
                for label in 0..labels.iter().max().map_or(0, |last| last + 1) {
                    let members = of_items.members(label);
                    let together = (control.sizes().table_keys / members.len().max(1)).max(1);
                    let queries = of_queries.members(label).chunks(together);
                    parts.try_extend(queries.map(|queries| (queries, members)))?;
                }
            }
        }
        scores = positive_scores(space, parts, own, positive.pick(), control)?;
        scores.iter_mut().for_each(|score| *score = *score * factor - margin);
        filter.below = Some(&scores);
    }
    reported.fill(S::ABSENT);
    nearest(space, k, filter, control, |query, key| space.report(query, key), reported, indices)
}

/// The bound of a query without positives.
const UNBOUNDED: f64 = f64::INFINITY;

/// Picks a score per query, or infinity if there is none. Each part consists of queries and the
/// items that match these, besides the queries themselves. Small parts are computed pair by pair,
/// large parts from tables.
fn positive_scores<S: Comparable>(
    space: &S,
    parts: Vec<(&[u32], &[u32])>,
    own: OwnItem<'_>,
    pick: fn(f64, f64) -> f64,
    control: &Control,
) -> Result<Vec<f64>> {
    let sizes = control.sizes();
    let bounds =
        collect((0..space.rows(Side::Query)).map(|_| AtomicU64::new(UNBOUNDED.to_bits())))?;
    let set = |query: u32, score: f64| bounds[query as usize].store(score.to_bits(), Relaxed);
    each(
        parts.into_par_iter(),
        || Ok(<(Keys, Vec<f64>)>::default()),
        |(keys, table), (queries, items)| {
            control.check()?;
            let others = |query: u32| {
                let own = own.of(query as usize).map(|own| own as u32);
                move |item: &u32| Some(*item) != own
            };
            if queries.len().min(items.len()) < sizes.class_table {
                control.took(|| "bounds by pairs");
                for query in queries {
                    let others = items.iter().copied().filter(others(*query));
                    let scores = keys.compute_scores(space, *query as usize, others)?;
                    set(*query, scores.iter().copied().reduce(pick).unwrap_or(UNBOUNDED));
                }
            } else {
                control.took(|| "bounds from tables");
                table.try_resize(queries.len() * items.len(), 0.0)?;
                space.score_table(queries, items, table, control)?;
                let rows = table.chunks(items.len());
                for (query, scores) in queries.iter().zip(rows) {
                    let is_other = others(*query);
                    let others = items.iter().zip(scores).filter(|(item, _)| is_other(item));
                    let picked = others.map(|(_, score)| *score).reduce(pick);
                    set(*query, picked.unwrap_or(UNBOUNDED));
                }
            }
            Ok(())
        },
    )?;
    control.check()?;
    collect(bounds.into_iter().map(|bound| f64::from_bits(bound.into_inner())))
}
