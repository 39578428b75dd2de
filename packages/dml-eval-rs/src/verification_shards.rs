//! A verification in parts, used by the tasks for shards; the driver keeps the state in arrays.

use dml_eval::{
    Alone, Control, Dense, HashedScores, Observed, PairLabels, Precision, Result, Search,
};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::convert::{Rows, copy, optional_slice, required};
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "block" };

type Scores<'py> = Bound<'py, PyArray1<f64>>;
type Hashes<'py> = Bound<'py, PyArray1<u64>>;
/// How many negatives are above and inside a search's range, the kept scores and hashes, and the
/// minimum number of trailing zeros.
type ObservedArrays<'py> = (u64, u64, Scores<'py>, Hashes<'py>, u32);
type ObservedSlices<'py> = (u64, u64, PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, u64>, u32);

/// The attributes of `dml_eval_rs.matches.relation.Relation` that a verification needs.
#[derive(FromPyObject)]
pub struct PairRelation<'py> {
    labels: PyReadonlyArray1<'py, u32>,
    gallery_labels: Option<PyReadonlyArray1<'py, u32>>,
    groups: Option<PyReadonlyArray1<'py, u32>>,
    gallery_groups: Option<PyReadonlyArray1<'py, u32>>,
}

/// The options of a pass over a pair of blocks.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Options<'py> {
    similarity: String,
    /// The indices of the first query and the first item in the full sides.
    first: (u64, u64),
    /// The maximum number of scores to keep per search.
    capacity: usize,
    /// The minimum number of trailing zeros of a sampled hash.
    #[pyo3(default)]
    zeros: u32,
    #[pyo3(default)]
    ranges: Option<PyReadonlyArray2<'py, f64>>,
    /// If given, count the negatives between these scores.
    #[pyo3(default)]
    positives: Option<PyReadonlyArray1<'py, f64>>,
    #[pyo3(default)]
    threads: Option<usize>,
}

/// Runs work on the space and labels of two blocks, or of a block that is compared with itself.
fn run_on_pair<T: Send>(
    py: Python<'_>,
    (queries, block): (&Rows<'_>, Option<&Rows<'_>>),
    relation: &PairRelation<'_>,
    options: &Options<'_>,
    work: impl FnOnce(&Dense<'_>, &PairLabels<'_>, &Control) -> Result<T> + Send,
) -> PyResult<T> {
    let (queries, block, similarity) =
        (queries.matrix(), block.map(Rows::matrix), &options.similarity);
    let (groups, of_block) =
        (optional_slice(&relation.groups)?, optional_slice(&relation.gallery_groups)?);
    let labels = PairLabels {
        queries: relation.labels.as_slice()?,
        gallery: optional_slice(&relation.gallery_labels)?,
        groups: groups.map(|groups| (groups, of_block.unwrap_or(groups))),
    };
    run(py, NAMES, options.threads, None, |control| {
        let (similarity, kernel) = (similarity.parse()?, trial::kernel()?);
        work(
            &Dense::new(queries, block, similarity, Precision::Float32, kernel, control)?,
            &labels,
            control,
        )
    })
}

fn to_arrays(py: Python<'_>, kept: HashedScores) -> PyResult<(Scores<'_>, Hashes<'_>, u32)> {
    let (scores, hashes) = (kept.scores.iter().map(|of| of.0), kept.scores.iter().map(|of| of.1));
    Ok((copy(py, scores)?, copy(py, hashes)?, kept.zeros))
}

/// Returns the scores of the positives in a pair of blocks, in ascending order, and a sample of
/// negatives: scores, hashes, zeros.
#[pyfunction]
#[pyo3(signature = (queries, block, relation, **options))]
pub fn begin_pairs<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    block: Option<Rows<'py>>,
    relation: PairRelation<'py>,
    options: Option<Options<'py>>,
) -> PyResult<(Scores<'py>, (Scores<'py>, Hashes<'py>, u32))> {
    let options = required(options)?;
    let Options { first, zeros, capacity, .. } = options;
    let sides = (&queries, block.as_ref());
    let (positives, sample) =
        run_on_pair(py, sides, &relation, &options, |space, labels, control| {
            dml_eval::begin_block(space, labels, first, zeros, capacity, control)
        })?;
    Ok((positives.into_pyarray(py), to_arrays(py, sample)?))
}

/// Returns the outer and inner ranges of searches: (searches, 4).
#[expect(clippy::disallowed_methods, reason = "searches are few")]
fn ranges_of(searches: &[Search]) -> Array2<f64> {
    let ranges = searches.iter().map(|s| [s.outer.0, s.outer.1, s.inner.0, s.inner.1]);
    Array2::from(ranges.collect::<Vec<_>>())
}

/// The levels to search for.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub struct Levels<'py> {
    ranks: Vec<u64>,
    equal_errors: bool,
    positives: PyReadonlyArray1<'py, f64>,
    negatives: u64,
    #[pyo3(default)]
    threads: Option<usize>,
}

/// Restores searches from ranges.
#[expect(clippy::disallowed_methods, reason = "searches are few")]
fn restore(searches: Vec<Search>, ranges: &PyReadonlyArray2<'_, f64>) -> Vec<Search> {
    let ranges = ranges.as_array();
    searches
        .into_iter()
        .zip(ranges.outer_iter())
        .map(|(s, r)| Search { outer: (r[0], r[1]), inner: (r[2], r[3]), ..s })
        .collect()
}

/// Begins the searches for ranks of negatives and for equal errors, and returns the ranges to
/// search.
#[pyfunction]
#[pyo3(signature = (sample, **levels))]
pub fn begin_searches<'py>(
    py: Python<'py>,
    sample: PyReadonlyArray1<'py, f64>,
    levels: Option<Levels<'py>>,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let Levels { ranks, equal_errors, positives, negatives, threads } = required(levels)?;
    let (sample, positives) = (sample.as_slice()?, positives.as_slice()?);
    let searches = run(py, NAMES, threads, None, |_| {
        let sample = dml_eval::collect(sample.iter().copied())?;
        Ok(dml_eval::begin_searches(&ranks, equal_errors, positives, negatives, sample))
    })?;
    Ok(ranges_of(&searches).into_pyarray(py))
}

/// Counts the negatives in a pair of blocks: within the ranges of searches, and between adjacent
/// positives if given.
#[pyfunction]
#[pyo3(signature = (queries, block, relation, **options))]
#[expect(clippy::type_complexity, reason = "what each search observed, and an array")]
#[expect(clippy::disallowed_macros, clippy::disallowed_methods, reason = "searches are few")]
pub fn count_pairs<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    block: Option<Rows<'py>>,
    relation: PairRelation<'py>,
    options: Option<Options<'py>>,
) -> PyResult<(Vec<ObservedArrays<'py>>, Option<Bound<'py, PyArray1<u64>>>)> {
    let options = required(options)?;
    let (first, capacity, positives) =
        (options.first, options.capacity, optional_slice(&options.positives)?);
    let searches = options.ranges.as_ref().map_or(Vec::new(), |ranges| {
        // Ranges do not depend on the levels, so use any level.
        let any = dml_eval::begin_searches(
            &vec![1; ranges.as_array().nrows()],
            false,
            &[],
            1,
            Vec::new(),
        );
        restore(any, ranges)
    });
    let sides = (&queries, block.as_ref());
    let (observed, slots) =
        run_on_pair(py, sides, &relation, &options, |space, labels, control| {
            let observed = match searches.is_empty() {
                true => Vec::new(),
                false => {
                    dml_eval::observe_block(space, labels, &searches, first, capacity, control)?
                }
            };
            let count =
                |positives| dml_eval::count_slots(space, labels, positives, &Alone, control);
            Ok((observed, positives.map(count).transpose()?))
        })?;
    let arrays = |Observed { above, inside, kept }: Observed| {
        let (scores, hashes, zeros) = to_arrays(py, kept)?;
        Ok((above, inside, scores, hashes, zeros))
    };
    let slots = slots.map(|slots| slots.negatives.into_pyarray(py));
    Ok((observed.into_iter().map(arrays).collect::<PyResult<_>>()?, slots))
}

/// Narrows the ranges of searches, using the counts of a pass. Returns the ranges, and per finished
/// search the score, the number of negatives above this score, and the number at or above it.
#[pyfunction]
#[pyo3(signature = (ranges, observed, **levels))]
#[expect(clippy::type_complexity, reason = "an array, and the fields of Crossing")]
#[expect(clippy::disallowed_methods, reason = "searches are few")]
pub fn advance_searches<'py>(
    py: Python<'py>,
    ranges: PyReadonlyArray2<'py, f64>,
    observed: Vec<ObservedSlices<'py>>,
    levels: Option<Levels<'py>>,
) -> PyResult<(Bound<'py, PyArray2<f64>>, Vec<Option<(f64, u64, u64)>>)> {
    let Levels { ranks, equal_errors, positives, negatives, threads } = required(levels)?;
    let positives = positives.as_slice()?;
    let searches = dml_eval::begin_searches(&ranks, equal_errors, positives, negatives, Vec::new());
    let mut searches = restore(searches, &ranges);
    let slices = observed.iter().map(|(above, inside, scores, hashes, zeros)| {
        Ok((*above, *inside, scores.as_slice()?, hashes.as_slice()?, *zeros))
    });
    let slices = slices.collect::<PyResult<Vec<_>>>()?;
    let (searches, crossings) = run(py, NAMES, threads, None, |_| {
        let observed = slices.into_iter().map(|(above, inside, scores, hashes, zeros)| {
            let scores = dml_eval::collect(scores.iter().copied().zip(hashes.iter().copied()))?;
            Ok(Observed { above, inside, kept: HashedScores { scores, zeros } })
        });
        let observed = observed.collect::<Result<Vec<_>>>()?;
        let crossings = dml_eval::advance_searches(&mut searches, observed, positives)?;
        Ok((searches, crossings))
    })?;
    let crossings =
        crossings.into_iter().map(|found| found.map(|c| (c.score, c.above, c.at_least)));
    Ok((ranges_of(&searches).into_pyarray(py), crossings.collect()))
}
