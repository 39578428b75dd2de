//! Real vectors packed for a screen: scaled, perhaps centred, perhaps cut to their coordinates along a few directions.
//!
//! With u a scaled row (cosine: to length 1; else by one power of two so that no row is longer than 1), c = u − μ, c' the packed
//! part of it, c̃ its rounded numbers, r ≥ |c̃ − c'|, n ≥ |c'| and ρ ≥ |c − c'|:
//!
//! |fl(c̃ᵢ·c̃ⱼ + ρᵢρⱼ) − (c'ᵢ·c'ⱼ + ρᵢρⱼ)| ≤ rᵢ(nⱼ + rⱼ) + nᵢ rⱼ + γ ((nᵢ + rᵢ)(nⱼ + rⱼ) + ρᵢρⱼ)
//!
//! and |cᵢ·cⱼ − c'ᵢ·c'ⱼ| ≤ ρᵢρⱼ, both by Cauchy–Schwarz, γ being the bound of a float32 sum in any order.
//! docs/internals/evaluator-exactness.md derives it, and the terms for biases, underflow, and the rounding of the keys.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::exact::{UNIT32, UNIT64, packed_position, padded_len};
use crate::kernel::Word;
use crate::rows::dense::Dense;
use crate::rows::frame::{Frame, Framed};
use crate::rows::packing::{Axis, Extent, Goal, Packing};
use crate::rows::prefix::Prefix;
use crate::rows::prefix_choice::choose_prefix;
#[cfg(test)]
use crate::rows::principal::principal_directions;
use crate::rows::sample::Sample;
use crate::side::Side;

/// The number of bfloat16 whose sum is a float32.
const PIECES: usize = 3;

/// How the rows of a [`Dense`] space are packed.
pub struct DensePacking<'s, 'a> {
    pub(super) of: &'s Dense<'a>,
    pub(super) frame: Frame,
    pub(super) prefix: Option<Prefix>,
}

/// Rounds to the nearest bfloat16, ties to even; for numbers far from overflow.
fn bfloat16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Rounds a length up to a bfloat16.
fn bfloat16_above(x: f32) -> f32 {
    f32::from_bits((x.to_bits() + 0xffff) & 0xffff_0000)
}

/// Rounds numbers and appends them to `packed`; returns the squared lengths of the numbers and of the rounding errors.
fn round(x: &[f64], packed: &mut Vec<f32>, narrow: impl Fn(f32) -> f32) -> (f64, f64) {
    // Sums in lanes, which do not wait for one another.
    const LANES: usize = 8;
    let (mut norm2, mut residual2) = ([0.0; LANES], [0.0; LANES]);
    let first = packed.len();
    packed.resize(first + x.len(), 0.0);
    let mut take = |x: &[f64], packed: &mut [f32]| {
        for (((exact, out), norm2), residual2) in x.iter().zip(packed).zip(&mut norm2).zip(&mut residual2) {
            *out = narrow(*exact as f32);
            let difference = f64::from(*out) - exact;
            *norm2 += exact * exact;
            *residual2 += difference * difference;
        }
    };
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (packed_chunks, packed_rest) = packed[first..].as_chunks_mut::<LANES>();
    for (x, packed) in chunks.iter().zip(packed_chunks) {
        take(x, packed);
    }
    take(rest, packed_rest);
    (norm2.iter().sum(), residual2.iter().sum())
}

impl<'s, 'a> DensePacking<'s, 'a> {
    /// Chooses a packing for the work, from a sample of the rows. Any packing gives correct bounds.
    pub fn new(of: &'s Dense<'a>, goal: &Goal<'_>, control: &Control) -> Result<Self> {
        let sample = Sample::draw(of, Sample::FOR_FRAME)?;
        let frame = Frame::of_sample(&sample.rows, of.dim(), of.similarity());
        let whole = DensePacking { of, frame, prefix: None };
        let prefix = choose_prefix(of, &whole.frame, whole.steps(), goal, control)?;
        Ok(DensePacking { prefix, ..whole })
    }

    /// Packs whole rows that are not centred, so that products approximate values without an offset.
    pub(crate) fn whole(of: &'s Dense<'a>) -> Self {
        DensePacking { of, frame: Frame::around(Vec::new(), &[], of.dim(), of.similarity()), prefix: None }
    }

    /// Bounds the rounding errors of all pairs.
    pub(crate) fn largest_margin(&self) -> f64 {
        let worst = |side: Side| {
            let extents = (0..self.of.rows(side)).into_par_iter().map_init(
                || vec![0; self.steps()],
                |words, row| {
                    let mut extent = [Extent::default()];
                    self.encode(side, Axis::Rows, row..row + 1, 1, words, &mut extent);
                    extent[0]
                },
            );
            extents.reduce(Extent::default, Extent::max)
        };
        self.margin(worst(Side::Query), worst(Side::Gallery))
    }

    /// Makes a packing of rows that are not centred, along these directions.
    #[cfg(test)]
    pub fn along(of: &'s Dense<'a>, directions: &[f64]) -> Self {
        let sample = Sample::draw(of, 256).unwrap().rows;
        let frame = Frame::around(Vec::new(), &sample, of.dim(), of.similarity());
        let prefix = Prefix::new(of.kernel(), directions, of.dim(), &Control::default()).unwrap();
        DensePacking { of, frame, prefix: Some(prefix) }
    }

    /// Makes packings of every kind: whole rows, and prefixes along principal and other directions, centred or not.
    #[cfg(test)]
    pub fn of_each_kind(of: &'s Dense<'a>) -> Vec<Self> {
        let (dim, similarity, control) = (of.dim(), of.similarity(), Control::default());
        let sample = Sample::draw(of, 256).unwrap().rows;
        let mean: Vec<f64> = (0..dim)
            .map(|i| sample.iter().skip(i).step_by(dim).sum::<f64>() * dim as f64 / sample.len() as f64)
            .collect();
        let mut kinds = Vec::new();
        for centre in [Vec::new(), mean] {
            let frame = || Frame::around(centre.clone(), &sample, dim, similarity);
            kinds.push(DensePacking { of, frame: frame(), prefix: None });
            let mut rows = sample.clone();
            rows.chunks_exact_mut(dim).for_each(|row| {
                frame().enter(row);
            });
            let most = if dim <= 4096 { (rows.len() / dim).min(64) } else { 0 };
            let counts = [1, dim / 2, dim].into_iter().filter(|count| (1..=most).contains(count));
            let principal = counts.map(|count| principal_directions(of.kernel(), &rows, dim, count, &control).unwrap());
            // Some axes, exactly orthonormal, and about orthonormal.
            let axes = |length: f64| {
                let count = if dim <= 512 { dim.div_ceil(3) } else { 0 };
                (0..dim * count).map(|at| if at / dim == at % dim { length } else { 0.0 }).collect::<Vec<f64>>()
            };
            for directions in principal.chain([axes(1.0), axes(1.0 + 1e-4)]).filter(|of| !of.is_empty()) {
                let prefix = Prefix::new(of.kernel(), &directions, dim, &control).unwrap();
                kinds.push(DensePacking { of, frame: frame(), prefix: Some(prefix) });
            }
        }
        kinds
    }

    fn packs_bfloat16(&self) -> bool {
        self.of.word() == Word::BFloat16Pair
    }

    fn pieces(&self) -> usize {
        if self.packs_bfloat16() { PIECES } else { 1 }
    }

    /// Counts the numbers of a packed row.
    fn numbers(&self) -> usize {
        let coordinates = self.prefix.as_ref().map_or(self.of.dim(), |prefix| prefix.len() + 1);
        coordinates + if self.frame.is_biased() { 2 * self.pieces() } else { 0 }
    }

    /// Rounds the numbers of a packed row into `packed`.
    fn round_row(&self, axis: Axis, coordinates: &[f64], framed: Framed, packed: &mut Vec<f32>) -> Extent {
        packed.clear();
        let bfloat16s = self.packs_bfloat16();
        let (norm2, residual2) =
            if bfloat16s { round(coordinates, packed, bfloat16) } else { round(coordinates, packed, |v| v) };
        let norm = norm2.sqrt();
        // The numbers were rounded before, and so were these sums.
        let rounding = framed.length * (self.of.dim() as f64 + 8.0) * 2.0 * UNIT64;
        let mut extent =
            Extent { norm, residual: residual2.sqrt() + rounding, length: framed.length, ..Extent::default() };
        if let Some(prefix) = &self.prefix {
            extent.residual += rounding * prefix.len() as f64;
            let rest = prefix.rest(framed.square, norm2, framed.length) as f32;
            let above = rest.next_up();
            packed.push(if bfloat16s { bfloat16_above(above) } else { above });
            extent.rest = f64::from(packed[packed.len() - 1]);
        }
        if self.frame.is_biased() {
            extent.bias = framed.bias.abs();
            let mut left = -framed.bias as f32;
            let mut pieces = [1.0; 2 * PIECES];
            let own = if axis == Axis::Rows { 0 } else { self.pieces() };
            for piece in &mut pieces[own..own + self.pieces()] {
                *piece = if bfloat16s { bfloat16(left) } else { left };
                left -= *piece;
            }
            packed.extend_from_slice(&pieces[..2 * self.pieces()]);
        }
        extent
    }

    fn write(&self, packed: &[f32], lane: usize, width: usize, panel: &mut [u32]) {
        let words = panel[lane..].iter_mut().step_by(width);
        if self.packs_bfloat16() {
            for (word, pair) in words.zip(packed.chunks(2)) {
                let high = pair.get(1).map_or(0, |v| v.to_bits());
                *word = high | (pair[0].to_bits() >> 16);
            }
        } else {
            for (word, v) in words.zip(packed) {
                *word = v.to_bits();
            }
        }
    }

    fn frame_row(&self, side: Side, row: usize, out: &mut Vec<f64>) -> Framed {
        self.of.scale_row(side, row, out);
        self.frame.enter(out)
    }
}

impl Packing for DensePacking<'_, '_> {
    fn word(&self) -> Word {
        self.of.word()
    }

    fn steps(&self) -> usize {
        if self.packs_bfloat16() { self.numbers().div_ceil(2) } else { self.numbers() }
    }

    fn encode(
        &self,
        side: Side,
        axis: Axis,
        rows: Range<usize>,
        width: usize,
        panel: &mut [u32],
        extents: &mut [Extent],
    ) {
        let (mut row, mut packed) = (Vec::new(), Vec::new());
        let Some(prefix) = &self.prefix else {
            for (lane, (index, extent)) in rows.zip(extents).enumerate() {
                let framed = self.frame_row(side, index, &mut row);
                *extent = self.round_row(axis, &row, framed, &mut packed);
                self.write(&packed, lane, width, panel);
            }
            return;
        };
        let together = prefix.rows();
        let dim = self.of.dim();
        let padded = padded_len(dim);
        let mut framed = vec![Framed::default(); together];
        let mut factors = vec![0.0; padded * together];
        let mut rows_together = vec![0.0; dim * together];
        for first in (0..rows.len()).step_by(together) {
            let lanes = first..(first + together).min(rows.len());
            for (at, lane) in lanes.clone().enumerate() {
                framed[at] = self.frame_row(side, rows.start + lane, &mut row);
                rows_together[at * dim..][..dim].copy_from_slice(&row);
            }
            for i in 0..dim {
                let factors = &mut factors[packed_position(i, padded) * together..][..together];
                for (at, factor) in factors.iter_mut().enumerate() {
                    *factor = rows_together[at * dim + i];
                }
            }
            let coordinates = prefix.coordinates(&factors);
            for (at, lane) in lanes.enumerate() {
                let own = &coordinates[at * prefix.len()..][..prefix.len()];
                extents[lane] = self.round_row(axis, own, framed[at], &mut packed);
                self.write(&packed, lane, width, panel);
            }
        }
    }

    fn margin(&self, row: Extent, column: Extent) -> f64 {
        let numbers = self.numbers() as f64;
        let dim = self.of.dim() as f64;
        // Two roundings a term, enough for kernels with and without fused terms: docs/internals/evaluator-exactness.md.
        let operations = (2.0 * numbers + 8.0) * UNIT32;
        if operations >= 0.5 {
            return f64::INFINITY;
        }
        let gamma = operations / (1.0 - operations);
        let lengths = (row.norm + row.residual) * (column.norm + column.residual);
        let packing = row.residual * (column.norm + column.residual) + row.norm * column.residual;
        let biases = row.bias + column.bias;
        // A bias is rounded to float32; the magnitudes of its pieces add up to at most 1 + 2⁻⁷ of it.
        let summing = gamma * (lengths + row.rest * column.rest + 1.01 * biases) + 2.0 * UNIT32 * biases;
        // The rounding of both keys, the screened item's and the positive's, that of the frame, and the underflow of the keys'
        // products, at most dim · 2^−1074 · scale² ≤ dim · 2^−76; no scaled row is longer than 1.
        let longest = column.length.max(row.length) + 1.0;
        let deciding = 32.0 * (dim + 8.0) * UNIT64 * (row.length + 1.0) * longest;
        let projecting = self.prefix.as_ref().map_or(0.0, |prefix| prefix.error() * row.length * column.length);
        // Products that the CPU may have flushed to zero.
        let underflow = (numbers + 8.0) * f64::from(f32::MIN_POSITIVE) * 4.0;
        (packing + summing + deciding + projecting + underflow) * 1.0001
    }

    fn offset(&self) -> f64 {
        self.frame.offset()
    }
}
