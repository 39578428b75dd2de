//! Bindings of the search for all items above a threshold.

use dml_eval::{Dense, Precision};
use numpy::{IntoPyArray, PyArray1};
use pyo3::prelude::*;

use crate::convert::Rows;
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "gallery" };

#[pyfunction]
#[pyo3(signature = (queries, gallery, threshold, *, similarity, exclude_self, max_results, threads=None, progress=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "three arrays")]
pub fn range_search<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    gallery: Option<Rows<'py>>,
    threshold: f64,
    similarity: &str,
    exclude_self: bool,
    max_results: u64,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<i64>>, Bound<'py, PyArray1<f32>>)> {
    let similarity = NAMES.check(similarity.parse())?;
    let kernel = NAMES.check(trial::kernel())?;
    let screen = trial::screen_or(Precision::SixteenBit);
    let (queries, gallery) = (queries.matrix(), gallery.as_ref().map(Rows::matrix));
    let found = run(py, NAMES, threads, progress, |control| {
        let space = Dense::new(queries, gallery, similarity, screen, kernel, control)?;
        dml_eval::range_search(&space, threshold, exclude_self, max_results, control)
    })?;
    Ok((found.offsets.into_pyarray(py), found.indices.into_pyarray(py), found.similarities.into_pyarray(py)))
}
