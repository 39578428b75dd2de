//! Tests that kernels load and store only within the given arrays, by placing arrays next to
//! inaccessible pages.

use proptest::prelude::*;

use super::routines::{ExactProducts, Pairs32};
use super::*;
use crate::exact::{self, PAIRS};
use crate::side::Side;

const PAGE: usize = 1 << 16;

/// An array between inaccessible pages, adjacent to the following page (if `at_end`) or the
/// preceding page.
pub(super) struct Guarded<T> {
    region: *mut libc::c_void,
    bytes: usize,
    data: *mut T,
    len: usize,
}

impl<T: Copy> Guarded<T> {
    pub fn new(values: &[T], at_end: bool) -> Self {
        let inner = size_of_val(values).next_multiple_of(PAGE);
        let bytes = inner + 2 * PAGE;
        // SAFETY: this is a new private mapping, and the inner part is made accessible. `data` is
        // in this part, and is aligned because pages are, and because the array's length is a
        // multiple of the element size.
        unsafe {
            let region = libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANON,
                -1,
                0,
            );
            assert_ne!(region, libc::MAP_FAILED);
            let start = region.cast::<u8>().add(PAGE);
            // An emulator may fail to protect an empty range.
            if inner > 0 {
                assert_eq!(
                    libc::mprotect(start.cast(), inner, libc::PROT_READ | libc::PROT_WRITE),
                    0
                );
            }
            let data = start.add(if at_end { inner - size_of_val(values) } else { 0 }).cast::<T>();
            data.copy_from_nonoverlapping(values.as_ptr(), values.len());
            Guarded { region, bytes, data, len: values.len() }
        }
    }

    pub fn get(&mut self) -> &mut [T] {
        // SAFETY: `new` made these elements accessible and initialized them.
        unsafe { std::slice::from_raw_parts_mut(self.data, self.len) }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: the region isn't used anywhere else.
        unsafe { libc::munmap(self.region, self.bytes) };
    }
}

pub(super) fn kernels() -> impl Iterator<Item = &'static Kernel> {
    KERNELS.iter().copied().filter(|k| (k.available)())
}

/// Draws small numbers from a seed.
fn numbers(n: usize, seed: u64) -> Vec<f32> {
    let mut random = crate::random::Random::new(seed);
    (0..n).map(|_| random.uniform() as f32 - 0.5).collect()
}

/// Draws words that are finite numbers, both as float32 and as bfloat16.
fn words(n: usize, seed: u64) -> Vec<u32> {
    numbers(n, seed).into_iter().map(|v| v.to_bits() & 0xffff_0000).collect()
}

fn assert_bit_products(
    kernel: &Kernel,
    steps: usize,
    mut words: impl FnMut(usize, Side) -> Vec<u32>,
) {
    let Tiles { rows: height, columns: width, .. } = *kernel.tiles(Word::Bits);
    let (rows, columns) = (words(steps * height, Side::Query), words(steps * width, Side::Gallery));
    let mut arranged = columns.clone();
    kernel.arrange_codes(&mut arranged);
    let mut tile = vec![f32::NAN; height * width];
    kernel.product(Word::Bits).tile(steps, &rows, &arranged, &mut tile);
    for (at, value) in tile.into_iter().enumerate() {
        let bits = |step: usize| {
            (rows[step * height + at / width] ^ columns[step * width + at % width]).count_ones()
        };
        assert_eq!(value, -((0..steps).map(bits).sum::<u32>() as f32), "{}", kernel.name);
    }
}

#[test]
fn bit_products_of_the_widest_codes_count_all_bits() {
    for kernel in kernels() {
        assert_bit_products(kernel, 65_536 / 32, |n, side| {
            vec![if side == Side::Query { 0 } else { u32::MAX }; n]
        });
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 60,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn products_and_sweeps_touch_nothing_outside_their_arrays(
        steps in 0usize..70, at_end in any::<bool>(), seed in any::<u64>(),
    ) {
        for kernel in kernels() {
            for word in [Word::Float32, Word::BFloat16Pair, Word::Int16Pair, Word::Bits] {
                let is_possible = match word {
                    Word::BFloat16Pair => kernel.has_bfloat16(),
                    Word::Int16Pair => kernel.has_int16() && steps >= AFFINE_STEPS,
                    _ => true,
                };
                if !is_possible {
                    continue;
                }
                let tiles = kernel.tiles(word);
                let Tiles { rows: height, columns: width, .. } = *tiles;
                let mut rows = Guarded::new(&words(steps * height, seed), at_end);
                let mut columns = Guarded::new(&words(steps * width, seed ^ 1), at_end);
                let mut tile = Guarded::new(&vec![f32::NAN; height * width], at_end);
                if word == Word::Bits {
                    kernel.arrange_codes(columns.get());
                }
                kernel.product(word).tile(steps, rows.get(), columns.get(), tile.get());
                prop_assert!(tile.get().iter().all(|v| v.is_finite()), "{} {word:?}", kernel.name);
                for tall in 1..=height {
                    // Low thresholds must not exceed high thresholds.
                    let thresholds = |n, seed| {
                        let (a, b) = (numbers(n, seed), numbers(n, seed ^ 8));
                        let ends = |choose: fn(f32, f32) -> f32| {
                            a.iter().zip(&b).map(|(a, b)| choose(*a, *b)).collect::<Vec<_>>()
                        };
                        (
                            Guarded::new(&ends(f32::min), at_end),
                            Guarded::new(&ends(f32::max), at_end),
                        )
                    };
                    let (mut low, mut high) = thresholds(tall, seed ^ 2);
                    let (mut column_low, mut column_high) = thresholds(width, seed ^ 4);
                    let mut group = Guarded::new(&vec![0u32; tall], at_end);
                    let mut column_group = Guarded::new(&vec![1u32; width], at_end);
                    let row_edge =
                        Thresholds { low: low.get(), high: high.get(), group: group.get() };
                    let column_edge = Thresholds {
                        low: column_low.get(),
                        high: column_high.get(),
                        group: column_group.get(),
                    };
                    let (mut found, mut expected) =
                        (SweepResult::default(), SweepResult::default());
                    found.reset((tall, 1), (width, 1)).unwrap();
                    found.make_room(Sides::Both, tall * width).unwrap();
                    expected.reset((tall, 1), (width, 1)).unwrap();
                    expected.make_room(Sides::Both, tall * width).unwrap();
                    tiles.sweep_first(
                        Sides::Both,
                        tile.get(),
                        row_edge,
                        column_edge,
                        (0, 0),
                        &mut found,
                    );
                    let mut only_rows = SweepResult::default();
                    only_rows.reset((tall, 1), (width, 1)).unwrap();
                    only_rows.make_room(Sides::Both, tall * width).unwrap();
                    tiles.sweep_first(
                        Sides::Rows,
                        tile.get(),
                        row_edge,
                        column_edge,
                        (0, 0),
                        &mut only_rows,
                    );
                    for (at, &value) in tile.get()[..tall * width].iter().enumerate() {
                        let (r, c) = (at / width, at % width);
                        expected.row_above.of(0)[r] += u32::from(value > row_edge.high[r]);
                        expected.column_above.of(0)[c] += u32::from(value > column_edge.high[c]);
                    }
                    prop_assert_eq!(found.row_above.of(0), expected.row_above.of(0));
                    prop_assert_eq!(only_rows.row_above.of(0), expected.row_above.of(0));
                    prop_assert_eq!(found.column_above.of(0), expected.column_above.of(0));
                }
            }
        }
    }

    #[test]
    fn parts_are_reached_where_a_bound_is_at_least_the_least_of_its_row_or_column(
        words in 1usize..80, panels in 1usize..5, at in any::<[u16; 2]>(),
        is_column in any::<bool>(), is_above in any::<bool>(), at_end in any::<bool>(),
        seed in any::<u64>(),
    ) {
        for kernel in kernels() {
            let Some(partial) = &kernel.partial else { continue };
            let Tiles { rows: height, columns: width, .. } = *kernel.tiles(Word::Int16Pair);
            let Rounding { largest, section, longest, words_together } = partial.rounding;
            let words = words.next_multiple_of(words_together.unwrap_or(1));
            let vectors = partial.parts / height;
            let mut random = crate::random::Random::new(seed);
            let in_sum = 2 * words.min(section) as i64;
            // A sum of 16 bits must fit.
            let limit = if longest.is_finite() { i64::from(i16::MAX) / in_sum } else { 127 * 127 };
            let most = limit.isqrt().min(i64::from(largest));
            let mut number = || {
                let drawn = random.below(2 * most as usize + 1) as i64 - most;
                if seed.is_multiple_of(4) { most } else { drawn }
            };
            let offset = partial.rounding.offset();
            // Packs rows, and returns their bytes and the numbers at the end.
            let mut pack = |lanes: usize, is_row: bool, seed: u64| {
                let rows: Vec<Vec<i64>> = (0..lanes)
                    .map(|_| (0..4 * words).map(|_| number()).collect())
                    .collect();
                let mut panel = Vec::new();
                for first in (0..words).step_by(section) {
                    let quads: Vec<Vec<&[i64]>> = (first..words.min(first.saturating_add(section)))
                        .map(|w| rows.iter().map(|row| &row[4 * w..4 * w + 4]).collect())
                        .collect();
                    panel.extend((0..lanes).map(|lane| {
                        let sum = |half: usize| -> i64 {
                            let of = |quad: &Vec<&[i64]>| -> i64 {
                                quad[lane][2 * half..][..2].iter().sum()
                            };
                            quads.iter().map(of).sum()
                        };
                        let sums = [0, 1].map(|half| -offset * sum(half) as i32);
                        if is_row { seed as u32 } else { partial.rounding.integers(sums) }
                    }));
                    for quad in &quads {
                        panel.extend(quad.iter().map(|bytes| {
                            let added = if is_row { i64::from(offset) } else { 0 };
                            u32::from_le_bytes([0, 1, 2, 3].map(|i| (bytes[i] + added) as u8))
                        }));
                    }
                }
                let mut affine = numbers(4 * lanes, seed);
                affine[..lanes].iter_mut().for_each(|sums| *sums = sums.abs() + 0.1);
                // Rows share a scale; the columns of a part share all but their biases.
                let (group, shared) = if is_row { (lanes, 1) } else { (lanes / vectors, 4) };
                for word in [0, 2, 3].into_iter().take(shared) {
                    for shared in affine[word * lanes..][..lanes].chunks_mut(group) {
                        shared.fill(shared[0]);
                    }
                }
                let last: Vec<u32> = affine.iter().map(|v| v.to_bits()).collect();
                if is_row && words_together.is_some() {
                    let row = |lane: usize| {
                        let bytes = (1..=words).map(move |step| step * lanes + lane);
                        (bytes, last[4 * lane..4 * lane + 4].to_vec())
                    };
                    let row_steps = partial.rounding.row_steps(1 + words + ROUNDED_AFFINE_STEPS);
                    let by_row = (0..lanes).flat_map(|lane| {
                        let (bytes, last) = row(lane);
                        let mut row: Vec<u32> = bytes.map(|at| panel[at]).chain(last).collect();
                        row.resize(row_steps, seed as u32);
                        row
                    });
                    panel = by_row.collect();
                } else {
                    panel.extend(last);
                }
                (panel, rows, affine)
            };
            let of_rows: Vec<_> =
                (0..panels).map(|p| pack(height, true, seed ^ p as u64)).collect();
            let (column_words, columns, of_columns) = pack(width, false, seed ^ 0xff);
            let steps = column_words.len() / width;
            let bound = |p: usize, r: usize, c: usize| -> f64 {
                let (_, rows, of_rows) = &of_rows[p];
                let sum: i64 = rows[r].iter().zip(&columns[c]).map(|(a, b)| a * b).sum();
                let [scale, bias, norm, error] =
                    [0, 1, 2, 3].map(|word| f64::from(of_rows[word * height + r]));
                let [other_scale, other_bias, other_norm, other_error] =
                    [0, 1, 2, 3].map(|word| f64::from(of_columns[word * width + c]));
                sum as f64 / (scale * other_scale)
                    + bias
                    + other_bias
                    + norm * other_error
                    + error * other_norm
            };
            // A row or column is given a threshold: about its largest bound in a tile.
            let panel = usize::from(at[0]) % panels;
            let lane = usize::from(at[1]) % if is_column { width } else { height };
            let bounds = (0..if is_column { height } else { width }).map(|other| {
                if is_column { bound(panel, other, lane) } else { bound(panel, lane, other) }
            });
            let largest_bound = bounds.fold(f64::NEG_INFINITY, f64::max);
            // Limits and biases are rounded to sums of bytes.
            let slack = 1e-5 * (largest_bound.abs() + 1.0 + 5e6 * words as f64) + 400.0;
            let least = (largest_bound + if is_above { slack } else { -slack }) as f32;
            let (mut row_least, mut column_least) =
                (vec![f32::INFINITY; panels * height], vec![f32::INFINITY; width]);
            if is_column {
                column_least[lane] = least
            } else {
                row_least[panel * height + lane] = least
            }
            let rows: Vec<u32> = of_rows.iter().flat_map(|of| of.0.iter().copied()).collect();
            let (mut rows, mut columns) =
                (Guarded::new(&rows, at_end), Guarded::new(&column_words, at_end));
            let (mut row_least, mut column_least) =
                (Guarded::new(&row_least, at_end), Guarded::new(&column_least, at_end));
            let mut found = Guarded::new(&vec![Parts::MAX; panels], at_end);
            let cost = kernel.reaching_parts(
                steps,
                (rows.get(), columns.get()),
                (row_least.get(), column_least.get()),
                found.get(),
            );
            let mut expected_cost = 0;
            for (p, found) in found.get().iter().enumerate() {
                let (mut surely, mut possibly) = (0, 0);
                for r in 0..height {
                    for c in 0..width {
                        let least = row_least.get()[p * height + r].min(column_least.get()[c]);
                        let part = 1 << (r * vectors + c * vectors / width);
                        let above = bound(p, r, c) - f64::from(least);
                        surely |= if above >= slack / 2.0 { part } else { 0 };
                        possibly |= if above >= -slack / 2.0 { part } else { 0 };
                    }
                }
                prop_assert!(found & surely == surely, "{}", kernel.name);
                let is_whole = 3 * possibly.count_ones() as usize >= partial.parts;
                prop_assert!(*found & !possibly == 0 || *found == WHOLE && is_whole);
                expected_cost += (3 * found.count_ones()).min(partial.parts as u32);
            }
            prop_assert_eq!(cost, expected_cost);
            prop_assert!(is_above || found.get()[panel] != 0);
        }
    }

    #[test]
    fn parts_of_a_tile_are_those_of_the_whole_tile(
        steps in AFFINE_STEPS..40, parts in any::<Parts>(), at_end in any::<bool>(),
        seed in any::<u64>(),
    ) {
        for kernel in kernels() {
            let Some(partial) = &kernel.partial else { continue };
            let Tiles { rows: height, columns: width, .. } = *kernel.tiles(Word::Int16Pair);
            let mut rows = Guarded::new(&words(steps * height, seed), at_end);
            let mut columns = Guarded::new(&words(steps * width, seed ^ 1), at_end);
            let (mut tile, mut whole) = (
                Guarded::new(&vec![f32::NAN; height * width], at_end),
                vec![f32::NAN; height * width],
            );
            kernel.product(Word::Int16Pair).tile(steps, rows.get(), columns.get(), &mut whole);
            kernel.fill_parts(steps, rows.get(), columns.get(), parts, tile.get());
            let in_part = width * height / partial.parts;
            for (at, (found, whole)) in tile.get().iter().zip(whole).enumerate() {
                let is_filled = parts >> (at / in_part) & 1 == 1;
                prop_assert_eq!(*found, if is_filled { whole } else { f32::NEG_INFINITY });
            }
        }
    }

    #[test]
    fn bit_products_count_all_differing_bits(
        steps in 0usize..140, densities in any::<[u8; 2]>(), seed in any::<u64>(),
    ) {
        // Cover densities from no bits to all bits, so that an overflow of intermediate sums would
        // be found.
        let mut random = crate::random::Random::new(seed);
        for kernel in kernels() {
            assert_bit_products(kernel, steps, |n, side| {
                let density = usize::from(densities[usize::from(side == Side::Query)]);
                let mut word = || {
                    (0..32)
                        .fold(0, |word, bit| word | u32::from(random.below(255) < density) << bit)
                };
                (0..n).map(|_| word()).collect()
            });
        }
    }

    #[test]
    fn exact_sums_touch_nothing_outside_their_rows_and_have_the_same_bits(
        len in 0usize..70, at_end in any::<bool>(), seed in any::<u64>(),
    ) {
        let values: Vec<Vec<f32>> = (0..2 * PAIRS as u64).map(|i| numbers(len, seed ^ i)).collect();
        let mut rows: Vec<_> = values.iter().map(|row| Guarded::new(row, at_end)).collect();
        let rows: Vec<&[f32]> = rows.iter_mut().map(|row| &*row.get()).collect();
        let (q, g): (Pairs32<'_>, Pairs32<'_>) =
            (rows[..PAIRS].try_into().unwrap(), rows[PAIRS..].try_into().unwrap());
        let wide: Vec<Vec<f64>> =
            values.iter().map(|row| row.iter().map(|v| f64::from(*v)).collect()).collect();
        let mut wide: Vec<_> = wide.iter().map(|row| Guarded::new(row, at_end)).collect();
        let wide: Vec<&[f64]> = wide.iter_mut().map(|row| &*row.get()).collect();
        let mut bytes = [0, 1].map(|i| {
            Guarded::new(&values[i].iter().map(|v| v.to_bits() as u8).collect::<Vec<_>>(), at_end)
        });
        let [a, b] = &mut bytes;
        for kernel in kernels() {
            let (dots, distances) = (kernel.dots32(q, g), kernel.distances32(q, g));
            for pair in 0..PAIRS {
                let (x, y) = (wide[pair], wide[PAIRS + pair]);
                prop_assert_eq!(dots[pair].to_bits(), exact::dot(x, y).to_bits());
                prop_assert_eq!(distances[pair].to_bits(), exact::squared_distance(x, y).to_bits());
                prop_assert_eq!(kernel.dot64(x, y).to_bits(), dots[pair].to_bits());
                prop_assert_eq!(kernel.distance64(x, y).to_bits(), distances[pair].to_bits());
            }
            let differing: u32 =
                a.get().iter().zip(b.get()).map(|(x, y)| (x ^ *y).count_ones()).sum();
            prop_assert_eq!(kernel.differing_bits(a.get(), b.get()), differing);
        }
    }

    #[test]
    fn exact_tiles_touch_nothing_outside_their_panels_and_have_the_bits_of_single_sums(
        dim in 1usize..60, at_end in any::<bool>(), seed in any::<u64>(),
    ) {
        let steps = exact::padded_len(dim);
        for kernel in kernels() {
            let ExactProducts { rows: height, columns: width, .. } = kernel.exact;
            let panel = |lanes: usize, seed: u64| {
                let mut panel = vec![0.0; steps * lanes];
                let mut rows = vec![Vec::new(); lanes];
                for (lane, row) in rows.iter_mut().enumerate() {
                    row.extend(
                        numbers(dim, seed.wrapping_add(lane as u64)).into_iter().map(f64::from),
                    );
                    for (i, v) in row.iter().enumerate() {
                        panel[exact::packed_position(i, steps) * lanes + lane] = *v;
                    }
                }
                (Guarded::new(&panel, at_end), rows)
            };
            let ((mut rows, q), (mut columns, g)) =
                (panel(height, seed), panel(width, seed ^ 0xff00));
            let mut tile = Guarded::new(&vec![f64::NAN; 8 * height * width], at_end);
            for sum in [Sum::Dot32, Sum::Dot64, Sum::Distance] {
                kernel.exact_tile(sum, rows.get(), columns.get(), tile.get());
                for (at, found) in tile.get()[..height * width].iter().enumerate() {
                    let (q, g) = (&q[at / width], &g[at % width]);
                    let single = if sum == Sum::Distance {
                        exact::squared_distance(q, g)
                    } else {
                        exact::dot(q, g)
                    };
                    prop_assert_eq!(found.to_bits(), single.to_bits(), "{} {:?}", kernel.name, sum);
                }
            }
        }
    }
}
