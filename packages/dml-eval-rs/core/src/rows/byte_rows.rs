//! Exact sums over rows of int8 and uint8.
//!
//! A product is below 2¹⁶ and a squared difference below 383², so a sum of `PART` terms fits into
//! int32. Sums of parts are int64, and float64 represents them exactly for fewer than 2³⁵ numbers.
//! So float64 sums in any order, and in particular the order that `exact` defines, are equal.

/// The number of terms in an int32 sum: 8,192 · 383² is below 2³¹.
const PART: usize = 8192;

/// A row of bytes.
#[derive(Clone, Copy)]
pub(crate) enum ByteRow<'a> {
    Signed(&'a [i8]),
    Unsigned(&'a [u8]),
}

impl ByteRow<'_> {
    /// Computes Σ q·g.
    #[inline(always)]
    pub fn dot(self, other: ByteRow<'_>) -> f64 {
        self.sum(other, |a, b| a * b)
    }

    /// Computes Σ (q − g)².
    #[inline(always)]
    pub fn squared_distance(self, other: ByteRow<'_>) -> f64 {
        self.sum(other, |a, b| (a - b) * (a - b))
    }

    #[inline(always)]
    fn sum(self, other: ByteRow<'_>, term: impl Fn(i32, i32) -> i32) -> f64 {
        match (self, other) {
            (ByteRow::Signed(q), ByteRow::Signed(g)) => sum(q, g, term),
            (ByteRow::Signed(q), ByteRow::Unsigned(g)) => sum(q, g, term),
            (ByteRow::Unsigned(q), ByteRow::Signed(g)) => sum(q, g, term),
            (ByteRow::Unsigned(q), ByteRow::Unsigned(g)) => sum(q, g, term),
        }
    }

    /// Calls `take` with each number.
    #[inline(always)]
    pub fn for_each(self, mut take: impl FnMut(usize, f64)) {
        match self {
            ByteRow::Signed(row) => {
                row.iter().enumerate().for_each(|(i, v)| take(i, f64::from(*v)))
            }
            ByteRow::Unsigned(row) => {
                row.iter().enumerate().for_each(|(i, v)| take(i, f64::from(*v)))
            }
        }
    }
}

#[inline(always)]
fn sum<Q: Copy + Into<i32>, G: Copy + Into<i32>>(
    q: &[Q],
    g: &[G],
    term: impl Fn(i32, i32) -> i32,
) -> f64 {
    let mut total = 0i64;
    for (q, g) in q.chunks(PART).zip(g.chunks(PART)) {
        let mut part = 0;
        for (a, b) in q.iter().zip(g) {
            part += term((*a).into(), (*b).into());
        }
        total += i64::from(part);
    }
    total as f64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::exact::{dot, squared_distance};
    use crate::random::Random;

    proptest! {
        #[test]
        fn sums_of_bytes_have_the_bits_of_float64_sums(
            len in 1usize..20_000, are_extreme in any::<bool>(), seed in any::<u64>(),
        ) {
            let mut random = Random::new(seed);
            let mut byte = || {
                match are_extreme {
                    true => [0, 127, 128, 255][random.below(4)],
                    false => random.below(256) as u8,
                }
            };
            let unsigned: Vec<u8> = (0..len).map(|_| byte()).collect();
            let signed: Vec<i8> = (0..len).map(|_| byte() as i8).collect();
            // The rows with the largest sums.
            let (most, least) = (vec![u8::MAX; len], vec![i8::MIN; len]);
            let rows = [
                ByteRow::Unsigned(&unsigned),
                ByteRow::Signed(&signed),
                ByteRow::Unsigned(&most),
                ByteRow::Signed(&least),
            ];
            let widen = |row: ByteRow<'_>| {
                let mut wide = vec![0.0; len];
                row.for_each(|i, v| wide[i] = v);
                wide
            };
            for q in rows {
                for g in rows {
                    let (x, y) = (widen(q), widen(g));
                    prop_assert_eq!(q.dot(g).to_bits(), dot(&x, &y).to_bits());
                    prop_assert_eq!(
                        q.squared_distance(g).to_bits(),
                        squared_distance(&x, &y).to_bits()
                    );
                }
            }
        }
    }
}
