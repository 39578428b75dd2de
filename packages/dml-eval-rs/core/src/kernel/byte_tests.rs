//! Tests that products of bytes are exact, between inaccessible pages, and that a tile is left
//! unfilled exactly if no sum reaches the least sum of its row.

use proptest::prelude::*;

use super::guarded_tests::{Guarded, kernels};
use super::*;
use crate::random::Random;

const UNIT: f64 = 1.0 / (1 << 24) as f64;

/// A lane's bytes, integer, scale and bias.
struct Lane {
    bytes: Vec<u8>,
    integer: i32,
    scale: f32,
    bias: f32,
}

impl Lane {
    fn draw(random: &mut Random, quads: usize, is_extreme: bool) -> Lane {
        let mut byte = || match is_extreme {
            true => [0, 127, 128, 255][random.below(4)],
            false => random.below(256) as u8,
        };
        let bytes = (0..4 * quads).map(|_| byte()).collect();
        let integer = random.below(1 << 30) as i32 - (1 << 29);
        let [scale, bias] = [0.0, -1.0].map(|from| (from + random.uniform()) as f32);
        Lane { bytes, integer, scale, bias }
    }

    fn pack(lanes: &[Lane], quads: usize) -> Vec<u32> {
        let quad = |lane: &Lane, at: usize| {
            u32::from_le_bytes(lane.bytes[4 * at..][..4].try_into().unwrap())
        };
        let mut words: Vec<u32> =
            (0..quads).flat_map(|at| lanes.iter().map(move |lane| quad(lane, at))).collect();
        words.extend(lanes.iter().map(|lane| lane.integer as u32));
        words.extend(lanes.iter().map(|lane| lane.scale.to_bits()));
        words.extend(lanes.iter().map(|lane| lane.bias.to_bits()));
        words
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn products_of_bytes_are_exact_and_rounded_four_times(
        quads in 0usize..70, is_extreme in any::<bool>(), (row, is_above) in any::<(u8, bool)>(),
        at_end in any::<bool>(), seed in any::<u64>(),
    ) {
        for kernel in kernels().filter(|kernel| kernel.has_bytes()) {
            let Tiles { rows: height, columns: width, .. } = *kernel.tiles(Word::ByteQuad);
            let mut random = Random::new(seed);
            let mut lanes = |n: usize| -> Vec<_> {
                (0..n).map(|_| Lane::draw(&mut random, quads, is_extreme)).collect()
            };
            let (rows, columns) = (lanes(height), lanes(width));
            let sums: Vec<i64> = (0..height * width)
                .map(|at| {
                    let (row, column) = (&rows[at / width], &columns[at % width]);
                    let products = row.bytes.iter().zip(&column.bytes);
                    let products = products.map(|(u, s)| i64::from(*u) * i64::from(*s as i8));
                    products.sum::<i64>() + i64::from(column.integer)
                })
                .collect();
            let steps = quads + BYTE_AFFINE_STEPS;
            let mut row_panel = Guarded::new(&Lane::pack(&rows, quads), at_end);
            let mut column_panel = Guarded::new(&Lane::pack(&columns, quads), at_end);
            let mut tile = Guarded::new(&vec![f32::NAN; height * width], at_end);
            // A row is given its largest sum as the least, or the next greater number.
            let row = usize::from(row) % height;
            let largest = sums[row * width..][..width].iter().max().unwrap();
            let mut least = vec![i32::MAX; height];
            least[row] = *largest as i32 + i32::from(is_above);
            let mut least = Guarded::new(&least, at_end);
            let is_reached = kernel.tile_reaching(
                steps, row_panel.get(), column_panel.get(), least.get(), tile.get(),
            );
            prop_assert_eq!(is_reached, !is_above, "{}", kernel.name);
            prop_assert!(tile.get().iter().all(|value| value.is_nan() == is_above));
            let reached = tile.get().to_vec();
            let product = kernel.product(Word::ByteQuad);
            product.tile(steps, row_panel.get(), column_panel.get(), tile.get());
            prop_assert!(is_above || *tile.get() == reached);
            for (at, found) in tile.get().iter().enumerate() {
                let (row, column) = (&rows[at / width], &columns[at % width]);
                let scale = f64::from(row.scale) * f64::from(column.scale);
                let scaled = (sums[at] + i64::from(row.integer)) as f64 * scale;
                let biases = f64::from(row.bias) + f64::from(column.bias);
                let bound = 4.0 * UNIT / (1.0 - 4.0 * UNIT) * (scaled.abs() - biases);
                let error = (f64::from(*found) - (scaled + biases)).abs();
                prop_assert!(error <= bound, "{}: {error} {bound}", kernel.name);
            }
        }
    }
}

/// The largest sums that vectors of bytes have: of 2¹⁴ numbers.
#[test]
fn sums_of_the_widest_extreme_rows_do_not_overflow() {
    const QUADS: usize = (1 << 14) / 4;
    for kernel in kernels().filter(|kernel| kernel.has_bytes()) {
        let Tiles { rows: height, columns: width, .. } = *kernel.tiles(Word::ByteQuad);
        for (byte, integer) in [(127, 1 << 29), (128, -(1 << 29))] {
            let panel = |lanes: usize, byte: u8| {
                let lane = || Lane { bytes: vec![byte; 4 * QUADS], integer, scale: 1.0, bias: 0.0 };
                Lane::pack(&(0..lanes).map(|_| lane()).collect::<Vec<_>>(), QUADS)
            };
            let mut tile = vec![f32::NAN; height * width];
            kernel.product(Word::ByteQuad).tile(
                QUADS + BYTE_AFFINE_STEPS,
                &panel(height, 255),
                &panel(width, byte),
                &mut tile,
            );
            let sum = 4 * QUADS as i64 * 255 * i64::from(byte as i8) + 2 * i64::from(integer);
            assert!(tile.iter().all(|value| *value == sum as f32), "{}", kernel.name);
        }
    }
}
