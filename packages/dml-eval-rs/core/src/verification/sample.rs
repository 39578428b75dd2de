//! Samples negatives to estimate brackets around crossings. Brackets don't affect results.

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate, collect, zeros};
use crate::random::Random;
use crate::rows::dense::Dense;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::level::Level;
use crate::verification::pairs::PairLabels;

/// A bracket extends to both sides by this number of standard deviations of a sampled rank, plus
/// `LEAST` ranks.
const DEVIATIONS: f64 = 5.0;
/// See `DEVIATIONS`.
const LEAST: f64 = 8.0;

/// Samples the scores of about `size` negatives, in descending order. Returns `None` if there are
/// hardly more pairs.
///
/// Both sides are shuffled and divided into equal numbers of blocks, and a block of queries is
/// compared with a single block of items. So all items occur equally often, which gives a smaller
/// error than independent pairs, and rows are read only once.
pub(crate) fn draw(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    size: usize,
    control: &Control,
) -> Result<Option<Vec<f64>>> {
    let rows = [Side::Query, Side::Gallery].map(|side| space.rows(side));
    let blocks = (rows[0] as f64 * rows[1] as f64 / size.max(1) as f64)
        .min(rows[0].min(rows[1]) as f64) as usize;
    if blocks < 3 {
        return Ok(None);
    }
    let mut random = Random::new(0);
    let mut shuffle = |n: usize| -> Result<Vec<u32>> {
        let mut order = collect(0..n as u32)?;
        for i in (1..n).rev() {
            order.swap(i, random.below(i + 1));
        }
        Ok(order)
    };
    let queries = shuffle(rows[0])?;
    let gallery = if labels.gallery.is_some() {
        shuffle(rows[1])?
    } else {
        collect(queries.iter().copied())?
    };
    let block = |order: &[u32], b: usize| order.len() * b / blocks..order.len() * (b + 1) / blocks;
    // For a single array, pair blocks with the next block, so that items aren't compared with
    // themselves.
    let pair = |b: usize| (block(&queries, b), block(&gallery, (b + 1) % blocks));
    // Blocks are rounded up, so there are slightly more scores than requested.
    let mut sample = allocate((0..blocks).map(|b| pair(b).0.len() * pair(b).1.len()).sum())?;
    for b in 0..blocks {
        let (queries, items) = (&queries[pair(b).0], &gallery[pair(b).1]);
        let mut scores: Vec<f64> = zeros(queries.len() * items.len())?;
        space.score_table(queries, items, &mut scores, control)?;
        control.check()?;
        let pairs = queries.iter().flat_map(|q| items.iter().map(move |g| (*q, *g)));
        let different = |q: u32, g: u32| labels.queries[q as usize] != labels.gallery()[g as usize];
        sample.try_extend(
            pairs.zip(scores).filter(|((q, g), _)| different(*q, *g)).map(|(_, score)| score),
        )?;
    }
    sort_descending(&mut sample);
    Ok(Some(sample))
}

/// Sorts scores in descending order.
pub(crate) fn sort_descending(scores: &mut [f64]) {
    use rayon::slice::ParallelSliceMut;
    scores.par_sort_unstable_by(|a, b| b.total_cmp(a));
}

/// A range of scores that probably includes a crossing, and the crossing of the sample itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bracket {
    pub low: f64,
    pub middle: f64,
    pub high: f64,
}

/// Estimates where a level is reached, from a descending sample of the negatives in a range:
/// `inside` negatives are in the range, and `above` negatives are above the range. If the level
/// isn't reached inside the sample, the bracket is open.
pub(crate) fn estimate(
    level: Level,
    sample: &[f64],
    above: u64,
    inside: u64,
    positives: &[f64],
) -> Bracket {
    let each = inside as f64 / sample.len() as f64;
    let reached = |rank: usize| {
        let negatives = above + ((rank + 1) as f64 * each).round() as u64;
        level.reached_at(sample[rank], negatives, positives)
    };
    let (mut low, mut high) = (0, sample.len());
    while low < high {
        let middle = (low + high) / 2;
        if reached(middle) { high = middle } else { low = middle + 1 }
    }
    let rank = low as f64;
    let spread = DEVIATIONS * (rank * (1.0 - rank / sample.len() as f64)).max(0.0).sqrt() + LEAST;
    let at = |rank: f64, beyond: f64| {
        if rank < 0.0 || rank >= sample.len() as f64 { beyond } else { sample[rank as usize] }
    };
    Bracket {
        low: at(rank + spread, f64::NEG_INFINITY),
        middle: sample[low.min(sample.len() - 1)],
        high: at(rank - spread, f64::INFINITY),
    }
}

/// Returns the proportion of a descending sample that is in a bracket, after widening the bracket
/// by `wide`.
pub(crate) fn share_inside(sample: &[f64], bracket: &Bracket, wide: f64) -> f64 {
    let first = sample.partition_point(|score| *score > bracket.high + wide);
    let end = sample.partition_point(|score| *score >= bracket.low - wide);
    (end - first) as f64 / sample.len() as f64
}
