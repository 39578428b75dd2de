//! Sums over a few queries and many gallery items, which are read as they lie in memory and never packed.

use super::Dense;
use crate::error::Result;
use crate::exact::PAIRS;
use crate::memory::{Grow, allocate, zeros};
use crate::rows::matrix::Source;
use crate::rows::similarity::Similarity;
use crate::side::Side;

/// A few queries, widened.
pub(crate) struct FewQueries {
    len: usize,
    numbers: Vec<f64>,
}

impl Dense<'_> {
    /// Widens all queries, which are few.
    pub(crate) fn few_queries(&self) -> Result<FewQueries> {
        let (len, mut buffer) = (self.rows(Side::Query), Vec::new());
        let mut numbers: Vec<f64> = zeros(len * self.dim())?;
        for (query, out) in numbers.chunks_exact_mut(self.dim()).enumerate() {
            self.widen(Side::Query, query, &mut buffer)?;
            out.copy_from_slice(&buffer);
        }
        Ok(FewQueries { len, numbers })
    }

    /// Computes the sums of consecutive items from the first on and all queries in the stated order, item by item.
    pub(crate) fn sums_with_few(&self, few: &FewQueries, first: usize, sums: &mut [f64]) -> Result<()> {
        let mut buffer = Vec::new();
        let mut in_place = allocate(few.len)?;
        in_place.try_extend((0..few.len).map_while(|row| self.queries.slice32(row)))?;
        for (start, sums) in (first..).step_by(PAIRS).zip(sums.chunks_mut(PAIRS * few.len)) {
            if self.sums_in_place(&in_place, start, sums).is_none() {
                for (row, sums) in (start..).zip(sums.chunks_exact_mut(few.len)) {
                    self.widen(Side::Gallery, row, &mut buffer)?;
                    for (sum, few) in sums.iter_mut().zip(few.numbers.chunks_exact(self.dim())) {
                        *sum = match self.similarity {
                            Similarity::Euclidean => self.kernel.distance64(few, &buffer),
                            Similarity::Cosine | Similarity::Dot => self.kernel.dot64(few, &buffer),
                        };
                    }
                }
            }
        }
        Ok(())
    }

    /// Computes the sums of float32 rows from one on in place; `None` if a row has another type, or a query is not in place.
    fn sums_in_place(&self, few: &[&[f32]], start: usize, sums: &mut [f64]) -> Option<()> {
        if few.len() < self.rows(Side::Query) {
            return None;
        }
        // Fewer rows repeat the last.
        let last = sums.len() / few.len() - 1;
        let row = |i: usize| self.gallery.slice32(start + i.min(last));
        let together: [&[f32]; PAIRS] = [row(0)?, row(1)?, row(2)?, row(3)?];
        for (i, of_few) in few.iter().enumerate() {
            let found = match self.similarity {
                Similarity::Euclidean => self.kernel.distances32([of_few; PAIRS], together),
                Similarity::Cosine | Similarity::Dot => self.kernel.dots32([of_few; PAIRS], together),
            };
            for (sum, found) in sums[i..].iter_mut().step_by(few.len()).zip(found) {
                *sum = found;
            }
        }
        Some(())
    }
}
