//! Python bindings of `dml-eval`: they convert arguments, release the GIL and map errors. `python/dml_eval_rs` is the facade.

mod convert;
mod index_recall;
mod peers;
mod range_search;
mod running;
mod streaming;
mod verification;

use dml_eval::{
    Average, Codes, Concatenated, Dense, EvaluateOptions, KMeansOptions, Matrix, Normalized, PerQuery, Precision,
    Result, Similarity, Source, Ties,
};
use numpy::{IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use convert::{Items, Rows, optional_slice, zeros};
use peers::run_with_peers;
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

/// Names the metrics, and computes their means: a part of the work, to be done in `run`.
fn columns(recall_at: &[u64], results: PerQuery) -> Vec<Column<Vec<f64>>> {
    let column = |name: String, values: Vec<f64>| {
        let mean = dml_eval::mean(&values);
        (name, values, mean)
    };
    recall_at
        .iter()
        .zip(results.recall)
        .map(|(k, values)| column(format!("recall@{k}"), values))
        .chain([
            column("precision_at_1".into(), results.precision_at_1),
            column("r_precision".into(), results.r_precision),
            column("map_at_r".into(), results.map_at_r),
            column("reciprocal_rank".into(), results.reciprocal_rank),
        ])
        .collect()
}

fn to_numpy(py: Python<'_>, columns: Vec<Column<Vec<f64>>>) -> NumpyColumns<'_> {
    columns.into_iter().map(|(name, values, mean)| (name, values.into_pyarray(py), mean)).collect()
}

fn precision(name: &str) -> Result<Option<Precision>> {
    name.parse().map(Some)
}

#[pyfunction]
#[pyo3(signature = (embeddings, labels, gallery, gallery_labels, *, similarity, recall_at, ties, threads=None, progress=None, peers=None, kernel=None, screen=None, many_positives=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
fn evaluate<'py>(
    py: Python<'py>,
    embeddings: Rows<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    gallery: Option<Rows<'py>>,
    gallery_labels: Option<PyReadonlyArray1<'py, u32>>,
    similarity: &str,
    recall_at: Vec<u64>,
    ties: &str,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
    kernel: Option<&str>,
    screen: Option<&str>,
    many_positives: Option<usize>,
) -> PyResult<NumpyColumns<'py>> {
    let (similarity, ties): (Similarity, Ties) = (EVALUATE.check(similarity.parse())?, EVALUATE.check(ties.parse())?);
    let kernel = EVALUATE.check(dml_eval::select_kernel(kernel))?;
    let screen = EVALUATE.check(screen.map_or(Ok(None), precision))?;
    let (queries, gallery) = (embeddings.matrix(), gallery.as_ref().map(Rows::matrix));
    let (labels, gallery_labels) = (labels.as_slice()?, optional_slice(&gallery_labels)?);
    let options = EvaluateOptions { recall_at, ties, many_positives };
    let columns = run_with_peers(py, EVALUATE, threads, progress, peers, |peers, control| {
        let screen = screen.unwrap_or_else(|| Precision::for_labels(labels));
        let space = Dense::new(queries, gallery, similarity, screen, kernel, control)?;
        let results = dml_eval::evaluate(&space, labels, gallery_labels, &options, peers, control)?;
        Ok(columns(&options.recall_at, results))
    })?;
    Ok(to_numpy(py, columns))
}

#[pyfunction]
#[pyo3(signature = (codes, labels, gallery_codes, gallery_labels, *, recall_at, ties, threads=None, progress=None, peers=None, kernel=None, many_positives=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
fn evaluate_codes<'py>(
    py: Python<'py>,
    codes: PyReadonlyArray2<'py, u8>,
    labels: PyReadonlyArray1<'py, u32>,
    gallery_codes: Option<PyReadonlyArray2<'py, u8>>,
    gallery_labels: Option<PyReadonlyArray1<'py, u32>>,
    recall_at: Vec<u64>,
    ties: &str,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
    kernel: Option<&str>,
    many_positives: Option<usize>,
) -> PyResult<NumpyColumns<'py>> {
    let ties: Ties = CODES.check(ties.parse())?;
    let kernel = CODES.check(dml_eval::select_kernel(kernel))?;
    let space = CODES.check(Codes::new(codes.as_array(), gallery_codes.as_ref().map(|g| g.as_array()), kernel))?;
    let (labels, gallery_labels) = (labels.as_slice()?, optional_slice(&gallery_labels)?);
    let options = EvaluateOptions { recall_at, ties, many_positives };
    let columns = run_with_peers(py, CODES, threads, progress, peers, |peers, control| {
        let results = dml_eval::evaluate(&space, labels, gallery_labels, &options, peers, control)?;
        Ok(columns(&options.recall_at, results))
    })?;
    Ok(to_numpy(py, columns))
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

#[pyfunction]
#[pyo3(signature = (queries, gallery, k, *, similarity, exclude_self, threads=None, progress=None, kernel=None, screen=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "two arrays")]
fn knn<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    gallery: Option<Rows<'py>>,
    k: usize,
    similarity: &str,
    exclude_self: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    kernel: Option<&str>,
    screen: Option<&str>,
) -> PyResult<(Bound<'py, PyArray2<f32>>, Bound<'py, PyArray2<i64>>)> {
    let similarity: Similarity = KNN.check(similarity.parse())?;
    let kernel = KNN.check(dml_eval::select_kernel(kernel))?;
    let screen = KNN.check(screen.map_or(Ok(None), precision))?.unwrap_or(Precision::BFloat16);
    let (rows, gallery) = (queries.matrix(), gallery.as_ref().map(Rows::matrix));
    let similarities = zeros(py, [rows.rows(), k])?;
    let indices = zeros(py, [rows.rows(), k])?;
    let (mut similarities_guard, mut indices_guard) = (similarities.readwrite(), indices.readwrite());
    let (out, out_indices) = (similarities_guard.as_slice_mut()?, indices_guard.as_slice_mut()?);
    run(py, KNN, threads, progress, |control| {
        let space = Dense::new(rows, gallery, similarity, screen, kernel, control)?;
        let score = |query, key| space.similarity_of_key(query, key);
        dml_eval::nearest(&space, k, exclude_self, control, score, out, out_indices)
    })?;
    Ok((similarities, indices))
}

#[pyfunction]
#[pyo3(signature = (codes, gallery_codes, k, *, exclude_self, threads=None, progress=None, kernel=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "two arrays")]
fn knn_codes<'py>(
    py: Python<'py>,
    codes: PyReadonlyArray2<'py, u8>,
    gallery_codes: Option<PyReadonlyArray2<'py, u8>>,
    k: usize,
    exclude_self: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    kernel: Option<&str>,
) -> PyResult<(Bound<'py, PyArray2<i32>>, Bound<'py, PyArray2<i64>>)> {
    let kernel = CODES.check(dml_eval::select_kernel(kernel))?;
    let space = CODES.check(Codes::new(codes.as_array(), gallery_codes.as_ref().map(|g| g.as_array()), kernel))?;
    let distances = zeros(py, [codes.as_array().nrows(), k])?;
    let indices = zeros(py, [codes.as_array().nrows(), k])?;
    let (mut distances_guard, mut indices_guard) = (distances.readwrite(), indices.readwrite());
    let (out, out_indices) = (distances_guard.as_slice_mut()?, indices_guard.as_slice_mut()?);
    run(py, CODES, threads, progress, |control| {
        dml_eval::nearest(&space, k, exclude_self, control, Codes::distance, out, out_indices)
    })?;
    Ok((distances, indices))
}

#[pyfunction]
#[pyo3(signature = (x, n_clusters, *, seed, n_init, max_iter, more=None, unit=false, bits=0, threads=None, progress=None, peers=None, kernel=None))]
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
    kernel: Option<&str>,
) -> PyResult<(Bound<'py, PyArray1<u32>>, Bound<'py, PyAny>, f64, usize)> {
    let kernel = KMEANS.check(dml_eval::select_kernel(kernel))?;
    let (first, second) = (x.matrix(bits)?, more.as_ref().map(|more| more.matrix(bits)).transpose()?);
    let joined = second.as_ref().map(|second| Concatenated(&first, second));
    let all: &dyn Source = joined.as_ref().map_or(&first, |joined| joined);
    let options = KMeansOptions { clusters: n_clusters, seed, runs: n_init, max_iterations: max_iter };
    let (found, single) = run_with_peers(py, KMEANS, threads, progress, peers, |peers, control| {
        let scaled = if unit { Some(Normalized::new(all, control)?) } else { None };
        let x: &dyn Source = scaled.as_ref().map_or(all, |scaled| scaled);
        let found = dml_eval::kmeans(Matrix::Derived(x), options, kernel, peers, control)?;
        let single = (!all.is_double()).then(|| found.centroids.mapv(|v| v as f32));
        Ok((found, single))
    })?;
    let centroids = match single {
        Some(centroids) => centroids.into_pyarray(py).into_any(),
        None => found.centroids.into_pyarray(py).into_any(),
    };
    Ok((found.labels.into_pyarray(py), centroids, found.inertia, found.iterations))
}

#[pyfunction]
fn nmi(py: Python<'_>, a: PyReadonlyArray1<'_, u32>, b: PyReadonlyArray1<'_, u32>, average: &str) -> PyResult<f64> {
    let average: Average = PARTITIONS.check(average.parse())?;
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |_| dml_eval::nmi(a, b, average))
}

#[pyfunction]
fn ami(py: Python<'_>, a: PyReadonlyArray1<'_, u32>, b: PyReadonlyArray1<'_, u32>) -> PyResult<f64> {
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::ami(a, b, control))
}

#[pyfunction]
fn ari(py: Python<'_>, a: PyReadonlyArray1<'_, u32>, b: PyReadonlyArray1<'_, u32>) -> PyResult<f64> {
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |_| dml_eval::ari(a, b))
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
    use super::range_search::range_search;
    #[pymodule_export]
    use super::streaming::{compute_metrics, count_negatives, find_positives};
    #[pymodule_export]
    use super::verification::{pair_scores, verify};
    #[pymodule_export]
    use super::{ami, ari, binarize, evaluate, evaluate_codes, kernels, kmeans, knn, knn_codes, missing_kernels, nmi};

    /// Whether this build is optimised; an unoptimised one is about fifty times slower.
    #[pymodule_export]
    const OPTIMIZED: bool = !cfg!(debug_assertions);
}
