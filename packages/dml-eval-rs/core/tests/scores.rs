//! Tests searches and verification by scores, for rows of any magnitude: the scores of all pairs
//! must decide.

use dml_eval::{
    Alone, Control, Dense, Error, Matrix, OwnItem, PairLabels, Precision, Similarity, Sizes,
    VerifyTasks, kernel_names, pair_scores, range_search, select_kernel, verify,
};
use ndarray::Array2;
use proptest::prelude::*;

const SIMILARITIES: [Similarity; 3] = [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean];
/// Sizes of samples and lists that suffice, and sizes that overflow.
const SIZES: [(usize, usize); 4] = [(1 << 20, 1 << 20), (40, 400), (8, 16), (1, 64)];

/// Draws float64 rows of mostly equal magnitude, with a large number of equal entries.
fn rows(dim: usize) -> impl Strategy<Value = Array2<f64>> {
    let exponent =
        prop_oneof![2 => -8i32..8, 1 => -1070i32..=400, 2 => -545i32..=-500, 1 => 380i32..=400];
    let number = prop_oneof![3 => (-2i8..=2).prop_map(f64::from), 1 => -1.0f64..1.0];
    (exponent, proptest::collection::vec(number, dim * 4..dim * 40)).prop_map(
        move |(exponent, numbers)| {
            let rows = numbers.len() / dim;
            // Scale in two steps, because `powi` computes 2^−1070 as 1 / 2^1070, which is 1 / ∞.
            let (half, rest) = (2f64.powi(exponent / 2), 2f64.powi(exponent - exponent / 2));
            let mut x =
                Array2::from_shape_fn((rows, dim), |(i, j)| numbers[i * dim + j] * half * rest);
            // Avoid rows of zeros, which don't have a cosine.
            x.column_mut(0).iter_mut().for_each(|v| *v = if *v == 0.0 { half * rest } else { *v });
            x
        },
    )
}

/// Lists all pairs to compare.
fn all_pairs(queries: usize, gallery: Option<usize>) -> Vec<(u32, u32)> {
    let pairs = |q: u32| {
        (gallery.map_or(q + 1, |_| 0)..gallery.unwrap_or(queries) as u32).map(move |g| (q, g))
    };
    (0..queries as u32).flat_map(pairs).collect()
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 150,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn a_search_finds_the_items_whose_scores_reach_the_threshold(
        (x, g) in (1usize..20).prop_flat_map(|dim| (rows(dim), proptest::option::of(rows(dim)))),
        similarity in proptest::sample::select(&SIMILARITIES[..]),
        exclude_self in any::<bool>(),
        (at, step) in (any::<proptest::sample::Index>(), -1i32..=1),
    ) {
        let (control, n) = (Control::default(), g.as_ref().unwrap_or(&x).nrows());
        let exclude_self = exclude_self && g.is_none();
        let own = if exclude_self { OwnItem::SameIndex } else { OwnItem::Absent };
        for name in kernel_names() {
            for precision in [Precision::Float32, Precision::SixteenBit] {
                let gallery = g.as_ref().map(|g| Matrix::F64(g.view()));
                let kernel = select_kernel(Some(name)).unwrap();
                let space = Dense::new(
                    Matrix::F64(x.view()),
                    gallery,
                    similarity,
                    precision,
                    kernel,
                    &control,
                )
                .unwrap();
                let pairs = all_pairs(x.nrows(), Some(n));
                let scores = pair_scores(&space, &pairs, &control).unwrap();
                let threshold = scores[at.index(scores.len())];
                let threshold =
                    [threshold.next_down(), threshold, threshold.next_up()][(step + 1) as usize];
                let mut expected: Vec<(u32, f64, u32)> = pairs
                    .into_iter()
                    .zip(scores)
                    .filter(|(pair, score)| {
                        *score >= threshold && !(exclude_self && pair.0 == pair.1)
                    })
                    .map(|(pair, score)| (pair.0, -score, pair.1))
                    .collect();
                expected.sort_by(|a, b| a.partial_cmp(b).unwrap());
                let found =
                    range_search(&space, threshold, own.into(), u64::MAX, &control).unwrap();
                let expected_items: Vec<i64> =
                    expected.iter().map(|item| i64::from(item.2)).collect();
                prop_assert_eq!(&found.indices, &expected_items);
                for q in 0..x.nrows() {
                    let number = expected.iter().filter(|item| item.0 as usize == q).count() as i64;
                    prop_assert_eq!(found.offsets[q + 1] - found.offsets[q], number);
                }
                let rejected = range_search(&space, threshold, own.into(), 0, &control);
                let message = format!("{} pairs reach", expected.len());
                let is_rejected =
                    matches!(rejected, Err(Error::Argument(text)) if text.starts_with(&message));
                prop_assert_eq!(is_rejected, !expected.is_empty());
            }
        }
    }

    #[test]
    fn a_verification_counts_all_scores(
        (x, g) in (1usize..20).prop_flat_map(|dim| (rows(dim), proptest::option::of(rows(dim)))),
        similarity in proptest::sample::select(&SIMILARITIES[..]),
        classes in 2u32..6,
        (sample, capacity) in proptest::sample::select(&SIZES[..]),
        (slot_part, slots) in (1usize..40, any::<bool>()),
        rank in any::<proptest::sample::Index>(),
    ) {
        let (control, n) = (Control::default(), g.as_ref().unwrap_or(&x).nrows());
        let label = |rows: usize| {
            (0..rows as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect::<Vec<_>>()
        };
        let (queries, gallery_labels) = (label(x.nrows()), label(n));
        let labels = PairLabels {
            queries: &queries,
            gallery: g.is_some().then_some(&gallery_labels[..]),
            groups: None,
        };
        for name in kernel_names() {
            let gallery = g.as_ref().map(|g| Matrix::F64(g.view()));
            let kernel = select_kernel(Some(name)).unwrap();
            let space = Dense::new(
                Matrix::F64(x.view()),
                gallery,
                similarity,
                Precision::Float32,
                kernel,
                &control,
            )
            .unwrap();
            let pairs = all_pairs(x.nrows(), g.is_some().then_some(n));
            let scores = pair_scores(&space, &pairs, &control).unwrap();
            let is_positive =
                |pair: &(u32, u32)| queries[pair.0 as usize] == gallery_labels[pair.1 as usize];
            let scores_by_kind = |positive: bool| -> Vec<f64> {
                let all = pairs.iter().zip(&scores);
                all.filter(|(pair, _)| is_positive(pair) == positive)
                    .map(|(_, score)| *score)
                    .collect()
            };
            let (positives, mut negatives) = (scores_by_kind(true), scores_by_kind(false));
            prop_assume!(!positives.is_empty() && !negatives.is_empty());
            negatives.sort_by(|a, b| b.total_cmp(a));
            let rank = rank.index(negatives.len());
            let tasks = VerifyTasks {
                positives: positives.len() as u64,
                negatives: negatives.len() as u64,
                ranks: vec![rank as u64 + 1, 1],
                equal_errors: true,
                slots,
            };
            let sizes = Sizes {
                verify_sample: sample,
                verify_listed: capacity,
                slot_part,
                slot_list: 1,
                ..Sizes::default()
            };
            let found = verify(&space, &labels, &tasks, &Alone, &Control::traced(sizes)).unwrap();
            let count = |scores: &[f64], limit: f64, equal: bool| {
                scores.iter().filter(|s| **s > limit || equal && **s == limit).count() as u64
            };
            prop_assert_eq!(found.points[0].negatives.score.to_bits(), negatives[rank].to_bits());
            prop_assert_eq!(found.points[1].negatives.score.to_bits(), negatives[0].to_bits());
            for point in &found.points {
                let limit = point.negatives.score;
                prop_assert_eq!(point.negatives.above, count(&negatives, limit, false));
                prop_assert_eq!(point.negatives.at_least, count(&negatives, limit, true));
                prop_assert_eq!(point.above, count(&positives, limit, false));
                prop_assert_eq!(point.at_least, count(&positives, limit, true));
            }
            let weight = |n: u64, p: u64| n * tasks.positives + p * tasks.negatives;
            let (equal, total) = (&found.points[2], tasks.positives * tasks.negatives);
            prop_assert!(weight(equal.negatives.above, equal.above) < total);
            prop_assert!(weight(equal.negatives.at_least, equal.at_least) >= total);
            prop_assert_eq!(found.slots.is_some(), slots);
            let Some(slots) = found.slots else { continue };
            let mut below = 0;
            for (k, score) in slots.scores.iter().enumerate() {
                below += slots.negatives[2 * k];
                prop_assert_eq!(below, tasks.negatives - count(&negatives, *score, true));
                below += slots.negatives[2 * k + 1];
                prop_assert_eq!(below, tasks.negatives - count(&negatives, *score, false));
                prop_assert_eq!(
                    slots.positives[k],
                    positives.iter().filter(|p| *p == score).count() as u64
                );
            }
            prop_assert_eq!(below + slots.negatives[slots.negatives.len() - 1], tasks.negatives);
        }
    }
}

#[test]
fn wrong_numbers_of_pairs_are_rejected() {
    let (x, control) =
        (Array2::from_shape_fn((4, 2), |(i, j)| (i + j) as f64 + 1.0), Control::default());
    let kernel = select_kernel(None).unwrap();
    let space = Dense::new(
        Matrix::F64(x.view()),
        None,
        Similarity::Dot,
        Precision::Float32,
        kernel,
        &control,
    )
    .unwrap();
    let labels = PairLabels { queries: &[0, 0, 1, 1], gallery: None, groups: None };
    for (positives, negatives, rank) in [(2, 5, 1), (3, 4, 1), (2, 4, 0), (2, 4, 5), (0, 4, 1)] {
        let tasks = VerifyTasks {
            positives,
            negatives,
            ranks: vec![rank],
            equal_errors: true,
            slots: false,
        };
        let found = verify(&space, &labels, &tasks, &Alone, &control);
        assert!(matches!(found, Err(Error::Argument(_))), "{positives} {negatives} {rank}");
    }
    let tasks = VerifyTasks {
        positives: 2,
        negatives: 4,
        ranks: vec![4],
        equal_errors: true,
        slots: false,
    };
    assert!(verify(&space, &labels, &tasks, &Alone, &control).is_ok());
}
