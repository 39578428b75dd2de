//! Draws the initial centroids for k-means.

use ndarray::Array2;
use rayon::prelude::*;

use crate::cluster::assignment::{assign, copy_rows};
use crate::control::Control;
use crate::error::Result;
use crate::exact::squared_distance;
use crate::kernel::Kernel;
use crate::memory::{Grow, allocate, each, full};
use crate::peers::Peers;
use crate::random::Random;
use crate::rows::matrix::{Matrix, Source};

/// The maximum number of multiplications for k-means++. If more are needed, rows are drawn in
/// batches.
const PLUS_PLUS_WORK: f64 = 1e9;
/// Rows that a thread processes per batch.
const CHUNK: usize = 256;

/// Draws the initial centroids, using k-means++ (Arthur and Vassilvitskii 2007) when this is fast,
/// otherwise in batches.
pub(crate) fn draw_centroids(
    x: Matrix<'_>,
    clusters: usize,
    random: &mut Random,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Array2<f64>> {
    let drawn = if x.rows() as f64 * clusters as f64 * x.dim() as f64 <= PLUS_PLUS_WORK {
        draw_one_by_one(x, clusters, random, control)?
    } else {
        draw_in_batches(&x, clusters, random, kernel, peers, control)?
    };
    copy_rows(&x, &drawn)
}

/// Draws distinct rows in a few batches: the first uniformly, later ones with probabilities
/// proportional to the squared distance from earlier batches. These are the rounds of k-means||
/// (Bahmani et al. 2012), with only `clusters` draws in total.
///
/// All rounds together cost as much as assigning all rows to all centroids once.
fn draw_in_batches(
    x: &Matrix<'_>,
    clusters: usize,
    random: &mut Random,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Vec<usize>> {
    const ROUNDS: usize = 8;
    let mut distances = full(x.rows(), 1.0)?;
    let mut drawn: Vec<usize> = allocate(clusters)?;
    for round in 0.. {
        let wanted = (clusters - drawn.len()).div_ceil(ROUNDS.saturating_sub(round).max(1));
        let mut batch = sample(&distances, wanted, random)?;
        if batch.is_empty() {
            // All rows coincide with centroids, so take any rows that haven't been drawn.
            let mut unused = full(x.rows(), true)?;
            drawn.iter().for_each(|row| unused[*row] = false);
            batch.try_extend(
                (0..x.rows()).filter(|row| unused[*row]).take(clusters - drawn.len()),
            )?;
        }
        drawn.try_extend(batch.iter().copied())?;
        if drawn.len() == clusters {
            break;
        }
        let assignment = assign(x, &copy_rows(x, &batch)?, kernel, peers, control)?;
        for (distance, new) in distances.iter_mut().zip(assignment.distances) {
            *distance = if round == 0 { new } else { distance.min(new) };
        }
        // Prevent rounding errors from causing a row to be drawn twice.
        drawn.iter().for_each(|row| distances[*row] = 0.0);
    }
    Ok(drawn)
}

/// Samples about `wanted` distinct indices, with probabilities proportional to `weights`.
///
/// This is systematic sampling, which puts a point into each of `wanted` equal parts of the total.
/// An index with a weight that spans multiple points is drawn only once, so fewer indices may be
/// drawn.
fn sample(weights: &[f64], wanted: usize, random: &mut Random) -> Result<Vec<usize>> {
    let step = weights.iter().sum::<f64>() / wanted as f64;
    let mut next = random.uniform() * step;
    let mut sum = 0.0;
    let mut drawn = allocate(wanted)?;
    for (i, &weight) in weights.iter().enumerate() {
        sum += weight;
        if weight > 0.0 && sum > next && drawn.len() < wanted {
            drawn.try_push(i)?;
            while next < sum {
                next += step;
            }
        }
    }
    Ok(drawn)
}

/// Draws rows in turn, with probabilities proportional to the squared distance to the nearest drawn
/// row (k-means++).
fn draw_one_by_one(
    x: Matrix<'_>,
    clusters: usize,
    random: &mut Random,
    control: &Control,
) -> Result<Vec<usize>> {
    let n = x.rows();
    let mut drawn = allocate(clusters)?;
    drawn.try_push(random.below(n))?;
    let mut distances = full(n, f64::INFINITY)?;
    let mut used = full(n, false)?;
    let mut first_unused = 0;
    let mut centroid = full(x.dim(), 0.0)?;
    while drawn.len() < clusters {
        control.check()?;
        let last = drawn[drawn.len() - 1];
        used[last] = true;
        x.widen(last, &mut centroid);
        let make = || full(x.dim(), 0.0);
        each(distances.par_chunks_mut(CHUNK).enumerate(), make, |row, (chunk, distances)| {
            for (i, d) in distances.iter_mut().enumerate() {
                x.widen(chunk * CHUNK + i, row);
                *d = d.min(squared_distance(&centroid, row.as_slice()));
            }
            Ok(())
        })?;
        let total: f64 = distances.iter().sum();
        let mut left = random.uniform() * total;
        let mut pick = None;
        for (row, &d) in distances.iter().enumerate() {
            if d > 0.0 {
                pick = Some(row);
                left -= d;
                if left < 0.0 {
                    break;
                }
            }
        }
        // When all rows coincide with centroids, take the first row that hasn't been drawn.
        drawn.try_push(pick.unwrap_or_else(|| {
            while used[first_unused] {
                first_unused += 1;
            }
            first_unused
        }))?;
    }
    Ok(drawn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peers::Alone;

    #[test]
    fn batches_draw_distinct_rows_even_where_rows_coincide() {
        let x = Array2::from_shape_fn((200, 2), |(i, _)| (i % 7) as f32);
        let (kernel, control) = (crate::kernel::select(None).unwrap(), Control::default());
        for clusters in [1, 5, 20, 199, 200] {
            let rows = draw_in_batches(
                &Matrix::F32(x.view()),
                clusters,
                &mut Random::new(1),
                kernel,
                &Alone,
                &control,
            )
            .unwrap();
            let distinct: std::collections::BTreeSet<_> = rows.iter().collect();
            assert_eq!((rows.len(), distinct.len()), (clusters, clusters));
        }
    }

    #[test]
    fn samples_follow_the_weights() {
        let weights: Vec<f64> = (0..100).map(|i| f64::from(i % 10)).collect();
        let mut times = [0u32; 100];
        let mut random = Random::new(5);
        for _ in 0..4000 {
            sample(&weights, 5, &mut random).unwrap().into_iter().for_each(|i| times[i] += 1);
        }
        for (i, &count) in times.iter().enumerate() {
            let expected = 4000.0 * 5.0 * weights[i] / 450.0;
            // Allow five standard deviations.
            assert!(
                (f64::from(count) - expected).abs() <= 5.0 * expected.sqrt() + 1e-9,
                "{i}: {count}, {expected}"
            );
        }
    }
}
