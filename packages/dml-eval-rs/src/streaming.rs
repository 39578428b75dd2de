//! An evaluation in parts: positives of one block of a gallery, negatives of one block, and the metrics.

use dml_eval::{
    Codes, Control, Dense, Matrix, Metric, PartialCounts, PerQuery, Positive, Result, Selected, Side, Similarity, Ties,
    collect,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::convert::{Items, Sides};
use crate::evaluation::{NumpyColumns, columns, to_numpy};
use crate::relation::RelationArrays;
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "block" };

/// Runs work on a space of either kind: of the kept rows of embeddings, or of codes that are all kept. Without a gallery, the
/// queries are their own.
macro_rules! with_space {
    ($queries:expr, $gallery:expr, $similarity:expr, $relation:expr, $metrics:expr, $control:expr, |$space:ident| $work:expr) => {{
        let kernel = trial::kernel()?;
        match ($queries, $gallery as Option<Sides<'_>>) {
            (Sides::Rows(queries), gallery) => {
                let similarity: Similarity = $similarity.parse()?;
                let screen = trial::screen_or($relation.screen($metrics, kernel));
                let gallery = gallery.map(Sides::rows).transpose()?;
                let part = gallery.as_ref().zip($relation.kept).map(|(all, kept)| Selected(all, kept));
                let gallery =
                    part.as_ref().map_or(gallery.as_ref().map(Matrix::view), |part| Some(Matrix::Derived(part)));
                let $space =
                    Dense::new(queries.view(), gallery, similarity, screen, kernel, $control).map_err(|error| {
                        $relation.kept.map_or(error.clone(), |rows| error.of_selected(Side::Gallery, rows))
                    })?;
                $work
            }
            (Sides::Codes(queries), gallery) => {
                let $space = Codes::new(queries, gallery.map(Sides::codes).transpose()?, kernel)?;
                $work
            }
        }
    }};
}

/// The start of each query's positives, their keys and their indices.
type Positives<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<u64>>);

#[pyfunction]
#[pyo3(signature = (queries, gallery, relation, *, similarity, first_item, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn find_positives<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Items<'py>,
    relation: RelationArrays<'py>,
    similarity: &str,
    first_item: u64,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Positives<'py>> {
    let (queries, gallery) = (queries.view(), gallery.view());
    let relation = relation.view()?;
    let items = relation.kept.map_or(gallery.len(), <[usize]>::len);
    let (offsets, keys, indices) = run(py, NAMES, threads, progress, |control: &Control| {
        with_space!(queries, Some(gallery), similarity, relation, &[], control, |space| {
            let relation = relation.build(Some(items), Some(first_item))?;
            let (offsets, positives) = dml_eval::find_positives(&space, &relation, control)?;
            Ok((
                collect(offsets.into_iter().map(|o| o as u64))?,
                collect(positives.iter().map(|p| p.key))?,
                collect(positives.iter().map(|p| p.index))?,
            ))
        })
    })?;
    Ok((offsets.into_pyarray(py), keys.into_pyarray(py), indices.into_pyarray(py)))
}

/// Builds the partial counts from the arrays in which the facade keeps them.
fn partial_counts(
    ties: &str,
    metrics: &[Metric],
    offsets: &[u64],
    keys: &[f64],
    indices: &[u64],
    counts: &[u64],
) -> Result<PartialCounts> {
    let ties: Ties = ties.parse()?;
    let positives = collect(keys.iter().zip(indices).map(|(&key, &index)| Positive { key, index }))?;
    PartialCounts::new(ties, metrics, collect(offsets.iter().map(|o| *o as usize))?, positives, counts)
}

#[pyfunction]
#[pyo3(signature = (queries, gallery, relation, *, similarity, ties, metrics, first_item, offsets, keys, indices, counts, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn count_negatives<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Items<'py>,
    relation: RelationArrays<'py>,
    similarity: &str,
    ties: &str,
    metrics: Vec<String>,
    first_item: u64,
    offsets: PyReadonlyArray1<'py, u64>,
    keys: PyReadonlyArray1<'py, f64>,
    indices: PyReadonlyArray1<'py, u64>,
    counts: PyReadonlyArray1<'py, u64>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (queries, gallery) = (queries.view(), gallery.view());
    let relation = relation.view()?;
    let items = relation.kept.map_or(gallery.len(), <[usize]>::len);
    let (offsets, keys, indices) = (offsets.as_slice()?, keys.as_slice()?, indices.as_slice()?);
    let (counts, metrics) = (counts.as_slice()?, NAMES.check(crate::evaluation::metrics(&metrics))?);
    let counts = run(py, NAMES, threads, progress, |control: &Control| {
        let partial = partial_counts(ties, &metrics, offsets, keys, indices, counts)?;
        with_space!(queries, Some(gallery), similarity, relation, &metrics, control, |space| {
            let relation = relation.build(Some(items), Some(first_item))?;
            dml_eval::count_negatives(&space, &partial, &relation, control)?;
            partial.counts()
        })
    })?;
    Ok(counts.into_pyarray(py))
}

#[pyfunction]
#[pyo3(signature = (items, relation, *, similarity, ties, metrics, blocks, offsets, keys, indices, counts, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn count_symmetric_negatives<'py>(
    py: Python<'py>,
    items: Items<'py>,
    relation: RelationArrays<'py>,
    similarity: &str,
    ties: &str,
    metrics: Vec<String>,
    blocks: (Option<usize>, [u64; 2]),
    offsets: PyReadonlyArray1<'py, u64>,
    keys: PyReadonlyArray1<'py, f64>,
    indices: PyReadonlyArray1<'py, u64>,
    counts: PyReadonlyArray1<'py, u64>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (items, relation, (split, first_items)) = (items.view(), relation.view()?, blocks);
    let (offsets, keys, indices) = (offsets.as_slice()?, keys.as_slice()?, indices.as_slice()?);
    let (counts, metrics) = (counts.as_slice()?, NAMES.check(crate::evaluation::metrics(&metrics))?);
    let counts = run(py, NAMES, threads, progress, |control: &Control| {
        let partial = partial_counts(ties, &metrics, offsets, keys, indices, counts)?;
        with_space!(items, None, similarity, relation, &metrics, control, |space| {
            let relation = relation.build(None, None)?.with_blocks(split.unwrap_or(items.len()), first_items)?;
            dml_eval::count_symmetric_negatives(&space, &partial, &relation, split, control)?;
            partial.counts()
        })
    })?;
    Ok(counts.into_pyarray(py))
}

#[pyfunction]
#[pyo3(signature = (ties, metrics, offsets, keys, indices, counts, *, relation, zero_unmatched=false, threads=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn compute_metrics<'py>(
    py: Python<'py>,
    ties: &str,
    metrics: Vec<String>,
    offsets: PyReadonlyArray1<'py, u64>,
    keys: PyReadonlyArray1<'py, f64>,
    indices: PyReadonlyArray1<'py, u64>,
    counts: PyReadonlyArray1<'py, u64>,
    relation: RelationArrays<'py>,
    zero_unmatched: bool,
    threads: Option<usize>,
) -> PyResult<NumpyColumns<'py>> {
    let relation = relation.view()?;
    let (offsets, keys, indices) = (offsets.as_slice()?, keys.as_slice()?, indices.as_slice()?);
    let (counts, metrics) = (counts.as_slice()?, NAMES.check(crate::evaluation::metrics(&metrics))?);
    let columns = run(py, NAMES, threads, None, |control| {
        let partial = partial_counts(ties, &metrics, offsets, keys, indices, counts)?;
        let mut results = PerQuery::new(partial.queries(), &metrics)?;
        results.compute(&partial, ties.parse()?, 0, relation.graded()?.as_ref(), control)?;
        Ok(columns(results, zero_unmatched))
    })?;
    Ok(to_numpy(py, columns))
}
