//! Finds hard negatives: the nearest items with different labels, optionally only items that are less similar than a positive.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::memory::{Grow, collect, full};
use crate::rows::classes::Classes;
use crate::rows::comparable::Comparable;
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

/// Finds the `k` nearest items with a different label per item, as [`nearest`] does. Places without an item get `ABSENT`.
/// If `below` is given and the item has a positive, scores must be below the score of the chosen positive minus the margin.
pub fn hard_negatives<S: Comparable>(
    space: &S,
    labels: &[u32],
    k: usize,
    below: Option<(Hardness, f64)>,
    control: &Control,
    reported: &mut [S::Reported],
    indices: &mut [i64],
) -> Result<()> {
    let items = space.rows(Side::Query);
    if !space.is_own_gallery() || labels.len() != items {
        return argument(format!("there are {} labels; expected {items}, and no separate gallery", labels.len()));
    }
    let bounds = match below {
        Some((hardness, margin)) => {
            let mut bounds = positive_scores(space, labels, hardness, control)?;
            bounds.iter_mut().for_each(|bound| *bound -= margin);
            bounds
        }
        None => Vec::new(),
    };
    let filter =
        Filter { labels: Some((labels, labels)), below: below.map(|_| bounds.as_slice()), ..OwnItem::SameIndex.into() };
    reported.fill(S::ABSENT);
    nearest(space, k, filter, control, |query, key| space.report(query, key), reported, indices)
}

/// Computes the score of the hardest or easiest positive per item, or infinity if an item has no positive. Scores in
/// small classes are computed pair by pair, in large classes from tables.
fn positive_scores<S: Comparable>(
    space: &S,
    labels: &[u32],
    hardness: Hardness,
    control: &Control,
) -> Result<Vec<f64>> {
    let classes = Classes::new(labels)?;
    let count = labels.iter().max().map_or(0, |last| last + 1);
    let (worst, pick): (f64, fn(f64, f64) -> f64) = match hardness {
        Hardness::Hardest => (f64::INFINITY, f64::min),
        Hardness::Easiest => (f64::NEG_INFINITY, f64::max),
    };
    // An item has a single label, so threads write to different items.
    let out: Vec<AtomicU64> = collect(labels.iter().map(|_| AtomicU64::new(f64::INFINITY.to_bits())))?;
    (0..count).into_par_iter().try_for_each_init(<(Scratch, Vec<_>)>::default, |(scratch, pairs), label| {
        let (members, sizes) = (classes.members(label), control.sizes());
        let mut of_class = full(members.len(), if members.len() > 1 { worst } else { f64::INFINITY })?;
        let is_small = members.len() < sizes.class_table;
        control.took(|| if is_small { "bounds by pairs" } else { "bounds from tables" });
        let mut scores: Vec<f64> = Vec::new();
        let mut start = 0;
        while start < members.len() {
            control.check()?;
            // To compute a pair only once, compare some items with these and later items, but not with earlier ones.
            let items = &members[start..];
            let queries = &items[..(sizes.table_keys / items.len()).clamp(1, items.len())];
            scores.clear();
            scores.try_resize(queries.len() * items.len(), 0.0)?;
            if is_small {
                pairs.clear();
                pairs.try_extend(queries.iter().flat_map(|query| items.iter().map(|item| (*query, *item))))?;
                scores.clear();
                space.scores(pairs, scratch, &mut scores)?;
            } else {
                space.score_table(queries, items, &mut scores, control)?;
            }
            for (i, line) in scores.chunks(items.len()).enumerate() {
                let (first, others) = of_class[start + i..].split_first_mut().expect("the line's own item");
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
    })?;
    control.check()?;
    collect(out.into_iter().map(|bits| f64::from_bits(bits.into_inner())))
}
