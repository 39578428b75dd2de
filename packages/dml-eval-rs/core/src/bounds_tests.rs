//! Tests rows that maximise the errors of the screen: values must stay within the margins, so that
//! the order does not change.
//!
//! Other data hardly tests the bounds, because the rounding errors of random directions are far
//! smaller.

use std::sync::Mutex;

use ndarray::Array2;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Kernel, SweepResult, names, select};
use crate::peers::Alone;
use crate::random::Random;
use crate::rank::evaluate::{Options, evaluate};
use crate::rank::metric::Metric;
use crate::rank::metrics::PerQuery;
use crate::rank::relation::Relation;
use crate::rank::ties::Ties;
use crate::rows::codes::Codes;
use crate::rows::dense::{Dense, Precision};
use crate::rows::dense_packing::DensePacking;
use crate::rows::matrix::{Matrix, Source};
use crate::rows::own_item::OwnItem;
use crate::rows::packing::{Extent, Packing};
use crate::rows::similarity::Similarity;
use crate::rows::space::{Scratch, Space};
use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
use crate::search::places::Results;
use crate::search::screened::nearest_screened;
use crate::side::Side;
use crate::sizes::Sizes;

const SIMILARITIES: [Similarity; 3] = [Similarity::Cosine, Similarity::Dot, Similarity::Euclidean];

fn screens() -> impl Iterator<Item = (&'static Kernel, Precision)> {
    let kernels = names().into_iter().map(|name| select(Some(name)).unwrap());
    kernels.flat_map(|kernel| [(kernel, Precision::Float32), (kernel, Precision::SixteenBit)])
}

/// Lists every pair with bounds for the value: (query, item, lower, upper).
#[derive(Default)]
struct Listed(Mutex<Vec<(usize, usize, f64, f64)>>);

impl Observer for Listed {
    type Buffers = ();

    fn group(&self, side: Side, _item: usize) -> u32 {
        u32::from(side == Side::Query)
    }

    fn brackets(&self, _query: usize, mut visit: impl FnMut((f64, f64))) {
        visit((f64::NEG_INFINITY, f64::INFINITY));
    }

    fn observe<S: Space>(
        &self,
        _: &S,
        task: &Task<'_>,
        result: &SweepResult,
        _: &mut Scratch,
        (): &mut (),
    ) -> Result<()> {
        let mut seen = self.0.lock().unwrap();
        for hit in &result.row_hits {
            let (row, column) = (hit.row as usize, hit.column as usize);
            let (lower, upper) = task.bounds(hit.row, hit.column, hit.value, task.row_margins[row]);
            seen.push((task.rows.start + row, task.columns.start + column, lower, upper));
        }
        for hit in &result.column_hits {
            let (row, column) = (hit.row as usize, hit.column as usize);
            let (lower, upper) =
                task.bounds(hit.row, hit.column, hit.value, task.column_margins[column]);
            seen.push((task.columns.start + column, task.rows.start + row, lower, upper));
        }
        Ok(())
    }
}

fn largest_fraction(
    queries: &Array2<f32>,
    gallery: Option<&Array2<f32>>,
    similarity: Similarity,
) -> f64 {
    largest_fraction_in(
        Matrix::F32(queries.view()),
        gallery.map(|g| Matrix::F32(g.view())),
        similarity,
    )
}

/// Returns the largest error of a screened value as a fraction of the margin, for packings with no
/// centre and no prefix, and asserts that all values are within the bounds for all packings. If
/// `gallery` is `None`, both items of a pair are queries.
fn largest_fraction_in<'a>(
    queries: Matrix<'a>,
    gallery: Option<Matrix<'a>>,
    similarity: Similarity,
) -> f64 {
    let control = Control::default();
    let mut largest = 0.0f64;
    for (kernel, precision) in screens() {
        let space = Dense::new(queries, gallery, similarity, precision, kernel, &control).unwrap();
        for (kind, packing) in DensePacking::of_each_kind(&space).iter().enumerate() {
            let fraction = worst_fraction(&space, packing, gallery.is_none());
            assert!(
                fraction <= 1.0,
                "{} {precision:?} {similarity:?}, kind {kind}: {fraction}",
                kernel.name
            );
            // The first kind uses neither a centre nor a prefix, so the margin consists only of
            // rounding errors.
            if kind == 0 {
                largest = largest.max(fraction);
            }
        }
    }
    largest
}

/// Returns the largest distance of a value from the middle of the bounds, as a fraction of half the
/// distance between the bounds.
fn worst_fraction(space: &Dense<'_>, packing: &DensePacking<'_, '_>, symmetric: bool) -> f64 {
    let (listed, control) = (Listed::default(), Control::default());
    let n = space.rows(Side::Query);
    let pairs = if symmetric {
        traverse_triangle(space, packing, &listed, 0..n, 0..n, &control).unwrap();
        n * (n - 1)
    } else {
        traverse_rectangle(space, packing, &listed, 0..n, &control).unwrap();
        n * space.rows(Side::Gallery)
    };
    let seen = listed.0.into_inner().unwrap();
    assert_eq!(seen.len(), pairs);
    let fraction = |(query, item, lower, upper): (usize, usize, f64, f64)| {
        let mut keys = Vec::new();
        space.keys(&[(query as u32, item as u32)], &mut Scratch::default(), &mut keys).unwrap();
        (space.value(query, keys[0]) - (lower + upper) / 2.0).abs() / ((upper - lower) / 2.0)
    };
    seen.into_iter().map(fraction).fold(0.0, f64::max)
}

/// The middle between adjacent bfloat16 numbers.
const BFLOAT16_MIDDLE: f64 = 1.0 + 1.0 / 256.0;
/// The middle between adjacent int16 numbers in rows of 64 numbers with length 8: the integers are
/// scaled to length 46,339 − √64.
const INT16_MIDDLE: f64 = 5791.5 * 8.0 / 46_331.0;

/// Makes rows near c·(1, 1, ...), where c is halfway between adjacent numbers of a format. The
/// numbers of a row are all slightly above c, or all slightly below, so all are rounded in the same
/// direction, along the row itself. The first number compensates for this in the row's sum, so the
/// similarities between these rows are nearly or exactly equal. The second number makes the length
/// 8, so that this remains true when rows are scaled to length 1.
fn collinear(rows: usize, middle: f64, seed: u64) -> Array2<f32> {
    const DIM: usize = 64;
    let mut random = Random::new(seed);
    let step = 1.0 / f64::from(1 << 19);
    let mut x = Array2::zeros((rows, DIM));
    for mut row in x.rows_mut() {
        let shift = if random.below(2) == 0 { step } else { -step };
        row.fill((middle + shift) as f32);
        row[0] = (middle - (DIM as f64 - 2.0) * shift + random.below(3) as f64 * step) as f32;
        row[1] = (DIM as f64 - (DIM as f64 - 1.0) * middle * middle).sqrt() as f32;
    }
    x
}

/// Makes rows (1 + a, 2⁻¹², 2⁻¹², ...) that end with different numbers of zeros. The products of
/// the small numbers, 2⁻²⁴, are half a unit in the last place of the sum so far, so a float32 sum
/// loses all of them. `a` nearly compensates for the zeros.
fn rows_with_lost_terms(rows: usize, dim: usize, seed: u64) -> Array2<f32> {
    let mut random = Random::new(seed);
    let (small, bit) = (1.0 / 4096.0, 1.0 / f64::from(1 << 23));
    let mut x = Array2::zeros((rows, dim));
    for mut row in x.rows_mut() {
        let zeros = random.below(3) * ((dim - 1) / 4) * 2;
        row.slice_mut(ndarray::s![1..dim - zeros]).fill(small);
        row[0] = (1.0 + (zeros / 2 + random.below(3)) as f64 * bit) as f32;
    }
    x
}

/// Makes rows with random directions, and lengths from `from` to `to`.
fn scattered(rows: usize, dim: usize, (from, to): (f64, f64), seed: u64) -> Array2<f32> {
    let mut random = Random::new(seed);
    let mut x = Array2::from_shape_fn((rows, dim), |_| (random.uniform() - 0.5) as f32);
    for mut row in x.rows_mut() {
        let length = from * (to / from).powf(random.uniform());
        let factor = length / row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
        row.mapv_inplace(|v| (f64::from(v) * factor) as f32);
    }
    x
}

/// Adds tiny rows before and after the rows of `x`. Tiny rows have small extents.
fn between_tiny(x: &Array2<f32>) -> Array2<f32> {
    let tiny = Array2::from_elem((2, x.ncols()), 1.0 / 1024.0);
    ndarray::concatenate![ndarray::Axis(0), tiny, *x, tiny]
}

/// Returns the middles for the 16-bit formats that kernels on this machine use.
fn middles() -> Vec<f64> {
    let has = |format: fn(&Kernel) -> bool| screens().any(|(kernel, _)| format(kernel));
    let formats =
        [(has(Kernel::has_bfloat16), BFLOAT16_MIDDLE), (has(Kernel::has_int16), INT16_MIDDLE)];
    formats.into_iter().filter_map(|(is_used, middle)| is_used.then_some(middle)).collect()
}

#[test]
fn residuals_along_the_rows_reach_the_margin_and_do_not_exceed_it() {
    for middle in middles() {
        let (x, ones) = (collinear(20, middle, 1), Array2::<f32>::ones((3, 64)));
        let reached = SIMILARITIES.map(|similarity| {
            let fractions = [
                largest_fraction(&ones, Some(&between_tiny(&x)), similarity),
                largest_fraction(&between_tiny(&x), Some(&ones), similarity),
                largest_fraction(&x, None, similarity),
                largest_fraction(&between_tiny(&x), None, similarity),
            ];
            fractions[..3].iter().copied().fold(f64::INFINITY, f64::min)
        });
        assert!(reached.iter().all(|fraction| *fraction > 0.9), "{middle}: {reached:?}");
    }
}

#[test]
fn terms_that_a_float32_sum_loses_reach_half_of_the_margin() {
    let x = rows_with_lost_terms(12, 1025, 1);
    for rows in [x.clone(), between_tiny(&x)] {
        // The other half of the margin is for kernels that also round products.
        assert!(largest_fraction(&rows, Some(&x), Similarity::Dot) > 0.45);
        assert!(largest_fraction(&x, Some(&rows), Similarity::Dot) > 0.45);
        assert!(largest_fraction(&rows, None, Similarity::Dot) > 0.45);
    }
}

#[test]
fn squared_lengths_that_are_rounded_stay_within_the_margin() {
    let long = scattered(40, 8, (0.5, 1.0), 1);
    let short = scattered(200, 8, (1e-9, 1e-3), 2);
    // A bias of at most 1/2 is rounded three times, and the margin allows for eight roundings.
    assert!(largest_fraction(&long, Some(&short), Similarity::Euclidean) > 0.13);
    assert!(largest_fraction(&short, Some(&long), Similarity::Euclidean) > 0.13);
    let both = ndarray::concatenate![ndarray::Axis(0), short, long, short];
    assert!(largest_fraction(&both, None, Similarity::Euclidean) > 0.13);
}

#[test]
fn a_sum_whose_error_has_no_bound_has_an_infinite_margin() {
    let one = Array2::<f32>::ones((1, 1));
    let margin = |dim: usize| {
        let kernel = select(None).unwrap();
        let row = Matrix::F32(one.broadcast((1, dim)).unwrap());
        let space =
            Dense::new(row, None, Similarity::Dot, Precision::Float32, kernel, &Control::default())
                .unwrap();
        let one = Extent { norm: 1.0, length: 1.0, ..Extent::default() };
        DensePacking::of_each_kind(&space)[0].margin(one, one)
    };
    assert!(margin(1 << 21) < 0.6);
    assert_eq!(margin(1 << 22), f64::INFINITY);
}

fn bits(found: &PerQuery) -> Vec<u64> {
    found.columns.iter().flatten().map(|v| v.to_bits()).collect()
}

fn assert_screen_decides_nothing(
    queries: &Array2<f32>,
    gallery: Option<&Array2<f32>>,
    similarity: Similarity,
) {
    assert_keys_decide(
        Matrix::F32(queries.view()),
        gallery.map(|g| Matrix::F32(g.view())),
        similarity,
    );
}

/// Asserts that a screen gives the same ranks and neighbours as all keys.
fn assert_keys_decide<'a>(
    queries: Matrix<'a>,
    gallery: Option<Matrix<'a>>,
    similarity: Similarity,
) {
    let mut random = Random::new(7);
    let mut label = |n: usize| (0..n).map(|_| random.below(4) as u32).collect::<Vec<_>>();
    let (labels, gallery_labels) = (label(queries.rows()), gallery.map(|g| label(g.rows())));
    let relation = Relation::of_labels(&labels, gallery_labels.as_deref()).unwrap();
    let dim = queries.dim();
    let directions = [0, 1, dim.min(64) / 2, dim.min(64)];
    for ((kernel, precision), directions) in
        screens().flat_map(|screen| directions.map(|number| (screen, number)))
    {
        let with = |many_positives| {
            Control::traced(Sizes {
                many_positives,
                directions: Some(directions),
                ..Sizes::default()
            })
        };
        let control = with(None);
        let space = Dense::new(queries, gallery, similarity, precision, kernel, &control).unwrap();
        for ties in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected] {
            let ranked = |many_positives| {
                let metrics = vec![
                    Metric::Recall(2),
                    Metric::RPrecision,
                    Metric::MapAtR,
                    Metric::ReciprocalRank,
                ];
                let options = Options { metrics, may_lack_matches: false };
                bits(
                    &evaluate(
                        &space,
                        &relation,
                        &[ties],
                        &options,
                        &Alone,
                        &with(Some(many_positives)),
                    )
                    .unwrap()[0],
                )
            };
            assert_eq!(
                ranked(usize::MAX),
                ranked(0),
                "{} {precision:?} {similarity:?} {ties:?}",
                kernel.name
            );
        }
        let (n, items) = (queries.rows(), gallery.unwrap_or(queries).rows());
        for k in [1, 4, items / 2, items] {
            let (mut keys, mut indices) = (vec![0.0; n * k], vec![0; n * k]);
            let results =
                Results { k, score: |_, key| key, scores: &mut keys, indices: &mut indices };
            nearest_screened(&space, OwnItem::Absent.into(), &control, results).unwrap();
            for query in 0..n {
                let pairs: Vec<_> = (0..items).map(|item| (query as u32, item as u32)).collect();
                let mut all = Vec::new();
                space.keys(&pairs, &mut Scratch::default(), &mut all).unwrap();
                let mut order: Vec<i64> = (0..items as i64).collect();
                order.sort_by(|a, b| all[*b as usize].total_cmp(&all[*a as usize]).then(a.cmp(b)));
                assert_eq!(
                    indices[query * k..][..k],
                    order[..k],
                    "{} {precision:?} {similarity:?} {k}",
                    kernel.name
                );
            }
        }
    }
}

/// Makes rows with random numbers along `axes` axes, and 3/4 or −3/4 along a further axis.
fn opposite_residuals(rows: usize, axes: usize, seed: u64) -> Array2<f32> {
    let mut random = Random::new(seed);
    Array2::from_shape_fn((rows, axes + 9), |(row, i)| match i {
        i if i < axes => random.uniform() as f32 - 0.5,
        i if i == axes + 3 => [0.75, -0.75][row % 2],
        _ => 0.0,
    })
}

#[test]
fn unpacked_parts_of_equal_and_of_opposite_direction_reach_their_bounds() {
    let x = opposite_residuals(40, 6, 5);
    for (kernel, precision) in screens() {
        for similarity in SIMILARITIES {
            let control = Control::default();
            let space =
                Dense::new(Matrix::F32(x.view()), None, similarity, precision, kernel, &control)
                    .unwrap();
            let axes: Vec<f64> =
                (0..6 * 15).map(|at| f64::from(u8::from(at / 15 == at % 15))).collect();
            let packing = DensePacking::along(&space, &axes);
            let fraction = worst_fraction(&space, &packing, true);
            let tight = if space.has_coarse_words() { 0.9 } else { 0.999 };
            assert!(
                (tight..=1.0).contains(&fraction),
                "{} {precision:?} {similarity:?}: {fraction}",
                kernel.name
            );
        }
    }
    for similarity in SIMILARITIES {
        assert_screen_decides_nothing(&x, None, similarity);
        assert_screen_decides_nothing(&x, Some(&opposite_residuals(30, 6, 6)), similarity);
    }
}

#[test]
fn near_ties_with_opposite_errors_are_decided_by_their_keys() {
    for middle in middles() {
        let (x, ones) = (collinear(90, middle, 3), Array2::<f32>::ones((4, 64)));
        for similarity in SIMILARITIES {
            assert_screen_decides_nothing(&ones, Some(&between_tiny(&x)), similarity);
            assert_screen_decides_nothing(&between_tiny(&x), None, similarity);
        }
    }
    let x = rows_with_lost_terms(70, 513, 4);
    assert_screen_decides_nothing(
        &x.slice(ndarray::s![..5, ..]).to_owned(),
        Some(&x),
        Similarity::Dot,
    );
    assert_screen_decides_nothing(&x, None, Similarity::Dot);
}

#[test]
fn keys_whose_products_underflow_are_within_the_margin_and_decide() {
    // Squares are subnormal below 2^−511, and zero below 2^−537. The smallest float64 number is
    // 2^−1074.
    for exponent in [
        -1075, -1074, -1022, -600, -538, -535, -530, -520, -514, -511, -505, -500, -490, -400, 0,
        490,
    ] {
        let (half, rest) = (2.0f64.powi(exponent / 2), 2.0f64.powi(exponent - exponent / 2));
        let x = scattered(60, 6, (0.01, 4.0), 8).mapv(|v| f64::from(v) * half * rest);
        let y = scattered(90, 6, (0.01, 4.0), 9).mapv(|v| f64::from(v) * half * rest);
        for similarity in [Similarity::Dot, Similarity::Euclidean] {
            let (x, y) = (Matrix::F64(x.view()), Matrix::F64(y.view()));
            for gallery in [None, Some(y)] {
                largest_fraction_in(x, gallery, similarity);
                assert_keys_decide(x, gallery, similarity);
            }
        }
    }
}

#[test]
fn a_table_has_the_keys_of_single_pairs_bit_by_bit() {
    // Rows are long, so that a table must be filled in blocks of items.
    let (n, dim) = (60, 20_000);
    let mut random = Random::new(1);
    let double = Array2::from_shape_fn((n, dim), |_| random.uniform() - 0.5);
    let single = double.mapv(|v| v as f32);
    let codes =
        Array2::from_shape_fn((n, dim / 4), |(i, j)| if i % 2 == 0 { 7 } else { (i * j) as u8 });
    let all: Vec<u32> = (0..n as u32).collect();
    let pairs: Vec<(u32, u32)> =
        all.iter().flat_map(|q| all.iter().map(move |g| (*q, *g))).collect();
    let matrices = [Matrix::F32(single.view()), Matrix::F64(double.view())];
    fn check<S: Space>(space: &S, all: &[u32], pairs: &[(u32, u32)]) {
        let (mut table, mut one_by_one) = (vec![0.0; pairs.len()], Vec::new());
        space.key_table(all, all, &mut table, &Control::default()).unwrap();
        space.keys(pairs, &mut Scratch::default(), &mut one_by_one).unwrap();
        let differing =
            table.iter().zip(&one_by_one).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
        assert_eq!(differing, 0, "{}", space.kernel().name);
    }
    for name in names() {
        let kernel = select(Some(name)).unwrap();
        for (similarity, queries, gallery) in [
            (Similarity::Cosine, 0, 0),
            (Similarity::Dot, 0, 1),
            (Similarity::Dot, 1, 0),
            (Similarity::Euclidean, 1, 1),
        ] {
            let (queries, gallery) = (matrices[queries], Some(matrices[gallery]));
            let control = Control::default();
            let space =
                Dense::new(queries, gallery, similarity, Precision::Float32, kernel, &control)
                    .unwrap();
            check(&space, &all, &pairs);
        }
        check(&Codes::new(codes.view(), None, kernel).unwrap(), &all, &pairs);
    }
}

#[test]
fn a_few_very_long_rows_stay_within_the_margin() {
    // Panels of a few such rows are narrow, so products are computed using chunks.
    let x = scattered(3, 1_000_000, (0.5, 1.0), 5);
    for similarity in SIMILARITIES {
        largest_fraction(&x, None, similarity);
    }
}

#[test]
fn rows_of_any_shape_and_length_stay_within_the_margin_of_their_integers() {
    // Test rows with a single nonzero number, rows of equal numbers, and lengths that differ by a
    // high power of two.
    let mut x = ndarray::concatenate![
        ndarray::Axis(0),
        scattered(20, 33, (1e-30, 1e3), 3),
        Array2::from_elem((2, 33), 7.0)
    ];
    for (row, length) in [(0, 1e3), (1, -1e3), (2, 1e-30)] {
        x.row_mut(row).fill(0.0);
        x[(row, 3 * row)] = length;
    }
    for similarity in SIMILARITIES {
        largest_fraction(&x, None, similarity);
        assert_screen_decides_nothing(&x, None, similarity);
    }
}

#[test]
fn bytes_of_any_signs_stay_within_the_margin_and_are_decided_by_their_keys() {
    let mut random = Random::new(11);
    for values in [&[0, 127, 128, 255][..], &[1, 2, 3]] {
        let mut rows = |n: usize| {
            let mut x = Array2::from_shape_fn((n, 33), |_| values[random.below(values.len())]);
            x.column_mut(0).fill(1);
            x
        };
        let (x, y): (Array2<u8>, Array2<u8>) = (rows(70), rows(90));
        let (signed_x, signed_y) = (x.mapv(|v| v as i8), y.mapv(|v| v as i8));
        let queries = [Matrix::U8(x.view()), Matrix::I8(signed_x.view())];
        let galleries = [Matrix::U8(y.view()), Matrix::I8(signed_y.view())];
        for similarity in SIMILARITIES {
            for queries in queries {
                for gallery in [None, Some(galleries[0]), Some(galleries[1])] {
                    largest_fraction_in(queries, gallery, similarity);
                    assert_keys_decide(queries, gallery, similarity);
                }
            }
        }
    }
}
