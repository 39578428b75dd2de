//! Bindings for clustering, and for the agreement of partitions.

use dml_eval::{Average, Concatenated, KMeansOptions, Matrix, Normalized, Source, collect};
use numpy::{IntoPyArray, PyArray1, PyArrayMethods, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::convert::{Items, required};
use crate::peers::run_with_peers;
use crate::running::{ArgumentNames, run};
use crate::trial;

const KMEANS: ArgumentNames = ArgumentNames::one("x");
const PARTITIONS: ArgumentNames = ArgumentNames { queries: "a", gallery: "b" };

/// Options for a clustering.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Clustering<'py> {
    seed: u64,
    n_init: usize,
    max_iter: usize,
    /// Rows to be appended to the first array.
    #[pyo3(default)]
    more: Option<Items<'py>>,
    /// Whether to scale rows to length 1 first.
    #[pyo3(default)]
    unit: bool,
    /// The bits per code; 0 for floats.
    #[pyo3(default)]
    bits: usize,
    #[pyo3(default)]
    threads: Option<usize>,
    #[pyo3(default)]
    progress: Option<Py<PyAny>>,
    #[pyo3(default)]
    peers: Option<Bound<'py, PyAny>>,
}

/// The rows' clusters, the centroids, the inertia, and the number of rounds in the best run.
type Clusters<'py> = (Bound<'py, PyArray1<u32>>, Bound<'py, PyAny>, f64, usize);

#[pyfunction]
#[pyo3(signature = (x, n_clusters, **options))]
pub fn kmeans<'py>(
    py: Python<'py>,
    x: Items<'py>,
    n_clusters: usize,
    options: Option<Clustering<'py>>,
) -> PyResult<Clusters<'py>> {
    let Clustering { seed, n_init, max_iter, more, unit, bits, threads, progress, peers } =
        required(options)?;
    let kernel = KMEANS.check(trial::kernel())?;
    let (first, second) =
        (x.matrix(bits)?, more.as_ref().map(|more| more.matrix(bits)).transpose()?);
    let joined = second.as_ref().map(|second| Concatenated(&first, second));
    let all: &dyn Source = joined.as_ref().map_or(&first, |joined| joined);
    let options =
        KMeansOptions { clusters: n_clusters, seed, runs: n_init, max_iterations: max_iter };
    let (found, single) =
        run_with_peers(py, KMEANS, threads, progress, peers, |peers, control| {
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
pub fn nmi(
    py: Python<'_>,
    a: PyReadonlyArray1<'_, u32>,
    b: PyReadonlyArray1<'_, u32>,
    average: &str,
) -> PyResult<f64> {
    let average: Average = PARTITIONS.check(average.parse())?;
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::nmi(a, b, average, control))
}

#[pyfunction]
pub fn ami(
    py: Python<'_>,
    a: PyReadonlyArray1<'_, u32>,
    b: PyReadonlyArray1<'_, u32>,
) -> PyResult<f64> {
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::ami(a, b, control))
}

#[pyfunction]
pub fn ari(
    py: Python<'_>,
    a: PyReadonlyArray1<'_, u32>,
    b: PyReadonlyArray1<'_, u32>,
) -> PyResult<f64> {
    let (a, b) = (a.as_slice()?, b.as_slice()?);
    run(py, PARTITIONS, Some(1), None, |control| dml_eval::ari(a, b, control))
}
