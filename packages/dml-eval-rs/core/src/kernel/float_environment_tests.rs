//! Tests that the default floating-point environment can be restored from any other.

use std::hint::black_box;

use super::*;

/// Divides numbers with quotients that depend on the rounding mode, and numbers with a subnormal
/// quotient.
fn quotients() -> [u64; 3] {
    // Black boxes keep the divisions between the changes of the register, which the compiler
    // doesn't know about.
    let quotient = |x: f64, y: f64| black_box(black_box(x) / black_box(y)).to_bits();
    [quotient(1.0, 3.0), quotient(1.0, 10.0), quotient(f64::MIN_POSITIVE, 2.0)]
}

#[cfg(target_arch = "x86_64")]
const CHANGED: [u32; 5] =
    [0x1f80 | 0x2000, 0x1f80 | 0x4000, 0x1f80 | 0x6000, 0x1f80 | 0x8000, 0x1f80 | 0x8040];
#[cfg(target_arch = "aarch64")]
const CHANGED: [u32; 4] = [1 << 22, 2 << 22, 3 << 22, 1 << 24];

fn set(control: u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: until the default is set again, the thread computes only the quotients, which are
    // opaque to the compiler.
    unsafe {
        std::arch::asm!("ldmxcsr [{}]", in(reg) &raw const control, options(nostack, readonly));
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("msr fpcr, {}", in(reg) u64::from(control), options(nomem, nostack));
    }
}

#[test]
fn the_default_follows_any_rounding_mode_and_flushing() {
    let default = [1.0 / 3.0, 1.0 / 10.0, f64::MIN_POSITIVE / 2.0].map(f64::to_bits);
    for control in CHANGED {
        let (changed, restored) = std::thread::spawn(move || {
            set(control);
            let changed = quotients();
            set_default_float_environment();
            (changed, quotients())
        })
        .join()
        .unwrap();
        assert_ne!(changed, default, "{control:#x} changed nothing");
        assert_eq!(restored, default, "{control:#x}");
    }
}
