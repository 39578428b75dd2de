//! Scaling by powers of two, which changes no bit of a normal number's mantissa.

/// Returns the binary exponent of a finite number other than 0.
fn exponent(x: f64) -> i32 {
    let bits = ((x.to_bits() >> 52) & 0x7ff) as i32;
    if bits == 0 { exponent(x * power_of_two(200)) - 200 } else { bits - 1023 }
}

/// Returns 2 to the power `e`, for −1022 ≤ e ≤ 1023.
fn power_of_two(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}

/// Returns the power of two that brings `x` between 1/4 and 1, or the nearest one that is a normal number.
pub(crate) fn scale_below_one(x: f64) -> f64 {
    power_of_two(-(exponent(x) + 1).max(-1021))
}

/// Scales a row by a power of two so that its largest element is between 1 and 2.
pub(crate) fn rescale(x: &mut [f64]) {
    let largest = x.iter().fold(0.0f64, |m, v| m.max(v.abs()));
    if largest == 0.0 {
        return;
    }
    let e = -exponent(largest);
    let (half, rest) = (power_of_two(e / 2), power_of_two(e - e / 2));
    for v in x {
        *v = *v * half * rest;
    }
}
