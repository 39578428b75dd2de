//! Nearest neighbours from tables of keys, for a k that is a large share of the gallery.
//!
//! A screen rules out few of the items then, and each item left costs a key of its own; a key of a table costs less.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::{Grow, allocate, collect, ready, zeros};
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::search::places::{Place, cut, sort};
use crate::side::Side;

/// A divisor of the number of lanes, so that the compiler may keep their largest in vectors.
const LANES: usize = 8;

/// A search by tables, and the shape of a table.
struct Tables<'a> {
    k: usize,
    own: OwnItem<'a>,
    /// Queries of a table.
    queries: usize,
    /// Items of a table.
    items: usize,
}

/// Finds the `k` nearest gallery items of every query, as [`nearest`](super::nearest::nearest) does.
pub(super) fn nearest_from_tables<S: Space, T: Send>(
    space: &S,
    k: usize,
    own: OwnItem<'_>,
    control: &Control,
    score: impl Fn(usize, f64) -> T + Sync,
    scores: &mut [T],
    indices: &mut [i64],
) -> Result<()> {
    let sizes = control.sizes();
    let most = sizes.table_queries.clamp(1, space.rows(Side::Query));
    let queries = (sizes.nearest_bytes / (size_of::<Place>() * k)).clamp(1, most);
    let items = (sizes.table_keys / queries).clamp(1, space.rows(Side::Gallery));
    control.took(|| {
        let is_one = items == space.rows(Side::Gallery);
        if is_one { "neighbours from tables" } else { "neighbours from tables of parts" }
    });
    Tables { k, own, queries, items }.search(space, control, score, scores, indices)
}

impl Tables<'_> {
    fn search<S: Space, T: Send>(
        &self,
        space: &S,
        control: &Control,
        score: impl Fn(usize, f64) -> T + Sync,
        scores: &mut [T],
        indices: &mut [i64],
    ) -> Result<()> {
        let (k, queries, items) = (self.k, space.rows(Side::Query) as u32, space.rows(Side::Gallery) as u32);
        let mut keys: Vec<f64> = zeros(self.queries * self.items)?;
        // The nearest items of each query in the tables so far.
        let mut lists = collect((0..self.queries).map(|_| Vec::new()))?;
        if self.items < items as usize {
            for list in &mut lists {
                *list = allocate(k)?;
            }
        }
        control.add_to_total(u64::from(queries) * u64::from(items));
        let out = scores.chunks_mut(self.queries * k).zip(indices.chunks_mut(self.queries * k));
        for (first, (scores, indices)) in (0..queries).step_by(self.queries).zip(out) {
            let rows = collect(first..queries.min(first.saturating_add(self.queries as u32)))?;
            for start in (0..items).step_by(self.items) {
                let columns = start..items.min(start.saturating_add(self.items as u32));
                let keys = &mut keys[..rows.len() * columns.len()];
                space.key_table(&rows, &collect(columns.clone())?, keys, control)?;
                control.check()?;
                let lines = keys.par_chunks(columns.len()).zip(&mut lists).zip(&rows);
                let out = scores.par_chunks_mut(k).zip(indices.par_chunks_mut(k));
                lines.zip(out).try_for_each_init(
                    || Gathering::new(k, columns.len()),
                    |buffers, (((keys, list), &query), (scores, indices))| -> Result<()> {
                        let buffers = ready(buffers)?;
                        buffers.places.clear();
                        buffers.places.try_extend(list.drain(..))?;
                        let excluded = self.own.of(query as usize).map(|own| own as u32);
                        buffers.gather(k, keys, columns.clone(), excluded, space.kernel())?;
                        let places = &mut buffers.places;
                        if columns.end < items {
                            return list.try_extend(places.iter().copied());
                        }
                        sort(places, &mut buffers.spare)?;
                        for ((out_score, index), place) in scores.iter_mut().zip(indices).zip(places) {
                            *out_score = score(query as usize, place.key());
                            *index = i64::from(place.item());
                        }
                        Ok(())
                    },
                )?;
                control.advance(keys.len() as u64);
            }
        }
        Ok(())
    }
}

/// A thread's buffers.
struct Gathering {
    places: Vec<Place>,
    maxima: Vec<f64>,
    found: Vec<u32>,
    spare: Vec<Place>,
}

impl Gathering {
    fn new(k: usize, items: usize) -> Result<Self> {
        let (maxima, found) = (allocate(2 * k + LANES)?, allocate(items)?);
        Ok(Gathering { places: allocate(k + items)?, maxima, found, spare: Vec::new() })
    }

    /// Replaces `places` by the k nearest, in any order, of these and the items of a table's line.
    ///
    /// The keys are divided into lanes, whose largest are those of different items. So k items other than the excluded one are at least
    /// the (k + 1)-th largest of them.
    fn gather(
        &mut self,
        k: usize,
        keys: &[f64],
        items: Range<u32>,
        excluded: Option<u32>,
        kernel: &Kernel,
    ) -> Result<()> {
        let Gathering { places, maxima, found, .. } = self;
        let mut least = f64::NEG_INFINITY;
        let worst = cut(places, k);
        if places.len() == k {
            least = worst.key();
        }
        let lanes = (2 * k + 1).next_multiple_of(LANES);
        if keys.len() >= 2 * lanes {
            maxima.clear();
            maxima.try_extend(keys[..lanes].iter().copied())?;
            for keys in keys[lanes..].chunks(lanes) {
                kernel.vectorize(|| keep_larger(maxima, keys));
            }
            least = least.max(*maxima.select_nth_unstable_by(k, |a, b| b.total_cmp(a)).1);
        }
        found.try_resize(keys.len(), 0)?;
        let mut count = 0;
        for (i, key) in keys.iter().enumerate() {
            // Without a branch, which the CPU would mispredict often.
            found[count] = i as u32;
            count += usize::from(*key >= least);
        }
        for i in &found[..count] {
            let place = Place::new(keys[*i as usize], items.start + i);
            if place < worst && Some(place.item()) != excluded {
                places.try_push(place)?;
            }
        }
        cut(places, k);
        Ok(())
    }
}

#[inline(always)]
fn keep_larger(maxima: &mut [f64], keys: &[f64]) {
    for (most, key) in maxima.iter_mut().zip(keys) {
        *most = if key > most { *key } else { *most };
    }
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{names, select};
    use crate::rows::codes::Codes;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::matrix::Matrix;
    use crate::rows::similarity::Similarity;
    use crate::search::nearest::nearest_screened;

    proptest! {
        #[test]
        fn tables_of_any_shape_find_what_the_screen_finds(
            values in proptest::collection::vec(0i8..3, 70 * 5),
            (rows, dim) in (2usize..70, 1usize..5),
            k in 1usize..70,
            own in proptest::sample::select(&[OwnItem::Absent, OwnItem::SameIndex][..]),
            (queries, items) in (1usize..80, 1usize..80),
        ) {
            let x = Array2::from_shape_fn((rows, dim), |(i, j)| f32::from(values[5 * i + j]));
            let codes = x.mapv(|v| v as u8);
            let k = k.min(rows - usize::from(own.of(0).is_some()));
            let tables = Tables { k, own, queries, items };
            for name in names() {
                let kernel = select(Some(name)).unwrap();
                let matrix = Matrix::F32(x.view());
                let control = Control::default();
                let dense = Dense::new(matrix, None, Similarity::Euclidean, Precision::SixteenBit, kernel, &control).unwrap();
                check(&tables, &dense);
                check(&tables, &Codes::new(codes.view(), None, kernel).unwrap());
            }
        }
    }

    fn check<S: Space>(tables: &Tables<'_>, space: &S) {
        let (control, k) = (Control::default(), tables.k);
        let out = space.rows(Side::Query) * k;
        let score = |_: usize, key: f64| key.to_bits();
        let (mut keys, mut indices) = (vec![0; out], vec![0; out]);
        tables.search(space, &control, score, &mut keys, &mut indices).unwrap();
        let (mut screened, mut screened_indices) = (vec![0; out], vec![0; out]);
        nearest_screened(space, k, tables.own.into(), &control, score, &mut screened, &mut screened_indices).unwrap();
        assert_eq!((keys, indices), (screened, screened_indices));
    }
}
