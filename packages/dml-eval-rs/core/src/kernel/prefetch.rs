//! Numbers fetched into the caches before they are read.

/// Asks the CPU to fetch some numbers, and does not wait for it. No result depends on it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch<T>(row: &[T]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    /// Bytes of a cache line.
    const LINE: usize = 64;
    for line in row.chunks(LINE / size_of::<T>()) {
        // SAFETY: every x86-64 CPU has the instruction, which changes nothing but the caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Does nothing where Rust has no stable way to say it.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch<T>(_row: &[T]) {}
