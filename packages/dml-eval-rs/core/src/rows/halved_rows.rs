//! Halves int16 rows: keeps the first words, and replaces the others by a single word that is at
//! least as long.
//!
//! By Cauchy–Schwarz, the product of halved rows is at least the product of the full rows. A
//! kernel's values never decrease when products grow, so they are not below the values of the full
//! rows: see docs/internals/evaluator-exactness.md.

use crate::kernel::{ABRIDGED_AFFINE_STEPS, AFFINE_STEPS};

/// Computes the words per halved row, given the words of integers in an int16 row.
pub(super) fn halved_steps(words: usize) -> usize {
    kept(words) + 1 + ABRIDGED_AFFINE_STEPS
}

fn kept(words: usize) -> usize {
    words / 2 - 1
}

/// Halves the rows in a panel of `width` lanes. The error and the norm of a row stay 0.
pub(super) fn halve(words: &[u32], width: usize, out: &mut [u32]) {
    let (integers, affine) = words.split_at(words.len() - AFFINE_STEPS * width);
    let (first, others) = integers.split_at(kept(integers.len() / width) * width);
    let (out_first, out) = out.split_at_mut(first.len());
    let (lengths, out_affine) = out.split_at_mut(width);
    out_first.copy_from_slice(first);
    write_lengths(others, lengths);
    out_affine[width..][..affine.len()].copy_from_slice(affine);
}

/// Writes a lane's length as two equal integers, rounded up so that their squares add up to at
/// least the squared length.
fn write_lengths(words: &[u32], lengths: &mut [u32]) {
    lengths.fill(0);
    for step in words.chunks_exact(lengths.len()) {
        for (square, word) in lengths.iter_mut().zip(step) {
            let (low, high) = (i32::from(*word as i16), i32::from((*word >> 16) as i16));
            *square += (low * low + high * high) as u32;
        }
    }
    for length in lengths {
        let half = (f64::from(*length) / 2.0).sqrt().ceil() as u32;
        *length = half | half << 16;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_of_the_longest_rows_leave_sums_exact() {
        // All of this row's length is in the replaced words, and the integers' square is the
        // largest that row_words.rs allows.
        let integers = [32_766i16, 32_766, 285, 0];
        let square: i64 = integers.iter().map(|v| i64::from(*v).pow(2)).sum();
        assert!((46_338i64.pow(2)..=46_339i64.pow(2)).contains(&square), "{square}");
        let words = integers
            .as_chunks::<2>()
            .0
            .iter()
            .map(|[a, b]| u32::from(*a as u16) | u32::from(*b as u16) << 16);
        let mut length = [0];
        write_lengths(&words.collect::<Vec<u32>>(), &mut length);
        let half = i64::from(length[0] as i16);
        assert_eq!(half, i64::from((length[0] >> 16) as i16));
        assert!(2 * half * half >= square && 2 * half * half < 1 << 31, "{half}");
    }
}
