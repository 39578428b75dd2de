//! Defines the products of packed panels in a single place, to be compiled per instruction set.
//!
//! The calling module contains ROWS, VECTORS and COLUMNS, the shape of a tile, and a module `v`
//! with vectors of `v::LANES` columns and the instructions for these.

use super::routines::{Parts, ROUNDED_AFFINE_STEPS, Rounding, WHOLE};

impl Rounding {
    /// For sums of 32 bits.
    pub(super) const IN_32_BITS: Rounding = Rounding {
        largest: i8::MAX,
        section: usize::MAX,
        longest: f32::INFINITY,
        words_together: None,
    };
    /// For sums of 16 bits, two per word. Sums may wrap around, if the last is below 2¹⁵.
    pub(super) const IN_16_BITS: Rounding =
        Rounding { largest: 90, section: 32, longest: 177.0, words_together: None };
}

const _: () = {
    let Rounding { largest, section, longest, .. } = Rounding::IN_16_BITS;
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

/// A limit that all sums of bytes and biases reach: sums are at least −2³⁰, biases −`MOST_BIAS`.
pub(super) const ALWAYS: i32 = -5 << 28;
/// The largest magnitude of a bias, in units of sums of bytes.
pub(super) const MOST_BIAS: i32 = 1 << 28;
/// The largest limit.
pub(super) const MOST: i32 = 1 << 30;

/// Returns the least sums of bytes, from `low` to `high`, that may reach the thresholds `least` of
/// some rows in the columns of a vector. `rows` and `columns` are their last words.
#[inline(always)]
pub(super) fn least_sums<const R: usize>(
    rows: &[[f32; R]; ROUNDED_AFFINE_STEPS],
    columns: [f32; ROUNDED_AFFINE_STEPS],
    least: &[f32; R],
    (low, high): (i32, i32),
) -> [i32; R] {
    let [scales, biases, norms, errors] = rows;
    let ([scale, _, norm, error], low, high) = (columns, low as f32, high as f32);
    let mut limits = [0; R];
    for (r, limit) in limits.iter_mut().enumerate() {
        let added = norms[r].mul_add(error, errors[r].mul_add(norm, biases[r]));
        let sum = (least[r] - added).mul_add(scales[r] * scale, -1.0);
        // A sum that isn't a number becomes the lowest limit.
        let sum = if sum > low { sum } else { low };
        let sum = if sum < high { sum } else { high };
        // SAFETY: the number is in the range of 32 bits. It is rounded towards zero.
        *limit = unsafe { sum.to_int_unchecked() };
    }
    limits
}

/// Returns the thresholds of columns, or `None` if no column has one.
pub(super) fn thresholds<const C: usize>(least: &[f32]) -> Option<&[f32; C]> {
    least.first_chunk().filter(|least| least.iter().any(|least| *least < f32::INFINITY))
}

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
            let (row_least, column_least) = (least.0.as_chunks().0, thresholds(least.1));
            let (mut limits, mut cost) = (Limits::<ROWS, 1>::new(), 0);
            for ((rows, least), parts) in rows.chunks_exact(steps * ROWS).zip(row_least).zip(parts)
            {
                // SAFETY: the caller (`Kernel::reaching_parts`) checked that panels have `steps`
                // steps, more than ROUNDED_AFFINE_STEPS.
                unsafe {
                    let of_rows = &*rows.as_ptr().add(words * ROWS).cast();
                    let column = columns.as_ptr().add(words * COLUMNS).cast();
                    limits.compute(of_rows, column, (least, column_least));
                    let [biases] = limits.biases;
                    let sums = $sums(words, rows.as_ptr(), columns.as_ptr(), biases);
                    *parts = 0;
                    for r in 0..ROWS {
                        for vector in 0..VECTORS {
                            let below = v::ints_below(sums[r][vector], limits.of(r, vector));
                            let is_reached = !v::are_all(below);
                            *parts |= Parts::from(is_reached) << (r * VECTORS + vector);
                        }
                    }
                }
                if *parts != 0 {
                    cost += cost_or_whole(parts, ROWS * VECTORS);
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
        pub(super) fn float32<const TERMS: usize>(
            steps: usize,
            rows: &[u32],
            columns: &[u32],
            tile: &mut [f32],
        ) {
            let (mut row, mut column) = (rows.as_ptr().cast::<f32>(), columns.as_ptr());
            for first in (0..steps.max(1)).step_by(TERMS) {
                let mut sums = [[v::as_floats(v::zero()); VECTORS]; ROWS];
                // SAFETY: the caller (`CheckedProduct::tile`) checked that the panels have `steps`
                // steps and the tile ROWS × COLUMNS values.
                unsafe {
                    for _ in 0..TERMS.min(steps - first) {
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
                        let to = tile.as_mut_ptr().add(v::LANES * at);
                        let sum =
                            if first == 0 { *sum } else { v::add_floats(v::load_floats(to), *sum) };
                        v::store_floats(to, sum);
                    }
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

        /// The least sums of bytes that may reach a threshold of a row or column, for `R` rows in
        /// `P` panels.
        pub(super) struct Limits<const R: usize, const P: usize> {
            /// The biases of the columns per panel, to be added to the sums.
            pub biases: [[v::Ints; VECTORS]; P],
            of_rows: [[i32; R]; VECTORS],
            /// Whether columns have thresholds.
            of_columns: bool,
            /// The limits for the threshold 0, and what the thresholds of columns add per panel.
            of_zero: [[i32; R]; VECTORS],
            added: [[v::Ints; VECTORS]; P],
        }

        impl<const R: usize, const P: usize> Limits<R, P> {
            #[target_feature(enable = $features)]
            #[inline]
            pub fn new() -> Self {
                let (of_rows, none) = ([[0; R]; VECTORS], [[v::zero(); VECTORS]; P]);
                Limits { biases: none, of_rows, of_columns: false, of_zero: of_rows, added: none }
            }

            /// Computes the limits of rows. `rows` are their last words.
            ///
            /// # Safety
            ///
            /// `column` must point to the last words of the columns.
            #[target_feature(enable = $features)]
            #[inline]
            pub unsafe fn compute(
                &mut self,
                rows: &[[f32; R]; ROUNDED_AFFINE_STEPS],
                column: *const f32,
                (least, column_least): (&[f32; R], Option<&[f32; COLUMNS]>),
            ) {
                let most = MOST_BIAS as f32;
                self.of_columns = column_least.is_some();
                for vector in 0..VECTORS {
                    // SAFETY: the caller checked `column`.
                    let (biases, columns) = unsafe {
                        let column = column.add(v::LANES * vector);
                        let columns = [0, 1, 2, 3].map(|word| *column.add(word * COLUMNS));
                        (v::load_floats(column.add(COLUMNS)), columns)
                    };
                    let range = (ALWAYS, MOST);
                    self.of_rows[vector] = least_sums(rows, columns, least, range);
                    if self.of_columns {
                        let range = (-MOST_BIAS, MOST_BIAS);
                        let of_zero = least_sums(rows, columns, &[0.0; R], range);
                        self.of_zero[vector] = of_zero;
                        for (limit, of_zero) in self.of_rows[vector].iter_mut().zip(of_zero) {
                            *limit = if of_zero <= -MOST_BIAS { ALWAYS } else { *limit };
                        }
                    }
                    for panel in 0..P {
                        // The rows of a panel share a scale.
                        let scale = v::floats(rows[0][panel * ROWS] * columns[0]);
                        let mut biases = v::multiply(biases, scale);
                        if !v::are_all(v::floats_below(biases, v::floats(most))) {
                            self.of_rows[vector][panel * ROWS..][..ROWS].fill(ALWAYS);
                            biases = v::floats(0.0);
                        }
                        let biases = v::max(biases, v::floats(-most));
                        let biases = v::to_ints(v::add_floats(biases, v::floats(1.0)));
                        self.biases[panel][vector] = biases;
                        if let Some(least) = column_least {
                            let least = least.as_ptr().wrapping_add(v::LANES * vector);
                            // SAFETY: there is a threshold per column.
                            let least = unsafe { v::load_floats(least) };
                            // Even with the largest limit for 0, the lowest is reached.
                            let lowest = v::floats((ALWAYS - MOST_BIAS) as f32);
                            let least = v::max(v::multiply(least, scale), lowest);
                            let least = v::min(least, v::floats(MOST as f32));
                            let least = v::to_ints(v::add_floats(least, v::floats(-1.0)));
                            self.added[panel][vector] = least;
                        }
                    }
                }
            }

            /// Returns the limits of a row and the columns of a vector.
            #[target_feature(enable = $features)]
            #[inline]
            pub fn of(&self, row: usize, vector: usize) -> v::Ints {
                let limit = v::ints(self.of_rows[vector][row]);
                if !self.of_columns {
                    return limit;
                }
                let of_zero = v::ints(self.of_zero[vector][row]);
                v::min_ints(limit, v::add_ints(of_zero, self.added[row / ROWS][vector]))
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
        unsafe fn sections_in_16_bits(
            steps: usize,
            row: *const u32,
            column: *const u32,
            first: [v::Ints; VECTORS],
        ) -> Sums {
            const SECTION: usize = Rounding::IN_16_BITS.section;
            let one = v::shorts(1);
            let mut sums = [first; ROWS];
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
        unsafe fn section_in_32_bits(
            steps: usize,
            row: *const u32,
            column: *const u32,
            mut first: [v::Ints; VECTORS],
        ) -> Sums {
            // SAFETY: the caller checked the number of steps.
            unsafe {
                let integers = load(column);
                first.iter_mut().zip(integers).for_each(|(sum, own)| *sum = v::add_ints(*sum, own));
                byte_sums(steps - 1, row.add(ROWS), column.add(COLUMNS), first)
            }
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
