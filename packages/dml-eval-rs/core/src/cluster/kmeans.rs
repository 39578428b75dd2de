//! k-means that is deterministic for a given seed, with any number of threads.

use ndarray::Array2;
use rayon::prelude::*;

use crate::cluster::assignment::{Assignment, assign, reassign, zero_centroids};
use crate::cluster::initial_centroids::draw_centroids;
use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::Kernel;
use crate::memory::{collect, each, full, zeros};
use crate::peers::Peers;
use crate::random::Random;
use crate::rows::classes::Classes;
use crate::rows::dense::{Dense, Precision};
use crate::rows::matrix::{Matrix, Source};
use crate::rows::similarity::Similarity;

/// A clustering.
#[derive(Debug, Clone)]
pub struct KMeans {
    /// The nearest centroid per row. If centroids are equally near, the lowest index.
    pub labels: Vec<u32>,
    /// The centroids, (clusters, dim).
    pub centroids: Array2<f64>,
    /// The sum of squared distances between rows and centroids.
    pub inertia: f64,
    /// The number of rounds in the best run.
    pub iterations: usize,
}

/// The number of clusters, and how to search for them.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// The number of clusters.
    pub clusters: usize,
    /// The seed for drawing initial centroids.
    pub seed: u64,
    /// The number of runs. The run with the least inertia is returned.
    pub runs: usize,
    /// The maximum number of rounds per run.
    pub max_iterations: usize,
}

/// Clusters rows by Lloyd's algorithm until the assignment does not change, or for `max_iterations`
/// rounds.
///
/// When peers are used, every peer finds the nearest centroids for a part of the rows, and all
/// return the result of a single process.
pub fn kmeans(
    x: Matrix<'_>,
    options: Options,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<KMeans> {
    let n = x.rows();
    if options.clusters < 1 || options.clusters > n {
        return argument(format!(
            "clusters is {}; expected 1 to {n}, the number of rows",
            options.clusters
        ));
    }
    if options.runs < 1 || options.max_iterations < 1 {
        return argument(format!(
            "runs is {} and max_iterations is {}; expected at least 1 for both",
            options.runs, options.max_iterations
        ));
    }
    // Validate the rows before the first run.
    Dense::new(x, None, Similarity::Euclidean, Precision::Float32, kernel, control)?;
    let run = |run: usize| {
        let mut random = Random::new(
            options.seed.wrapping_add((run as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        );
        lloyd(x, options, &mut random, kernel, peers, control)
    };
    let mut best = run(0)?;
    for other in 1..options.runs {
        let found = run(other)?;
        if found.inertia < best.inertia {
            best = found;
        }
    }
    Ok(best)
}

fn lloyd(
    x: Matrix<'_>,
    options: Options,
    random: &mut Random,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<KMeans> {
    let mut centroids = draw_centroids(x, options.clusters, random, kernel, peers, control)?;
    let mut assignment = assign(&x, &centroids, kernel, peers, control)?;
    let mut iterations = 0;
    while iterations < options.max_iterations {
        iterations += 1;
        let next = means(x, &assignment, options.clusters, kernel, control)?;
        let moved = collect(centroids.rows().into_iter().zip(next.rows()).map(|(a, b)| a != b))?;
        centroids = next;
        if !moved.contains(&true) {
            break;
        }
        assignment = reassign(&x, &centroids, &moved, assignment, kernel, peers, control)?;
    }
    let inertia = assignment.distances.iter().sum();
    Ok(KMeans { labels: assignment.labels, centroids, inertia, iterations })
}

/// Computes the mean per cluster, summing rows in order. An empty cluster takes a row that is far
/// from the assigned centroid.
fn means(
    x: Matrix<'_>,
    assignment: &Assignment,
    clusters: usize,
    kernel: &'static Kernel,
    control: &Control,
) -> Result<Array2<f64>> {
    let mut labels = collect(assignment.labels.iter().copied())?;
    fill_empty_clusters(&mut labels, &assignment.distances, clusters)?;
    let classes = Classes::new(&labels)?;
    let mut centroids = zero_centroids(clusters, x.dim())?;
    let single = !x.is_double();
    each(
        centroids.axis_iter_mut(ndarray::Axis(0)).into_par_iter().enumerate(),
        || full(x.dim(), 0.0),
        |row, (cluster, mut centroid)| {
            let members = classes.members(cluster as u32);
            let sums = centroid.as_slice_mut().expect("rows of a new array are contiguous");
            for &m in members {
                control.check()?;
                if let Some(values) = x.slice32(m as usize) {
                    kernel.vectorize(|| {
                        sums.iter_mut().zip(values).for_each(|(sum, v)| *sum += f64::from(*v))
                    });
                } else {
                    x.widen(m as usize, row);
                    sums.iter_mut().zip(row.iter()).for_each(|(sum, v)| *sum += v);
                }
            }
            for c in sums {
                *c /= members.len() as f64;
                if single {
                    *c = f64::from(*c as f32);
                }
            }
            Ok(())
        },
    )?;
    Ok(centroids)
}

/// Fills empty clusters with one row each: the farthest rows in clusters with other rows, ties by
/// index.
fn fill_empty_clusters(labels: &mut [u32], distances: &[f64], clusters: usize) -> Result<()> {
    let mut sizes: Vec<usize> = zeros(clusters)?;
    labels.iter().for_each(|label| sizes[*label as usize] += 1);
    if !sizes.contains(&0) {
        return Ok(());
    }
    let mut farthest = collect(0..labels.len() as u32)?;
    farthest.sort_unstable_by(|&a, &b| {
        distances[b as usize].total_cmp(&distances[a as usize]).then(a.cmp(&b))
    });
    let mut donors = farthest.into_iter();
    for cluster in 0..clusters {
        while sizes[cluster] == 0 {
            let Some(row) = donors.next() else { break };
            let label = &mut labels[row as usize];
            if sizes[*label as usize] > 1 {
                sizes[*label as usize] -= 1;
                sizes[cluster] = 1;
                *label = cluster as u32;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_clusters_take_the_farthest_rows_of_clusters_that_keep_others() {
        let mut labels = [0, 0, 0, 2, 2];
        fill_empty_clusters(&mut labels, &[1.0, 3.0, 3.0, 9.0, 0.0], 5).unwrap();
        // Row 3 leaves only row 4 in cluster 2. Rows 1 and 2 are equally far, so the lower index
        // moves first.
        assert_eq!(labels, [0, 3, 4, 1, 2]);
    }
}
