//! Functions of other folders, compiled for a kernel's vector instructions.

/// The vector instructions of a kernel.
#[derive(Clone, Copy)]
pub(super) enum Instructions {
    /// Those that all CPUs of the architecture have.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// Calls a function that is compiled for these instructions, as far as it is inlined.
    ///
    /// # Safety
    ///
    /// The CPU has them.
    #[inline]
    pub unsafe fn call<R>(self, work: impl FnOnce() -> R) -> R {
        match self {
            Instructions::Baseline => work(),
            // SAFETY: the caller knows that the CPU has the instructions.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => unsafe { with_avx2(work) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => unsafe { with_avx512(work) },
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn with_avx2<R>(work: impl FnOnce() -> R) -> R {
    work()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512<R>(work: impl FnOnce() -> R) -> R {
    work()
}
