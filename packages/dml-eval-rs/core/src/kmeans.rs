//! k-means, deterministic for a seed whatever the number of threads.

use ndarray::{Array2, ArrayView2};
use rayon::prelude::*;

use crate::control::Control;
use crate::dense::{Dense, Precision, Similarity};
use crate::error::{Error, Result, argument};
use crate::exact::squared_distance;
use crate::kernel::Kernel;
use crate::matrix::{Matrix, Picked, Source};
use crate::memory::{collected, filled, zeros};
use crate::peers::{Peers, part};
use crate::positives::Classes;
use crate::random::Random;
use crate::search::nearest;

/// k-means++ proper is used where it takes no more multiplications than this; above, rows are drawn in batches.
const PLUS_PLUS_WORK: f64 = 1e9;
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
///
/// With peers each finds the nearest centres of a part of the rows, and all get the same result: that of one alone.
pub fn kmeans(
    x: Matrix<'_>,
    options: Options,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<KMeans> {
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
    Dense::new(x, None, Similarity::Euclidean, Precision::Float32, kernel, control)?;
    let mut best: Option<KMeans> = None;
    for run in 0..options.runs {
        let mut random = Random::new(options.seed.wrapping_add((run as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let found = lloyd(x, options, &mut random, kernel, peers, control)?;
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
    peers: &dyn Peers,
    control: &Control,
) -> Result<KMeans> {
    let mut centroids = start(x, options.clusters, random, kernel, peers, control)?;
    let mut homes = assign(&x, &centroids, kernel, peers, control)?;
    let mut iterations = 0;
    while iterations < options.max_iterations {
        iterations += 1;
        let next = means(x, &homes.labels, &homes.distances, options.clusters, control)?;
        let moved: Vec<bool> = centroids.rows().into_iter().zip(next.rows()).map(|(a, b)| a != b).collect();
        centroids = next;
        if !moved.contains(&true) {
            break;
        }
        homes = reassign(&x, &centroids, &moved, homes, kernel, peers, control)?;
    }
    let inertia = homes.distances.iter().sum();
    Ok(KMeans { labels: homes.labels, centroids, inertia, iterations })
}

/// The nearest centre of every row, and its squared distance.
#[derive(Clone, Debug, Default, PartialEq)]
struct Homes {
    labels: Vec<u32>,
    distances: Vec<f64>,
}

fn assign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Homes> {
    if peers.is_alone() {
        return assign_here(x, centroids, kernel, control);
    }
    let rows = collected(part(peers, x.rows(), |_| 1))?;
    let Homes { labels, distances } = if rows.is_empty() {
        Homes::default()
    } else {
        assign_here(&Matrix::Made(&Picked(x, &rows)), centroids, kernel, control)?
    };
    let labels = collected(labels.into_iter().map(f64::from))?;
    let labels = collected(peers.gather(&labels)?.into_iter().map(|l| l as u32))?;
    Ok(Homes { labels, distances: peers.gather(&distances)? })
}

fn assign_here(x: &Matrix<'_>, centroids: &Array2<f64>, kernel: &'static Kernel, control: &Control) -> Result<Homes> {
    // Centres of single-precision rows are single-precision numbers, and such rows are compared in place.
    let narrow = collected(centroids.iter().map(|v| *v as f32))?;
    let narrow = ArrayView2::from_shape(centroids.dim(), &narrow).expect("as many numbers as the centres have");
    let centres = if x.is_double() { Matrix::F64(centroids.view()) } else { Matrix::F32(narrow) };
    let space = Dense::new(x.view(), Some(centres), Similarity::Euclidean, Precision::BFloat16, kernel, control)?;
    let mut labels: Vec<i64> = zeros(x.rows())?;
    let mut distances: Vec<f64> = zeros(x.rows())?;
    nearest(&space, 1, false, control, |_, key| 0.0 - key, &mut distances, &mut labels)?;
    Ok(Homes { labels: collected(labels.into_iter().map(|l| l as u32))?, distances })
}

/// What `assign` would give, with less work once few centres move.
///
/// Of the centres that stayed, a row's own is still the nearest if it is one of them: such a row is compared only with those
/// that moved. Rows whose own centre moved are compared with all.
fn reassign(
    x: &Matrix<'_>,
    centroids: &Array2<f64>,
    moved: &[bool],
    mut homes: Homes,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Homes> {
    let centres: Vec<usize> = (0..moved.len()).filter(|c| moved[*c]).collect();
    let homeless: Vec<usize> = (0..x.rows()).filter(|row| moved[homes.labels[*row] as usize]).collect();
    if 4 * homeless.len() > 3 * x.rows() || 4 * centres.len() > 3 * moved.len() {
        return assign(x, centroids, kernel, peers, control);
    }
    let nearest_moved = assign(x, &centroids.select(ndarray::Axis(0), &centres), kernel, peers, control)?;
    for row in 0..x.rows() {
        let challenger = (nearest_moved.distances[row], centres[nearest_moved.labels[row] as usize] as u32);
        if challenger < (homes.distances[row], homes.labels[row]) {
            (homes.distances[row], homes.labels[row]) = challenger;
        }
    }
    if !homeless.is_empty() {
        let again = assign(&Matrix::Made(&Picked(x, &homeless)), centroids, kernel, peers, control)?;
        for (i, &row) in homeless.iter().enumerate() {
            (homes.distances[row], homes.labels[row]) = (again.distances[i], again.labels[i]);
        }
    }
    Ok(homes)
}

/// The means of the clusters, each summed in the order of its rows. An empty cluster gets a row far from its centre.
fn means(x: Matrix<'_>, labels: &[u32], distances: &[f64], clusters: usize, control: &Control) -> Result<Array2<f64>> {
    let mut labels = collected(labels.iter().copied())?;
    let mut sizes: Vec<usize> = zeros(clusters)?;
    labels.iter().for_each(|label| sizes[*label as usize] += 1);
    if sizes.contains(&0) {
        // The farthest rows, of clusters that keep others; ties by index.
        let mut farthest = collected(0..labels.len() as u32)?;
        farthest.sort_unstable_by(|&a, &b| distances[b as usize].total_cmp(&distances[a as usize]).then(a.cmp(&b)));
        let mut donors = farthest.into_iter();
        for cluster in 0..clusters {
            while sizes[cluster] == 0 {
                let Some(row) = donors.next() else { break };
                let home = &mut labels[row as usize];
                if sizes[*home as usize] > 1 {
                    sizes[*home as usize] -= 1;
                    sizes[cluster] = 1;
                    *home = cluster as u32;
                }
            }
        }
    }
    let members = Classes::new(&labels)?;
    let mut centroids = origins(clusters, x.dim())?;
    let single = !x.is_double();
    centroids.axis_iter_mut(ndarray::Axis(0)).into_par_iter().enumerate().for_each_init(
        || vec![0.0; x.dim()],
        |row, (cluster, mut centroid)| {
            let members = members.members(cluster as u32);
            for &m in members {
                if control.is_cancelled() {
                    return;
                }
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
    control.check()?;
    Ok(centroids)
}

/// So many centres, all zero.
fn origins(clusters: usize, dim: usize) -> Result<Array2<f64>> {
    Ok(Array2::from_shape_vec((clusters, dim), zeros(clusters * dim)?).expect("as many zeros as the shape has"))
}

/// The first centres: k-means++ (Arthur and Vassilvitskii 2007) where that is quick, the same in batches where it is not.
fn start(
    x: Matrix<'_>,
    clusters: usize,
    random: &mut Random,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Array2<f64>> {
    let chosen = if x.rows() as f64 * clusters as f64 * x.dim() as f64 <= PLUS_PLUS_WORK {
        plus_plus(x, clusters, random, control)?
    } else {
        batches(&x, clusters, random, kernel, peers, control)?
    };
    gather(&x, &chosen)
}

/// Copies of some rows, as centres.
fn gather(x: &Matrix<'_>, rows: &[usize]) -> Result<Array2<f64>> {
    let mut centroids = origins(rows.len(), x.dim())?;
    for (mut centroid, row) in centroids.rows_mut().into_iter().zip(rows) {
        x.widen(*row, centroid.as_slice_mut().expect("a new array's rows are contiguous"));
    }
    Ok(centroids)
}

/// Rows drawn in a few batches, the first evenly and each later one with chances in proportion to the squared distance from
/// all batches before: the rounds of k-means|| (Bahmani et al. 2012) with as many draws in all as there are clusters.
///
/// All rounds together cost one assignment of all rows to all centres.
fn batches(
    x: &Matrix<'_>,
    clusters: usize,
    random: &mut Random,
    kernel: &'static Kernel,
    peers: &dyn Peers,
    control: &Control,
) -> Result<Vec<usize>> {
    const ROUNDS: usize = 8;
    let mut distances = filled(x.rows(), 1.0)?;
    let mut chosen: Vec<usize> = Vec::new();
    for round in 0.. {
        let wanted = (clusters - chosen.len()).div_ceil(ROUNDS.saturating_sub(round).max(1));
        let mut batch = draw(&distances, wanted, random);
        if batch.is_empty() {
            // Every row coincides with a centre: any that are none yet.
            let mut unused = filled(x.rows(), true)?;
            chosen.iter().for_each(|row| unused[*row] = false);
            batch.extend((0..x.rows()).filter(|row| unused[*row]).take(clusters - chosen.len()));
        }
        chosen.extend(&batch);
        if chosen.len() == clusters {
            break;
        }
        let homes = assign(x, &gather(x, &batch)?, kernel, peers, control)?;
        for (distance, new) in distances.iter_mut().zip(homes.distances) {
            *distance = if round == 0 { new } else { distance.min(new) };
        }
        // A centre is never drawn again, not even for a rounding error.
        chosen.iter().for_each(|row| distances[*row] = 0.0);
    }
    Ok(chosen)
}

/// About `wanted` distinct indices, each with a chance in proportion to its weight: systematic sampling, a point in every
/// `wanted`-th part of the total. One whose weight spans several points is drawn once, so that fewer may be drawn.
fn draw(weights: &[f64], wanted: usize, random: &mut Random) -> Vec<usize> {
    let step = weights.iter().sum::<f64>() / wanted as f64;
    let mut next = random.uniform() * step;
    let mut sum = 0.0;
    let mut drawn = Vec::with_capacity(wanted);
    for (i, &weight) in weights.iter().enumerate() {
        sum += weight;
        if weight > 0.0 && sum > next && drawn.len() < wanted {
            drawn.push(i);
            while next < sum {
                next += step;
            }
        }
    }
    drawn
}

/// Rows drawn one by one with a chance in proportion to the squared distance from those drawn before.
fn plus_plus(x: Matrix<'_>, clusters: usize, random: &mut Random, control: &Control) -> Result<Vec<usize>> {
    let n = x.rows();
    let mut chosen = vec![random.below(n)];
    let mut distances = filled(n, f64::INFINITY)?;
    let mut used = filled(n, false)?;
    let mut first_unused = 0;
    let mut centre = vec![0.0; x.dim()];
    while chosen.len() < clusters {
        control.check()?;
        let last = chosen[chosen.len() - 1];
        used[last] = true;
        x.widen(last, &mut centre);
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
        // Where all rows coincide with centres, the first row that is none yet.
        chosen.push(pick.unwrap_or_else(|| {
            while used[first_unused] {
                first_unused += 1;
            }
            first_unused
        }));
    }
    Ok(chosen)
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
            let rows =
                batches(&Matrix::F32(x.view()), clusters, &mut Random::new(1), kernel, &Alone, &control).unwrap();
            let distinct: std::collections::BTreeSet<_> = rows.iter().collect();
            assert_eq!((rows.len(), distinct.len()), (clusters, clusters));
        }
    }

    #[test]
    fn draws_follow_the_weights() {
        let weights: Vec<f64> = (0..100).map(|i| f64::from(i % 10)).collect();
        let mut times = [0u32; 100];
        let mut random = Random::new(5);
        for _ in 0..4000 {
            draw(&weights, 5, &mut random).into_iter().for_each(|i| times[i] += 1);
        }
        for (i, &count) in times.iter().enumerate() {
            let expected = 4000.0 * 5.0 * weights[i] / 450.0;
            // Five standard deviations.
            assert!((f64::from(count) - expected).abs() <= 5.0 * expected.sqrt() + 1e-9, "{i}: {count}, {expected}");
        }
    }

    #[test]
    fn centres_that_stayed_are_skipped_without_changing_anything() {
        let mut random = Random::new(3);
        // Small integers, so that distances tie.
        let x = Array2::from_shape_fn((300, 3), |_| (random.below(5) as f32) - 2.0);
        let before = Array2::from_shape_fn((12, 3), |_| (random.below(5) as f64) - 2.0);
        let (kernel, control) = (crate::kernel::select(None).unwrap(), Control::default());
        let rows = Matrix::F32(x.view());
        let homes = assign(&rows, &before, kernel, &Alone, &control).unwrap();
        for count in [1, 3, 6, 12] {
            let mut after = before.clone();
            let moved: Vec<bool> = (0..12).map(|c| c % (12 / count) == 0).collect();
            for c in (0..12).filter(|c| moved[*c]) {
                after.row_mut(c).mapv_inplace(|v| v + random.below(3) as f64 - 1.0);
            }
            let expected = assign(&rows, &after, kernel, &Alone, &control).unwrap();
            assert_eq!(reassign(&rows, &after, &moved, homes.clone(), kernel, &Alone, &control).unwrap(), expected);
        }
    }
}
