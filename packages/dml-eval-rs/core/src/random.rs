//! A small random generator with equal numbers on all machines: SplitMix64 (Steele, Lea and Flood
//! 2014).

/// A generator of random numbers, given a seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// Draws 64 bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Draws from [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Divides 0..n into `parts` equal parts and draws a number from each, or all numbers if n is
    /// at most `parts`. Evenly spaced numbers would fall on only a few classes when classes repeat
    /// periodically.
    pub fn spread(mut self, n: usize, parts: usize) -> impl ExactSizeIterator<Item = usize> {
        let parts = parts.min(n);
        (0..parts).map(move |part| {
            let start = part * n / parts;
            start + self.below((part + 1) * n / parts - start)
        })
    }

    /// Draws from 0..n, with a bias below n / 2^64.
    pub fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.bits()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spread_over_all_parts_and_no_period() {
        let drawn: Vec<usize> = Random::new(0).spread(20_000, 128).collect();
        assert!(
            drawn
                .iter()
                .enumerate()
                .all(|(part, i)| (part * 20_000 / 128..(part + 1) * 20_000 / 128).contains(i))
        );
        let classes: std::collections::HashSet<usize> = drawn.iter().map(|i| i % 100).collect();
        assert!(classes.len() > 60);
        assert!(Random::new(1).spread(3, 128).eq(0..3));
        assert_eq!(Random::new(1).spread(0, 5).len(), 0);
    }
}
