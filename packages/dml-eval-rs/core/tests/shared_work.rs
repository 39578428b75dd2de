//! Tests that peers that share the work get the bits of a single process, for any number of peers.

use std::sync::{Barrier, Mutex};

use dml_eval::{
    Alone, Codes, Control, Dense, EvaluateOptions, KMeansOptions, Matrix, Peers, Precision,
    Relation, Result, Similarity, Sizes, Ties, evaluate, kmeans, select_kernel,
};
use ndarray::Array2;
use proptest::prelude::*;

const TIES: [Ties; 4] = [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected];

const METRICS: [&[&str]; 2] = [&["recall@5", "map@r"], &["ndcg@9", "map"]];

/// The memory through which peers exchange numbers; they are threads of this process.
struct Exchange {
    barrier: Barrier,
    numbers: Vec<Mutex<Vec<f64>>>,
    counts: Vec<Mutex<Vec<u64>>>,
}

/// A peer, with the rank.
struct ThreadPeer<'a>(&'a Exchange, usize);

impl ThreadPeer<'_> {
    fn exchange<T: Clone>(&self, slots: &[Mutex<Vec<T>>], own: &[T]) -> Vec<Vec<T>> {
        *slots[self.1].lock().unwrap() = own.to_vec();
        self.0.barrier.wait();
        let all = slots.iter().map(|slot| slot.lock().unwrap().clone()).collect();
        self.0.barrier.wait();
        all
    }
}

impl Peers for ThreadPeer<'_> {
    fn rank(&self) -> usize {
        self.1
    }

    fn world_size(&self) -> usize {
        self.0.numbers.len()
    }

    fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        Ok(self.exchange(&self.0.numbers, numbers).concat())
    }

    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
        let all = self.exchange(&self.0.counts, counts);
        Ok((0..counts.len()).map(|i| all.iter().map(|c| c[i]).sum()).collect())
    }
}

/// Runs the work of `peers` peers and returns the results.
fn run_peers<T: Send>(peers: usize, work: impl Fn(&dyn Peers) -> T + Sync) -> Vec<T> {
    let slots = || (0..peers).map(|_| Mutex::default()).collect();
    let exchange = Exchange {
        barrier: Barrier::new(peers),
        numbers: slots(),
        counts: (0..peers).map(|_| Mutex::default()).collect(),
    };
    std::thread::scope(|scope| {
        let (exchange, work) = (&exchange, &work);
        let started: Vec<_> =
            (0..peers).map(|p| scope.spawn(move || work(&ThreadPeer(exchange, p)))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn peers_compute_the_metrics_of_one(
        values in proptest::collection::vec(-3i8..=3, 200 * 3), n in 2usize..200,
        classes in 1u32..40, separate in any::<bool>(),
        rules in prop_oneof![
            proptest::sample::select(&TIES[..]).prop_map(|ties| vec![ties]),
            Just(TIES.to_vec()),
        ],
        many_positives in proptest::sample::select(&[0, 8, usize::MAX][..]),
        metrics in proptest::sample::select(&METRICS[..]), peers in 2usize..6,
    ) {
        let x = Array2::from_shape_fn((n, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.5);
        let labels: Vec<u32> =
            (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect();
        let options = EvaluateOptions {
            metrics: metrics.iter().map(|name| name.parse().unwrap()).collect(),
            may_lack_matches: true,
        };
        let (kernel, control) = (select_kernel(None).unwrap(), Control::default());
        let gallery = separate.then(|| Matrix::F32(x.view()));
        let relation = Relation::of_labels(&labels, separate.then_some(&labels[..])).unwrap();
        let space = Dense::new(
            Matrix::F32(x.view()),
            gallery,
            Similarity::Cosine,
            Precision::SixteenBit,
            kernel,
            &control,
        )
        .unwrap();
        let codes = Array2::from_shape_fn((n, 2), |(i, j)| values[3 * i + j] as u8);
        let codes = Codes::new(codes.view(), separate.then(|| codes.view()), kernel).unwrap();
        let sizes = Sizes { many_positives: Some(many_positives), ..Sizes::default() };
        let evaluate_both = |peers: &dyn Peers| {
            [
                evaluate(
                    &space,
                    &relation,
                    &rules,
                    &options,
                    peers,
                    &Control::traced(sizes.clone()),
                ),
                evaluate(
                    &codes,
                    &relation,
                    &rules,
                    &options,
                    peers,
                    &Control::traced(sizes.clone()),
                ),
            ]
            .map(|found| found.map(|found| format!("{found:?}")))
        };
        let alone = evaluate_both(&Alone);
        for found in run_peers(peers, evaluate_both) {
            prop_assert_eq!(&found, &alone);
        }
    }

    #[test]
    fn peers_find_the_clusters_of_one(
        values in proptest::collection::vec(-3i8..=3, 120 * 2),
        n in 1usize..120,
        clusters in 1usize..12,
        seed in any::<u64>(),
        peers in 2usize..6,
    ) {
        let x = Array2::from_shape_fn((n, 2), |(i, j)| f32::from(values[2 * i + j]));
        let options =
            KMeansOptions { clusters: clusters.min(n), seed, runs: 2, max_iterations: 20 };
        let find = |peers: &dyn Peers| {
            let (kernel, control) = (select_kernel(None).unwrap(), Control::default());
            let found = kmeans(Matrix::F32(x.view()), options, kernel, peers, &control).unwrap();
            (found.labels, found.centroids, found.inertia.to_bits(), found.iterations)
        };
        let alone = find(&Alone);
        for found in run_peers(peers, find) {
            prop_assert_eq!(&found, &alone);
        }
    }
}
