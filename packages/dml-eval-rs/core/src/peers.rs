//! Shares work between processes: all processes get the complete input, do a part of the work, then
//! return the complete result.

use std::ops::Range;

use crate::error::{Error, Result};
use crate::memory::{Grow, allocate, collect};

/// The processes that share a computation, from the point of view of a single process.
///
/// All processes must be called with the same input, so that exchanges are made in the same order.
/// The results of exchanges are checked: the length, the order of ranks, the part of this process,
/// and sums.
pub trait Peers: Sync {
    /// Returns the rank of this process, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of processes.
    fn world_size(&self) -> usize;

    /// Whether there is only a single process.
    fn is_alone(&self) -> bool {
        self.world_size() == 1
    }

    /// Concatenates the numbers of all processes, in the order of the ranks.
    fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>>;

    /// Adds up the counts of all processes, element-wise.
    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>>;
}

/// A single process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Peers for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn world_size(&self) -> usize {
        1
    }

    fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        collect(numbers.iter().copied())
    }

    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
        collect(counts.iter().copied())
    }
}

fn reject<T>(message: String) -> Result<T> {
    Err(Error::Exchange(message))
}

/// Gathers the numbers of all processes, `expected` numbers in total, in the order of the ranks.
///
/// Processes send the rank and the length before the numbers. This reveals a wrong order, a missing
/// part, and numbers that differ from those that this process sent.
pub(crate) fn gather(peers: &dyn Peers, numbers: &[f64], expected: usize) -> Result<Vec<f64>> {
    const HEADER: usize = 2;
    let (own_rank, ranks) = (peers.rank(), peers.world_size());
    let mut sent = allocate(HEADER + numbers.len())?;
    sent.try_extend([own_rank as f64, numbers.len() as f64])?;
    sent.try_extend(numbers.iter().copied())?;
    let received = peers.all_gather(&sent)?;
    if received.len() != HEADER * ranks + expected {
        return reject(format!(
            "all_gather returned {} numbers; expected {}, concatenated from all {ranks} ranks",
            received.len(),
            HEADER * ranks + expected
        ));
    }
    let mut gathered = allocate(expected)?;
    let mut rest = received.as_slice();
    for rank in 0..ranks {
        let Some((&[sender, len], after)) = rest.split_first_chunk::<HEADER>() else {
            return reject(format!("all_gather returned numbers that end before rank {rank}"));
        };
        if sender != rank as f64 || len.fract() != 0.0 || !(0.0..=after.len() as f64).contains(&len)
        {
            return reject(format!(
                "all_gather returned {sender} and {len} instead of the rank and length of rank \
                 {rank}'s numbers: concatenate the numbers of all ranks in the order of the ranks, \
                 unchanged"
            ));
        }
        let (part, after) = after.split_at(len as usize);
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits();
        if rank == own_rank && !(part.len() == numbers.len() && part.iter().zip(numbers).all(same))
        {
            return reject(format!(
                "all_gather changed the numbers of rank {rank}; expected the same float64 numbers, \
                 in the place of rank {rank}"
            ));
        }
        gathered.try_extend(part.iter().copied())?;
        rest = after;
    }
    if gathered.len() != expected {
        return reject(format!(
            "the ranks' parts have {} numbers; expected {expected}",
            gathered.len()
        ));
    }
    Ok(gathered)
}

/// Adds up the counts of all processes.
///
/// Two counts are appended: the sum of all counts, and 1, which must add up to the number of
/// processes.
pub(crate) fn reduce(peers: &dyn Peers, counts: &[u64]) -> Result<Vec<u64>> {
    let total = |counts: &[u64]| counts.iter().fold(0u64, |sum, count| sum.wrapping_add(*count));
    let mut sent = allocate(counts.len() + 2)?;
    sent.try_extend(counts.iter().copied())?;
    sent.try_extend([total(counts), 1])?;
    let mut sums = peers.all_reduce(&sent)?;
    if sums.len() != sent.len() {
        return reject(format!(
            "all_reduce returned {} counts; expected {}, as many as it received",
            sums.len(),
            sent.len()
        ));
    }
    let ranks = sums.pop();
    let all = sums.pop();
    if ranks != Some(peers.world_size() as u64) {
        return reject(format!(
            "all_reduce returned {} as the sum of a 1 from each of {} ranks; expected element-wise \
             sums over all ranks",
            ranks.unwrap_or(0),
            peers.world_size()
        ));
    }
    if all != Some(total(&sums)) || sums.iter().zip(counts).any(|(sum, own)| sum < own) {
        return reject(
            "all_reduce returned counts that aren't sums over all ranks; expected element-wise \
             sums"
                .into(),
        );
    }
    Ok(sums)
}

/// Returns the part of `0..n` for this process. Parts are adjacent, cover all of `0..n`, and have
/// similar weights. They depend only on the weights, not on the machine.
pub(crate) fn part(peers: &dyn Peers, n: usize, weight: impl Fn(usize) -> u64) -> Range<usize> {
    let (rank, count) = (peers.rank(), peers.world_size());
    let total: u128 = (0..n).map(|i| u128::from(weight(i))).sum();
    let edge = |p: usize| {
        if p == count {
            return n;
        }
        let mut before = 0;
        for i in 0..n {
            if before >= total * p as u128 / count as u128 {
                return i;
            }
            before += u128::from(weight(i));
        }
        n
    };
    edge(rank)..edge(rank + 1)
}

/// A process that gets its own data back from every exchange. The fields are the rank and the
/// number of processes.
#[cfg(test)]
pub(crate) struct Isolated(pub usize, pub usize);

#[cfg(test)]
impl Peers for Isolated {
    fn rank(&self) -> usize {
        self.0
    }

    fn world_size(&self) -> usize {
        self.1
    }

    fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        Ok(numbers.to_vec())
    }

    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
        Ok(counts.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The first of two processes. The peer sends 7, 8 and 9, or equal counts. Functions `G` and
    /// `R` falsify the results.
    struct First<G, R>(G, R);

    impl<G: Fn(&mut Vec<f64>) + Sync, R: Fn(&mut Vec<u64>) + Sync> Peers for First<G, R> {
        fn rank(&self) -> usize {
            0
        }

        fn world_size(&self) -> usize {
            2
        }

        fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
            let mut all = [numbers, &[1.0, 3.0, 7.0, 8.0, 9.0]].concat();
            self.0(&mut all);
            Ok(all)
        }

        fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
            let mut sums: Vec<u64> = counts.iter().map(|c| 2 * c).collect();
            self.1(&mut sums);
            Ok(sums)
        }
    }

    #[test]
    fn a_gather_that_is_no_concatenation_is_an_error() {
        let outcome = |change: fn(&mut Vec<f64>)| {
            gather(&First(change, |_: &mut Vec<u64>| ()), &[0.1, 0.2], 5)
        };
        assert_eq!(outcome(|_| ()), Ok(vec![0.1, 0.2, 7.0, 8.0, 9.0]));
        let changes: [fn(&mut Vec<f64>); 9] = [
            |all| all.truncate(4),
            |all| all.clear(),
            |all| all.push(0.0),
            |all| all.rotate_left(4),
            |all| all.iter_mut().for_each(|v| *v = f64::from(*v as f32)),
            |all| all[3] = f64::NAN,
            |all| all[1] = 3.0,
            |all| all[5] = f64::INFINITY,
            |all| all[5] = 2.0,
        ];
        for change in changes {
            assert!(matches!(outcome(change), Err(Error::Exchange(_))));
        }
        assert!(matches!(
            gather(&First(|_: &mut Vec<f64>| (), |_: &mut Vec<u64>| ()), &[], 2),
            Err(Error::Exchange(_))
        ));
    }

    #[test]
    fn a_reduction_that_is_no_sum_is_an_error() {
        let outcome =
            |change: fn(&mut Vec<u64>)| reduce(&First(|_: &mut Vec<f64>| (), change), &[5, 0, 3]);
        assert_eq!(outcome(|_| ()), Ok(vec![10, 0, 6]));
        let changes: [fn(&mut Vec<u64>); 8] = [
            |sums| sums.truncate(3),
            |sums| sums.push(0),
            |sums| sums.clear(),
            |sums| sums.iter_mut().for_each(|s| *s /= 2),
            |sums| sums.iter_mut().for_each(|s| *s *= 2),
            |sums| sums[1] = 1,
            |sums| sums[1] = u64::MAX,
            |sums| sums.swap(0, 1),
        ];
        for change in changes {
            assert!(matches!(outcome(change), Err(Error::Exchange(_))));
        }
    }

    proptest! {
        #[test]
        fn parts_adjoin_and_have_similar_weights(
            weights in proptest::collection::vec(
                prop_oneof![Just(0u64), 0u64..9, Just(u64::MAX)],
                0..40,
            ),
            count in 1usize..9,
        ) {
            let parts: Vec<_> = (0..count)
                .map(|p| part(&Isolated(p, count), weights.len(), |i| weights[i]))
                .collect();
            prop_assert_eq!(
                parts.iter().cloned().flatten().collect::<Vec<_>>(),
                (0..weights.len()).collect::<Vec<_>>()
            );
            let weigh = |part: &Range<usize>| {
                weights[part.clone()].iter().map(|w| u128::from(*w)).sum::<u128>()
            };
            let (total, most) =
                (weigh(&(0..weights.len())), weights.iter().max().copied().unwrap_or(0));
            for part in &parts {
                prop_assert!(weigh(part) <= total / count as u128 + u128::from(most) + 1);
            }
        }
    }
}
