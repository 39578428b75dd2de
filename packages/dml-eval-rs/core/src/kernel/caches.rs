//! Fetches numbers into the caches before they are read, and stores numbers past the caches.

/// Asks the CPU to prefetch `row` into the caches, but does not wait. This will never affect
/// results.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch<T>(row: &[T]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    use std::slice;

    /// Bytes per cache line.
    const LINE: usize = 64;
    // A row that doesn't begin a cache line ends in one more line.
    for line in row.chunks(LINE / size_of::<T>()).chain(row.last().map(slice::from_ref)) {
        // SAFETY: all x86-64 CPUs have this instruction, and it only changes the caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Does nothing, because Rust does not provide a stable prefetch for this architecture.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch<T>(_row: &[T]) {}

/// Copies numbers to memory past the caches, because they won't be read soon. Slices have an equal,
/// even length, and `target` must be aligned to 16 bytes.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn copy_past_caches(source: &[f64], target: &mut [f64]) {
    use std::arch::x86_64::{_mm_loadu_pd, _mm_sfence, _mm_stream_pd};

    assert!(source.len() == target.len() && source.len().is_multiple_of(2));
    assert!(target.as_ptr().align_offset(16) == 0);
    for (source, target) in source.chunks_exact(2).zip(target.chunks_exact_mut(2)) {
        // SAFETY: all x86-64 CPUs have these instructions, and both slices have two numbers, of
        // which `target` is aligned.
        unsafe { _mm_stream_pd(target.as_mut_ptr(), _mm_loadu_pd(source.as_ptr())) };
    }
    // Other threads must see these stores before any store that follows.
    // SAFETY: all x86-64 CPUs have this instruction.
    unsafe { _mm_sfence() };
}

/// Copies numbers, because Rust does not provide stores past the caches for this architecture.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(crate) fn copy_past_caches(source: &[f64], target: &mut [f64]) {
    target.copy_from_slice(source);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_past_caches_changes_its_target_alone() {
        let source: Vec<f64> = (1..=12).map(f64::from).collect();
        for length in [0, 2, 8, 10] {
            let mut all = [-1.0; 16];
            let start = all.as_ptr().align_offset(16) + 2;
            copy_past_caches(&source[1..=length], &mut all[start..start + length]);
            let expected = |at: usize| {
                if (start..start + length).contains(&at) { source[1 + at - start] } else { -1.0 }
            };
            assert!(all.iter().enumerate().all(|(at, number)| *number == expected(at)));
        }
    }
}
