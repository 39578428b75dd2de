//! Packs rows of int8 and uint8 for exact products, four bytes per word.
//!
//! Kernels multiply unsigned by signed bytes. So a shift makes int8 in rows unsigned and uint8 in
//! columns signed. With u = q + a and s = g + b, where a is 0 or 128, and b is 0 or −128,
//!
//! q·g = u·s − b Σq − a Σs.
//!
//! The kernel adds the integers −b Σq of the row and −a Σs of the column to the sum of products.
//! For the Euclidean distance, −⌊|g|²/2⌋ is part of the column's integer, and the biases contain
//! −|q|²/2 and, if |g|² is odd, −1/2. So if all rows have the same scale, a sum that lacks the
//! row's integer can be compared with a threshold per row, and the tile is only scaled if a sum
//! reaches its threshold: see [`find_least_sums`].
//!
//! With D numbers, sums are at most (255·128 + 128² + 255²/2 + 128·255)·D in magnitude, which is
//! below 2³¹ for the longest rows that `dense` screens as bytes.

use zerocopy::IntoBytes;

use crate::error::Result;
use crate::exact::{UNIT32, UNIT64};
use crate::kernel::{BYTE_AFFINE_STEPS, Work};
use crate::rows::byte_rows::ByteRow;
use crate::rows::dense::Dense;
use crate::rows::encoding::Lanes;
use crate::rows::packing::{Axis, Extent};
use crate::rows::similarity::Similarity;
use crate::side::Side;

/// Bytes per word.
const QUAD: usize = 4;

/// The work to write rows.
pub(super) struct ByteEncoding<'a, 'rows> {
    pub space: &'a Dense<'rows>,
    pub lanes: Lanes<'a>,
}

impl Work for ByteEncoding<'_, '_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        let ByteEncoding { space, lanes: Lanes { side, axis, rows, width, panel, extents } } = self;
        let (other_side, other_axis) = (
            if side == Side::Query { Side::Gallery } else { Side::Query },
            if axis == Axis::Rows { Axis::Columns } else { Axis::Rows },
        );
        let shift_of =
            |side, axis| shift(axis, matches!(space.bytes_of(side, 0), ByteRow::Signed(_)));
        let (own_shift, other_shift) = (shift_of(side, axis), shift_of(other_side, other_axis));
        let (similarity, quads) = (space.similarity(), space.dim().div_ceil(QUAD));
        for (lane, (row, extent)) in rows.zip(extents).enumerate() {
            let square = space.squares(side)[row];
            let (bytes, sum) = match space.bytes_of(side, row) {
                ByteRow::Signed(row) => (row.as_bytes(), add(row)),
                ByteRow::Unsigned(row) => (row, add(row)),
            };
            write(bytes, if own_shift == 0 { 0 } else { 0x80 }, lane, width, panel);
            let half = if similarity == Similarity::Euclidean { square / 2.0 } else { 0.0 };
            let (integer, bias) = match axis {
                Axis::Rows => (-other_shift * sum, half),
                Axis::Columns => {
                    let shifted = sum + own_shift * space.dim() as i32;
                    (-other_shift * shifted - half as i32, half.fract())
                }
            };
            // Only the scale of rows of zeros is above 1, and may not be a float32.
            let scale = (space.scale_of(side, row) as f32).min(1.0);
            let unit = f64::from(scale);
            let bias = (-bias * unit * unit) as f32;
            for (word, bits) in [integer as u32, scale.to_bits(), bias.to_bits()].iter().enumerate()
            {
                panel[(quads + word) * width + lane] = *bits;
            }
            let length = square.sqrt() * unit;
            // A power of two scales exactly; one over the length is rounded.
            let is_rounded = similarity == Similarity::Cosine;
            *extent = Extent {
                norm: length,
                residual: if is_rounded { (length - 1.0).abs() + 4.0 * UNIT64 } else { 0.0 },
                residual_norm: 0.0,
                bias: half * unit * unit,
                length,
            };
        }
        Ok(())
    }
}

/// Returns the number to add to numbers, so that rows are unsigned and columns are signed.
fn shift(axis: Axis, is_signed: bool) -> i32 {
    match (axis, is_signed) {
        (Axis::Rows, true) => 128,
        (Axis::Columns, false) => -128,
        _ => 0,
    }
}

#[inline(always)]
fn add<T: Copy + Into<i32>>(row: &[T]) -> i32 {
    row.iter().map(|v| (*v).into()).sum()
}

/// Writes bytes to a lane of a panel, with the bits in `flip` changed.
#[inline(always)]
fn write(bytes: &[u8], flip: u8, lane: usize, width: usize, panel: &mut [u32]) {
    let (quads, rest) = bytes.as_chunks::<QUAD>();
    let all = u32::from_le_bytes([flip; QUAD]);
    for (step, quad) in panel.chunks_exact_mut(width).zip(quads) {
        step[lane] = u32::from_le_bytes(*quad) ^ all;
    }
    if !rest.is_empty() {
        let mut last = [0; QUAD];
        last.iter_mut().zip(rest).for_each(|(out, byte)| *out = *byte ^ flip);
        panel[quads.len() * width + lane] = u32::from_le_bytes(last);
    }
}

/// Computes for each row in a panel the least sum of integers, without the integer of the row, with
/// which the row's product may reach the row's threshold `least`. All rows must have the same
/// scale, a power of two.
pub(crate) fn find_least_sums(panel: &[u32], least: &[f32], out: &mut [i32]) {
    let height = least.len();
    let affine = &panel[panel.len() - BYTE_AFFINE_STEPS * height..];
    for (row, (least, out)) in least.iter().zip(out).enumerate() {
        let [integer, scale, bias] = [0, 1, 2].map(|word| affine[word * height + row]);
        let scale = f64::from(f32::from_bits(scale));
        let (least, bias) = (f64::from(*least), f64::from(f32::from_bits(bias)));
        // Columns' biases are not positive. A product is rounded at most four times.
        let slack = 4.0 * UNIT32 * (least.abs() + (least - bias).abs());
        let sum = ((least - bias - slack) / (scale * scale)).floor();
        *out = if least == f64::INFINITY {
            i32::MAX
        } else {
            (sum - f64::from(integer as i32)) as i32
        };
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::control::Control;
    use crate::kernel::{Word, names, select};
    use crate::random::Random;
    use crate::rows::dense::Precision;
    use crate::rows::dense_packing::DensePacking;
    use crate::rows::matrix::Matrix;
    use crate::rows::packing::Packing;

    /// Rows of bytes, extreme or drawn from a range that may be narrow.
    fn rows(n: usize, dim: usize, most: usize, random: &mut Random) -> Array2<u8> {
        Array2::from_shape_fn((n, dim), |_| match most {
            0 => [0, 1, 127, 128, 255][random.below(5)],
            _ => random.below(most) as u8,
        })
    }

    proptest! {
        #[test]
        fn sums_are_those_of_integers_and_the_least_sums_lose_no_product(
            dim in 1usize..90, most in prop_oneof![Just(0usize), Just(2), 1usize..257],
            are_signed in any::<(bool, bool)>(), similarity in 0usize..3, share in 0.0f64..1.0,
            seed in any::<u64>(),
        ) {
            let all = [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean];
            let similarity = all[similarity];
            let mut random = Random::new(seed);
            for kernel in names().into_iter().map(|name| select(Some(name)).unwrap()) {
                if !kernel.has_bytes() {
                    continue;
                }
                let (height, width) = (kernel.number_tiles.rows, kernel.number_tiles.columns);
                let mut draw = |n: usize, is_signed: bool| {
                    let mut drawn = rows(n, dim, most, &mut random);
                    if similarity == Similarity::Cosine {
                        drawn.column_mut(0).fill(1);
                    }
                    let wide = drawn.mapv(|v| match is_signed {
                        true => i64::from(v as i8),
                        false => i64::from(v),
                    });
                    (drawn.mapv(|v| v as i8), drawn, wide)
                };
                let (q8, q, wide_q) = draw(height, are_signed.0);
                let (g8, g, wide_g) = draw(width, are_signed.1);
                let q = if are_signed.0 { Matrix::I8(q8.view()) } else { Matrix::U8(q.view()) };
                let g = if are_signed.1 { Matrix::I8(g8.view()) } else { Matrix::U8(g.view()) };
                let (control, precision) = (Control::default(), Precision::SixteenBit);
                let space = Dense::new(q, Some(g), similarity, precision, kernel, &control);
                let space = space.unwrap();
                let packing = &DensePacking::of_each_kind(&space)[0];
                prop_assert_eq!(packing.word(), Word::ByteQuad);
                let steps = packing.steps();
                let pack = |side, axis, lanes: usize| {
                    let mut panel = vec![0; steps * lanes];
                    let mut extents = vec![Extent::default(); lanes];
                    packing.encode(side, axis, 0..lanes, lanes, &mut panel, &mut extents).unwrap();
                    (panel, extents)
                };
                let (row_panel, row_extents) = pack(Side::Query, Axis::Rows, height);
                let (column_panel, column_extents) = pack(Side::Gallery, Axis::Columns, width);
                let mut tile = vec![f32::NAN; height * width];
                kernel.product(Word::ByteQuad).tile(steps, &row_panel, &column_panel, &mut tile);
                for (at, found) in tile.iter().enumerate() {
                    let (r, c) = (at / width, at % width);
                    let pairs = wide_q.row(r).into_iter().zip(wide_g.row(c));
                    let key = match similarity {
                        Similarity::Euclidean => -pairs.map(|(q, g)| (q - g).pow(2)).sum::<i64>(),
                        _ => pairs.map(|(q, g)| q * g).sum::<i64>(),
                    } as f64;
                    let unit = space.scale_of(Side::Query, r) * space.scale_of(Side::Gallery, c);
                    let value = match similarity {
                        Similarity::Euclidean => key / 2.0 * unit,
                        _ => key * unit,
                    };
                    let error = (f64::from(*found) + packing.offset() - value).abs();
                    let margin = packing.margin(row_extents[r], column_extents[c]);
                    // Without rows of zeros, which may have a scale that isn't finite.
                    prop_assert!(error <= margin || unit > 1.0, "{} {error} {margin}", kernel.name);
                }
                prop_assert_eq!(packing.has_one_scale(), similarity != Similarity::Cosine);
                if !packing.has_one_scale() {
                    continue;
                }
                // A row has a product as its threshold, and the other rows none.
                let at = (share * tile.len() as f64) as usize;
                for threshold in [tile[at], tile[at].next_up()] {
                    let mut least = vec![f32::INFINITY; height];
                    least[at / width] = threshold;
                    let mut sums = vec![0; height];
                    find_least_sums(&row_panel, &least, &mut sums);
                    let line = &tile[at / width * width..][..width];
                    let must_be = line.iter().any(|value| *value >= threshold);
                    let mut again = vec![f32::NAN; tile.len()];
                    let is_reached =
                        kernel.tile_reaching(steps, &row_panel, &column_panel, &sums, &mut again);
                    prop_assert!(is_reached || !must_be, "{}", kernel.name);
                }
                // Thresholds that are above all products by more than roundings are not reached.
                let above = |line: &[f32]| {
                    let most = line.iter().fold(f32::NEG_INFINITY, |most, value| most.max(*value));
                    let affine = f64::from(f32::from_bits(row_panel[(steps - 2) * height]));
                    (f64::from(most) + 2.0 * affine * affine + 1e-5) as f32
                };
                let least: Vec<f32> = tile.chunks(width).map(above).collect();
                let mut sums = vec![0; height];
                find_least_sums(&row_panel, &least, &mut sums);
                prop_assert!(
                    !kernel.tile_reaching(steps, &row_panel, &column_panel, &sums, &mut tile)
                );
            }
        }
    }
}
