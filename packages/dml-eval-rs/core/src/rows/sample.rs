//! Draws a sample of rows to choose a packing: prefixes and centres help only for some data, and a
//! few products show whether they do.

use crate::error::Result;
use crate::memory::{Grow, allocate, collect};
use crate::random::Random;
use crate::rows::dense::Dense;
use crate::side::Side;

/// Some rows in the units of the screen: gallery rows, then query rows if the queries aren't the
/// gallery.
pub(super) struct Sample {
    /// The numbers in the sampled rows, of shape (rows, dim).
    pub rows: Vec<f64>,
    /// The indices of the sampled gallery items, which come first in `rows`.
    pub items: Vec<u32>,
}

impl Sample {
    /// The number of rows per side that suffice for a frame.
    pub const FOR_FRAME: usize = 128;
    /// The maximum number of values in a sample.
    const NUMBERS: usize = 1 << 22;

    /// Copies at most `rows` rows per side.
    pub fn draw(of: &Dense<'_>, rows: usize) -> Result<Sample> {
        let rows = rows.min(Sample::NUMBERS / of.dim()).max(1);
        let drawn = |side: Side| Random::new(0).spread(of.rows(side), rows).map(|row| row as u32);
        let mut sample =
            Sample { rows: allocate(2 * rows * of.dim())?, items: collect(drawn(Side::Gallery))? };
        let mut row = allocate(of.dim())?;
        let queries =
            drawn(Side::Query).filter(|_| !of.is_own_gallery()).map(|query| (Side::Query, query));
        for (side, index) in drawn(Side::Gallery).map(|item| (Side::Gallery, item)).chain(queries) {
            of.scale_row(side, index as usize, &mut row)?;
            sample.rows.try_extend(row.iter().copied())?;
        }
        Ok(sample)
    }
}
