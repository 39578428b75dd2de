//! Times the entry points of this crate on a single thread, for all kernels that this CPU can run.
//!
//! cargo bench -p dml-eval
//!
//! Reports processor time (on Unix), as the best of multiple rounds. Kernels alternate to reduce
//! the influence of other processes. To compare with other libraries, see benchmarks/evaluator.

use std::hint::black_box;

use dml_eval::ndarray::Array2;
use dml_eval::{
    Alone, Codes, Comparable, Control, Dense, EvaluateOptions, KMeansOptions, Kernel, Matrix,
    Metric, OwnItem, Precision, Relation, Similarity, Ties, binarize, evaluate, kernel_names,
    kmeans, nearest, select_kernel,
};

const ROUNDS: usize = 5;

/// Returns seconds since an arbitrary moment.
#[cfg(unix)]
fn seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call only writes `time`.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + 1e-9 * time.tv_nsec as f64
}

/// Returns seconds since an arbitrary moment.
#[cfg(not(unix))]
fn seconds() -> f64 {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed().as_secs_f64()
}

/// Makes rows in classes of `each` rows, around centres that are spread less than the noise.
fn embeddings(rows: usize, dim: usize, each: usize) -> (Array2<f32>, Vec<u32>) {
    let mut state = 1u64;
    let mut draw = || {
        // This is Xorshift*; a sum of four uniform numbers is close enough to normal.
        let mut uniform = || {
            state ^= state >> 12;
            state ^= state << 25;
            state ^= state >> 27;
            (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        uniform() + uniform() + uniform() + uniform()
    };
    let centres = Array2::from_shape_simple_fn((rows.div_ceil(each), dim), &mut draw);
    let x = Array2::from_shape_fn((rows, dim), |(i, j)| centres[(i / each, j)] + 3.0 * draw());
    (x, (0..rows).map(|i| (i / each) as u32).collect())
}

/// Work to run with all kernels, and the number of pairs that it compares.
struct Work<'a> {
    name: &'static str,
    pairs: usize,
    run: Box<dyn Fn(&'static Kernel) + Sync + 'a>,
}

fn rank(space: &impl Comparable, labels: &[u32], control: &Control) {
    let relation = Relation::of_labels(labels, None).expect("valid labels");
    let metrics = vec![Metric::Recall(1), Metric::Recall(10), Metric::MapAtR];
    let options = EvaluateOptions { metrics, may_lack_matches: false };
    black_box(evaluate(space, &relation, &[Ties::Index], &options, &Alone, control))
        .expect("valid labels");
}

fn main() {
    // Skip `cargo test --benches`, which runs benchmarks as tests with `--test` in a debug build,
    // too slowly to be useful.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let pool =
        rayon::ThreadPoolBuilder::new().num_threads(1).build().expect("a pool of one thread");
    let control = Control::default();
    let (x, labels) = embeddings(4000, 256, 5);
    let large_classes: Vec<u32> = (0..4000).map(|i| i / 1000).collect();
    let mut codes = Array2::zeros((4000, 32));
    binarize(Matrix::F32(x.view()), 0.0, codes.view_mut(), &control).expect("valid arguments");
    let dense = |labels: &[u32], kernel| {
        let precision = Precision::for_positives(
            labels.len(),
            *labels.iter().max().expect("labels") as usize + 1,
            false,
            kernel,
        );
        Dense::new(Matrix::F32(x.view()), None, Similarity::Cosine, precision, kernel, &control)
            .expect("valid rows")
    };
    let rank_dense = |labels: &[u32], kernel| rank(&dense(labels, kernel), labels, &control);
    let search = |k: usize, kernel| {
        let (mut scores, mut indices) = (vec![0.0; 4000 * k], vec![0; 4000 * k]);
        let space = dense(&labels, kernel);
        nearest(&space, k, OwnItem::SameIndex, &control, |_, key| key, &mut scores, &mut indices)
            .expect("a valid k");
        black_box((scores, indices));
    };
    let all = 4000 * 4000;
    let works = [
        Work {
            name: "evaluate, classes of 5",
            pairs: all / 2,
            run: Box::new(|kernel| rank_dense(&labels, kernel)),
        },
        Work {
            name: "evaluate, classes of 1,000",
            pairs: all,
            run: Box::new(|kernel| rank_dense(&large_classes, kernel)),
        },
        Work { name: "nearest, k = 10", pairs: all, run: Box::new(|kernel| search(10, kernel)) },
        Work {
            name: "nearest, k = 1,000",
            pairs: all,
            run: Box::new(|kernel| search(1000, kernel)),
        },
        Work {
            name: "evaluate, 256-bit codes",
            pairs: all / 2,
            run: Box::new(|kernel| {
                let space = Codes::new(codes.view(), None, kernel).expect("valid codes");
                rank(&space, &labels, &control);
            }),
        },
        Work {
            name: "kmeans, 100 clusters, 3 rounds",
            pairs: 3 * 4000 * 100,
            run: Box::new(|kernel| {
                let options = KMeansOptions { clusters: 100, seed: 0, runs: 1, max_iterations: 3 };
                black_box(kmeans(Matrix::F32(x.view()), options, kernel, &Alone, &control))
                    .expect("valid rows");
            }),
        },
    ];
    let kernels: Vec<_> =
        kernel_names().into_iter().map(|name| select_kernel(Some(name)).expect("listed")).collect();
    println!("4,000 × 256 float32, one thread: milliseconds (nanoseconds per pair)");
    for Work { name, pairs, run } in &works {
        println!("{name}");
        let mut best = vec![f64::INFINITY; kernels.len()];
        for _ in 0..ROUNDS {
            for (best, kernel) in best.iter_mut().zip(&kernels) {
                let start = seconds();
                pool.install(|| run(kernel));
                *best = best.min(seconds() - start);
            }
        }
        for (best, kernel) in best.iter().zip(&kernels) {
            println!(
                "    {:22} {:8.1} ({:.2})",
                kernel.name,
                1e3 * best,
                1e9 * best / *pairs as f64
            );
        }
    }
}
