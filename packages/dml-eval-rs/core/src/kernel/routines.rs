//! The routines of an instruction set. They are only called after array lengths have been checked.

use crate::exact::PAIRS;

use super::instructions::{Instructions, Work};
use super::tiles::Tiles;

/// Fills a tile, (rows, columns), with the products of a row panel and a column panel.
pub(crate) type Product = unsafe fn(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]);
/// Finds per row panel the parts of the tile with a column panel that may have a product that
/// reaches the threshold `least` of the row or column, or `WHOLE`. A part is a row with the columns
/// of a vector. Returns the cost of these parts, in parts of whole tiles.
pub(crate) type Reaching = unsafe fn(
    steps: usize,
    rows: &[u32],
    columns: &[u32],
    least: (&[f32], &[f32]),
    parts: &mut [Parts],
) -> u32;
/// Fills parts of a tile, and the others with −∞.
pub(crate) type FillParts =
    unsafe fn(steps: usize, rows: &[u32], columns: &[u32], parts: Parts, tile: &mut [f32]);
/// Some parts of a tile, by a bit per part: row by row, then vector by vector.
pub(crate) type Parts = u32;
/// All parts of a tile, if these cost less together.
pub(crate) const WHOLE: Parts = Parts::MAX;

/// Fills a tile and returns true, unless all sums of integers are below the `least` of their row.
pub(crate) type TileReaching =
    unsafe fn(steps: usize, rows: &[u32], columns: &[u32], least: &[i32], tile: &mut [f32]) -> bool;
pub(super) type Pairs32<'a> = [&'a [f32]; PAIRS];
pub(super) type Exact32 = unsafe fn(Pairs32<'_>, Pairs32<'_>) -> [f64; PAIRS];
pub(super) type Exact64 = unsafe fn(&[f64], &[f64]) -> f64;
pub(super) type Bits = unsafe fn(&[u8], &[u8]) -> u32;
pub(super) type ExactProduct = unsafe fn(rows: &[f64], columns: &[f64], tile: &mut [f64]);

/// Products in the order that `exact` defines, for panels packed by
/// [`pack_lanes`](crate::exact::pack_lanes).
#[derive(Clone, Copy)]
pub(crate) struct ExactProducts {
    pub rows: usize,
    pub columns: usize,
    /// Computes dot products of rows that contain only single-precision numbers.
    pub(super) dots32: ExactProduct,
    pub(super) dots64: ExactProduct,
    pub(super) distances: ExactProduct,
    /// Sums products in any order, fused if the CPU supports this, so the bits depend on the CPU.
    pub(super) fused: ExactProduct,
}

/// Products of int16 panels, for the parts of a tile that a comparison of rounded rows leaves: see
/// `rows/rounded_rows.rs`.
#[derive(Clone, Copy)]
pub(crate) struct PartialProduct {
    /// The number of parts in a tile.
    pub parts: usize,
    pub rounding: Rounding,
    pub(super) reaching: Reaching,
    pub(super) fill: FillParts,
}

/// How rows are rounded to bytes.
///
/// A row consists of sections. A section begins with a word of integers; the products of the other
/// words are added to it. Columns contain bytes, and rows contain bytes + `offset`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rounding {
    /// The largest magnitude of a byte.
    pub largest: i8,
    /// The words of bytes per section.
    pub section: usize,
    /// The length that the bytes for a sum in a section may have before they are rounded.
    pub longest: f32,
    /// If instructions multiply matrices, the number of words that they take per row. Then the
    /// rows of a row panel lie one after the other: see `row_steps`.
    pub words_together: Option<usize>,
}

impl Rounding {
    /// Returns the offset that makes the bytes of rows positive, if the products require this.
    pub fn offset(self) -> i32 {
        if self.words_together.is_some() { 0 } else { i32::from(self.largest) + 1 }
    }

    /// Returns the words per row in a row panel, given those in a column panel. If rows lie one
    /// after the other, they consist of bytes without an offset, some of the panel's last words,
    /// and padding.
    pub fn row_steps(self, steps: usize) -> usize {
        let padded = |words| steps - 1 - ROUNDED_AFFINE_STEPS + words;
        self.words_together.map_or(steps, padded)
    }

    /// Returns a section's word of integers, given the sums of the low and the high halves of the
    /// words.
    pub fn integers(self, [low, high]: [i32; 2]) -> u32 {
        if self.longest.is_finite() {
            low as u32 & 0xffff | (high as u32) << 16
        } else {
            (low + high) as u32
        }
    }
}

/// Products of panels of bytes.
#[derive(Clone, Copy)]
pub(crate) struct Bytes {
    pub(super) tile: Product,
    pub(super) tile_reaching: TileReaching,
}

/// Products of panels of codes: minus the number of differing bits.
#[derive(Clone, Copy)]
pub(crate) struct CodeProduct {
    pub(super) tiles: Tiles,
    pub(super) hamming: Product,
    /// Rearranges the words of the steps in a column panel, if `hamming` needs a different order
    /// than usual.
    pub(super) arrange: Option<unsafe fn(columns: &mut [u32])>,
}

/// The terms to sum in an exact product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// q·g, if all factors are single-precision numbers.
    Dot32,
    /// q·g, for any factors.
    Dot64,
    /// (q − g)².
    Distance,
}

/// The routines of an instruction set.
pub struct Kernel {
    /// The name to pass to [`select`](crate::select_kernel).
    pub name: &'static str,
    /// The tiles for products of numbers.
    pub(crate) number_tiles: Tiles,
    pub(super) float32: Product,
    /// Adds up the terms in chunks of `CHUNK` terms, then the chunks.
    pub(super) float32_in_chunks: Product,
    pub(super) bfloat16: Option<Product>,
    pub(super) int16: Option<Product>,
    pub(crate) partial: Option<PartialProduct>,
    pub(super) bytes: Option<Bytes>,
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
    /// Two int16 numbers. The last words of a row are a scale and a bias: see [`AFFINE_STEPS`].
    Int16Pair,
    /// Four bytes: unsigned in rows, signed in columns. For the last words of a row, see
    /// [`BYTE_AFFINE_STEPS`].
    ByteQuad,
    Bits,
}

/// The number of terms of a float32 product to add up before they are added to the sum of earlier
/// chunks, which makes rounding errors smaller.
pub(crate) const CHUNK: usize = 8;
/// The length of a chunk that contains all terms of a product.
pub(super) const ONE_CHUNK: usize = usize::MAX;

/// The number of words at the end of an int16 row: a scale and a bias, both float32. If N is the
/// exact product of the integers, a tile gets N·(σᵢσⱼ) + (βᵢ + βⱼ).
pub(crate) const AFFINE_STEPS: usize = 2;

/// The number of words at the end of a row of bytes: an int32, a scale and a bias. The int32 of row
/// and column are added to the sum of products; no subset of these terms may exceed 31 bits.
pub(crate) const BYTE_AFFINE_STEPS: usize = 1 + AFFINE_STEPS;

/// The number of words at the end of a rounded row: a scale, a bias, a length and an error.
pub(crate) const ROUNDED_AFFINE_STEPS: usize = AFFINE_STEPS + 2;

impl Kernel {
    /// Runs work that is compiled for the kernel's instructions. These don't change any bit,
    /// because the compiler doesn't fuse operations or reorder sums.
    #[inline]
    pub(crate) fn vectorize<W: Work>(&self, work: W) -> W::Output {
        // SAFETY: `select` only returns kernels with instructions that the CPU supports.
        unsafe { self.instructions.call(work) }
    }

    pub(crate) fn has_bfloat16(&self) -> bool {
        self.bfloat16.is_some()
    }

    pub(crate) fn has_int16(&self) -> bool {
        self.int16.is_some()
    }

    pub(crate) fn has_bytes(&self) -> bool {
        self.bytes.is_some()
    }

    /// Returns the product for float32 that adds up the terms in chunks.
    pub(crate) fn product_in_chunks(&self) -> CheckedProduct {
        CheckedProduct { product: self.float32_in_chunks, ..self.product(Word::Float32) }
    }

    /// Returns the product for words of this kind.
    pub(crate) fn product(&self, word: Word) -> CheckedProduct {
        let product = match word {
            Word::Float32 => self.float32,
            Word::BFloat16Pair => self.bfloat16.expect("the caller checks has_bfloat16"),
            Word::Int16Pair => self.int16.expect("the caller checks has_int16"),
            Word::ByteQuad => self.bytes.as_ref().expect("the caller checks has_bytes").tile,
            Word::Bits => self.codes.hamming,
        };
        let least_steps = match word {
            Word::Int16Pair => AFFINE_STEPS,
            Word::ByteQuad => BYTE_AFFINE_STEPS,
            _ => 0,
        };
        let Tiles { rows, columns, .. } = *self.tiles(word);
        CheckedProduct { product, rows, columns, least_steps }
    }

    /// Returns the tiles for words of this kind.
    #[inline]
    pub(crate) fn tiles(&self, word: Word) -> &Tiles {
        if word == Word::Bits { &self.codes.tiles } else { &self.number_tiles }
    }

    /// Arranges a column panel of codes in the order that products of codes need.
    pub(crate) fn arrange_codes(&self, columns: &mut [u32]) {
        assert!(columns.len().is_multiple_of(self.codes.tiles.columns));
        if let Some(arrange) = self.codes.arrange {
            // SAFETY: `select` only returns kernels with instructions that the CPU supports.
            unsafe { arrange(columns) }
        }
    }

    /// Finds per row panel the parts of the tile with a column panel that may have a product that
    /// reaches the threshold `least` of the row or column, or `WHOLE`. Returns the cost of these
    /// parts, in parts of whole tiles. Panels must be rounded as `partial.rounding` says.
    pub(crate) fn reaching_parts(
        &self,
        steps: usize,
        (rows, columns): (&[u32], &[u32]),
        least: (&[f32], &[f32]),
        parts: &mut [Parts],
    ) -> u32 {
        let Tiles { rows: height, columns: width, .. } = self.number_tiles;
        assert!(least.0.len() == parts.len() * height && least.1.len() == width);
        let partial = self.partial.as_ref().expect("the caller checks `partial`");
        let together = partial.rounding.words_together.unwrap_or(1);
        assert!(
            steps > 1 + ROUNDED_AFFINE_STEPS
                && (steps - 1 - ROUNDED_AFFINE_STEPS).is_multiple_of(together)
                && rows.len() == partial.rounding.row_steps(steps) * least.0.len()
                && columns.len() == steps * width
        );
        // SAFETY: `select` only returns kernels with instructions that the CPU supports; lengths
        // were checked above.
        unsafe { (partial.reaching)(steps, rows, columns, least, parts) }
    }

    /// Fills parts of a tile with products of int16 panels, and the others with −∞.
    pub(crate) fn fill_parts(
        &self,
        steps: usize,
        rows: &[u32],
        columns: &[u32],
        parts: Parts,
        tile: &mut [f32],
    ) {
        let Tiles { rows: height, columns: width, .. } = self.number_tiles;
        assert!(
            steps >= AFFINE_STEPS
                && rows.len() == steps * height
                && columns.len() == steps * width
                && tile.len() >= height * width
        );
        let fill = self.partial.as_ref().expect("the caller checks `partial`").fill;
        // SAFETY: see `reaching_parts`. A kernel ignores bits that don't stand for parts.
        unsafe { fill(steps, rows, columns, parts, tile) }
    }

    /// Fills a tile with products of bytes and returns true. If all sums of integers, without the
    /// int32 of the row, are below the `least` of the row, returns false instead.
    pub(crate) fn tile_reaching(
        &self,
        steps: usize,
        rows: &[u32],
        columns: &[u32],
        least: &[i32],
        tile: &mut [f32],
    ) -> bool {
        let Tiles { rows: height, columns: width, .. } = self.number_tiles;
        assert!(
            steps >= BYTE_AFFINE_STEPS
                && rows.len() == steps * height
                && columns.len() == steps * width
        );
        assert!(least.len() == height && tile.len() >= height * width);
        let bytes = self.bytes.as_ref().expect("the caller checks has_bytes");
        // SAFETY: `select` only returns kernels with instructions that the CPU supports; lengths
        // were checked above.
        unsafe { (bytes.tile_reaching)(steps, rows, columns, least, tile) }
    }

    /// Computes dot products of pairs of float32 rows with equal lengths, in the order that `exact`
    /// defines.
    pub(crate) fn dots32(&self, q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
        assert!(have_one_length(&q, &g));
        // SAFETY: `select` only returns kernels with instructions that the CPU supports; lengths
        // were checked above.
        unsafe { (self.dots32)(q, g) }
    }

    /// Computes squared distances of pairs of float32 rows with equal lengths, in the order that
    /// `exact` defines.
    pub(crate) fn distances32(&self, q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; PAIRS] {
        assert!(have_one_length(&q, &g));
        // SAFETY: see `dots32`.
        unsafe { (self.distances32)(q, g) }
    }

    pub(crate) fn dot64(&self, q: &[f64], g: &[f64]) -> f64 {
        // SAFETY: see `dots32`.
        unsafe { (self.dot64)(q, g) }
    }

    pub(crate) fn distance64(&self, q: &[f64], g: &[f64]) -> f64 {
        // SAFETY: see `dots32`.
        unsafe { (self.distance64)(q, g) }
    }

    /// Fills a tile with sums in the order that `exact` defines. Both panels must have equal
    /// numbers of steps, a multiple of eight. `tile` must have room for eight tiles; the first
    /// receives the result.
    pub(crate) fn exact_tile(&self, sum: Sum, rows: &[f64], columns: &[f64], tile: &mut [f64]) {
        let ExactProducts { rows: height, columns: width, .. } = self.exact;
        let steps = rows.len() / height;
        assert!(
            steps.is_multiple_of(8)
                && rows.len() == steps * height
                && columns.len() == steps * width
        );
        assert!(tile.len() == 8 * height * width);
        let product = match sum {
            Sum::Dot32 => self.exact.dots32,
            Sum::Dot64 => self.exact.dots64,
            Sum::Distance => self.exact.distances,
        };
        // SAFETY: see `dots32`.
        unsafe { product(rows, columns, tile) }
    }

    /// Fills a tile with sums of products. The bits depend on the kernel. Both panels must have
    /// equal numbers of steps.
    pub(crate) fn fused_tile(&self, rows: &[f64], columns: &[f64], tile: &mut [f64]) {
        let ExactProducts { rows: height, columns: width, .. } = self.exact;
        let steps = rows.len() / height;
        assert!(
            rows.len() == steps * height
                && columns.len() == steps * width
                && tile.len() == height * width
        );
        // SAFETY: see `dots32`.
        unsafe { (self.exact.fused)(rows, columns, tile) }
    }

    pub(crate) fn differing_bits(&self, a: &[u8], b: &[u8]) -> u32 {
        // SAFETY: see `dots32`.
        unsafe { (self.bits)(a, b) }
    }
}

/// Whether all rows have equal lengths.
#[inline(always)]
fn have_one_length(q: &Pairs32<'_>, g: &Pairs32<'_>) -> bool {
    (0..PAIRS).all(|i| q[i].len() == q[0].len() && g[i].len() == q[0].len())
}

/// A product that checks the lengths of panels.
#[derive(Clone, Copy)]
pub(crate) struct CheckedProduct {
    product: Product,
    rows: usize,
    columns: usize,
    least_steps: usize,
}

impl CheckedProduct {
    /// Whether products over parts of the steps add up to the product over all steps.
    pub fn is_sum(&self) -> bool {
        self.least_steps == 0
    }

    #[inline]
    pub fn tile(&self, steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
        assert!(
            steps >= self.least_steps
                && rows.len() >= steps * self.rows
                && columns.len() >= steps * self.columns
        );
        assert!(tile.len() >= self.rows * self.columns);
        // SAFETY: `select` returned this kernel, so the CPU supports the instructions; lengths were
        // checked above.
        unsafe { (self.product)(steps, rows, columns, tile) }
    }
}
