//! Exchanges the findings of peers in a traversal, so that all peers get all findings.

use crate::error::{Error, Result};
use crate::memory::{Grow, allocate, collect};
use crate::peers::{Peers, gather, reduce};
use crate::verification::decided::Observed;
use crate::verification::hashed::HashedScores;
use crate::verification::sieve::{Listed, Sieved};
use crate::verification::slots::Kept;

fn reject<T>(message: &str) -> Result<T> {
    Err(Error::Exchange(format!(
        "all_gather returned {message}; expected the numbers of all ranks, unchanged"
    )))
}

/// Joins the lists of all ranks, and adds up the counts. If the lists contain more than `capacity`
/// negatives in total, the longest lists are dropped. `rows` and `items` are the sizes of both
/// sides.
pub(crate) fn exchange_sieved(
    mut sieved: Vec<Sieved>,
    capacity: usize,
    (rows, items): (usize, usize),
    peers: &dyn Peers,
) -> Result<Vec<Sieved>> {
    let mut counts = allocate(3 * sieved.len())?;
    for Sieved { above, inside } in &sieved {
        counts.try_extend([
            *above,
            u64::from(inside.is_none()),
            inside.as_ref().map_or(0, Vec::len) as u64,
        ])?;
    }
    let counts = reduce(peers, &counts)?;
    let mut lengths = collect(
        counts.chunks_exact(3).map(|counts| (counts[1] == 0).then_some(counts[2] as usize)),
    )?;
    while lengths.iter().flatten().sum::<usize>() > capacity {
        if let Some(longest) = lengths.iter_mut().max_by_key(|length| length.unwrap_or(0)) {
            *longest = None;
        }
    }
    for ((sieved, counts), length) in sieved.iter_mut().zip(counts.chunks_exact(3)).zip(lengths) {
        sieved.above = counts[0];
        let (Some(length), Some(own)) = (length, sieved.inside.take()) else {
            sieved.inside = None;
            continue;
        };
        let mut numbers = allocate(3 * own.len())?;
        for Listed { value, pair } in own {
            numbers.try_extend([f64::from(value), f64::from(pair.0), f64::from(pair.1)])?;
        }
        let mut joined = allocate(length)?;
        for numbers in gather(peers, &numbers, 3 * length)?.chunks_exact(3) {
            let is_index = |number: f64, size: usize| {
                number.fract() == 0.0 && (0.0..size as f64).contains(&number)
            };
            if !(numbers[0].is_finite()
                && is_index(numbers[1], rows)
                && is_index(numbers[2], items))
            {
                return reject("a negative that isn't a finite value and two indices");
            }
            joined.try_push(Listed {
                value: numbers[0] as f32,
                pair: (numbers[1] as u32, numbers[2] as u32),
            })?;
        }
        sieved.inside = Some(joined);
    }
    Ok(sieved)
}

/// Joins the negatives that all ranks kept in a range, unless a rank kept too many.
pub(crate) fn exchange_kept(kept: Kept, peers: &dyn Peers) -> Result<Kept> {
    let counts =
        reduce(peers, &[u64::from(kept.is_none()), kept.as_ref().map_or(0, Vec::len) as u64])?;
    let joined = kept
        .filter(|_| counts[0] == 0)
        .map(|own| gather(peers, &own, counts[1] as usize))
        .transpose()?;
    if joined.iter().flatten().any(|score| !score.is_finite()) {
        return reject("a score that isn't finite");
    }
    Ok(joined)
}

/// Joins the scores that all ranks kept, at most `capacity` per search, and adds up the counts.
pub(crate) fn exchange_observed(
    mut observed: Vec<Observed>,
    capacity: usize,
    peers: &dyn Peers,
) -> Result<Vec<Observed>> {
    let own_zeros = collect(observed.iter().map(|found| f64::from(found.kept.zeros)))?;
    let zeros = gather(peers, &own_zeros, own_zeros.len() * peers.world_size())?;
    if zeros.iter().any(|zeros| !(0..=u64::BITS).any(|z| f64::from(z) == *zeros)) {
        return reject("invalid counts of zeros");
    }
    for (i, found) in observed.iter_mut().enumerate() {
        let most =
            zeros[i..].iter().step_by(own_zeros.len()).fold(0.0f64, |most, zeros| most.max(*zeros));
        found.kept.join(&HashedScores { scores: Vec::new(), zeros: most as u32 }, capacity)?;
    }
    let mut counts = allocate(3 * observed.len())?;
    for found in &observed {
        counts.try_extend([found.above, found.inside, found.kept.scores.len() as u64])?;
    }
    let counts = reduce(peers, &counts)?;
    for (found, counts) in observed.iter_mut().zip(counts.chunks_exact(3)) {
        (found.above, found.inside) = (counts[0], counts[1]);
        let mut numbers = allocate(3 * found.kept.scores.len())?;
        for (score, hash) in found.kept.scores.drain(..) {
            numbers.try_extend([
                score,
                (hash >> 32) as f64,
                (hash & u64::from(u32::MAX)) as f64,
            ])?;
        }
        let gathered = gather(peers, &numbers, 3 * counts[2] as usize)?;
        let is_half =
            |number: f64| number.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(&number);
        if gathered.chunks_exact(3).any(|n| !(n[0].is_finite() && is_half(n[1]) && is_half(n[2]))) {
            return reject("a score that isn't a finite number and two halves of a hash");
        }
        let joined = gathered.chunks_exact(3).map(|n| (n[0], (n[1] as u64) << 32 | n[2] as u64));
        found.kept.append(&collect(joined)?, capacity)?;
    }
    Ok(observed)
}
