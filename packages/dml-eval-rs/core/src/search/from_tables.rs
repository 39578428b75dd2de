//! Nearest neighbours from tables of keys, for a k that is a large share of the gallery.
//!
//! A screen rules out few of the items then, and each item left costs a key of its own; a key of a table costs less.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::{allocate, collect, zeros};
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::side::Side;

/// Keys between two tests of whether to drop places.
const CHUNK: usize = 512;

/// A key and an item as one integer, the smaller the nearer: integers compare without a branch that the CPU could mispredict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place(u128);

impl Place {
    fn new(key: f64, item: u32) -> Self {
        let bits = key.to_bits();
        // In the order of the keys, descending: larger magnitudes of negative keys are further away.
        let descending = if key.is_sign_negative() { bits } else { !bits ^ (1 << 63) };
        Place(u128::from(descending) << 32 | u128::from(item))
    }

    fn key(self) -> f64 {
        let descending = (self.0 >> 32) as u64;
        f64::from_bits(if descending >> 63 == 1 { descending } else { !descending ^ (1 << 63) })
    }

    fn item(self) -> u32 {
        self.0 as u32
    }
}

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
                    || allocate(2 * k + CHUNK),
                    |places, (((keys, list), &query), (scores, indices))| -> Result<()> {
                        let places = places.as_mut().map_err(|error| error.clone())?;
                        places.clear();
                        places.append(list);
                        gather(places, k, keys, columns.clone(), self.own.of(query as usize).map(|own| own as u32));
                        if columns.end < items {
                            list.extend_from_slice(places);
                            return Ok(());
                        }
                        places.sort_unstable();
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

/// Replaces `places` by the k nearest, in any order, of these and the items of a table's line.
fn gather(places: &mut Vec<Place>, k: usize, keys: &[f64], items: Range<u32>, excluded: Option<u32>) {
    let mut worst = cut(places, k);
    for (c, keys) in keys.chunks(CHUNK).enumerate() {
        let first = items.start + (c * CHUNK) as u32;
        // Without a branch, which the CPU would mispredict often.
        let mut found = places.len();
        places.resize(found + keys.len(), worst);
        for (item, &key) in (first..).zip(keys) {
            let place = Place::new(key, item);
            places[found] = place;
            found += usize::from((place < worst) & (Some(item) != excluded));
        }
        places.truncate(found);
        if found >= 2 * k {
            worst = cut(places, k);
        }
    }
    cut(places, k);
}

/// Drops all but the k nearest, and returns the last of these; one beyond any item while there are fewer.
fn cut(places: &mut Vec<Place>, k: usize) -> Place {
    if places.len() < k {
        return Place(u128::MAX);
    }
    let (_, &mut worst, _) = places.select_nth_unstable(k - 1);
    places.truncate(k);
    worst
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
        fn places_are_in_the_order_of_keys_and_items(
            a in any::<f64>(), b in any::<f64>(), items in (any::<u32>(), any::<u32>()),
        ) {
            for (a, b) in [(a, b), (a, a), (-a, a), (0.0, b)] {
                let (x, y) = (Place::new(a, items.0), Place::new(b, items.1));
                prop_assert_eq!(x.cmp(&y), b.total_cmp(&a).then(items.0.cmp(&items.1)));
                prop_assert_eq!((x.key().to_bits(), x.item()), (a.to_bits(), items.0));
            }
        }

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
