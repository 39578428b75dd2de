//! Bindings of a verification in parts: the facade keeps the state in arrays.

use dml_eval::{Alone, Dense, HashedScores, Observed, PairLabels, Precision, Result, Search};
use numpy::ndarray::Array2;
use numpy::{IntoPyArray, PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;

use crate::convert::{Rows, copy, optional_slice};
use crate::running::{ArgumentNames, run};
use crate::trial;

const NAMES: ArgumentNames = ArgumentNames { queries: "queries", gallery: "block" };

type Scores<'py> = Bound<'py, PyArray1<f64>>;
type Hashes<'py> = Bound<'py, PyArray1<u64>>;
/// Negatives above and inside of a search's range, the scores that were kept with their hashes, and the zeros of these.
type ObservedArrays<'py> = (u64, u64, Scores<'py>, Hashes<'py>, u32);
type ObservedSlices<'py> = (u64, u64, PyReadonlyArray1<'py, f64>, PyReadonlyArray1<'py, u64>, u32);

fn to_arrays(py: Python<'_>, kept: HashedScores) -> PyResult<(Scores<'_>, Hashes<'_>, u32)> {
    let (scores, hashes) = (kept.scores.iter().map(|of| of.0), kept.scores.iter().map(|of| of.1));
    Ok((copy(py, scores)?, copy(py, hashes)?, kept.zeros))
}

/// Returns the scores of a block's positives, ascending, and a sample of its negatives: scores, hashes, zeros.
#[pyfunction]
#[pyo3(signature = (queries, labels, block, block_labels, *, groups, block_groups, similarity, positives, first_item, zeros, capacity, threads=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
pub fn begin_pairs<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    block: Rows<'py>,
    block_labels: PyReadonlyArray1<'py, u32>,
    groups: Option<PyReadonlyArray1<'py, u32>>,
    block_groups: Option<PyReadonlyArray1<'py, u32>>,
    similarity: &str,
    positives: usize,
    first_item: u64,
    zeros: u32,
    capacity: usize,
    threads: Option<usize>,
) -> PyResult<(Scores<'py>, (Scores<'py>, Hashes<'py>, u32))> {
    let (rows, block) = (queries.matrix(), block.matrix());
    let groups = optional_slice(&groups)?.zip(optional_slice(&block_groups)?);
    let labels = PairLabels { queries: labels.as_slice()?, gallery: Some(block_labels.as_slice()?), groups };
    let (positives, sample) = run(py, NAMES, threads, None, |control| {
        let kernel = trial::kernel()?;
        let space = Dense::new(rows, Some(block), similarity.parse()?, Precision::Float32, kernel, control)?;
        dml_eval::begin_block(&space, &labels, positives, first_item, zeros, capacity, control)
    })?;
    Ok((positives.into_pyarray(py), to_arrays(py, sample)?))
}

/// The ranges of searches, outer and inner: (searches, 4).
#[expect(clippy::disallowed_methods, reason = "searches are few")]
fn ranges_of(searches: &[Search]) -> Array2<f64> {
    let ranges = searches.iter().map(|s| [s.outer.0, s.outer.1, s.inner.0, s.inner.1]);
    Array2::from(ranges.collect::<Vec<_>>())
}

/// The levels that searches are for.
struct Levels<'a> {
    ranks: Vec<u64>,
    equal_errors: bool,
    positives: &'a [f64],
    negatives: u64,
}

impl Levels<'_> {
    /// Begins searches by a sample.
    fn begin(&self, sample: Vec<f64>) -> Vec<Search> {
        dml_eval::begin_searches(&self.ranks, self.equal_errors, self.positives, self.negatives, sample)
    }

    /// Restores searches from their ranges.
    #[expect(clippy::disallowed_methods, reason = "searches are few")]
    fn restore(&self, ranges: &PyReadonlyArray2<'_, f64>) -> Vec<Search> {
        let ranges = ranges.as_array();
        let restored = self.begin(Vec::new()).into_iter().zip(ranges.outer_iter());
        restored.map(|(s, r)| Search { outer: (r[0], r[1]), inner: (r[2], r[3]), ..s }).collect()
    }
}

/// Returns the ranges of the searches for some ranks of negatives, and for equal errors.
#[pyfunction]
#[pyo3(signature = (ranks, equal_errors, positives, negatives, sample, *, threads=None))]
pub fn begin_searches<'py>(
    py: Python<'py>,
    ranks: Vec<u64>,
    equal_errors: bool,
    positives: PyReadonlyArray1<'py, f64>,
    negatives: u64,
    sample: PyReadonlyArray1<'py, f64>,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyArray2<f64>>> {
    let levels = Levels { ranks, equal_errors, positives: positives.as_slice()?, negatives };
    let sample = sample.as_slice()?;
    let searches = run(py, NAMES, threads, None, |_| Ok(levels.begin(dml_eval::collect(sample.iter().copied())?)))?;
    Ok(ranges_of(&searches).into_pyarray(py))
}

/// Counts a block's negatives in the ranges of searches, and between the positives if `slots`.
#[pyfunction]
#[pyo3(signature = (queries, labels, block, block_labels, ranges, *, positives, slots, similarity, first_item, capacity, threads=None))]
#[expect(clippy::too_many_arguments, reason = "one argument for each of the facade's")]
#[expect(clippy::type_complexity, reason = "what each search observed, and an array")]
#[expect(clippy::disallowed_macros, clippy::disallowed_methods, reason = "searches are few")]
pub fn count_pairs<'py>(
    py: Python<'py>,
    queries: Rows<'py>,
    labels: PyReadonlyArray1<'py, u32>,
    block: Rows<'py>,
    block_labels: PyReadonlyArray1<'py, u32>,
    ranges: PyReadonlyArray2<'py, f64>,
    positives: PyReadonlyArray1<'py, f64>,
    slots: bool,
    similarity: &str,
    first_item: u64,
    capacity: usize,
    threads: Option<usize>,
) -> PyResult<(Vec<ObservedArrays<'py>>, Option<Bound<'py, PyArray1<u64>>>)> {
    let (rows, block, positives) = (queries.matrix(), block.matrix(), positives.as_slice()?);
    let labels = PairLabels { queries: labels.as_slice()?, gallery: Some(block_labels.as_slice()?), groups: None };
    // No range depends on what its level is.
    let levels =
        Levels { ranks: vec![1; ranges.as_array().nrows()], equal_errors: false, positives: &[], negatives: 1 };
    let searches = levels.restore(&ranges);
    let (observed, slots) = run(py, NAMES, threads, None, |control| {
        let kernel = trial::kernel()?;
        let space = Dense::new(rows, Some(block), similarity.parse()?, Precision::Float32, kernel, control)?;
        let observed = match searches.is_empty() {
            true => Vec::new(),
            false => dml_eval::observe_block(&space, &labels, &searches, first_item, capacity, control)?,
        };
        let slots = slots.then(|| dml_eval::count_slots(&space, &labels, positives, &Alone, control)).transpose()?;
        Ok((observed, slots))
    })?;
    let arrays = |Observed { above, inside, kept }: Observed| {
        let (scores, hashes, zeros) = to_arrays(py, kept)?;
        Ok((above, inside, scores, hashes, zeros))
    };
    Ok((
        observed.into_iter().map(arrays).collect::<PyResult<_>>()?,
        slots.map(|slots| slots.negatives.into_pyarray(py)),
    ))
}

/// Advances searches by what a pass observed: returns their ranges, and each crossing that is found (score, negatives above it and at
/// least there).
#[pyfunction]
#[pyo3(signature = (ranks, equal_errors, positives, negatives, ranges, observed, *, threads=None))]
#[expect(clippy::too_many_arguments, reason = "the levels of searches, their ranges and what was observed")]
#[expect(clippy::type_complexity, reason = "an array, and the fields of Crossing")]
#[expect(clippy::disallowed_methods, reason = "searches are few")]
pub fn advance_searches<'py>(
    py: Python<'py>,
    ranks: Vec<u64>,
    equal_errors: bool,
    positives: PyReadonlyArray1<'py, f64>,
    negatives: u64,
    ranges: PyReadonlyArray2<'py, f64>,
    observed: Vec<ObservedSlices<'py>>,
    threads: Option<usize>,
) -> PyResult<(Bound<'py, PyArray2<f64>>, Vec<Option<(f64, u64, u64)>>)> {
    let levels = Levels { ranks, equal_errors, positives: positives.as_slice()?, negatives };
    let mut searches = levels.restore(&ranges);
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
        let crossings = dml_eval::advance_searches(&mut searches, observed, levels.positives)?;
        Ok((searches, crossings))
    })?;
    let crossings = crossings.into_iter().map(|found| found.map(|c| (c.score, c.above, c.at_least)));
    Ok((ranges_of(&searches).into_pyarray(py), crossings.collect()))
}
