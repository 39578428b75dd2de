//! The instruction sets: products of packed panels, the sweep that counts over a product's tile, and exact sums.
//!
//! A kernel is chosen once, by [`select`]; everything above this module is the same code for all of them. Kernels may round
//! differently, which the error bound in `dense` allows for; they never decide a comparison, so results have the same bits.
//!
//! Packed layout. A row of the data is a sequence of `steps` 32-bit words: one float32 a word, or two bfloat16, or 32 bits of
//! a code. A panel holds the words of `rows` (or `columns`) rows, step by step: `panel[step * width + lane]`.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(all(test, unix))]
mod guarded;
mod portable;

use crate::error::{Result, argument};
use crate::exact::{self, TOGETHER};

/// Fills a (rows, columns) tile with the products of a row panel and a column panel.
pub(crate) type Product = unsafe fn(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]);
/// Compares a tile with the thresholds of its rows and columns.
pub(crate) type Sweep =
    unsafe fn(tile: &[f32], rows: Edge<'_>, columns: Edge<'_>, origin: (u32, u32), found: &mut Found);
type Pairs32<'a> = [&'a [f32]; TOGETHER];
type Exact32 = unsafe fn(Pairs32<'_>, Pairs32<'_>) -> [f64; TOGETHER];
type Exact64 = unsafe fn(&[f64], &[f64]) -> f64;
type Bits = unsafe fn(&[u8], &[u8]) -> u32;
type ExactProduct = unsafe fn(rows: &[f64], columns: &[f64], tile: &mut [f64]);

/// Products in the stated order, of panels packed by [`exact::position`].
#[derive(Clone, Copy)]
pub(crate) struct ExactProducts {
    pub rows: usize,
    pub columns: usize,
    /// Of factors that are all single-precision numbers.
    dots32: ExactProduct,
    dots64: ExactProduct,
    distances: ExactProduct,
}

/// What an exact product sums up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sum {
    /// q·g, where all factors are single-precision numbers.
    Dot32,
    /// q·g.
    Dot64,
    /// (q − g)².
    Distance,
}

/// Thresholds of one side of a tile. Two items with the same `group` are never compared.
#[derive(Clone, Copy)]
pub(crate) struct Edge<'a> {
    /// Values below this are of no interest.
    pub low: &'a [f32],
    /// Values above this are only counted; those from `low` up to it are listed.
    pub high: &'a [f32],
    pub group: &'a [u32],
}

/// A value between the thresholds of its row (or column), by position within the task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub row: u32,
    pub column: u32,
    pub value: f32,
}

/// What the sweeps of a task found.
#[derive(Default)]
pub(crate) struct Found {
    pub row_above: Vec<u32>,
    pub column_above: Vec<u32>,
    pub row_hits: Vec<Hit>,
    pub column_hits: Vec<Hit>,
}

impl Found {
    pub fn reset(&mut self, rows: usize, columns: usize) {
        self.row_above.clear();
        self.row_above.resize(rows, 0);
        self.column_above.clear();
        self.column_above.resize(columns, 0);
        self.row_hits.clear();
        self.column_hits.clear();
    }
}

/// One instruction set's routines.
pub struct Kernel {
    /// The name by which [`select`] knows it.
    pub name: &'static str,
    /// Rows and columns of a tile.
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    float32: Product,
    bfloat16: Option<Product>,
    hamming: Product,
    sweep: Sweep,
    dots32: Exact32,
    dot64: Exact64,
    distances32: Exact32,
    distance64: Exact64,
    bits: Bits,
    pub(crate) exact: ExactProducts,
    available: fn() -> bool,
}

/// The most rows and columns that any kernel's tile has.
pub(crate) const MAX_TILE: usize = 8 * 48;

/// What a packed word holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    Float32,
    BFloat16Pair,
    Bits,
}

impl Kernel {
    pub(crate) fn has_bfloat16(&self) -> bool {
        self.bfloat16.is_some()
    }

    /// The product for a kind of word.
    pub(crate) fn product(&self, word: Word) -> BoundProduct {
        let product = match word {
            Word::Float32 => self.float32,
            Word::BFloat16Pair => self.bfloat16.expect("asked only where has_bfloat16"),
            Word::Bits => self.hamming,
        };
        BoundProduct { product, rows: self.rows, columns: self.columns }
    }

    pub(crate) fn sweep(&self, tile: &[f32], rows: Edge<'_>, columns: Edge<'_>, origin: (u32, u32), found: &mut Found) {
        let height = rows.group.len();
        assert!(height <= self.rows && rows.low.len() == height && rows.high.len() == height);
        let width = self.columns;
        assert!(columns.group.len() == width && columns.low.len() == width && columns.high.len() == width);
        assert!(tile.len() >= self.rows * width);
        assert!(
            found.row_above.len() >= origin.0 as usize + height
                && found.column_above.len() >= origin.1 as usize + width
        );
        // SAFETY: a kernel is handed out by `select` only where the CPU has its instructions; lengths were checked above.
        unsafe { (self.sweep)(tile, rows, columns, origin, found) }
    }

    /// Products of float32 rows of one length, pair by pair, in the stated order.
    pub(crate) fn dots32(&self, q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; TOGETHER] {
        assert!(q.iter().chain(&g).all(|row| row.len() == q[0].len()));
        // SAFETY: a kernel is handed out by `select` only where the CPU has its instructions; lengths were checked.
        unsafe { (self.dots32)(q, g) }
    }

    /// Squared distances of float32 rows of one length, pair by pair, in the stated order.
    pub(crate) fn distances32(&self, q: Pairs32<'_>, g: Pairs32<'_>) -> [f64; TOGETHER] {
        assert!(q.iter().chain(&g).all(|row| row.len() == q[0].len()));
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

    /// A tile of sums in the stated order; the panels have as many steps as each other, a multiple of eight. `tile` has room
    /// for eight, and the first is the result.
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

    pub(crate) fn differing_bits(&self, a: &[u8], b: &[u8]) -> u32 {
        // SAFETY: as in `dots32`.
        unsafe { (self.bits)(a, b) }
    }
}

/// A product that checks its panels.
#[derive(Clone, Copy)]
pub(crate) struct BoundProduct {
    product: Product,
    rows: usize,
    columns: usize,
}

impl BoundProduct {
    #[inline]
    pub fn tile(&self, steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
        assert!(rows.len() >= steps * self.rows && columns.len() >= steps * self.columns);
        assert!(tile.len() >= self.rows * self.columns);
        // SAFETY: the kernel came from `select`, which checked the CPU; the lengths were checked above.
        unsafe { (self.product)(steps, rows, columns, tile) }
    }
}

/// Exact sums of single-precision rows, fused where that is an instruction.
macro_rules! single_precision_routines {
    ($fused:literal $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        fn dots32(q: super::Pairs32<'_>, g: super::Pairs32<'_>) -> [f64; crate::exact::TOGETHER] {
            crate::exact::dots::<$fused>(q, g)
        }
        $(#[target_feature(enable = $feature)])?
        fn distances32(q: super::Pairs32<'_>, g: super::Pairs32<'_>) -> [f64; crate::exact::TOGETHER] {
            crate::exact::squared_distances(q, g)
        }
    };
}
use single_precision_routines;

/// A tile of sums in the stated order with vector registers, `$wide` numbers each: one lane after another, since a row's
/// elements are packed lane by lane. The step that adds a term is `$step`.
macro_rules! exact_product {
    ($name:ident, $feature:literal, ($rows:ident, $columns:ident, $wide:literal),
     ($zero:ident, $load:ident, $one:ident, $store:ident), |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = $feature)]
        fn $name(rows: &[f64], columns: &[f64], tile: &mut [f64]) {
            let each = rows.len() / $rows / 8;
            let (mut row, mut column) = (rows.as_ptr(), columns.as_ptr());
            let (lanes, _) = tile.as_chunks_mut::<{ $rows * $columns }>();
            for lane in &mut lanes[..8] {
                let mut sums = [[$zero(); $columns / $wide]; $rows];
                // SAFETY: the caller (`Kernel::exact_tile`) checked that both panels hold 8·`each` steps, and a lane holds
                // ROWS × COLUMNS numbers.
                unsafe {
                    for _ in 0..each {
                        let panel: [_; $columns / $wide] = std::array::from_fn(|v| $load(column.add(v * $wide)));
                        for (r, sums) in sums.iter_mut().enumerate() {
                            let $q = $one(*row.add(r));
                            for (s, $g) in sums.iter_mut().zip(panel) {
                                let $sum = *s;
                                *s = $step;
                            }
                        }
                        row = row.add($rows);
                        column = column.add($columns);
                    }
                    for (r, sums) in sums.iter().enumerate() {
                        for (v, sum) in sums.iter().enumerate() {
                            $store(lane.as_mut_ptr().add(r * $columns + v * $wide), *sum);
                        }
                    }
                }
            }
            crate::exact::combine_tiles(tile, $rows * $columns);
        }
    };
}
use exact_product;

/// Exact sums and bit counts, the same source compiled for each instruction set.
macro_rules! exact_routines {
    ($($feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        fn dot64(q: &[f64], g: &[f64]) -> f64 {
            crate::exact::dot(q, g)
        }
        $(#[target_feature(enable = $feature)])?
        fn distance64(q: &[f64], g: &[f64]) -> f64 {
            crate::exact::squared_distance(q, g)
        }
        $(#[target_feature(enable = $feature)])?
        fn bits(a: &[u8], b: &[u8]) -> u32 {
            crate::exact::differing_bits(a, b)
        }
    };
}
use exact_routines;

#[cfg(target_arch = "x86_64")]
static KERNELS: [&Kernel; 4] = [&avx512::WITH_BFLOAT16, &avx512::PLAIN, &avx2::KERNEL, &portable::KERNEL];
#[cfg(not(target_arch = "x86_64"))]
static KERNELS: [&Kernel; 1] = [&portable::KERNEL];

/// The fastest kernel that this CPU can run, or the one called `name`.
pub fn select(name: Option<&str>) -> Result<&'static Kernel> {
    let usable = || KERNELS.iter().copied().filter(|k| (k.available)());
    match name {
        None => Ok(usable().next().unwrap_or(&portable::KERNEL)),
        Some(name) => usable().find(|k| k.name == name).map_or_else(
            || {
                let names: Vec<_> = usable().map(|k| k.name).collect();
                argument(format!(
                    "kernel {name:?} is not one that this CPU can run; expected one of {}",
                    names.join(", ")
                ))
            },
            Ok,
        ),
    }
}

/// The names of the kernels that this CPU can run, fastest first.
pub fn names() -> Vec<&'static str> {
    KERNELS.iter().filter(|k| (k.available)()).map(|k| k.name).collect()
}

/// The stated-order sum is also needed where no kernel is at hand.
pub(crate) fn square(x: &[f64]) -> f64 {
    exact::dot(x, x)
}
