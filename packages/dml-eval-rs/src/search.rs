//! Bindings for searches of embeddings and codes.

use dml_eval::ndarray::ArrayView2;
use dml_eval::{Codes, Control, Dense, Hardness, Matrix, OwnItem, Precision, Ranges, Result};
use numpy::{Element, IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::convert::{Items, Sides, required, zeros};
use crate::evaluation;
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "gallery" };

/// Options for a search.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options<'py> {
    similarity: String,
    #[pyo3(default)]
    exclude_self: bool,
    #[pyo3(default)]
    exclude: Option<PyReadonlyArray1<'py, i64>>,
    #[pyo3(default)]
    threads: Option<usize>,
    #[pyo3(default)]
    progress: Option<Py<PyAny>>,
}

/// Returns the item that each query excludes: the item with the query's index, a listed item, or none.
fn own_item<'a>(exclude_self: bool, exclude: Option<&'a PyReadonlyArray1<'_, i64>>) -> PyResult<OwnItem<'a>> {
    Ok(match exclude {
        Some(own) => OwnItem::Listed(own.as_slice()?),
        None if exclude_self => OwnItem::SameIndex,
        None => OwnItem::Absent,
    })
}

/// Makes a `Dense` space that borrows the embeddings.
fn dense<'a>(
    queries: Matrix<'a>,
    gallery: Option<Sides<'a>>,
    similarity: &str,
    control: &Control,
) -> Result<Dense<'a>> {
    let (gallery, screen) = (gallery.map(Sides::rows).transpose()?, trial::screen_or(Precision::SixteenBit));
    Dense::new(queries, gallery, similarity.parse()?, screen, trial::kernel()?, control)
}

/// Makes a `Codes` space that borrows the codes.
fn codes<'a>(queries: ArrayView2<'a, u8>, gallery: Option<Sides<'a>>) -> Result<Codes<'a>> {
    Codes::new(queries, gallery.map(Sides::codes).transpose()?, trial::kernel()?)
}

/// Similarities (float32) or distances (int32), and gallery indices, both (Q, K).
type Neighbours<'py> = (Bound<'py, PyAny>, Bound<'py, PyArray2<i64>>);

/// Runs a search that fills two arrays: similarities or distances, and indices.
fn fill<'py, T: Element>(
    py: Python<'py>,
    (queries, k): (usize, usize),
    (names, threads, progress): (ArgumentNames, Option<usize>, Option<Py<PyAny>>),
    search: impl FnOnce(&Control, &mut [T], &mut [i64]) -> Result<()> + Send,
) -> PyResult<Neighbours<'py>> {
    let (reported, indices) = (zeros(py, [queries, k])?, zeros(py, [queries, k])?);
    let (mut reported_guard, mut indices_guard) = (reported.readwrite(), indices.readwrite());
    let (out, out_indices) = (reported_guard.as_slice_mut()?, indices_guard.as_slice_mut()?);
    run(py, names, threads, progress, |control| search(control, out, out_indices))?;
    Ok((reported.into_any(), indices))
}

/// Finds the `k` nearest gallery items per query.
#[pyfunction]
#[pyo3(signature = (queries, gallery, k, **options))]
pub fn knn<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Option<Items<'py>>,
    k: usize,
    options: Option<Options<'py>>,
) -> PyResult<Neighbours<'py>> {
    let Options { similarity, exclude_self, exclude, threads, progress } = required(options)?;
    let gallery = gallery.as_ref().map(Items::view);
    let (shape, own) = ((queries.view().len(), k), own_item(exclude_self, exclude.as_ref())?);
    let how = (NAMES, threads, progress);
    match queries.view() {
        Sides::Rows(rows) => fill(py, shape, how, |control, similarities, indices| {
            let how = (similarity.parse()?, trial::screen_or(Precision::SixteenBit), trial::kernel()?);
            let gallery = gallery.map(Sides::rows).transpose()?;
            dml_eval::knn((rows, gallery), how, (k, own), control, similarities, indices)
        }),
        Sides::Codes(queries) => fill(py, shape, how, |control, distances, indices| {
            let space = codes(queries, gallery)?;
            dml_eval::nearest(&space, k, own, control, Codes::distance, distances, indices)
        }),
    }
}

/// Offsets (Q + 1,), gallery indices (M,), and similarities (float32) or distances (int32) (M,).
type Lists<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyAny>);

/// Finds all gallery items per query with a similarity of at least the threshold, or a distance of at most the threshold.
#[pyfunction]
#[pyo3(signature = (queries, gallery, threshold, *, max_results, **options))]
pub fn range_search<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Option<Items<'py>>,
    threshold: f64,
    max_results: u64,
    options: Option<Options<'py>>,
) -> PyResult<Lists<'py>> {
    fn to_lists<T: Element>(py: Python<'_>, found: Ranges<T>) -> Lists<'_> {
        (found.offsets.into_pyarray(py), found.indices.into_pyarray(py), found.values.into_pyarray(py).into_any())
    }
    let Options { similarity, exclude_self, threads, progress, .. } = required(options)?;
    let gallery = gallery.as_ref().map(Items::view);
    match queries.view() {
        Sides::Rows(rows) => {
            let found = run(py, NAMES, threads, progress, |control| {
                let space = dense(rows, gallery, &similarity, control)?;
                dml_eval::range_search(&space, threshold, exclude_self, max_results, control)
            })?;
            Ok(to_lists(py, found))
        }
        Sides::Codes(queries) => {
            let found = run(py, NAMES, threads, progress, |control| {
                let space = codes(queries, gallery)?;
                dml_eval::range_search(&space, threshold, exclude_self, max_results, control)
            })?;
            Ok(to_lists(py, found))
        }
    }
}

/// Computes the recall of an approximate index per query, and the mean.
#[pyfunction]
#[pyo3(signature = (found, queries, gallery, k, **options))]
pub fn index_recall<'py>(
    py: Python<'py>,
    found: PyReadonlyArray2<'py, i64>,
    queries: Items<'py>,
    gallery: Option<Items<'py>>,
    k: usize,
    options: Option<Options<'py>>,
) -> PyResult<(Bound<'py, PyArray1<f64>>, f64)> {
    let Options { similarity, exclude_self, threads, progress, .. } = required(options)?;
    let (found, queries, gallery) = (found.as_array(), queries.view(), gallery.as_ref().map(Items::view));
    let (recall, mean) = run(py, NAMES, threads, progress, |control| {
        let recall = match queries {
            Sides::Rows(rows) => {
                let space = dense(rows, gallery, &similarity, control)?;
                dml_eval::index_recall(&space, found, k, exclude_self, control)?
            }
            Sides::Codes(queries) => {
                let space = codes(queries, gallery)?;
                dml_eval::index_recall(&space, found, k, exclude_self, control)?
            }
        };
        let mean = dml_eval::mean(&recall);
        Ok((recall, mean))
    })?;
    Ok((recall.into_pyarray(py), mean))
}

/// Options for a search for hard negatives.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct NegativeOptions {
    /// Which positive bounds the negatives: "hardest", "easiest" or none.
    below: Option<String>,
    margin: f64,
    similarity: String,
    #[pyo3(default)]
    threads: Option<usize>,
}

/// Finds the `k` nearest items with different labels per item.
#[pyfunction]
#[pyo3(signature = (embeddings, labels, k, **options))]
pub fn hard_negatives<'py>(
    py: Python<'py>,
    embeddings: Items<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    k: usize,
    options: Option<NegativeOptions>,
) -> PyResult<Neighbours<'py>> {
    let NegativeOptions { below, margin, similarity, threads } = required(options)?;
    let below = NAMES.check(below.as_deref().map(str::parse::<Hardness>).transpose())?.map(|bound| (bound, margin));
    let (shape, labels) = ((embeddings.view().len(), k), labels.as_slice()?);
    let how = (evaluation::NAMES, threads, None);
    match embeddings.view() {
        Sides::Rows(rows) => fill(py, shape, how, |control, similarities, indices| {
            let space = dense(rows, None, &similarity, control)?;
            dml_eval::hard_negatives(&space, labels, k, below, control, similarities, indices)
        }),
        Sides::Codes(queries) => fill(py, shape, how, |control, distances, indices| {
            let space = codes(queries, None)?;
            dml_eval::hard_negatives(&space, labels, k, below, control, distances, indices)
        }),
    }
}
