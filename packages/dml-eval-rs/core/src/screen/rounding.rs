//! Rounds bounds outwards to float32, so that they remain bounds.

/// Moves a float32 by `steps` adjacent numbers, where −0 to +0 is one step. Uses no branch: it
/// would often be mispredicted.
#[inline(always)]
fn step(y: f32, steps: i32) -> f32 {
    // Maps the bits of floats to integers in the same order as the floats. Applied again, this
    // restores the bits.
    let in_order = |bits: i32| bits ^ (((bits >> 31) as u32) >> 1) as i32;
    f32::from_bits(in_order(in_order(y.to_bits() as i32) + steps) as u32)
}

/// Rounds down to float32, but not below the lowest finite number.
#[inline(always)]
pub(crate) fn round_down(x: f64) -> f32 {
    let y = x as f32;
    step(y, -i32::from(f64::from(y) > x)).max(f32::MIN)
}

/// Rounds up to float32.
#[inline(always)]
pub(crate) fn round_up(x: f64) -> f32 {
    let y = x as f32;
    step(y, i32::from(f64::from(y) < x))
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
