//! The routines of one instruction set, called only after checks of their arrays' lengths.

use crate::exact::PAIRS;

use super::instructions::{Instructions, Work};
use super::tiles::Tiles;

/// Fills a (rows, columns) tile with the products of a row panel and a column panel.
pub(crate) type Product = unsafe fn(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]);
/// Tells for which of some row panels a product with a column panel reaches the least of its row or of its column.
pub(crate) type Reaches = unsafe fn(steps: usize, rows: &[u32], columns: &[u32], least: (&[f32], &[f32])) -> u64;
pub(super) type Pairs32<'a> = [&'a [f32]; PAIRS];
pub(super) type Exact32 = unsafe fn(Pairs32<'_>, Pairs32<'_>) -> [f64; PAIRS];
pub(super) type Exact64 = unsafe fn(&[f64], &[f64]) -> f64;
pub(super) type Bits = unsafe fn(&[u8], &[u8]) -> u32;
pub(super) type ExactProduct = unsafe fn(rows: &[f64], columns: &[f64], tile: &mut [f64]);

/// Products in the stated order, of panels packed by [`pack_lanes`](crate::exact::pack_lanes).
#[derive(Clone, Copy)]
pub(crate) struct ExactProducts {
    pub rows: usize,
    pub columns: usize,
    /// Of factors that are all single-precision numbers.
    pub(super) dots32: ExactProduct,
    pub(super) dots64: ExactProduct,
    pub(super) distances: ExactProduct,
    /// Sums of products in any order, of fused terms where the CPU has them: the bits depend on the CPU.
    pub(super) fused: ExactProduct,
}

/// Products of panels of int16.
#[derive(Clone, Copy)]
pub(crate) struct Int16 {
    pub(super) tile: Product,
    pub(super) reaches: Reaches,
}

/// Products of panels of codes: minus the number of differing bits.
#[derive(Clone, Copy)]
pub(crate) struct CodeProduct {
    pub(super) tiles: Tiles,
    pub(super) hamming: Product,
    /// Rearranges the words of each step of a panel of columns, where `hamming` needs another order than the stated one.
    pub(super) arrange: Option<unsafe fn(columns: &mut [u32])>,
}

/// The terms of an exact product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// q·g, where all factors are single-precision numbers.
    Dot32,
    /// q·g.
    Dot64,
    /// (q − g)².
    Distance,
}

/// One instruction set's routines.
pub struct Kernel {
    /// The name that [`select`](crate::select_kernel) takes.
    pub name: &'static str,
    /// The tiles of numbers.
    pub(crate) number_tiles: Tiles,
    pub(super) float32: Product,
    pub(super) bfloat16: Option<Product>,
    pub(super) int16: Option<Int16>,
    pub(super) codes: CodeProduct,
    pub(super) dots32: Exact32,
    pub(super) dot64: Exact64,
    pub(super) distances32: Exact32,
    pub(super) distance64: Exact64,
    pub(super) bits: Bits,
    pub(crate) exact: ExactProducts,
    pub(super) instructions: Instructions,
    pub(super) available: fn() -> bool,
}

/// The contents of a packed word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    Float32,
    BFloat16Pair,
    /// Two int16, of a row whose last words are a scale and a bias: [`AFFINE_STEPS`].
    Int16Pair,
    Bits,
}

/// Words at the end of a row of int16: a float32 scale, and a float32 bias. With N the exact product of the integers, a tile
/// gets N·(σᵢσⱼ) + (βᵢ + βⱼ).
pub(crate) const AFFINE_STEPS: usize = 2;

impl Kernel {
    /// Does work that is compiled for the kernel's instructions. No bit depends on them: the compiler fuses nothing and keeps the order
    /// of sums.
    #[inline]
    pub(crate) fn vectorize<W: Work>(&self, work: W) -> W::Output {
        // SAFETY: `select` returns a kernel only where the CPU has its instructions.
        unsafe { self.instructions.call(work) }
    }

    pub(crate) fn has_bfloat16(&self) -> bool {
        self.bfloat16.is_some()
    }

    pub(crate) fn has_int16(&self) -> bool {
        self.int16.is_some()
    }

    /// Returns the product for a kind of word.
    pub(crate) fn product(&self, word: Word) -> CheckedProduct {
        let product = match word {
            Word::Float32 => self.float32,
            Word::BFloat16Pair => self.bfloat16.expect("called only where has_bfloat16"),
            Word::Int16Pair => self.int16.as_ref().expect("called only where has_int16").tile,
            Word::Bits => self.codes.hamming,
        };
        let least_steps = if word == Word::Int16Pair { AFFINE_STEPS } else { 0 };
        let Tiles { rows, columns, .. } = *self.tiles(word);
        CheckedProduct { product, rows, columns, least_steps }
    }

    /// Returns the tiles of products of a kind of word.
    #[inline]
    pub(crate) fn tiles(&self, word: Word) -> &Tiles {
        if word == Word::Bits { &self.codes.tiles } else { &self.number_tiles }
    }

    /// Brings the words of a panel of columns of codes into the order that the product of bits takes.
    pub(crate) fn arrange_codes(&self, columns: &mut [u32]) {
        assert!(columns.len().is_multiple_of(self.codes.tiles.columns));
        if let Some(arrange) = self.codes.arrange {
            // SAFETY: `select` returns a kernel only where the CPU has its instructions.
            unsafe { arrange(columns) }
        }
    }

    /// Tells for which of at most 64 panels of rows of int16 a product with a panel of columns reaches the least of its row or of its
    /// column: the p-th bit for the p-th.
    pub(crate) fn reaches(&self, steps: usize, rows: &[u32], columns: &[u32], least: (&[f32], &[f32])) -> u64 {
        let Tiles { rows: height, columns: width, .. } = self.number_tiles;
        let panels = least.0.len() / height;
        assert!(panels <= 64 && least.0.len() == panels * height && least.1.len() == width);
        assert!(steps >= AFFINE_STEPS && rows.len() == steps * least.0.len() && columns.len() == steps * width);
        let reaches = self.int16.as_ref().expect("called only where has_int16").reaches;
        // SAFETY: `select` returns a kernel only where the CPU has its instructions; lengths were checked above.
        unsafe { reaches(steps, rows, columns, least) }
    }

    /// Computes the dot products of pairs of float32 rows of one length, in the stated order.
    pub(crate) fn dots32(&self, q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
        assert!(have_one_length(&q, &g));
        // SAFETY: `select` returns a kernel only where the CPU has its instructions; lengths were checked above.
        unsafe { (self.dots32)(q, g) }
    }

    /// Computes the squared distances of pairs of float32 rows of one length, in the stated order.
    pub(crate) fn distances32(&self, q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
        assert!(have_one_length(&q, &g));
        // SAFETY: as in `dots32`.
        unsafe { (self.distances32)(q, g) }
    }

    pub(crate) fn dot64(&self, q: &[f64], g: &[f64]) -> f64 {
        // SAFETY: as in `dots32`.
        unsafe { (self.dot64)(q, g) }
    }

    pub(crate) fn distance64(&self, q: &[f64], g: &[f64]) -> f64 {
        // SAFETY: as in `dots32`.
        unsafe { (self.distance64)(q, g) }
    }

    /// Fills a tile with sums in the stated order. Both panels have the same number of steps, a multiple of eight. `tile` has
    /// room for eight tiles; the first is the result.
    pub(crate) fn exact_tile(&self, sum: Sum, rows: &[f64], columns: &[f64], tile: &mut [f64]) {
        let ExactProducts { rows: height, columns: width, .. } = self.exact;
        let steps = rows.len() / height;
        assert!(steps.is_multiple_of(8) && rows.len() == steps * height && columns.len() == steps * width);
        assert!(tile.len() == 8 * height * width);
        let product = match sum {
            Sum::Dot32 => self.exact.dots32,
            Sum::Dot64 => self.exact.dots64,
            Sum::Distance => self.exact.distances,
        };
        // SAFETY: as in `dots32`.
        unsafe { product(rows, columns, tile) }
    }

    /// Fills a tile with sums of products whose bits depend on the kernel. Both panels have the same number of steps.
    pub(crate) fn fused_tile(&self, rows: &[f64], columns: &[f64], tile: &mut [f64]) {
        let ExactProducts { rows: height, columns: width, .. } = self.exact;
        let steps = rows.len() / height;
        assert!(rows.len() == steps * height && columns.len() == steps * width && tile.len() == height * width);
        // SAFETY: as in `dots32`.
        unsafe { (self.exact.fused)(rows, columns, tile) }
    }

    pub(crate) fn differing_bits(&self, a: &[u8], b: &[u8]) -> u32 {
        // SAFETY: as in `dots32`.
        unsafe { (self.bits)(a, b) }
    }
}

/// Whether all rows have one length.
#[inline(always)]
fn have_one_length(q: &Pairs32<'_>, g: &Pairs32<'_>) -> bool {
    (0..PAIRS).all(|i| q[i].len() == q[0].len() && g[i].len() == q[0].len())
}

/// A product that checks its panels' lengths.
#[derive(Clone, Copy)]
pub(crate) struct CheckedProduct {
    product: Product,
    rows: usize,
    columns: usize,
    least_steps: usize,
}

impl CheckedProduct {
    /// Whether a product is the sum of those of parts of the steps.
    pub fn is_sum(&self) -> bool {
        self.least_steps == 0
    }

    #[inline]
    pub fn tile(&self, steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
        assert!(steps >= self.least_steps && rows.len() >= steps * self.rows && columns.len() >= steps * self.columns);
        assert!(tile.len() >= self.rows * self.columns);
        // SAFETY: the kernel came from `select`, which checked the CPU; the lengths were checked above.
        unsafe { (self.product)(steps, rows, columns, tile) }
    }
}
