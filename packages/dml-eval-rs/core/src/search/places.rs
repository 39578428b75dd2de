//! Sorts keys and items from near to far, keeps the nearest, and stores results.

use std::mem::swap;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::control::Control;
use crate::counting_sort::sort_by_part;
use crate::error::Result;
use crate::kernel::{Kernel, Work};
use crate::memory::{Grow, collect, each, zeros};
use crate::rows::keys::Keys;
use crate::search::candidates::Candidates;

/// A key and an item as an integer that is smaller if the item is nearer. To compare integers, the
/// CPU needs no branch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromZeros)]
pub(super) struct Place(u128);

impl Place {
    pub fn new(key: f64, item: u32) -> Self {
        Place(u128::from(descending(key)) << 32 | u128::from(item))
    }

    pub fn key(self) -> f64 {
        from_descending((self.0 >> 32) as u64)
    }

    pub fn item(self) -> u32 {
        self.0 as u32
    }

    /// Makes a place for a pair instead, by score and then by pair.
    pub fn of_pair(score: f64, (i, j): (u32, u32)) -> Self {
        Place(u128::from(descending(score)) << 64 | u128::from(i) << 32 | u128::from(j))
    }

    pub fn score_of_pair(self) -> f64 {
        from_descending((self.0 >> 64) as u64)
    }

    pub fn pair(self) -> [u32; 2] {
        [(self.0 >> 32) as u32, self.0 as u32]
    }
}

/// Converts a number to an integer that is smaller if the number is larger.
pub(super) fn descending(key: f64) -> u64 {
    let bits = key.to_bits();
    // A negative key with a larger magnitude is farther away.
    if key.is_sign_negative() { bits } else { !bits ^ (1 << 63) }
}

/// Converts an integer back to the number.
pub(super) fn from_descending(integer: u64) -> f64 {
    f64::from_bits(if integer >> 63 == 1 { integer } else { !integer ^ (1 << 63) })
}

/// A place after the places of all items.
const BEYOND: Place = Place(u128::MAX);

/// Moves the `k` nearest to the front.
fn select(places: &mut [Place], k: usize) {
    if places.len() > k {
        places.select_nth_unstable(k - 1);
    }
}

/// Fewer places are sorted by counting.
const MANY: usize = 64;
/// The number of places whose predecessors are counted together, in vector registers.
const TOGETHER: usize = 8;

/// Sorts fewer than `MANY` places: counts the places before each place. There are no branches to
/// mispredict.
struct SortFew<'a>(&'a mut [Place]);

impl Work for SortFew<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let (mut keys, mut items) = ([0; MANY], [0; MANY]);
        for ((key, item), Place(place)) in keys.iter_mut().zip(&mut items).zip(&*self.0) {
            (*key, *item) = ((place >> 32) as u64, u64::from(*place as u32));
        }
        let number = self.0.len();
        let together = keys.as_chunks::<TOGETHER>().0.iter().zip(items.as_chunks::<TOGETHER>().0);
        let mut before = [[0; TOGETHER]; MANY / TOGETHER];
        for (before, (of_keys, of_items)) in
            before.iter_mut().zip(together).take(number.div_ceil(TOGETHER))
        {
            // Counts in a local array stay in registers.
            let mut counts = [0; TOGETHER];
            for (key, item) in keys[..number].iter().zip(&items[..number]) {
                for i in 0..TOGETHER {
                    let is_before =
                        (*key < of_keys[i]) | (*key == of_keys[i]) & (*item < of_items[i]);
                    counts[i] += u64::from(is_before);
                }
            }
            *before = counts;
        }
        let mut sorted = [BEYOND; MANY];
        for (place, before) in self.0.iter().zip(before.as_flattened()) {
            sorted[*before as usize % MANY] = *place;
        }
        self.0.copy_from_slice(&sorted[..number]);
    }
}

/// The nearest items of a query, nearest first, in the buffers of a thread.
#[derive(Default)]
pub(super) struct Found {
    pub places: Vec<Place>,
    pub keys: Keys,
    pub candidates: Candidates,
    spare: Vec<Place>,
    ends: Vec<u32>,
}

impl Found {
    /// Sorts the places, and drops all but the `k` nearest.
    pub fn sort(&mut self, k: usize, kernel: &Kernel) -> Result<()> {
        swap(&mut self.places, &mut self.spare);
        sort_nearest(&self.spare, k, (&mut self.places, &mut self.ends), kernel)
    }
}

/// Stores the `k` nearest of `places` in `nearest`, nearest first. Many places are first
/// distributed over parts of the key range, as many parts as places, so most are small.
fn sort_nearest(
    places: &[Place],
    k: usize,
    (nearest, ends): (&mut Vec<Place>, &mut Vec<u32>),
    kernel: &Kernel,
) -> Result<()> {
    /// The width of the range, relative to the mean key minus the least key. All nearer places
    /// belong to the first part.
    const RANGE: f64 = 4.0;
    let parts = places.len();
    let (least, sum) = places
        .iter()
        .map(|place| place.key())
        .fold((f64::INFINITY, 0.0), |(least, sum), key| (key.min(least), sum + key));
    let range = RANGE * (sum / parts as f64 - least);
    let scale = (parts as f64 - 1.0) / range;
    if parts < MANY || !(scale > 0.0 && scale.is_finite()) {
        nearest.clear();
        nearest.try_extend(places.iter().copied())?;
        if parts < MANY {
            kernel.vectorize(SortFew(nearest));
        } else {
            select(nearest, k);
            nearest.truncate(k);
            nearest.sort_unstable();
        }
    } else {
        // Rounding doesn't reverse the order of keys.
        let part = |place: &Place| ((range - (place.key() - least)) * scale) as usize;
        sort_by_part(places.iter().copied(), parts, part, ends, nearest)?;
        let mut start = 0;
        for end in ends.iter().map(|end| *end as usize) {
            if start >= k {
                break;
            }
            nearest[start..end].sort_unstable();
            start = end;
        }
    }
    nearest.truncate(k);
    Ok(())
}

/// The capacity of a list for k items. In a larger list, the threshold would increase later; a
/// smaller list would be cut more often.
fn capacity(k: usize) -> usize {
    k + k * 3 / 8 + 4
}

/// The k nearest items of a query so far.
pub(super) struct Nearest<'a> {
    k: usize,
    /// The first `count` places are in use.
    places: &'a mut [Place],
    count: usize,
    /// The k-th nearest, or `BEYOND` if there are fewer than k.
    worst: Place,
    worst_key: f64,
}

impl<'a> Nearest<'a> {
    /// Allocates the places of `count` lists. A single vector is used, because millions of short
    /// vectors would take seconds to allocate and to free.
    pub fn places(k: usize, count: usize) -> Result<Vec<Place>> {
        zeros(count * capacity(k))
    }

    /// Makes an empty list for k items, in the [`places`](Nearest::places) of one list.
    pub fn new(k: usize, places: &'a mut [Place]) -> Self {
        Nearest { k, places, count: 0, worst: BEYOND, worst_key: f64::NEG_INFINITY }
    }

    /// Makes empty lists for k items each, in the [`places`](Nearest::places) of all.
    pub fn lists(k: usize, places: &'a mut [Place]) -> Result<Vec<Mutex<Self>>> {
        let lists = places.chunks_exact_mut(capacity(k));
        collect(lists.map(|places| Mutex::new(Nearest::new(k, places))))
    }

    /// Returns the approximate size of a list in bytes.
    pub fn bytes(k: usize) -> usize {
        size_of::<Place>() * capacity(k) + size_of::<Nearest<'_>>()
    }

    /// Adds items with keys, except the query itself. Returns whether the k-th nearest is nearer
    /// than before.
    pub fn add(&mut self, items: impl IntoIterator<Item = (u32, f64)>, own: Option<u32>) -> bool {
        let before = self.worst;
        for (item, key) in items {
            if key >= self.worst_key && Some(item) != own {
                self.insert(Place::new(key, item));
            }
        }
        self.worst != before
    }

    /// Adds a place.
    #[inline(always)]
    pub fn insert(&mut self, place: Place) {
        if place < self.worst {
            self.places[self.count] = place;
            self.count += 1;
            if self.count == self.places.len() {
                select(self.places, self.k);
                self.count = self.k;
                self.worst = self.places[self.k - 1];
                self.worst_key = self.worst.key();
            }
        }
    }

    /// Removes all items.
    pub fn clear(&mut self) {
        (self.count, self.worst, self.worst_key) = (0, BEYOND, f64::NEG_INFINITY);
    }

    /// Returns the k-th nearest, as of the last time that the list was full.
    pub fn worst(&self) -> Option<Place> {
        (self.worst != BEYOND).then_some(self.worst)
    }

    /// Returns the k nearest places in order.
    pub fn into_sorted(self) -> &'a [Place] {
        let places = &mut self.places[..self.count];
        select(places, self.k);
        let nearest = self.count.min(self.k);
        places[..nearest].sort_unstable();
        &places[..nearest]
    }

    /// Moves the items to `found`, in no order.
    pub fn move_to(&mut self, found: &mut Found) -> Result<()> {
        found.places.clear();
        found.places.try_extend(self.places[..self.count].iter().copied())?;
        self.clear();
        Ok(())
    }

    /// Moves the nearest items to `found`, nearest first.
    pub fn finish(&mut self, found: &mut Found, kernel: &Kernel) -> Result<()> {
        let places = &self.places[..self.count];
        sort_nearest(places, self.k, (&mut found.places, &mut found.ends), kernel)?;
        self.clear();
        Ok(())
    }
}

/// Locks a list.
pub(super) fn lock<'l, 'm>(list: &'l Mutex<Nearest<'m>>) -> MutexGuard<'l, Nearest<'m>> {
    list.lock().expect("no thread panics while it holds the lock")
}

/// The output of a search: k scores and indices per query. `score` is used to compute a score from
/// a query and a key.
pub(crate) struct Results<'a, T, F> {
    pub k: usize,
    pub score: F,
    pub scores: &'a mut [T],
    pub indices: &'a mut [i64],
}

impl<T: Send, F: Fn(usize, f64) -> T + Sync> Results<'_, T, F> {
    /// Stores the nearest items for `queries`. `find` finds a query's items.
    pub(super) fn store(
        &mut self,
        queries: Range<usize>,
        control: &Control,
        find: impl Fn(usize, &mut Found) -> Result<()> + Sync + Send,
    ) -> Result<()> {
        let (k, score) = (self.k, &self.score);
        let entries = queries.start * k..queries.end * k;
        let scores = self.scores[entries.clone()].par_chunks_mut(k);
        each(
            queries.into_par_iter().zip(scores).zip(self.indices[entries].par_chunks_mut(k)),
            || Ok(Found::default()),
            |found, ((query, scores), indices)| {
                find(query, found)?;
                indices[found.places.len()..].fill(-1);
                for ((out, index), place) in scores.iter_mut().zip(indices).zip(&found.places) {
                    *out = score(query, place.key());
                    *index = i64::from(place.item());
                }
                control.check()
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{names, select};

    proptest! {
        #[test]
        fn places_are_in_the_order_of_keys_and_items(
            a in any::<f64>(), b in any::<f64>(), items in (any::<u32>(), any::<u32>()),
        ) {
            for (a, b) in [(a, b), (a, a), (-a, a), (0.0, b)] {
                let (x, y) = (Place::new(a, items.0), Place::new(b, items.1));
                prop_assert_eq!(x.cmp(&y), b.total_cmp(&a).then(items.0.cmp(&items.1)));
                prop_assert_eq!((x.key().to_bits(), x.item()), (a.to_bits(), items.0));
            }
        }

        #[test]
        fn places_are_sorted_whatever_their_keys(
            keys in proptest::collection::vec(
                prop_oneof![
                    (-3i8..3).prop_map(f64::from),
                    -1.0f64..1.0,
                    Just(1e300),
                    Just(-1e300),
                    Just(1e-310),
                ],
                1..400,
            ),
            k in 1usize..400,
        ) {
            let mut places: Vec<Place> =
                keys.into_iter().zip(0..).map(|(key, item)| Place::new(key, item)).collect();
            places.reverse();
            let mut expected = places.clone();
            expected.sort_unstable();
            expected.truncate(k);
            for kernel in names().into_iter().map(|name| select(Some(name)).unwrap()) {
                let mut found = Found { places: places.clone(), ..Found::default() };
                found.sort(k, kernel).unwrap();
                prop_assert!(found.places == expected, "{}", kernel.name);
            }
        }
    }
}
