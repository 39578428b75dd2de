//! Runs functions of other modules, compiled for the vector instructions of a kernel.

/// Work to be compiled for the instructions of a kernel. Only `run` and code that is inlined into
/// it are compiled for these. Short closures are inlined; a longer `run` or closure, and the
/// functions that it calls, must be marked `inline(always)`. (A closure that is called as `FnOnce`
/// is called by a function that lacks the mark.)
pub(crate) trait Work {
    type Output;

    fn run(self) -> Self::Output;
}

impl<R, F: FnMut() -> R> Work for F {
    type Output = R;

    #[inline(always)]
    fn run(mut self) -> R {
        self()
    }
}

/// The vector instructions that a kernel uses.
#[derive(Clone, Copy)]
pub(super) enum Instructions {
    /// The instructions that all CPUs of the architecture have.
    Baseline,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Instructions {
    /// Runs work that is compiled for these instructions.
    ///
    /// # Safety
    ///
    /// The CPU must have these instructions.
    #[inline]
    pub unsafe fn call<W: Work>(self, work: W) -> W::Output {
        match self {
            Instructions::Baseline => work.run(),
            // SAFETY: the caller ensures that the CPU supports these instructions.
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
fn with_avx2<W: Work>(work: W) -> W::Output {
    work.run()
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn with_avx512<W: Work>(work: W) -> W::Output {
    work.run()
}
