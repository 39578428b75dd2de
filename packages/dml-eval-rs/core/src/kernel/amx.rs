//! AMX: compares rounded rows by matrix instructions, which multiply up to 16 rows by 16 columns.

use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::LazyLock;

use super::avx512_products::{Limits, PARTIAL_FUSED};
use super::avx512_sweep::{COLUMNS, ROWS, VECTORS};
use super::product_macros::{cost_or_whole, thresholds};
use super::routines::{PartialProduct, Parts, ROUNDED_AFFINE_STEPS, Rounding};

pub(super) const PARTIAL: PartialProduct = PartialProduct {
    rounding: Rounding { words_together: Some(WORDS), ..Rounding::IN_32_BITS },
    reaching,
    ..PARTIAL_FUSED
};

/// The words of a row that an instruction multiplies.
const WORDS: usize = 16;
/// The row panels that are multiplied together.
const PANELS: usize = 2;
/// The masks per row: one per vector, and one that stays 0, so that a panel fills a register.
const MASKS: usize = VECTORS + 1;

/// Whether the CPU has AMX, and the system lets this process use it.
pub(super) fn is_permitted() -> bool {
    static IS_PERMITTED: LazyLock<bool> = LazyLock::new(|| {
        const AMX_TILE: u32 = 1 << 24;
        const AMX_INT8: u32 = 1 << 25;
        #[allow(unused_unsafe, reason = "these functions are unsafe in Rust 1.89")]
        // SAFETY: all x86-64 CPUs have this instruction.
        let features = unsafe { if __cpuid(0).eax >= 7 { __cpuid_count(7, 0).edx } else { 0 } };
        features & (AMX_TILE | AMX_INT8) == AMX_TILE | AMX_INT8
            && is_x86_feature_detected!("bmi2")
            && request_permission()
    });
    *IS_PERMITTED
}

/// Asks Linux to let all threads of this process use the registers of AMX.
#[cfg(target_os = "linux")]
fn request_permission() -> bool {
    const SYS_ARCH_PRCTL: isize = 158;
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const XFEATURE_XTILEDATA: usize = 18;
    let result: isize;
    // SAFETY: this call doesn't access memory.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") SYS_ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn request_permission() -> bool {
    false
}

/// The shapes of the registers: sums in the first three, rows in the fourth, columns in the others.
#[repr(C, align(64))]
struct Shapes([u8; 64]);

impl Shapes {
    const fn new(rows: usize) -> Self {
        let (mut bytes, mut register) = ([0; 64], 0);
        bytes[0] = 1;
        while register < 8 {
            bytes[16 + 2 * register] = 4 * WORDS as u8;
            bytes[48 + register] = if register <= VECTORS { rows as u8 } else { WORDS as u8 };
            register += 1;
        }
        Shapes(bytes)
    }
}

/// Shapes for one row panel and for two.
static SHAPES: [Shapes; PANELS] = [Shapes::new(ROWS), Shapes::new(PANELS * ROWS)];

/// The sums of row panels and a column panel.
#[repr(align(64))]
struct Sums([i32; PANELS * ROWS * COLUMNS]);

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi2,popcnt")]
fn reaching(
    steps: usize,
    rows: &[u32],
    columns: &[u32],
    least: (&[f32], &[f32]),
    parts: &mut [Parts],
) -> u32 {
    let mut sums = [const { Sums([0; PANELS * ROWS * COLUMNS]) }; 2];
    let row_steps = PARTIAL.rounding.row_steps(steps);
    let columns = Columns {
        words: columns.as_ptr(),
        // SAFETY: the caller (`Kernel::reaching_parts`) checked that panels have `steps` steps,
        // more than ROUNDED_AFFINE_STEPS.
        last: unsafe { columns.as_ptr().add((steps - ROUNDED_AFFINE_STEPS) * COLUMNS).cast() },
        least: thresholds(least.1),
    };
    let groups = || rows.chunks(PANELS * ROWS * row_steps);
    let group_least = least.0.chunks(PANELS * ROWS);
    let mut compared = groups().zip(group_least).zip(parts.chunks_mut(PANELS));
    let (mut shaped, mut cost) = (0, 0);
    let mut limits = Limits::<{ PANELS * ROWS }, PANELS>::new();
    let mut limits_of_one = Limits::<ROWS, 1>::new();
    // SAFETY: the caller checked the panels, and `is_permitted` the instructions.
    unsafe {
        // While a group is multiplied, the sums of the group before are compared.
        for (at, group) in groups().map(Some).chain([None]).enumerate() {
            if let Some(rows) = group {
                let panels = rows.len() / (ROWS * row_steps);
                if shaped != panels {
                    asm!("ldtilecfg [{}]", in(reg) &SHAPES[panels - 1], options(nostack));
                    shaped = panels;
                }
                multiply((steps, row_steps), rows.as_ptr(), columns.words, &mut sums[at % 2]);
            }
            let Some(before) = at.checked_sub(1) else { continue };
            if let Some(((rows, least), parts)) = compared.next() {
                let rows = (rows, row_steps);
                let sums = &sums[before % 2];
                cost += if parts.len() == PANELS {
                    compare(sums, rows, &mut limits, &columns, least, parts)
                } else {
                    compare(sums, rows, &mut limits_of_one, &columns, least, parts)
                };
            }
        }
        asm!("tilerelease", options(nomem, nostack));
    }
    cost
}

/// A column panel.
struct Columns<'a> {
    words: *const u32,
    /// The last words.
    last: *const f32,
    least: Option<&'a [f32; COLUMNS]>,
}

/// Finds the parts with sums that reach a threshold, for `R` rows in `P` panels.
///
/// # Safety
///
/// The panels must be as long as `reaching` requires.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,bmi2,popcnt")]
#[inline]
unsafe fn compare<const R: usize, const P: usize>(
    sums: &Sums,
    (rows, row_steps): (&[u32], usize),
    limits: &mut Limits<R, P>,
    columns: &Columns<'_>,
    least: &[f32],
    parts: &mut [Parts],
) -> u32 {
    let mut masks = [[0u16; MASKS * ROWS]; P];
    // SAFETY: the caller checked the panels.
    unsafe {
        let of_rows = last_words(rows, row_steps);
        let least = least.first_chunk().expect("a threshold per row");
        limits.compute(&of_rows, columns.last, (least, columns.least));
        for r in 0..R {
            for vector in 0..VECTORS {
                let at = r * COLUMNS + vector * COLUMNS / VECTORS;
                let sums = _mm512_loadu_si512(sums.0.as_ptr().add(at).cast());
                let biases = limits.biases[r / ROWS][vector];
                let limit = _mm512_sub_epi32(limits.of(r, vector), biases);
                let mask = _mm512_cmpge_epi32_mask(sums, limit);
                // The compiler would gather the masks by slower instructions.
                let at = MASKS * r + vector;
                masks.as_flattened_mut().as_mut_ptr().add(at).write_volatile(mask);
            }
        }
    }
    let mut cost = 0;
    for (masks, parts) in masks.iter().zip(parts) {
        // SAFETY: a panel has 32 masks.
        let masks = unsafe { _mm512_loadu_si512(masks.as_ptr().cast()) };
        *parts = _pext_u32(_mm512_test_epi16_mask(masks, masks), 0x7777_7777);
        if *parts != 0 {
            cost += cost_or_whole(parts, ROWS * VECTORS);
        }
    }
    cost
}

/// Multiplies row panels, whose rows lie one after the other, by a column panel.
///
/// # Safety
///
/// The panels must have `steps` steps, and as many rows as the registers' shapes say.
#[inline(always)]
unsafe fn multiply(
    (steps, row_steps): (usize, usize),
    rows: *const u32,
    columns: *const u32,
    sums: &mut Sums,
) {
    // SAFETY: the caller checked the panels. The first step and the last aren't multiplied.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "2:",
            "tileloadd tmm3, [{row} + {row_bytes}]",
            "tileloadd tmm4, [{column} + {step_bytes}]",
            "tdpbssd tmm0, tmm3, tmm4",
            "tileloadd tmm5, [{column} + {step_bytes} + 64]",
            "tdpbssd tmm1, tmm3, tmm5",
            "tileloadd tmm6, [{column} + {step_bytes} + 128]",
            "tdpbssd tmm2, tmm3, tmm6",
            "add {row}, 64",
            "add {column}, {bytes}",
            "sub {left}, 1",
            "jnz 2b",
            "tilestored [{sums} + {step_bytes}], tmm0",
            "tilestored [{sums} + {step_bytes} + 64], tmm1",
            "tilestored [{sums} + {step_bytes} + 128], tmm2",
            row = inout(reg) rows => _,
            column = inout(reg) columns.add(COLUMNS) => _,
            left = inout(reg) (steps - ROUNDED_AFFINE_STEPS) / WORDS => _,
            sums = in(reg) sums.0.as_mut_ptr(),
            row_bytes = in(reg) size_of::<u32>() * row_steps,
            step_bytes = in(reg) size_of::<u32>() * COLUMNS,
            bytes = const size_of::<u32>() * COLUMNS * WORDS,
            out("tmm0") _,
            out("tmm1") _,
            out("tmm2") _,
            out("tmm3") _,
            out("tmm4") _,
            out("tmm5") _,
            out("tmm6") _,
            options(nostack),
        );
    }
}

/// Returns the last words of row panels, which the rows of a panel share.
#[inline(always)]
fn last_words<const R: usize>(rows: &[u32], row_steps: usize) -> [[f32; R]; ROUNDED_AFFINE_STEPS] {
    const SHARE: usize = ROUNDED_AFFINE_STEPS;
    let mut words = [[0.0; R]; ROUNDED_AFFINE_STEPS];
    for (word, numbers) in words.iter_mut().enumerate() {
        for (at, numbers) in numbers.chunks_exact_mut(SHARE).enumerate() {
            let row = at / (ROWS / SHARE) * ROWS + word * (ROWS / SHARE) + at % (ROWS / SHARE);
            let of_row = &rows[(row + 1) * row_steps - WORDS..][..SHARE];
            numbers
                .iter_mut()
                .zip(of_row)
                .for_each(|(number, bits)| *number = f32::from_bits(*bits));
        }
    }
    words
}
