//! Real vectors under a similarity: validation, packing, and the error bound of the screen.
//!
//! With rows x scaled (cosine: to length 1; else by one power of two so that no row is longer than 1), ũ the packed row of u,
//! r ≥ |ũ − u| and n ≥ |u|:
//!
//! |fl(ũᵢ·ũⱼ) − uᵢ·uⱼ| ≤ rᵢ(nⱼ + rⱼ) + nᵢ rⱼ + γ (nᵢ + rᵢ)(nⱼ + rⱼ)
//!
//! by Cauchy–Schwarz, γ being the bound of a float32 sum in any order. docs/evaluator-exactness.md derives it, and the
//! terms for biases, underflow, and the keys' own rounding.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::exact::{TOGETHER, cosine_key};
use crate::kernel::{Kernel, Word, square};
use crate::matrix::Matrix;
use crate::space::{Extent, Scratch, Side, Space};

/// How two vectors are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    /// q·g / (|q||g|).
    Cosine,
    /// q·g.
    Dot,
    /// −|q − g|².
    Euclidean,
}

impl std::str::FromStr for Similarity {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "cosine" => Ok(Similarity::Cosine),
            "dot" => Ok(Similarity::Dot),
            "euclidean" => Ok(Similarity::Euclidean),
            _ => argument(format!("similarity is {name:?}; expected 'cosine', 'dot' or 'euclidean'")),
        }
    }
}

/// The precision of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Float32 products: almost nothing is left to decide.
    Float32,
    /// Bfloat16 products where the CPU has them: twice as fast, and a few in a thousand are left to decide.
    BFloat16,
}

impl std::str::FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "float32" => Ok(Precision::Float32),
            "bfloat16" => Ok(Precision::BFloat16),
            _ => argument(format!("screen is {name:?}; expected 'float32' or 'bfloat16'")),
        }
    }
}

impl Precision {
    /// The faster screen for an evaluation with these labels: many positives make many thresholds, within whose margins a
    /// coarse screen leaves too much to decide.
    pub fn for_labels(labels: &[u32]) -> Self {
        const MANY: usize = 24;
        let classes = labels.iter().max().map_or(1, |l| *l as usize + 1);
        if labels.len() / classes < MANY { Precision::BFloat16 } else { Precision::Float32 }
    }
}

/// Two validated matrices and a similarity.
pub struct Dense<'a> {
    queries: Matrix<'a>,
    gallery: Matrix<'a>,
    similarity: Similarity,
    kernel: &'static Kernel,
    word: Word,
    query_squares: Vec<f64>,
    gallery_squares: Option<Vec<f64>>,
    /// The power of two that makes the longest row at most 1; 1 under the cosine.
    scale: f64,
}

/// The largest magnitude that dot and euclidean take.
const LARGEST: f64 = f64::from_bits((1023 + 500) << 52);

impl<'a> Dense<'a> {
    /// Reads through the data once and validates them. Without a gallery the queries are their own.
    pub fn new(
        queries: Matrix<'a>,
        gallery: Option<Matrix<'a>>,
        similarity: Similarity,
        precision: Precision,
        kernel: &'static Kernel,
        control: &Control,
    ) -> Result<Self> {
        if queries.dim() == 0 || queries.rows() == 0 {
            return argument(format!(
                "embeddings has shape ({}, {}); expected at least one row and one column",
                queries.rows(),
                queries.dim()
            ));
        }
        if let Some(g) = &gallery
            && (g.dim() != queries.dim() || g.rows() == 0)
        {
            return argument(format!(
                "gallery has shape ({}, {}); expected (at least 1, {}) to match embeddings ({}, {})",
                g.rows(),
                g.dim(),
                queries.dim(),
                queries.rows(),
                queries.dim()
            ));
        }
        let largest_index = gallery.as_ref().unwrap_or(&queries).rows();
        if u32::try_from(largest_index).is_err() {
            return argument(format!(
                "the gallery has {largest_index} rows; expected fewer than 2**32: evaluate it in shards"
            ));
        }
        let query_squares = validate(&queries, "embeddings", similarity, control)?;
        let gallery_squares = gallery.as_ref().map(|g| validate(g, "gallery", similarity, control)).transpose()?;
        let longest =
            query_squares.iter().chain(gallery_squares.iter().flatten()).fold(0.0f64, |m, s| m.max(*s)).sqrt();
        let scale = match similarity {
            Similarity::Cosine => 1.0,
            _ if longest == 0.0 => 1.0,
            _ => power_of_two(-(exponent(longest) + 1).max(-1021)),
        };
        let word = match precision {
            Precision::BFloat16 if kernel.has_bfloat16() => Word::BFloat16Pair,
            _ => Word::Float32,
        };
        let gallery = gallery.unwrap_or(queries);
        Ok(Dense { queries, gallery, similarity, kernel, word, query_squares, gallery_squares, scale })
    }

    /// The similarity of two rows as it is reported: the cosine, the dot product, or minus the squared distance.
    pub fn reported(&self, query: usize, key: f64) -> f32 {
        match self.similarity {
            Similarity::Cosine => self.value(query, key) as f32,
            _ => key as f32,
        }
    }

    fn matrix(&self, side: Side) -> &Matrix<'a> {
        match side {
            Side::Query => &self.queries,
            Side::Gallery => &self.gallery,
        }
    }

    fn squares(&self, side: Side) -> &[f64] {
        match (side, &self.gallery_squares) {
            (Side::Gallery, Some(squares)) => squares,
            _ => &self.query_squares,
        }
    }

    /// Sums of products (or squared distances) straight from float32 rows; false if some aren't such.
    fn sums_in_place(&self, pairs: &[(u32, u32)], sums: &mut Vec<f64>) -> bool {
        for together in pairs.chunks(TOGETHER) {
            let (mut q, mut g) = ([&[0.0f32; 0][..]; TOGETHER], [&[0.0f32; 0][..]; TOGETHER]);
            for (slot, &(query, item)) in together.iter().enumerate() {
                match (self.queries.slice32(query as usize), self.gallery.slice32(item as usize)) {
                    (Some(query), Some(item)) => (q[slot], g[slot]) = (query, item),
                    _ => return false,
                }
            }
            // A short chunk repeats its first pair.
            for slot in together.len()..TOGETHER {
                (q[slot], g[slot]) = (q[0], g[0]);
            }
            let found = match self.similarity {
                Similarity::Euclidean => self.kernel.distances32(q, g),
                _ => self.kernel.dots32(q, g),
            };
            sums.extend(&found[..together.len()]);
        }
        true
    }

    fn widen(&self, side: Side, row: usize, out: &mut Vec<f64>) {
        out.resize(self.queries.dim(), 0.0);
        self.matrix(side).widen(row, out);
        if rescales(self.matrix(side), self.similarity) {
            rescale(out);
        }
    }
}

/// Float64 rows are scaled by a power of two under the cosine, which changes no bit of a key, so that nothing overflows.
fn rescales(matrix: &Matrix<'_>, similarity: Similarity) -> bool {
    similarity == Similarity::Cosine && matches!(matrix, Matrix::F64(_))
}

fn exponent(x: f64) -> i32 {
    let bits = ((x.to_bits() >> 52) & 0x7ff) as i32;
    if bits == 0 { exponent(x * power_of_two(200)) - 200 } else { bits - 1023 }
}

/// 2 to the power `e`, for −1022 ≤ e ≤ 1023.
fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

fn rescale(x: &mut [f64]) {
    let largest = x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return;
    }
    let e = -exponent(largest);
    let (half, rest) = (power_of_two(e / 2), power_of_two(e - e / 2));
    for v in x {
        *v = *v * half * rest;
    }
}

/// One pass over the data: the first bad row, or every row's sum of squares in the stated order.
fn validate(matrix: &Matrix<'_>, what: &'static str, similarity: Similarity, control: &Control) -> Result<Vec<f64>> {
    const ROWS: usize = 256;
    let mut squares = vec![0.0; matrix.rows()];
    squares.par_chunks_mut(ROWS).enumerate().for_each_init(Vec::new, |buffer, (chunk, squares)| {
        if control.is_cancelled() {
            return;
        }
        buffer.resize(matrix.dim(), 0.0);
        for (i, out) in squares.iter_mut().enumerate() {
            matrix.widen(chunk * ROWS + i, buffer);
            if rescales(matrix, similarity) && buffer.iter().all(|v| v.is_finite()) {
                rescale(buffer);
            }
            *out = square(buffer);
        }
    });
    control.check()?;
    // Only float64 data can be finite and overflow here, so a second look decides what is wrong.
    let magnitude = |row: usize| {
        let mut buffer = vec![0.0; matrix.dim()];
        matrix.widen(row, &mut buffer);
        buffer.iter().fold(0.0f64, |m, v| if v.is_finite() { m.max(v.abs()) } else { f64::INFINITY })
    };
    let suspects = |bad: &dyn Fn(usize) -> bool| -> Option<(usize, usize)> {
        let mut rows = (0..squares.len()).filter(|&row| bad(row));
        rows.next().map(|first| (first, 1 + rows.count()))
    };
    if let Some((row, count)) = suspects(&|row| !squares[row].is_finite() && magnitude(row) == f64::INFINITY) {
        return Err(Error::NonFinite { what, row, count });
    }
    match similarity {
        Similarity::Cosine => {
            if let Some((row, count)) = suspects(&|row| squares[row] == 0.0) {
                return Err(Error::ZeroNorm { what, row, count });
            }
        }
        _ => {
            let large = |row: usize| squares[row] > LARGEST && magnitude(row) > LARGEST;
            if let Some((row, _)) = suspects(&large) {
                return Err(Error::TooLarge { what, row, magnitude: magnitude(row) });
            }
        }
    }
    Ok(squares)
}

/// Half a unit in the last place of float32 and of float64, relative.
const UNIT32: f64 = 1.0 / (1 << 24) as f64;
const UNIT64: f64 = 1.0 / (1u64 << 53) as f64;

/// Float32 to bfloat16, to nearest, ties to even; finite input of magnitude at most 1.
fn bfloat16(x: f32) -> u32 {
    let bits = x.to_bits();
    (bits + 0x7fff + ((bits >> 16) & 1)) >> 16
}

impl Space for Dense<'_> {
    fn rows(&self, side: Side) -> usize {
        self.matrix(side).rows()
    }

    fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    fn word(&self) -> Word {
        self.word
    }

    fn steps(&self) -> usize {
        match self.word {
            Word::BFloat16Pair => self.queries.dim().div_ceil(2),
            _ => self.queries.dim(),
        }
    }

    fn biased(&self) -> bool {
        self.similarity == Similarity::Euclidean
    }

    fn encode(&self, side: Side, row: usize, scratch: &mut Scratch) -> Extent {
        let mut x = std::mem::take(&mut scratch.other);
        self.widen(side, row, &mut x);
        let square = self.squares(side)[row];
        let factor = match self.similarity {
            Similarity::Cosine => 1.0 / square.sqrt(),
            _ => self.scale,
        };
        let mut norm2 = 0.0;
        let mut residual2 = 0.0;
        let mut account = |exact: f64, packed: f32| {
            norm2 += exact * exact;
            let difference = f64::from(packed) - exact;
            residual2 += difference * difference;
        };
        scratch.words.clear();
        if self.word == Word::BFloat16Pair {
            for pair in x.chunks(2) {
                let mut word = 0;
                for (k, v) in pair.iter().enumerate() {
                    let exact = v * factor;
                    let half = bfloat16(exact as f32);
                    account(exact, f32::from_bits(half << 16));
                    word |= half << (16 * k);
                }
                scratch.words.push(word);
            }
        } else {
            for v in &x {
                let exact = v * factor;
                account(exact, exact as f32);
                scratch.words.push((exact as f32).to_bits());
            }
        }
        let dim = x.len() as f64;
        scratch.other = x;
        let norm = norm2.sqrt();
        let bias = if self.biased() { norm2 / 2.0 } else { 0.0 };
        // `exact` itself was rounded, as were these sums.
        Extent { norm, residual: residual2.sqrt() + norm * (dim + 8.0) * 2.0 * UNIT64, bias }
    }

    fn margin(&self, row: Extent, column: Extent) -> f64 {
        let dim = self.queries.dim() as f64;
        // Two roundings a term, since a kernel may or may not fuse them.
        let operations = (2.0 * dim + 8.0) * UNIT32;
        if operations >= 0.5 {
            return f64::INFINITY;
        }
        let gamma = operations / (1.0 - operations);
        let lengths = (row.norm + row.residual) * (column.norm + column.residual);
        let packing = row.residual * (column.norm + column.residual) + row.norm * column.residual;
        let biasing = if self.biased() { 8.0 * UNIT32 * (lengths + row.bias + column.bias) } else { 0.0 };
        // The keys' own rounding, the screened one's and the positive's; no scaled row is longer than 1.
        let deciding = 16.0 * (dim + 8.0) * UNIT64 * (row.norm + 1.0) * (column.norm.max(row.norm) + 1.0);
        // Products that the CPU may have flushed to zero.
        let underflow = (dim + 8.0) * f64::from(f32::MIN_POSITIVE) * 4.0;
        (packing + gamma * lengths + biasing + deciding + underflow) * 1.0001
    }

    fn value(&self, query: usize, key: f64) -> f64 {
        match self.similarity {
            Similarity::Cosine => (key.abs() / self.query_squares[query]).sqrt().copysign(key),
            Similarity::Dot => key * self.scale * self.scale,
            Similarity::Euclidean => key * self.scale * self.scale * 0.5,
        }
    }

    fn value_slack(&self) -> f64 {
        64.0 * (self.queries.dim() as f64 + 8.0) * UNIT64
    }

    fn settled(&self, _screened: f32) -> Option<f64> {
        None
    }

    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>) {
        let first = keys.len();
        if !self.sums_in_place(pairs, keys) {
            keys.truncate(first);
            let mut q = std::mem::take(&mut scratch.query);
            for of_query in pairs.chunk_by(|a, b| a.0 == b.0) {
                self.widen(Side::Query, of_query[0].0 as usize, &mut q);
                for &(_, g) in of_query {
                    self.widen(Side::Gallery, g as usize, &mut scratch.other);
                    keys.push(match self.similarity {
                        Similarity::Euclidean => self.kernel.distance64(&q, &scratch.other),
                        _ => self.kernel.dot64(&q, &scratch.other),
                    });
                }
            }
            scratch.query = q;
        }
        let squares = self.squares(Side::Gallery);
        for (key, &(_, g)) in keys[first..].iter_mut().zip(pairs) {
            // Adding zero makes minus zero, which is tied with zero, the same.
            *key = 0.0
                + match self.similarity {
                    Similarity::Cosine => cosine_key(*key, squares[g as usize]),
                    Similarity::Dot => *key,
                    Similarity::Euclidean => -*key,
                };
        }
    }

    fn bytes(&self) -> usize {
        self.queries.bytes() + if self.gallery_squares.is_some() { self.gallery.bytes() } else { 0 }
    }
}
