//! Sorts a very large number of pairs. This can be cancelled.

use crate::control::Control;
use crate::error::Result;
use crate::memory::zeros;

/// The number of pairs between checks for cancellation.
pub(crate) const PIECE: usize = 1 << 22;

/// Sorts pairs in pieces, then merges the pieces.
pub(crate) fn sort_pairs(
    mut pairs: Vec<(u32, u32)>,
    piece: usize,
    control: &Control,
) -> Result<Vec<(u32, u32)>> {
    for pairs in pairs.chunks_mut(piece) {
        control.check()?;
        pairs.sort_unstable();
    }
    let mut merged = if pairs.len() > piece { zeros(pairs.len())? } else { Vec::new() };
    let mut sorted = piece;
    while sorted < pairs.len() {
        for (merged, runs) in merged.chunks_mut(2 * sorted).zip(pairs.chunks(2 * sorted)) {
            let (mut left, mut right) = runs.split_at(sorted.min(runs.len()));
            for merged in merged.chunks_mut(piece) {
                control.check()?;
                for slot in merged {
                    let first =
                        if right.first().is_none_or(|r| left.first().is_some_and(|l| l <= r)) {
                            &mut left
                        } else {
                            &mut right
                        };
                    (*slot, *first) = (first[0], &first[1..]);
                }
            }
        }
        std::mem::swap(&mut pairs, &mut merged);
        sorted *= 2;
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_pieces_are_sorted_pairs() {
        let control = Control::default();
        let pairs: Vec<(u32, u32)> = (0..100u32).map(|i| (i * 37 % 11, i * 53 % 7)).collect();
        for n in [0, 1, 7, 8, 9, 63, 64, 65, 100] {
            let mut expected = pairs[..n].to_vec();
            expected.sort_unstable();
            assert_eq!(sort_pairs(pairs[..n].to_vec(), 8, &control).unwrap(), expected);
        }
        control.cancel();
        assert!(sort_pairs(pairs, 8, &control).is_err());
    }
}
