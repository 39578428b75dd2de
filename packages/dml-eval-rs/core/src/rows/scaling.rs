//! Scales by powers of two, which doesn't change the mantissa of normal numbers.

/// Returns the binary exponent of a finite number that isn't 0.
fn exponent(x: f64) -> i32 {
    let bits = ((x.to_bits() >> 52) & 0x7ff) as i32;
    if bits == 0 { exponent(x * power_of_two(200)) - 200 } else { bits - 1023 }
}

/// Returns 2 to the power `e`, for −1022 ≤ e ≤ 1023.
fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// The least length that is scaled to 1. Shorter rows stay shorter, so that the underflow of
/// products in keys, multiplied by the square of the factor, remains far below the rounding errors
/// that the margin allows for.
const SHORTEST: f64 = f64::from_bits((1023 - 500) << 52);

/// Returns the power of two that scales `length` to between 1/4 and 1. A `length` below 2^−500 is
/// treated as 2^−500.
pub(crate) fn scale_below_one(length: f64) -> f64 {
    power_of_two(-(exponent(length.max(SHORTEST)) + 1))
}

/// Scales a row of finite numbers by a power of two, so that the largest magnitude is between 1
/// and 2.
#[inline(always)]
pub(crate) fn rescale(x: &mut [f64]) {
    // Compare magnitudes by bits, because the compiler can vectorize this.
    let largest = f64::from_bits(x.iter().fold(0, |most, v| most.max(v.abs().to_bits())));
    if largest == 0.0 || !largest.is_finite() {
        return;
    }
    let e = -exponent(largest);
    let (half, rest) = (power_of_two(e / 2), power_of_two(e - e / 2));
    for v in x {
        *v = *v * half * rest;
    }
}
