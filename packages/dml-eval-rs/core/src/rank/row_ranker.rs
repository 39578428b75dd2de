//! Ranks the positives of a query by the keys of all items.
//!
//! Keys are mapped to integers, in descending order, and integers to buckets. If a bucket does not
//! contain positives, items are only counted. Other items are sorted by integer, and items with
//! equal integers by key. So when few items are positive, few are sorted.

use std::ops::Range;

use crate::control::Control;
use crate::counting_sort::sort_by_part;
use crate::error::Result;
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
/// The bits per digit, and the digits per integer. Long rows use three shorter digits, so fewer
/// items share an integer.
const DIGITS: (u32, u32) = (12, 2);
const DIGITS_OF_MANY: (u32, u32) = (10, 3);
/// The maximum number of bits in the index of a bucket: the counts of more buckets wouldn't fit
/// into a core's caches.
const BUCKET_BITS: u32 = 16;
/// The number of keys to sample, to estimate the range of keys that integers must cover.
const SAMPLE: usize = 128;

/// The items of a query in order: keys, kinds, and indices in the full gallery.
pub(crate) struct Row<'a, I> {
    pub keys: &'a [f64],
    pub kinds: &'a [Kind],
    pub index: I,
    /// Positives that aren't in this row, in ranking order.
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

    /// Returns a number below almost all keys, and a number above almost all keys.
    fn range(&self) -> (f64, f64) {
        let sampled = Random::new(3).spread(self.keys.len(), SAMPLE).map(|place| self.keys[place]);
        let all = sampled.chain(self.given.iter().map(|positive| positive.key));
        let (low, high) = all.fold((f64::INFINITY, f64::NEG_INFINITY), |(low, high), key| {
            (low.min(key), high.max(key))
        });
        (low - (high - low) / 4.0, high + (high - low) / 4.0)
    }
}

/// Sorts the rows of queries, one after the other, using the same buffers.
#[derive(Default)]
pub(crate) struct RowRanker {
    /// The integers of the items. Excluded items get a larger integer than all others.
    integers: Vec<u32>,
    /// The number of bits by which an integer is shifted right to get the bucket.
    shift: u32,
    /// Per bucket, twice the number of unlisted items in earlier buckets, plus 1 if this bucket's
    /// items are listed.
    buckets: Vec<u64>,
    /// The number of unlisted items that aren't excluded.
    unlisted: u64,
    /// Entries of the items that may matter, sorted by key in descending order, then by index.
    entries: Vec<u64>,
    spare: Vec<u64>,
    ends: Vec<u32>,
}

impl RowRanker {
    /// Sorts the items of `row`, at least down to rank `last_rank` and to the first positive.
    pub fn sort<I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, I>,
        last_rank: u64,
        kernel: &Kernel,
        control: &Control,
    ) -> Result<()> {
        let items = row.keys.len() + row.given.len();
        let (bits, digits) =
            if items < control.sizes().three_digits { DIGITS } else { DIGITS_OF_MANY };
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
            control.took(|| {
                if digits == DIGITS.1 {
                    "keys sorted by two digits"
                } else {
                    "keys sorted by three digits"
                }
            });
            for shift in (0..digits).map(|digit| INTEGER_SHIFT + bits * digit) {
                let digit = |entry: &u64| (entry >> shift) as usize & ((1 << bits) - 1);
                sort_by_part(
                    self.entries.iter().copied(),
                    1 << bits,
                    digit,
                    &mut self.ends,
                    &mut self.spare,
                )?;
                std::mem::swap(&mut self.entries, &mut self.spare);
            }
        }
        self.order_equal(row);
        Ok(())
    }

    /// Maps the keys of items that aren't excluded to integers below `beyond`.
    fn map_to_integers<I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, I>,
        beyond: u32,
        kernel: &Kernel,
    ) -> Result<()> {
        let (low, high) = row.range();
        let scale = Some(f64::from(beyond - 1) / (high - low))
            .filter(|scale| scale.is_finite())
            .unwrap_or(0.0);
        let integer = move |key: f64| {
            // Adding 2⁵² puts the rounded number into the lowest bits of the sum, since the unit in
            // the last place is then 1.
            (((high - key) * scale).max(0.0).min(f64::from(beyond - 1)) + (1u64 << 52) as f64)
                .to_bits() as u32
        };
        self.integers.try_resize(row.keys.len() + row.given.len(), 0)?;
        let (from_row, from_given) = self.integers.split_at_mut(row.keys.len());
        kernel.vectorize(
            #[inline(always)]
            || {
                for ((out, key), kind) in from_row.iter_mut().zip(row.keys).zip(row.kinds) {
                    let own = integer(*key);
                    *out = if *kind == Kind::Excluded { beyond } else { own };
                }
            },
        );
        from_given
            .iter_mut()
            .zip(row.given)
            .for_each(|(out, positive)| *out = integer(positive.key));
        Ok(())
    }

    /// Decides which buckets' items are listed, and counts the items of the other buckets that
    /// matter.
    fn fill_buckets<I: Fn(usize) -> u64>(
        &mut self,
        row: &Row<'_, I>,
        beyond: u32,
        last_rank: u64,
    ) -> Result<()> {
        self.buckets.clear();
        self.buckets.try_resize(1 + (beyond >> self.shift) as usize, 0)?;
        let kinds = row
            .kinds
            .iter()
            .map(|kind| u64::from(*kind == Kind::Match))
            .chain(row.given.iter().map(|_| 1));
        for (integer, is_match) in self.integers.iter().zip(kinds) {
            // Holds twice the number of items, plus 1 if the bucket contains a positive.
            let bucket = &mut self.buckets[(integer >> self.shift) as usize];
            *bucket = (*bucket + 2) | is_match;
        }
        *self.buckets.last_mut().expect("the last bucket is for excluded items") = 0;
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

    /// Enters the items of listed buckets after the first `found` entries, and returns the new
    /// number of entries.
    fn list(
        &mut self,
        places: Range<usize>,
        is_match: impl Fn(usize) -> bool,
        mut found: usize,
    ) -> usize {
        let (entries, integers) = (&mut self.entries[..], &self.integers[places.clone()]);
        for (place, &integer) in places.zip(integers) {
            let entry = u64::from(integer) << INTEGER_SHIFT | (place as u64) << PLACE_SHIFT;
            // Always write the entry and keep it by adding 0 or 1, because the CPU would mispredict
            // a branch.
            entries[found] = entry | u64::from(is_match(place));
            found += (self.buckets[(integer >> self.shift) as usize] & 1) as usize;
        }
        found
    }

    /// Returns the number of unlisted items before an entry.
    fn unlisted_before(&self, entry: u64) -> u64 {
        self.buckets[((entry & !TIED) >> INTEGER_SHIFT >> self.shift) as usize] >> 1
    }

    /// Sorts entries with equal integers by key if they include a positive, and marks an entry if
    /// its key equals the previous key.
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
            let positive = |entry: &u64| row.positive(*entry);
            equal.sort_unstable_by(|a, b| {
                let (a, b) = (positive(a), positive(b));
                b.key.total_cmp(&a.key).then(a.index.cmp(&b.index))
            });
            for at in 1..equal.len() {
                if positive(&equal[at]).key == positive(&equal[at - 1]).key {
                    equal[at] |= TIED;
                }
            }
        }
    }

    /// Lists the sorted positives in order.
    pub fn list_positives<I: Fn(usize) -> u64>(&self, row: &Row<'_, I>) -> Result<Vec<Positive>> {
        collect_counted(
            self.entries.iter().filter(|entry| *entry & 1 == 1).map(|entry| row.positive(*entry)),
        )
    }

    /// Counts the sorted negatives in the slots of `rules`. `positives` must be in order; the rule
    /// `index` does not use them.
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
            // First store the number of items before each positive: adding to a slot would wait for
            // the last addition.
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
        numbers
            .iter()
            .map(|number| [Kind::Negative, Kind::Match, Kind::Excluded][usize::from(*number)])
            .collect()
    }

    proptest! {
        #[test]
        fn counts_are_those_of_each_negatives_slot(
            keys in proptest::collection::vec(
                prop_oneof![
                    (-3i8..3).prop_map(f64::from),
                    -1.0f64..1.0,
                    Just(1e300),
                    Just(-1e300),
                    Just(1e-310),
                ],
                1..200,
            ),
            numbers in proptest::collection::vec(0u8..3, 200), given in 0usize..6, first in 6u64..9,
            last_rank in prop_oneof![Just(u64::MAX), 1u64..20], many: bool, radix: bool,
        ) {
            let control = Control::traced(Sizes {
                three_digits: if many { 0 } else { usize::MAX },
                radix_entries: if radix { 0 } else { usize::MAX },
                ..Sizes::default()
            });
            // Some given positives come before the row in the gallery, others after the row.
            let to_positive = |(i, &key): (u64, &f64)| Positive {
                key,
                index: if i % 2 == 0 { i } else { 1000 + i },
            };
            let mut given: Vec<Positive> = (0..).zip(&keys).take(given).map(to_positive).collect();
            given.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            let kinds = kinds(&numbers[..keys.len()]);
            let row = Row {
                keys: &keys,
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
            ranker.sort(&row, last_rank, select(None).unwrap(), &control).unwrap();
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
    }
}
