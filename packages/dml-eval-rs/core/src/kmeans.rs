//! k-means, deterministic for a seed whatever the number of threads.

use ndarray::Array2;
use rayon::prelude::*;

use crate::control::Control;
use crate::dense::{Dense, Precision, Similarity};
use crate::error::{Error, Result, argument};
use crate::exact::squared_distance;
use crate::kernel::Kernel;
use crate::matrix::Matrix;
use crate::random::Random;
use crate::search::nearest;

/// k-means++ is used where it takes no more multiplications than this; above, centres start as random distinct rows.
const PLUS_PLUS_WORK: f64 = 2e10;
/// Rows that a thread takes at a time.
const CHUNK: usize = 256;

/// A clustering.
#[derive(Debug, Clone)]
pub struct KMeans {
    /// The nearest centre of each row, the lowest of equally near ones.
    pub labels: Vec<u32>,
    /// (n_clusters, dim).
    pub centroids: Array2<f64>,
    /// The sum of squared distances of the rows to their centres.
    pub inertia: f64,
    /// Rounds of the best run.
    pub iterations: usize,
}

/// What to cluster into.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Number of clusters.
    pub clusters: usize,
    /// Seed of the centres' start.
    pub seed: u64,
    /// Runs, of which the one with the least inertia counts.
    pub runs: usize,
    /// The most rounds of a run.
    pub max_iterations: usize,
}

/// Lloyd's algorithm until no row changes its cluster, or for `max_iterations` rounds.
pub fn kmeans(x: Matrix<'_>, options: Options, kernel: &'static Kernel, control: &Control) -> Result<KMeans> {
    let n = x.rows();
    if options.clusters < 1 || options.clusters > n {
        return argument(format!("n_clusters is {}; expected 1 to {n}, the number of items", options.clusters));
    }
    if options.runs < 1 || options.max_iterations < 1 {
        return argument(format!(
            "n_init is {} and max_iter {}; expected at least 1 of each",
            options.runs, options.max_iterations
        ));
    }
    // Validates the rows, whatever the centres.
    Dense::new(x, None, Similarity::Euclidean, Precision::Float32, kernel)?;
    let mut best: Option<KMeans> = None;
    for run in 0..options.runs {
        let mut random = Random::new(options.seed.wrapping_add((run as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let found = lloyd(x, options, &mut random, kernel, control)?;
        if best.as_ref().is_none_or(|b| found.inertia < b.inertia) {
            best = Some(found);
        }
    }
    best.ok_or_else(|| Error::Argument("n_init is 0; expected at least 1".into()))
}

fn lloyd(
    x: Matrix<'_>,
    options: Options,
    random: &mut Random,
    kernel: &'static Kernel,
    control: &Control,
) -> Result<KMeans> {
    let mut centroids = start(x, options.clusters, random, control)?;
    let mut labels: Vec<u32> = Vec::new();
    let mut iterations = 0;
    loop {
        let (next, distances) = assign(&x, &centroids, kernel, control)?;
        let settled = next == labels;
        labels = next;
        if settled || iterations == options.max_iterations {
            let inertia = distances.iter().sum();
            return Ok(KMeans { labels, centroids, inertia, iterations });
        }
        iterations += 1;
        centroids = means(x, &labels, &distances, options.clusters);
    }
}

/// The nearest centre of every row, and its squared distance.
fn assign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    kernel: &'static Kernel,
    control: &Control,
) -> Result<(Vec<u32>, Vec<f64>)> {
    let centres = Matrix::F64(centroids.view());
    let space = Dense::new(x.view(), Some(centres), Similarity::Euclidean, Precision::BFloat16, kernel)?;
    let mut labels = vec![0i64; x.rows()];
    let mut distances = vec![0.0; x.rows()];
    nearest(&space, 1, false, control, |_, key| -key, &mut distances, &mut labels)?;
    Ok((labels.into_iter().map(|l| l as u32).collect(), distances))
}

/// The means of the clusters, each summed in the order of its rows. An empty cluster gets a row far from its centre.
fn means(x: Matrix<'_>, labels: &[u32], distances: &[f64], clusters: usize) -> Array2<f64> {
    let mut members: Vec<Vec<u32>> = vec![Vec::new(); clusters];
    for (row, &label) in labels.iter().enumerate() {
        members[label as usize].push(row as u32);
    }
    let empty = members.iter().filter(|m| m.is_empty()).count();
    if empty > 0 {
        // The farthest rows, of clusters that keep others; ties by index.
        let mut farthest: Vec<u32> = (0..labels.len() as u32).collect();
        farthest.sort_by(|&a, &b| distances[b as usize].total_cmp(&distances[a as usize]).then(a.cmp(&b)));
        let mut donors = farthest.into_iter();
        for cluster in 0..clusters {
            while members[cluster].is_empty() {
                let Some(row) = donors.next() else { break };
                let home = &mut members[labels[row as usize] as usize];
                if home.len() > 1 {
                    home.retain(|m| *m != row);
                    members[cluster].push(row);
                }
            }
        }
    }
    let mut centroids = Array2::zeros((clusters, x.dim()));
    let single = !matches!(x, Matrix::F64(_));
    centroids.axis_iter_mut(ndarray::Axis(0)).into_par_iter().zip(&members).for_each_init(
        || vec![0.0; x.dim()],
        |row, (mut centroid, members)| {
            for &m in members {
                x.widen(m as usize, row);
                for (c, v) in centroid.iter_mut().zip(row.iter()) {
                    *c += v;
                }
            }
            for c in &mut centroid {
                *c /= members.len() as f64;
                if single {
                    *c = f64::from(*c as f32);
                }
            }
        },
    );
    centroids
}

/// The first centres: k-means++ (Arthur and Vassilvitskii 2007) where that is quick, random distinct rows where it is not.
fn start(x: Matrix<'_>, clusters: usize, random: &mut Random, control: &Control) -> Result<Array2<f64>> {
    let n = x.rows();
    let chosen = if n as f64 * clusters as f64 * x.dim() as f64 <= PLUS_PLUS_WORK {
        plus_plus(x, clusters, random, control)?
    } else {
        // The first places of a random order.
        let mut order: Vec<usize> = (0..n).collect();
        for i in 0..clusters {
            order.swap(i, i + random.below(n - i));
        }
        order.truncate(clusters);
        order
    };
    let mut centroids = Array2::zeros((clusters, x.dim()));
    for (mut centroid, row) in centroids.rows_mut().into_iter().zip(chosen) {
        x.widen(row, centroid.as_slice_mut().expect("a new array's rows are contiguous"));
    }
    Ok(centroids)
}

/// Rows drawn one by one with a chance in proportion to the squared distance from those drawn before.
fn plus_plus(x: Matrix<'_>, clusters: usize, random: &mut Random, control: &Control) -> Result<Vec<usize>> {
    let n = x.rows();
    let mut chosen = vec![random.below(n)];
    let mut distances = vec![f64::INFINITY; n];
    let mut centre = vec![0.0; x.dim()];
    while chosen.len() < clusters {
        control.check()?;
        x.widen(chosen[chosen.len() - 1], &mut centre);
        distances.par_chunks_mut(CHUNK).enumerate().for_each_init(
            || vec![0.0; x.dim()],
            |row, (chunk, distances)| {
                for (i, d) in distances.iter_mut().enumerate() {
                    x.widen(chunk * CHUNK + i, row);
                    *d = d.min(squared_distance(&centre, row.as_slice()));
                }
            },
        );
        let total: f64 = distances.iter().sum();
        let mut left = random.uniform() * total;
        // Where all rows coincide with centres, any row that is none yet.
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
        let unused = || (0..n).find(|row| !chosen.contains(row));
        let Some(row) = pick.or_else(unused) else { break };
        chosen.push(row);
    }
    Ok(chosen)
}
