//! Retrieval metrics: positives first, then one count over all pairs.

use std::ops::Range;

use crate::books::{Books, Positive, Ties};
use crate::control::Control;
use crate::crowd;
use crate::error::{Error, Result, argument};
use crate::ledger::Ledger;
use crate::memory::{collected, room};
use crate::metrics::PerQuery;
use crate::peers::{Peers, part};
use crate::positives::{Classes, Find};
use crate::space::{Side, Space};
use crate::traverse;

/// Books are kept for so many bytes of positives at a time, or as many as the inputs have, if that is more.
const LEDGER_BYTES: usize = 96 << 20;

/// What is measured.
#[derive(Clone, Debug)]
pub struct Options {
    /// Each K of Recall@K, at least 1.
    pub recall_at: Vec<u64>,
    /// Which of a match and a non-match with the same key comes first.
    pub ties: Ties,
    /// The number of matches from which on all keys of a query are computed; `None` for the one that is quickest. It changes no
    /// bit.
    pub crowd: Option<usize>,
}

/// The metrics of every query.
///
/// Labels are dense codes, the same for both sides. Without `gallery_labels` the queries are their own gallery and each
/// leaves itself out. With peers each does a part of the work, and all get the same result: that of one alone.
#[expect(private_bounds, reason = "only this crate's spaces keep the promise that keys decide")]
pub fn evaluate<S: Space>(
    space: &S,
    labels: &[u32],
    gallery_labels: Option<&[u32]>,
    options: &Options,
    peers: &dyn Peers,
    control: &Control,
) -> Result<PerQuery> {
    let Options { recall_at, ties, crowd } = options;
    let queries = space.rows(Side::Query);
    let own_gallery = gallery_labels.is_none();
    let gallery_labels = gallery_labels.unwrap_or(labels);
    check_lengths(space, labels, gallery_labels)?;
    if let Some(k) = recall_at.iter().find(|k| **k < 1) {
        return argument(format!("recall_at holds {k}; expected every K to be at least 1"));
    }
    let itself = own_gallery.then(|| collected((0..queries).map(|q| q as i64))).transpose()?;
    let classes = Classes::new(gallery_labels)?;
    let matches = |q: usize| classes.members(labels[q]).len() - usize::from(own_gallery);
    if (0..queries).all(|q| matches(q) == 0) {
        return Err(Error::NoMatches { queries });
    }
    let find = Find { labels, classes: &classes, first_item: 0, itself: itself.as_deref() };
    let least = crowd.unwrap_or_else(|| crowd::least_matches(space));
    let few = |q: usize| Some(matches(q)).filter(|m| *m < least).unwrap_or(0);
    let many = |q: usize| Some(matches(q)).filter(|m| *m >= least).unwrap_or(0);
    let budget = LEDGER_BYTES.max(space.bytes()) / Books::BYTES_PER_POSITIVE;
    let by_symmetry = own_gallery && strips(0..queries, few, budget).len() == 1;

    // What this one of the peers does: pairs of a query and an earlier one, or queries of its own.
    let rounds = if by_symmetry { Round::all(queries, peers) } else { Vec::new() };
    let share = |weight: &dyn Fn(usize) -> usize| part(peers, queries, |q| u64::from(weight(q) > 0));
    let screened = if by_symmetry { Vec::new() } else { strips(share(&few), few, budget) };
    let crowded = strips(share(&many), many, budget);
    let pairs: usize = rounds.iter().map(Round::pairs).sum::<usize>()
        + screened.iter().map(|s| s.len() * gallery_labels.len()).sum::<usize>()
        + crowded.iter().flat_map(Clone::clone).filter(|q| many(*q) > 0).count() * gallery_labels.len();
    control.expect(pairs as u64);

    let mut results = PerQuery::new(queries, recall_at.len())?;
    let mut closed: Vec<usize> = room(queries)?;
    for strip in screened {
        let (offsets, positives) = find.positives(space, strip.clone(), &few, control)?;
        let books = Books::open(*ties, offsets, positives, &[])?;
        let ledger = Ledger::open(space, &books, strip.start, (labels, gallery_labels), 0, usize::MAX)?;
        traverse::rectangle(space, &ledger, strip.clone(), control)?;
        results.close(&books, strip.start, recall_at, control)?;
        closed.extend(strip.filter(|q| few(*q) > 0));
    }
    for strip in crowded {
        let (offsets, positives) = find.positives(space, strip.clone(), &many, control)?;
        let books = Books::open(*ties, offsets, positives, &[])?;
        let members: Vec<u32> = strip.clone().filter(|q| many(*q) > 0).map(|q| q as u32).collect();
        let count = crowd::Count {
            books: &books,
            first_query: strip.start,
            query_labels: labels,
            gallery_labels,
            first_item: 0,
        };
        count.run(space, &members, control)?;
        results.close(&books, strip.start, recall_at, control)?;
        closed.extend(members.iter().map(|q| *q as usize));
    }
    results.exchange(&closed, peers)?;
    if by_symmetry {
        let (offsets, positives) = find.together(space, &few, peers, control)?;
        let books = Books::open(*ties, offsets, positives, &[])?;
        let ledger = Ledger::open(space, &books, 0, (labels, labels), 0, usize::MAX)?;
        let mut shared = if peers.is_alone() { Vec::new() } else { books.counts()? };
        for round in rounds {
            traverse::triangle(space, &ledger, round.rows, round.columns, control)?;
            if !peers.is_alone() {
                books.add_up(&mut shared, peers)?;
                ledger.renew();
            }
        }
        results.close(&books, 0, recall_at, control)?;
    }
    Ok(results)
}

/// A part of the pairs of an array with itself: those of an item in `rows` and a later one in `columns`.
struct Round {
    rows: Range<usize>,
    columns: Range<usize>,
}

impl Round {
    /// What one of the peers does. With others there are several rounds, between which counts are added up: what all learn
    /// from the pairs of a few items spares each of them to learn it by itself, which costs more than the products.
    fn all(items: usize, peers: &dyn Peers) -> Vec<Round> {
        let edges = if peers.is_alone() { vec![0, items] } else { vec![0, items / 64, items / 16, items / 4, items] };
        let round = |rows: Range<usize>| {
            let columns = part(peers, items, |c| Round::before(&rows, c) as u64);
            Round { rows, columns }
        };
        edges.windows(2).map(|edge| round(edge[0]..edge[1])).filter(|round| !round.rows.is_empty()).collect()
    }

    /// How many rows come before this column.
    fn before(rows: &Range<usize>, column: usize) -> usize {
        column.clamp(rows.start, rows.end) - rows.start
    }

    fn pairs(&self) -> usize {
        self.columns.clone().map(|c| Round::before(&self.rows, c)).sum()
    }
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
    let find = Find { labels, classes: &Classes::new(gallery_labels)?, first_item, itself };
    find.positives(space, 0..labels.len(), &|_| 1, control)
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
    let ledger = Ledger::open(space, books, 0, (labels, gallery_labels), first_item, least)?;
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
fn strips(queries: Range<usize>, matches: impl Fn(usize) -> usize, budget: usize) -> Vec<Range<usize>> {
    let mut strips = Vec::new();
    let (mut start, mut held) = (queries.start, 0);
    for q in queries.clone() {
        let m = matches(q);
        if held > 0 && held + m > budget {
            strips.push(start..q);
            (start, held) = (q, 0);
        }
        held += m;
    }
    if held > 0 {
        strips.push(start..queries.end);
    }
    strips
}
