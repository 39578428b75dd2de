//! Writes rows to panels: scales, frames and perhaps projects them, then rounds them to the words
//! of a screen.

use std::ops::Range;

use crate::error::Result;
use crate::exact::{UNIT64, square};
use crate::kernel::{Word, Work};
use crate::memory::full;
use crate::rows::dense::Dense;
use crate::rows::frame::{Frame, Framed};
use crate::rows::packing::{Axis, Extent};
use crate::rows::prefix::{Coordinates, Prefix};
use crate::rows::row_words::{Numbers, RowWords, measure};
use crate::rows::similarity::Similarity;
use crate::side::Side;

/// Prefetch rows this far ahead of the row that is read.
const AHEAD: usize = 6;

/// The rows to pack, and the panel and the extents to write.
pub(super) struct Lanes<'a> {
    pub side: Side,
    pub axis: Axis,
    pub rows: Range<usize>,
    /// The number of lanes in the panel.
    pub width: usize,
    pub panel: &'a mut [u32],
    pub extents: &'a mut [Extent],
}

/// The work to write rows, in full or along the directions of a prefix.
pub(super) struct Encoding<'a, 'rows> {
    pub space: &'a Dense<'rows>,
    pub frame: &'a Frame,
    pub prefix: Option<&'a Prefix>,
    pub word: Word,
    pub lanes: Lanes<'a>,
}

impl Work for Encoding<'_, '_> {
    type Output = Result<()>;

    #[inline(always)]
    fn run(self) -> Result<()> {
        match self.prefix {
            Some(prefix) => self.run_along(prefix),
            None => self.run_whole(),
        }
    }
}

impl Encoding<'_, '_> {
    #[inline(always)]
    fn run_whole(self) -> Result<()> {
        let Encoding { space, frame, word, lanes, .. } = self;
        let (mut row, mut words) = (Vec::new(), RowWords::new(word));
        for (lane, (index, extent)) in lanes.rows.zip(lanes.extents).enumerate() {
            space.scale_row(lanes.side, index, &mut row)?;
            let framed = frame.enter(&mut row);
            *extent = round_row((space, frame, None), lanes.axis, &row, framed, &mut words)?;
            words.write(lane, lanes.width, lanes.panel);
        }
        Ok(())
    }

    #[inline(always)]
    fn run_along(self, prefix: &Prefix) -> Result<()> {
        let Encoding { space, frame, word, lanes, .. } = self;
        let (together, dim) = (prefix.rows(), space.dim());
        let (mut row, mut words) = (Vec::new(), RowWords::new(word));
        let (mut framed, mut rounded) =
            (full(together, Framed::default())?, full(dim * together, 0.0)?);
        let mut coordinates = Coordinates::default();
        for first in (0..lanes.rows.len()).step_by(together) {
            let group = first..(first + together).min(lanes.rows.len());
            let rounded = &mut rounded[..group.len() * dim];
            for ((lane, rounded), framed) in
                group.clone().zip(rounded.chunks_exact_mut(dim)).zip(&mut framed)
            {
                space.prefetch(lanes.side, lanes.rows.start + lane + AHEAD);
                space.scale_row(lanes.side, lanes.rows.start + lane, &mut row)?;
                let square =
                    if space.similarity() == Similarity::Cosine { 1.0 } else { square(&row) };
                *framed = frame.enter_rounded(&row, square, rounded);
            }
            prefix.coordinates(rounded, &mut coordinates)?;
            for ((lane, own), framed) in
                group.zip(coordinates.found.chunks_exact(prefix.len())).zip(&framed)
            {
                lanes.extents[lane] =
                    round_row((space, frame, Some(prefix)), lanes.axis, own, *framed, &mut words)?;
                words.write(lane, lanes.width, lanes.panel);
            }
        }
        Ok(())
    }
}

/// Rounds the numbers of a row into `words`, and returns bounds on the sizes.
#[inline(always)]
fn round_row(
    (space, frame, prefix): (&Dense<'_>, &Frame, Option<&Prefix>),
    axis: Axis,
    coordinates: &[f64],
    framed: Framed,
    words: &mut RowWords,
) -> Result<Extent> {
    let size = measure(coordinates);
    // The coordinates and the sums of squares have rounding errors already.
    let mut rounding = framed.length * (space.dim() as f64 + 8.0) * 2.0 * UNIT64;
    let (mut residual_norm, mut norm) = (None, size.square.sqrt());
    if let Some(prefix) = prefix {
        rounding *= 1.0 + prefix.len() as f64;
        rounding += prefix.rounding(framed.square, framed.length);
        norm += rounding;
        residual_norm = Some(
            (prefix.residual_norm(framed.square, size.square, rounding, framed.length) as f32)
                .next_up(),
        );
    }
    let bias = frame.is_biased().then_some(framed.bias);
    let rounded = words.round(&Numbers { coordinates, size, residual_norm, bias, axis })?;
    Ok(Extent {
        norm,
        residual: rounded.residual + rounding,
        residual_norm: rounded.residual_norm,
        bias: bias.unwrap_or(0.0).abs(),
        length: framed.length,
    })
}
