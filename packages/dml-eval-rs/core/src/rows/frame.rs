//! A frame of reference for a screen: rows relative to a centre. When rows are similar, this makes
//! the numbers small.
//!
//! With c = u − μ: uᵢ·uⱼ = cᵢ·cⱼ + μ·uᵢ + μ·uⱼ − |μ|², and −|uᵢ − uⱼ|²/2 = cᵢ·cⱼ − |cᵢ|²/2
//! − |cⱼ|²/2. So in both cases a value is cᵢ·cⱼ − bᵢ − bⱼ plus a constant. Subtracting the mean
//! bias from the biases b makes biases small, too.

use crate::error::Result;
use crate::exact::{dot, square};
use crate::memory::full;
use crate::rows::similarity::Similarity;

/// Rows are centred if the squared length of the mean is at least this share of the mean squared
/// length.
const WORTH_CENTRING: f64 = 0.1;

/// The sizes of a row relative to a frame.
#[derive(Clone, Copy, Default)]
pub(super) struct Framed {
    /// The number to subtract from products of this row.
    pub bias: f64,
    /// The squared length of the centred row.
    pub square: f64,
    /// The length of the given row plus the length of the centre.
    pub length: f64,
}

/// A centre, with the biases that compensate for it.
pub(super) struct Frame {
    similarity: Similarity,
    /// The centre, or an empty vector if rows aren't centred.
    centre: Vec<f64>,
    centre_length: f64,
    mean_bias: f64,
    offset: f64,
}

impl Frame {
    /// Chooses a frame for rows like `sample`, of shape (rows, dim).
    pub fn choose(sample: &[f64], dim: usize, similarity: Similarity) -> Result<Self> {
        let rows = (sample.len() / dim) as f64;
        let mut centre = full(dim, 0.0)?;
        for row in sample.chunks_exact(dim) {
            for (sum, v) in centre.iter_mut().zip(row) {
                *sum += v / rows;
            }
        }
        if square(&centre) < WORTH_CENTRING * square(sample) / rows {
            centre = Vec::new();
        }
        Frame::around(centre, sample, dim, similarity)
    }

    /// Makes a frame around `centre`, or a frame with no centre if `centre` is empty. Biases are
    /// relative to the mean over `sample`, or to 0 if `sample` is empty. If `centre` is not empty,
    /// `sample` must not be empty.
    pub fn around(
        centre: Vec<f64>,
        sample: &[f64],
        dim: usize,
        similarity: Similarity,
    ) -> Result<Self> {
        let centre_length = square(&centre).sqrt();
        let mut frame = Frame { similarity, centre, centre_length, mean_bias: 0.0, offset: 0.0 };
        if frame.is_biased() && !sample.is_empty() {
            let rows = (sample.len() / dim) as f64;
            let mut buffer = full(dim, 0.0)?;
            let bias = |row: &[f64]| {
                buffer.copy_from_slice(row);
                frame.enter(&mut buffer).bias
            };
            frame.mean_bias = sample.chunks_exact(dim).map(bias).sum::<f64>() / rows;
            let constant =
                if similarity == Similarity::Euclidean { 0.0 } else { square(&frame.centre) };
            frame.offset = -2.0 * frame.mean_bias - constant;
        }
        Ok(frame)
    }

    /// Whether products need a bias per row.
    pub fn is_biased(&self) -> bool {
        self.similarity == Similarity::Euclidean || !self.centre.is_empty()
    }

    /// Returns the number to add to products, in addition to the biases.
    pub fn offset(&self) -> f64 {
        self.offset
    }

    /// Subtracts the centre from `row`, of squared length `square`, and rounds the differences to
    /// float32.
    ///
    /// The squared length of the result is computed from products, so it may be 0 or less if the
    /// row is near the centre.
    #[inline(always)]
    pub fn enter_rounded(&self, row: &[f64], square: f64, out: &mut [f32]) -> Framed {
        let along = if self.centre.is_empty() {
            row.iter().zip(out).for_each(|(v, out)| *out = *v as f32);
            0.0
        } else {
            row.iter().zip(&self.centre).zip(out).for_each(|((v, c), out)| *out = (v - c) as f32);
            dot(row, &self.centre)
        };
        self.measure(square, along, square - 2.0 * along + self.centre_length * self.centre_length)
    }

    /// Subtracts the centre from `row`.
    #[inline(always)]
    pub fn enter(&self, row: &mut [f64]) -> Framed {
        let before = square(row);
        let along = if self.centre.is_empty() { 0.0 } else { dot(row, &self.centre) };
        for (v, c) in row.iter_mut().zip(&self.centre) {
            *v -= c;
        }
        let after = if self.centre.is_empty() { before } else { square(row) };
        self.measure(before, along, after)
    }

    #[inline(always)]
    fn measure(&self, before: f64, along: f64, after: f64) -> Framed {
        let bias = match self.similarity {
            Similarity::Euclidean => after / 2.0,
            Similarity::Cosine | Similarity::Dot => -along,
        };
        Framed {
            bias: bias - self.mean_bias,
            square: after,
            length: before.sqrt() + self.centre_length,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;

    #[test]
    fn products_biases_and_offset_add_up_to_the_value() {
        const DIM: usize = 11;
        let mut random = Random::new(5);
        for shift in [0.0, 0.2, 1.0, 30.0] {
            let sample: Vec<f64> = (0..40 * DIM).map(|_| random.uniform() - 0.5 + shift).collect();
            for similarity in [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean] {
                let frame = Frame::choose(&sample, DIM, similarity).unwrap();
                assert_eq!(frame.centre.is_empty(), shift < 0.05);
                for (x, y) in sample.chunks_exact(DIM).zip(sample.chunks_exact(DIM).skip(7)) {
                    let (mut c, mut d) = (x.to_vec(), y.to_vec());
                    let (Framed { bias, square: after, length }, other) =
                        (frame.enter(&mut c), frame.enter(&mut d));
                    let value = match similarity {
                        Similarity::Euclidean => {
                            -x.iter().zip(y).map(|(a, b)| (a - b).powi(2)).sum::<f64>() / 2.0
                        }
                        _ => dot(x, y),
                    };
                    let found = dot(&c, &d) - bias - other.bias + frame.offset();
                    assert!((found - value).abs() <= 1e-13 * length * length, "{found} {value}");
                    assert!((after - square(&c)).abs() == 0.0 && length >= square(x).sqrt());
                }
            }
        }
    }
}
