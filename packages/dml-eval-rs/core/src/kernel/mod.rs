//! Kernels, one per instruction set: products of packed panels, comparisons of tiles with
//! thresholds, and exact sums.
//!
//! [`select`] chooses the kernel once, and all higher layers use shared code for all kernels.
//! Kernels may round differently, within the error bound in `rows/dense_packing.rs`. Results are
//! identical, because float64 decides if the bound can't.
//!
//! Packed layout: a row is a sequence of `steps` 32-bit words. A word is a float32, two bfloat16,
//! two int16, four bytes, or 32 bits of a code. A panel has the words of `rows` (or `columns`)
//! rows, step by step: `panel[step * width + lane]`. For codes, some kernels rearrange the words of
//! a step in column panels.

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_codes;
#[cfg(target_arch = "x86_64")]
mod avx2_products;
#[cfg(target_arch = "x86_64")]
mod avx2_sweep;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "x86_64")]
mod avx512_codes;
#[cfg(target_arch = "x86_64")]
mod avx512_products;
#[cfg(target_arch = "x86_64")]
mod avx512_sweep;
mod brackets;
#[cfg(all(test, unix))]
mod byte_tests;
mod caches;
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
mod portable_bytes;
#[cfg(target_arch = "x86_64")]
mod product_macros;
#[cfg(test)]
mod rounding_tests;
mod routines;
mod sweep;
mod tiles;

use crate::error::{Result, argument};

pub(crate) use brackets::ItemBrackets;
#[cfg(test)]
pub(crate) use brackets::Thresholds;
pub(crate) use caches::{copy_past_caches, prefetch};
pub use float_environment::set_default_float_environment;
pub(crate) use instructions::Work;
pub use routines::Kernel;
pub(crate) use routines::{
    AFFINE_STEPS, BYTE_AFFINE_STEPS, CHUNK, CheckedProduct, Parts, ROUNDED_AFFINE_STEPS, Rounding,
    Sum, WHOLE, Word,
};
pub(crate) use sweep::{Above, Hit, Sides, SweepResult};
pub(crate) use tiles::{MAX_TILE, Tiles};

#[cfg(target_arch = "x86_64")]
static KERNELS: [&Kernel; 7] = [
    &avx512::WITH_AMX,
    &avx512::WITH_VNNI,
    &avx512::PLAIN,
    &avx2::WITH_VNNI,
    &avx2::PLAIN,
    &portable::KERNEL,
    &portable_bytes::KERNEL,
];
#[cfg(target_arch = "aarch64")]
static KERNELS: [&Kernel; 4] =
    [&neon::WITH_BFLOAT16, &neon::PLAIN, &portable::KERNEL, &portable_bytes::KERNEL];
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
static KERNELS: [&Kernel; 2] = [&portable::KERNEL, &portable_bytes::KERNEL];

/// Selects the kernel called `name`, or the fastest kernel that this CPU can run if `name` is
/// `None`.
pub fn select(name: Option<&str>) -> Result<&'static Kernel> {
    let usable = || KERNELS.iter().copied().filter(|k| (k.available)());
    match name {
        None => Ok(usable().next().unwrap_or(&portable::KERNEL)),
        Some(name) => usable().find(|k| k.name == name).map_or_else(
            || {
                argument(format!(
                    "kernel {name:?} is unknown or can't run on this CPU; expected one of {}",
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

/// Lists the names of the kernels that this build includes but this CPU can't run.
#[expect(clippy::disallowed_methods, reason = "kernels are few")]
pub fn missing() -> Vec<&'static str> {
    KERNELS.iter().filter(|k| !(k.available)()).map(|k| k.name).collect()
}
