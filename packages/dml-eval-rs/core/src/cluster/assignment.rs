//! Each row's nearest centroid, decided in float64.

use ndarray::{Array2, ArrayView2};

use crate::control::Control;
use crate::error::{Error, Result};
use crate::kernel::Kernel;
use crate::memory::{collect, zeros};
use crate::peers::{Peers, gather, part};
use crate::rows::dense::{Dense, Precision};
use crate::rows::derived::Selected;
use crate::rows::matrix::{Matrix, Source};
use crate::rows::own_item::OwnItem;
use crate::rows::similarity::Similarity;
use crate::search::nearest::nearest;

/// The nearest centroid of every row, and its squared distance.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Assignment {
    pub labels: Vec<u32>,
    pub distances: Vec<f64>,
}

/// Assigns every row to its nearest centroid. With peers each assigns a part of the rows.
pub(crate) fn assign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Assignment> {
    if peers.is_alone() {
        return assign_here(x, centroids, kernel, control);
    }
    let rows = collect(part(peers, x.rows(), |_| 1))?;
    let Assignment { labels, distances } = if rows.is_empty() {
        Assignment::default()
    } else {
        assign_here(&Matrix::Derived(&Selected(x, &rows)), centroids, kernel, control)?
    };
    let labels = collect(labels.into_iter().map(f64::from))?;
    let (labels, distances) = (gather(peers, &labels, x.rows())?, gather(peers, &distances, x.rows())?);
    let is_label = |label: &f64| label.fract() == 0.0 && (0.0..centroids.nrows() as f64).contains(label);
    if !(labels.iter().all(is_label) && distances.iter().all(|d| d.is_finite() && *d >= 0.0)) {
        return Err(Error::Exchange("all_gather returned numbers that are no centroids' indices or distances".into()));
    }
    Ok(Assignment { labels: collect(labels.into_iter().map(|l| l as u32))?, distances })
}

fn assign_here(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    kernel: &'static Kernel,
    control: &Control,
) -> Result<Assignment> {
    // Centroids of single-precision rows are single-precision numbers, and such rows are compared in place.
    let narrow = collect(centroids.iter().map(|v| *v as f32))?;
    let narrow = ArrayView2::from_shape(centroids.dim(), &narrow).expect("as many numbers as the centroids have");
    let centroids = if x.is_double() { Matrix::F64(centroids.view()) } else { Matrix::F32(narrow) };
    let space = Dense::new(x.view(), Some(centroids), Similarity::Euclidean, Precision::SixteenBit, kernel, control)?;
    let mut labels: Vec<i64> = zeros(x.rows())?;
    let mut distances: Vec<f64> = zeros(x.rows())?;
    nearest(&space, 1, OwnItem::Absent, control, |_, key| 0.0 - key, &mut distances, &mut labels)?;
    Ok(Assignment { labels: collect(labels.into_iter().map(|l| l as u32))?, distances })
}

/// Updates an assignment to the result of `assign`, with less work once few centroids move.
///
/// A row whose own centroid stayed is still nearer to it than to any other that stayed, and is compared only with those that
/// moved. A row whose own centroid moved is compared with all.
pub(crate) fn reassign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    moved: &[bool],
    mut assignment: Assignment,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Assignment> {
    let moved_centroids: Vec<usize> = (0..moved.len()).filter(|c| moved[*c]).collect();
    let moved_rows: Vec<usize> = (0..x.rows()).filter(|row| moved[assignment.labels[*row] as usize]).collect();
    if 4 * moved_rows.len() > 3 * x.rows() || 4 * moved_centroids.len() > 3 * moved.len() {
        return assign(x, centroids, kernel, peers, control);
    }
    let nearest_moved = assign(x, &centroids.select(ndarray::Axis(0), &moved_centroids), kernel, peers, control)?;
    for row in 0..x.rows() {
        let candidate = (nearest_moved.distances[row], moved_centroids[nearest_moved.labels[row] as usize] as u32);
        if candidate < (assignment.distances[row], assignment.labels[row]) {
            (assignment.distances[row], assignment.labels[row]) = candidate;
        }
    }
    if !moved_rows.is_empty() {
        let nearest_of_all = assign(&Matrix::Derived(&Selected(x, &moved_rows)), centroids, kernel, peers, control)?;
        for (i, &row) in moved_rows.iter().enumerate() {
            (assignment.distances[row], assignment.labels[row]) =
                (nearest_of_all.distances[i], nearest_of_all.labels[i]);
        }
    }
    Ok(assignment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Alone;
    use crate::random::Random;

    #[test]
    fn skipping_unmoved_centroids_changes_nothing() {
        let mut random = Random::new(3);
        // Small integers, so that distances tie.
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
            let updated = reassign(&rows, &after, &moved, assignment.clone(), kernel, &Alone, &control).unwrap();
            assert_eq!(updated, expected);
        }
    }
}
