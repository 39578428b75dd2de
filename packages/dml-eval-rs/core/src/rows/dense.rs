//! Real vectors under a similarity, and the keys that order them.

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::exact::{PAIRS, cosine_key, packed_position, padded_len};
use crate::kernel::{Kernel, Sum, Word};
use crate::rows::dense_packing::DensePacking;
use crate::rows::key_table::{Shape, fill};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::packing::Goal;
use crate::rows::scaling::{rescale, scale_below_one};
use crate::rows::similarity::Similarity;
use crate::rows::space::{Scratch, Space};
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

    pub(super) fn dim(&self) -> usize {
        self.queries.dim()
    }

    /// Whether the queries are their own gallery.
    pub(super) fn is_own_gallery(&self) -> bool {
        self.gallery_squares.is_none()
    }

    pub(super) fn word(&self) -> Word {
        self.word
    }

    pub(super) fn similarity(&self) -> Similarity {
        self.similarity
    }

    /// Copies a row in the units of the screen.
    pub(super) fn scale_row(&self, side: Side, row: usize, out: &mut Vec<f64>) {
        self.widen(side, row, out);
        let factor = match self.similarity {
            Similarity::Cosine => 1.0 / self.squares(side)[row].sqrt(),
            Similarity::Dot | Similarity::Euclidean => self.scale,
        };
        for v in out {
            *v *= factor;
        }
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
pub(super) const UNIT32: f64 = 1.0 / (1 << 24) as f64;
pub(super) const UNIT64: f64 = 1.0 / (1u64 << 53) as f64;

impl<'a> Space for Dense<'a> {
    type Packing<'s>
        = DensePacking<'s, 'a>
    where
        Self: 's;

    fn rows(&self, side: Side) -> usize {
        self.matrix(side).rows()
    }

    fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    fn packing(&self, goal: &Goal<'_>, control: &Control) -> Result<DensePacking<'_, 'a>> {
        DensePacking::new(self, goal, control)
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

    fn key_of_screened(&self, _screened: f64) -> Option<f64> {
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
