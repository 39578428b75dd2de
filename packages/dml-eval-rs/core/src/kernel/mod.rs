//! The instruction sets: products of packed panels, the sweep of a product's tile against thresholds, and exact sums.
//!
//! A kernel is chosen once, by [`select`]; all higher layers are the same code for every kernel. Kernels may round differently,
//! within the error bound in `rows/dense.rs`; their rounded products never decide a comparison, so results have the same bits.
//!
//! Packed layout: a row of the data is a sequence of `steps` 32-bit words, each one float32, two bfloat16, two int16, or 32 bits of
//! a code. A panel holds the words of `rows` (or `columns`) rows, step by step: `panel[step * width + lane]`. For codes some kernels
//! rearrange the words of a step of a column panel.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_codes;
#[cfg(target_arch = "x86_64")]
mod avx2_sweep;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_codes;
#[cfg(target_arch = "x86_64")]
mod avx512_sweep;
mod brackets;
mod exact_macros;
mod float_environment;
#[cfg(all(test, any(target_arch = "x86_64", target_arch = "aarch64")))]
mod float_environment_tests;
#[cfg(all(test, unix))]
mod guarded_tests;
#[cfg(target_arch = "x86_64")]
mod half_byte_tables;
mod instructions;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod prefetch;
#[cfg(test)]
mod rounding_tests;
mod routines;
mod sweep;
mod tiles;

use crate::error::{Result, argument};

pub(crate) use brackets::ItemBrackets;
#[cfg(test)]
pub(crate) use brackets::Thresholds;
pub use float_environment::set_default_float_environment;
pub(crate) use instructions::Work;
pub(crate) use prefetch::prefetch;
pub use routines::Kernel;
pub(crate) use routines::{AFFINE_STEPS, CheckedProduct, Sum, Word};
pub(crate) use sweep::{Above, Hit, Sides, SweepResult};
pub(crate) use tiles::{MAX_TILE, Tiles};

#[cfg(target_arch = "x86_64")]
static KERNELS: [&Kernel; 5] = [&avx512::WITH_VNNI, &avx512::PLAIN, &avx2::WITH_VNNI, &avx2::KERNEL, &portable::KERNEL];
#[cfg(target_arch = "aarch64")]
static KERNELS: [&Kernel; 3] = [&neon::WITH_BFLOAT16, &neon::PLAIN, &portable::KERNEL];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static KERNELS: [&Kernel; 1] = [&portable::KERNEL];

/// Selects the fastest kernel that this CPU can run, or the one named `name`.
pub fn select(name: Option<&str>) -> Result<&'static Kernel> {
    let usable = || KERNELS.iter().copied().filter(|k| (k.available)());
    match name {
        None => Ok(usable().next().unwrap_or(&portable::KERNEL)),
        Some(name) => usable().find(|k| k.name == name).map_or_else(
            || {
                argument(format!(
                    "kernel {name:?} is not one that this CPU can run; expected one of {}",
                    names().join(", ")
                ))
            },
            Ok,
        ),
    }
}

/// Lists the names of the kernels that this CPU can run, fastest first.
#[expect(clippy::disallowed_methods, reason = "kernels are few")]
pub fn names() -> Vec<&'static str> {
    KERNELS.iter().filter(|k| (k.available)()).map(|k| k.name).collect()
}

/// Lists the names of the kernels of this build that this CPU can't run.
#[expect(clippy::disallowed_methods, reason = "kernels are few")]
pub fn missing() -> Vec<&'static str> {
    KERNELS.iter().filter(|k| !(k.available)()).map(|k| k.name).collect()
}
