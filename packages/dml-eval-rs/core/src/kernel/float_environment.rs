//! Sets the floating-point environment of threads.

/// Sets the calling thread's floating-point environment to the default that Rust assumes: round to
/// nearest, ties to even, and keep subnormal numbers.
///
/// A new thread inherits the environment of the thread that creates it, which may have been
/// changed, for example by C's `fesetround` or torch's `set_flush_denormal`. Results are identical
/// everywhere only in the default environment.
pub fn set_default_float_environment() {
    #[cfg(target_arch = "x86_64")]
    {
        // All exceptions masked, rounding to nearest, and neither flush-to-zero nor
        // denormals-are-zero.
        static MXCSR: u32 = 0x1f80;
        // SAFETY: this reads four bytes, and sets the register to the state that the compiler
        // assumes.
        unsafe {
            std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const MXCSR, options(nostack, readonly))
        };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: this sets the register to the state that the compiler assumes: traps disabled, round
    // to nearest, flushing disabled.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) 0u64, options(nomem, nostack));
    }
}
