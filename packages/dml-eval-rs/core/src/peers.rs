//! Work that several processes share: each has the whole input, does a part of the work, and gets the whole result.

use std::ops::Range;

use crate::error::Result;

/// The processes that share a computation, as one of them sees them.
///
/// All of them call with the same input, and so come to the same exchanges in the same order.
pub trait Peers: Sync {
    /// This one's place, from 0, and how many there are.
    fn place(&self) -> (usize, usize);

    /// Whether there are no others.
    fn is_alone(&self) -> bool {
        self.place().1 == 1
    }

    /// The numbers of all, one after the other in the order of their places.
    fn gather(&self, numbers: &[f64]) -> Result<Vec<f64>>;

    /// The sums of everybody's counts, entry by entry.
    fn sum(&self, counts: &[u64]) -> Result<Vec<u64>>;
}

/// No others.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Peers for Alone {
    fn place(&self) -> (usize, usize) {
        (0, 1)
    }

    fn gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        Ok(numbers.to_vec())
    }

    fn sum(&self, counts: &[u64]) -> Result<Vec<u64>> {
        Ok(counts.to_vec())
    }
}

/// The part of `0..n` that falls to this one: parts adjoin, cover everything, and weigh about alike. It depends on the weights
/// alone, and not on the machine.
pub(crate) fn part(peers: &dyn Peers, n: usize, weight: impl Fn(usize) -> u64) -> Range<usize> {
    let (place, count) = peers.place();
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
    edge(place)..edge(place + 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Of(usize, usize);

    impl Peers for Of {
        fn place(&self) -> (usize, usize) {
            (self.0, self.1)
        }

        fn gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
            Ok(numbers.to_vec())
        }

        fn sum(&self, counts: &[u64]) -> Result<Vec<u64>> {
            Ok(counts.to_vec())
        }
    }

    proptest! {
        #[test]
        fn parts_adjoin_and_weigh_alike(
            weights in proptest::collection::vec(prop_oneof![Just(0u64), 0u64..9, Just(u64::MAX)], 0..40),
            count in 1usize..9,
        ) {
            let parts: Vec<_> = (0..count).map(|p| part(&Of(p, count), weights.len(), |i| weights[i])).collect();
            prop_assert_eq!(parts.iter().cloned().flatten().collect::<Vec<_>>(), (0..weights.len()).collect::<Vec<_>>());
            let weigh = |part: &Range<usize>| weights[part.clone()].iter().map(|w| u128::from(*w)).sum::<u128>();
            let (total, most) = (weigh(&(0..weights.len())), weights.iter().max().copied().unwrap_or(0));
            for part in &parts {
                prop_assert!(weigh(part) <= total / count as u128 + u128::from(most) + 1);
            }
        }
    }
}
