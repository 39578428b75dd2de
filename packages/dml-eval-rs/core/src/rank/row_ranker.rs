//! Ranks the positives of a query by the keys of all items.
//!
//! Keys are mapped to integers, in descending order, and integers to buckets. Items are moved to
//! the buckets, so a bucket starts at the number of preceding items. Only buckets with positives
//! are sorted. If the row contains approximate keys, exact keys are computed for positives and
//! negatives that are too near to each other.

use std::mem::take;
use std::ops::Range;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::kernel::Kernel;
use crate::memory::{Grow, collect_counted, full};
use crate::random::Random;
use crate::rank::relation::Kind;
use crate::rank::ties::{Positive, TieRules, Ties};

/// An entry is a 64-bit integer. From the top, it contains the bit `TIED`, set if the key equals
/// the previous entry's key; the item's integer; the place in the row; and a bit that is set for
/// positives.
const TIED: u64 = 1 << 63;
const PLACE_SHIFT: u32 = 1;
const INTEGER_SHIFT: u32 = 33;
/// The bits per integer. Excluded items get the next larger integer.
const INTEGER_BITS: u32 = 29;
const EXCLUDED: u32 = 1 << INTEGER_BITS;
/// The maximum number of bits in the index of a bucket: the counts of more buckets wouldn't fit
/// into a core's caches.
const BUCKET_BITS: u32 = 16;
/// Buckets with more items are sorted separately, because `sort_nearly_sorted` would be slow.
const LARGE: u32 = 16;
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
    fn len(&self) -> usize {
        self.keys.len() + self.given.len()
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

/// Returns the entries of all items, given their integers and the kinds of those in the row.
fn entries(integers: &[u32], kinds: &[Kind]) -> impl Iterator<Item = u64> + Clone {
    let (from_row, from_given) = integers.split_at(kinds.len());
    let entry = |integer: u32, place: u64, is_match: bool| {
        u64::from(integer) << INTEGER_SHIFT | place << PLACE_SHIFT | u64::from(is_match)
    };
    let of_row = from_row.iter().zip(kinds).zip(0..);
    let of_given = from_given.iter().zip(kinds.len() as u64..);
    of_row
        .map(move |((integer, kind), place)| entry(*integer, place, *kind == Kind::Match))
        .chain(of_given.map(move |(integer, place)| entry(*integer, place, true)))
}

fn place(entry: u64) -> usize {
    (entry >> PLACE_SHIFT) as u32 as usize
}

fn integer(entry: u64) -> u64 {
    (entry & !TIED) >> INTEGER_SHIFT
}

/// Sorts the rows of queries, one after the other, using the same buffers.
#[derive(Default)]
pub(crate) struct RowRanker {
    /// The integers of the items. Excluded items get a larger integer than all others.
    integers: Vec<u32>,
    /// The largest difference of integers if keys differ by at most the slack.
    near: u64,
    /// The number of bits by which an integer is shifted right to get the bucket.
    shift: u32,
    /// The entries of the items with the largest keys, if these are sufficient.
    selected: Vec<u64>,
    /// Per bucket, first twice the number of items, plus 1 if an item is a positive; then the
    /// number of items in earlier buckets; and finally the end of the bucket's entries.
    buckets: Vec<u32>,
    /// The entries per item by bucket. The entries of `sorted` are sorted by key in descending
    /// order, then by index. Items that don't matter come last.
    entries: Vec<u64>,
    sorted: Vec<Range<usize>>,
    large: Vec<Range<usize>>,
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
        self.map_to_integers(row, kernel)?;
        let number = self.select(row, last_rank)?;
        // Selected items share a part of the range of integers.
        let items = number.map_or(row.len(), |number| 4 * number);
        self.shift = INTEGER_BITS - items.ilog2().clamp(1, BUCKET_BITS);
        if self.near > 1 << self.shift {
            return Ok(false);
        }
        self.entries.try_resize(row.len(), 0)?;
        let (integers, selected) = (take(&mut self.integers), take(&mut self.selected));
        let moved = if let Some(number) = number {
            control.took(|| "first ranks selected");
            self.move_to_buckets(selected[..number].iter().copied(), last_rank)
        } else {
            self.move_to_buckets(entries(&integers, row.kinds), last_rank)
        };
        (self.integers, self.selected) = (integers, selected);
        moved?;
        for large in &self.large {
            self.entries[large.clone()].sort_unstable();
        }
        for sorted in &self.sorted {
            sort_nearly_sorted(&mut self.entries[sorted.clone()]);
        }
        self.find_open(row)?;
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

    /// Maps the keys of items that aren't excluded to integers below `EXCLUDED`.
    fn map_to_integers<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, K, I>,
        kernel: &Kernel,
    ) -> Result<()> {
        let (low, high) = row.range();
        let scale = Some(f64::from(EXCLUDED - 1) / (high - low))
            .filter(|scale| scale.is_finite())
            .unwrap_or(0.0);
        // Rounding to integers adds at most 1 to the difference.
        self.near =
            if row.slack > 0.0 { ((row.slack * scale) as u64).saturating_add(2) } else { 0 };
        let integer = move |key: f64| {
            // Adding 2⁵² puts the rounded number into the lowest bits of the sum, since the unit in
            // the last place is then 1.
            (((high - key) * scale).max(0.0).min(f64::from(EXCLUDED - 1)) + (1u64 << 52) as f64)
                .to_bits() as u32
        };
        self.integers.try_resize(row.len(), 0)?;
        let (from_row, from_given) = self.integers.split_at_mut(row.keys.len());
        kernel.vectorize(
            #[inline(always)]
            || {
                for ((out, key), kind) in from_row.iter_mut().zip(row.keys).zip(row.kinds) {
                    let own = integer((*key).into());
                    *out = if *kind == Kind::Excluded { EXCLUDED } else { own };
                }
            },
        );
        from_given
            .iter_mut()
            .zip(row.given)
            .for_each(|(out, positive)| *out = integer(positive.key));
        Ok(())
    }

    /// Selects the items with the largest keys, if a sample suggests that few items matter. Returns
    /// the number of these items if they include all items that matter.
    fn select<K, I>(&mut self, row: &Row<'_, K, I>, last_rank: u64) -> Result<Option<usize>> {
        // Allow for the deviations of a sample.
        let rank = last_rank.min(row.len() as u64) as usize * SAMPLE / row.len() * 5 / 4 + 6;
        if rank >= SAMPLE / 2 {
            return Ok(None);
        }
        let sample = Random::new(5).spread(row.len(), SAMPLE).map(|place| self.integers[place]);
        let mut sampled = [EXCLUDED; SAMPLE];
        sampled.iter_mut().zip(sample).for_each(|(to, integer)| *to = integer);
        let limit = u64::from(*sampled.select_nth_unstable(rank).1);
        self.selected.try_resize(row.len() + 1, 0)?;
        let mut number = 0;
        entries(&self.integers, row.kinds).for_each(|entry| {
            // Always write the entry, because the CPU would mispredict a branch.
            self.selected[number] = entry;
            number += usize::from(integer(entry) <= limit);
        });
        // All other items come after these.
        let certain = self.selected[..number]
            .iter()
            .filter(|e| integer(**e) <= limit.saturating_sub(self.near));
        let (certain, matches) =
            certain.fold((0, 0), |(certain, matches), entry| (certain + 1, matches + (entry & 1)));
        let suffices = (self.near..u64::from(EXCLUDED)).contains(&limit)
            && certain >= last_rank
            && matches > 0;
        Ok(suffices.then_some(number))
    }

    /// Decides which buckets to sort, and replaces counts by the numbers of earlier items. Returns
    /// the first bucket with items that don't matter.
    fn list_buckets(&mut self, last_rank: u64) -> Result<usize> {
        let has_positive = |bucket: &u32| bucket & 1 == 1;
        let first = self.buckets.iter().position(has_positive).unwrap_or(0);
        let last = self.buckets.iter().rposition(has_positive).unwrap_or(0);
        // Items in adjacent buckets may be in the opposite order.
        let reach = usize::from(self.near > 0);
        let (mut end, mut before) = (first + 1, 0u64);
        if last_rank == u64::MAX {
            end = last + 1;
        } else {
            before += self.buckets[..end].iter().map(|bucket| u64::from(bucket >> 1)).sum::<u64>();
            while end <= last && before < last_rank {
                before += u64::from(self.buckets[end] >> 1);
                end += 1;
            }
        }
        let end = (end + reach).min(self.buckets.len() - 1);
        self.sorted.clear();
        self.large.clear();
        let (mut before, mut previous) = (0, 0);
        for b in 0..end {
            let (own, next) = (self.buckets[b], self.buckets[b + 1]);
            let is_sorted = (own | (previous | next) & reach as u32) & 1 == 1;
            self.buckets[b] = before;
            let entries = before as usize..(before + (own >> 1)) as usize;
            if is_sorted {
                if own >> 1 > LARGE {
                    self.large.try_push(entries.clone())?;
                }
                match self.sorted.last_mut() {
                    Some(sorted) if sorted.end == entries.start => sorted.end = entries.end,
                    _ => self.sorted.try_push(entries)?,
                }
            }
            before += own >> 1;
            previous = own;
        }
        self.buckets[end] = before;
        Ok(end)
    }

    /// Moves items to the buckets. Items that don't matter come last, in any order.
    fn move_to_buckets(
        &mut self,
        items: impl Iterator<Item = u64> + Clone,
        last_rank: u64,
    ) -> Result<()> {
        self.buckets.clear();
        self.buckets.try_resize(1 + (EXCLUDED >> self.shift) as usize, 0)?;
        let (shift, buckets) = (self.shift, &mut self.buckets[..]);
        items.clone().for_each(|entry| {
            let bucket = &mut buckets[(integer(entry) >> shift) as usize];
            *bucket = (*bucket + 2) | entry as u32 & 1;
        });
        let end = self.list_buckets(last_rank)?;
        let (entries, buckets) = (&mut self.entries[..], &mut self.buckets[..=end]);
        items.for_each(|entry| {
            let at = &mut buckets[((integer(entry) >> shift) as usize).min(end)];
            entries[*at as usize] = entry;
            *at += 1;
        });
        Ok(())
    }

    /// Finds the sorted entries that are too near to each other, and must be ordered by exact keys:
    /// a positive and a negative or, if the keys in the row are exact, also two positives.
    fn find_open<K, I>(&mut self, row: &Row<'_, K, I>) -> Result<()> {
        self.open.clear();
        self.places.clear();
        let (entries, near) = (&self.entries[..], self.near);
        let are_open = |a: u64, b: u64| {
            integer(b) - integer(a) <= near
                && (if row.slack > 0.0 { a ^ b } else { a | b }) & 1 == 1
        };
        for sorted in &self.sorted {
            let mut at = sorted.start + 1;
            while at < sorted.end {
                if !are_open(entries[at - 1], entries[at]) {
                    at += 1;
                    continue;
                }
                let (first, last) = (integer(entries[at - 1]), integer(entries[at]));
                let found = self.open.last().map_or(0, |open| open.end).max(sorted.start);
                let (mut start, mut end) = (at - 1, found.max(at + 1));
                while start > found && last - integer(entries[start - 1]) <= near {
                    start -= 1;
                }
                while end < sorted.end && integer(entries[end]) - first <= near {
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
                at += 1;
            }
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

    /// Lists the sorted positives in order.
    pub fn list_positives<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &self,
        row: &Row<'_, K, I>,
    ) -> Result<Vec<Positive>> {
        let entries = self.sorted.iter().flat_map(|sorted| &self.entries[sorted.clone()]);
        collect_counted(
            entries.filter(|entry| *entry & 1 == 1).map(|entry| row.item(place(*entry))),
        )
    }

    /// Counts the sorted negatives in the slots of `rules`. `positives` must be in order; the rule
    /// `index` does not use them. Negatives after the sorted positives may be omitted or counted in
    /// the last slot.
    pub fn counts<K: Copy + Into<f64>, I: Fn(usize) -> u64>(
        &self,
        row: &Row<'_, K, I>,
        rules: TieRules,
        positives: &[Positive],
    ) -> Result<Vec<u64>> {
        let sorted =
            || self.sorted.iter().map(|sorted| (sorted.start, &self.entries[sorted.clone()]));
        let number = sorted().flat_map(|(_, entries)| entries).map(|entry| entry & 1).sum::<u64>();
        let number = number as usize;
        let per_positive = rules.slots_per_positive();
        let mut counts = full(per_positive * number + 1, 0)?;
        let mut before = 0;
        if rules == TieRules::One(Ties::Index) {
            // First store the number of items before each positive: adding to a slot would wait for
            // the last addition.
            for (start, entries) in sorted() {
                for (entry, at) in entries.iter().zip(start as u64..) {
                    counts[before] = at;
                    before += (entry & 1) as usize;
                }
            }
            counts[number] = row.len() as u64;
            for after in (1..=number).rev() {
                counts[after] -= counts[after - 1] + 1;
            }
            return Ok(counts);
        }
        let mut counted = 0;
        for (start, entries) in sorted() {
            counts[per_positive * before] += (start - counted) as u64;
            counted = start + entries.len();
            for tied in entries.chunk_by(|_, next| next & TIED != 0) {
                let own = tied.iter().map(|entry| entry & 1).sum::<u64>() as usize;
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
        }
        counts[per_positive * before] += (row.len() - counted) as u64;
        Ok(counts)
    }
}

/// Sorts entries that are almost in order: most are at most two places away.
fn sort_nearly_sorted(entries: &mut [u64]) {
    // Two passes without branches that the CPU would mispredict leave little to insertion sort. The
    // first moves large entries up, and the second moves small entries down.
    let mut largest = 0;
    for entry in &mut *entries {
        (*entry, largest) = ((*entry).min(largest), (*entry).max(largest));
    }
    let mut smallest = largest;
    for entry in entries.iter_mut().rev() {
        (*entry, smallest) = ((*entry).max(smallest), (*entry).min(smallest));
    }
    for end in 1..entries.len() {
        let entry = entries[end];
        let mut at = end;
        while at > 0 && entries[at - 1] > entry {
            entries[at] = entries[at - 1];
            at -= 1;
        }
        entries[at] = entry;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::select;

    fn kinds(numbers: &[u8]) -> Vec<Kind> {
        numbers
            .iter()
            .map(|number| [Kind::Negative, Kind::Match, Kind::Excluded][usize::from(*number)])
            .collect()
    }

    fn keys() -> impl Strategy<Value = Vec<f64>> {
        let key = prop_oneof![
            (-3i8..3).prop_map(f64::from),
            -1.0f64..1.0,
            Just(1e300),
            Just(-1e300),
            Just(1e-310),
        ];
        proptest::collection::vec(key, 1..200)
    }

    proptest! {
        #[test]
        fn counts_are_those_of_each_negatives_slot(
            keys in keys(),
            numbers in proptest::collection::vec(0u8..3, 200), given in 0usize..6, first in 6u64..9,
            last_rank in prop_oneof![Just(u64::MAX), 1u64..20],
        ) {
            // Some given positives come before the row in the gallery, others after the row.
            let to_positive = |(i, &key): (u64, &f64)| Positive {
                key,
                index: if i % 2 == 0 { i } else { 1000 + i },
            };
            let mut given: Vec<Positive> = (0..).zip(&keys).take(given).map(to_positive).collect();
            given.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            let kinds = kinds(&numbers[..keys.len()]);
            let row = Row {
                keys: &keys[..],
                slack: 0.0,
                kinds: &kinds,
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
            for rules in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected]
                .map(TieRules::One)
                .into_iter()
                .chain([TieRules::All])
            {
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
            exact in keys(), numbers in proptest::collection::vec(0u8..3, 200),
            noise in proptest::collection::vec(-0.49f64..0.49, 200),
            slack in prop_oneof![Just(1e-9), 1e-3..0.03, Just(0.4)],
            last_rank in prop_oneof![Just(u64::MAX), 1u64..20], most in 0usize..100,
        ) {
            let kinds = kinds(&numbers[..exact.len()]);
            let keys: Vec<f64> =
                exact.iter().zip(noise).map(|(key, noise)| key + slack * noise).collect();
            let index = |place| place as u64;
            let row = Row { keys: &keys[..], slack, kinds: &kinds, index, given: &[] };
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
                let counts = ranker.counts(&row, TieRules::One(Ties::Index), &[]).unwrap();
                let mut found = Vec::new();
                for (count, place) in counts[..counts.len() - 1].iter().zip(1u64..) {
                    found.push(found.last().map_or(0, |rank| rank + 1 - place) + count + place);
                }
                for (i, rank) in expected.iter().enumerate() {
                    let found = found.get(i).copied().unwrap_or(u64::MAX);
                    prop_assert!(found == *rank || i > 0 && found.min(*rank) > last_rank);
                }
            }
        }
    }
}
