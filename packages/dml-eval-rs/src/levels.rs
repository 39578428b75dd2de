//! An evaluation at several levels of labels.

use dml_eval::{Codes, Dense, EvaluateOptions, Precision, Result, Similarity, Ties};
use pyo3::prelude::*;

use crate::convert::{Items, Sides};
use crate::peers::run_with_peers;
use crate::relation::{RelationArrays, RelationView};
use crate::{CODES, EVALUATE, Metrics, NumpyColumns, columns, metrics, to_numpy, trial};

#[expect(clippy::disallowed_methods, reason = "levels are few")]
#[pyfunction]
#[pyo3(signature = (embeddings, gallery, relations, *, similarity, metrics, ties, zero_unmatched=false, threads=None, progress=None, peers=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn evaluate_levels<'py>(
    py: Python<'py>,
    embeddings: Items<'py>,
    gallery: Option<Items<'py>>,
    relations: Vec<RelationArrays<'py>>,
    similarity: &str,
    metrics: Vec<String>,
    ties: &str,
    zero_unmatched: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
) -> PyResult<Vec<Metrics<NumpyColumns<'py>>>> {
    let names = if matches!(embeddings, Items::Codes(_)) { CODES } else { EVALUATE };
    let ties: Ties = names.check(ties.parse())?;
    let metrics = names.check(self::metrics(&metrics))?;
    let options = EvaluateOptions { metrics, may_lack_matches: true };
    let kernel = names.check(trial::kernel())?;
    let views = relations.iter().map(RelationArrays::view).collect::<PyResult<Vec<RelationView<'_>>>>()?;
    let (queries, gallery) = (embeddings.view(), gallery.as_ref().map(Items::view));
    let levels = run_with_peers(py, names, threads, progress, peers, |peers, control| {
        let relations = views.iter().map(|view| view.build(None, None)).collect::<Result<Vec<_>>>()?;
        let found = match (queries, gallery) {
            (Sides::Rows(queries), gallery) => {
                let gallery = gallery.map(|side| side.rows()).transpose()?;
                let similarity: Similarity = similarity.parse()?;
                let screens = views.iter().map(|view| view.screen(&options.metrics, kernel));
                let screen = screens.reduce(|a, b| if a == Precision::Float32 { a } else { b });
                let screen = trial::screen_or(screen.unwrap_or(Precision::Float32));
                let space = Dense::new(queries, gallery, similarity, screen, kernel, control)?;
                dml_eval::evaluate_levels(&space, &relations, ties, &options, peers, control)?
            }
            (Sides::Codes(queries), gallery) => {
                let space = Codes::new(queries, gallery.map(|side| side.codes()).transpose()?, kernel)?;
                dml_eval::evaluate_levels(&space, &relations, ties, &options, peers, control)?
            }
        };
        Ok(found.into_iter().map(|level| columns(level, zero_unmatched)).collect::<Vec<_>>())
    })?;
    Ok(levels.into_iter().map(|level| to_numpy(py, level)).collect())
}
