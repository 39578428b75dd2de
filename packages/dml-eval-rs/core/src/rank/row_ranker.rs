//! Ranks of a query's positives from the keys of a whole row of items.
//!
//! Keys are mapped to integers that never grow as keys do, so a radix sort orders all items but those of one integer, which exact
//! keys then order. Any query costs about the same, whatever the number of its positives and wherever they lie.

use std::ops::Range;

use crate::control::Control;
use crate::kernel::Kernel;
use crate::random::Random;
use crate::rank::positive::Positive;
use crate::rank::relation::Kind;
use crate::rank::ties::{TieRules, Ties};

/// The parts of an entry: from the top, whether its key is that of the entry before it, its integer, its place in the row, and whether
/// it is a positive.
const TIED: u64 = 1 << 63;
const PLACE_SHIFT: u32 = 1;
const INTEGER_SHIFT: u32 = 33;
/// The bits of a digit, and the digits of an integer: few items have the same one. Rows of many items have three shorter digits.
const DIGITS: (u32, u32) = (11, 2);
const DIGITS_OF_MANY: (u32, u32) = (10, 3);
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
    /// Entries of the items that may matter, by key, descending, and of equal keys the lower index first.
    entries: Vec<u64>,
    spare: Vec<u64>,
}

impl RowRanker {
    /// Orders the items of a row down to `last_rank`, the last that matters, and to the first positive.
    pub fn sort<I: Fn(usize) -> u64>(&mut self, row: &Row<'_, I>, last_rank: u64, kernel: &Kernel, control: &Control) {
        let items = row.keys.len() + row.given.len();
        let (bits, digits) = if items < control.sizes().three_digits { DIGITS } else { DIGITS_OF_MANY };
        control.took(|| if digits == DIGITS.1 { "keys sorted by two digits" } else { "keys sorted by three digits" });
        let beyond = 1u32 << (bits * digits);
        let (low, high) = row.range();
        let scale = Some(f64::from(beyond - 1) / (high - low)).filter(|scale| scale.is_finite()).unwrap_or(0.0);
        let integer = move |key: f64| {
            // In the lowest bits of the sum is the rounded number: its unit in the last place is 1.
            (((high - key) * scale).max(0.0).min(f64::from(beyond - 1)) + (1u64 << 52) as f64).to_bits() as u32
        };
        self.integers.clear();
        self.integers.resize(items, 0);
        let (of_row, of_given) = self.integers.split_at_mut(row.keys.len());
        let (first, last) = kernel.vectorize(
            #[inline(always)]
            || {
                let (mut first, mut last) = (beyond, 0);
                for ((out, key), kind) in of_row.iter_mut().zip(row.keys).zip(row.kinds) {
                    let own = integer(*key);
                    *out = if *kind == Kind::LeftOut { beyond } else { own };
                    first = first.min(if *kind == Kind::Match { own } else { beyond });
                    last = last.max(if *kind == Kind::Match { own } else { 0 });
                }
                (first, last)
            },
        );
        of_given.iter_mut().zip(row.given).for_each(|(out, positive)| *out = integer(positive.key));
        let (first, last) = of_given.iter().fold((first, last), |(f, l), own| (f.min(*own), l.max(*own)));
        // The last digit that matters.
        let top = bits * (digits - 1);
        let mut counts = vec![0u32; 1 + (beyond >> top) as usize];
        self.integers.iter().for_each(|integer| counts[(integer >> top) as usize] += 1);
        let mut within = 0;
        let enough = counts.iter().position(|count| {
            within += u64::from(*count);
            within >= last_rank
        });
        let cut = enough.map_or(last >> top, |digit| (digit as u32).max(first >> top).min(last >> top));
        let mut lowest = vec![0u32; 1 << bits];
        self.entries.resize(items, 0);
        let bound = (cut + 1) << top;
        let mut found = self.collect(0..row.keys.len(), |place| row.kinds[place] == Kind::Match, bound, &mut lowest, 0);
        found = self.collect(row.keys.len()..items, |_| true, bound, &mut lowest, found);
        self.entries.truncate(found);
        self.sort_digit(INTEGER_SHIFT, lowest);
        if digits == DIGITS_OF_MANY.1 {
            let mut middle = vec![0u32; 1 << bits];
            let shift = INTEGER_SHIFT + bits;
            self.entries.iter().for_each(|entry| middle[(entry >> shift) as usize & ((1 << bits) - 1)] += 1);
            self.sort_digit(shift, middle);
        }
        counts.truncate(cut as usize + 1);
        self.sort_digit(INTEGER_SHIFT + top, counts);
        self.order_equal(row);
    }

    /// Enters the items whose integers are below a bound, after those found before. Counts them by their last digit.
    fn collect(
        &mut self,
        places: Range<usize>,
        is_match: impl Fn(usize) -> bool,
        bound: u32,
        lowest: &mut [u32],
        mut found: usize,
    ) -> usize {
        let (entries, integers, mask) = (&mut self.entries[..], &self.integers[places.clone()], lowest.len() - 1);
        for (place, &integer) in places.zip(integers) {
            let entry = u64::from(integer) << INTEGER_SHIFT | (place as u64) << PLACE_SHIFT;
            // Without a branch, which the CPU would mispredict.
            entries[found] = entry | u64::from(is_match(place));
            let counts = integer < bound;
            found += usize::from(counts);
            lowest[integer as usize & mask] += u32::from(counts);
        }
        found
    }

    /// Sorts the entries by a digit, given how many have each; entries with the same digit keep their order.
    fn sort_digit(&mut self, shift: u32, counts: Vec<u32>) {
        let mask = counts.len().next_power_of_two() - 1;
        let mut places = counts;
        let mut before = 0;
        for place in &mut places {
            (*place, before) = (before, before + *place);
        }
        self.spare.resize(self.entries.len(), 0);
        for entry in &self.entries {
            let place = &mut places[(entry >> shift) as usize & mask];
            self.spare[*place as usize] = *entry;
            *place += 1;
        }
        std::mem::swap(&mut self.entries, &mut self.spare);
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
    pub fn list_positives<I: Fn(usize) -> u64>(&self, row: &Row<'_, I>) -> Vec<Positive> {
        self.entries.iter().filter(|entry| *entry & 1 == 1).map(|entry| row.positive(*entry)).collect()
    }

    /// Counts the sorted negatives in the slots of some rules for ties, given the positives in order, unless ties go by index alone.
    pub fn counts<I: Fn(usize) -> u64>(&self, row: &Row<'_, I>, rules: TieRules, positives: &[Positive]) -> Vec<u64> {
        let number = self.entries.iter().map(|entry| entry & 1).sum::<u64>() as usize;
        let per_positive = rules.slots_per_positive();
        let mut counts = vec![0; per_positive * number + 1];
        let mut before = 0;
        if rules == TieRules::One(Ties::Index) {
            for entry in &self.entries {
                let positive = entry & 1;
                counts[before] += 1 - positive;
                before += positive as usize;
            }
            return counts;
        }
        for tied in self.entries.chunk_by(|_, next| next & TIED != 0) {
            if let [entry] = tied {
                counts[per_positive * before] += 1 - (entry & 1);
                before += (entry & 1) as usize;
                continue;
            }
            let own = tied.iter().map(|entry| entry & 1).sum::<u64>() as usize;
            for negative in tied.iter().filter(|entry| *entry & 1 == 0) {
                let Positive { key, index } = row.positive(*negative);
                counts[rules.slot(before, &positives[before..before + own], key, index)] += 1;
            }
            before += own;
        }
        counts
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
            last_rank in prop_oneof![Just(u64::MAX), 1u64..20], many: bool,
        ) {
            let control = Control::traced(Sizes { three_digits: if many { 0 } else { usize::MAX }, ..Sizes::default() });
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
            ranker.sort(&row, last_rank, select(None).unwrap(), &control);
            let found = ranker.list_positives(&row);
            for rules in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected].map(TieRules::One).into_iter().chain([TieRules::All]) {
                let counts = ranker.counts(&row, rules, &found);
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
