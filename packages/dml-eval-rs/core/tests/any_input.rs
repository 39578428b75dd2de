//! Tests that any shapes and bytes give a result or an error, but not a panic, with identical bits
//! on all kernels.

use dml_eval::{
    Alone, Codes, Control, Dense, Error, EvaluateOptions, KMeansOptions, Matrix, Metric, OwnItem,
    PartialCounts, PerQuery, Positive, Precision, Relation, Similarity, Sizes, Source, TieRules,
    Ties, evaluate, kernel_names, kmeans, knn, nearest, select_kernel,
};
use ndarray::{Array2, ShapeBuilder};
use proptest::prelude::*;

const SIMILARITIES: [Similarity; 3] = [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean];
const TIES: [Ties; 4] = [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected];

/// Draws mostly ordinary numbers, but sometimes any bit pattern.
fn number() -> impl Strategy<Value = f32> {
    prop_oneof![
        20 => (-3i8..=3).prop_map(f32::from),
        20 => -1.0f32..1.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop_oneof![
            Just(f32::MIN_POSITIVE / 4.0),
            Just(f32::MAX),
            Just(-0.0),
            Just(1e-30),
            Just(1e30),
        ],
    ]
}

fn rows(dim: usize) -> impl Strategy<Value = Array2<f32>> {
    (1usize..70, any::<bool>()).prop_flat_map(move |(n, by_column)| {
        proptest::collection::vec(number(), n * dim).prop_map(move |values| {
            let shape = (n, dim).set_f(by_column);
            Array2::from_shape_vec(shape, values).expect("the length matches the shape")
        })
    })
}

/// Draws rows of mostly small numbers times 2^`exponent`, and sometimes any bit pattern.
fn wide_rows(dim: usize, exponent: i32) -> impl Strategy<Value = Array2<f64>> {
    // Scale in two steps, because `powi` computes 2^−1074 as 1 / 2^1074, which is 1 / ∞.
    let (half, rest) = (2.0f64.powi(exponent / 2), 2.0f64.powi(exponent - exponent / 2));
    let scaled = move |v: f64| v * half * rest;
    let number = prop_oneof![
        20 => (-3i8..=3).prop_map(move |v| scaled(f64::from(v))),
        20 => (-1.0f64..1.0).prop_map(scaled),
        1 => any::<u64>().prop_map(f64::from_bits),
        1 => prop_oneof![Just(f64::MIN_POSITIVE), Just(5e-324), Just(f64::MAX), Just(-0.0)],
    ];
    (1usize..70).prop_flat_map(move |n| {
        let values = proptest::collection::vec(number.clone(), n * dim);
        values.prop_map(move |values| {
            Array2::from_shape_vec((n, dim), values).expect("the length matches the shape")
        })
    })
}

/// Draws queries of any magnitude in float64, and optionally a gallery of a similar magnitude.
fn wide_sides() -> impl Strategy<Value = (Array2<f64>, Option<Array2<f64>>)> {
    // In most matrices, some squares underflow, or rows are nearly too large.
    let exponent = prop_oneof![1 => -1074i32..=1023, 3 => -545i32..=-510, 1 => 490i32..=502];
    (1usize..40, exponent, -20i32..=20).prop_flat_map(|(dim, exponent, apart)| {
        let other = (exponent + apart).clamp(-1074, 1023);
        (wide_rows(dim, exponent), proptest::option::of(wide_rows(dim, other)))
    })
}

fn bits(results: &PerQuery) -> Vec<u64> {
    results.columns.iter().flatten().map(|v| v.to_bits()).collect()
}

/// Metrics that need only the first ranks, and metrics that need all ranks.
const METRICS: [&[Metric]; 2] = [
    &[
        Metric::Recall(1),
        Metric::Recall(u64::MAX),
        Metric::Precision(1),
        Metric::RPrecision,
        Metric::MapAtR,
        Metric::ReciprocalRank,
    ],
    &[
        Metric::RPrecision,
        Metric::Precision(7),
        Metric::AveragePrecisionAt(3),
        Metric::Ndcg(20),
        Metric::Ndcg(u64::MAX),
        Metric::AveragePrecision,
        Metric::InverseNegativePenalty,
    ],
];

fn options(metrics: &[Metric]) -> EvaluateOptions {
    EvaluateOptions { metrics: metrics.to_vec(), may_lack_matches: false }
}

fn with(many_positives: Option<usize>, directions: Option<usize>) -> Control {
    Control::traced(Sizes { many_positives, directions, table_items: 0, ..Sizes::default() })
}

/// From this number of positives on, all keys of a query are computed: always, from 8 on, or never.
const MANY_POSITIVES: [usize; 3] = [0, 8, usize::MAX];
/// The numbers of directions to screen along; `None` chooses the cheapest.
const DIRECTIONS: [Option<usize>; 4] = [None, Some(0), Some(1), Some(5)];

/// Asserts that the outcome of all kernels is the same.
fn assert_kernels_agree<T: PartialEq + std::fmt::Debug>(
    outcome: impl Fn(&str, Precision) -> Result<T, Error>,
) {
    let first = outcome("portable", Precision::Float32);
    for name in kernel_names() {
        for precision in [Precision::Float32, Precision::SixteenBit] {
            assert_eq!(outcome(name, precision), first, "{name} {precision:?}");
        }
    }
}

/// Asserts that the outcome of all kernels is the same, whether screening or not, for labels of
/// `classes` classes.
fn assert_evaluations_agree<'a>(
    queries: Matrix<'a>,
    gallery: Option<Matrix<'a>>,
    similarity: Similarity,
    ties: Ties,
    metrics: &[Metric],
    classes: u32,
) {
    let label = |x: &Matrix<'_>| {
        (0..x.rows() as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect::<Vec<_>>()
    };
    let (labels, gallery_labels) = (label(&queries), gallery.as_ref().map(label));
    let relation = Relation::of_labels(&labels, gallery_labels.as_deref()).unwrap();
    assert_kernels_agree(|name, precision| {
        let kernel = select_kernel(Some(name))?;
        let ranked = |(many_positives, directions)| {
            let space =
                Dense::new(queries, gallery, similarity, precision, kernel, &Control::default())?;
            evaluate(
                &space,
                &relation,
                &[ties],
                &options(metrics),
                &Alone,
                &with(Some(many_positives), directions),
            )
            .map(|mut found| found.remove(0))
        };
        let ways = MANY_POSITIVES
            .into_iter()
            .flat_map(|many| DIRECTIONS.map(|directions| (many, directions)));
        let found: Vec<_> = ways.map(ranked).collect();
        assert!(
            found.iter().all(|f| f.as_ref().map(bits) == found[0].as_ref().map(bits)),
            "{found:?}"
        );
        found[0].as_ref().map(bits).map_err(Error::clone)
    });
}

#[test]
fn more_rows_than_indices_are_rejected_before_any_is_read() {
    let (row, code, control) =
        (Array2::<f32>::ones((1, 1)), Array2::<u8>::ones((1, 1)), Control::default());
    let (many, codes) =
        (row.broadcast((1 << 32, 1)).unwrap(), code.broadcast((1 << 32, 1)).unwrap());
    let kernel = select_kernel(None).unwrap();
    let (few, few_codes) = (Matrix::F32(row.view()), code.view());
    for (queries, gallery) in
        [(Matrix::F32(many), None), (Matrix::F32(many), Some(few)), (few, Some(Matrix::F32(many)))]
    {
        let space =
            Dense::new(queries, gallery, Similarity::Dot, Precision::Float32, kernel, &control);
        let expected = "there are 4294967296 rows";
        assert!(matches!(space, Err(Error::Argument(text)) if text.contains(expected)));
    }
    for (queries, gallery) in [(codes, None), (codes, Some(few_codes)), (few_codes, Some(codes))] {
        let space = Codes::new(queries, gallery, kernel);
        let expected = "there are 4294967296 rows";
        assert!(matches!(space, Err(Error::Argument(text)) if text.contains(expected)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 500,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn evaluations_succeed_or_fail_and_kernels_agree(
        (x, g) in (1usize..40).prop_flat_map(|dim| (rows(dim), proptest::option::of(rows(dim)))),
        similarity in proptest::sample::select(&SIMILARITIES[..]),
        ties in proptest::sample::select(&TIES[..]),
        metrics in proptest::sample::select(&METRICS[..]),
        classes in 1u32..9,
    ) {
        assert_evaluations_agree(
            Matrix::F32(x.view()),
            g.as_ref().map(|g| Matrix::F32(g.view())),
            similarity,
            ties,
            metrics,
            classes,
        );
    }

    #[test]
    fn evaluations_of_any_magnitude_succeed_or_fail_and_kernels_agree(
        (x, g) in wide_sides(),
        similarity in proptest::sample::select(&SIMILARITIES[..]),
        ties in proptest::sample::select(&TIES[..]),
        metrics in proptest::sample::select(&METRICS[..]),
        classes in 1u32..9,
    ) {
        assert_evaluations_agree(
            Matrix::F64(x.view()),
            g.as_ref().map(|g| Matrix::F64(g.view())),
            similarity,
            ties,
            metrics,
            classes,
        );
    }

    #[test]
    fn searches_of_any_magnitude_find_the_neighbours_of_all_keys(
        (x, g) in wide_sides(),
        similarity in proptest::sample::select(&SIMILARITIES[..]),
        k in 1usize..9,
        directions in proptest::sample::select(&DIRECTIONS[..]),
    ) {
        let queries = Matrix::F64(x.view());
        let gallery = g.as_ref().map(|g| Matrix::F64(g.view()));
        let n = g.as_ref().unwrap_or(&x).nrows();
        assert_kernels_agree(|name, precision| {
            let space = Dense::new(
                queries,
                gallery,
                similarity,
                precision,
                select_kernel(Some(name))?,
                &Control::default(),
            )?;
            // A search for all items does not use a threshold, so the keys determine the order.
            let found = |k: usize| {
                let (mut keys, mut indices) =
                    (vec![0u64; x.nrows() * k], vec![0i64; x.nrows() * k]);
                nearest(
                    &space,
                    k,
                    OwnItem::Absent,
                    &with(None, directions),
                    |_, key| key.to_bits(),
                    &mut keys,
                    &mut indices,
                )?;
                Ok::<_, Error>((keys, indices))
            };
            let (few, all) = (found(k.min(n))?, found(n)?);
            for query in 0..x.nrows() {
                assert_eq!(few.1[query * k.min(n)..][..k.min(n)], all.1[query * n..][..k.min(n)]);
            }
            Ok(few)
        });
    }

    #[test]
    fn searches_succeed_or_fail_and_kernels_agree(
        (x, g) in (1usize..40).prop_flat_map(|dim| (rows(dim), rows(dim))),
        similarity in proptest::sample::select(&SIMILARITIES[..]),
        k in 0usize..9,
    ) {
        assert_kernels_agree(|name, precision| {
            let (queries, gallery) = (Matrix::F32(x.view()), Matrix::F32(g.view()));
            let space = Dense::new(
                queries,
                Some(gallery),
                similarity,
                precision,
                select_kernel(Some(name))?,
                &Control::default(),
            )?;
            let (mut keys, mut indices) = (vec![0u64; x.nrows() * k], vec![0i64; x.nrows() * k]);
            nearest(
                &space,
                k,
                OwnItem::Absent,
                &Control::default(),
                |_, key| key.to_bits(),
                &mut keys,
                &mut indices,
            )?;
            let (few, own) = (
                Control::traced(Sizes { few_queries: 1 << 40, ..Sizes::default() }),
                OwnItem::Absent,
            );
            let (mut similarities, mut few_indices) =
                (vec![0.0; x.nrows() * k], vec![0i64; x.nrows() * k]);
            let how = (similarity, precision, select_kernel(Some(name))?);
            knn(
                (queries, Some(gallery)),
                how,
                (k, own.into()),
                &few,
                &mut similarities,
                &mut few_indices,
            )?;
            assert_eq!(few_indices, indices);
            Ok((keys, indices))
        });
    }

    #[test]
    fn kernels_agree_on_codes_of_any_bytes(
        width in 1usize..70,
        values in proptest::collection::vec(any::<u8>(), 70 * 60),
        n in 2usize..60,
        ties in proptest::sample::select(&TIES[..]),
        metrics in proptest::sample::select(&METRICS[..]),
    ) {
        let codes =
            Array2::from_shape_vec((n, width), values[..n * width].to_vec()).expect("enough bytes");
        let labels: Vec<u32> = (0..n as u32).map(|i| i % 3).collect();
        assert_kernels_agree(|name, _| {
            let space = Codes::new(codes.view(), None, select_kernel(Some(name))?)?;
            let ranked = |many_positives| {
                let relation = Relation::of_labels(&labels, None)?;
                evaluate(
                    &space,
                    &relation,
                    &[ties],
                    &options(metrics),
                    &Alone,
                    &with(Some(many_positives), None),
                )
                .map(|mut found| found.remove(0))
            };
            let found = MANY_POSITIVES.map(ranked);
            assert!(
                found.iter().all(|f| f.as_ref().map(bits) == found[0].as_ref().map(bits)),
                "{found:?}"
            );
            found[0].as_ref().map(bits).map_err(Error::clone)
        });
    }

    #[test]
    fn clusterings_succeed_or_fail_and_kernels_agree(
        x in (1usize..20).prop_flat_map(rows),
        clusters in 0usize..20,
        seed in any::<u64>(),
    ) {
        assert_kernels_agree(|name, _| {
            let options = KMeansOptions { clusters, seed, runs: 1, max_iterations: 5 };
            kmeans(
                Matrix::F32(x.view()),
                options,
                select_kernel(Some(name))?,
                &Alone,
                &Control::default(),
            )
            .map(|found| (found.labels, found.inertia.to_bits()))
        });
    }

    #[test]
    fn partial_counts_of_any_numbers_give_metrics_or_fail(
        offsets in proptest::collection::vec(0usize..6, 0..6),
        keys in proptest::collection::vec(number(), 0..6),
        earlier in proptest::collection::vec(0u64..9, 0..12),
        ties in proptest::sample::select(&TIES[..]),
        all_rules: bool,
        metrics in proptest::sample::select(&METRICS[..]),
    ) {
        let rules = if all_rules { TieRules::All } else { ties.into() };
        let positives = keys.iter().map(|k| Positive { key: f64::from(*k), index: 0 }).collect();
        if let Ok(counts) = PartialCounts::new(rules, metrics, offsets, positives, &earlier) {
            let mut results = PerQuery::new(counts.queries(), metrics).unwrap();
            results.compute(&counts, ties, 0, None, &Control::default()).unwrap();
            prop_assert_eq!(results.values(Metric::RPrecision).unwrap().len(), counts.queries());
        }
    }
}
