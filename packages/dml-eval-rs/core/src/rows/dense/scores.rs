//! Scores: one float64 number for each pair, comparable across queries and symmetric in its two items.
//!
//! A key orders the gallery for one query. A score orders all pairs: the dot product and minus the squared distance are scores
//! already; the cosine's is the root of dot·|dot| / (|q|²·|g|²), with dot's sign. All sums are those of the stated order.

use rayon::prelude::*;

use super::Dense;
use crate::control::Control;
use crate::error::Result;
use crate::exact::{pack_lanes, padded_len};
use crate::kernel::Sum;
use crate::rows::key_table::{Shape, fill, pack_rows};
use crate::rows::matrix::Source;
use crate::rows::similarity::Similarity;
use crate::rows::space::Scratch;
use crate::side::Side;

impl Dense<'_> {
    /// Whether the queries are their own gallery.
    pub(crate) fn is_own_gallery(&self) -> bool {
        self.gallery_squares.is_none()
    }

    /// Appends the scores of some pairs (query, gallery item) to `scores`; fastest where pairs of one query adjoin.
    pub(crate) fn scores(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, scores: &mut Vec<f64>) {
        let first = scores.len();
        self.sums(pairs, scratch, scores);
        for (score, &(q, g)) in scores[first..].iter_mut().zip(pairs) {
            *score = self.score(q, g, *score);
        }
    }

    /// Fills `scores` with those of all pairs of these queries and gallery items, query by query. After a cancellation the table
    /// is incomplete.
    pub(crate) fn score_table(
        &self,
        queries: &[u32],
        items: &[u32],
        scores: &mut [f64],
        control: &Control,
    ) -> Result<()> {
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
            |side, rows, width| {
                pack_rows(rows, width, steps, |row, scratch, words| {
                    self.widen(side, row, &mut scratch.other);
                    pack_lanes(&scratch.other, words);
                })
            },
            |rows, columns, tile: &mut [f64]| self.kernel.exact_tile(sum, rows, columns, tile),
            |_, sums, scores| scores.copy_from_slice(sums),
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

    /// Converts a score to the units of the screen.
    pub(crate) fn value_of_score(&self, score: f64) -> f64 {
        match self.similarity {
            Similarity::Cosine => score,
            Similarity::Dot => score * self.scale * self.scale,
            Similarity::Euclidean => score * self.scale * self.scale * 0.5,
        }
    }

    /// Converts a value of the screen to the units of scores.
    pub(crate) fn score_of_value(&self, value: f64) -> f64 {
        match self.similarity {
            Similarity::Cosine => value,
            Similarity::Dot => value / self.scale / self.scale,
            Similarity::Euclidean => value / self.scale / self.scale * 2.0,
        }
    }

    /// Computes the score from a sum over a query and an item.
    #[inline(always)]
    fn score(&self, query: u32, item: u32, sum: f64) -> f64 {
        // Adding zero turns minus zero, which is tied with zero, into zero.
        0.0 + match self.similarity {
            Similarity::Cosine => {
                let squares = self.squares(Side::Query)[query as usize] * self.squares(Side::Gallery)[item as usize];
                (sum * sum / squares).sqrt().copysign(sum)
            }
            Similarity::Dot => sum,
            Similarity::Euclidean => -sum,
        }
    }
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

    /// Computes the score by its definition, from rows of float64.
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
                let expected =
                    |q: usize, g: usize| reference(&wide.row(q).to_vec(), &wide.row(g).to_vec(), similarity).to_bits();
                for name in names() {
                    for rows in [Matrix::F32(x.view()), Matrix::F64(wide.view())] {
                        // Under the cosine, float64 rows are scaled by powers of two, which change no score.
                        let control = Control::default();
                        let kernel = select(Some(name)).unwrap();
                        let space = Dense::new(rows, None, similarity, Precision::Float32, kernel, &control).unwrap();
                        let mut table = vec![0.0; 41 * 41];
                        space.score_table(&indices, &indices, &mut table, &control).unwrap();
                        let pairs: Vec<(u32, u32)> = (0..41 * 41).map(|i| (i / 41, i % 41)).collect();
                        let mut scores = Vec::new();
                        space.scores(&pairs, &mut Scratch::default(), &mut scores);
                        for (at, (q, g)) in pairs.into_iter().enumerate() {
                            assert_eq!(table[at].to_bits(), expected(q as usize, g as usize));
                            assert_eq!(scores[at].to_bits(), expected(q as usize, g as usize));
                            assert_eq!(expected(q as usize, g as usize), expected(g as usize, q as usize));
                        }
                    }
                }
            }
        }
    }
}
