//! Finds the nearest centroid per row, decided in float64.

use std::sync::{Mutex, MutexGuard};

use ndarray::{Array2, ArrayView2};
use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::kernel::{Hit, Kernel, SweepResult};
use crate::memory::{Grow, collect, collect_counted, each, zeros};
use crate::peers::{Peers, gather, part};
use crate::random::Random;
use crate::rows::dense::{Dense, Precision};
use crate::rows::derived::Selected;
use crate::rows::matrix::{Matrix, Source};
use crate::rows::own_item::OwnItem;
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::similarity::Similarity;
use crate::rows::space::{Scratch, Space};
use crate::screen::traverse::{Observer, Task, traverse_rectangle};
use crate::search::nearest::nearest;
use crate::side::Side;

/// A thread computes the distances of `ROWS` rows per batch. A sample of `SAMPLED` rows is used to
/// choose the packing.
const ROWS: usize = 256;
const SAMPLED: usize = 48;

/// The nearest centroid per row, and the squared distance.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assignment {
    pub labels: Vec<u32>,
    pub distances: Vec<f64>,
}

impl Assignment {
    /// Returns the assignment of `rows`.
    fn select(&self, rows: &[usize]) -> Result<Assignment> {
        let labels = collect(rows.iter().map(|row| self.labels[*row]))?;
        Ok(Assignment { labels, distances: collect(rows.iter().map(|row| self.distances[*row]))? })
    }
}

/// Makes centroids that are all zero.
pub(crate) fn zero_centroids(clusters: usize, dim: usize) -> Result<Array2<f64>> {
    Ok(Array2::from_shape_vec((clusters, dim), zeros(clusters * dim)?)
        .expect("the length matches the shape"))
}

/// Copies rows, to be used as centroids.
pub(crate) fn copy_rows(x: &Matrix<'_>, rows: &[usize]) -> Result<Array2<f64>> {
    let mut centroids = zero_centroids(rows.len(), x.dim())?;
    for (mut centroid, row) in centroids.rows_mut().into_iter().zip(rows) {
        x.widen(*row, centroid.as_slice_mut().expect("rows of a new array are contiguous"));
    }
    Ok(centroids)
}

/// Assigns rows to the nearest centroid. When peers are used, every peer assigns a part of the
/// rows.
pub(crate) fn assign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Assignment> {
    share(x, centroids, None, (kernel, peers, control), |space, _| {
        let rows = space.rows(Side::Query);
        let (mut labels, mut distances): (Vec<i64>, Vec<f64>) = (zeros(rows)?, zeros(rows)?);
        nearest(
            space,
            1,
            OwnItem::Absent,
            control,
            |_, key| 0.0 - key,
            &mut distances,
            &mut labels,
        )?;
        Ok(Assignment { labels: collect(labels.into_iter().map(|l| l as u32))?, distances })
    })
}

/// Shares an assignment with peers: processes take parts of the rows. `work` receives the space of
/// rows and centroids, and the part of `start` for these rows.
fn share(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    start: Option<&Assignment>,
    (kernel, peers, control): (&'static Kernel, &dyn Peers, &Control),
    work: impl Fn(&Dense<'_>, Assignment) -> Result<Assignment>,
) -> Result<Assignment> {
    // Centroids of single-precision rows have single precision, so that such rows can be compared
    // in place.
    let narrow = collect(centroids.iter().map(|v| *v as f32))?;
    let narrow =
        ArrayView2::from_shape(centroids.dim(), &narrow).expect("the length matches the shape");
    let centroids = if x.is_double() { Matrix::F64(centroids.view()) } else { Matrix::F32(narrow) };
    let rows = collect(part(peers, x.rows(), |_| 1))?;
    let selected = Selected(x, &rows);
    let own = if peers.is_alone() { x.view() } else { Matrix::Derived(&selected) };
    let start = start.map_or_else(|| Ok(Assignment::default()), |start| start.select(&rows))?;
    let done = if rows.is_empty() {
        Assignment::default()
    } else {
        let (similarity, precision) = (Similarity::Euclidean, Precision::SixteenBit);
        work(&Dense::new(own, Some(centroids), similarity, precision, kernel, control)?, start)?
    };
    if peers.is_alone() {
        return Ok(done);
    }
    let Assignment { labels, distances } = done;
    let labels = collect(labels.into_iter().map(f64::from))?;
    let (labels, distances) =
        (gather(peers, &labels, x.rows())?, gather(peers, &distances, x.rows())?);
    let is_label =
        |label: &f64| label.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(label);
    if !(labels.iter().all(is_label) && distances.iter().all(|d| d.is_finite() && *d >= 0.0)) {
        return Err(Error::Exchange(
            "all_gather returned numbers that aren't centroid indices or distances".into(),
        ));
    }
    Ok(Assignment { labels: collect(labels.into_iter().map(|l| l as u32))?, distances })
}

/// Moves rows to nearer centroids. If `indices` is `None`, `centroids` contains all centroids, and
/// each row's distance to its centroid is computed first. Otherwise `centroids` are only those at
/// `indices`; rows assigned to these get invalid results.
fn improve(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    indices: Option<&[usize]>,
    start: &Assignment,
    (kernel, peers, control): (&'static Kernel, &dyn Peers, &Control),
) -> Result<Assignment> {
    share(x, centroids, Some(start), (kernel, peers, control), |space, mut start| {
        control.took(|| "centroids nearer than the last");
        if indices.is_none() {
            let chunks = start.distances.par_chunks_mut(ROWS).zip(start.labels.par_chunks(ROWS));
            let make = || Ok(<(Scratch, Vec<_>, Vec<_>)>::default());
            each(chunks.enumerate(), make, |(scratch, pairs, keys), (c, (out, labels))| {
                let pair = |(i, label): (usize, &u32)| ((ROWS * c + i) as u32, *label);
                pairs.clear();
                pairs.try_extend(labels.iter().enumerate().map(pair))?;
                keys.clear();
                space.keys(pairs, scratch, keys)?;
                out.iter_mut().zip(keys).for_each(|(out, key)| *out = 0.0 - *key);
                Ok(())
            })?;
        }
        let rows = start.labels.len();
        let value = |row: usize, distance: f64| space.value(row, -distance);
        let search = Improving {
            indices,
            value: &value,
            best: collect(
                (0..rows).map(|row| Mutex::new((start.distances[row], start.labels[row]))),
            )?,
        };
        let thresholds = || {
            let expected = |row: usize| ExpectedThreshold {
                query: row as u32,
                value: value(row, start.distances[row]),
                share: 1.0,
            };
            collect(Random::new(0).spread(rows, SAMPLED).map(expected))
        };
        let pairs = rows as u64 * centroids.nrows() as u64;
        control.add_to_total(pairs);
        let packing = space.packing(&Goal { pairs, thresholds: &thresholds }, control)?;
        traverse_rectangle(space, &packing, &search, 0..rows, control)?;
        for (row, best) in search.best.into_iter().enumerate() {
            (start.distances[row], start.labels[row]) =
                best.into_inner().expect("no thread panicked while it held the lock");
        }
        Ok(start)
    })
}

/// Compares rows with centroids that may be nearer than the rows' current centroids.
struct Improving<'a> {
    indices: Option<&'a [usize]>,
    /// Converts the distance between a row and a centroid to a value in the units of the screen.
    value: &'a (dyn Fn(usize, f64) -> f64 + Sync),
    /// Per row, the least distance to a centroid so far, and the index of this centroid.
    best: Vec<Mutex<(f64, u32)>>,
}

impl Improving<'_> {
    fn best(&self, row: usize) -> MutexGuard<'_, (f64, u32)> {
        self.best[row].lock().expect("no thread panicked while it held the lock")
    }
}

impl Observer for Improving<'_> {
    type Buffers = (Vec<(u32, u32)>, Vec<f64>);

    fn group(&self, side: Side, item: usize) -> u32 {
        match side {
            Side::Gallery => item as u32,
            // The row's current centroid needn't be compared.
            Side::Query => {
                if self.indices.is_none() {
                    self.best(item).1
                } else {
                    u32::MAX
                }
            }
        }
    }

    fn brackets(&self, query: usize, mut visit: impl FnMut((f64, f64))) {
        visit(((self.value)(query, self.best(query).0), f64::INFINITY));
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        (pairs, keys): &mut Self::Buffers,
    ) -> Result<()> {
        pairs.clear();
        let pair = |hit: &Hit| {
            (
                (task.rows.start + hit.row as usize) as u32,
                (task.columns.start + hit.column as usize) as u32,
            )
        };
        pairs.try_extend(result.row_hits.iter().map(pair))?;
        keys.clear();
        space.keys(pairs, scratch, keys)?;
        for (&(row, centroid), key) in pairs.iter().zip(keys) {
            let candidate = (
                0.0 - *key,
                self.indices.map_or(centroid, |indices| indices[centroid as usize] as u32),
            );
            let mut best = self.best(row as usize);
            if candidate < *best {
                *best = candidate;
            }
        }
        Ok(())
    }
}

/// Updates an assignment to the result of `assign`, with less work when few centroids have moved.
///
/// If a row's centroid hasn't moved, this centroid is still nearer than all other unmoved
/// centroids, so compare the row only with the moved centroids. Otherwise compare the row with all
/// centroids.
pub(crate) fn reassign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    moved: &[bool],
    assignment: Assignment,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Assignment> {
    let by = (kernel, peers, control);
    let moved_centroids = collect_counted((0..moved.len()).filter(|c| moved[*c]))?;
    let moved_rows =
        collect_counted((0..x.rows()).filter(|row| moved[assignment.labels[*row] as usize]))?;
    if 4 * moved_rows.len() > 3 * x.rows() || 4 * moved_centroids.len() > 3 * moved.len() {
        return improve(x, centroids, None, &assignment, by);
    }
    let some = copy_rows(&Matrix::F64(centroids.view()), &moved_centroids)?;
    let mut improved = improve(x, &some, Some(&moved_centroids), &assignment, by)?;
    if !moved_rows.is_empty() {
        let start = assignment.select(&moved_rows)?;
        let compared =
            improve(&Matrix::Derived(&Selected(x, &moved_rows)), centroids, None, &start, by)?;
        for (i, &row) in moved_rows.iter().enumerate() {
            (improved.distances[row], improved.labels[row]) =
                (compared.distances[i], compared.labels[i]);
        }
    }
    Ok(improved)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Alone;
    use crate::random::Random;

    #[test]
    fn skipping_unmoved_centroids_changes_nothing() {
        let mut random = Random::new(3);
        // Use small integers, so that distances tie.
        let x = Array2::from_shape_fn((300, 3), |_| (random.below(5) as f32) - 2.0);
        let before = Array2::from_shape_fn((12, 3), |_| (random.below(5) as f64) - 2.0);
        let (kernel, control) = (crate::kernel::select(None).unwrap(), Control::default());
        let rows = Matrix::F32(x.view());
        let assignment = assign(&rows, &before, kernel, &Alone, &control).unwrap();
        for count in [1, 3, 6, 12] {
            let mut after = before.clone();
            let moved: Vec<bool> = (0..12).map(|c| c % (12 / count) == 0).collect();
            for c in (0..12).filter(|c| moved[*c]) {
                after.row_mut(c).mapv_inplace(|v| v + random.below(3) as f64 - 1.0);
            }
            let expected = assign(&rows, &after, kernel, &Alone, &control).unwrap();
            let updated =
                reassign(&rows, &after, &moved, assignment.clone(), kernel, &Alone, &control)
                    .unwrap();
            assert_eq!(updated, expected);
        }
    }
}
