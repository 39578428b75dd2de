//! Retrieval metrics: positives first, then one count over all pairs.

use std::ops::Range;

use rayon::prelude::*;

use crate::books::{Books, Positive, Ties};
use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::ledger::Ledger;
use crate::metrics::PerQuery;
use crate::space::{Scratch, Side, Space};
use crate::traverse;

/// Books are kept for so many bytes of positives at a time, or as many as the inputs have, if that is more.
const LEDGER_BYTES: usize = 96 << 20;

/// Gallery indices by label.
struct Classes {
    offsets: Vec<usize>,
    members: Vec<u32>,
}

impl Classes {
    fn new(labels: &[u32]) -> Self {
        let classes = labels.iter().max().map_or(0, |l| *l as usize + 1);
        let mut offsets = vec![0usize; classes + 1];
        for &l in labels {
            offsets[l as usize + 1] += 1;
        }
        for c in 0..classes {
            offsets[c + 1] += offsets[c];
        }
        let mut next = offsets.clone();
        let mut members = vec![0u32; labels.len()];
        for (i, &l) in labels.iter().enumerate() {
            members[next[l as usize]] = i as u32;
            next[l as usize] += 1;
        }
        Classes { offsets, members }
    }

    fn members(&self, label: u32) -> &[u32] {
        match self.offsets.get(label as usize..label as usize + 2) {
            Some(&[from, to]) => &self.members[from..to],
            _ => &[],
        }
    }
}

/// The metrics of every query.
///
/// Labels are dense codes, the same for both sides. Without `gallery_labels` the queries are their own gallery and each
/// leaves itself out.
#[expect(private_bounds, reason = "only this crate's spaces keep the promise that keys decide")]
pub fn evaluate<S: Space>(
    space: &S,
    labels: &[u32],
    gallery_labels: Option<&[u32]>,
    recall_at: &[u64],
    ties: Ties,
    control: &Control,
) -> Result<PerQuery> {
    let queries = space.rows(Side::Query);
    let own_gallery = gallery_labels.is_none();
    let gallery_labels = gallery_labels.unwrap_or(labels);
    check_lengths(space, labels, gallery_labels)?;
    if let Some(k) = recall_at.iter().find(|k| **k < 1) {
        return argument(format!("recall_at holds {k}; expected every K to be at least 1"));
    }
    let itself = own_gallery.then(|| (0..queries as i64).collect::<Vec<_>>());
    let classes = Classes::new(gallery_labels);
    let matches = |q: usize| classes.members(labels[q]).len() - usize::from(own_gallery);
    if (0..queries).all(|q| matches(q) == 0) {
        return Err(Error::NoMatches { queries });
    }
    let mut results = PerQuery::with_capacity(queries, recall_at.len());
    let budget = LEDGER_BYTES.max(space.bytes()) / Books::BYTES_PER_POSITIVE;
    let strips = strips(queries, matches, budget);
    let by_symmetry = own_gallery && strips.len() == 1;
    let (n, m) = (queries as u64, gallery_labels.len() as u64);
    control.expect(if by_symmetry { n * (n - 1) / 2 } else { n * m });
    for strip in strips {
        let (offsets, positives) = positives_of(space, strip.clone(), labels, &classes, 0, itself.as_deref(), control)?;
        let books = Books::open(ties, offsets, positives, &[])?;
        let ledger = Ledger::open(space, &books, strip.start, (labels, gallery_labels), 0);
        if by_symmetry {
            traverse::triangle(space, &ledger, control)?;
        } else {
            traverse::rectangle(space, &ledger, strip, control)?;
        }
        results.close(&books, recall_at);
    }
    Ok(results)
}

/// The positives of all queries in one part of a gallery, whose first item has the index `first_item` in the whole.
///
/// `itself` gives the index, in the whole gallery, of every query that is part of it and left out, and −1 for others.
/// Returns where each query's positives begin, and these.
#[expect(private_bounds, reason = "only this crate's spaces keep the promise that keys decide")]
pub fn find_positives<S: Space>(
    space: &S,
    labels: &[u32],
    gallery_labels: &[u32],
    first_item: u64,
    itself: Option<&[i64]>,
    control: &Control,
) -> Result<(Vec<usize>, Vec<Positive>)> {
    check_lengths(space, labels, gallery_labels)?;
    let classes = Classes::new(gallery_labels);
    positives_of(space, 0..labels.len(), labels, &classes, first_item, itself, control)
}

/// Counts the negatives of one part of a gallery into the books of all queries.
#[expect(private_bounds, reason = "only this crate's spaces keep the promise that keys decide")]
pub fn count<S: Space>(
    space: &S,
    books: &Books,
    labels: &[u32],
    gallery_labels: &[u32],
    first_item: u64,
    control: &Control,
) -> Result<()> {
    check_lengths(space, labels, gallery_labels)?;
    if books.queries() != labels.len() {
        return argument(format!("the books are of {} queries; expected {}", books.queries(), labels.len()));
    }
    control.expect(labels.len() as u64 * gallery_labels.len() as u64);
    let ledger = Ledger::open(space, books, 0, (labels, gallery_labels), first_item);
    traverse::rectangle(space, &ledger, 0..labels.len(), control)
}

fn check_lengths<S: Space>(space: &S, labels: &[u32], gallery_labels: &[u32]) -> Result<()> {
    let (queries, gallery) = (space.rows(Side::Query), space.rows(Side::Gallery));
    if labels.len() != queries {
        return argument(format!("labels has {} entries; expected {queries}, one an embedding", labels.len()));
    }
    if gallery_labels.len() != gallery {
        return argument(format!(
            "gallery_labels has {} entries; expected {gallery}, one a gallery row",
            gallery_labels.len()
        ));
    }
    Ok(())
}

/// Cuts the queries so that no strip has more positives than `budget`, or has one query.
fn strips(queries: usize, matches: impl Fn(usize) -> usize, budget: usize) -> Vec<Range<usize>> {
    let mut strips = Vec::new();
    let (mut start, mut held) = (0, 0);
    for q in 0..queries {
        let m = matches(q);
        if held + m > budget && q > start {
            strips.push(start..q);
            (start, held) = (q, 0);
        }
        held += m;
    }
    strips.push(start..queries);
    strips
}

/// The positives of some queries, and where each query's begin.
fn positives_of<S: Space>(
    space: &S,
    queries: Range<usize>,
    labels: &[u32],
    classes: &Classes,
    first_item: u64,
    itself: Option<&[i64]>,
    control: &Control,
) -> Result<(Vec<usize>, Vec<Positive>)> {
    let others = |query: usize| {
        let own = itself.map(|i| i[query]);
        let is_own = move |m: u32| own == i64::try_from(first_item + u64::from(m)).ok();
        classes.members(labels[query]).iter().copied().filter(move |m| !is_own(*m))
    };
    let mut offsets = vec![0];
    for query in queries.clone() {
        offsets.push(offsets[offsets.len() - 1] + others(query).count());
    }
    let mut positives = vec![Positive { key: 0.0, index: 0 }; offsets[queries.len()]];
    let mut parts = Vec::with_capacity(queries.len());
    let mut rest = positives.as_mut_slice();
    for (i, query) in queries.enumerate() {
        let (part, after) = rest.split_at_mut(offsets[i + 1] - offsets[i]);
        rest = after;
        parts.push((query, part));
    }
    parts.into_par_iter().for_each_init(
        || (Scratch::default(), Vec::new(), Vec::new()),
        |(scratch, pairs, keys), (query, part)| {
            if control.is_cancelled() {
                return;
            }
            pairs.clear();
            pairs.extend(others(query).map(|m| (query as u32, m)));
            keys.clear();
            space.keys(pairs, scratch, keys);
            for ((slot, key), pair) in part.iter_mut().zip(keys.iter()).zip(pairs.iter()) {
                *slot = Positive { key: *key, index: first_item + u64::from(pair.1) };
            }
        },
    );
    control.check()?;
    Ok((offsets, positives))
}
