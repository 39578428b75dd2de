//! Searches with few queries: the gallery's rows are read once, as they lie in memory, and all keys computed. To pack them for a screen
//! would take longer.

use std::sync::Mutex;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::try_collect;
use crate::rows::dense::{Dense, Precision};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::own_item::OwnItem;
use crate::rows::similarity::Similarity;
use crate::search::nearest::nearest;
use crate::search::places::Nearest;
use crate::search::results::Results;

/// Validates rows, and finds the `k` nearest gallery items of every query, as [`nearest`] does: similarities and indices. A few queries
/// are compared with each item while it is validated.
pub fn knn<'a>(
    (queries, gallery): (Matrix<'a>, Option<Matrix<'a>>),
    (similarity, precision, kernel): (Similarity, Precision, &'static Kernel),
    (k, own): (usize, OwnItem<'_>),
    control: &Control,
    similarities: &mut [f32],
    indices: &mut [i64],
) -> Result<()> {
    let (few, items) = (queries.rows(), gallery.as_ref().map_or(0, Source::rows));
    let unread = Dense::unread(queries, gallery, similarity, precision, kernel, control)?;
    let sizes = control.sizes();
    let is_few = few <= sizes.few_queries && (1..items).contains(&k) && few * Nearest::bytes(k) <= sizes.nearest_bytes;
    if !is_few {
        let space = unread.read(control)?;
        let score = |query, key| space.similarity_of_key(query, key);
        return nearest(&space, k, own, control, score, similarities, indices);
    }
    own.check(few, items as u64)?;
    control.took(|| "few queries");
    control.add_to_total(few as u64 * items as u64);
    let mut lists = try_collect((0..few).map(|_| Nearest::new(k).map(Mutex::new)))?;
    let space = unread.compare_few(control, |query, first, keys| {
        let own = own.of(query).map(|own| own as u32);
        lists[query].lock().expect("no thread panics while it holds the lock").add(
            first as u32..,
            keys.iter().copied(),
            own,
        );
    })?;
    let mut results =
        Results { k, score: |query, key| space.similarity_of_key(query, key), scores: similarities, indices };
    results.store(0, &mut lists, control, |_, _, _, _| Ok(false))
}

#[cfg(test)]
mod tests {
    use ndarray::{Array2, s};
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{names, select};
    use crate::sizes::Sizes;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

        #[test]
        fn few_queries_of_any_layout_find_what_the_screen_finds(
            values in proptest::collection::vec(0i8..4, 90 * 20),
            (queries, dim, k, items) in (1usize..9, 1usize..20, 1usize..30, 57usize..81),
            (are_double, is_reversed) in (any::<[bool; 2]>(), any::<bool>()),
            has_own in any::<bool>(),
        ) {
            let y = Array2::from_shape_fn((items, dim), |(i, j)| f32::from(values[20 * i + j]) + 0.5);
            let y = if is_reversed { y.slice(s![..;-1, ..;-1]) } else { y.view() };
            let x = Array2::from_shape_fn((queries, dim), |(i, j)| y[[7 * i, j]]);
            let (wide_x, wide_y) = (x.mapv(f64::from), y.mapv(f64::from));
            let sides = || {
                let queries = if are_double[0] { Matrix::F64(wide_x.view()) } else { Matrix::F32(x.view()) };
                let items = if are_double[1] { Matrix::F64(wide_y.view()) } else { Matrix::F32(y) };
                (queries, Some(items))
            };
            let indices: Vec<i64> = (0..queries as i64).map(|i| if i % 3 == 2 { -1 } else { 7 * i }).collect();
            let own = if has_own { OwnItem::Listed(&indices) } else { OwnItem::Absent };
            for kernel in names().into_iter().map(|name| select(Some(name)).unwrap()) {
                for similarity in [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean] {
                    let [few, screened] = [1 << 40, 0].map(|few_queries| {
                        let control = Control::traced(Sizes { few_queries, few_items: 0, ..Sizes::default() });
                        let (mut found, mut items) = (vec![0.0; queries * k], vec![0; queries * k]);
                        let how = (similarity, Precision::SixteenBit, kernel);
                        knn(sides(), how, (k, own), &control, &mut found, &mut items).unwrap();
                        assert_eq!(control.paths().contains_key("few queries"), few_queries > 0);
                        (found, items)
                    });
                    prop_assert_eq!(few, screened);
                }
            }
        }
    }
}
