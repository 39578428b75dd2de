//! Ranks the positives of a query by the keys of all items.
//!
//! Keys are mapped to integers, in descending order, and items are sorted by the digits of their
//! integers. If only the first ranks matter, only the items up to a sampled limit are sorted; if
//! positives are few, only the items in buckets with positives, and the other items are counted.
//! If the row contains approximate keys, exact keys are computed for positives and negatives that
//! are too near to each other.

use std::iter;
use std::mem::{swap, take};
use std::ops::Range;

use crate::control::Control;
use crate::counting_sort::sort_by_part;
use crate::error::{Result, argument};
use crate::kernel::Kernel;
use crate::memory::{Grow, collect_counted, full};
use crate::random::Random;
use crate::rank::relation::Kind;
use crate::rank::ties::{Positive, TieRules};

/// An entry is a 64-bit integer. From the top, it contains the bit `TIED`, set if the key equals
/// the previous entry's key; the item's integer; the place in the row; and a bit that is set for
/// positives.
const TIED: u64 = 1 << 63;
const PLACE_SHIFT: u32 = 1;
const INTEGER_SHIFT: u32 = 32;
/// Two digits of an integer have about this many bits more than the number of items, so that few
/// items share an integer or are too near to each other only because of rounding.
const SPARE_BITS: u32 = 10;
const MAX_DIGIT_BITS: u32 = 15;
/// The digits and the bits per digit for fewer than 2^`FEW_BITS` items: larger digits would cost
/// more than another digit.
const DIGITS_OF_FEW: (u32, u32) = (3, 9);
const FEW_BITS: u32 = 12;
/// The maximum number of bits in the index of a bucket: the counts of more buckets wouldn't fit
/// into a core's caches.
const BUCKET_BITS: u32 = 16;
/// A bit that is set for a bucket whose items are sorted.
const SORTED: u32 = 1 << 31;
/// Buckets are used with at least this number of items per positive.
const ITEMS_PER_POSITIVE: usize = 8;
/// The number of marks that are read together.
const MARKS: usize = 8;
/// The number of keys to sample, to estimate the range of keys that integers must cover.
const SAMPLE: usize = 128;

/// The items of a query in order: keys, kinds, and indices in the full gallery.
pub(crate) struct Row<'a, K, I> {
    pub keys: &'a [K],
    /// Items are in the order of exact keys if the keys in this row differ by more than this. If it
    /// is 0, keys are exact.
    pub slack: f64,
    pub kinds: &'a [Kind],
    pub index: I,
    /// Positives that aren't in this row, in ranking order.
    pub given: &'a [Positive],
}

impl<K, I> Row<'_, K, I> {
    pub fn len(&self) -> usize {
        self.keys.len() + self.given.len()
    }

    fn has_few_positives(&self) -> bool {
        let own = self.kinds.iter().map(|kind| usize::from(*kind == Kind::Match)).sum::<usize>();
        (own + self.given.len()) * ITEMS_PER_POSITIVE <= self.len()
    }
}

impl<K: Copy + Into<f64>, I: Fn(usize) -> u64> Row<'_, K, I> {
    /// Appends the keys of the items at some places.
    pub fn keys_at(&self, places: &[u32], keys: &mut Vec<f64>) -> Result<()> {
        keys.try_extend(places.iter().map(|place| self.item(*place as usize).key))
    }

    /// Returns a key and an index in the full gallery.
    fn item(&self, place: usize) -> Positive {
        match place.checked_sub(self.keys.len()) {
            None => Positive { key: self.keys[place].into(), index: (self.index)(place) },
            Some(given) => self.given[given],
        }
    }

    /// Returns a number below almost all keys, and a number above almost all keys.
    fn range(&self) -> (f64, f64) {
        let sampled = Random::new(3).spread(self.keys.len(), SAMPLE).map(|i| self.keys[i].into());
        let all = sampled.chain(self.given.iter().map(|positive| positive.key));
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), key| {
            (low.min(key), high.max(key))
        });
        (low - (high - low) / 4.0, high + (high - low) / 4.0)
    }
}

fn place(entry: u64) -> usize {
    (entry as u32 >> PLACE_SHIFT) as usize
}

fn integer(entry: u64) -> u64 {
    (entry & !TIED) >> INTEGER_SHIFT
}

/// Iterates over the entries of a row's items, given the integers.
fn entries<K, I>(row: &Row<'_, K, I>, integers: &[u32]) -> impl Iterator<Item = u64> + Clone {
    let entry = |place: usize, integer: u32, is_match: bool| {
        u64::from(integer) << INTEGER_SHIFT | (place as u64) << PLACE_SHIFT | u64::from(is_match)
    };
    let (from_row, from_given) = integers.split_at(row.keys.len());
    let own = from_row.iter().zip(row.kinds).enumerate();
    let own = own.map(move |(place, (integer, kind))| entry(place, *integer, *kind == Kind::Match));
    let given = (row.keys.len()..).zip(from_given);
    own.chain(given.map(move |(place, integer)| entry(place, *integer, true)))
}

/// Sorts the rows of queries, one after the other, using the same buffers.
#[derive(Default)]
pub(crate) struct RowRanker {
    /// The integers of the items. Excluded items get `excluded`, which is larger than all others.
    integers: Vec<u32>,
    excluded: u32,
    digits: u32,
    digit_bits: u32,
    /// The largest difference of integers if keys differ by at most the slack.
    near: u64,
    /// The number of bits by which an integer is shifted right to get the bucket.
    shift: u32,
    /// Per bucket, the number of items in earlier buckets that aren't sorted.
    buckets: Vec<u32>,
    /// Entries in order of places. It has the length of the longest row.
    entered: Vec<u64>,
    spare: Vec<u64>,
    /// The entries of the items that matter, sorted by key in descending order, then by index.
    entries: Vec<u64>,
    ends: Vec<u32>,
    /// Per entry, 1 if it is too near to the previous entry.
    marks: Vec<u8>,
    /// Entries that exact keys must order, and their places and keys.
    open: Vec<Range<usize>>,
    places: Vec<u32>,
    keys: Vec<f64>,
    ordered: Vec<(Positive, u64)>,
}

impl RowRanker {
    /// Sorts the items of `row`, at least down to rank `last_rank` and to the first positive.
    /// `compute` must append the exact keys of the items at some places. Returns false if more than
    /// `most` exact keys are necessary.
    pub fn sort<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, K, I>,
        last_rank: u64,
        (kernel, control): (&Kernel, &Control),
        most: usize,
        compute: impl FnOnce(&[u32], &mut Vec<f64>) -> Result<()>,
    ) -> Result<bool> {
        if row.len() >= 1 << 31 {
            return argument(format!(
                "a query is ranked among {} items; expected fewer than 2^31: evaluate the gallery \
                 in parts",
                row.len()
            ));
        }
        let bits = row.len().ilog2();
        (self.digits, self.digit_bits) = if bits < FEW_BITS {
            DIGITS_OF_FEW
        } else {
            (2, ((bits + SPARE_BITS) / 2).min(MAX_DIGIT_BITS))
        };
        self.excluded = 1 << (self.digits * self.digit_bits);
        self.map_to_integers(row, kernel)?;
        let shift = self.digits * self.digit_bits - bits.min(BUCKET_BITS);
        // Items near a positive must share its bucket or an adjacent bucket.
        if 2 * self.near > 1 << shift {
            return Ok(false);
        }
        if last_rank == u64::MAX && row.has_few_positives() {
            control.took(|| "items near positives sorted");
            self.sort_near_positives(row, shift)?;
        } else if self.sort_first(row, last_rank)? {
            control.took(|| "first ranks selected");
        } else {
            self.ignore_buckets()?;
            self.sort_all(row)?;
        }
        self.find_open(row, kernel)?;
        if self.places.len() > most {
            return Ok(false);
        }
        if row.slack > 0.0 && !self.places.is_empty() {
            control.took(|| "near values ordered by keys");
        }
        self.keys.clear();
        compute(&self.places, &mut self.keys)?;
        self.order_open(row)?;
        Ok(true)
    }

    /// Maps the keys of items that aren't excluded to integers below `excluded`.
    fn map_to_integers<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, K, I>,
        kernel: &Kernel,
    ) -> Result<()> {
        let (low, high) = row.range();
        let excluded = self.excluded;
        let largest = f64::from(excluded - 1);
        let scale = Some(largest / (high - low)).filter(|scale| scale.is_finite()).unwrap_or(0.0);
        // Rounding to integers adds at most 1 to the difference, and the arithmetic much less.
        let near = row.slack * scale + 1.001;
        self.near = if row.slack > 0.0 { near.min(f64::from(excluded)) as u64 } else { 0 };
        let integer = move |key: f64| {
            // Adding 2⁵² puts the rounded number into the lowest bits of the sum, since the unit in
            // the last place is then 1.
            (((high - key) * scale).max(0.0).min(largest) + (1u64 << 52) as f64).to_bits() as u32
        };
        self.integers.try_resize(row.len(), 0)?;
        let (from_row, from_given) = self.integers.split_at_mut(row.keys.len());
        kernel.vectorize(
            #[inline(always)]
            || {
                for ((out, key), kind) in from_row.iter_mut().zip(row.keys).zip(row.kinds) {
                    let own = integer((*key).into());
                    *out = if *kind == Kind::Excluded { excluded } else { own };
                }
            },
        );
        from_given
            .iter_mut()
            .zip(row.given)
            .for_each(|(out, positive)| *out = integer(positive.key));
        Ok(())
    }

    /// Sorts the items up to a limit, if a sample suggests that few items matter. Returns whether
    /// these include all items that matter.
    fn sort_first<K, I>(&mut self, row: &Row<'_, K, I>, last_rank: u64) -> Result<bool> {
        // Allow for the deviations of a sample.
        let rank = last_rank.min(row.len() as u64) as usize * SAMPLE / row.len() * 5 / 4 + 6;
        if rank >= SAMPLE * 3 / 4 {
            return Ok(false);
        }
        let sample = Random::new(5).spread(row.len(), SAMPLE).map(|place| self.integers[place]);
        let mut sampled = [self.excluded; SAMPLE];
        sampled.iter_mut().zip(sample).for_each(|(to, integer)| *to = integer);
        let limit = *sampled.select_nth_unstable(rank).1;
        if limit == self.excluded || u64::from(limit) < self.near {
            return Ok(false);
        }
        self.ignore_buckets()?;
        self.sort_some(row, |integer| integer <= limit)?;
        // All other items come after these.
        let certain = u64::from(limit) - self.near;
        let certain = self.entries.partition_point(|entry| integer(*entry) <= certain);
        let has_positive = self.entries[..certain].iter().any(|entry| entry & 1 == 1);
        Ok(certain as u64 >= last_rank && has_positive)
    }

    /// Sorts all items in buckets that contain a positive, or items too near to a positive.
    fn sort_near_positives<K, I>(&mut self, row: &Row<'_, K, I>, shift: u32) -> Result<()> {
        self.shift = shift;
        let (near, last) = (self.near as u32, self.excluded - 1);
        let mut buckets = take(&mut self.buckets);
        buckets.clear();
        buckets.try_resize(1 + (self.excluded >> shift) as usize, 0)?;
        let kinds = row.kinds.iter().chain(row.given.iter().map(|_| &Kind::Match));
        let positives = self.integers.iter().zip(kinds).filter(|(_, kind)| **kind == Kind::Match);
        for (integer, _) in positives {
            buckets[(integer.saturating_sub(near) >> shift) as usize] = SORTED;
            buckets[((integer + near).min(last) >> shift) as usize] = SORTED;
        }
        let sorted = self.sort_some(row, |integer| {
            let bucket = &mut buckets[(integer >> shift) as usize];
            let is_sorted = *bucket >> 31;
            *bucket += 1 - is_sorted;
            is_sorted == 1
        });
        let mut before = 0;
        for bucket in &mut buckets {
            (*bucket, before) = (before, before + (*bucket & !SORTED));
        }
        self.buckets = buckets;
        sorted
    }

    /// Puts all integers into a single bucket, for rows in which no items are only counted.
    fn ignore_buckets(&mut self) -> Result<()> {
        self.shift = 2 * MAX_DIGIT_BITS;
        self.buckets.clear();
        self.buckets.try_push(0)
    }

    /// Sorts the entries of all items that aren't excluded.
    fn sort_all<K, I>(&mut self, row: &Row<'_, K, I>) -> Result<()> {
        let (integers, digit) = (take(&mut self.integers), self.digit(0));
        let (parts, entries) = (1 << self.digit_bits, entries(row, &integers));
        sort_by_part(entries, parts, digit, &mut self.ends, &mut self.entries)?;
        self.integers = integers;
        self.sort_by_other_digits()?;
        // Excluded items come last.
        let number = self.entries.partition_point(|entry| integer(*entry) < self.excluded.into());
        self.entries.truncate(number);
        Ok(())
    }

    /// Sorts the entries of the items whose integers matter.
    fn sort_some<K, I>(
        &mut self,
        row: &Row<'_, K, I>,
        mut matters: impl FnMut(u32) -> bool,
    ) -> Result<()> {
        if self.entered.len() < row.len() {
            self.entered.try_resize(row.len(), 0)?;
        }
        let (entered, mut number) = (&mut self.entered[..], 0);
        entries(row, &self.integers).for_each(|entry| {
            // Always write the entry, because the CPU would mispredict a branch.
            entered[number] = entry;
            number += usize::from(matters(integer(entry) as u32));
        });
        let (parts, digit) = (1 << self.digit_bits, self.digit(0));
        let entries = self.entered[..number].iter().copied();
        sort_by_part(entries, parts, digit, &mut self.ends, &mut self.entries)?;
        self.sort_by_other_digits()
    }

    /// Sorts the entries, which are sorted by the lowest digit, by all digits.
    fn sort_by_other_digits(&mut self) -> Result<()> {
        for at in 1..self.digits {
            let parts = (1 << self.digit_bits) + usize::from(at + 1 == self.digits);
            let digit = self.digit(at);
            swap(&mut self.entries, &mut self.spare);
            let entries = self.spare.iter().copied();
            sort_by_part(entries, parts, digit, &mut self.ends, &mut self.entries)?;
        }
        Ok(())
    }

    /// Returns the function from an entry to a digit. The highest has a bit more, for excluded
    /// items.
    fn digit(&self, at: u32) -> impl Fn(&u64) -> usize + use<> {
        let shift = INTEGER_SHIFT + at * self.digit_bits;
        let bits = if at + 1 < self.digits { self.digit_bits } else { self.digit_bits + 1 };
        move |entry| (entry >> shift) as usize & ((1 << bits) - 1)
    }

    /// Returns the number of items before an entry that aren't sorted.
    fn others_before(&self, entry: u64) -> u64 {
        u64::from(self.buckets[(integer(entry) >> self.shift) as usize])
    }

    /// Finds the sorted entries that are too near to each other, and must be ordered by exact keys:
    /// a positive and a negative or, if the keys in the row are exact, also two positives.
    fn find_open<K, I>(&mut self, row: &Row<'_, K, I>, kernel: &Kernel) -> Result<()> {
        self.open.clear();
        self.places.clear();
        let (entries, near) = (&self.entries[..], self.near);
        let both = row.slack > 0.0;
        let are_open = |a: u64, b: u64| {
            (integer(b) - integer(a) <= near) & ((if both { a ^ b } else { a | b }) & 1 == 1)
        };
        // Mark the second entry of open pairs.
        self.marks.try_resize(entries.len().next_multiple_of(MARKS), 0)?;
        let marks = &mut self.marks[..];
        marks.fill(0);
        kernel.vectorize(|| {
            let pairs = entries.iter().zip(entries.iter().skip(1));
            let marked = marks.iter_mut().skip(1).zip(pairs);
            marked.for_each(|(mark, (a, b))| *mark = u8::from(are_open(*a, *b)));
        });
        let together = marks.as_chunks::<MARKS>().0.iter().enumerate();
        let marked = together.flat_map(|(chunk, marks)| {
            let mut bits = u64::from_le_bytes(*marks);
            iter::from_fn(move || {
                (bits != 0).then(|| {
                    let at = bits.trailing_zeros() as usize / 8;
                    bits &= bits - 1;
                    chunk * MARKS + at
                })
            })
        });
        for at in marked {
            let (first, last) = (integer(entries[at - 1]), integer(entries[at]));
            let found = self.open.last().map_or(0, |open| open.end);
            let (mut start, mut end) = (at - 1, found.max(at + 1));
            while start > found && last - integer(entries[start - 1]) <= near {
                start -= 1;
            }
            while end < entries.len() && integer(entries[end]) - first <= near {
                end += 1;
            }
            match self.open.last_mut() {
                Some(open) if open.end >= start => {
                    start = open.end;
                    open.end = end;
                }
                _ => self.open.try_push(start..end)?,
            }
            let places = entries[start..end].iter().map(|entry| place(*entry) as u32);
            self.places.try_extend(places)?;
        }
        Ok(())
    }

    /// Sorts open entries by exact key, and marks an entry if its key equals the previous key.
    fn order_open<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, K, I>,
    ) -> Result<()> {
        let mut keys = &self.keys[..];
        for open in &self.open {
            let entries = &mut self.entries[open.clone()];
            let (own, rest) = keys.split_at(entries.len());
            keys = rest;
            self.ordered.clear();
            self.ordered.try_extend(entries.iter().zip(own).map(|(entry, key)| {
                (Positive { key: *key, index: row.item(place(*entry)).index }, *entry)
            }))?;
            self.ordered.sort_unstable_by(|(a, _), (b, _)| {
                b.key.total_cmp(&a.key).then(a.index.cmp(&b.index))
            });
            let mut previous = f64::NAN;
            for (entry, (item, own)) in entries.iter_mut().zip(&self.ordered) {
                *entry = own | if item.key == previous { TIED } else { 0 };
                previous = item.key;
            }
        }
        Ok(())
    }

    /// Counts the sorted positives.
    fn positives(&self) -> usize {
        self.entries.iter().map(|entry| entry & 1).sum::<u64>() as usize
    }

    /// Lists the sorted positives in order.
    pub fn list_positives<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &self,
        row: &Row<'_, K, I>,
    ) -> Result<Vec<Positive>> {
        let positives = self.entries.iter().filter(|entry| *entry & 1 == 1);
        collect_counted(positives.map(|entry| row.item(place(*entry))))
    }

    /// Ranks the sorted positives.
    pub fn ranks(&self) -> Result<Vec<u64>> {
        let mut ranks = full(self.positives() + 1, 0)?;
        let mut number = 0;
        let has_others = self.buckets.len() > 1;
        for (entry, at) in self.entries.iter().zip(1..) {
            // Always store the rank, because the CPU would mispredict a branch.
            ranks[number] = at + if has_others { self.others_before(*entry) } else { 0 };
            number += (entry & 1) as usize;
        }
        ranks.pop();
        Ok(ranks)
    }

    /// Counts the sorted negatives in the slots of `rules`. `positives` must be in order. Items
    /// after the sorted items are counted in the last slot.
    pub fn counts<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &self,
        row: &Row<'_, K, I>,
        rules: TieRules,
        positives: &[Positive],
    ) -> Result<Vec<u64>> {
        let per_positive = rules.slots_per_positive();
        let mut counts = full(per_positive * self.positives() + 1, 0)?;
        let mut before = 0;
        let mut others = 0;
        for tied in self.entries.chunk_by(|_, next| next & TIED != 0) {
            let own = tied.iter().map(|entry| entry & 1).sum::<u64>() as usize;
            counts[per_positive * before] += self.others_before(tied[0]) - others;
            others = self.others_before(tied[0]);
            if let [entry] = tied {
                counts[per_positive * before] += 1 - (entry & 1);
            } else {
                for negative in tied.iter().filter(|entry| *entry & 1 == 0) {
                    let Positive { key, index } = row.item(place(*negative));
                    let slot = rules.slot(before, &positives[before..before + own], key, index);
                    counts[slot] += 1;
                }
            }
            before += own;
        }
        counts[per_positive * before] += (row.len() - self.entries.len()) as u64 - others;
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::select;

    /// Most rows have few positives.
    fn kinds() -> impl Strategy<Value = Vec<Kind>> {
        (0usize..5, proptest::collection::vec(any::<usize>(), 200)).prop_map(|(others, numbers)| {
            let kind = |n: &usize| {
                [Kind::Match, Kind::Excluded, Kind::Negative][(n % (3 + 8 * others)).min(2)]
            };
            numbers.iter().map(kind).collect()
        })
    }

    fn keys() -> impl Strategy<Value = Vec<f64>> {
        let key = prop_oneof![
            (-3i8..3).prop_map(f64::from),
            -1.0f64..1.0,
            Just(1e300),
            Just(-1e300),
            Just(1e-310),
        ];
        // Huge keys put all others into a single bucket, so most rows don't have any.
        prop_oneof![
            1 => proptest::collection::vec(key, 1..200),
            3 => proptest::collection::vec(-1.0f64..1.0, 100..200),
            // A limit within a group of near keys cuts off keys that may come earlier.
            3 => proptest::collection::vec(prop_oneof![-1.0f64..1.0, 0.3f64..0.302], 100..200),
        ]
    }

    proptest! {
        #[test]
        fn counts_are_those_of_each_negatives_slot(
            keys in keys(), kinds in kinds(), given in 0usize..6, first in 6u64..9,
            last_rank in prop_oneof![Just(u64::MAX), 1u64..20],
        ) {
            // Some given positives come before the row in the gallery, others after the row.
            let to_positive = |(i, &key): (u64, &f64)| Positive {
                key,
                index: if i % 2 == 0 { i } else { 1000 + i },
            };
            let mut given: Vec<Positive> = (0..).zip(&keys).take(given).map(to_positive).collect();
            given.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            let kinds = &kinds[..keys.len()];
            let row = Row {
                keys: &keys[..],
                slack: 0.0,
                kinds,
                index: |place| first + place as u64,
                given: &given,
            };
            let with_kind = |kind: Kind| -> Vec<Positive> {
                let own =
                    kinds.iter().zip(&keys).zip(first..).filter(|((own, _), _)| **own == kind);
                own.map(|((_, key), index)| Positive { key: *key, index }).collect()
            };
            let mut positives = [with_kind(Kind::Match), given.clone()].concat();
            positives.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            prop_assume!(!positives.is_empty());
            let mut ranker = RowRanker::default();
            let with = (select(None).unwrap(), &Control::default());
            let exact = |places: &[u32], keys: &mut Vec<f64>| row.keys_at(places, keys);
            prop_assert!(
                ranker.sort(&row, last_rank, with, usize::MAX, exact).unwrap()
            );
            let found = ranker.list_positives(&row).unwrap();
            for rules in [TieRules::Index, TieRules::All] {
                let counts = ranker.counts(&row, rules, &found).unwrap();
                let per_positive = rules.slots_per_positive();
                let mut expected = vec![0; per_positive * positives.len() + 1];
                with_kind(Kind::Negative)
                    .iter()
                    .for_each(|n| expected[rules.slot(0, &positives, n.key, n.index)] += 1);
                prop_assert!(!found.is_empty());
                prop_assert_eq!(&found[..], &positives[..found.len()]);
                let last = per_positive * found.len();
                prop_assert_eq!(&counts[..last], &expected[..last]);
                // All items up to the last rank must be kept.
                let before = counts[..last].iter().sum::<u64>() + found.len() as u64;
                let kept = before + counts[last];
                prop_assert!(found.len() == positives.len() || kept >= last_rank);
            }
        }

        #[test]
        fn approximate_keys_give_the_ranks_of_exact_keys(
            exact in keys(), kinds in kinds(),
            noise in proptest::collection::vec(-0.49f64..0.49, 200),
            slack in prop_oneof![Just(1e-9), 4e-3..0.01, 1e-3..0.03, Just(0.4)],
            last_rank in prop_oneof![Just(u64::MAX), 1u64..60], most in 0usize..300,
        ) {
            let kinds = &kinds[..exact.len()];
            let keys: Vec<f64> =
                exact.iter().zip(noise).map(|(key, noise)| key + slack * noise).collect();
            let index = |place| place as u64;
            let row = Row { keys: &keys[..], slack, kinds, index, given: &[] };
            let mut order: Vec<usize> =
                (0..exact.len()).filter(|i| kinds[*i] != Kind::Excluded).collect();
            order.sort_by(|a, b| exact[*b].total_cmp(&exact[*a]).then(a.cmp(b)));
            let ranks = order.iter().zip(1u64..).filter(|(i, _)| kinds[**i] == Kind::Match);
            let expected: Vec<u64> = ranks.map(|(_, rank)| rank).collect();
            prop_assume!(!expected.is_empty());
            let mut ranker = RowRanker::default();
            let (with, mut computed) = ((select(None).unwrap(), &Control::default()), 0);
            let is_decided = ranker.sort(&row, last_rank, with, most, |places, keys| {
                computed = places.len();
                keys.try_extend(places.iter().map(|place| exact[*place as usize]))
            });
            prop_assert!(computed <= most);
            if is_decided.unwrap() {
                let found = ranker.ranks().unwrap();
                for (i, rank) in expected.iter().enumerate() {
                    let found = found.get(i).copied().unwrap_or(u64::MAX);
                    prop_assert!(found == *rank || i > 0 && found.min(*rank) > last_rank);
                }
            }
        }
    }

    #[test]
    fn excluded_items_do_not_precede_keys_below_the_sampled_range() {
        const ITEMS: usize = 1000;
        let mut ranker = RowRanker::default();
        for positive in 1..ITEMS {
            let key = |i: usize| if i == positive { -10.0 } else { i as f64 / ITEMS as f64 };
            let kind = |i: usize| match i {
                0 => Kind::Excluded,
                _ if i == positive => Kind::Match,
                _ => Kind::Negative,
            };
            let (keys, kinds): (Vec<f64>, Vec<Kind>) =
                (0..ITEMS).map(|i| (key(i), kind(i))).unzip();
            let index = |place| place as u64;
            let row = Row { keys: &keys[..], slack: 1e-6, kinds: &kinds, index, given: &[] };
            let with = (select(None).unwrap(), &Control::default());
            let exact = |places: &[u32], keys: &mut Vec<f64>| row.keys_at(places, keys);
            assert!(ranker.sort(&row, ITEMS as u64, with, usize::MAX, exact).unwrap());
            assert_eq!(ranker.ranks().unwrap(), [ITEMS as u64 - 1]);
        }
    }
}
