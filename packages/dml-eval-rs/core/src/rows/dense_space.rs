//! Implements [`Space`] for real vectors, with keys for pairs and in tables.

use crate::control::Control;
use crate::error::Result;
use crate::exact::{UNIT64, padded_len};
use crate::kernel::{Kernel, Sum};
use crate::rows::dense::Dense;
use crate::rows::dense_packing::DensePacking;
use crate::rows::dense_values::DenseValues;
use crate::rows::key_table::{Shape, fill};
use crate::rows::matrix::Source;
use crate::rows::packing::Goal;
use crate::rows::similarity::Similarity;
use crate::rows::space::{Scratch, Space, Values};
use crate::side::Side;

impl<'a> Space for Dense<'a> {
    type Packing<'s>
        = DensePacking<'s, 'a>
    where
        Self: 's;

    fn rows(&self, side: Side) -> usize {
        self.rows(side)
    }

    fn kernel(&self) -> &'static Kernel {
        self.kernel
    }

    fn is_own_gallery(&self) -> bool {
        self.is_own_gallery()
    }

    fn packing(&self, goal: &Goal<'_>, control: &Control) -> Result<DensePacking<'_, 'a>> {
        DensePacking::new(self, goal, control)
    }

    fn value(&self, query: usize, key: f64) -> f64 {
        self.value(query, key)
    }

    fn value_slack(&self) -> f64 {
        64.0 * (self.queries.dim() as f64 + 8.0) * UNIT64
    }

    fn key_of_screened(&self, _screened: f64) -> Option<f64> {
        None
    }

    fn keys(&self, pairs: &[(u32, u32)], scratch: &mut Scratch, keys: &mut Vec<f64>) -> Result<()> {
        let first = keys.len();
        self.sums(pairs, scratch, keys)?;
        for (key, &(_, g)) in keys[first..].iter_mut().zip(pairs) {
            *key = self.key(g, *key);
        }
        Ok(())
    }

    fn scores(
        &self,
        pairs: &[(u32, u32)],
        scratch: &mut Scratch,
        scores: &mut Vec<f64>,
    ) -> Result<()> {
        self.scores(pairs, scratch, scores)
    }

    fn value_of_score(&self, score: f64) -> f64 {
        self.value_of_score(score)
    }

    fn key_table(
        &self,
        queries: &[u32],
        items: &[u32],
        keys: &mut [f64],
        control: &Control,
    ) -> Result<()> {
        let sum = match self.similarity {
            Similarity::Euclidean => Sum::Distance,
            _ if self.queries.is_double() || self.gallery.is_double() => Sum::Dot64,
            _ => Sum::Dot32,
        };
        let products = &self.kernel.exact;
        let steps = padded_len(self.queries.dim());
        let squares =
            if self.similarity == Similarity::Cosine { self.squares(Side::Gallery) } else { &[] };
        let item_square = |item: u32| if squares.is_empty() { 0.0 } else { squares[item as usize] };
        let convert = |squares: &[f64], sums: &[f64], keys: &mut [f64]| {
            self.kernel.vectorize(
                #[inline(always)]
                || {
                    for ((key, square), sum) in keys.iter_mut().zip(squares).zip(sums) {
                        *key = self.key_of(*square, *sum);
                    }
                },
            );
        };
        fill(
            Shape { rows: products.rows, columns: products.columns, steps, tiles: 8 },
            (queries, items),
            |side, rows, width, panel| {
                self.pack(side, rows.iter().map(|row| *row as usize), width, panel)
            },
            |rows, columns, tile: &mut [f64]| self.kernel.exact_tile(sum, rows, columns, tile),
            (item_square, convert),
            keys,
            control,
        )
    }

    fn score_table(
        &self,
        queries: &[u32],
        items: &[u32],
        scores: &mut [f64],
        control: &Control,
    ) -> Result<()> {
        self.score_table(queries, items, scores, control)
    }

    fn values(&self) -> Result<Option<impl Values>> {
        DenseValues::new(self).map(Some)
    }

    fn listed_share(&self) -> f64 {
        0.1 + self.queries.dim() as f64 / 3000.0
    }

    fn bytes(&self) -> usize {
        self.queries.bytes() + if self.gallery_squares.is_some() { self.gallery.bytes() } else { 0 }
    }
}
