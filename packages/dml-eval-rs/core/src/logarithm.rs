//! Computes the natural logarithm, with identical bits on all machines.
//!
//! The last bit of libm's logarithm differs between systems and versions. This implementation is a
//! fixed sequence of float64 additions, multiplications and divisions, which are never fused, and
//! uses double-double arithmetic (Dekker 1971) if necessary.

/// An unevaluated sum of a pair of numbers. The second is at most half of the last bit of the
/// first.
type Double = (f64, f64);

/// Adds numbers exactly, if |a| ≥ |b|.
fn add_ordered(a: f64, b: f64) -> Double {
    let sum = a + b;
    (sum, b - (sum - a))
}

/// Multiplies numbers exactly.
fn multiply(a: f64, b: f64) -> Double {
    let split = |x: f64| {
        let c = 134_217_729.0 * x; // 2^27 + 1
        let high = c - (c - x);
        (high, x - high)
    };
    let (product, (a_high, a_low), (b_high, b_low)) = (a * b, split(a), split(b));
    (product, ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low)
}

/// Multiplies with a relative error below 2^−100.
fn multiply_doubles(a: Double, b: Double) -> Double {
    let (high, low) = multiply(a.0, b.0);
    add_ordered(high, low + (a.0 * b.1 + a.1 * b.0))
}

/// Divides with a relative error below 2^−100.
fn divide(a: f64, b: Double) -> Double {
    let quotient = a / b.0;
    let (high, low) = multiply(quotient, b.0);
    add_ordered(quotient, ((a - high) - low - quotient * b.1) / b.0)
}

/// Adds 1/n to a smaller number.
fn add_reciprocal(n: f64, x: Double) -> Double {
    let (high, low) = divide(1.0, (n, 0.0));
    let (sum, rest) = add_ordered(high, x.0);
    add_ordered(sum, rest + (low + x.1))
}

/// Computes the natural logarithm of a positive normal number, with an error below 0.501 units in
/// the last place.
///
/// With x = 2^e·m, where 1/√2 < m ≤ √2,
/// and z = (m − 1)/(m + 1): ln x = e·ln 2 + 2z(1 + z²/3 + z⁴/5 + …).
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    /// ln 2 as the first 42 bits (so that products with an exponent are exact), plus the remainder.
    const LN_2: Double =
        (f64::from_bits(0x3fe6_2e42_fefa_3800), f64::from_bits(0x3d2e_f357_93c7_6730));
    const MANTISSA: u64 = (1 << 52) - 1;
    let (mut exponent, mut m) =
        ((x.to_bits() >> 52) as f64 - 1023.0, f64::from_bits(x.to_bits() & MANTISSA | 1023 << 52));
    if m > std::f64::consts::SQRT_2 {
        (exponent, m) = (exponent + 1.0, m / 2.0);
    }
    // m − 1 is exact, and |z| ≤ 0.172.
    let z = divide(m - 1.0, add_ordered(m.max(1.0), m.min(1.0)));
    let square = multiply_doubles(z, z);
    // The terms from z⁸/9 on are below 2^−23 of the sum, so float64 suffices. The terms from z³²/33
    // on are below 2^−80.
    let tail = (4..16).rev().fold(0.0, |sum, k| sum * square.0 + 1.0 / f64::from(2 * k + 1));
    let mut sum = multiply_doubles(square, (tail, 0.0));
    for n in [7.0, 5.0, 3.0] {
        sum = multiply_doubles(square, add_reciprocal(n, sum));
    }
    let (high, low) = multiply_doubles((2.0 * z.0, 2.0 * z.1), add_reciprocal(1.0, sum));
    if exponent == 0.0 {
        return high + low;
    }
    // |ln m| is at most half of |e·ln 2|.
    let (sum, rest) = add_ordered(exponent * LN_2.0, high);
    sum + (rest + (low + exponent * LN_2.1))
}
#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers and logarithms, rounded from 200 bits (mpmath). For the first eight, the last bit of
    /// glibc's `log` differs.
    const ROUNDED: &[(u64, u64)] = &[
        (0x3fb2_414e_0862_7550, 0xc005_2038_af87_7311),
        (0x3fdf_806f_fda5_e0e0, 0xbfe6_aed3_edd0_4bec),
        (0x3fe2_c564_3c73_41d0, 0xbfe1_11c5_dbd5_33eb),
        (0x3fe3_fc78_e5f2_9af8, 0xbfde_1fd5_061c_3994),
        (0x3fe9_62fa_cdc9_7f4b, 0xbfcd_a236_bc1b_f833),
        (0x3fec_7912_8971_18d3, 0xbfbd_e569_02d3_5770),
        (0x3fed_06f0_ca4b_d25a, 0xbfb8_f620_ec47_dfe7),
        (0x3fed_a556_4f24_2e1d, 0xbfb3_8fdb_0d5d_1a57),
        (0x4000_0000_0000_0000, 0x3fe6_2e42_fefa_39ef),
        (0x3fe0_0000_0000_0000, 0xbfe6_2e42_fefa_39ef),
        (0x4008_0000_0000_0000, 0x3ff1_93ea_7aad_030b),
        (0x4024_0000_0000_0000, 0x4002_6bb1_bbb5_5516),
        (0x4163_12d0_0000_0000, 0x4030_1e3b_843e_aa73),
        (0x3fd5_5555_5555_5555, 0xbff1_93ea_7aad_030b),
        (0x3ff6_a09e_667f_3bcd, 0x3fd6_2e42_fefa_39f0),
        (0x3ff6_a09e_667f_3bce, 0x3fd6_2e42_fefa_39f3),
        (0x3fe6_a09e_667f_3bcd, 0xbfd6_2e42_fefa_39ee),
        (0x3ff0_0000_0000_0001, 0x3caf_ffff_ffff_ffff),
        (0x3fef_ffff_ffff_ffff, 0xbca0_0000_0000_0000),
        (0x3ff0_0001_0000_0000, 0x3eaf_ffff_0000_0aab),
        (0x3fef_ffff_ff80_0000, 0xbe10_0000_0020_0000),
        (0x0010_0000_0000_0000, 0xc086_232b_dd7a_bcd2),
        (0x7fef_ffff_ffff_ffff, 0x4086_2e42_fefa_39ef),
        (0x4015_62e8_3366_2a2b, 0x3ffa_d2c6_6e18_7226),
    ];

    #[test]
    fn logarithms_are_rounded_correctly() {
        for &(x, expected) in ROUNDED {
            let found = ln(f64::from_bits(x));
            assert_eq!(found.to_bits(), expected, "{:e}: {found:e}", f64::from_bits(x));
        }
        assert_eq!(ln(1.0).to_bits(), 0);
    }

    #[test]
    fn logarithms_of_any_numbers_are_those_of_the_system_but_for_its_last_bit() {
        let mut random = crate::random::Random::new(1);
        for i in 0..100_000 {
            let x = match i % 3 {
                0 => 1.0 + (random.uniform() - 0.5) * 2.0f64.powi(-(i % 50)),
                1 => (1 + random.below(100_000)) as f64 / (1 + random.below(1000)) as f64,
                _ => f64::from_bits(random.bits().clamp(1 << 52, 0x7fef_ffff_ffff_ffff)),
            };
            let (found, system) = (ln(x), x.ln());
            assert!(
                (found - system).abs() <= f64::EPSILON * system.abs(),
                "{x:e}: {found:e}, {system:e}"
            );
        }
    }
}
