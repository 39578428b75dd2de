//! Real vectors under a similarity, and the keys used to rank vectors.

pub(crate) mod few;
mod scores;

use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::exact::{PAIRS, cosine_key};
use crate::kernel::{Kernel, Word};
use crate::memory::Grow;
use crate::rows::byte_rows::ByteRow;
use crate::rows::matrix::{Matrix, Source};
use crate::rows::scaling::{rescale, scale_below_one};
use crate::rows::similarity::Similarity;
use crate::rows::space::Scratch;
use crate::rows::validation::{rescales, validate};
use crate::side::Side;

/// The precision of a screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Screen with float32 products, which decide almost all comparisons.
    Float32,
    /// Screen with products of 16-bit numbers if faster: int16 on x86-64, bfloat16 on aarch64.
    /// These leave more comparisons open. Products of bytes are exact.
    SixteenBit,
}

impl std::str::FromStr for Precision {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "float32" => Ok(Precision::Float32),
            "16-bit" => Ok(Precision::SixteenBit),
            _ => argument(format!("unknown precision {name:?}; expected float32 or 16-bit")),
        }
    }
}

impl Precision {
    /// Chooses the faster precision, given the numbers of positives and queries. If `every_rank`,
    /// all ranks matter, so all positives are thresholds. If a query has too many thresholds, a
    /// coarse screen leaves too many values within the margins (measured in
    /// docs/internals/evaluator-speed.md).
    pub fn for_positives(
        positives: usize,
        queries: usize,
        every_rank: bool,
        kernel: &Kernel,
    ) -> Self {
        let each = positives / queries.max(1);
        let is_faster = if kernel.has_int16() {
            each < MANY_FOR_INT16
        } else {
            each < MANY_FOR_BFLOAT16 && !every_rank
        };
        if is_faster { Precision::SixteenBit } else { Precision::Float32 }
    }
}

/// From this number of positives per query on, float32 is faster: earlier for bfloat16, because
/// margins are ten times as wide.
const MANY_FOR_INT16: usize = 96;
const MANY_FOR_BFLOAT16: usize = 24;

/// The largest number of columns with which rows are screened as int16. Panels of int16 rows are
/// never narrow.
const LONGEST_INT16: usize = 1 << 16;
/// Rows with more columns aren't screened as bytes, since sums must stay below 2³¹.
const LONGEST_BYTES: usize = 1 << 14;

/// Prefetch the row of the item this number of pairs ahead: items of pairs are far apart.
const AHEAD: usize = 8;

/// Two validated matrices, and the similarity used to compare rows.
pub struct Dense<'a> {
    pub(super) queries: Matrix<'a>,
    pub(super) gallery: Matrix<'a>,
    pub(super) similarity: Similarity,
    pub(super) kernel: &'static Kernel,
    word: Word,
    /// Whether whole rows are screened by exact products of bytes.
    multiplies_bytes: bool,
    pub(super) query_squares: Vec<f64>,
    pub(super) gallery_squares: Option<Vec<f64>>,
    /// The power of two that scales the longest row to a length of at most 1; for the cosine, 1.
    scale: f64,
}

impl<'a> Dense<'a> {
    /// Reads and validates the rows once. If `gallery` is `None`, the queries are also the gallery.
    pub fn new(
        queries: Matrix<'a>,
        gallery: Option<Matrix<'a>>,
        similarity: Similarity,
        precision: Precision,
        kernel: &'static Kernel,
        control: &Control,
    ) -> Result<Self> {
        Dense::unread(queries, gallery, similarity, precision, kernel, control)?.read(control)
    }

    /// Reads and validates only the queries; call [`Unread::read`] for the gallery.
    pub(crate) fn unread(
        queries: Matrix<'a>,
        gallery: Option<Matrix<'a>>,
        similarity: Similarity,
        precision: Precision,
        kernel: &'static Kernel,
        control: &Control,
    ) -> Result<Unread<'a>> {
        if queries.dim() == 0 || queries.rows() == 0 {
            let (rows, columns, expected) =
                (queries.rows(), queries.dim(), "at least one row and one column".into());
            return Err(Error::Shape { side: Side::Query, rows, columns, expected });
        }
        if let Some(g) = &gallery
            && (g.dim() != queries.dim() || g.rows() == 0)
        {
            let expected =
                format!("at least one row, and {} columns to match the queries", queries.dim());
            return Err(Error::Shape {
                side: Side::Gallery,
                rows: g.rows(),
                columns: g.dim(),
                expected,
            });
        }
        let most = gallery.as_ref().map_or(0, Source::rows).max(queries.rows());
        if u32::try_from(most).is_err() {
            return argument(format!(
                "there are {most} rows; expected fewer than 2^32: evaluate the rows in parts"
            ));
        }
        let query_squares = validate(&queries, Side::Query, similarity, kernel, control)?;
        let word = match precision {
            Precision::SixteenBit if kernel.has_int16() && queries.dim() <= LONGEST_INT16 => {
                Word::Int16Pair
            }
            Precision::SixteenBit if kernel.has_bfloat16() => Word::BFloat16Pair,
            _ => Word::Float32,
        };
        let gallery_squares = gallery.is_some().then(Vec::new);
        let gallery = gallery.unwrap_or(queries);
        let multiplies_bytes = precision == Precision::SixteenBit
            && kernel.has_bytes()
            && queries.dim() <= LONGEST_BYTES
            && queries.bytes_of(0).is_some()
            && gallery.bytes_of(0).is_some();
        Ok(Unread(Dense {
            queries,
            gallery,
            similarity,
            kernel,
            word,
            multiplies_bytes,
            query_squares,
            gallery_squares,
            scale: 1.0,
        }))
    }

    /// Returns the similarity for a key: the cosine, the dot product, or minus the squared
    /// distance.
    pub fn similarity_of_key(&self, query: usize, key: f64) -> f32 {
        match self.similarity {
            Similarity::Cosine => self.value(query, key) as f32,
            _ => key as f32,
        }
    }

    /// Returns the value for a key of `query`.
    pub(super) fn value(&self, query: usize, key: f64) -> f64 {
        match self.similarity {
            Similarity::Cosine => (key.abs() / self.query_squares[query]).sqrt().copysign(key),
            Similarity::Dot => key * self.scale * self.scale,
            Similarity::Euclidean => key * self.scale * self.scale * 0.5,
        }
    }

    fn matrix(&self, side: Side) -> &Matrix<'a> {
        match side {
            Side::Query => &self.queries,
            Side::Gallery => &self.gallery,
        }
    }

    pub(super) fn squares(&self, side: Side) -> &[f64] {
        match (side, &self.gallery_squares) {
            (Side::Gallery, Some(squares)) => squares,
            _ => &self.query_squares,
        }
    }

    pub(super) fn rows(&self, side: Side) -> usize {
        self.matrix(side).rows()
    }

    pub(super) fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    /// Appends the sums of products (or squared differences) of `pairs` to `sums`. For speed, pairs
    /// of a query should be adjacent.
    pub(super) fn sums(
        &self,
        pairs: &[(u32, u32)],
        scratch: &mut Scratch,
        sums: &mut Vec<f64>,
    ) -> Result<()> {
        let first = sums.len();
        sums.try_resize(first + pairs.len(), 0.0)?;
        let sums = &mut sums[first..];
        if self.sum_in_place(pairs, sums) || self.sum_bytes(pairs, sums) {
            return Ok(());
        }
        let Scratch { query, other } = scratch;
        let same_query = |a: &(u32, u32), b: &(u32, u32)| a.0 == b.0;
        let mut sums = sums.iter_mut();
        for chunk in pairs.chunk_by(same_query) {
            self.widen(Side::Query, chunk[0].0 as usize, query)?;
            for (&(_, g), sum) in chunk.iter().zip(&mut sums) {
                self.widen(Side::Gallery, g as usize, other)?;
                *sum = match self.similarity {
                    Similarity::Euclidean => self.kernel.distance64(query, other),
                    _ => self.kernel.dot64(query, other),
                };
            }
        }
        Ok(())
    }

    /// Computes the sums from float32 rows in place, or returns false if a row is of a different
    /// type.
    fn sum_in_place(&self, pairs: &[(u32, u32)], sums: &mut [f64]) -> bool {
        for (at, (together, sums)) in pairs.chunks(PAIRS).zip(sums.chunks_mut(PAIRS)).enumerate() {
            let ahead = pairs.iter().skip(PAIRS * at + AHEAD).take(PAIRS);
            ahead.for_each(|pair| self.prefetch(Side::Gallery, pair.1 as usize));
            let (mut q, mut g) = ([&[0.0f32; 0][..]; PAIRS], [&[0.0f32; 0][..]; PAIRS]);
            for (slot, &(query, item)) in together.iter().enumerate() {
                match (self.queries.slice32(query as usize), self.gallery.slice32(item as usize)) {
                    (Some(query), Some(item)) => (q[slot], g[slot]) = (query, item),
                    _ => return false,
                }
            }
            // Repeat the first pair to fill a short chunk.
            for slot in together.len()..PAIRS {
                (q[slot], g[slot]) = (q[0], g[0]);
            }
            let found = match self.similarity {
                Similarity::Euclidean => self.kernel.distances32(q, g),
                _ => self.kernel.dots32(q, g),
            };
            sums.copy_from_slice(&found[..together.len()]);
        }
        true
    }

    /// Computes the sums from rows of bytes in place, or returns false if a row is of a different
    /// type.
    fn sum_bytes(&self, pairs: &[(u32, u32)], sums: &mut [f64]) -> bool {
        let is_distance = self.similarity == Similarity::Euclidean;
        self.kernel.vectorize(
            #[inline(always)]
            || {
                for (at, (&(query, item), sum)) in pairs.iter().zip(&mut *sums).enumerate() {
                    if let Some(ahead) = pairs.get(at + AHEAD) {
                        self.gallery.prefetch(ahead.1 as usize);
                    }
                    let query = self.queries.bytes_of(query as usize);
                    let (Some(query), Some(item)) = (query, self.gallery.bytes_of(item as usize))
                    else {
                        return false;
                    };
                    *sum = if is_distance { query.squared_distance(item) } else { query.dot(item) };
                }
                true
            },
        )
    }

    /// Prefetches a row into the caches if it exists.
    #[inline(always)]
    pub(super) fn prefetch(&self, side: Side, row: usize) {
        if row < self.rows(side) {
            self.matrix(side).prefetch(row);
        }
    }

    pub(crate) fn dim(&self) -> usize {
        self.queries.dim()
    }

    pub(super) fn word(&self) -> Word {
        self.word
    }

    pub(super) fn multiplies_bytes(&self) -> bool {
        self.multiplies_bytes
    }

    /// Returns a row in place. Both sides must consist of bytes.
    #[inline(always)]
    pub(super) fn bytes_of(&self, side: Side, row: usize) -> ByteRow<'_> {
        self.matrix(side).bytes_of(row).expect("the caller checks multiplies_bytes")
    }

    /// Whether the screen's words are less precise than float32.
    #[cfg(test)]
    pub(crate) fn has_coarse_words(&self) -> bool {
        self.word != Word::Float32
    }

    pub(super) fn similarity(&self) -> Similarity {
        self.similarity
    }

    /// Returns the factor that converts a row to the units of the screen.
    #[inline(always)]
    pub(super) fn scale_of(&self, side: Side, row: usize) -> f64 {
        match self.similarity {
            Similarity::Cosine => 1.0 / self.squares(side)[row].sqrt(),
            Similarity::Dot | Similarity::Euclidean => self.scale,
        }
    }

    /// Copies a row in the units of the screen.
    #[inline(always)]
    pub(super) fn scale_row(&self, side: Side, row: usize, out: &mut Vec<f64>) -> Result<()> {
        let factor = self.scale_of(side, row);
        if let Some(numbers) = self.matrix(side).slice32(row) {
            out.clear();
            return out.try_extend(numbers.iter().map(|v| f64::from(*v) * factor));
        }
        if let Some(bytes) = self.matrix(side).bytes_of(row) {
            out.try_resize(self.dim(), 0.0)?;
            let out = &mut out[..];
            bytes.for_each(|i, v| out[i] = v * factor);
            return Ok(());
        }
        self.widen(side, row, out)?;
        for v in out {
            *v *= factor;
        }
        Ok(())
    }

    /// Returns the key for a sum over a query and `item`.
    pub(super) fn key(&self, item: u32, sum: f64) -> f64 {
        self.key_of(
            if self.similarity == Similarity::Cosine {
                self.squares(Side::Gallery)[item as usize]
            } else {
                0.0
            },
            sum,
        )
    }

    /// Returns the key for the sum of a pair. `square` is the item's squared length, which only the
    /// cosine uses.
    #[inline(always)]
    pub(super) fn key_of(&self, square: f64, sum: f64) -> f64 {
        // Adding zero turns −0 into 0, so that the bits are equal; 0 and −0 are tied.
        0.0 + match self.similarity {
            Similarity::Cosine => cosine_key(sum, square),
            Similarity::Dot => sum,
            Similarity::Euclidean => -sum,
        }
    }

    /// Replaces sums over a query and items, which have these squared lengths, by keys.
    pub(crate) fn keys_of_sums(&self, squares: &[f64], sums: &mut [f64]) {
        self.kernel.vectorize(|| match self.similarity {
            Similarity::Cosine => {
                sums.iter_mut()
                    .zip(squares)
                    .for_each(|(sum, square)| *sum = 0.0 + cosine_key(*sum, *square));
            }
            Similarity::Dot => sums.iter_mut().for_each(|sum| *sum += 0.0),
            Similarity::Euclidean => sums.iter_mut().for_each(|sum| *sum = 0.0 - *sum),
        });
    }

    pub(super) fn widen(&self, side: Side, row: usize, out: &mut Vec<f64>) -> Result<()> {
        out.try_resize(self.queries.dim(), 0.0)?;
        self.matrix(side).widen(row, out);
        if self.is_rescaled(side) {
            rescale(out);
        }
        Ok(())
    }

    fn is_rescaled(&self, side: Side) -> bool {
        rescales(self.matrix(side), self.similarity)
    }
}

/// A space with a gallery that hasn't been read yet.
pub(crate) struct Unread<'a>(Dense<'a>);

impl<'a> Unread<'a> {
    /// Reads the gallery once and validates it.
    pub fn read(mut self, control: &Control) -> Result<Dense<'a>> {
        let Dense { similarity, kernel, .. } = self.0;
        if !self.0.is_own_gallery() {
            self.0.gallery_squares =
                Some(validate(&self.0.gallery, Side::Gallery, similarity, kernel, control)?);
        }
        let squares = self.0.query_squares.iter().chain(self.0.gallery_squares.iter().flatten());
        if similarity != Similarity::Cosine {
            self.0.scale = scale_below_one(squares.fold(0.0f64, |m, s| m.max(*s)).sqrt());
        }
        Ok(self.0)
    }
}
