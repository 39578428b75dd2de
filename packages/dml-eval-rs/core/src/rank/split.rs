//! One slice for each query of an array that holds all queries' entries in order, so that threads can write them.

use crate::error::Result;
use crate::memory::{Grow, allocate};

/// Splits an array at offsets: the start of each query's entries, and the end of the last.
pub(crate) fn split<'a, T>(all: &'a mut [T], offsets: &[usize]) -> Result<Vec<&'a mut [T]>> {
    let mut parts = allocate(offsets.len() - 1)?;
    let mut rest = all;
    for part in offsets.windows(2) {
        let (own, after) = rest.split_at_mut(part[1] - part[0]);
        parts.try_push(own)?;
        rest = after;
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_between_offsets() {
        let parts = split(&mut [1, 2, 3], &[0, 2, 2, 3]).unwrap().iter().map(|part| part.to_vec()).collect::<Vec<_>>();
        assert_eq!(parts, [vec![1, 2], vec![], vec![3]]);
    }
}
