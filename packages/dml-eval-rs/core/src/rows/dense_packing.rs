//! Packs real vectors for a screen: scales them, and may centre them and keep only coordinates
//! along a few directions.
//!
//! Let u be a scaled row (for the cosine, to length 1; otherwise by a common power of two, so that
//! lengths don't exceed 1), c = u − μ, c' the packed part of c, c̃ the rounded numbers, r ≥ |c̃ −
//! c'|, n ≥ |c'| and ρ ≥ |c − c'|. Then
//!
//! |fl(c̃ᵢ·c̃ⱼ + ρᵢρⱼ) − (c'ᵢ·c'ⱼ + ρᵢρⱼ)| ≤ rᵢ(nⱼ + rⱼ) + nᵢ rⱼ + γ ((nᵢ + rᵢ)(nⱼ + rⱼ) + ρᵢρⱼ)
//!
//! and |cᵢ·cⱼ − c'ᵢ·c'ⱼ| ≤ ρᵢρⱼ, both by Cauchy–Schwarz, where γ bounds the error of a float32 sum
//! in any order. docs/internals/evaluator-exactness.md derives this, and the terms for biases, for
//! underflow, and for the rounding of keys.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::exact::{UNIT32, UNIT64};
use crate::kernel::{AFFINE_STEPS, Kernel, Word};
use crate::memory::{full, ready};
use crate::rows::byte_words::ByteEncoding;
use crate::rows::dense::Dense;
use crate::rows::encoding::{Encoding, Lanes};
use crate::rows::frame::Frame;
use crate::rows::packing::{Axis, Extent, Goal, Packing};
use crate::rows::prefix::Prefix;
use crate::rows::prefix_choice::choose_prefix;
#[cfg(test)]
use crate::rows::principal::principal_directions;
use crate::rows::row_words::steps;
use crate::rows::sample::Sample;
use crate::rows::similarity::Similarity;
use crate::side::Side;
use crate::sizes::Sizes;

/// The way to pack the rows of a [`Dense`] space.
pub struct DensePacking<'s, 'a> {
    pub(super) space: &'s Dense<'a>,
    pub(super) frame: Frame,
    pub(super) prefix: Option<Prefix>,
    pub(super) word: Word,
    /// Whether rows are also rounded to bytes.
    pub(super) is_rounded: bool,
}

impl<'s, 'a> DensePacking<'s, 'a> {
    /// Chooses a fast packing for `goal` from a sample of the rows. The bounds hold for any
    /// packing.
    pub fn new(space: &'s Dense<'a>, goal: &Goal<'_>, control: &Control) -> Result<Self> {
        let whole = DensePacking::whole(space)?;
        let bytes = DensePacking::of_bytes(space)?;
        let steps = bytes.as_ref().unwrap_or(&whole).steps();
        let prefix = choose_prefix(space, &whole.frame, steps, goal, control)?;
        Ok(match (prefix, bytes) {
            (None, Some(bytes)) => bytes,
            (prefix, _) => DensePacking { prefix, ..whole }.rounded(control.sizes()),
        })
    }

    /// Also rounds rows to bytes, if the kernel compares these and rows are long enough.
    fn rounded(self, sizes: &Sizes) -> Self {
        let is_rounded = self.space.kernel().partial.is_some()
            && self.word == Word::Int16Pair
            && self.steps() - AFFINE_STEPS >= sizes.rounded_words;
        DensePacking { is_rounded, ..self }
    }

    /// Packs all coordinates, and centres the rows if a sample suggests that they are similar.
    pub(crate) fn whole(space: &'s Dense<'a>) -> Result<Self> {
        let sample = Sample::draw(space, Sample::FOR_FRAME)?;
        let frame = Frame::choose(&sample.rows, space.dim(), space.similarity())?;
        Ok(DensePacking { space, frame, prefix: None, word: space.word(), is_rounded: false })
    }

    /// Packs all coordinates as bytes, if both sides consist of bytes. Products are exact, so rows
    /// needn't be centred.
    fn of_bytes(space: &'s Dense<'a>) -> Result<Option<Self>> {
        if !space.multiplies_bytes() {
            return Ok(None);
        }
        let frame = Frame::around(Vec::new(), &[], space.dim(), space.similarity())?;
        Ok(Some(DensePacking {
            space,
            frame,
            prefix: None,
            word: Word::ByteQuad,
            is_rounded: false,
        }))
    }

    /// Returns a bound on the rounding errors of any pair.
    pub(crate) fn largest_margin(&self) -> Result<f64> {
        let worst = |side: Side| {
            let extents = (0..self.space.rows(side)).into_par_iter().map_init(
                || full(self.steps(), 0),
                |words, row| {
                    let mut extent = [Extent::default()];
                    self.encode(side, Axis::Rows, row..row + 1, 1, ready(words)?, &mut extent)?;
                    Ok(extent[0])
                },
            );
            extents.try_reduce(Extent::default, |a, b| Ok(a.max(b)))
        };
        Ok(self.margin(worst(Side::Query)?, worst(Side::Gallery)?))
    }

    /// Packs rows along `directions`, not centred.
    #[cfg(test)]
    pub fn along(space: &'s Dense<'a>, directions: &[f64]) -> Self {
        let sample = Sample::draw(space, 256).unwrap().rows;
        let frame = Frame::around(Vec::new(), &sample, space.dim(), space.similarity()).unwrap();
        let prefix =
            Prefix::new(space.kernel(), directions, space.dim(), &Control::default()).unwrap();
        let word = space.word();
        DensePacking { space, frame, prefix: Some(prefix), word, is_rounded: false }
            .rounded(&Sizes::default())
    }

    /// Returns a packing per kind: all coordinates, or along principal or other directions, centred
    /// or not.
    #[cfg(test)]
    pub fn of_each_kind(space: &'s Dense<'a>) -> Vec<Self> {
        let (dim, similarity, control) = (space.dim(), space.similarity(), Control::default());
        let sample = Sample::draw(space, 256).unwrap().rows;
        let mean: Vec<f64> = (0..dim)
            .map(|i| {
                sample.iter().skip(i).step_by(dim).sum::<f64>() * dim as f64 / sample.len() as f64
            })
            .collect();
        let (mut kinds, word) = (Vec::new(), space.word());
        kinds.extend(DensePacking::of_bytes(space).unwrap());
        for centre in [Vec::new(), mean] {
            let frame = || Frame::around(centre.clone(), &sample, dim, similarity).unwrap();
            kinds.push(DensePacking {
                space,
                frame: frame(),
                prefix: None,
                word,
                is_rounded: false,
            });
            let mut rows = sample.clone();
            rows.chunks_exact_mut(dim).for_each(|row| {
                frame().enter(row);
            });
            let most = if dim <= 4096 { (rows.len() / dim).min(64) } else { 0 };
            let counts = [1, dim / 2, dim].into_iter().filter(|count| (1..=most).contains(count));
            let principal = counts
                .map(|n| principal_directions(space.kernel(), &rows, dim, n, &control).unwrap());
            // Axes that are exactly orthonormal, then axes that are only nearly orthonormal.
            let axes = |length: f64| {
                let count = if dim <= 512 { dim.div_ceil(3) } else { 0 };
                (0..dim * count)
                    .map(|at| if at / dim == at % dim { length } else { 0.0 })
                    .collect::<Vec<f64>>()
            };
            for directions in
                principal.chain([axes(1.0), axes(1.0 + 1e-4)]).filter(|found| !found.is_empty())
            {
                let prefix = Prefix::new(space.kernel(), &directions, dim, &control).unwrap();
                kinds.push(DensePacking {
                    space,
                    frame: frame(),
                    prefix: Some(prefix),
                    word,
                    is_rounded: false,
                });
            }
        }
        let sizes = Sizes { rounded_words: 0, ..Sizes::default() };
        kinds.into_iter().map(|kind| kind.rounded(&sizes)).collect()
    }

    /// Whether products are sums of integers, scaled.
    fn is_integer(&self) -> bool {
        matches!(self.word, Word::Int16Pair | Word::ByteQuad)
    }

    /// Counts the numbers per packed row, excluding biases.
    fn numbers(&self) -> usize {
        self.prefix.as_ref().map_or(self.space.dim(), |prefix| prefix.len() + 1)
    }
}

impl Packing for DensePacking<'_, '_> {
    fn word(&self) -> Word {
        self.word
    }

    fn steps(&self) -> usize {
        steps(self.word(), self.numbers(), self.frame.is_biased())
    }

    fn encode(
        &self,
        side: Side,
        axis: Axis,
        rows: Range<usize>,
        width: usize,
        panel: &mut [u32],
        extents: &mut [Extent],
    ) -> Result<()> {
        let lanes = Lanes { side, axis, rows, width, panel, extents };
        let DensePacking { space, frame, prefix, word, .. } = self;
        if *word == Word::ByteQuad {
            return space.kernel().vectorize(ByteEncoding { space, lanes });
        }
        let prefix = prefix.as_ref();
        space.kernel().vectorize(Encoding { space, frame, prefix, word: *word, lanes })
    }

    fn has_one_scale(&self) -> bool {
        self.word == Word::ByteQuad && self.space.similarity() != Similarity::Cosine
    }

    fn is_sorted(&self) -> bool {
        self.prefix.is_some()
    }

    fn rounding(&self) -> Option<&'static Kernel> {
        self.is_rounded.then_some(self.space.kernel())
    }

    fn margin(&self, row: Extent, column: Extent) -> f64 {
        let numbers = self.numbers() as f64;
        // Allow two roundings per term, which is enough whether multiply-add is fused or not: see
        // docs/internals/evaluator-exactness.md. Integer sums are exact; four roundings turn them
        // into products.
        let operations =
            if self.is_integer() { 4.0 * UNIT32 } else { (2.0 * numbers + 8.0) * UNIT32 };
        if operations >= 0.5 {
            return f64::INFINITY;
        }
        let gamma = operations / (1.0 - operations);
        let lengths = (row.norm + row.residual) * (column.norm + column.residual);
        let products = gamma * (lengths + row.residual_norm * column.residual_norm);
        self.bound(row, column, gamma, products)
    }

    fn offset(&self) -> f64 {
        self.frame.offset()
    }
}

impl DensePacking<'_, '_> {
    /// Bounds the errors of a value, given a bound for the errors of the sum of products, and for
    /// the relative error of a sum in any order.
    pub(super) fn bound(&self, row: Extent, column: Extent, gamma: f64, products: f64) -> f64 {
        let numbers = self.numbers() as f64;
        let dim = self.space.dim() as f64;
        let packing = row.residual * (column.norm + column.residual) + row.norm * column.residual;
        let biases = row.bias + column.bias;
        // A bias is rounded to float32. The magnitudes of the pieces add up to at most 1 + 2⁻⁷
        // times the bias.
        let summing = products + (1.01 * gamma + 2.0 * UNIT32) * biases;
        // Allow for the rounding of both keys (the screened item's and the positive's) and of the
        // frame. Products in keys underflow by at most dim · 2^−1074 · scale² ≤ dim · 2^−76. Scaled
        // rows are not longer than 1.
        let longest = column.length.max(row.length) + 1.0;
        let deciding = 32.0 * (dim + 8.0) * UNIT64 * (row.length + 1.0) * longest;
        let projecting =
            self.prefix.as_ref().map_or(0.0, |prefix| prefix.error() * row.length * column.length);
        // The CPU may flush products to zero. For integers, this affects only the product of the
        // scales, times a sum below 2^31.
        let times = if self.is_integer() { (1u64 << 10) as f64 } else { (numbers + 8.0) * 4.0 };
        let underflow = times * f64::from(f32::MIN_POSITIVE);
        (packing + summing + deciding + projecting + underflow) * 1.0001
    }
}
