//! Prefetches numbers into the caches before they are read.

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
