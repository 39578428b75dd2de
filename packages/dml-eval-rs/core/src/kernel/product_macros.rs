//! Defines the products of packed panels in a single place, to be compiled per instruction set.
//!
//! The calling module contains ROWS, VECTORS and COLUMNS, the shape of a tile, and a module `v`
//! with vectors of `v::LANES` columns and the instructions for these.

use super::routines::{Parts, Rounding, WHOLE};

impl Rounding {
    /// For sums of 32 bits.
    pub(super) const IN_32_BITS: Rounding =
        Rounding { largest: i8::MAX, section: usize::MAX, longest: f32::INFINITY };
    /// For sums of 16 bits, two per word. Sums may wrap around, if the last is below 2¹⁵.
    pub(super) const IN_16_BITS: Rounding = Rounding { largest: 90, section: 32, longest: 177.0 };
}

const _: () = {
    let Rounding { largest, section, longest } = Rounding::IN_16_BITS;
    // `vpmaddubsw` adds two products, and saturates.
    assert!(2 * (2 * largest as i32 + 1) * largest as i32 <= i16::MAX as i32);
    // Rounding adds up to a half to each byte, and a sum has two products per word. By
    // Cauchy–Schwarz, a sum is at most the product of the lengths.
    let added = 4.0;
    assert!(added * added >= 2.0 * section as f32 / 4.0);
    assert!((longest + added) * (longest + added) < 32_767.0);
};

/// Returns the cost to multiply the given parts of a tile, in parts of a whole tile. If this is not
/// less than the cost of the tile, sets `parts` to `WHOLE`.
#[inline(always)]
pub(super) fn cost_or_whole(parts: &mut Parts, all: usize) -> u32 {
    /// The cost to multiply a single part.
    const LONE: u32 = 3;
    let (cost, all) = (LONE * parts.count_ones(), all as u32);
    if cost >= all {
        *parts = WHOLE;
    }
    cost.min(all)
}

/// Defines a function that multiplies two panels word by word: `$step(sum, x, y)` adds the products
/// of two words to a sum. The sums of a column start from a vector of `first`.
macro_rules! sums {
    ($features:literal, $name:ident, |$sum:ident, $x:ident, $y:ident| $step:expr) => {
        /// # Safety
        ///
        /// The panels must have `steps` steps.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn $name(
            steps: usize,
            mut row: *const u32,
            mut column: *const u32,
            first: [v::Ints; VECTORS],
        ) -> Sums {
            let mut sums = [first; ROWS];
            for _ in 0..steps {
                // SAFETY: the caller checked the number of steps.
                unsafe {
                    let panel = load(column);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let $x = v::ints(*row.add(r) as i32);
                        for (sum, $y) in sums.iter_mut().zip(panel) {
                            let $sum = *sum;
                            *sum = $step;
                        }
                    }
                    row = row.add(ROWS);
                    column = column.add(COLUMNS);
                }
            }
            sums
        }
    };
}
pub(super) use sums;

/// Defines the product of int16 panels, given their sums.
macro_rules! int16_product {
    ($features:literal, $name:ident, $sums:ident) => {
        #[target_feature(enable = $features)]
        pub(super) fn $name(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
            let pairs = steps - AFFINE_STEPS;
            // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels have `steps`
            // steps, at least AFFINE_STEPS, and the tile ROWS × COLUMNS values.
            unsafe {
                let zeros = [v::zero(); VECTORS];
                let sums = $sums(pairs, rows.as_ptr(), columns.as_ptr(), zeros);
                store(
                    &sums,
                    rows.as_ptr().add(pairs * ROWS),
                    columns.as_ptr().add(pairs * COLUMNS),
                    tile,
                );
            }
        }
    };
}
pub(super) use int16_product;

/// Defines a comparison of rounded rows, given their sums.
macro_rules! comparison {
    ($features:literal, $name:ident, $sums:ident) => {
        #[target_feature(enable = $features)]
        fn $name(
            steps: usize,
            rows: &[u32],
            columns: &[u32],
            least: (&[f32], &[f32]),
            parts: &mut [Parts],
        ) -> u32 {
            let words = steps - ROUNDED_AFFINE_STEPS;
            let mut cost = 0;
            let panels = rows.chunks_exact(steps * ROWS).zip(least.0.chunks_exact(ROWS));
            for ((rows, row_least), parts) in panels.zip(parts) {
                // SAFETY: the caller (`Kernel::reaching_parts`) checked that panels have `steps`
                // steps, more than ROUNDED_AFFINE_STEPS, and that `least.1` has COLUMNS thresholds.
                unsafe {
                    let sums = $sums(words, rows.as_ptr(), columns.as_ptr());
                    let row = rows.as_ptr().add(words * ROWS).cast::<f32>();
                    let column = columns.as_ptr().add(words * COLUMNS).cast::<f32>();
                    let below = |r: usize, vector: usize| {
                        let of_row = |word: usize| v::floats(*row.add(word * ROWS + r));
                        let of_column = |word: usize| {
                            v::load_floats(column.add(word * COLUMNS + v::LANES * vector))
                        };
                        let mut most = v::add_floats(of_row(1), of_column(1));
                        most = v::multiply_add(of_row(3), of_column(2), most);
                        most = v::multiply_add(of_row(2), of_column(3), most);
                        let scale = v::multiply(of_row(0), of_column(0));
                        most = v::multiply_add(v::to_floats(sums[r][vector]), scale, most);
                        let of_columns = v::load_floats(least.1.as_ptr().add(v::LANES * vector));
                        v::floats_below(most, v::min(v::floats(row_least[r]), of_columns))
                    };
                    *parts = 0;
                    for r in 0..ROWS {
                        for vector in 0..VECTORS {
                            let is_reached = !v::are_all(below(r, vector));
                            *parts |= Parts::from(is_reached) << (r * VECTORS + vector);
                        }
                    }
                    if *parts != 0 {
                        cost += cost_or_whole(parts, ROWS * VECTORS);
                    }
                }
            }
            cost
        }
    };
}
pub(super) use comparison;

/// Defines the products for a set of features, and for a set with VNNI.
macro_rules! products {
    ($features:literal, $with_vnni:literal) => {
        pub(super) const PARTIAL: PartialProduct = PartialProduct {
            parts: ROWS * VECTORS,
            rounding: Rounding::IN_16_BITS,
            reaching,
            fill,
        };
        pub(super) const PARTIAL_FUSED: PartialProduct =
            PartialProduct { rounding: Rounding::IN_32_BITS, reaching: reaching_fused, ..PARTIAL };
        pub(super) const BYTES: Bytes = Bytes { tile, tile_reaching };

        /// The sums of a tile.
        type Sums = [[v::Ints; VECTORS]; ROWS];

        /// Loads a word per column.
        ///
        /// # Safety
        ///
        /// `at` must point to COLUMNS words.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn load(at: *const u32) -> [v::Ints; VECTORS] {
            // Don't use `from_fn`: the compiler may not inline intrinsics into it.
            let mut vectors = [v::zero(); VECTORS];
            for (i, vector) in vectors.iter_mut().enumerate() {
                // SAFETY: the caller checked the number of words.
                *vector = unsafe { v::load(at.add(v::LANES * i).cast()) };
            }
            vectors
        }

        /// Fills a tile with sums, scaled, plus the biases.
        ///
        /// # Safety
        ///
        /// `row` and `column` must point to the scales, then the biases, and the tile must have
        /// ROWS × COLUMNS values.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn store(sums: &Sums, row: *const u32, column: *const u32, tile: &mut [f32]) {
            // SAFETY: as above.
            unsafe {
                let (row, tile) = (row.cast::<f32>(), tile.as_mut_ptr());
                let (scales, biases) = (load(column), load(column.add(COLUMNS)));
                for (r, sums) in sums.iter().enumerate() {
                    let (scale, bias) = (v::floats(*row.add(r)), v::floats(*row.add(ROWS + r)));
                    for (i, sum) in sums.iter().enumerate() {
                        let scale = v::multiply(scale, v::as_floats(scales[i]));
                        let bias = v::add_floats(bias, v::as_floats(biases[i]));
                        let value = v::multiply_add(v::to_floats(*sum), scale, bias);
                        v::store_floats(tile.add(r * COLUMNS + v::LANES * i), value);
                    }
                }
            }
        }

        #[target_feature(enable = $features)]
        pub(super) fn float32(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
            let (mut row, mut column) = (rows.as_ptr().cast::<f32>(), columns.as_ptr());
            let mut sums = [[v::as_floats(v::zero()); VECTORS]; ROWS];
            // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels have `steps`
            // steps and the tile ROWS × COLUMNS values.
            unsafe {
                for _ in 0..steps {
                    let panel = load(column);
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let x = v::floats(*row.add(r));
                        for (sum, y) in sums.iter_mut().zip(panel) {
                            *sum = v::multiply_add(x, v::as_floats(y), *sum);
                        }
                    }
                    row = row.add(ROWS);
                    column = column.add(COLUMNS);
                }
                for (at, sum) in sums.as_flattened().iter().enumerate() {
                    v::store_floats(tile.as_mut_ptr().add(v::LANES * at), *sum);
                }
            }
        }

        sums!($features, int16_sums, |sum, x, y| v::add_ints(sum, v::multiply_pairs(x, y)));
        sums!($with_vnni, int16_sums_fused, |sum, x, y| v::add_pairs(sum, x, y));
        int16_product!($features, int16, int16_sums);
        int16_product!($with_vnni, int16_fused, int16_sums_fused);

        /// Fills parts of a tile with products of int16 panels.
        #[target_feature(enable = $features)]
        fn fill(steps: usize, rows: &[u32], columns: &[u32], parts: Parts, tile: &mut [f32]) {
            let pairs = steps - AFFINE_STEPS;
            tile[..ROWS * COLUMNS].fill(f32::NEG_INFINITY);
            for part in (0..ROWS * VECTORS).filter(|part| parts >> part & 1 == 1) {
                // SAFETY: the caller (`Kernel::fill_parts`) checked that the panels have `steps`
                // steps, at least AFFINE_STEPS, and the tile ROWS × COLUMNS values.
                unsafe {
                    let row = rows.as_ptr().add(part / VECTORS);
                    let column = columns.as_ptr().add(part % VECTORS * v::LANES);
                    let mut sum = v::zero();
                    for step in 0..pairs {
                        let x = v::ints(*row.add(step * ROWS) as i32);
                        let y = v::load(column.add(step * COLUMNS).cast());
                        sum = v::add_ints(sum, v::multiply_pairs(x, y));
                    }
                    let row = row.add(pairs * ROWS).cast::<f32>();
                    let column = column.add(pairs * COLUMNS).cast::<f32>();
                    let scale = v::multiply(v::floats(*row), v::load_floats(column));
                    let bias = v::add_floats(
                        v::floats(*row.add(ROWS)),
                        v::load_floats(column.add(COLUMNS)),
                    );
                    let value = v::multiply_add(v::to_floats(sum), scale, bias);
                    v::store_floats(tile.as_mut_ptr().add(v::LANES * part), value);
                }
            }
        }

        sums!($features, wrapping_sums, |sum, x, y| v::add_shorts(sum, v::multiply_bytes(x, y)));
        sums!($with_vnni, byte_sums, |sum, x, y| v::add_quads(sum, x, y));
        comparison!($features, reaching, sections_in_16_bits);
        comparison!($with_vnni, reaching_fused, section_in_32_bits);

        /// Sums products of rows rounded [`IN_16_BITS`](Rounding::IN_16_BITS).
        ///
        /// # Safety
        ///
        /// The panels must have `steps` steps.
        #[target_feature(enable = $features)]
        #[inline]
        unsafe fn sections_in_16_bits(steps: usize, row: *const u32, column: *const u32) -> Sums {
            const SECTION: usize = Rounding::IN_16_BITS.section;
            let one = v::shorts(1);
            let mut sums = [[v::zero(); VECTORS]; ROWS];
            for at in (0..steps).step_by(1 + SECTION) {
                let words = SECTION.min(steps - at - 1);
                // SAFETY: the caller checked the number of steps.
                let of_section = unsafe {
                    let (row, column) = (row.add(at * ROWS), column.add(at * COLUMNS));
                    wrapping_sums(words, row.add(ROWS), column.add(COLUMNS), load(column))
                };
                for (sums, of_section) in sums.iter_mut().zip(&of_section) {
                    for (sum, of_section) in sums.iter_mut().zip(of_section) {
                        *sum = v::add_ints(*sum, v::multiply_pairs(*of_section, one));
                    }
                }
            }
            sums
        }

        /// Sums products of rows rounded [`IN_32_BITS`](Rounding::IN_32_BITS).
        ///
        /// # Safety
        ///
        /// The panels must have `steps` steps, at least one.
        #[target_feature(enable = $with_vnni)]
        #[inline]
        unsafe fn section_in_32_bits(steps: usize, row: *const u32, column: *const u32) -> Sums {
            // SAFETY: the caller checked the number of steps.
            unsafe { byte_sums(steps - 1, row.add(ROWS), column.add(COLUMNS), load(column)) }
        }

        #[target_feature(enable = $with_vnni)]
        fn tile(steps: usize, rows: &[u32], columns: &[u32], tile: &mut [f32]) {
            tile_reaching(steps, rows, columns, &[i32::MIN; ROWS], tile);
        }

        #[target_feature(enable = $with_vnni)]
        fn tile_reaching(
            steps: usize,
            rows: &[u32],
            columns: &[u32],
            least: &[i32],
            tile: &mut [f32],
        ) -> bool {
            let quads = steps - BYTE_AFFINE_STEPS;
            // SAFETY: the caller (`Kernel::tile_reaching` or `CheckedProduct::tile`) checked that
            // the panels have `steps` steps, at least BYTE_AFFINE_STEPS; that `least` has ROWS
            // numbers; and that the tile has ROWS × COLUMNS.
            unsafe {
                let row = rows.as_ptr().add(quads * ROWS);
                let column = columns.as_ptr().add(quads * COLUMNS);
                let mut sums = byte_sums(quads, rows.as_ptr(), columns.as_ptr(), load(column));
                let below = |r: usize, vector: usize| {
                    v::ints_below(sums[r][vector], v::ints(*least.as_ptr().add(r)))
                };
                let mut all_below = below(0, 0);
                for part in 1..ROWS * VECTORS {
                    all_below = v::and(all_below, below(part / VECTORS, part % VECTORS));
                }
                if v::are_all(all_below) {
                    return false;
                }
                for (r, sums) in sums.iter_mut().enumerate() {
                    let integer = v::ints(*row.add(r) as i32);
                    sums.iter_mut().for_each(|sum| *sum = v::add_ints(*sum, integer));
                }
                store(&sums, row.add(ROWS), column.add(COLUMNS), tile);
            }
            true
        }
    };
}
pub(super) use products;
