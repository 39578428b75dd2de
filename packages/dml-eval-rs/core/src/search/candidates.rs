//! Finds the candidates for the nearest items in a row of keys.

use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::Grow;
use crate::screen::cells::keep_larger;

/// A thread's buffers.
#[derive(Default)]
pub(super) struct Candidates {
    maxima: Vec<f64>,
    found: Vec<u32>,
}

impl Candidates {
    /// Finds the items, with keys, that may be among the `k` nearest if one item is excluded.
    /// `keys` are the keys of the items from `first`.
    pub fn find<'b>(
        &'b mut self,
        k: usize,
        keys: &'b [f64],
        first: usize,
        kernel: &Kernel,
    ) -> Result<impl Iterator<Item = (u32, f64)> + 'b> {
        let least = least_of_nearest(k, keys, &mut self.maxima, kernel)?;
        self.found.try_resize(keys.len(), 0)?;
        let mut count = 0;
        for (i, key) in keys.iter().enumerate() {
            // Store each index, and keep it by adding 0 or 1: a branch would often be mispredicted.
            self.found[count] = i as u32;
            count += usize::from(*key >= least);
        }
        Ok(self.found[..count].iter().map(move |i| (first as u32 + i, keys[*i as usize])))
    }
}

/// The number of lanes is a multiple of this, so that the compiler can use vector registers.
const LANES: usize = 8;
/// The maximum number of lanes whose largest keys are compared with each other.
const FEW: usize = 64;

/// Computes a lower bound for the key of the k-th nearest item in a row of a table, where any item
/// may be the query itself.
///
/// Each lane keeps the largest of its keys, and these belong to different items. Therefore at least
/// k items other than the query have a key that is not smaller than the (k + 1)-th largest.
fn least_of_nearest(k: usize, keys: &[f64], maxima: &mut Vec<f64>, kernel: &Kernel) -> Result<f64> {
    let lanes = (2 * k + 1).next_multiple_of(LANES);
    if keys.len() < 2 * lanes {
        return Ok(f64::NEG_INFINITY);
    }
    maxima.clear();
    maxima.try_extend(keys[..lanes].iter().copied())?;
    let least = kernel.vectorize(
        #[inline(always)]
        || {
            for keys in keys[lanes..].chunks(lanes) {
                keep_larger(maxima, keys);
            }
            if lanes <= FEW { Some(at_rank(maxima, k)) } else { None }
        },
    );
    Ok(least.unwrap_or_else(|| *maxima.select_nth_unstable_by(k, |a, b| b.total_cmp(a)).1))
}

/// Returns the number with `rank` larger numbers, without branches that are mispredicted.
#[inline(always)]
fn at_rank(numbers: &[f64], rank: usize) -> f64 {
    let mut least = [f64::INFINITY; LANES];
    for of in numbers.as_chunks::<LANES>().0 {
        let mut larger = [0; LANES];
        for number in numbers {
            for i in 0..LANES {
                larger[i] += u64::from(*number > of[i]);
            }
        }
        for i in 0..LANES {
            least[i] = if larger[i] <= rank as u64 && of[i] < least[i] { of[i] } else { least[i] };
        }
    }
    least.into_iter().fold(f64::INFINITY, f64::min)
}
