//! The ROC curve from counts of pairs, and the area under the curve.

use crate::error::{Result, argument};
use crate::memory::{Grow, allocate};

/// The corners of an ROC curve from (0, 0) to (1, 1), omitting points on straight segments.
#[derive(Debug, Default, PartialEq)]
pub struct Curve {
    /// The proportions of accepted negatives, in ascending order.
    pub far: Vec<f64>,
    /// The proportions of accepted positives, in ascending order.
    pub tar: Vec<f64>,
    /// The lowest accepted scores, in descending order.
    pub threshold: Vec<f64>,
    /// 2·#{positive > negative} + #{positive = negative}.
    pub twice_right: u128,
}

impl Curve {
    fn push(&mut self, far: f64, tar: f64, threshold: f64) -> Result<()> {
        if self.far.last() != Some(&far) || self.tar.last() != Some(&tar) {
            self.far.try_push(far)?;
            self.tar.try_push(tar)?;
            self.threshold.try_push(threshold)?;
        }
        Ok(())
    }
}

/// Computes the curve for [`Slots`](crate::Slots), with corners before and at all scores of
/// positives.
pub fn roc_curve(scores: &[f64], positives: &[u64], negatives: &[u64]) -> Result<Curve> {
    let n = scores.len();
    if positives.len() != n || negatives.len() != 2 * n + 1 {
        return argument(format!(
            "counts have {} and {} entries; expected {n}, 2·{n}+1",
            positives.len(),
            negatives.len()
        ));
    }
    let (all_positives, all_negatives): (u64, u64) =
        (positives.iter().sum(), negatives.iter().sum());
    let most = 2 * n + 2;
    let mut curve = Curve {
        far: allocate(most)?,
        tar: allocate(most)?,
        threshold: allocate(most)?,
        ..Curve::default()
    };
    curve.push(0.0, 0.0, f64::INFINITY)?;
    let (mut above, mut accepted) = (0, 0);
    for (i, &score) in scores.iter().enumerate().rev() {
        above += negatives[2 * i + 2];
        let at_least = above + negatives[2 * i + 1];
        if positives[i] > 0 {
            let tar = |accepted: u64| accepted as f64 / all_positives as f64;
            curve.push(above as f64 / all_negatives as f64, tar(accepted), score.next_up())?;
            accepted += positives[i];
            curve.push(at_least as f64 / all_negatives as f64, tar(accepted), score)?;
            let twice_below =
                u128::from(all_negatives - above) + u128::from(all_negatives - at_least);
            curve.twice_right += u128::from(positives[i]) * twice_below;
        }
        above = at_least;
    }
    curve.push(1.0, 1.0, f64::NEG_INFINITY)?;
    Ok(curve)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_turns_at_each_positive_and_is_straight_between_tied_pairs() {
        // The negatives are 0, 1, 1, 4, and the positives 1, 1, 2, 3; pairs at 5 are not positive.
        let curve =
            roc_curve(&[1.0, 2.0, 3.0, 5.0], &[2, 1, 1, 0], &[1, 2, 0, 0, 0, 0, 1, 0, 0]).unwrap();
        let corners = [(0.0, 0.0, f64::INFINITY), (0.25, 0.0, 3f64.next_up()), (0.25, 0.25, 3.0)];
        let rest = [(0.25, 0.5, 2.0), (0.75, 1.0, 1.0), (1.0, 1.0, f64::NEG_INFINITY)];
        let found: Vec<_> = curve.far.into_iter().zip(curve.tar).zip(curve.threshold).collect();
        assert_eq!(
            found,
            [&corners[..], &rest[..]]
                .concat()
                .iter()
                .map(|c| ((c.0, c.1), c.2))
                .collect::<Vec<_>>()
        );
        // The positives at 2 and 3 are above three negatives; those at 1 are above one, and equal
        // to two.
        assert_eq!(curve.twice_right, 2 * (3 + 3 + 2) + 2 * 2);
        // Negatives on both sides of a score without positives lie on one segment.
        let straight = roc_curve(&[1.0, 5.0], &[1, 0], &[0, 0, 1, 0, 1]).unwrap();
        assert_eq!((straight.far, straight.tar), (vec![0.0, 1.0, 1.0], vec![0.0, 0.0, 1.0]));
        assert!(roc_curve(&[1.0], &[1], &[1, 0]).is_err());
    }
}
