//! Rows fetched into the caches before they are read.

/// Asks the CPU to fetch a row, and does not wait for it. No result depends on it.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(crate) fn prefetch(row: &[f32]) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

    /// Numbers in a cache line.
    const LINE: usize = 16;
    for line in row.chunks(LINE) {
        // SAFETY: every x86-64 CPU has the instruction, which changes nothing but the caches.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast()) };
    }
}

/// Does nothing where Rust has no stable way to say it.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
pub(crate) fn prefetch(_row: &[f32]) {}
