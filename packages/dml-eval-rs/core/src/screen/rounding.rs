//! Rounding of bounds to float32, outwards, so that they remain bounds.

/// Rounds down to float32, to no less than the lowest finite one.
pub(crate) fn round_down(x: f64) -> f32 {
    let y = x as f32;
    let y = if f64::from(y) > x { y.next_down() } else { y };
    y.max(f32::MIN)
}

/// Rounds up to float32.
pub(crate) fn round_up(x: f64) -> f32 {
    let y = x as f32;
    if f64::from(y) < x { y.next_up() } else { y }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn numbers_are_rounded_outwards_and_no_further_than_to_their_neighbours(
            x in prop_oneof![-2.0f64..2.0, -1e-40f64..1e-40, -1e39f64..1e39],
        ) {
            let (down, up) = (round_down(x), round_up(x));
            prop_assert!(down.is_finite() && f64::from(up) >= x);
            if x >= f64::from(f32::MIN) {
                prop_assert!(f64::from(down) <= x);
            }
            if x.abs() <= f64::from(f32::MAX) {
                prop_assert!(up == down || up == down.next_up());
            }
        }
    }
}
