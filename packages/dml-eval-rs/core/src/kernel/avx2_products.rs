//! AVX2 with FMA, and with VNNI: products of panels, 6 × 16 numbers in twelve of the sixteen
//! registers.

use super::product_macros::{
    ALWAYS, MOST, MOST_BIAS, comparison, cost_or_whole, int16_product, least_sums, products, sums,
    thresholds,
};
use super::routines::{
    AFFINE_STEPS, BYTE_AFFINE_STEPS, Bytes, PartialProduct, Parts, ROUNDED_AFFINE_STEPS, Rounding,
};

pub(super) const ROWS: usize = 6;
pub(super) const VECTORS: usize = 2;
pub(super) const COLUMNS: usize = v::LANES * VECTORS;

mod v {
    use std::arch::x86_64::*;
    pub use std::arch::x86_64::{
        __m256i as Ints, _mm256_add_epi16 as add_shorts, _mm256_add_epi32 as add_ints,
        _mm256_add_ps as add_floats, _mm256_and_ps as and, _mm256_castsi256_ps as as_floats,
        _mm256_cvtepi32_ps as to_floats, _mm256_cvtps_epi32 as to_ints,
        _mm256_dpbusd_avx_epi32 as add_quads, _mm256_dpwssd_avx_epi32 as add_pairs,
        _mm256_fmadd_ps as multiply_add, _mm256_loadu_ps as load_floats,
        _mm256_loadu_si256 as load, _mm256_madd_epi16 as multiply_pairs,
        _mm256_maddubs_epi16 as multiply_bytes, _mm256_max_ps as max, _mm256_min_epi32 as min_ints,
        _mm256_min_ps as min, _mm256_mul_ps as multiply, _mm256_set1_epi16 as shorts,
        _mm256_set1_epi32 as ints, _mm256_set1_ps as floats, _mm256_setzero_si256 as zero,
        _mm256_storeu_ps as store_floats,
    };

    pub const LANES: usize = 8;

    #[target_feature(enable = "avx2")]
    #[inline]
    pub fn floats_below(x: __m256, y: __m256) -> __m256 {
        _mm256_cmp_ps::<_CMP_LT_OQ>(x, y)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub fn ints_below(x: Ints, y: Ints) -> __m256 {
        _mm256_castsi256_ps(_mm256_cmpgt_epi32(y, x))
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    pub fn are_all(mask: __m256) -> bool {
        _mm256_movemask_ps(mask) == 0xff
    }
}

products!("avx2,fma,popcnt", "avx2,fma,popcnt,avxvnni");
