//! Bindings for verification: counts of pairs above thresholds.

use dml_eval::{Codes, Dense, PairLabels, Precision, VerifyTasks};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::convert::{Items, Rows, Sides, optional_slice, required};
use crate::evaluation::NAMES;
use crate::peers::run_with_peers;
use crate::running::run;
use crate::trial;

/// A score, the number of negatives above this score, and with at least this score, and the same
/// two numbers for positives.
type Point = (f64, u64, u64, u64, u64);
type Counts<'py> = Bound<'py, PyArray1<u64>>;
type Scores<'py> = Bound<'py, PyArray1<f64>>;
/// The points of a curve, and the positives' scores, the positives per score, and the negatives
/// between scores.
type Crossed<'py> = (Vec<Point>, Option<(Scores<'py>, Counts<'py>, Counts<'py>)>);

/// The options of a verification: the groups of both sides, threads, progress and peers.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Pairs<'py> {
    groups: Option<PyReadonlyArray1<'py, u32>>,
    gallery_groups: Option<PyReadonlyArray1<'py, u32>>,
    #[pyo3(default)]
    threads: Option<usize>,
    #[pyo3(default)]
    progress: Option<Py<PyAny>>,
    #[pyo3(default)]
    peers: Option<Bound<'py, PyAny>>,
}

/// The points to find in a verification of embeddings.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Tasks {
    similarity: String,
    positives: u64,
    negatives: u64,
    ranks: Vec<u64>,
    equal_errors: bool,
    slots: bool,
}

/// Views the labels and the groups of both sides.
fn pair_labels<'a>(
    labels: &'a PyReadonlyArray1<'_, u32>,
    gallery_labels: &'a Option<PyReadonlyArray1<'_, u32>>,
    pairs: &'a Pairs<'_>,
) -> PyResult<PairLabels<'a>> {
    let (groups, gallery_groups) =
        (optional_slice(&pairs.groups)?, optional_slice(&pairs.gallery_groups)?);
    Ok(PairLabels {
        queries: labels.as_slice()?,
        gallery: optional_slice(gallery_labels)?,
        groups: groups.map(|groups| (groups, gallery_groups.unwrap_or(groups))),
    })
}

/// Finds the points of the curve for all pairs.
#[pyfunction]
#[pyo3(signature = (embeddings, labels, gallery, gallery_labels, **options))]
#[expect(clippy::disallowed_methods, reason = "points are few")]
pub fn verify<'py>(
    py: Python<'py>,
    embeddings: Rows<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    gallery: Option<Rows<'py>>,
    gallery_labels: Option<PyReadonlyArray1<'py, u32>>,
    options: Option<Bound<'py, PyDict>>,
) -> PyResult<Crossed<'py>> {
    let options = required(options)?;
    let (mut pairs, tasks): (Pairs<'_>, Tasks) = (options.extract()?, options.extract()?);
    let (progress, peers) = (pairs.progress.take(), pairs.peers.take());
    let (queries, gallery) = (embeddings.matrix(), gallery.as_ref().map(Rows::matrix));
    let labels = pair_labels(&labels, &gallery_labels, &pairs)?;
    let Tasks { similarity, positives, negatives, ranks, equal_errors, slots } = tasks;
    let tasks = VerifyTasks { positives, negatives, ranks, equal_errors, slots };
    let found = run_with_peers(py, NAMES, pairs.threads, progress, peers, |peers, control| {
        let kernel = trial::kernel()?;
        let space =
            Dense::new(queries, gallery, similarity.parse()?, Precision::Float32, kernel, control)?;
        dml_eval::verify(&space, &labels, &tasks, peers, control)
    })?;
    let point = |p: &dml_eval::Point| {
        (p.negatives.score, p.negatives.above, p.negatives.at_least, p.above, p.at_least)
    };
    let slots = found.slots.map(|s| {
        (s.scores.into_pyarray(py), s.positives.into_pyarray(py), s.negatives.into_pyarray(py))
    });
    Ok((found.points.iter().map(point).collect(), slots))
}

/// Counts the positive and negative pairs of codes per distance.
#[pyfunction]
#[pyo3(signature = (embeddings, labels, gallery, gallery_labels, **options))]
pub fn count_distances<'py>(
    py: Python<'py>,
    embeddings: PyReadonlyArray2<'py, u8>,
    labels: PyReadonlyArray1<'py, u32>,
    gallery: Option<PyReadonlyArray2<'py, u8>>,
    gallery_labels: Option<PyReadonlyArray1<'py, u32>>,
    options: Option<Pairs<'py>>,
) -> PyResult<(Counts<'py>, Counts<'py>)> {
    let mut pairs = required(options)?;
    let (progress, peers) = (pairs.progress.take(), pairs.peers.take());
    let (codes, gallery) =
        (embeddings.as_array(), gallery.as_ref().map(|gallery| gallery.as_array()));
    let labels = pair_labels(&labels, &gallery_labels, &pairs)?;
    let found = run_with_peers(py, NAMES, pairs.threads, progress, peers, |peers, control| {
        let space = Codes::new(codes, gallery, trial::kernel()?)?;
        dml_eval::count_distances(&space, &labels, peers, control)
    })?;
    Ok((found.positives.into_pyarray(py), found.negatives.into_pyarray(py)))
}

/// Returns the corners of the ROC curve, and twice the number of pairs with the positive above the
/// negative; ties count half.
#[pyfunction]
pub fn roc_curve<'py>(
    py: Python<'py>,
    scores: PyReadonlyArray1<'py, f64>,
    positives: PyReadonlyArray1<'py, u64>,
    negatives: PyReadonlyArray1<'py, u64>,
) -> PyResult<(Scores<'py>, Scores<'py>, Scores<'py>, u128)> {
    let (scores, positives, negatives) =
        (scores.as_slice()?, positives.as_slice()?, negatives.as_slice()?);
    let found =
        run(py, NAMES, Some(1), None, |_| dml_eval::roc_curve(scores, positives, negatives))?;
    let arrays =
        (found.far.into_pyarray(py), found.tar.into_pyarray(py), found.threshold.into_pyarray(py));
    Ok((arrays.0, arrays.1, arrays.2, found.twice_right))
}

#[pyfunction]
#[pyo3(signature = (items, gallery, pairs, *, similarity, threads=None))]
pub fn pair_scores<'py>(
    py: Python<'py>,
    items: Items<'py>,
    gallery: Option<Items<'py>>,
    pairs: PyReadonlyArray2<'py, u32>,
    similarity: &str,
    threads: Option<usize>,
) -> PyResult<Scores<'py>> {
    let (queries, gallery) = (items.view(), gallery.as_ref().map(Items::view));
    let pairs = pairs.as_array();
    if pairs.ncols() != 2 {
        return Err(PyValueError::new_err(format!(
            "pairs have {} columns; expected 2",
            pairs.ncols()
        )));
    }
    let scores = run(py, NAMES, threads, None, |control| {
        let kernel = trial::kernel()?;
        let pairs = dml_eval::collect(pairs.outer_iter().map(|pair| (pair[0], pair[1])))?;
        match queries {
            Sides::Rows(rows) => {
                let gallery = gallery.map(Sides::rows).transpose()?;
                let space = Dense::new(
                    rows,
                    gallery,
                    similarity.parse()?,
                    Precision::Float32,
                    kernel,
                    control,
                )?;
                dml_eval::pair_scores(&space, &pairs, control)
            }
            Sides::Codes(codes) => {
                let space = Codes::new(codes, gallery.map(Sides::codes).transpose()?, kernel)?;
                dml_eval::code_pair_scores(&space, &pairs, control)
            }
        }
    })?;
    Ok(scores.into_pyarray(py))
}
