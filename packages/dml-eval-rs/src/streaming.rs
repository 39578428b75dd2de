//! An evaluation in parts: positives of one part of a gallery, counts of one part, and the end.

use dml_eval::{
    Books, Codes, Control, Dense, Error, PerQuery, Positive, Precision, Result, Similarity, Ties, collected,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::convert::Items;
use crate::running::{failed, run};
use crate::{Column, columns};

/// Does the same with either kind of space.
macro_rules! with_space {
    ($queries:expr, $gallery:expr, $similarity:expr, $labels:expr, $control:expr, |$space:ident| $work:expr) => {{
        let kernel = dml_eval::select_kernel(None)?;
        match ($queries, $gallery) {
            (Sides::Rows(queries), Sides::Rows(gallery)) => {
                let similarity: Similarity = $similarity.parse()?;
                let screen = Precision::for_labels($labels);
                let $space = Dense::new(queries, Some(gallery), similarity, screen, kernel, $control)?;
                $work
            }
            (Sides::Codes(queries), Sides::Codes(gallery)) => {
                let $space = Codes::new(queries, Some(gallery), kernel)?;
                $work
            }
            _ => Err(Error::Argument("one side holds codes and the other does not; expected two of a kind".into())),
        }
    }};
}

/// Views that may cross to another thread.
enum Sides<'a> {
    Rows(dml_eval::Matrix<'a>),
    Codes(ndarray::ArrayView2<'a, u8>),
}

impl Items<'_> {
    fn view(&self) -> Sides<'_> {
        match self {
            Items::Rows(rows) => Sides::Rows(rows.matrix()),
            Items::Codes(codes) => Sides::Codes(codes.as_array()),
        }
    }
}

/// Where each query's positives begin, their keys and their indices.
type Positives<'py> = (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<u64>>);

#[pyfunction]
#[pyo3(signature = (queries, labels, gallery, gallery_labels, *, similarity, first_item, itself, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "the facade's arguments, one by one")]
pub fn find_positives<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    gallery: Items<'py>,
    gallery_labels: PyReadonlyArray1<'py, u32>,
    similarity: &str,
    first_item: u64,
    itself: Option<PyReadonlyArray1<'py, i64>>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Positives<'py>> {
    let (queries, gallery) = (queries.view(), gallery.view());
    let (labels, gallery_labels) = (labels.as_slice()?, gallery_labels.as_slice()?);
    let itself = itself.as_ref().map(|i| i.as_slice()).transpose()?;
    let (offsets, keys, indices) = run(py, threads, progress, |control: &Control| {
        with_space!(queries, gallery, similarity, labels, control, |space| {
            let (offsets, positives) =
                dml_eval::find_positives(&space, labels, gallery_labels, first_item, itself, control)?;
            Ok((
                collected(offsets.into_iter().map(|o| o as u64))?,
                collected(positives.iter().map(|p| p.key))?,
                collected(positives.iter().map(|p| p.index))?,
            ))
        })
    })?;
    Ok((offsets.into_pyarray(py), keys.into_pyarray(py), indices.into_pyarray(py)))
}

/// The books that the facade keeps in arrays.
fn books(ties: &str, offsets: &[u64], keys: &[f64], indices: &[u64], counts: &[u64]) -> Result<Books> {
    let ties: Ties = ties.parse()?;
    let positives = collected(keys.iter().zip(indices).map(|(&key, &index)| Positive { key, index }))?;
    Books::open(ties, collected(offsets.iter().map(|o| *o as usize))?, positives, counts)
}

#[pyfunction]
#[pyo3(signature = (queries, labels, gallery, gallery_labels, *, similarity, ties, first_item, offsets, keys, indices, counts, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "the facade's arguments, one by one")]
pub fn count<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    gallery: Items<'py>,
    gallery_labels: PyReadonlyArray1<'py, u32>,
    similarity: &str,
    ties: &str,
    first_item: u64,
    offsets: PyReadonlyArray1<'py, u64>,
    keys: PyReadonlyArray1<'py, f64>,
    indices: PyReadonlyArray1<'py, u64>,
    counts: PyReadonlyArray1<'py, u64>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (queries, gallery) = (queries.view(), gallery.view());
    let (labels, gallery_labels) = (labels.as_slice()?, gallery_labels.as_slice()?);
    let books = books(ties, offsets.as_slice()?, keys.as_slice()?, indices.as_slice()?, counts.as_slice()?);
    let books = books.map_err(failed)?;
    let counts = run(py, threads, progress, |control: &Control| {
        with_space!(queries, gallery, similarity, labels, control, |space| {
            dml_eval::count(&space, &books, labels, gallery_labels, first_item, control)?;
            books.counts()
        })
    })?;
    Ok(counts.into_pyarray(py))
}

#[pyfunction]
#[pyo3(signature = (ties, offsets, keys, indices, counts, recall_at, *, threads=None))]
#[expect(clippy::too_many_arguments, reason = "the facade's arguments, one by one")]
pub fn close<'py>(
    py: Python<'py>,
    ties: &str,
    offsets: PyReadonlyArray1<'py, u64>,
    keys: PyReadonlyArray1<'py, f64>,
    indices: PyReadonlyArray1<'py, u64>,
    counts: PyReadonlyArray1<'py, u64>,
    recall_at: Vec<u64>,
    threads: Option<usize>,
) -> PyResult<Vec<Column<'py>>> {
    let books = books(ties, offsets.as_slice()?, keys.as_slice()?, indices.as_slice()?, counts.as_slice()?);
    let books = books.map_err(failed)?;
    let results = run(py, threads, None, |control| {
        let mut results = PerQuery::new(books.queries(), recall_at.len())?;
        results.close(&books, 0, &recall_at, control)?;
        Ok(results)
    })?;
    Ok(columns(py, &recall_at, results))
}
