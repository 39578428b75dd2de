//! Binary codes under the Hamming distance. The screen is exact, so it leaves only ties open.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ndarray::{ArrayView2, ArrayViewMut2};
use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::kernel::{Kernel, Tiles, Word};
use crate::memory::{Grow, each, full};
use crate::rows::dense_values::DenseValues;
use crate::rows::key_table::{Shape, fill};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::packing::{Axis, Extent, Goal, Packing};
use crate::rows::space::{Distances, Scratch, Space, Values};
use crate::side::Side;

/// The widest code in bytes. Float32 represents all distances of such codes exactly.
pub const WIDEST: usize = 65_536 / 8;

/// Two arrays of packed codes. The key of a pair is minus the number of bits that differ.
pub struct Codes<'a> {
    queries: ArrayView2<'a, u8>,
    gallery: ArrayView2<'a, u8>,
    kernel: &'static Kernel,
    own_gallery: bool,
}

impl<'a> Codes<'a> {
    /// Checks the shapes. Rows must be contiguous. If `gallery` is `None`, the queries are also the
    /// gallery.
    pub fn new(
        queries: ArrayView2<'a, u8>,
        gallery: Option<ArrayView2<'a, u8>>,
        kernel: &'static Kernel,
    ) -> Result<Self> {
        let (rows, width) = queries.dim();
        if rows == 0 || width == 0 || width > WIDEST {
            let expected = format!("at least one row, and codes of 1 to {WIDEST} bytes");
            return Err(Error::Shape { side: Side::Query, rows, columns: width, expected });
        }
        if let Some(g) = &gallery
            && (g.ncols() != width || g.nrows() == 0)
        {
            let expected =
                format!("at least one row, and codes of {width} bytes to match the queries");
            return Err(Error::Shape {
                side: Side::Gallery,
                rows: g.nrows(),
                columns: g.ncols(),
                expected,
            });
        }
        let own_gallery = gallery.is_none();
        let gallery = gallery.unwrap_or(queries);
        let most = rows.max(gallery.nrows());
        if u32::try_from(most).is_err() {
            return argument(format!(
                "there are {most} rows; expected fewer than 2^32: evaluate the rows in parts"
            ));
        }
        if !(queries.is_standard_layout() && gallery.is_standard_layout()) {
            return argument(
                "codes are not contiguous; expected C-contiguous rows (standard layout)",
            );
        }
        Ok(Codes { queries, gallery, kernel, own_gallery })
    }

    /// Returns the distance for a key.
    pub fn distance(_query: usize, key: f64) -> i32 {
        -key as i32
    }

    /// Returns the largest possible distance.
    pub(crate) fn bits(&self) -> usize {
        8 * self.queries.ncols()
    }

    fn code(&self, side: Side, row: usize) -> &[u8] {
        let codes = if side == Side::Query { &self.queries } else { &self.gallery };
        let width = codes.ncols();
        &codes.as_slice().expect("new checks that codes are contiguous")
            [row * width..(row + 1) * width]
    }

    /// Returns the number of words per packed code.
    fn steps(&self) -> usize {
        self.queries.ncols().div_ceil(4)
    }

    fn words(&self, side: Side, row: usize) -> impl Iterator<Item = u32> {
        self.code(side, row).chunks(4).map(|bytes| {
            let mut padded = [0; 4];
            padded[..bytes.len()].copy_from_slice(bytes);
            u32::from_le_bytes(padded)
        })
    }

    /// Packs codes into a panel of `width` lanes. Codes are too short for narrow panels, so column
    /// panels have the kernel's width.
    fn pack(
        &self,
        side: Side,
        axis: Axis,
        rows: impl Iterator<Item = usize>,
        width: usize,
        panel: &mut [u32],
    ) {
        for (lane, row) in rows.enumerate() {
            for (word, packed) in panel[lane..].iter_mut().step_by(width).zip(self.words(side, row))
            {
                *word = packed;
            }
        }
        if axis == Axis::Columns {
            self.kernel.arrange_codes(panel);
        }
    }
}

/// Packed codes. The products are exactly minus the distances.
pub struct CodePacking<'s, 'a>(&'s Codes<'a>);

impl Packing for CodePacking<'_, '_> {
    fn word(&self) -> Word {
        Word::Bits
    }

    fn steps(&self) -> usize {
        self.0.steps()
    }

    fn encode(
        &self,
        side: Side,
        axis: Axis,
        rows: Range<usize>,
        width: usize,
        panel: &mut [u32],
        _: &mut [Extent],
    ) -> Result<()> {
        self.0.pack(side, axis, rows, width, panel);
        Ok(())
    }

    fn is_sorted(&self) -> bool {
        false
    }

    fn margin(&self, _row: Extent, _column: Extent) -> f64 {
        0.0
    }

    fn offset(&self) -> f64 {
        0.0
    }
}

impl Distances for Codes<'_> {
    fn largest(&self) -> usize {
        self.bits()
    }

    fn distance_table(
        &self,
        queries: &[u32],
        items: &[u32],
        distances: &mut [u16],
        control: &Control,
    ) -> Result<()> {
        let convert = |negatives: &[f32], distances: &mut [u16]| {
            for (distance, negative) in distances.iter_mut().zip(negatives) {
                // Adding 2²³ puts the number into the lowest bits of the sum, since the unit in the
                // last place is then 1.
                *distance = ((1u32 << 23) as f32 - negative).to_bits() as u16;
            }
        };
        self.table(queries, items, convert, distances, control)
    }
}

impl Codes<'_> {
    fn table<K: Send>(
        &self,
        queries: &[u32],
        items: &[u32],
        convert: impl Fn(&[f32], &mut [K]) + Sync,
        keys: &mut [K],
        control: &Control,
    ) -> Result<()> {
        let product = self.kernel.product(Word::Bits);
        let Tiles { rows, columns, .. } = *self.kernel.tiles(Word::Bits);
        let shape = Shape { rows, columns, steps: self.steps(), tiles: 1 };
        fill(
            shape,
            (queries, items),
            |side, rows, width, panel| {
                let axis = if side == Side::Query { Axis::Rows } else { Axis::Columns };
                self.pack(side, axis, rows.iter().map(|&row| row as usize), width, panel);
                Ok(())
            },
            |rows, columns, tile: &mut [f32]| product.tile(shape.steps, rows, columns, tile),
            (
                |_| (),
                |_: &[()], negatives: &[f32], keys: &mut [K]| {
                    self.kernel.vectorize(|| convert(negatives, keys))
                },
            ),
            keys,
            control,
        )
    }
}

impl<'a> Space for Codes<'a> {
    type Packing<'s>
        = CodePacking<'s, 'a>
    where
        Self: 's;

    fn rows(&self, side: Side) -> usize {
        if side == Side::Query { self.queries.nrows() } else { self.gallery.nrows() }
    }

    fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    fn is_own_gallery(&self) -> bool {
        self.own_gallery
    }

    fn packing(&self, _goal: &Goal<'_>, _control: &Control) -> Result<CodePacking<'_, 'a>> {
        Ok(CodePacking(self))
    }

    fn value(&self, _query: usize, key: f64) -> f64 {
        key
    }

    fn value_slack(&self) -> f64 {
        0.0
    }

    fn values(&self) -> Result<Option<impl Values>> {
        Ok(None::<DenseValues<'_, 'a>>)
    }

    fn key_of_screened(&self, screened: f64) -> Option<f64> {
        // As in `keys`: 0, not −0.
        Some(0.0 + screened)
    }

    fn keys(
        &self,
        pairs: &[(u32, u32)],
        _scratch: &mut Scratch,
        keys: &mut Vec<f64>,
    ) -> Result<()> {
        keys.try_extend(pairs.iter().map(|&(q, g)| {
            let (q, g) = (self.code(Side::Query, q as usize), self.code(Side::Gallery, g as usize));
            0.0 - f64::from(self.kernel.differing_bits(q, g))
        }))
    }

    fn scores(
        &self,
        pairs: &[(u32, u32)],
        scratch: &mut Scratch,
        scores: &mut Vec<f64>,
    ) -> Result<()> {
        self.keys(pairs, scratch, scores)
    }

    fn value_of_score(&self, score: f64) -> f64 {
        score
    }

    fn key_table(
        &self,
        queries: &[u32],
        items: &[u32],
        keys: &mut [f64],
        control: &Control,
    ) -> Result<()> {
        let convert = |negatives: &[f32], keys: &mut [f64]| {
            keys.iter_mut()
                .zip(negatives)
                .for_each(|(key, negative)| *key = 0.0 + f64::from(*negative));
        };
        self.table(queries, items, convert, keys, control)
    }

    fn score_table(
        &self,
        queries: &[u32],
        items: &[u32],
        scores: &mut [f64],
        control: &Control,
    ) -> Result<()> {
        self.key_table(queries, items, scores, control)
    }

    fn distances(&self) -> Option<&dyn Distances> {
        Some(self)
    }

    fn listed_share(&self) -> f64 {
        0.045
    }

    fn bytes(&self) -> usize {
        self.queries.len() + if self.own_gallery { 0 } else { self.gallery.len() }
    }
}

/// Packs elements to bits, the most significant bit first. A bit is set if the element is greater
/// than `threshold`.
///
/// `out` must have shape (rows, ceil(dim / 8)).
pub fn binarize(
    x: Matrix<'_>,
    threshold: f64,
    mut out: ArrayViewMut2<'_, u8>,
    control: &Control,
) -> Result<()> {
    let (rows, dim) = (x.rows(), x.dim());
    if out.dim() != (rows, dim.div_ceil(8)) {
        return argument(format!(
            "out has shape {:?}; expected ({rows}, {})",
            out.dim(),
            dim.div_ceil(8)
        ));
    }
    if threshold.is_nan() {
        return argument("threshold is NaN; expected a number");
    }
    let (first_bad, count) = (AtomicUsize::new(usize::MAX), AtomicUsize::new(0));
    let codes = out.axis_iter_mut(ndarray::Axis(0)).into_par_iter().enumerate();
    let make = || full(dim, 0.0);
    each(codes, make, |row, (i, mut code)| {
        control.check()?;
        x.widen(i, row);
        for (byte, values) in code.iter_mut().zip(row.chunks(8)) {
            *byte = values
                .iter()
                .enumerate()
                .fold(0, |b, (k, &v)| b | (u8::from(v > threshold) << (7 - k)));
        }
        if !row.iter().all(|v| v.is_finite()) {
            first_bad.fetch_min(i, Relaxed);
            count.fetch_add(1, Relaxed);
        }
        Ok(())
    })?;
    match count.into_inner() {
        0 => Ok(()),
        count => Err(Error::NonFinite { side: Side::Query, row: first_bad.into_inner(), count }),
    }
}
