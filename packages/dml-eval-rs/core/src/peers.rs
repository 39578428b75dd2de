//! Work shared by several processes: each has the whole input, does a part of the work, and gets the whole result.

use std::ops::Range;

use crate::error::Result;

/// The processes that share a computation, as one of them sees them.
///
/// All of them call with the same input, and so make the same exchanges in the same order.
pub trait Peers: Sync {
    /// This process's rank, from 0.
    fn rank(&self) -> usize;

    /// The number of processes.
    fn world_size(&self) -> usize;

    /// Whether there are no other processes.
    fn is_alone(&self) -> bool {
        self.world_size() == 1
    }

    /// Concatenates the numbers of all processes, in the order of their ranks.
    fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>>;

    /// Adds up the counts of all processes, entry by entry.
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
        Ok(numbers.to_vec())
    }

    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
        Ok(counts.to_vec())
    }
}

/// Returns this process's part of `0..n`: parts adjoin, cover everything, and have about the same weight. They depend on the
/// weights alone, not on the machine.
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

/// One of several processes that exchange nothing: its rank, and their number.
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

    proptest! {
        #[test]
        fn parts_adjoin_and_have_similar_weights(
            weights in proptest::collection::vec(prop_oneof![Just(0u64), 0u64..9, Just(u64::MAX)], 0..40),
            count in 1usize..9,
        ) {
            let parts: Vec<_> = (0..count).map(|p| part(&Isolated(p, count), weights.len(), |i| weights[i])).collect();
            prop_assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), (0..weights.len()).collect::<Vec<_>>());
            let weigh = |part: &Range<usize>| weights[part.clone()].iter().map(|w| u128::from(*w)).sum::<u128>();
            let (total, most) = (weigh(&(0..weights.len())), weights.iter().max().copied().unwrap_or(0));
            for part in &parts {
                prop_assert!(weigh(part) <= total / count as u128 + u128::from(most) + 1);
            }
        }
    }
}
