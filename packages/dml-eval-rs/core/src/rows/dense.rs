//! Real vectors under a similarity: keys, packing, and the error bound of the screen.
//!
//! With rows x scaled (cosine: to length 1; else by one power of two so that no row is longer than 1), ũ the packed row of u,
//! r ≥ |ũ − u| and n ≥ |u|:
//!
//! |fl(ũᵢ·ũⱼ) − uᵢ·uⱼ| ≤ rᵢ(nⱼ + rⱼ) + nᵢ rⱼ + γ (nᵢ + rᵢ)(nⱼ + rⱼ)
//!
//! by Cauchy–Schwarz, γ being the bound of a float32 sum in any order. docs/internals/evaluator-exactness.md derives it, and the
//! terms for biases, underflow, and the rounding of the keys.

mod scores;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::exact::{PAIRS, cosine_key, packed_position, padded_len};
use crate::kernel::{Kernel, Sum, Word};
use crate::rows::key_table::{Shape, fill};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::scaling::{rescale, scale_below_one};
use crate::rows::similarity::Similarity;
use crate::rows::space::{Extent, Scratch, Space};
use crate::rows::validation::{rescales, validate};
use crate::side::Side;

/// The precision of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Float32 products, which leave almost no comparison open.
    Float32,
    /// Bfloat16 products where the CPU has them: twice as fast, and a few comparisons in a thousand stay open.
    BFloat16,
}

impl std::str::FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "float32" => Ok(Precision::Float32),
            "bfloat16" => Ok(Precision::BFloat16),
            _ => argument(format!("unknown precision {name:?}; expected float32 or bfloat16")),
        }
    }
}

impl Precision {
    /// Chooses the faster screen for an evaluation with these labels: many positives make many thresholds, and a coarse screen
    /// leaves too many values within their margins.
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
    /// A power of two that makes the longest row at most 1; 1 under the cosine.
    scale: f64,
}

impl<'a> Dense<'a> {
    /// Reads the rows once and validates them. Without a gallery the queries are their own gallery.
    pub fn new(
        queries: Matrix<'a>,
        gallery: Option<Matrix<'a>>,
        similarity: Similarity,
        precision: Precision,
        kernel: &'static Kernel,
        control: &Control,
    ) -> Result<Self> {
        if queries.dim() == 0 || queries.rows() == 0 {
            let (rows, columns, expected) = (queries.rows(), queries.dim(), "at least one row and one column".into());
            return Err(Error::Shape { side: Side::Query, rows, columns, expected });
        }
        if let Some(g) = &gallery
            && (g.dim() != queries.dim() || g.rows() == 0)
        {
            let expected = format!("at least one row, and {} columns, as in the queries", queries.dim());
            return Err(Error::Shape { side: Side::Gallery, rows: g.rows(), columns: g.dim(), expected });
        }
        let most = gallery.as_ref().map_or(0, Source::rows).max(queries.rows());
        if u32::try_from(most).is_err() {
            return argument(format!("there are {most} rows; expected fewer than 2^32: evaluate them in parts"));
        }
        let query_squares = validate(&queries, Side::Query, similarity, control)?;
        let gallery_squares = gallery.as_ref().map(|g| validate(g, Side::Gallery, similarity, control)).transpose()?;
        let longest =
            query_squares.iter().chain(gallery_squares.iter().flatten()).fold(0.0f64, |m, s| m.max(*s)).sqrt();
        let scale = match similarity {
            Similarity::Cosine => 1.0,
            Similarity::Dot | Similarity::Euclidean => scale_below_one(longest),
        };
        let word = match precision {
            Precision::BFloat16 if kernel.has_bfloat16() => Word::BFloat16Pair,
            _ => Word::Float32,
        };
        let gallery = gallery.unwrap_or(queries);
        Ok(Dense { queries, gallery, similarity, kernel, word, query_squares, gallery_squares, scale })
    }

    /// Computes the similarity from a key: the cosine, the dot product, or minus the squared distance.
    pub fn similarity_of_key(&self, query: usize, key: f64) -> f32 {
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

    /// Computes sums of products (or squared distances) from float32 rows in place; returns false if a row has another type.
    fn sum_in_place(&self, pairs: &[(u32, u32)], sums: &mut Vec<f64>) -> bool {
        for together in pairs.chunks(PAIRS) {
            let (mut q, mut g) = ([&[0.0f32; 0][..]; PAIRS], [&[0.0f32; 0][..]; PAIRS]);
            for (slot, &(query, item)) in together.iter().enumerate() {
                match (self.queries.slice32(query as usize), self.gallery.slice32(item as usize)) {
                    (Some(query), Some(item)) => (q[slot], g[slot]) = (query, item),
                    _ => return false,
                }
            }
            // A short chunk repeats its first pair.
            for slot in together.len()..PAIRS {
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

    /// Computes the key from a sum over a query and this item.
    fn key(&self, item: u32, sum: f64) -> f64 {
        // Adding zero turns minus zero, which is tied with zero, into zero.
        0.0 + match self.similarity {
            Similarity::Cosine => cosine_key(sum, self.squares(Side::Gallery)[item as usize]),
            Similarity::Dot => sum,
            Similarity::Euclidean => -sum,
        }
    }

    fn widen(&self, side: Side, row: usize, out: &mut Vec<f64>) {
        out.resize(self.queries.dim(), 0.0);
        self.matrix(side).widen(row, out);
        if rescales(self.matrix(side), self.similarity) {
            rescale(out);
        }
    }
}

/// Half a unit in the last place of float32 and of float64, relative.
const UNIT32: f64 = 1.0 / (1 << 24) as f64;
const UNIT64: f64 = 1.0 / (1u64 << 53) as f64;

/// Rounds to the nearest bfloat16, ties to even; for magnitudes of at most 1.
fn bfloat16(x: f32) -> f32 {
    let bits = x.to_bits();
    f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000)
}

/// Rounds x·factor into `packed`; returns the squared lengths of x·factor and of the rounding error.
fn round(x: &[f64], factor: f64, packed: &mut Vec<f32>, narrow: impl Fn(f32) -> f32) -> (f64, f64) {
    // Sums in lanes, which do not wait for one another.
    const LANES: usize = 8;
    let (mut norm2, mut residual2) = ([0.0; LANES], [0.0; LANES]);
    packed.resize(x.len(), 0.0);
    let mut take = |x: &[f64], packed: &mut [f32]| {
        for (((v, out), norm2), residual2) in x.iter().zip(packed).zip(&mut norm2).zip(&mut residual2) {
            let exact = v * factor;
            *out = narrow(exact as f32);
            let difference = f64::from(*out) - exact;
            *norm2 += exact * exact;
            *residual2 += difference * difference;
        }
    };
    let (chunks, rest) = x.as_chunks::<LANES>();
    let (packed_chunks, packed_rest) = packed.as_chunks_mut::<LANES>();
    for (x, packed) in chunks.iter().zip(packed_chunks) {
        take(x, packed);
    }
    take(rest, packed_rest);
    (norm2.iter().sum(), residual2.iter().sum())
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

    fn encode(&self, side: Side, row: usize, scratch: &mut Scratch, words: &mut [u32]) -> Extent {
        self.widen(side, row, &mut scratch.other);
        let factor = match self.similarity {
            Similarity::Cosine => 1.0 / self.squares(side)[row].sqrt(),
            _ => self.scale,
        };
        let (norm2, residual2) = if self.word == Word::BFloat16Pair {
            let sizes = round(&scratch.other, factor, &mut scratch.packed, bfloat16);
            for (word, pair) in words.iter_mut().zip(scratch.packed.chunks(2)) {
                let high = pair.get(1).map_or(0, |v| v.to_bits());
                *word = high | (pair[0].to_bits() >> 16);
            }
            sizes
        } else {
            let sizes = round(&scratch.other, factor, &mut scratch.packed, |v| v);
            for (word, v) in words.iter_mut().zip(&scratch.packed) {
                *word = v.to_bits();
            }
            sizes
        };
        let norm = norm2.sqrt();
        let bias = if self.biased() { norm2 / 2.0 } else { 0.0 };
        // The scaled row was rounded before, and so were these sums.
        let rounding = norm * (self.queries.dim() as f64 + 8.0) * 2.0 * UNIT64;
        Extent { norm, residual: residual2.sqrt() + rounding, bias }
    }

    fn margin(&self, row: Extent, column: Extent) -> f64 {
        let dim = self.queries.dim() as f64;
        // Two roundings a term, enough for kernels with and without fused terms: docs/internals/evaluator-exactness.md.
        let operations = (2.0 * dim + 8.0) * UNIT32;
        if operations >= 0.5 {
            return f64::INFINITY;
        }
        let gamma = operations / (1.0 - operations);
        let lengths = (row.norm + row.residual) * (column.norm + column.residual);
        let packing = row.residual * (column.norm + column.residual) + row.norm * column.residual;
        let biasing = if self.biased() { 8.0 * UNIT32 * (lengths + row.bias + column.bias) } else { 0.0 };
        // The rounding of both keys, the screened item's and the positive's, and the underflow of their products, at most
        // dim · 2^−1074 · scale² ≤ dim · 2^−76; no scaled row is longer than 1.
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

    fn key_of_screened(&self, _screened: f32) -> Option<f64> {
        None
    }

    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>) {
        let first = keys.len();
        if !self.sum_in_place(pairs, keys) {
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
        for (key, &(_, g)) in keys[first..].iter_mut().zip(pairs) {
            *key = self.key(g, *key);
        }
    }

    fn key_table(&self, queries: &[u32], items: &[u32], keys: &mut [f64], control: &Control) -> Result<()> {
        let sum = match self.similarity {
            Similarity::Euclidean => Sum::Distance,
            _ if self.queries.is_double() || self.gallery.is_double() => Sum::Dot64,
            _ => Sum::Dot32,
        };
        let products = &self.kernel.exact;
        let steps = padded_len(self.queries.dim());
        fill(
            Shape { rows: products.rows, columns: products.columns, steps, tiles: 8 },
            (queries, items),
            |side, row, scratch, words| {
                self.widen(side, row, &mut scratch.other);
                for (i, v) in scratch.other.iter().enumerate() {
                    words[packed_position(i, steps)] = *v;
                }
            },
            |rows, columns, tile: &mut [f64]| self.kernel.exact_tile(sum, rows, columns, tile),
            |item, sum| self.key(item, sum),
            keys,
            control,
        )
    }

    fn items_per_positive(&self) -> usize {
        50
    }

    fn bytes(&self) -> usize {
        self.queries.bytes() + if self.gallery_squares.is_some() { self.gallery.bytes() } else { 0 }
    }
}
