//! Computes scores: a float64 number per pair that can be compared across queries and is symmetric
//! in both items.
//!
//! Keys rank the gallery for a single query; scores rank all pairs. Dot products and negative
//! squared distances are used as keys and as scores. The score for the cosine is √(dot² /
//! (|q|²·|g|²)), with the sign of dot. `exact` defines the order of sums.

use std::ops::Range;

use rayon::prelude::*;

use super::Dense;
use crate::control::Control;
use crate::error::Result;
use crate::exact::{pack_lanes, padded_len};
use crate::kernel::Sum;
use crate::memory::Grow;
use crate::rows::key_table::{Shape, fill};
use crate::rows::matrix::Source;
use crate::rows::panels::Panels;
use crate::rows::similarity::Similarity;
use crate::rows::space::Scratch;
use crate::side::Side;

impl Dense<'_> {
    /// Whether the queries are also the gallery.
    pub(crate) fn is_own_gallery(&self) -> bool {
        self.gallery_squares.is_none()
    }

    /// Appends the scores of `pairs` (query, gallery item) to `scores`. For speed, pairs of a query
    /// should be adjacent.
    pub(crate) fn scores(
        &self,
        pairs: &[(u32, u32)],
        scratch: &mut Scratch,
        scores: &mut Vec<f64>,
    ) -> Result<()> {
        let first = scores.len();
        self.sums(pairs, scratch, scores)?;
        for (score, &(q, g)) in scores[first..].iter_mut().zip(pairs) {
            *score = self.score(q, g, *score);
        }
        Ok(())
    }

    /// Fills `scores` with the scores of all pairs of `queries` and `items`, query by query. When
    /// cancelled, leaves the table incomplete.
    pub(crate) fn score_table(
        &self,
        queries: &[u32],
        items: &[u32],
        scores: &mut [f64],
        control: &Control,
    ) -> Result<()> {
        let (sum, steps) = (self.score_sum(), padded_len(self.queries.dim()));
        let products = &self.kernel.exact;
        fill(
            Shape { rows: products.rows, columns: products.columns, steps, tiles: 8 },
            (queries, items),
            |side, rows, width, panel| {
                self.pack(side, rows.iter().map(|row| *row as usize), width, panel)
            },
            |rows, columns, tile: &mut [f64]| self.kernel.exact_tile(sum, rows, columns, tile),
            (|_| (), |_: &[()], sums: &[f64], scores: &mut [f64]| scores.copy_from_slice(sums)),
            scores,
            control,
        )?;
        scores.par_chunks_mut(items.len()).zip(queries).for_each(|(line, &query)| {
            for (score, &item) in line.iter_mut().zip(items) {
                *score = self.score(query, item, *score);
            }
        });
        Ok(())
    }

    /// Packs a range of rows for [`score_tile`](Self::score_tile).
    pub(crate) fn score_panels(&self, side: Side, rows: Range<usize>) -> Result<Panels<f64>> {
        let products = &self.kernel.exact;
        let width = if side == Side::Query { products.rows } else { products.columns };
        let encode = |part: Range<usize>, panel: &mut [f64], _: &mut [()]| {
            self.pack(side, rows.start + part.start..rows.start + part.end, width, panel)
        };
        Panels::load(rows.len(), width, padded_len(self.queries.dim()), Vec::new(), encode)
            .map(|(panels, _)| panels)
    }

    /// Writes the scores between a panel of queries and a panel of items to the first tile in
    /// `tile`, a row per query. `tile` must have room for eight tiles, because the sums use a tile
    /// per lane.
    #[inline]
    pub(crate) fn score_tile(
        &self,
        (queries, query_panel): (Range<usize>, &[f64]),
        (items, item_panel): (Range<usize>, &[f64]),
        tile: &mut [f64],
    ) {
        self.kernel.exact_tile(self.score_sum(), query_panel, item_panel, tile);
        let lines = tile.chunks_exact_mut(self.kernel.exact.columns).zip(queries);
        // Closures must be short, so that they are compiled for the kernel's instruction set.
        match self.similarity {
            Similarity::Cosine => {
                let item_squares = &self.squares(Side::Gallery)[items];
                for (line, query) in lines {
                    let first = self.squares(Side::Query)[query];
                    self.kernel.vectorize(|| {
                        let scores = line.iter_mut().zip(item_squares);
                        scores.for_each(|(sum, second)| *sum = cosine(*sum, first * second))
                    });
                }
            }
            Similarity::Dot => {
                lines.for_each(|(line, _)| line.iter_mut().for_each(|sum| *sum += 0.0))
            }
            Similarity::Euclidean => {
                lines.for_each(|(line, _)| line.iter_mut().for_each(|sum| *sum = 0.0 - *sum))
            }
        }
    }

    fn score_sum(&self) -> Sum {
        match self.similarity {
            Similarity::Euclidean => Sum::Distance,
            _ if self.queries.is_double() || self.gallery.is_double() => Sum::Dot64,
            _ => Sum::Dot32,
        }
    }

    /// Packs rows into a panel of `width` lanes for exact tiles.
    pub(crate) fn pack(
        &self,
        side: Side,
        rows: impl Iterator<Item = usize>,
        width: usize,
        panel: &mut [f64],
    ) -> Result<()> {
        let mut widened = Vec::new();
        for (lane, row) in rows.enumerate() {
            self.widen(side, row, &mut widened)?;
            widened.try_resize(padded_len(widened.len()), 0.0)?;
            pack_lanes(&widened, width, &mut panel[lane..]);
        }
        Ok(())
    }

    /// Converts a score to the screen's units.
    pub(crate) fn value_of_score(&self, score: f64) -> f64 {
        match self.similarity {
            Similarity::Cosine => score,
            Similarity::Dot => score * self.scale * self.scale,
            Similarity::Euclidean => score * self.scale * self.scale * 0.5,
        }
    }

    /// Converts a value in the screen's units to a score.
    pub(crate) fn score_of_value(&self, value: f64) -> f64 {
        match self.similarity {
            Similarity::Cosine => value,
            Similarity::Dot => value / self.scale / self.scale,
            Similarity::Euclidean => value / self.scale / self.scale * 2.0,
        }
    }

    /// Returns the score for the sum of a pair.
    #[inline(always)]
    fn score(&self, query: u32, item: u32, sum: f64) -> f64 {
        // See `key_of` for why zero is added.
        0.0 + match self.similarity {
            Similarity::Cosine => {
                let squares = self.squares(Side::Query)[query as usize]
                    * self.squares(Side::Gallery)[item as usize];
                cosine(sum, squares)
            }
            Similarity::Dot => sum,
            Similarity::Euclidean => -sum,
        }
    }
}

/// Returns the cosine for a sum of products and the product of both squared lengths. See `key_of`
/// for why zero is added.
#[inline(always)]
fn cosine(sum: f64, squares: f64) -> f64 {
    0.0 + (sum * sum / squares).sqrt().copysign(sum)
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::exact::{dot, squared_distance};
    use crate::kernel::{names, select};
    use crate::random::Random;
    use crate::rows::dense::Precision;
    use crate::rows::matrix::Matrix;

    /// Computes a score by definition, from float64 rows.
    fn reference(q: &[f64], g: &[f64], similarity: Similarity) -> f64 {
        match similarity {
            Similarity::Cosine => {
                let product = dot(q, g);
                (product * product / (dot(q, q) * dot(g, g))).sqrt().copysign(product) + 0.0
            }
            Similarity::Dot => dot(q, g) + 0.0,
            Similarity::Euclidean => 0.0 - squared_distance(q, g),
        }
    }

    #[test]
    fn scores_of_pairs_and_tables_are_those_of_the_definition_on_every_kernel() {
        let mut random = Random::new(3);
        for dim in [1, 5, 8, 19] {
            let x = Array2::from_shape_simple_fn((41, dim), || (random.uniform() - 0.5) as f32);
            let wide = x.mapv(f64::from);
            let indices: Vec<u32> = (0..41).collect();
            for similarity in [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean] {
                let expected = |q: usize, g: usize| {
                    reference(&wide.row(q).to_vec(), &wide.row(g).to_vec(), similarity).to_bits()
                };
                for name in names() {
                    for rows in [Matrix::F32(x.view()), Matrix::F64(wide.view())] {
                        // For the cosine, float64 rows are scaled by powers of two, which must not
                        // change scores.
                        let control = Control::default();
                        let kernel = select(Some(name)).unwrap();
                        let space = Dense::new(
                            rows,
                            None,
                            similarity,
                            Precision::Float32,
                            kernel,
                            &control,
                        )
                        .unwrap();
                        let mut table = vec![0.0; 41 * 41];
                        space.score_table(&indices, &indices, &mut table, &control).unwrap();
                        let pairs: Vec<(u32, u32)> =
                            (0..41 * 41).map(|i| (i / 41, i % 41)).collect();
                        let mut scores = Vec::new();
                        space.scores(&pairs, &mut Scratch::default(), &mut scores).unwrap();
                        for (at, (q, g)) in pairs.into_iter().enumerate() {
                            assert_eq!(table[at].to_bits(), expected(q as usize, g as usize));
                            assert_eq!(scores[at].to_bits(), expected(q as usize, g as usize));
                            assert_eq!(
                                expected(q as usize, g as usize),
                                expected(g as usize, q as usize)
                            );
                        }
                    }
                }
            }
        }
    }
}
