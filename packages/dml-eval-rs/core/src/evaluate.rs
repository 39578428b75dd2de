//! Retrieval metrics: positives first, then one count over all pairs.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::ledger::{Ledger, Positive, Ties};
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
    let gallery = space.rows(Side::Gallery);
    if labels.len() != queries {
        return argument(format!("labels has {} entries; expected {queries}, one an embedding", labels.len()));
    }
    if let Some(l) = gallery_labels
        && l.len() != gallery
    {
        return argument(format!("gallery_labels has {} entries; expected {gallery}, one a gallery row", l.len()));
    }
    if let Some(k) = recall_at.iter().find(|k| **k < 1) {
        return argument(format!("recall_at holds {k}; expected every K to be at least 1"));
    }
    let own_gallery = gallery_labels.is_none();
    let gallery_labels = gallery_labels.unwrap_or(labels);
    let classes = Classes::new(gallery_labels);
    let matches = |q: usize| classes.members(labels[q]).len() - usize::from(own_gallery);
    let total: usize = (0..queries).map(matches).sum();
    if total == 0 {
        return Err(Error::NoMatches { queries });
    }
    let mut results = PerQuery::with_capacity(queries, recall_at.len());
    let budget = LEDGER_BYTES.max(space.bytes()) / Ledger::BYTES_PER_POSITIVE;
    for strip in strips(queries, matches, budget) {
        let first = strip.start;
        let offsets = strip.clone().scan(0, |end, q| {
            *end += matches(q);
            Some(*end)
        });
        let offsets: Vec<usize> = std::iter::once(0).chain(offsets).collect();
        let whole = strip.len() == queries;
        let positives = find_positives(space, strip.clone(), labels, &classes, own_gallery, &offsets, control)?;
        let ledger = Ledger::open(space, ties, first, (labels, gallery_labels), offsets, positives);
        if own_gallery && whole {
            traverse::triangle(space, &ledger, control)?;
        } else {
            traverse::rectangle(space, &ledger, strip, control)?;
        }
        results.close(&ledger, recall_at);
    }
    Ok(results)
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

/// Every query's positives with their keys, in order.
fn find_positives<S: Space>(
    space: &S,
    queries: Range<usize>,
    labels: &[u32],
    classes: &Classes,
    own_gallery: bool,
    offsets: &[usize],
    control: &Control,
) -> Result<Vec<Positive>> {
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
            let members = classes.members(labels[query]).iter().filter(|m| !(own_gallery && **m as usize == query));
            pairs.extend(members.map(|m| (query as u32, *m)));
            keys.clear();
            space.keys(pairs, scratch, keys);
            for ((slot, key), pair) in part.iter_mut().zip(keys.iter()).zip(pairs.iter()) {
                *slot = Positive { key: *key, index: pair.1 };
            }
            part.sort_unstable_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
        },
    );
    control.check()?;
    Ok(positives)
}
