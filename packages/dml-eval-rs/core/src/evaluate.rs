//! Retrieval metrics: positives first, then one count over all pairs.

use std::ops::Range;

use crate::books::{Books, Positive, Ties};
use crate::control::Control;
use crate::crowd;
use crate::error::{Error, Result, argument};
use crate::ledger::Ledger;
use crate::metrics::PerQuery;
use crate::positives::{Classes, Find};
use crate::space::{Side, Space};
use crate::traverse;

/// Books are kept for so many bytes of positives at a time, or as many as the inputs have, if that is more.
const LEDGER_BYTES: usize = 96 << 20;

/// The metrics of every query.
///
/// Labels are dense codes, the same for both sides. Without `gallery_labels` the queries are their own gallery and each
/// leaves itself out. `crowd` is the number of matches from which on all keys of a query are computed; `None` for the
/// one that is quickest. It changes no bit.
#[expect(private_bounds, reason = "only this crate's spaces keep the promise that keys decide")]
pub fn evaluate<S: Space>(
    space: &S,
    labels: &[u32],
    gallery_labels: Option<&[u32]>,
    recall_at: &[u64],
    ties: Ties,
    crowd: Option<usize>,
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
    let least = crowd.unwrap_or_else(|| crowd::least_matches(space));
    let few = |q: usize| Some(matches(q)).filter(|m| *m < least).unwrap_or(0);
    let many = |q: usize| Some(matches(q)).filter(|m| *m >= least).unwrap_or(0);
    let budget = LEDGER_BYTES.max(space.bytes()) / Books::BYTES_PER_POSITIVE;
    let (screened, crowded) = (strips(queries, few, budget), strips(queries, many, budget));
    let by_symmetry = own_gallery && screened.len() == 1;
    let (n, m) = (queries as u64, gallery_labels.len() as u64);
    let crowd_size = (0..queries).filter(|q| many(*q) > 0).count() as u64;
    let screened_size: u64 = screened.iter().map(|s| s.len() as u64).sum();
    control.expect(crowd_size * m + if by_symmetry { n * (n - 1) / 2 } else { screened_size * m });

    let mut results = PerQuery::new(queries, recall_at.len());
    let open = |strip: Range<usize>, wanted: &(dyn Fn(usize) -> usize + Sync)| {
        let find = Find { labels, classes: &classes, first_item: 0, itself: itself.as_deref() };
        let (offsets, positives) = find.positives(space, strip, wanted, control)?;
        Books::open(ties, offsets, positives, &[])
    };
    for strip in screened {
        let books = open(strip.clone(), &few)?;
        let ledger = Ledger::open(space, &books, strip.start, (labels, gallery_labels), 0, usize::MAX);
        if by_symmetry {
            traverse::triangle(space, &ledger, control)?;
        } else {
            traverse::rectangle(space, &ledger, strip.clone(), control)?;
        }
        results.close(&books, strip.start, recall_at);
    }
    for strip in crowded {
        let books = open(strip.clone(), &many)?;
        let members: Vec<u32> = strip.clone().filter(|q| many(*q) > 0).map(|q| q as u32).collect();
        let first_query = strip.start;
        let count = crowd::Count { books: &books, first_query, query_labels: labels, gallery_labels, first_item: 0 };
        count.run(space, &members, control)?;
        results.close(&books, first_query, recall_at);
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
    let find = Find { labels, classes: &Classes::new(gallery_labels), first_item, itself };
    find.positives(space, 0..labels.len(), &|_| usize::MAX, control)
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
    let least = crowd::least_matches(space);
    let (many, few): (Vec<u32>, Vec<u32>) =
        (0..labels.len() as u32).partition(|q| books.positives(*q as usize).len() >= least);
    crowd::Count { books, first_query: 0, query_labels: labels, gallery_labels, first_item }
        .run(space, &many, control)?;
    if few.is_empty() {
        return Ok(());
    }
    let ledger = Ledger::open(space, books, 0, (labels, gallery_labels), first_item, least);
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

/// Cuts the queries so that no strip has more positives than `budget`, or one query has them all. Strips without any are left
/// out.
fn strips(queries: usize, matches: impl Fn(usize) -> usize, budget: usize) -> Vec<Range<usize>> {
    let mut strips = Vec::new();
    let (mut start, mut held) = (0, 0);
    for q in 0..queries {
        let m = matches(q);
        if held > 0 && held + m > budget {
            strips.push(start..q);
            (start, held) = (q, 0);
        }
        held += m;
    }
    if held > 0 {
        strips.push(start..queries);
    }
    strips
}
