//! Gains of matches, and their discounts by rank, for the discounted cumulative gain.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::logarithm::ln;
use crate::memory::{Grow, allocate};
use crate::rank::lists::Lists;

/// The grade of each match that a relation lists.
#[derive(Clone, Copy, Debug)]
pub struct Grades<'a> {
    lists: Lists<'a>,
    values: &'a [f64],
}

impl<'a> Grades<'a> {
    /// Grades listed matches, in their order: finite numbers above 0.
    pub fn new(lists: Lists<'a>, values: &'a [f64]) -> Result<Self> {
        if values.len() != lists.items.len() {
            return argument(format!("there are {} grades; expected {}", values.len(), lists.items.len()));
        }
        if let Some(grade) = values.iter().find(|grade| !(grade.is_finite() && **grade > 0.0)) {
            return argument(format!("a match has the grade {grade}; expected finite numbers above 0"));
        }
        Ok(Grades { lists, values })
    }

    /// Returns the grade of a match.
    pub(crate) fn grade(&self, query: usize, index: u64) -> f64 {
        let at = self.lists.of(query).partition_point(|item| u64::from(*item) < index);
        self.values[self.lists.offsets[query] as usize + at]
    }
}

/// Discounts 1/log₂(i + 1) of the ranks i.
pub(crate) struct Discounts(Vec<f64>);

impl Discounts {
    /// Computes the discounts of the ranks from 1 to `last`.
    pub fn new(last: usize, control: &Control) -> Result<Self> {
        const BETWEEN_LOOKS: usize = 1 << 20;
        let mut discounts = allocate(last)?;
        for start in (1..=last).step_by(BETWEEN_LOOKS) {
            control.check()?;
            let ranks = start..=last.min(start + BETWEEN_LOOKS - 1);
            discounts.try_extend(ranks.map(|rank| std::f64::consts::LN_2 / ln((rank + 1) as f64)))?;
        }
        Ok(Discounts(discounts))
    }

    /// Returns the discount of a rank, from 1 on.
    pub fn at(&self, rank: u64) -> f64 {
        self.0[rank as usize - 1]
    }

    /// Computes Σ gainᵢ · discount(i) over gains of the ranks from 1 on.
    pub fn best(&self, gains: impl Iterator<Item = f64>) -> f64 {
        gains.zip(&self.0).fold(0.0, |sum, (gain, discount)| sum + gain * discount)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discounts_are_exact_at_powers_of_two() {
        let discounts = Discounts::new(255, &Control::default()).unwrap();
        for (rank, expected) in [(1, 1.0), (3, 0.5), (15, 0.25), (255, 0.125)] {
            assert_eq!(discounts.at(rank), expected);
        }
        assert_eq!(discounts.best([3.0, 2.0, 4.0].into_iter()), 3.0 + 2.0 * discounts.at(2) + 2.0);
    }
}
