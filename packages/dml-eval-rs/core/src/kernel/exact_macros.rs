//! Defines the exact sums in a single place, to be compiled per instruction set.

/// Defines exact sums of single-precision rows, fused if the instruction set includes fused
/// multiply-add.
macro_rules! single_precision_routines {
    ($fused:literal $(, $feature:literal)?) => {
        $(#[target_feature(enable = $feature)])?
        fn dots32(
            q: crate::kernel::routines::Pairs32<'_>,
            g: crate::kernel::routines::Pairs32<'_>,
        ) -> [f64; crate::exact::PAIRS] {
            crate::exact::dots::<$fused>(q, g)
        }
        $(#[target_feature(enable = $feature)])?
        fn distances32(
            q: crate::kernel::routines::Pairs32<'_>,
            g: crate::kernel::routines::Pairs32<'_>,
        ) -> [f64; crate::exact::PAIRS] {
            crate::exact::squared_distances(q, g)
        }
    };
}
pub(super) use single_precision_routines;

/// Defines a function that computes a tile of sums, one lane after another, because rows are packed
/// lane by lane. A register holds `$wide` numbers; `$step` adds a term. If `$lanes` is eight, the
/// lanes are combined in the order that `exact` defines.
macro_rules! exact_product {
    ($name:ident, $feature:literal, ($rows:ident, $columns:ident, $wide:literal, $lanes:literal),
     ($zero:ident, $load:ident, $one:ident, $store:ident),
     |$sum:ident, $q:ident, $g:ident| $step:expr) => {
        #[target_feature(enable = $feature)]
        fn $name(rows: &[f64], columns: &[f64], tile: &mut [f64]) {
            let each = rows.len() / $rows / $lanes;
            let (mut row, mut column) = (rows.as_ptr(), columns.as_ptr());
            let (lanes, _) = tile.as_chunks_mut::<{ $rows * $columns }>();
            for lane in &mut lanes[..$lanes] {
                let mut sums = [[$zero(); $columns / $wide]; $rows];
                // SAFETY: the caller (`Kernel::exact_tile`) checked that both panels have
                // $lanes·`each` steps, and that a lane contains ROWS × COLUMNS numbers.
                unsafe {
                    for _ in 0..each {
                        // Don't use a closure: the compiler might not inline it.
                        let mut panel = [$zero(); $columns / $wide];
                        for (v, p) in panel.iter_mut().enumerate() {
                            *p = $load(column.add(v * $wide));
                        }
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
            if $lanes == 8 {
                crate::exact::combine_tiles(tile, $rows * $columns);
            }
        }
    };
}
pub(super) use exact_product;

/// Defines exact sums and bit counts in a single place, to be compiled per instruction set.
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
pub(super) use exact_routines;
