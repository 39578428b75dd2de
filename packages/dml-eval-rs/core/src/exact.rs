//! Defines the arithmetic that decides comparisons: float64 sums in a fixed order.
//!
//! A sum over elements `i` uses eight lanes. Lane `j` adds the terms of elements
//! `j, j + 8, j + 16, ...` in this order, starting from zero. Terms are rounded before they are
//! added (multiply-add is not fused). Then `((0 + 4) + (2 + 6)) + ((1 + 5) + (3 + 7))` combines the
//! lanes. Only these sums may decide comparisons in this crate, so results are identical on all
//! machines, for any number of threads and any block size.

/// The largest relative error when a number is rounded to float32 (`UNIT32`) or float64 (`UNIT64`).
pub(crate) const UNIT32: f64 = 1.0 / (1 << 24) as f64;
pub(crate) const UNIT64: f64 = 1.0 / (1u64 << 53) as f64;

/// The number of lanes in a sum.
const LANES: usize = 8;

/// Adds up the lanes in the fixed order.
#[inline(always)]
pub(crate) fn combine(s: [f64; LANES]) -> f64 {
    ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]))
}

#[inline(always)]
fn sum<G: Copy + Into<f64>>(q: &[f64], g: &[G], term: impl Fn(f64, f64) -> f64) -> f64 {
    debug_assert_eq!(q.len(), g.len());
    let mut lanes = [0.0f64; LANES];
    let (q_chunks, q_rest) = q.as_chunks::<LANES>();
    let (g_chunks, g_rest) = g.as_chunks::<LANES>();
    for (q8, g8) in q_chunks.iter().zip(g_chunks) {
        for j in 0..LANES {
            lanes[j] += term(q8[j], g8[j].into());
        }
    }
    for (j, (&a, &b)) in q_rest.iter().zip(g_rest).enumerate() {
        lanes[j] += term(a, b.into());
    }
    combine(lanes)
}

/// Computes Σ q·g in the fixed order.
#[inline(always)]
pub(crate) fn dot<G: Copy + Into<f64>>(q: &[f64], g: &[G]) -> f64 {
    sum(q, g, |a, b| a * b)
}

/// Computes Σ x² in the fixed order.
#[inline(always)]
pub(crate) fn square(x: &[f64]) -> f64 {
    dot(x, x)
}

/// Computes Σ (q − g)² in the fixed order, from the differences themselves.
#[inline(always)]
pub(crate) fn squared_distance<G: Copy + Into<f64>>(q: &[f64], g: &[G]) -> f64 {
    sum(q, g, |a, b| (a - b) * (a - b))
}

/// Pairs of rows per call of [`dots`] and [`squared_distances`], enough to hide the latency of
/// additions.
pub(crate) const PAIRS: usize = 4;

#[inline(always)]
fn sums(
    q: [&[f32]; PAIRS],
    g: [&[f32]; PAIRS],
    term: impl Fn(f64, f64, f64) -> f64,
) -> [f64; PAIRS] {
    let mut lanes = [[0.0f64; LANES]; PAIRS];
    let whole = q[0].len() / LANES * LANES;
    for start in (0..whole).step_by(LANES) {
        for (lanes, (q, g)) in lanes.iter_mut().zip(q.iter().zip(g)) {
            for j in 0..LANES {
                lanes[j] = term(lanes[j], f64::from(q[start + j]), f64::from(g[start + j]));
            }
        }
    }
    for (lanes, (q, g)) in lanes.iter_mut().zip(q.iter().zip(g)) {
        for (j, i) in (whole..q.len()).enumerate() {
            lanes[j] = term(lanes[j], f64::from(q[i]), f64::from(g[i]));
        }
    }
    [combine(lanes[0]), combine(lanes[1]), combine(lanes[2]), combine(lanes[3])]
}

/// Computes [`dot`] for multiple pairs of float32 rows. Products of float32 are exact in float64,
/// so `FUSED` doesn't change any bit.
#[inline(always)]
pub(crate) fn dots<const FUSED: bool>(q: [&[f32]; PAIRS], g: [&[f32]; PAIRS]) -> [f64; PAIRS] {
    sums(q, g, |sum, a, b| if FUSED { a.mul_add(b, sum) } else { sum + a * b })
}

/// Computes [`squared_distance`] for multiple pairs of float32 rows. This is never fused, because
/// squares are rounded.
#[inline(always)]
pub(crate) fn squared_distances(q: [&[f32]; PAIRS], g: [&[f32]; PAIRS]) -> [f64; PAIRS] {
    sums(q, g, |sum, a, b| sum + (a - b) * (a - b))
}

/// Returns the length of a packed row of `dim` numbers: the elements of lane 0 in order, then lane
/// 1, and so on, with all lanes padded with zeros, which don't change sums.
pub(crate) fn padded_len(dim: usize) -> usize {
    dim.next_multiple_of(LANES)
}

/// Returns the position of element `i` of a row in a packed row of length `padded`.
#[cfg(test)]
pub(crate) fn packed_position(i: usize, padded: usize) -> usize {
    i % LANES * (padded / LANES) + i / LANES
}

/// Packs a row for exact tiles, lane by lane, into each `width`-th word of `panel`. The length of
/// the row must be [padded](padded_len).
pub(crate) fn pack_lanes(row: &[f64], width: usize, panel: &mut [f64]) {
    let mut words = panel.iter_mut().step_by(width);
    for lane in 0..LANES {
        for (element, word) in row[lane.min(row.len())..].iter().step_by(LANES).zip(&mut words) {
            *word = *element;
        }
    }
}

/// Combines eight tiles of `size` sums, one per lane, into the first tile.
#[inline(always)]
pub(crate) fn combine_tiles(tiles: &mut [f64], size: usize) {
    let (first, rest) = tiles.split_at_mut(size);
    let rest: [&[f64]; LANES - 1] = std::array::from_fn(|l| &rest[l * size..][..size]);
    for (i, sum) in first.iter_mut().enumerate() {
        *sum = combine([
            *sum, rest[0][i], rest[1][i], rest[2][i], rest[3][i], rest[4][i], rest[5][i],
            rest[6][i],
        ]);
    }
}

/// Computes the key that ranks a gallery by the cosine to a fixed query: dot·|dot| / |g|².
///
/// The key increases with the cosine. It takes a single rounded division and no root, so collinear
/// vectors of small integers tie.
#[inline(always)]
pub(crate) fn cosine_key(dot: f64, gallery_square: f64) -> f64 {
    dot * dot.abs() / gallery_square
}

/// Counts the bits that differ.
#[inline(always)]
pub(crate) fn differing_bits(a: &[u8], b: &[u8]) -> u32 {
    let (a_words, a_rest) = a.as_chunks::<8>();
    let (b_words, b_rest) = b.as_chunks::<8>();
    let mut bits = 0;
    for (x, y) in a_words.iter().zip(b_words) {
        bits += (u64::from_le_bytes(*x) ^ u64::from_le_bytes(*y)).count_ones();
    }
    for (x, y) in a_rest.iter().zip(b_rest) {
        bits += (x ^ y).count_ones();
    }
    bits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_add_every_eighth_element_and_combine_in_a_fixed_tree() {
        let mut random = crate::random::Random::new(1);
        let mut differing = [0; 2];
        for _ in 0..50 {
            let (q, g): (Vec<f64>, Vec<f64>) =
                (0..19).map(|_| (random.uniform() - 0.5, random.uniform())).unzip();
            let mut s = [0.0f64; 8];
            for i in 0..19 {
                s[i % 8] += q[i] * g[i];
            }
            let expected = ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
            assert_eq!(dot(&q, &g).to_bits(), expected.to_bits());
            let pairwise = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
            for (count, other) in differing.iter_mut().zip([s.iter().sum(), pairwise]) {
                *count += u32::from(other != expected);
            }
        }
        assert!(
            differing.iter().all(|count| *count > 5),
            "these numbers don't distinguish the orders"
        );
    }

    #[test]
    fn collinear_integer_vectors_tie_under_the_cosine() {
        let q = [1.0, 2.0, -3.0];
        let (g, h) = ([2.0, 1.0, 5.0], [6.0, 3.0, 15.0]);
        assert_eq!(cosine_key(dot(&q, &g), dot(&g, &g)), cosine_key(dot(&q, &h), dot(&h, &h)));
    }

    #[test]
    fn differing_bits_counts_the_tail_too() {
        let a = [0xff; 11];
        let b = [0x0f; 11];
        assert_eq!(differing_bits(&a, &b), 44);
    }
}
