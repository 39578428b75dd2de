//! An evaluation in parts, used by the tasks for shards: positives and negatives for two blocks,
//! and metrics for all blocks.

use dml_eval::{
    Codes, Control, Dense, Metric, PartialCounts, PerQuery, Positive, Result, Similarity, Ties,
    collect,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::convert::{Items, Sides, required};
use crate::evaluation::{NumpyColumns, columns, metrics, to_numpy};
use crate::relation::RelationArrays;
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "block" };

/// The positives of some queries, the negatives counted so far, and how to count.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options<'py> {
    ties: String,
    metrics: Vec<String>,
    offsets: PyReadonlyArray1<'py, u64>,
    keys: PyReadonlyArray1<'py, f64>,
    indices: PyReadonlyArray1<'py, u64>,
    counts: PyReadonlyArray1<'py, u64>,
    #[pyo3(default)]
    similarity: String,
    #[pyo3(default)]
    threads: Option<usize>,
    /// The first item's index in the full gallery.
    #[pyo3(default)]
    first_item: u64,
    /// If two blocks are in an array: where the second block begins, and both blocks' first indices
    /// in the full gallery.
    #[pyo3(default)]
    split: Option<usize>,
    #[pyo3(default)]
    first_items: [u64; 2],
    /// Whether an unmatched query counts as a miss.
    #[pyo3(default)]
    zero_unmatched: bool,
}

/// Views of positives and counts, which can be sent to threads.
struct Counted<'a> {
    arrays: (&'a [u64], &'a [f64], &'a [u64], &'a [u64]),
    ties: Ties,
    metrics: Vec<Metric>,
}

impl<'a> Counted<'a> {
    fn new(options: &'a Options<'_>) -> PyResult<Self> {
        let Options { offsets, keys, indices, counts, .. } = options;
        let arrays =
            (offsets.as_slice()?, keys.as_slice()?, indices.as_slice()?, counts.as_slice()?);
        let ties = NAMES.check(options.ties.parse())?;
        Ok(Counted { arrays, ties, metrics: NAMES.check(metrics(&options.metrics))? })
    }

    fn build(&self) -> Result<PartialCounts> {
        let (offsets, keys, indices, counts) = self.arrays;
        let positives =
            collect(keys.iter().zip(indices).map(|(&key, &index)| Positive { key, index }))?;
        PartialCounts::new(
            self.ties,
            &self.metrics,
            collect(offsets.iter().map(|o| *o as usize))?,
            positives,
            counts,
        )
    }
}

/// Runs work on a space of embeddings or codes. By default, the queries are used as the gallery.
macro_rules! with_space {
    ($queries:expr, $gallery:expr, $similarity:expr, $screen:expr, $control:expr,
     |$space:ident| $work:expr) => {{
        let (kernel, gallery) = (trial::kernel()?, $gallery as Option<Sides<'_>>);
        match $queries {
            Sides::Rows(queries) => {
                let (similarity, gallery): (Similarity, _) =
                    ($similarity.parse()?, gallery.map(Sides::rows).transpose()?);
                let screen = trial::screen_or($screen(kernel));
                let $space = Dense::new(queries, gallery, similarity, screen, kernel, $control)?;
                $work
            }
            Sides::Codes(queries) => {
                let $space = Codes::new(queries, gallery.map(Sides::codes).transpose()?, kernel)?;
                $work
            }
        }
    }};
}

/// The start of the positives per query, and the positives' keys and indices.
type Positives<'py> =
    (Bound<'py, PyArray1<u64>>, Bound<'py, PyArray1<f64>>, Bound<'py, PyArray1<u64>>);

/// Finds the queries' positives in a block.
#[pyfunction]
#[pyo3(signature = (queries, block, relation, *, similarity, threads=None))]
pub fn find_positives<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    block: Items<'py>,
    relation: RelationArrays<'py>,
    similarity: &str,
    threads: Option<usize>,
) -> PyResult<Positives<'py>> {
    let (queries, block, relation) = (queries.view(), block.view(), relation.view()?);
    let (offsets, keys, indices) = run(py, NAMES, threads, None, |control: &Control| {
        with_space!(
            queries,
            Some(block),
            similarity,
            |kernel| relation.screen(&[], kernel),
            control,
            |space| {
                let relation = relation.build(Some(block.len()))?;
                let (offsets, positives) = dml_eval::find_positives(&space, &relation, control)?;
                Ok((
                    collect(offsets.into_iter().map(|o| o as u64))?,
                    collect(positives.iter().map(|p| p.key))?,
                    collect(positives.iter().map(|p| p.index))?,
                ))
            }
        )
    })?;
    Ok((offsets.into_pyarray(py), keys.into_pyarray(py), indices.into_pyarray(py)))
}

/// Counts the queries' negatives in a block.
#[pyfunction]
#[pyo3(signature = (queries, block, relation, **options))]
pub fn count_negatives<'py>(
    py: Python<'py>,
    queries: Items<'py>,
    block: Items<'py>,
    relation: RelationArrays<'py>,
    options: Option<Options<'py>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (queries, block, relation, options) =
        (queries.view(), block.view(), relation.view()?, required(options)?);
    let (counted, similarity, first_item) =
        (Counted::new(&options)?, &options.similarity, options.first_item);
    let screen = |kernel| relation.screen(&counted.metrics, kernel);
    let counts = run(py, NAMES, options.threads, None, |control: &Control| {
        let partial = counted.build()?;
        with_space!(queries, Some(block), similarity, screen, control, |space| {
            let relation = relation.build(Some(block.len()))?.with_first_item(first_item)?;
            dml_eval::count_negatives(&space, &partial, &relation, control)?;
            partial.counts()
        })
    })?;
    Ok(counts.into_pyarray(py))
}

/// Counts negatives for both items of pairs, comparing a block with itself, or with a second block.
#[pyfunction]
#[pyo3(signature = (items, relation, **options))]
pub fn count_symmetric_negatives<'py>(
    py: Python<'py>,
    items: Items<'py>,
    relation: RelationArrays<'py>,
    options: Option<Options<'py>>,
) -> PyResult<Bound<'py, PyArray1<u64>>> {
    let (items, relation, options) = (items.view(), relation.view()?, required(options)?);
    let (counted, similarity) = (Counted::new(&options)?, &options.similarity);
    let (split, first_items) = (options.split, options.first_items);
    let screen = |kernel| relation.screen(&counted.metrics, kernel);
    let counts = run(py, NAMES, options.threads, None, |control: &Control| {
        let partial = counted.build()?;
        with_space!(items, None, similarity, screen, control, |space| {
            let relation =
                relation.build(None)?.with_blocks(split.unwrap_or(items.len()), first_items)?;
            dml_eval::count_symmetric_negatives(&space, &partial, &relation, split, control)?;
            partial.counts()
        })
    })?;
    Ok(counts.into_pyarray(py))
}

/// Computes the metrics from counted positives. The relation is only used for grades.
#[pyfunction]
#[pyo3(signature = (relation, **options))]
pub fn compute_metrics<'py>(
    py: Python<'py>,
    relation: RelationArrays<'py>,
    options: Option<Options<'py>>,
) -> PyResult<NumpyColumns<'py>> {
    let (relation, options) = (relation.view()?, required(options)?);
    let (counted, zero_unmatched) = (Counted::new(&options)?, options.zero_unmatched);
    let columns = run(py, NAMES, options.threads, None, |control| {
        let partial = counted.build()?;
        let mut results = PerQuery::new(partial.queries(), &counted.metrics)?;
        results.compute(&partial, counted.ties, 0, relation.graded()?.as_ref(), control)?;
        Ok(columns(results, zero_unmatched))
    })?;
    Ok(to_numpy(py, columns))
}
