//! Bindings for the evaluation: metrics per relation and rule for ties.

use dml_eval::{
    Codes, Comparable, Control, Dense, EvaluateOptions, Matrix, Metric, Peers, PerQuery, Precision,
    Result, Selected, Side, Ties,
};
use numpy::{IntoPyArray, PyArray1};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use rayon::prelude::*;

use crate::convert::{Items, Sides, select_codes};
use crate::peers::run_with_peers;
use crate::relation::{RelationArrays, RelationView};
use crate::running::ArgumentNames;
use crate::trial;

pub const NAMES: ArgumentNames = ArgumentNames { queries: "embeddings", gallery: "gallery" };

/// A metric: the name, the value per query, and the mean.
type Column<Values> = (String, Values, f64);

/// The metrics, with the number of queries without a match.
pub type Columns = (Vec<Column<Vec<f64>>>, usize);
pub type NumpyColumns<'py> = (Vec<Column<Bound<'py, PyArray1<f64>>>>, usize);

/// Names the metrics, computes the means, and counts the queries without a match. If `zero`, the
/// values of these queries become 0. Must be called in `run`, because it uses the thread pool.
#[expect(clippy::disallowed_methods, reason = "metrics are few")]
pub fn columns(results: PerQuery, zero: bool) -> Columns {
    let unmatched =
        results.columns.first().map_or(0, |values| values.iter().filter(|v| v.is_nan()).count());
    let named = results.metrics.into_par_iter().zip(results.columns).map(|(metric, mut values)| {
        if zero {
            values.iter_mut().filter(|v| v.is_nan()).for_each(|v| *v = 0.0);
        }
        let mean = dml_eval::mean(&values);
        (metric.to_string(), values, mean)
    });
    (named.collect(), unmatched)
}

#[expect(clippy::disallowed_methods, reason = "metrics are few")]
pub fn metrics(names: &[String]) -> Result<Vec<Metric>> {
    names.iter().map(|name| name.parse()).collect()
}

#[expect(clippy::disallowed_methods, reason = "metrics are few")]
pub fn to_numpy(py: Python<'_>, (columns, unmatched): Columns) -> NumpyColumns<'_> {
    (
        columns
            .into_iter()
            .map(|(name, values, mean)| (name, values.into_pyarray(py), mean))
            .collect(),
        unmatched,
    )
}

/// Options, read from the attributes of Python's `CheckedOptions`.
#[derive(FromPyObject)]
pub struct Options<'py> {
    similarity: String,
    metrics: Vec<String>,
    ties: Vec<String>,
    zero_unmatched: bool,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'py, PyAny>>,
}

/// The relations, rules for ties and options of an evaluation.
struct Task<'a> {
    /// At least one relation. All must keep the same rows.
    views: &'a [RelationView<'a>],
    rules: Vec<Ties>,
    options: EvaluateOptions,
}

impl Task<'_> {
    /// Chooses the faster screen that all relations can use.
    fn screen(&self) -> Result<Precision> {
        let kernel = trial::kernel()?;
        let mut screens = self.views.iter().map(|view| view.screen(&self.options.metrics, kernel));
        let is_narrow = screens.all(|screen| screen == Precision::SixteenBit);
        Ok(trial::screen_or(if is_narrow { Precision::SixteenBit } else { Precision::Float32 }))
    }

    /// Measures embeddings or codes. Only the kept rows of the gallery (or of the queries, if a
    /// gallery is not given) are used.
    fn measure<'a>(
        &self,
        (queries, gallery): (Sides<'a>, Option<Sides<'a>>),
        similarity: &str,
        peers: &dyn Peers,
        control: &Control,
    ) -> Result<Vec<PerQuery>> {
        let (kept, kernel) = (self.views[0].kept, trial::kernel()?);
        let items = gallery.map(|gallery| kept.map_or(gallery.len(), <[usize]>::len));
        match queries {
            Sides::Rows(queries) => {
                let gallery = gallery.map(Sides::rows).transpose()?;
                let (side, all) =
                    gallery.map_or((Side::Query, queries), |gallery| (Side::Gallery, gallery));
                let part = kept.map(|kept| Selected(&all, kept));
                let part = part.as_ref().map(|part| Matrix::Derived(part));
                let (queries, gallery) =
                    replace_searched(queries.view(), gallery.as_ref().map(Matrix::view), part);
                let space = Dense::new(
                    queries,
                    gallery,
                    similarity.parse()?,
                    self.screen()?,
                    kernel,
                    control,
                )
                .map_err(|error| {
                    kept.map_or(error.clone(), |kept| error.of_selected(side, kept))
                })?;
                self.measure_space(&space, items, peers, control)
            }
            Sides::Codes(queries) => {
                let gallery = gallery.map(Sides::codes).transpose()?;
                let part =
                    kept.map(|kept| select_codes(gallery.unwrap_or(queries), kept)).transpose()?;
                let part = part.as_ref().map(|part| part.view());
                let (queries, gallery) = replace_searched(queries, gallery, part);
                self.measure_space(&Codes::new(queries, gallery, kernel)?, items, peers, control)
            }
        }
    }

    #[expect(clippy::disallowed_methods, reason = "relations are few")]
    fn measure_space<S: Comparable>(
        &self,
        space: &S,
        items: Option<usize>,
        peers: &dyn Peers,
        control: &Control,
    ) -> Result<Vec<PerQuery>> {
        // Check all relations before work begins.
        let relations =
            self.views.iter().map(|view| view.build(items)).collect::<Result<Vec<_>>>()?;
        let mut results = Vec::new();
        for relation in &relations {
            let (rules, options) = (&self.rules, &self.options);
            results.extend(dml_eval::evaluate(space, relation, rules, options, peers, control)?);
        }
        Ok(results)
    }
}

/// If `part` is given, replaces the side that is searched (the gallery, or else the queries) by
/// `part`.
fn replace_searched<T>(queries: T, gallery: Option<T>, part: Option<T>) -> (T, Option<T>) {
    match (gallery, part) {
        (gallery, None) => (queries, gallery),
        (None, Some(part)) => (part, None),
        (Some(_), part) => (queries, part),
    }
}

/// Returns metrics per relation and rule for ties.
#[pyfunction]
#[expect(clippy::disallowed_methods, reason = "rules and relations are few")]
pub fn evaluate<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    gallery: Option<Items<'py>>,
    relations: Vec<RelationArrays<'py>>,
    options: Options<'py>,
) -> PyResult<Vec<NumpyColumns<'py>>> {
    let Options { similarity, metrics, ties, zero_unmatched, threads, progress, peers } = options;
    let views = relations.iter().map(RelationArrays::view).collect::<PyResult<Vec<_>>>()?;
    if views.is_empty() {
        return Err(PyValueError::new_err("there is no relation; expected at least one"));
    }
    if views.iter().any(|view| view.kept != views[0].kept) {
        return Err(PyValueError::new_err(
            "relations keep different rows; expected the same rows in all",
        ));
    }
    let rules = ties.iter().map(|name| name.parse()).collect::<Result<Vec<Ties>>>();
    let options = EvaluateOptions {
        metrics: NAMES.check(self::metrics(&metrics))?,
        // When levels are given, the Python code raises the error, because the core can't name the
        // level.
        may_lack_matches: zero_unmatched || views.len() > 1,
    };
    let task = Task { views: &views, rules: NAMES.check(rules)?, options };
    let sides = (queries.view(), gallery.as_ref().map(Items::view));
    let found = run_with_peers(py, NAMES, threads, progress, peers, |peers, control| {
        let found = task.measure(sides, &similarity, peers, control)?;
        Ok(found.into_iter().map(|results| columns(results, zero_unmatched)).collect::<Vec<_>>())
    })?;
    Ok(found.into_iter().map(|columns| to_numpy(py, columns)).collect())
}
