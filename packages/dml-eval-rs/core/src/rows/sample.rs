//! Samples rows to choose a packing. Prefixes and centres help only on some data, and a few products reveal if they do.

use crate::error::Result;
use crate::memory::{Grow, allocate, collect};
use crate::random::Random;
use crate::rows::dense::Dense;
use crate::side::Side;

/// Some rows in the units of the screen: gallery rows, then query rows if these are different.
pub(super) struct Sample {
    /// The rows, (rows, dim).
    pub rows: Vec<f64>,
    /// The gallery items with which the sample begins.
    pub items: Vec<u32>,
}

impl Sample {
    /// The number of rows of each side that suffices for a frame.
    pub const FOR_FRAME: usize = 128;
    /// The maximum number of numbers in a sample.
    const NUMBERS: usize = 1 << 22;

    /// Copies at most `rows` rows of each side.
    pub fn draw(of: &Dense<'_>, rows: usize) -> Result<Sample> {
        let rows = rows.min(Sample::NUMBERS / of.dim()).max(1);
        let drawn = |side: Side| Random::new(0).spread(of.rows(side), rows).map(|row| row as u32);
        let mut sample = Sample { rows: allocate(2 * rows * of.dim())?, items: collect(drawn(Side::Gallery))? };
        let mut row = allocate(of.dim())?;
        let queries = drawn(Side::Query).filter(|_| !of.is_own_gallery()).map(|query| (Side::Query, query));
        for (side, index) in drawn(Side::Gallery).map(|item| (Side::Gallery, item)).chain(queries) {
            of.scale_row(side, index as usize, &mut row)?;
            sample.rows.try_extend(row.iter().copied())?;
        }
        Ok(sample)
    }
}
