//! Measures the peak rates of a single core in registers, to compare the evaluator with (see
//! docs/internals/evaluator-speed.md).
//!
//! cargo run --release -p dml-eval --example peak
//!
//! Reports the processor time of a single thread, as the best of multiple rounds, to reduce the
//! influence of other processes.

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn main() {
    println!("measured on x86-64 Linux only");
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn main() {
    x86::main();
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    /// The rounds of a loop that steps all `SUMS` sums, which are enough to hide the latency of an
    /// instruction.
    const STEPS: u64 = 2_000_000;
    const SUMS: u64 = 12;

    fn processor_seconds() -> f64 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: the call only writes `time`.
        unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
        time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
    }

    /// Defines a loop of independent steps on the vectors of an instruction set.
    macro_rules! steps {
        ($name:ident, $feature:literal, $vector:ty, $start:expr,
         |$sum:ident, $x:ident| $step:expr) => {
            #[target_feature(enable = $feature)]
            fn $name() -> [$vector; SUMS as usize] {
                let mut sums = [$start; SUMS as usize];
                let $x = black_box($start);
                for _ in 0..STEPS {
                    for s in &mut sums {
                        let $sum = *s;
                        *s = $step;
                    }
                }
                sums
            }
        };
    }

    steps!(fma512, "avx512f", __m512, _mm512_set1_ps(1e-9), |sum, x| _mm512_fmadd_ps(x, x, sum));
    steps!(fma256, "avx2,fma", __m256, _mm256_set1_ps(1e-9), |sum, x| _mm256_fmadd_ps(x, x, sum));
    // Products must differ between steps, or the compiler would move them out of the loop.
    steps!(mul_add128, "sse2", __m128, _mm_set1_ps(1e-9), |sum, x| _mm_add_ps(
        _mm_mul_ps(sum, x),
        x
    ));
    steps!(fma512d, "avx512f", __m512d, _mm512_set1_pd(1e-9), |sum, x| _mm512_fmadd_pd(x, x, sum));
    steps!(fma256d, "avx2,fma", __m256d, _mm256_set1_pd(1e-9), |sum, x| _mm256_fmadd_pd(x, x, sum));
    steps!(bits512, "avx512f,avx512vpopcntdq", __m512i, _mm512_set1_epi32(5), |sum, x| {
        _mm512_add_epi32(sum, _mm512_popcnt_epi32(_mm512_xor_si512(sum, x)))
    });

    // Like in the AVX2 kernel: a look-up of half bytes, and sums of bytes.
    steps!(bits256, "avx2", __m256i, _mm256_set1_epi32(5), |sum, x| {
        _mm256_add_epi8(sum, _mm256_shuffle_epi8(x, sum))
    });

    steps!(vnni512, "avx512f,avx512vnni", __m512i, _mm512_set1_epi32(0x0003_0005), |sum, x| {
        _mm512_dpwssd_epi32(sum, x, x)
    });
    // Products must differ between steps, or the compiler would move them out of the loop.
    steps!(madd512, "avx512f,avx512bw", __m512i, _mm512_set1_epi32(0x0003_0005), |sum, x| {
        _mm512_add_epi32(sum, _mm512_madd_epi16(sum, x))
    });
    steps!(madd256, "avx2", __m256i, _mm256_set1_epi32(0x0003_0005), |sum, x| {
        _mm256_add_epi32(sum, _mm256_madd_epi16(sum, x))
    });

    fn best<T>(work: impl Fn() -> T) -> f64 {
        let time = || {
            let start = processor_seconds();
            black_box(work());
            processor_seconds() - start
        };
        (0..7).map(|_| time()).fold(f64::INFINITY, f64::min)
    }

    fn report<T>(name: &str, unit: &str, each: u64, available: bool, work: impl Fn() -> T) {
        if available {
            println!("{name:34} {:8.0} {unit}", (STEPS * SUMS * each) as f64 / best(work) / 1e9);
        }
    }

    pub fn main() {
        let avx512 = is_x86_feature_detected!("avx512f");
        let avx2 = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
        let vnni = avx512 && is_x86_feature_detected!("avx512vnni");
        let bytes = avx512 && is_x86_feature_detected!("avx512bw");
        let popcount = avx512 && is_x86_feature_detected!("avx512vpopcntdq");
        // SAFETY: `report` only runs functions with instructions that the CPU supports.
        unsafe {
            report("AVX-512 int16 dot (VNNI)", "GFLOP/s", 64, vnni, || vnni512());
            report("AVX-512 int16 multiply, add", "GFLOP/s", 64, bytes, || madd512());
            report("AVX2 int16 multiply, add", "GFLOP/s", 32, avx2, || madd256());
            report("AVX-512 float32 FMA", "GFLOP/s", 32, avx512, || fma512());
            report("AVX2 float32 FMA", "GFLOP/s", 16, avx2, || fma256());
            report("SSE2 float32 multiply, add", "GFLOP/s", 8, true, || mul_add128());
            report("AVX-512 float64 FMA", "GFLOP/s", 16, avx512, || fma512d());
            report("AVX2 float64 FMA", "GFLOP/s", 8, avx2, || fma256d());
            report("AVX-512 xor, popcount, add", "Gbit/s", 512, popcount, || bits512());
            report("AVX2 look-up of half bytes, add", "Gbit/s", 128, avx2, || bits256());
        }
    }
}
