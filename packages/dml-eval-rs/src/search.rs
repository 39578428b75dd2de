//! Bindings for searches of embeddings and codes.

use dml_eval::ndarray::ArrayView2;
use dml_eval::{
    Ceiling, Codes, Control, Dense, Filter, Hardness, Lists, Matrix, OwnItem, Positives, Precision,
    Ranges, Result,
};
use numpy::{
    Element, IntoPyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
};
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
    allowed: Option<ListArrays<'py>>,
    #[pyo3(default)]
    threads: Option<usize>,
    #[pyo3(default)]
    progress: Option<Py<PyAny>>,
}

/// Offsets of lists, items, and the number of the list per query.
type ListArrays<'py> =
    (PyReadonlyArray1<'py, u64>, PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, u32>);

fn lists<'a>(arrays: &'a ListArrays<'_>) -> PyResult<Lists<'a>> {
    let (offsets, items, of_queries) = arrays;
    Ok(Lists {
        offsets: offsets.as_slice()?,
        items: items.as_slice()?,
        of_queries: Some(of_queries.as_slice()?),
    })
}

impl Options<'_> {
    /// Makes a filter from `exclude`, which overrides `exclude_self`, and from `allowed`.
    fn filter(&self) -> PyResult<Filter<'_>> {
        let own = match &self.exclude {
            Some(own) => OwnItem::Listed(own.as_slice()?),
            None if self.exclude_self => OwnItem::SameIndex,
            None => OwnItem::Absent,
        };
        Ok(Filter { allowed: self.allowed.as_ref().map(lists).transpose()?, ..own.into() })
    }
}

/// Makes a `Dense` space that borrows the embeddings.
fn dense<'a>(
    queries: Matrix<'a>,
    gallery: Option<Sides<'a>>,
    similarity: &str,
    control: &Control,
) -> Result<Dense<'a>> {
    let (gallery, screen) =
        (gallery.map(Sides::rows).transpose()?, trial::screen_or(Precision::SixteenBit));
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
    let mut options = required(options)?;
    let progress = options.progress.take();
    let (filter, similarity) = (options.filter()?, options.similarity.as_str());
    let view = |items| Items::view_under(items, similarity);
    let (queries, gallery) = (view(&queries), gallery.as_ref().map(view));
    let shape = (queries.len(), k);
    let how = (NAMES, options.threads, progress);
    match queries {
        Sides::Rows(rows) => fill(py, shape, how, |control, similarities, indices| {
            let how =
                (similarity.parse()?, trial::screen_or(Precision::SixteenBit), trial::kernel()?);
            let gallery = gallery.map(Sides::rows).transpose()?;
            dml_eval::knn((rows, gallery), how, (k, filter), control, similarities, indices)
        }),
        Sides::Codes(queries) => fill(py, shape, how, |control, distances, indices| {
            let space = codes(queries, gallery)?;
            dml_eval::nearest(&space, k, filter, control, Codes::distance, distances, indices)
        }),
    }
}

/// Offsets (Q + 1,), gallery indices (M,), and similarities (float32) or distances (int32) (M,).
type RangeArrays<'py> = (Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyAny>);

/// Finds all gallery items per query with a similarity of at least the threshold, or a distance of
/// at most the threshold.
#[pyfunction]
#[pyo3(signature = (queries, gallery, threshold, *, max_results, **options))]
pub fn range_search<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Option<Items<'py>>,
    threshold: f64,
    max_results: u64,
    options: Option<Options<'py>>,
) -> PyResult<RangeArrays<'py>> {
    fn to_lists<T: Element>(py: Python<'_>, found: Ranges<T>) -> RangeArrays<'_> {
        (
            found.offsets.into_pyarray(py),
            found.indices.into_pyarray(py),
            found.values.into_pyarray(py).into_any(),
        )
    }
    let mut options = required(options)?;
    let progress = options.progress.take();
    let (filter, similarity, threads) =
        (options.filter()?, options.similarity.as_str(), options.threads);
    let view = |items| Items::view_under(items, similarity);
    let (queries, gallery) = (view(&queries), gallery.as_ref().map(view));
    match queries {
        Sides::Rows(rows) => {
            let found = run(py, NAMES, threads, progress, |control| {
                let space = dense(rows, gallery, similarity, control)?;
                dml_eval::range_search(&space, threshold, filter, max_results, control)
            })?;
            Ok(to_lists(py, found))
        }
        Sides::Codes(queries) => {
            let found = run(py, NAMES, threads, progress, |control| {
                let space = codes(queries, gallery)?;
                dml_eval::range_search(&space, threshold, filter, max_results, control)
            })?;
            Ok(to_lists(py, found))
        }
    }
}

/// Similarities (float32) or distances (int32) (N,), and pairs (2N,).
type Pairs<'py> = (Bound<'py, PyAny>, Bound<'py, PyArray1<i64>>);

/// Finds the `n` most similar pairs of rows.
#[pyfunction]
#[pyo3(signature = (embeddings, n, **options))]
pub fn top_pairs<'py>(
    py: Python<'py>,
    embeddings: Items<'py>,
    n: usize,
    options: Option<Options<'py>>,
) -> PyResult<Pairs<'py>> {
    let Options { similarity, threads, progress, .. } = required(options)?;
    match embeddings.view() {
        Sides::Rows(rows) => {
            let (scores, pairs) = run(py, evaluation::NAMES, threads, progress, |control| {
                dml_eval::top_pairs(&dense(rows, None, &similarity, control)?, n, control)
            })?;
            Ok((scores.into_pyarray(py).into_any(), pairs.into_pyarray(py)))
        }
        Sides::Codes(rows) => {
            let (scores, pairs) = run(py, evaluation::NAMES, threads, progress, |control| {
                dml_eval::top_pairs(&codes(rows, None)?, n, control)
            })?;
            Ok((scores.into_pyarray(py).into_any(), pairs.into_pyarray(py)))
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
    let mut options = required(options)?;
    let progress = options.progress.take();
    let (filter, similarity, threads) =
        (options.filter()?, options.similarity.as_str(), options.threads);
    let view = |items| Items::view_under(items, similarity);
    let (found, queries, gallery) = (found.as_array(), view(&queries), gallery.as_ref().map(view));
    let (recall, mean) = run(py, NAMES, threads, progress, |control| {
        let recall = match queries {
            Sides::Rows(rows) => {
                let space = dense(rows, gallery, similarity, control)?;
                dml_eval::index_recall(&space, found, k, filter, control)?
            }
            Sides::Codes(queries) => {
                let space = codes(queries, gallery)?;
                dml_eval::index_recall(&space, found, k, filter, control)?
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
pub struct NegativeOptions<'py> {
    /// The labels of both sides. If labels are not given, `positives` lists the matches per query.
    #[pyo3(default)]
    labels: Option<(PyReadonlyArray1<'py, u32>, PyReadonlyArray1<'py, u32>)>,
    #[pyo3(default)]
    positives: Option<ListArrays<'py>>,
    #[pyo3(default)]
    allowed: Option<ListArrays<'py>>,
    /// Which positive bounds the negatives: "hardest", "easiest" or none.
    below: Option<String>,
    margin: f64,
    factor: f64,
    similarity: String,
    #[pyo3(default)]
    threads: Option<usize>,
}

/// Finds the `k` nearest items that don't match, per query.
#[pyfunction]
#[pyo3(signature = (queries, gallery, k, **options))]
pub fn hard_negatives<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Option<Items<'py>>,
    k: usize,
    options: Option<NegativeOptions<'py>>,
) -> PyResult<Neighbours<'py>> {
    let options = required(options)?;
    let positives = match (&options.labels, &options.positives) {
        (_, Some(positives)) => Positives::Listed(lists(positives)?),
        (Some((queries, items)), None) => Positives::Labels(queries.as_slice()?, items.as_slice()?),
        (None, None) => Positives::Labels(&[], &[]),
    };
    let relation = (positives, options.allowed.as_ref().map(lists).transpose()?);
    let positive = NAMES.check(options.below.as_deref().map(str::parse::<Hardness>).transpose())?;
    let bound = positive.map(|positive| Ceiling {
        positive,
        factor: options.factor,
        margin: options.margin,
    });
    let (gallery, shape) = (gallery.as_ref().map(Items::view), (queries.view().len(), k));
    let how = (if gallery.is_some() { NAMES } else { evaluation::NAMES }, options.threads, None);
    let similarity = options.similarity.as_str();
    match queries.view() {
        Sides::Rows(rows) => fill(py, shape, how, |control, similarities, indices| {
            let space = dense(rows, gallery, similarity, control)?;
            dml_eval::hard_negatives(&space, relation, k, bound, control, similarities, indices)
        }),
        Sides::Codes(queries) => fill(py, shape, how, |control, distances, indices| {
            let space = codes(queries, gallery)?;
            dml_eval::hard_negatives(&space, relation, k, bound, control, distances, indices)
        }),
    }
}
