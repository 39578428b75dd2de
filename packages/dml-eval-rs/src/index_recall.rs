//! Bindings of the recall of an approximate index.

use dml_eval::{Dense, Precision};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::convert::Rows;
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "gallery" };

#[pyfunction]
#[pyo3(signature = (found, queries, gallery, k, *, similarity, exclude_self, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn index_recall<'py>(
    py: Python<'py>,
    found: PyReadonlyArray2<'py, i64>,
    queries: Rows<'py>,
    gallery: Option<Rows<'py>>,
    k: usize,
    similarity: &str,
    exclude_self: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyArray1<f64>>, f64)> {
    let similarity = NAMES.check(similarity.parse())?;
    let kernel = NAMES.check(trial::kernel())?;
    let screen = trial::screen_or(Precision::SixteenBit);
    let (found, queries, gallery) = (found.as_array(), queries.matrix(), gallery.as_ref().map(Rows::matrix));
    let (recall, mean) = run(py, NAMES, threads, progress, |control| {
        let space = Dense::new(queries, gallery, similarity, screen, kernel, control)?;
        let recall = dml_eval::index_recall(&space, found, k, exclude_self, control)?;
        let mean = dml_eval::mean(&recall);
        Ok((recall, mean))
    })?;
    Ok((recall.into_pyarray(py), mean))
}
