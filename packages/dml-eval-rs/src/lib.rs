//! Python bindings of `dml-eval`: they convert arguments, release the GIL and map errors. `python/dml_eval_rs` is the facade.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

mod convert;
mod index_recall;
mod levels;
mod peers;
mod range_search;
mod relation;
mod running;
mod streaming;
mod trial;
mod verification;
mod verification_streaming;

use dml_eval::{
    Average, Codes, Concatenated, Dense, EvaluateOptions, Hardness, KMeansOptions, Matrix, Metric, Normalized, OwnItem,
    PerQuery, Precision, Result, Selected, Side, Similarity, Source, Ties, collect,
};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use rayon::prelude::*;

use convert::{Items, Rows, zeros};
use peers::run_with_peers;
use relation::RelationArrays;
use running::{ArgumentNames, run};

const EVALUATE: ArgumentNames = ArgumentNames { queries: "embeddings", gallery: "gallery" };
const CODES: ArgumentNames = ArgumentNames { queries: "codes", gallery: "gallery_codes" };
const BINARIZE: ArgumentNames = ArgumentNames::one("embeddings");
const KMEANS: ArgumentNames = ArgumentNames::one("x");
const PARTITIONS: ArgumentNames = ArgumentNames { queries: "a", gallery: "b" };
const KNN: ArgumentNames = ArgumentNames { queries: "queries", gallery: "gallery" };

/// A metric: its name, the value of each query, and their mean.
type Column<Values> = (String, Values, f64);
type NumpyColumns<'py> = Vec<Column<Bound<'py, PyArray1<f64>>>>;

/// The metrics, and the number of queries without a match.
type Metrics<Columns> = (Columns, usize);

/// Names the metrics, computes their means, and counts the queries without a match, which are misses if `zero`: a part of the
/// work, to be done in `run`.
#[expect(clippy::disallowed_methods, reason = "metrics are few")]
fn columns(results: PerQuery, zero: bool) -> Metrics<Vec<Column<Vec<f64>>>> {
    let unmatched = results.columns.first().map_or(0, |values| values.iter().filter(|v| v.is_nan()).count());
    let named = results.metrics.into_par_iter().zip(results.columns).map(|(metric, mut values)| {
        if zero {
            values.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0);
        }
        let mean = dml_eval::mean(&values);
        (metric.to_string(), values, mean)
    });
    (named.collect(), unmatched)
}

#[expect(clippy::disallowed_methods, reason = "metrics are few")]
fn metrics(names: &[String]) -> Result<Vec<Metric>> {
    names.iter().map(|name| name.parse()).collect()
}

#[expect(clippy::disallowed_methods, reason = "rules are few")]
fn tie_rules(names: &[String]) -> Result<Vec<Ties>> {
    names.iter().map(|name| name.parse()).collect()
}

#[expect(clippy::disallowed_methods, reason = "metrics are few")]
fn to_numpy(py: Python<'_>, (columns, unmatched): Metrics<Vec<Column<Vec<f64>>>>) -> Metrics<NumpyColumns<'_>> {
    (columns.into_iter().map(|(name, values, mean)| (name, values.into_pyarray(py), mean)).collect(), unmatched)
}

#[pyfunction]
#[pyo3(signature = (embeddings, gallery, relation, *, similarity, metrics, ties, zero_unmatched=false, threads=None, progress=None, peers=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::disallowed_methods, reason = "rules are few")]
fn evaluate<'py>(
    py: Python<'py>,
    embeddings: Rows<'py>,
    gallery: Option<Rows<'py>>,
    relation: RelationArrays<'py>,
    similarity: &str,
    metrics: Vec<String>,
    ties: Vec<String>,
    zero_unmatched: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
) -> PyResult<Vec<Metrics<NumpyColumns<'py>>>> {
    let (similarity, rules) = (EVALUATE.check(similarity.parse::<Similarity>())?, EVALUATE.check(tie_rules(&ties))?);
    let kernel = EVALUATE.check(trial::kernel())?;
    let (queries, gallery) = (embeddings.matrix(), gallery.as_ref().map(Rows::matrix));
    let (view, metrics) = (relation.view()?, EVALUATE.check(self::metrics(&metrics))?);
    let options = EvaluateOptions { metrics, may_lack_matches: zero_unmatched };
    let of_rules = run_with_peers(py, EVALUATE, threads, progress, peers, |peers, control| {
        let selected = if gallery.is_some() { Side::Gallery } else { Side::Query };
        let all = gallery.unwrap_or(queries);
        let part = Selected(&all, view.kept.unwrap_or_default());
        let (queries, gallery) = match view.kept {
            None => (queries.view(), gallery.as_ref().map(Matrix::view)),
            Some(_) if gallery.is_some() => (queries.view(), Some(Matrix::Derived(&part))),
            Some(_) => (Matrix::Derived(&part), None),
        };
        let screen = trial::screen_or(view.screen(&options.metrics, kernel));
        let space = Dense::new(queries, gallery, similarity, screen, kernel, control)
            .map_err(|error| view.kept.map_or(error.clone(), |rows| error.of_selected(selected, rows)))?;
        let relation = view.build(gallery.map(|gallery| gallery.rows()), None)?;
        let found = dml_eval::evaluate_ties(&space, &relation, &rules, &options, peers, control)?;
        Ok(found.into_iter().map(|found| columns(found, zero_unmatched)).collect::<Vec<_>>())
    })?;
    Ok(of_rules.into_iter().map(|columns| to_numpy(py, columns)).collect())
}

#[pyfunction]
#[pyo3(signature = (codes, gallery_codes, relation, *, metrics, ties, zero_unmatched=false, threads=None, progress=None, peers=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::disallowed_methods, reason = "rules are few")]
fn evaluate_codes<'py>(
    py: Python<'py>,
    codes: PyReadonlyArray2<'py, u8>,
    gallery_codes: Option<PyReadonlyArray2<'py, u8>>,
    relation: RelationArrays<'py>,
    metrics: Vec<String>,
    ties: Vec<String>,
    zero_unmatched: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
) -> PyResult<Vec<Metrics<NumpyColumns<'py>>>> {
    let rules = CODES.check(tie_rules(&ties))?;
    let kernel = CODES.check(trial::kernel())?;
    let space = CODES.check(Codes::new(codes.as_array(), gallery_codes.as_ref().map(|g| g.as_array()), kernel))?;
    let (view, metrics) = (relation.view()?, CODES.check(self::metrics(&metrics))?);
    let options = EvaluateOptions { metrics, may_lack_matches: zero_unmatched };
    let gallery = gallery_codes.as_ref().map(|g| g.as_array().nrows());
    let of_rules = run_with_peers(py, CODES, threads, progress, peers, |peers, control| {
        let relation = view.build(gallery, None)?;
        let found = dml_eval::evaluate_ties(&space, &relation, &rules, &options, peers, control)?;
        Ok(found.into_iter().map(|found| columns(found, zero_unmatched)).collect::<Vec<_>>())
    })?;
    Ok(of_rules.into_iter().map(|columns| to_numpy(py, columns)).collect())
}

#[pyfunction]
#[pyo3(signature = (embeddings, threshold, *, threads=None))]
fn binarize<'py>(
    py: Python<'py>,
    embeddings: Rows<'py>,
    threshold: f64,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyArray2<u8>>> {
    let matrix = embeddings.matrix();
    let codes = zeros(py, [matrix.rows(), matrix.dim().div_ceil(8)])?;
    let mut guard = codes.readwrite();
    let out = guard.as_array_mut();
    run(py, BINARIZE, threads, None, |control| dml_eval::binarize(matrix, threshold, out, control))?;
    Ok(codes)
}

/// Returns each query's own item: that of its index, or that of `indices`.
fn own_item<'a>(exclude_self: bool, indices: &'a Option<PyReadonlyArray1<'_, i64>>) -> PyResult<OwnItem<'a>> {
    Ok(match indices {
        Some(indices) => OwnItem::Listed(indices.as_slice()?),
        None if exclude_self => OwnItem::SameIndex,
        None => OwnItem::Absent,
    })
}

#[pyfunction]
#[pyo3(signature = (queries, gallery, k, *, similarity, exclude_self, indices=None, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "two arrays")]
fn knn<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    gallery: Option<Rows<'py>>,
    k: usize,
    similarity: &str,
    exclude_self: bool,
    indices: Option<PyReadonlyArray1<'py, i64>>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<i64>>)> {
    let similarity: Similarity = KNN.check(similarity.parse())?;
    let kernel = KNN.check(trial::kernel())?;
    let screen = trial::screen_or(Precision::SixteenBit);
    let (rows, gallery) = (queries.matrix(), gallery.as_ref().map(Rows::matrix));
    let own = indices;
    let similarities = zeros(py, [rows.rows(), k])?;
    let indices = zeros(py, [rows.rows(), k])?;
    let (mut similarities_guard, mut indices_guard) = (similarities.readwrite(), indices.readwrite());
    let (out, out_indices) = (similarities_guard.as_slice_mut()?, indices_guard.as_slice_mut()?);
    let own = own_item(exclude_self, &own)?;
    run(py, KNN, threads, progress, |control| {
        dml_eval::knn((rows, gallery), (similarity, screen, kernel), (k, own), control, out, out_indices)
    })?;
    Ok((similarities, indices))
}

#[pyfunction]
#[pyo3(signature = (embeddings, labels, k, *, below, margin, similarity, threads=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "two arrays")]
fn hard_negatives<'py>(
    py: Python<'py>,
    embeddings: Rows<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    k: usize,
    below: Option<&str>,
    margin: f64,
    similarity: &str,
    threads: Option<usize>,
) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<i64>>)> {
    let similarity: Similarity = EVALUATE.check(similarity.parse())?;
    let below = EVALUATE.check(below.map(str::parse::<Hardness>).transpose())?.map(|hardness| (hardness, margin));
    let kernel = EVALUATE.check(trial::kernel())?;
    let screen = trial::screen_or(Precision::SixteenBit);
    let (rows, labels) = (embeddings.matrix(), labels.as_slice()?);
    let similarities = zeros(py, [rows.rows(), k])?;
    let indices = zeros(py, [rows.rows(), k])?;
    let (mut similarities_guard, mut indices_guard) = (similarities.readwrite(), indices.readwrite());
    let (out, out_indices) = (similarities_guard.as_slice_mut()?, indices_guard.as_slice_mut()?);
    run(py, EVALUATE, threads, None, |control| {
        out.fill(f32::NAN);
        let space = Dense::new(rows, None, similarity, screen, kernel, control)?;
        dml_eval::hard_negatives(&space, labels, k, below, control, out, out_indices)
    })?;
    Ok((similarities, indices))
}

#[pyfunction]
#[pyo3(signature = (codes, gallery_codes, k, *, exclude_self, indices=None, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "two arrays")]
fn knn_codes<'py>(
    py: Python<'py>,
    codes: PyReadonlyArray2<'py, u8>,
    gallery_codes: Option<PyReadonlyArray2<'py, u8>>,
    k: usize,
    exclude_self: bool,
    indices: Option<PyReadonlyArray1<'py, i64>>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyArray2<i32>>, Bound<'py, PyArray2<i64>>)> {
    let kernel = CODES.check(trial::kernel())?;
    let space = CODES.check(Codes::new(codes.as_array(), gallery_codes.as_ref().map(|g| g.as_array()), kernel))?;
    let own = indices;
    let distances = zeros(py, [codes.as_array().nrows(), k])?;
    let indices = zeros(py, [codes.as_array().nrows(), k])?;
    let (mut distances_guard, mut indices_guard) = (distances.readwrite(), indices.readwrite());
    let (out, out_indices) = (distances_guard.as_slice_mut()?, indices_guard.as_slice_mut()?);
    let own = own_item(exclude_self, &own)?;
    run(py, CODES, threads, progress, |control| {
        dml_eval::nearest(&space, k, own, control, Codes::distance, out, out_indices)
    })?;
    Ok((distances, indices))
}

#[pyfunction]
#[pyo3(signature = (x, n_clusters, *, seed, n_init, max_iter, more=None, unit=false, bits=0, threads=None, progress=None, peers=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "the fields of KMeans")]
fn kmeans<'py>(
    py: Python<'py>,
    x: Items<'py>,
    n_clusters: usize,
    seed: u64,
    n_init: usize,
    max_iter: usize,
    more: Option<Items<'py>>,
    unit: bool,
    bits: usize,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Bound<'py, PyAny>, f64, usize)> {
    let kernel = KMEANS.check(trial::kernel())?;
    let (first, second) = (x.matrix(bits)?, more.as_ref().map(|more| more.matrix(bits)).transpose()?);
    let joined = second.as_ref().map(|second| Concatenated(&first, second));
    let all: &dyn Source = joined.as_ref().map_or(&first, |joined| joined);
    let options = KMeansOptions { clusters: n_clusters, seed, runs: n_init, max_iterations: max_iter };
    let (found, single) = run_with_peers(py, KMEANS, threads, progress, peers, |peers, control| {
        let scaled = if unit { Some(Normalized::new(all, control)?) } else { None };
        let x: &dyn Source = scaled.as_ref().map_or(all, |scaled| scaled);
        let found = dml_eval::kmeans(Matrix::Derived(x), options, kernel, peers, control)?;
        let narrow = || collect(found.centroids.iter().map(|v| *v as f32));
        let single = if all.is_double() { None } else { Some(narrow()?) };
        Ok((found, single))
    })?;
    let centroids = match single {
        Some(centroids) => centroids.into_pyarray(py).reshape(found.centroids.dim())?.into_any(),
        None => found.centroids.into_pyarray(py).into_any(),
    };
    Ok((found.labels.into_pyarray(py), centroids, found.inertia, found.iterations))
}

#[pyfunction]
fn nmi(py: Python<'_>, a: PyReadonlyArray1<'_, u32>, b: PyReadonlyArray1<'_, u32>, average: &str) -> PyResult<f64> {
    let average: Average = PARTITIONS.check(average.parse())?;
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::nmi(a, b, average, control))
}

#[pyfunction]
fn ami(py: Python<'_>, a: PyReadonlyArray1<'_, u32>, b: PyReadonlyArray1<'_, u32>) -> PyResult<f64> {
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::ami(a, b, control))
}

#[pyfunction]
fn ari(py: Python<'_>, a: PyReadonlyArray1<'_, u32>, b: PyReadonlyArray1<'_, u32>) -> PyResult<f64> {
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::ari(a, b, control))
}

#[pyfunction]
fn kernels() -> Vec<&'static str> {
    dml_eval::kernel_names()
}

#[pyfunction]
fn missing_kernels() -> Vec<&'static str> {
    dml_eval::missing_kernel_names()
}

#[pymodule(gil_used = false)]
mod _native {
    #[pymodule_export]
    use super::index_recall::index_recall;
    #[pymodule_export]
    use super::levels::evaluate_levels;
    #[pymodule_export]
    use super::range_search::range_search;
    #[pymodule_export]
    use super::streaming::{compute_metrics, count_negatives, count_symmetric_negatives, find_positives};
    #[pymodule_export]
    use super::trial::{begin_trial, end_trial};
    #[pymodule_export]
    use super::verification::{count_distances, pair_scores, roc_curve, verify};
    #[pymodule_export]
    use super::verification_streaming::{advance_searches, begin_pairs, begin_searches, count_pairs};
    #[pymodule_export]
    use super::{
        ami, ari, binarize, evaluate, evaluate_codes, hard_negatives, kernels, kmeans, knn, knn_codes, missing_kernels,
        nmi,
    };

    /// Whether this build is optimised; an unoptimised one is about fifty times slower.
    #[pymodule_export]
    const OPTIMIZED: bool = !cfg!(debug_assertions);
}
