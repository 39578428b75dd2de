//! The floating-point environment of a thread.

/// Sets the calling thread's floating-point environment to the one that Rust's arithmetic assumes: rounding to nearest, ties to
/// even, and subnormal numbers kept.
///
/// A new thread inherits the environment of its creator, which may have changed it (C's `fesetround`, torch's
/// `set_flush_denormal`). Results have the same bits everywhere only in this one.
pub fn set_default_float_environment() {
    #[cfg(target_arch = "x86_64")]
    {
        // Every exception masked, rounding to nearest, neither flush-to-zero nor denormals-are-zero.
        static MXCSR: u32 = 0x1f80;
        // SAFETY: it reads four bytes, and leaves the register in the state that the compiler assumes.
        unsafe { std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const MXCSR, options(nostack, readonly)) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: it leaves the register in the state that the compiler assumes: no trap, rounding to nearest, no flushing.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) 0u64, options(nomem, nostack));
    }
}
