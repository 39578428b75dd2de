//! However many share the work, each gets the bits of one who does it alone.

use std::sync::{Barrier, Mutex};

use dml_eval::{
    Alone, Codes, Control, Dense, EvaluateOptions, KMeansOptions, Matrix, Peers, Precision, Result, Similarity, Ties,
    evaluate, kmeans, select_kernel,
};
use ndarray::Array2;
use proptest::prelude::*;

const TIES: [Ties; 4] = [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected];

/// Where peers that are threads of this process leave what they exchange.
struct Table {
    barrier: Barrier,
    numbers: Vec<Mutex<Vec<f64>>>,
    counts: Vec<Mutex<Vec<u64>>>,
}

struct AtTable<'a>(&'a Table, usize);

impl AtTable<'_> {
    fn exchange<T: Clone>(&self, seats: &[Mutex<Vec<T>>], own: &[T]) -> Vec<Vec<T>> {
        *seats[self.1].lock().unwrap() = own.to_vec();
        self.0.barrier.wait();
        let all = seats.iter().map(|seat| seat.lock().unwrap().clone()).collect();
        self.0.barrier.wait();
        all
    }
}

impl Peers for AtTable<'_> {
    fn place(&self) -> (usize, usize) {
        (self.1, self.0.numbers.len())
    }

    fn gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        Ok(self.exchange(&self.0.numbers, numbers).concat())
    }

    fn sum(&self, counts: &[u64]) -> Result<Vec<u64>> {
        let all = self.exchange(&self.0.counts, counts);
        Ok((0..counts.len()).map(|i| all.iter().map(|c| c[i]).sum()).collect())
    }
}

/// What each of so many peers gets.
fn together<T: Send>(peers: usize, work: impl Fn(&dyn Peers) -> T + Sync) -> Vec<T> {
    let seats = || (0..peers).map(|_| Mutex::default()).collect();
    let table = Table {
        barrier: Barrier::new(peers),
        numbers: seats(),
        counts: (0..peers).map(|_| Mutex::default()).collect(),
    };
    std::thread::scope(|scope| {
        let (table, work) = (&table, &work);
        let started: Vec<_> = (0..peers).map(|p| scope.spawn(move || work(&AtTable(table, p)))).collect();
        started.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn peers_measure_what_one_measures(
        values in proptest::collection::vec(-3i8..=3, 200 * 3),
        n in 2usize..200,
        classes in 1u32..40,
        separate in any::<bool>(),
        ties in proptest::sample::select(&TIES[..]),
        crowd in proptest::sample::select(&[0, 8, usize::MAX][..]),
        peers in 2usize..6,
    ) {
        let x = Array2::from_shape_fn((n, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.5);
        let labels: Vec<u32> = (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % classes).collect();
        let options = EvaluateOptions { recall_at: vec![1, 5], ties, crowd: Some(crowd) };
        let (kernel, control) = (select_kernel(None).unwrap(), Control::default());
        let gallery = separate.then(|| Matrix::F32(x.view()));
        let gallery_labels = separate.then_some(&labels[..]);
        let space = Dense::new(
            Matrix::F32(x.view()), gallery, Similarity::Cosine, Precision::BFloat16, kernel, &control,
        ).unwrap();
        let codes = Array2::from_shape_fn((n, 2), |(i, j)| values[3 * i + j] as u8);
        let codes = Codes::new(codes.view(), separate.then(|| codes.view()), kernel).unwrap();
        let measure = |peers: &dyn Peers| [
            evaluate(&space, &labels, gallery_labels, &options, peers, &Control::default()),
            evaluate(&codes, &labels, gallery_labels, &options, peers, &Control::default()),
        ].map(|found| found.map(|found| format!("{found:?}")));
        let alone = measure(&Alone);
        for found in together(peers, measure) {
            prop_assert_eq!(&found, &alone);
        }
    }

    #[test]
    fn peers_find_the_clusters_that_one_finds(
        values in proptest::collection::vec(-3i8..=3, 120 * 2),
        n in 1usize..120,
        clusters in 1usize..12,
        seed in any::<u64>(),
        peers in 2usize..6,
    ) {
        let x = Array2::from_shape_fn((n, 2), |(i, j)| f32::from(values[2 * i + j]));
        let options = KMeansOptions { clusters: clusters.min(n), seed, runs: 2, max_iterations: 20 };
        let find = |peers: &dyn Peers| {
            let (kernel, control) = (select_kernel(None).unwrap(), Control::default());
            let found = kmeans(Matrix::F32(x.view()), options, kernel, peers, &control).unwrap();
            (found.labels, found.centroids, found.inertia.to_bits(), found.iterations)
        };
        let alone = find(&Alone);
        for found in together(peers, find) {
            prop_assert_eq!(&found, &alone);
        }
    }
}
