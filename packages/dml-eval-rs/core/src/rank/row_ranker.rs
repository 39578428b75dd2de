//! Ranks of a query's positives from the keys of a whole row of items.
//!
//! Keys are mapped to integers that never grow as keys do, and integers to buckets. Items of a bucket without a positive are only counted;
//! the others are sorted by their integers, and those of one integer by their keys. Where few items are positives, few are sorted.

use std::ops::Range;

use crate::control::Control;
use crate::counting_sort::sort_by_part;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::{Grow, collect_counted, full};
use crate::random::Random;
use crate::rank::relation::Kind;
use crate::rank::ties::{Positive, TieRules, Ties};

/// The parts of an entry: from the top, whether its key is that of the entry before it, its integer, its place in the row, and whether
/// it is a positive.
const TIED: u64 = 1 << 63;
const PLACE_SHIFT: u32 = 1;
const INTEGER_SHIFT: u32 = 33;
/// The bits of a digit, and the digits of an integer: few items have the same one. Rows of many items have three shorter digits.
const DIGITS: (u32, u32) = (12, 2);
const DIGITS_OF_MANY: (u32, u32) = (10, 3);
/// The most bits of a bucket: the counts of more buckets would leave a core's caches.
const BUCKET_BITS: u32 = 16;
/// Keys from which the range of integers is chosen.
const SAMPLE: usize = 128;

/// The items of one query, in order: their keys, their kinds, and their indices in the whole gallery.
pub(crate) struct Row<'a, I> {
    pub keys: &'a [f64],
    pub kinds: &'a [Kind],
    pub index: I,
    /// Positives that are not of this row, in order.
    pub given: &'a [Positive],
}

impl<I: Fn(usize) -> u64> Row<'_, I> {
    fn positive(&self, entry: u64) -> Positive {
        let place = (entry >> PLACE_SHIFT) as u32 as usize;
        match place.checked_sub(self.keys.len()) {
            None => Positive { key: self.keys[place], index: (self.index)(place) },
            Some(given) => self.given[given],
        }
    }

    /// Returns a number below all keys' but a few, and one above.
    fn range(&self) -> (f64, f64) {
        let of_row = Random::new(3).spread(self.keys.len(), SAMPLE).map(|place| self.keys[place]);
        let all = of_row.chain(self.given.iter().map(|positive| positive.key));
        let (low, high) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), key| (low.min(key), high.max(key)));
        (low - (high - low) / 4.0, high + (high - low) / 4.0)
    }
}

/// Sorts the rows of one query after another.
#[derive(Default)]
pub(crate) struct RowRanker {
    /// Each item's integer, beyond all others for those that do not count.
    integers: Vec<u32>,
    /// The bits of an integer below those of its bucket.
    shift: u32,
    /// For each bucket twice the unlisted items of the buckets before, and 1 if its items are listed.
    buckets: Vec<u64>,
    /// Items that count but are not listed.
    unlisted: u64,
    /// Entries of the items that may matter, by key, descending, and of equal keys the lower index first.
    entries: Vec<u64>,
    spare: Vec<u64>,
    ends: Vec<u32>,
}

impl RowRanker {
    /// Orders the items of a row down to `last_rank`, the last that matters, and to the first positive.
    pub fn sort<I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, I>,
        last_rank: u64,
        kernel: &Kernel,
        control: &Control,
    ) -> Result<()> {
        let items = row.keys.len() + row.given.len();
        let (bits, digits) = if items < control.sizes().three_digits { DIGITS } else { DIGITS_OF_MANY };
        let beyond = 1u32 << (bits * digits);
        self.shift = bits * digits - items.ilog2().saturating_sub(2).min(BUCKET_BITS);
        self.map_to_integers(row, beyond, kernel)?;
        self.fill_buckets(row, beyond, last_rank)?;
        self.entries.try_resize(items, 0)?;
        let found = self.list(0..row.keys.len(), |place| row.kinds[place] == Kind::Match, 0);
        let found = self.list(row.keys.len()..items, |_| true, found);
        self.entries.truncate(found);
        if found < control.sizes().radix_entries {
            control.took(|| "keys sorted by comparison");
            self.entries.sort_unstable();
        } else {
            control
                .took(|| if digits == DIGITS.1 { "keys sorted by two digits" } else { "keys sorted by three digits" });
            for shift in (0..digits).map(|digit| INTEGER_SHIFT + bits * digit) {
                let digit = |entry: &u64| (entry >> shift) as usize & ((1 << bits) - 1);
                sort_by_part(self.entries.iter().copied(), 1 << bits, digit, &mut self.ends, &mut self.spare)?;
                std::mem::swap(&mut self.entries, &mut self.spare);
            }
        }
        self.order_equal(row);
        Ok(())
    }

    /// Maps the keys that count to integers below `beyond`.
    fn map_to_integers<I: Fn(usize) -> u64>(&mut self, row: &Row<'_, I>, beyond: u32, kernel: &Kernel) -> Result<()> {
        let (low, high) = row.range();
        let scale = Some(f64::from(beyond - 1) / (high - low)).filter(|scale| scale.is_finite()).unwrap_or(0.0);
        let integer = move |key: f64| {
            // In the lowest bits of the sum is the rounded number: its unit in the last place is 1.
            (((high - key) * scale).max(0.0).min(f64::from(beyond - 1)) + (1u64 << 52) as f64).to_bits() as u32
        };
        self.integers.try_resize(row.keys.len() + row.given.len(), 0)?;
        let (of_row, of_given) = self.integers.split_at_mut(row.keys.len());
        kernel.vectorize(
            #[inline(always)]
            || {
                for ((out, key), kind) in of_row.iter_mut().zip(row.keys).zip(row.kinds) {
                    let own = integer(*key);
                    *out = if *kind == Kind::LeftOut { beyond } else { own };
                }
            },
        );
        of_given.iter_mut().zip(row.given).for_each(|(out, positive)| *out = integer(positive.key));
        Ok(())
    }

    /// Decides of which buckets the items are listed, and counts those of the others.
    fn fill_buckets<I: Fn(usize) -> u64>(&mut self, row: &Row<'_, I>, beyond: u32, last_rank: u64) -> Result<()> {
        self.buckets.clear();
        self.buckets.try_resize(1 + (beyond >> self.shift) as usize, 0)?;
        let kinds = row.kinds.iter().map(|kind| u64::from(*kind == Kind::Match)).chain(row.given.iter().map(|_| 1));
        for (integer, is_match) in self.integers.iter().zip(kinds) {
            // Twice the items, and whether a positive is among them.
            let bucket = &mut self.buckets[(integer >> self.shift) as usize];
            *bucket = (*bucket + 2) | is_match;
        }
        *self.buckets.last_mut().expect("one more than there are") = 0;
        let first = self.buckets.iter().position(|bucket| bucket & 1 == 1).unwrap_or(0);
        let last = self.buckets.iter().rposition(|bucket| bucket & 1 == 1).unwrap_or(0);
        let mut before = 0;
        self.unlisted = 0;
        for (b, bucket) in self.buckets.iter_mut().enumerate() {
            let (number, has_positive) = (*bucket >> 1, *bucket & 1);
            let matters = u64::from(b <= last && (b <= first || before < last_rank));
            *bucket = (2 * self.unlisted) | (has_positive & matters);
            before += number;
            self.unlisted += number * matters * (1 - has_positive);
        }
        Ok(())
    }

    /// Enters the items whose buckets are listed, after those found before.
    fn list(&mut self, places: Range<usize>, is_match: impl Fn(usize) -> bool, mut found: usize) -> usize {
        let (entries, integers) = (&mut self.entries[..], &self.integers[places.clone()]);
        for (place, &integer) in places.zip(integers) {
            let entry = u64::from(integer) << INTEGER_SHIFT | (place as u64) << PLACE_SHIFT;
            // Without a branch, which the CPU would mispredict.
            entries[found] = entry | u64::from(is_match(place));
            found += (self.buckets[(integer >> self.shift) as usize] & 1) as usize;
        }
        found
    }

    /// Counts the unlisted items before an entry.
    fn unlisted_before(&self, entry: u64) -> u64 {
        self.buckets[((entry & !TIED) >> INTEGER_SHIFT >> self.shift) as usize] >> 1
    }

    /// Orders the entries of one integer by their keys, if a positive is among them, and marks those of equal keys.
    fn order_equal<I: Fn(usize) -> u64>(&mut self, row: &Row<'_, I>) {
        let mut start = 0;
        for end in 1..=self.entries.len() {
            let same = |at: usize| (self.entries[at] ^ self.entries[start]) >> INTEGER_SHIFT == 0;
            if end < self.entries.len() && same(end) {
                continue;
            }
            let equal = &mut self.entries[start..end];
            start = end;
            if equal.len() == 1 || equal.iter().all(|entry| entry & 1 == 0) {
                continue;
            }
            let of = |entry: &u64| row.positive(*entry);
            equal.sort_unstable_by(|a, b| {
                let (a, b) = (of(a), of(b));
                b.key.total_cmp(&a.key).then(a.index.cmp(&b.index))
            });
            for at in 1..equal.len() {
                if of(&equal[at]).key == of(&equal[at - 1]).key {
                    equal[at] |= TIED;
                }
            }
        }
    }

    /// Lists the positives among the sorted items, in order.
    pub fn list_positives<I: Fn(usize) -> u64>(&self, row: &Row<'_, I>) -> Result<Vec<Positive>> {
        collect_counted(self.entries.iter().filter(|entry| *entry & 1 == 1).map(|entry| row.positive(*entry)))
    }

    /// Counts the sorted negatives in the slots of some rules for ties, given the positives in order, unless ties go by index alone.
    pub fn counts<I: Fn(usize) -> u64>(
        &self,
        row: &Row<'_, I>,
        rules: TieRules,
        positives: &[Positive],
    ) -> Result<Vec<u64>> {
        let number = self.entries.iter().map(|entry| entry & 1).sum::<u64>() as usize;
        let per_positive = rules.slots_per_positive();
        let mut counts = full(per_positive * number + 1, 0)?;
        let mut before = 0;
        if rules == TieRules::One(Ties::Index) {
            // First the items before each positive: a count of negatives one by one would wait for itself.
            for (entry, at) in self.entries.iter().zip(0..) {
                counts[before] = at + self.unlisted_before(*entry);
                before += (entry & 1) as usize;
            }
            counts[number] = self.entries.len() as u64 + self.unlisted;
            for after in (1..=number).rev() {
                counts[after] -= counts[after - 1] + 1;
            }
            return Ok(counts);
        }
        let mut unlisted = 0;
        for tied in self.entries.chunk_by(|_, next| next & TIED != 0) {
            let own = tied.iter().map(|entry| entry & 1).sum::<u64>() as usize;
            counts[per_positive * before] += self.unlisted_before(tied[0]) - unlisted;
            unlisted = self.unlisted_before(tied[0]);
            if let [entry] = tied {
                counts[per_positive * before] += 1 - (entry & 1);
            } else {
                for negative in tied.iter().filter(|entry| *entry & 1 == 0) {
                    let Positive { key, index } = row.positive(*negative);
                    counts[rules.slot(before, &positives[before..before + own], key, index)] += 1;
                }
            }
            before += own;
        }
        counts[per_positive * before] += self.unlisted - unlisted;
        Ok(counts)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::select;
    use crate::sizes::Sizes;

    fn kinds(numbers: &[u8]) -> Vec<Kind> {
        numbers.iter().map(|number| [Kind::Negative, Kind::Match, Kind::LeftOut][usize::from(*number)]).collect()
    }

    proptest! {
        #[test]
        fn counts_are_those_of_each_negatives_slot(
            keys in proptest::collection::vec(
                prop_oneof![(-3i8..3).prop_map(f64::from), -1.0f64..1.0, Just(1e300), Just(-1e300), Just(1e-310)], 1..200),
            numbers in proptest::collection::vec(0u8..3, 200), given in 0usize..6, first in 6u64..9,
            last_rank in prop_oneof![Just(u64::MAX), 1u64..20], many: bool, radix: bool,
        ) {
            let control = Control::traced(Sizes { three_digits: if many { 0 } else { usize::MAX }, radix_entries: if radix { 0 } else { usize::MAX }, ..Sizes::default() });
            // Some come before the row in the gallery, the others after it.
            let of_given = |(i, &key): (u64, &f64)| Positive { key, index: if i % 2 == 0 { i } else { 1000 + i } };
            let mut given: Vec<Positive> = (0..).zip(&keys).take(given).map(of_given).collect();
            given.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            let kinds = kinds(&numbers[..keys.len()]);
            let row = Row { keys: &keys, kinds: &kinds, index: |place| first + place as u64, given: &given };
            let of = |kind: Kind| -> Vec<Positive> {
                let own = kinds.iter().zip(&keys).zip(first..).filter(|((own, _), _)| **own == kind);
                own.map(|((_, key), index)| Positive { key: *key, index }).collect()
            };
            let mut positives = [of(Kind::Match), given.clone()].concat();
            positives.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            prop_assume!(!positives.is_empty());
            let mut ranker = RowRanker::default();
            ranker.sort(&row, last_rank, select(None).unwrap(), &control).unwrap();
            let found = ranker.list_positives(&row).unwrap();
            for rules in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected].map(TieRules::One).into_iter().chain([TieRules::All]) {
                let counts = ranker.counts(&row, rules, &found).unwrap();
                let per_positive = rules.slots_per_positive();
                let mut expected = vec![0; per_positive * positives.len() + 1];
                of(Kind::Negative).iter().for_each(|n| expected[rules.slot(0, &positives, n.key, n.index)] += 1);
                prop_assert!(!found.is_empty());
                prop_assert_eq!(&found[..], &positives[..found.len()]);
                let last = per_positive * found.len();
                prop_assert_eq!(&counts[..last], &expected[..last]);
                // All items up to the last rank are kept.
                let before = counts[..last].iter().sum::<u64>() + found.len() as u64;
                let kept = before + counts[last];
                prop_assert!(found.len() == positives.len() || kept >= last_rank);
            }
        }
    }
}
