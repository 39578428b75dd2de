//! AVX-512, and with VNNI: products of panels, 8 × 48 numbers in 24 of the 32 registers.

use super::avx512_sweep::{COLUMNS, ROWS, VECTORS};
use super::product_macros::{
    ALWAYS, MOST, MOST_BIAS, comparison, cost_or_whole, int16_product, least_sums, products, sums,
    thresholds,
};
use super::routines::{
    AFFINE_STEPS, BYTE_AFFINE_STEPS, Bytes, PartialProduct, Parts, ROUNDED_AFFINE_STEPS, Rounding,
};

mod v {
    use std::arch::x86_64::*;
    pub use std::arch::x86_64::{
        __m512i as Ints, _mm512_add_epi16 as add_shorts, _mm512_add_epi32 as add_ints,
        _mm512_add_ps as add_floats, _mm512_castsi512_ps as as_floats,
        _mm512_cmplt_epi32_mask as ints_below, _mm512_cvtepi32_ps as to_floats,
        _mm512_cvtps_epi32 as to_ints, _mm512_dpbusd_epi32 as add_quads,
        _mm512_dpwssd_epi32 as add_pairs, _mm512_fmadd_ps as multiply_add,
        _mm512_loadu_ps as load_floats, _mm512_loadu_si512 as load,
        _mm512_madd_epi16 as multiply_pairs, _mm512_maddubs_epi16 as multiply_bytes,
        _mm512_max_ps as max, _mm512_min_epi32 as min_ints, _mm512_min_ps as min,
        _mm512_mul_ps as multiply, _mm512_set1_epi16 as shorts, _mm512_set1_epi32 as ints,
        _mm512_set1_ps as floats, _mm512_setzero_si512 as zero, _mm512_storeu_ps as store_floats,
    };

    pub const LANES: usize = 16;

    #[target_feature(enable = "avx512f")]
    #[inline]
    pub fn floats_below(x: __m512, y: __m512) -> __mmask16 {
        _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, y)
    }

    pub fn and(x: __mmask16, y: __mmask16) -> __mmask16 {
        x & y
    }

    pub fn are_all(mask: __mmask16) -> bool {
        mask == __mmask16::MAX
    }
}

products!("avx512f,avx512bw,popcnt", "avx512f,avx512bw,avx512vnni,popcnt");
