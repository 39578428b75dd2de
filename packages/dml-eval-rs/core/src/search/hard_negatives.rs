//! Hard negatives: the nearest items with different labels, optionally only items that are less similar than an item's positives.

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

/// The positive whose score is the bound for an item's negatives.
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

/// Finds the `k` nearest items with different labels for each item, like [`nearest`] does; with `below`, only items whose score is
/// below that of this positive, minus a margin. Items without a positive have no bound. Places after the last negative are absent.
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
        return argument(format!("labels has {} entries; expected {items}, and no separate gallery", labels.len()));
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

/// Computes the score of each item with its hardest or easiest positive, or infinity if it has none: pair by pair in small
/// classes, from tables in large classes.
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
    // Each item is in one class only, so that threads write to different entries.
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
            // Compute each pair once: between some items, and all items from the first of these on.
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
