//! Tests that failing allocations cause an error, but not a panic, an abort or a leak, and that the
//! next call is correct.
//!
//! As in SQLite's tests, the allocator fails the n-th allocation above a size, for n = 1, 2, 3, ...
//! until the call succeeds. Each case runs in a separate process, so that an abort only fails this
//! case. `--all` tries every n, and takes minutes; by default, n increases in growing steps. Use
//! `--case NAME` to run cases whose names begin with NAME, and `--at N` to run a single n and print
//! the backtrace of the failing allocation.

use std::alloc::{GlobalAlloc, Layout, System};
use std::backtrace::Backtrace;
use std::fmt::Debug;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering::SeqCst};

use dml_eval::{
    Alone, Average, Ceiling, Codes, Concatenated, Control, Dense, Error, EvaluateOptions, Filter,
    Hardness, KMeansOptions, Lists, Matrix, Metric, Normalized, Observed, OwnItem, PairLabels,
    PartialCounts, PerQuery, Positives, Precision, Relation, Result, Selected, Similarity, Sizes,
    Ties, VerifyTasks, advance_searches, ami, ari, begin_block, begin_searches, binarize,
    code_pair_scores, collect, count_distances, count_negatives, count_slots,
    count_symmetric_negatives, evaluate, find_positives, hard_negatives, index_recall, kmeans, knn,
    nearest, nmi, observe_block, pair_scores, range_search, select_kernel, top_pairs, verify,
};
use half::f16;
use ndarray::Array2;

/// Only larger allocations fail. Rayon, threads and messages need smaller allocations, and would
/// abort if these failed.
const ABOVE: usize = 512;

struct Failing;

/// The number of the allocation to fail, counted since this was set.
static FAILING: AtomicUsize = AtomicUsize::new(usize::MAX);
static COUNTED: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicIsize = AtomicIsize::new(0);
static SHOWS_PLACE: AtomicBool = AtomicBool::new(false);

fn fails(bytes: usize) -> bool {
    if bytes <= ABOVE || FAILING.load(SeqCst) == usize::MAX {
        return false;
    }
    let fails = COUNTED.fetch_add(1, SeqCst) + 1 == FAILING.load(SeqCst);
    if fails && SHOWS_PLACE.swap(false, SeqCst) {
        FAILING.store(usize::MAX, SeqCst);
        eprintln!("{bytes} bytes\n{}", Backtrace::force_capture());
    }
    fails
}

// SAFETY: either the system's allocator does the work, or null is returned.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(layout.size() as isize, SeqCst);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if fails(layout.size()) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(layout.size() as isize, SeqCst);
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, old: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if fails(bytes) {
            return std::ptr::null_mut();
        }
        LIVE.fetch_add(bytes as isize - layout.size() as isize, SeqCst);
        // SAFETY: the caller upholds the contract of `realloc`.
        unsafe { System.realloc(old, layout, bytes) }
    }

    unsafe fn dealloc(&self, old: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, SeqCst);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(old, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// The inputs of a case, and how to run it.
struct Run {
    pool: rayon::ThreadPool,
    tries_all: bool,
    at: Option<usize>,
    x: Array2<f32>,
    y: Array2<f32>,
    /// Rows with ties, so that the screen leaves comparisons open.
    tied: Array2<f32>,
    codes: Array2<u8>,
    other_codes: Array2<u8>,
    labels: Vec<u32>,
    other_labels: Vec<u32>,
}

const ROWS: usize = 330;
const OTHERS: usize = 300;
/// Enough columns that a row of float32 exceeds `ABOVE` bytes.
const DIM: usize = 300;

impl Run {
    fn new(threads: usize, tries_all: bool, at: Option<usize>) -> Run {
        let mut state = 1u64;
        let mut random = move || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 24) as f32 - 0.5
        };
        let mut rows = |n: usize| {
            Array2::from_shape_fn((n, DIM), |(_, j)| random() * (-0.02 * j as f32).exp())
        };
        let (x, y) = (rows(ROWS), rows(OTHERS));
        let code = |x: &Array2<f32>| {
            Array2::from_shape_fn((x.nrows(), 160), |(i, b)| {
                (0..8).fold(0, |c, k| c << 1 | u8::from(x[[i, (b + 40 * k) % DIM]] > 0.0))
            })
        };
        let labels = |n: usize| {
            (0..n as u32).map(|i| i.wrapping_mul(2_654_435_761) % 12).collect::<Vec<_>>()
        };
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        // `build` does not wait for the threads, which allocate their queues when they start: wait
        // here, or one of these allocations could be the one to fail.
        pool.broadcast(|_| ());
        Run {
            pool,
            tries_all,
            at,
            tied: Array2::from_shape_fn((ROWS, DIM), |(i, j)| {
                ((i % 5 * (j % 7)) as f32 - 3.0) / 8.0
            }),
            codes: code(&x),
            other_codes: code(&y),
            labels: labels(ROWS),
            other_labels: labels(OTHERS),
            x,
            y,
        }
    }

    /// Runs `call` with each allocation failing in turn, using the default sizes changed by
    /// `sizes`.
    fn check<T: PartialEq + Debug + Send>(
        &self,
        sizes: &[(&str, usize)],
        call: impl Fn(&Control) -> Result<T> + Sync,
    ) {
        // The queues between rayon's threads grow, and are freed only later, so don't report these
        // bytes as a leak.
        let spare = if self.pool.current_num_threads() == 1 { ABOVE } else { 16 << 10 };
        let mut chosen = Sizes::default();
        sizes.iter().for_each(|(name, size)| chosen.set(name, *size).unwrap());
        let with = |failing: usize| {
            self.pool.install(|| {
                COUNTED.store(0, SeqCst);
                let before = LIVE.load(SeqCst);
                FAILING.store(failing, SeqCst);
                let found = call(&Control::traced(chosen.clone()));
                FAILING.store(usize::MAX, SeqCst);
                let left = LIVE.load(SeqCst) - before;
                assert!(found.is_ok() || left.unsigned_abs() <= spare, "{left} bytes leaked");
                found
            })
        };
        let expected = with(usize::MAX - 1).unwrap();
        if let Some(at) = self.at {
            SHOWS_PLACE.store(true, SeqCst);
            println!("{at}: {:?}", with(at).err());
            return;
        }
        let mut n = 1;
        loop {
            println!("{n}");
            let found = with(n);
            let hit = COUNTED.load(SeqCst) >= n;
            match found {
                Err(Error::Memory { .. }) => assert!(hit, "an error without a failure"),
                Ok(found) => {
                    assert!(!hit, "the failure changed nothing");
                    assert_eq!(found, expected);
                    return;
                }
                Err(other) => panic!("{other}"),
            }
            // The next call must be correct.
            if n % 16 == 1 {
                assert_eq!(with(usize::MAX - 1).unwrap(), expected);
            }
            n += if self.tries_all { 1 } else { 1 + n / 8 };
        }
    }

    fn dense<'a>(
        &'a self,
        similarity: Similarity,
        precision: Precision,
        control: &Control,
    ) -> Result<Dense<'a>> {
        Dense::new(
            Matrix::F32(self.x.view()),
            None,
            similarity,
            precision,
            select_kernel(None)?,
            control,
        )
    }

    fn apart<'a>(
        &'a self,
        similarity: Similarity,
        precision: Precision,
        control: &Control,
    ) -> Result<Dense<'a>> {
        let (x, y) = (Matrix::F32(self.x.view()), Matrix::F32(self.y.view()));
        Dense::new(x, Some(y), similarity, precision, select_kernel(None)?, control)
    }

    fn own_codes(&self) -> Result<Codes<'_>> {
        Codes::new(self.codes.view(), None, select_kernel(None)?)
    }

    fn codes_apart(&self) -> Result<Codes<'_>> {
        Codes::new(self.codes.view(), Some(self.other_codes.view()), select_kernel(None)?)
    }
}

/// Allocates an array for a call to fill.
fn empty<T: Default>(len: usize) -> Result<Vec<T>> {
    collect((0..len).map(|_| T::default()))
}

/// Returns the bits of float64 numbers, by which NaN equals NaN.
fn bits(columns: &[PerQuery]) -> Vec<u64> {
    columns.iter().flat_map(|of| of.columns.iter().flatten().map(|value| value.to_bits())).collect()
}

fn options(names: &[&str]) -> EvaluateOptions {
    EvaluateOptions {
        metrics: names.iter().map(|name| name.parse().unwrap()).collect(),
        may_lack_matches: true,
    }
}

const ALL_TIES: [Ties; 4] = [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected];
const DEEP: [&str; 3] = ["ndcg@20", "map", "recall@1"];
const SHALLOW: [&str; 3] = ["map@r", "r_precision", "recall@5"];

/// Results that are compared by bits. Bits are made after the call, because this allocates.
#[derive(Debug)]
struct Results(Vec<PerQuery>);

impl PartialEq for Results {
    fn eq(&self, other: &Self) -> bool {
        bits(&self.0) == bits(&other.0)
    }
}

fn by_labels(
    run: &Run,
    sizes: &[(&str, usize)],
    metrics: &[&str],
    ties: &[Ties],
    similarity: Similarity,
    precision: Precision,
) {
    let options = options(metrics);
    run.check(sizes, |control| {
        let (space, relation) =
            (run.dense(similarity, precision, control)?, Relation::of_labels(&run.labels, None)?);
        evaluate(&space, &relation, ties, &options, &Alone, control).map(Results)
    });
    run.check(sizes, |control| {
        let space = run.apart(similarity, precision, control)?;
        let relation = Relation::of_labels(&run.labels, Some(&run.other_labels))?;
        evaluate(&space, &relation, ties, &options, &Alone, control).map(Results)
    });
}

fn codes_by_labels(run: &Run, sizes: &[(&str, usize)], metrics: &[&str], ties: &[Ties]) {
    let options = options(metrics);
    run.check(sizes, |control| {
        let (space, relation) = (run.own_codes()?, Relation::of_labels(&run.labels, None)?);
        evaluate(&space, &relation, ties, &options, &Alone, control).map(Results)
    });
    run.check(sizes, |control| {
        let (space, relation) =
            (run.codes_apart()?, Relation::of_labels(&run.labels, Some(&run.other_labels))?);
        evaluate(&space, &relation, ties, &options, &Alone, control).map(Results)
    });
}

/// Lists items per query, and returns the ends of the lists, and the items.
fn lists(queries: usize, items: usize, each: usize, shift: usize) -> (Vec<u64>, Vec<u32>) {
    let mut all = Vec::new();
    let mut ends = vec![0];
    for query in 0..queries {
        let mut own: Vec<u32> =
            (0..each).map(|i| ((query * 7 + i * 11 + shift) % items) as u32).collect();
        own.sort_unstable();
        own.dedup();
        all.extend(own);
        ends.push(all.len() as u64);
    }
    (ends, all)
}

fn by_lists(run: &Run, sizes: &[(&str, usize)]) {
    let (ends, items) = lists(ROWS, OTHERS, 9, 0);
    let (excluded_ends, excluded_items) = lists(ROWS, OTHERS, 40, 3);
    let grades: Vec<f64> = (0..items.len()).map(|i| 1.0 + (i % 3) as f64).collect();
    let options = options(&DEEP);
    let listed = || -> Result<Relation<'_>> {
        let relation = Relation::of_lists(
            Lists { offsets: &ends, items: &items, of_queries: None },
            Some(OTHERS),
        )?;
        relation.with_grades(&grades)?.with_excluded(Lists {
            offsets: &excluded_ends,
            items: &excluded_items,
            of_queries: None,
        })
    };
    run.check(sizes, |control| {
        let space = run.apart(Similarity::Dot, Precision::SixteenBit, control)?;
        evaluate(&space, &listed()?, &[Ties::Expected], &options, &Alone, control).map(Results)
    });
    run.check(sizes, |control| {
        evaluate(&run.codes_apart()?, &listed()?, &ALL_TIES, &options, &Alone, control).map(Results)
    });
}

fn by_groups(run: &Run) {
    let groups: Vec<u32> = (0..ROWS as u32).map(|i| i / 7).collect();
    let (excluded_ends, excluded_items) = lists(ROWS, ROWS, 100, 3);
    let excluded = Lists { offsets: &excluded_ends, items: &excluded_items, of_queries: None };
    run.check(&[], |control| {
        let space = run.dense(Similarity::Cosine, Precision::SixteenBit, control)?;
        let relation = Relation::of_labels(&run.labels, None)?
            .with_groups(&groups, None)?
            .with_excluded(excluded)?;
        evaluate(&space, &relation, &[Ties::Index], &options(&SHALLOW), &Alone, control)
            .map(Results)
    });
}

fn tied(run: &Run) {
    let options = options(&SHALLOW);
    run.check(&[("pairs_per_open_key", 1000), ("class_table", 4)], |control| {
        let rows = Matrix::F32(run.tied.view());
        let space = Dense::new(
            rows,
            None,
            Similarity::Euclidean,
            Precision::SixteenBit,
            select_kernel(None)?,
            control,
        )?;
        let relation = Relation::of_labels(&run.labels, None)?;
        evaluate(&space, &relation, &ALL_TIES, &options, &Alone, control).map(Results)
    });
}

fn other_types(run: &Run) {
    let (wide, narrow) = (run.x.mapv(f64::from), run.x.mapv(f16::from_f32));
    let selected: Vec<usize> = (0..ROWS).filter(|i| i % 7 != 3).collect();
    let labels: Vec<u32> = selected.iter().map(|i| run.labels[*i]).collect();
    let options = options(&SHALLOW);
    run.check(&[], |control| {
        let space = Dense::new(
            Matrix::F64(wide.view()),
            None,
            Similarity::Cosine,
            Precision::SixteenBit,
            select_kernel(None)?,
            control,
        )?;
        evaluate(
            &space,
            &Relation::of_labels(&run.labels, None)?,
            &[Ties::Index],
            &options,
            &Alone,
            control,
        )
        .map(Results)
    });
    run.check(&[], |control| {
        let (first, second) = (Matrix::F16(narrow.view()), Matrix::F32(run.x.view()));
        let joined = Concatenated(&first, &second);
        let unit = Normalized::new(&joined, control)?;
        let some = Selected(&unit, &selected);
        let space = Dense::new(
            Matrix::Derived(&some),
            None,
            Similarity::Dot,
            Precision::SixteenBit,
            select_kernel(None)?,
            control,
        )?;
        evaluate(
            &space,
            &Relation::of_labels(&labels, None)?,
            &[Ties::Index],
            &options,
            &Alone,
            control,
        )
        .map(Results)
    });
}

fn parts(run: &Run, sizes: &[(&str, usize)]) {
    let metrics: Vec<Metric> = SHALLOW.iter().map(|name| name.parse().unwrap()).collect();
    run.check(sizes, |control| {
        let space = run.apart(Similarity::Euclidean, Precision::SixteenBit, control)?;
        let relation =
            Relation::of_labels(&run.labels, Some(&run.other_labels))?.with_first_item(5)?;
        let (offsets, positives) = find_positives(&space, &relation, control)?;
        let partial = PartialCounts::new(Ties::Expected, &metrics, offsets, positives, &[])?;
        count_negatives(&space, &partial, &relation, control)?;
        let mut results = PerQuery::new(ROWS, &metrics)?;
        results.compute(&partial, Ties::Expected, 0, None, control)?;
        Ok((partial.counts()?, Results([results].into())))
    });
    run.check(sizes, |control| {
        let space = run.own_codes()?;
        let relation = Relation::of_labels(&run.labels, None)?.with_blocks(100, [0, 200])?;
        let (offsets, positives) = find_positives(&space, &relation, control)?;
        let partial = PartialCounts::new(&ALL_TIES[..], &metrics, offsets, positives, &[])?;
        count_symmetric_negatives(&space, &partial, &relation, Some(100), control)?;
        partial.counts()
    });
}

fn nearest_floats(run: &Run, sizes: &[(&str, usize)], k: usize, queries: usize) {
    run.check(sizes, |control| {
        let x = Matrix::F32(run.x.slice(ndarray::s![..queries, ..]));
        let (mut similarities, mut indices) = (empty(queries * k)?, empty(queries * k)?);
        let how = (Similarity::Cosine, Precision::SixteenBit, select_kernel(None)?);
        knn(
            (x, Some(Matrix::F32(run.y.view()))),
            how,
            (k, OwnItem::Absent.into()),
            control,
            &mut similarities,
            &mut indices,
        )?;
        Ok(indices)
    });
}

fn nearest_codes(run: &Run, sizes: &[(&str, usize)], k: usize) {
    run.check(sizes, |control| {
        let (mut distances, mut indices) = (empty(ROWS * k)?, empty(ROWS * k)?);
        nearest(
            &run.own_codes()?,
            k,
            OwnItem::SameIndex,
            control,
            Codes::distance,
            &mut distances,
            &mut indices,
        )?;
        Ok((distances, indices))
    });
}

/// One list of allowed items for all queries.
const ALLOWED: Lists<'_> = Lists {
    offsets: &[0, 15],
    items: &[3, 9, 11, 20, 31, 42, 57, 60, 88, 90, 101, 160, 190, 250, 299],
    of_queries: Some(&[0; ROWS]),
};

fn hard(
    run: &Run,
    sizes: &[(&str, usize)],
    positive: Option<Hardness>,
    allowed: Option<Lists<'_>>,
) {
    let bound = positive.map(|positive| Ceiling { positive, factor: 1.0, margin: 0.0 });
    let relation = (Positives::Labels(&run.labels, &run.labels), allowed);
    run.check(sizes, |control| {
        let space = run.dense(Similarity::Cosine, Precision::SixteenBit, control)?;
        let (mut similarities, mut indices) = (empty(ROWS * 10)?, empty(ROWS * 10)?);
        hard_negatives(&space, relation, 10, bound, control, &mut similarities, &mut indices)?;
        Ok(indices)
    });
    run.check(sizes, |control| {
        let (mut distances, mut indices) = (empty(ROWS * 10)?, empty(ROWS * 10)?);
        hard_negatives(
            &run.own_codes()?,
            relation,
            10,
            bound,
            control,
            &mut distances,
            &mut indices,
        )?;
        Ok((distances, indices))
    });
}

fn ranges(run: &Run, sizes: &[(&str, usize)]) {
    run.check(sizes, |control| {
        range_search(
            &run.dense(Similarity::Cosine, Precision::SixteenBit, control)?,
            0.05,
            OwnItem::Absent.into(),
            u64::MAX,
            control,
        )
    });
    run.check(sizes, |control| {
        range_search(
            &run.apart(Similarity::Cosine, Precision::SixteenBit, control)?,
            0.05,
            OwnItem::Absent.into(),
            u64::MAX,
            control,
        )
    });
    let allowed = Filter { allowed: Some(ALLOWED), ..OwnItem::Absent.into() };
    run.check(sizes, |control| {
        range_search(
            &run.apart(Similarity::Cosine, Precision::SixteenBit, control)?,
            0.05,
            allowed,
            u64::MAX,
            control,
        )
    });
    run.check(sizes, |control| {
        range_search(&run.own_codes()?, 25.0, OwnItem::Absent.into(), u64::MAX, control)
    });
    run.check(sizes, |control| {
        range_search(&run.codes_apart()?, 25.0, OwnItem::Absent.into(), u64::MAX, control)
    });
}

fn pairs(run: &Run) {
    run.check(&[], |control| {
        top_pairs(&run.dense(Similarity::Cosine, Precision::SixteenBit, control)?, 90, control)
    });
    run.check(&[], |control| top_pairs(&run.own_codes()?, 90, control));
}

fn recall(run: &Run) {
    let found = Array2::from_shape_fn((ROWS, 10), |(i, j)| ((i + j * 13) % OTHERS) as i64);
    run.check(&[], |control| {
        let space = run.apart(Similarity::Cosine, Precision::SixteenBit, control)?;
        index_recall(&space, found.view(), 10, OwnItem::Absent.into(), control)
    });
}

fn verified(run: &Run, sizes: &[(&str, usize)], slots: bool) {
    let pairs = (ROWS * (ROWS - 1) / 2) as u64;
    let number = |same: bool| {
        (0..ROWS)
            .flat_map(|i| (0..i).map(move |j| (i, j)))
            .filter(|(i, j)| (run.labels[*i] == run.labels[*j]) == same)
            .count()
    };
    let (positives, negatives) = (number(true) as u64, number(false) as u64);
    assert_eq!(positives + negatives, pairs);
    let labels = || PairLabels { queries: &run.labels, gallery: None, groups: None };
    let tasks = VerifyTasks {
        positives,
        negatives,
        ranks: vec![20, negatives / 10],
        equal_errors: true,
        slots,
    };
    run.check(sizes, |control| {
        let space = run.dense(Similarity::Cosine, Precision::Float32, control)?;
        verify(&space, &labels(), &tasks, &Alone, control)
    });
}

fn verified_in_parts(run: &Run) {
    let labels =
        || PairLabels { queries: &run.labels, gallery: Some(&run.other_labels), groups: None };
    run.check(&[], |control| {
        let space = run.apart(Similarity::Cosine, Precision::Float32, control)?;
        let (positives, sample) = begin_block(&space, &labels(), (0, 0), 0, 3000, control)?;
        let negatives = (ROWS * OTHERS - positives.len()) as u64;
        let scores = sample.scores.iter().map(|(score, _)| *score);
        let mut searches = begin_searches(&[20], true, &positives, negatives, collect(scores)?);
        let observed: Vec<Observed> =
            observe_block(&space, &labels(), &searches, (0, 0), 3000, control)?;
        let found = advance_searches(&mut searches, observed, &positives)?;
        let slots = count_slots(&space, &labels(), &positives, &Alone, control)?;
        Ok((found, slots))
    });
}

fn verified_codes(run: &Run) {
    let labels = || PairLabels { queries: &run.labels, gallery: None, groups: None };
    run.check(&[], |control| count_distances(&run.own_codes()?, &labels(), &Alone, control));
}

fn score_pairs(run: &Run) {
    let pairs: Vec<(u32, u32)> =
        (0..2000).map(|i| (i % ROWS as u32, i * 7 % OTHERS as u32)).collect();
    run.check(&[], |control| {
        pair_scores(&run.apart(Similarity::Cosine, Precision::Float32, control)?, &pairs, control)
    });
    run.check(&[], |control| code_pair_scores(&run.codes_apart()?, &pairs, control));
}

fn clusters(run: &Run, matrix: Matrix<'_>, sizes: &[(&str, usize)]) {
    let options = KMeansOptions { clusters: 20, seed: 3, runs: 2, max_iterations: 4 };
    run.check(sizes, |control| {
        let found = kmeans(matrix, options, select_kernel(None)?, &Alone, control)?;
        Ok((found.labels, found.centroids, found.inertia))
    });
}

fn agreement(run: &Run) {
    let other: Vec<u32> = (0..ROWS as u32).map(|i| i % 301).collect();
    run.check(&[], |control| {
        let values =
            [nmi(&run.labels, &other, Average::Max, control)?, ami(&run.labels, &other, control)?];
        Ok((values, ari(&run.labels, &other, control)?))
    });
}

fn binarized(run: &Run) {
    run.check(&[], |control| {
        let width = DIM.div_ceil(8);
        let mut out = Array2::from_shape_vec((ROWS, width), empty(ROWS * width)?).unwrap();
        binarize(Matrix::F32(run.x.view()), 0.0, out.view_mut(), control)?;
        Ok(out)
    });
}

/// The name of a case, and the function that runs it.
type Case = (&'static str, Box<dyn Fn(&Run)>);

/// Returns all cases.
fn cases() -> Vec<Case> {
    use Precision::{Float32, SixteenBit};
    use Similarity::{Cosine, Dot, Euclidean};
    let mut cases: Vec<Case> = Vec::new();
    let mut add = |name, case: Box<dyn Fn(&Run)>| cases.push((name, case));
    const TABLED: &[(&str, usize)] = &[("many_positives", 1), ("table_keys", 4000)];
    const VALUED: &[(&str, usize)] = &[
        ("many_positives", 1),
        ("table_keys", 4000),
        ("value_queries", 0),
        ("items_per_open_value", 0),
    ];
    const SCREENED: &[(&str, usize)] =
        &[("many_positives", 1 << 40), ("directions", 0), ("block_bytes", 60_000)];
    const ALONG: &[(&str, usize)] = &[("many_positives", 1 << 40), ("directions", 32)];
    const BATCHED: &[(&str, usize)] = &[("count_bytes", 40_000), ("bytes_per_input_byte", 0)];
    add(
        "evaluate",
        Box::new(|run| by_labels(run, &[], &SHALLOW, &[Ties::Index], Cosine, SixteenBit)),
    );
    add(
        "evaluate by tables",
        Box::new(|run| by_labels(run, TABLED, &DEEP, &ALL_TIES, Euclidean, Float32)),
    );
    add(
        "evaluate by values",
        Box::new(|run| by_labels(run, VALUED, &DEEP, &[Ties::Index], Euclidean, SixteenBit)),
    );
    add(
        "evaluate by a screen",
        Box::new(|run| by_labels(run, SCREENED, &DEEP, &ALL_TIES, Dot, Float32)),
    );
    add(
        "evaluate along directions",
        Box::new(|run| by_labels(run, ALONG, &SHALLOW, &[Ties::Expected], Cosine, SixteenBit)),
    );
    add(
        "evaluate in batches",
        Box::new(|run| by_labels(run, BATCHED, &SHALLOW, &[Ties::Index], Cosine, SixteenBit)),
    );
    add("evaluate codes", Box::new(|run| codes_by_labels(run, &[], &SHALLOW, &[Ties::Index])));
    add("evaluate codes by tables", Box::new(|run| codes_by_labels(run, TABLED, &DEEP, &ALL_TIES)));
    add(
        "evaluate codes by a screen",
        Box::new(|run| codes_by_labels(run, SCREENED, &DEEP, &ALL_TIES)),
    );
    add("evaluate by lists", Box::new(|run| by_lists(run, &[])));
    add("evaluate by lists and tables", Box::new(|run| by_lists(run, TABLED)));
    add("evaluate by groups", Box::new(by_groups));
    add("evaluate ties", Box::new(tied));
    add("evaluate other types", Box::new(other_types));
    add("evaluate in parts", Box::new(|run| parts(run, SCREENED)));
    add("evaluate in parts by tables", Box::new(|run| parts(run, TABLED)));
    add(
        "knn",
        Box::new(|run| nearest_floats(run, &[("table_items", 0), ("few_queries", 0)], 9, ROWS)),
    );
    add(
        "knn along directions",
        Box::new(|run| nearest_floats(run, &[("table_items", 0), ("directions", 32)], 3, ROWS)),
    );
    add("knn by tables", Box::new(|run| nearest_floats(run, &[("table_keys", 4000)], 150, ROWS)));
    add("knn of few queries", Box::new(|run| nearest_floats(run, &[], 5, 20)));
    add("nearest codes", Box::new(|run| nearest_codes(run, &[("table_items", 0)], 9)));
    add("nearest codes by tables", Box::new(|run| nearest_codes(run, &[], 150)));
    add("hard negatives", Box::new(|run| hard(run, &[], None, None)));
    add("allowed hard negatives", Box::new(|run| hard(run, &[], None, Some(ALLOWED))));
    add(
        "screened allowed hard negatives",
        Box::new(|run| {
            hard(run, &[("items_per_allowed", 1000)], Some(Hardness::Hardest), Some(ALLOWED))
        }),
    );
    add("hard negatives below", Box::new(|run| hard(run, &[], Some(Hardness::Hardest), None)));
    add(
        "hard negatives below, by tables",
        Box::new(|run| hard(run, &[("class_table", 3)], Some(Hardness::Easiest), None)),
    );
    add("range search", Box::new(|run| ranges(run, &[("range_queries", 100)])));
    add("index recall", Box::new(recall));
    add("top pairs", Box::new(pairs));
    add("verify", Box::new(|run| verified(run, &[], false)));
    add("verify by float64", Box::new(|run| verified(run, &[("verify_listed", 600)], false)));
    add("verify with slots", Box::new(|run| verified(run, &[], true)));
    add("verify in parts", Box::new(verified_in_parts));
    add("verify codes", Box::new(verified_codes));
    add("pair scores", Box::new(score_pairs));
    add("kmeans", Box::new(|run| clusters(run, Matrix::F32(run.x.view()), &[])));
    add(
        "kmeans of codes",
        Box::new(|run| clusters(run, Matrix::Bits(run.codes.view(), 1280), &[])),
    );
    add("agreement", Box::new(agreement));
    add("binarize", Box::new(binarized));
    cases
}

/// Runs a case in this process.
fn run_case(name: &str, threads: usize, tries_all: bool, at: Option<usize>) {
    let (_, case) = cases()
        .into_iter()
        .find(|case| case.0 == name)
        .unwrap_or_else(|| panic!("no case {name:?}"));
    case(&Run::new(threads, tries_all, at));
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let option =
        |name: &str| arguments.iter().position(|a| a == name).map(|i| arguments[i + 1].clone());
    let tries_all = arguments.iter().any(|a| a == "--all");
    let at = option("--at").map(|at| at.parse().unwrap());
    if let (Some(case), Some(threads)) = (option("--run"), option("--threads")) {
        return run_case(&case, threads.parse().unwrap(), tries_all, at);
    }
    let prefix = option("--case").unwrap_or_default();
    let mut failed = 0;
    for (name, _) in cases().iter().filter(|case| case.0.starts_with(&prefix)) {
        for threads in ["1", "2"] {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--run", name, "--threads", threads]).args(tries_all.then_some("--all"));
            let ended = command.output().unwrap();
            if ended.status.success() {
                continue;
            }
            let (out, error) =
                (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
            let at = out.split_whitespace().last().unwrap_or("none");
            let why = error
                .lines()
                .find(|line| !line.is_empty() && !line.starts_with("thread"))
                .unwrap_or_default();
            println!("{name}, {threads} threads: allocation {at}: {}: {why}", ended.status);
            failed += 1;
        }
    }
    assert_eq!(failed, 0, "cases failed; `--run NAME --threads N --at ALLOCATION` shows where");
}
