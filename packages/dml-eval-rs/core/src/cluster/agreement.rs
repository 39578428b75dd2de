//! Agreement between partitions, computed from a contingency table.

use crate::cluster::pair_sort::{PIECE, sort_pairs};
use crate::control::Control;
use crate::error::{Error, Result, argument};
use crate::logarithm::ln;
use crate::memory::{collect, collect_counted, zeros};

/// How to average the entropies of both partitions in the normalized mutual information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Average {
    /// The smaller entropy.
    Min,
    /// √(H(a)·H(b)).
    Geometric,
    /// (H(a) + H(b))/2.
    Arithmetic,
    /// The larger entropy.
    Max,
}

impl std::str::FromStr for Average {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "min" => Ok(Average::Min),
            "geometric" => Ok(Average::Geometric),
            "arithmetic" => Ok(Average::Arithmetic),
            "max" => Ok(Average::Max),
            _ => argument(format!(
                "unknown average {name:?}; expected min, geometric, arithmetic or max"
            )),
        }
    }
}

impl Average {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Average::Min => a.min(b),
            Average::Geometric => (a * b).sqrt(),
            Average::Arithmetic => (a + b) / 2.0,
            Average::Max => a.max(b),
        }
    }
}

/// The sizes of all clusters and of all intersections between both partitions.
struct Contingency {
    n: u64,
    a: Vec<u64>,
    b: Vec<u64>,
    /// (cluster of a, cluster of b, items in both), sorted, so that sums are always identical.
    cells: Vec<(u32, u32, u64)>,
}

/// Counts the items per pair of clusters.
fn contingency(a: &[u32], b: &[u32], control: &Control) -> Result<Contingency> {
    if a.len() != b.len() || a.is_empty() {
        return argument(format!(
            "the partitions have {} and {} entries; expected equal lengths of at least one",
            a.len(),
            b.len()
        ));
    }
    let sizes = |x: &[u32]| -> Result<Vec<u64>> {
        let mut sizes = zeros(x.iter().max().map_or(0, |m| *m as usize + 1))?;
        for piece in x.chunks(PIECE) {
            control.check()?;
            piece.iter().for_each(|c| sizes[*c as usize] += 1);
        }
        Ok(sizes)
    };
    let pairs = sort_pairs(collect(a.iter().copied().zip(b.iter().copied()))?, PIECE, control)?;
    let cells = pairs.chunk_by(|x, y| x == y).map(|same| (same[0].0, same[0].1, same.len() as u64));
    let cells = collect_counted(cells)?;
    Ok(Contingency { n: a.len() as u64, a: sizes(a)?, b: sizes(b)?, cells })
}

fn entropy(sizes: &[u64], n: u64) -> f64 {
    let n = n as f64;
    -sizes.iter().filter(|s| **s > 0).map(|&s| s as f64 / n * ln(s as f64 / n)).sum::<f64>()
}

impl Contingency {
    fn clusters(sizes: &[u64]) -> usize {
        sizes.iter().filter(|s| **s > 0).count()
    }

    /// Whether both partitions have a single cluster, or both consist of singletons.
    fn are_trivially_equal(&self) -> bool {
        let (a, b) = (Self::clusters(&self.a), Self::clusters(&self.b));
        a == b && (a == 1 || a as u64 == self.n)
    }

    fn mutual_information(&self, control: &Control) -> Result<f64> {
        let n = self.n as f64;
        let information = |&(i, j, c): &(u32, u32, u64)| {
            let (c, a, b) = (c as f64, self.a[i as usize] as f64, self.b[j as usize] as f64);
            c / n * ln(c / a * (n / b))
        };
        let mut sum = 0.0;
        for cells in self.cells.chunks(PIECE) {
            control.check()?;
            sum = cells.iter().map(information).fold(sum, |sum, term| sum + term);
        }
        Ok(sum.max(0.0))
    }

    /// Computes the mean mutual information of random partitions with these cluster sizes (Vinh,
    /// Epps and Bailey 2010, Eq. 24a).
    ///
    /// The mean depends only on sizes, so equal sizes are computed once. Even a large number of
    /// clusters has few distinct sizes.
    fn expected_mutual_information(&self, control: &Control) -> Result<f64> {
        let distinct = |sizes: &[u64]| {
            let mut sorted = collect_counted(sizes.iter().copied().filter(|s| *s > 0))?;
            sorted.sort_unstable();
            collect_counted(sorted.chunk_by(|x, y| x == y).map(|c| (c[0], c.len() as f64)))
        };
        let columns = distinct(&self.b)?;
        let mut expected = 0.0;
        for (a, a_times) in distinct(&self.a)? {
            for &(b, b_times) in &columns {
                control.check()?;
                expected += a_times * b_times * expected_pair_information(a, b, self.n);
            }
        }
        Ok(expected)
    }
}

/// Computes the mean of c/n·ln(c·n/(a·b)) − (c − μ)/n, where c is the number of items that random
/// clusters of a and b items share, out of n items, and μ = a·b/n is the mean of c, so that the
/// second term doesn't change the mean.
///
/// With x = c/μ, this is μ/n times the mean of x·ln x − x + 1, which is never negative, so digits
/// don't cancel. The probabilities of c, relative to the most likely c, are products of ratios.
/// Factorials aren't used, because logarithms would lose digits in exp. Terms are added until the
/// relative probability falls below 2^−80.
fn expected_pair_information(a: u64, b: u64, n: u64) -> f64 {
    const LEAST: f64 = 1.0 / (1u128 << 80) as f64;
    let (product, rest) =
        (u128::from(a) * u128::from(b), i128::from(n) - i128::from(a) - i128::from(b));
    let from = (-rest).max(0) as u64;
    let likeliest = ((product + u128::from(a) + u128::from(b) + 1) / (u128::from(n) + 2)) as u64;
    let likeliest = likeliest.clamp(from, a.min(b));
    let excess = |c: u64| (i128::from(c) * i128::from(n) - product as i128) as f64 / product as f64;
    let others = |c: u64| (rest + i128::from(c)) as f64;
    let (mut chances, mut sum) = (1.0, information_above_linear(excess(likeliest)));
    let mut chance = 1.0;
    for c in likeliest + 1..=a.min(b) {
        chance *= (a - c + 1) as f64 * (b - c + 1) as f64 / (c as f64 * others(c));
        if chance < LEAST {
            break;
        }
        chances += chance;
        sum += chance * information_above_linear(excess(c));
    }
    chance = 1.0;
    for c in (from..likeliest).rev() {
        chance *= (c + 1) as f64 * others(c + 1) / ((a - c) as f64 * (b - c) as f64);
        if chance < LEAST {
            break;
        }
        chances += chance;
        sum += chance * information_above_linear(excess(c));
    }
    (a as f64 / n as f64) * (b as f64 / n as f64) * (sum / chances)
}

/// Computes x·ln x − x + 1 for x = 1 + e ≥ 0. Near x = 1, uses the series Σ (−e)^k/(k(k − 1)) from
/// k = 2 on.
fn information_above_linear(e: f64) -> f64 {
    const TERMS: u32 = 20;
    if e <= -1.0 {
        1.0
    } else if e.abs() > 0.125 {
        (1.0 + e) * ln(1.0 + e) - e
    } else {
        let series =
            (2..TERMS + 2).rev().fold(0.0, |sum, k| 1.0 / f64::from(k * (k - 1)) - e * sum);
        e * e * series
    }
}

/// Computes the normalized mutual information, I divided by an average of both entropies.
///
/// Returns 1 if both partitions are a single cluster, and 0 if only `a` or `b` is.
pub fn nmi(a: &[u32], b: &[u32], average: Average, control: &Control) -> Result<f64> {
    let table = contingency(a, b, control)?;
    if table.are_trivially_equal() {
        return Ok(1.0);
    }
    let normalizer = average.apply(entropy(&table.a, table.n), entropy(&table.b, table.n));
    if normalizer == 0.0 {
        // one cluster has no entropy, and its information is at most a rounding error
        return Ok(0.0);
    }
    Ok((table.mutual_information(control)? / normalizer).min(1.0))
}

/// Computes the adjusted Rand index (S − E) / ((A + B)/2 − E). S, A and B count the pairs of items
/// in a common cluster in both partitions, in `a`, and in `b`, out of T pairs, and E = A·B/T.
///
/// Numerator and denominator, times 2·T, are exact integers. Returns 1 if both have a single
/// cluster, or only singletons.
pub fn ari(a: &[u32], b: &[u32], control: &Control) -> Result<f64> {
    let table = contingency(a, b, control)?;
    if table.are_trivially_equal() {
        return Ok(1.0);
    }
    if u32::try_from(table.n).is_err() {
        return argument(format!(
            "the partitions have {} entries; expected fewer than 2^32",
            table.n
        ));
    }
    // There are fewer than 2^63 pairs, so products of counts are below 2^126, and sums of two
    // products below 2^127.
    let pairs = |size: u64| i128::from(size) * (i128::from(size) - 1) / 2;
    let together = |sizes: &[u64]| sizes.iter().map(|s| pairs(*s)).sum::<i128>();
    let (in_a, in_b, all) = (together(&table.a), together(&table.b), pairs(table.n));
    let in_both: i128 = table.cells.iter().map(|cell| pairs(cell.2)).sum();
    let above_chance = 2 * (in_both * all - in_a * in_b);
    // The range is 0 only if the partitions are trivially equal.
    let range = in_a * (all - in_b) + in_b * (all - in_a);
    Ok(above_chance as f64 / range as f64)
}

/// Computes the adjusted mutual information (I − E) / ((H(a) + H(b))/2 − E), where E is the mean of
/// I over random partitions with the given cluster sizes.
///
/// Returns 1 if both partitions have a single cluster, or both only singletons.
pub fn ami(a: &[u32], b: &[u32], control: &Control) -> Result<f64> {
    let table = contingency(a, b, control)?;
    if table.are_trivially_equal() {
        return Ok(1.0);
    }
    let expected = table.expected_mutual_information(control)?;
    let mean_entropy = (entropy(&table.a, table.n) + entropy(&table.b, table.n)) / 2.0;
    let range = mean_entropy - expected;
    // Rounding could make the range 0, so keep the magnitude above a rounding error.
    let range = if range < 0.0 { range.min(-f64::EPSILON) } else { range.max(f64::EPSILON) };
    Ok((table.mutual_information(control)? - expected) / range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_partitions_agree_fully_under_any_names() {
        let control = Control::default();
        let (a, b) = ([0, 0, 1, 1, 2], [2, 2, 0, 0, 1]);
        for average in [Average::Min, Average::Geometric, Average::Arithmetic, Average::Max] {
            assert!((nmi(&a, &b, average, &control).unwrap() - 1.0).abs() < 1e-15);
        }
        assert_eq!(ari(&a, &b, &control).unwrap(), 1.0);
        assert!((ami(&a, &b, &control).unwrap() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn one_cluster_on_both_sides_is_full_agreement_and_on_one_side_none() {
        let control = Control::default();
        for average in [Average::Min, Average::Geometric, Average::Arithmetic, Average::Max] {
            assert_eq!(nmi(&[0, 0, 0], &[0, 0, 0], average, &control).unwrap(), 1.0);
            assert!(nmi(&[0, 0, 0], &[0, 1, 1], average, &control).unwrap() < 1e-15);
        }
        assert_eq!(ari(&[0, 0, 0], &[5, 5, 5], &control).unwrap(), 1.0);
        assert_eq!(ari(&[0, 0, 0], &[0, 1, 1], &control).unwrap(), 0.0);
        assert_eq!(ami(&[0, 0, 0], &[5, 5, 5], &control).unwrap(), 1.0);
    }

    #[test]
    fn the_rand_index_of_random_partitions_is_0_on_average() {
        let control = Control::default();
        let a = [0u32, 0, 0, 1, 1, 2];
        let mut b = [0u32, 0, 1, 1, 2, 2];
        let mut sum = 0.0;
        permute(&mut b, 0, &mut |b| sum += ari(&a, b, &control).unwrap());
        assert!(sum.abs() < 1e-10);
    }

    #[test]
    fn expected_information_is_the_mean_over_all_permutations() {
        let control = Control::default();
        let a = [0u32, 0, 0, 1, 1, 2];
        let mut b = [0u32, 0, 1, 1, 2, 2];
        let expected =
            contingency(&a, &b, &control).unwrap().expected_mutual_information(&control).unwrap();
        let (mut sum, mut count) = (0.0, 0);
        permute(&mut b, 0, &mut |b| {
            sum += contingency(&a, b, &control).unwrap().mutual_information(&control).unwrap();
            count += 1;
        });
        assert!((expected - sum / f64::from(count)).abs() < 1e-12);
    }

    #[test]
    fn expected_information_keeps_its_digits_at_ten_million_items() {
        // (a, b, n, value), where values come from log-gamma functions with 170 bits (mpmath).
        for (a, b, n, exact) in [
            (7, 3, 10, 0.013_102_186_824_084_62),
            (1, 1, 10_000_000, 1.611_809_565_095_832e-13),
            (300, 20, 60_502, 3.892_632_256_441_501_4e-6),
            (1000, 1000, 10_000_000, 2.370_358_967_731_463e-8),
            (5_000_000, 5_000_000, 10_000_000, 1.250_000_187_500_033_4e-8),
            (9_999_999, 5_000_000, 10_000_000, 2.500_000_250_000_029e-15),
            (9_999_997, 9_999_995, 10_000_000, 7.500_000_500_000_213e-21),
            (333_333, 4_000_000, 10_000_000, 2.900_005_344_199_110_5e-8),
        ] {
            let found = expected_pair_information(a, b, n);
            assert!((found / exact - 1.0f64).abs() < 1e-13, "{a} {b} {n}: {found:e}, {exact:e}");
            assert_eq!(found.to_bits(), expected_pair_information(b, a, n).to_bits());
        }
    }

    fn permute(x: &mut [u32; 6], from: usize, visit: &mut impl FnMut(&[u32])) {
        if from == x.len() {
            visit(x);
        }
        for i in from..x.len() {
            x.swap(from, i);
            permute(x, from + 1, visit);
            x.swap(from, i);
        }
    }
}
