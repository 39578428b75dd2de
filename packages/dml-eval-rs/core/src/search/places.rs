//! Keys and items in the order of a search.

use crate::error::Result;
use crate::memory::{Grow, allocate, zeros};

/// A key and an item as one integer, the smaller the nearer: integers compare without a branch that the CPU could mispredict.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place(u128);

impl Place {
    pub fn new(key: f64, item: u32) -> Self {
        let bits = key.to_bits();
        // In the order of the keys, descending: larger magnitudes of negative keys are further away.
        let descending = if key.is_sign_negative() { bits } else { !bits ^ (1 << 63) };
        Place(u128::from(descending) << 32 | u128::from(item))
    }

    pub fn key(self) -> f64 {
        let descending = (self.0 >> 32) as u64;
        f64::from_bits(if descending >> 63 == 1 { descending } else { !descending ^ (1 << 63) })
    }

    pub fn item(self) -> u32 {
        self.0 as u32
    }
}

/// Drops all but the k nearest, and returns the last of these; one beyond any item while there are fewer.
pub(super) fn cut(places: &mut Vec<Place>, k: usize) -> Place {
    if places.len() < k {
        return Place(u128::MAX);
    }
    let (_, &mut worst, _) = places.select_nth_unstable(k - 1);
    places.truncate(k);
    worst
}

/// Places from which on a sort divides them by their keys first.
const MANY: usize = 64;
/// The range that is divided, in multiples of the mean distance from the last key: what is nearer belongs to the first part.
const RANGE: f64 = 4.0;
/// The most places of a part that are sorted by insertion.
const FEW: usize = 16;

/// Sorts places. Many are first divided into as many parts of the range of their keys, most of which have few.
pub(super) fn sort(places: &mut Vec<Place>, spare: &mut Vec<Place>) -> Result<()> {
    let parts = places.len();
    if parts < MANY {
        places.sort_unstable();
        return Ok(());
    }
    let (least, sum) = places.iter().fold((f64::INFINITY, 0.0), |(least, sum), place| {
        let key = place.key();
        (least.min(key), sum + key)
    });
    let range = RANGE * (sum / parts as f64 - least);
    let scale = (parts - 1) as f64 / range;
    if !(scale > 0.0 && scale.is_finite()) {
        places.sort_unstable();
        return Ok(());
    }
    // None of these roundings reverses the order of keys.
    let part = |place: &Place| ((range - (place.key() - least)) * scale) as usize;
    let mut ends: Vec<u32> = zeros(parts + 1)?;
    places.iter().for_each(|place| ends[part(place) + 1] += 1);
    (0..parts).for_each(|i| ends[i + 1] += ends[i]);
    spare.clear();
    spare.try_resize(parts, Place(0))?;
    for place in &*places {
        let end = &mut ends[part(place)];
        spare[*end as usize] = *place;
        *end += 1;
    }
    let mut start = 0;
    for end in &ends[..parts] {
        let of_part = &mut spare[start..*end as usize];
        start = *end as usize;
        if of_part.len() > FEW {
            of_part.sort_unstable();
            continue;
        }
        for last in 1..of_part.len() {
            let mut at = last;
            while at > 0 && of_part[at] < of_part[at - 1] {
                of_part.swap(at, at - 1);
                at -= 1;
            }
        }
    }
    std::mem::swap(places, spare);
    Ok(())
}

/// The k nearest so far of the items of one query.
pub(super) struct Nearest {
    k: usize,
    places: Vec<Place>,
    /// The k-th nearest, or one beyond any item while there are fewer.
    worst: Place,
    worst_key: f64,
}

/// Places beyond one and a half times k that a list has room for: with more, its threshold rises later, and more keys are computed.
const SPARE: usize = 4;

impl Nearest {
    pub fn new(k: usize) -> Result<Self> {
        let places = allocate(k + k / 2 + SPARE)?;
        Ok(Nearest { k, places, worst: Place(u128::MAX), worst_key: f64::NEG_INFINITY })
    }

    /// The bytes of a list, approximately.
    pub fn bytes(k: usize) -> usize {
        size_of::<Place>() * (k + k / 2 + SPARE) + size_of::<Nearest>()
    }

    /// Adds items with their keys, all but the query's own; returns whether the k-th nearest came nearer.
    #[expect(clippy::disallowed_methods, reason = "a list that is full is cut")]
    pub fn add(
        &mut self,
        items: impl Iterator<Item = u32>,
        keys: impl IntoIterator<Item = f64>,
        own: Option<u32>,
    ) -> bool {
        let before = self.worst;
        for (item, key) in items.zip(keys) {
            if key >= self.worst_key && Place::new(key, item) < self.worst && Some(item) != own {
                self.places.push(Place::new(key, item));
                if self.places.len() == self.places.capacity() {
                    self.worst = cut(&mut self.places, self.k);
                    self.worst_key = self.worst.key();
                }
            }
        }
        self.worst != before
    }

    /// Forgets all items.
    pub fn clear(&mut self) {
        self.places.clear();
        (self.worst, self.worst_key) = (Place(u128::MAX), f64::NEG_INFINITY);
    }

    /// Returns the k-th nearest when the list was last full.
    pub fn worst(&self) -> Place {
        self.worst
    }

    /// Returns the k nearest, nearest first.
    pub fn sorted(&mut self, spare: &mut Vec<Place>) -> Result<&[Place]> {
        if self.places.len() > self.k {
            cut(&mut self.places, self.k);
        }
        sort(&mut self.places, spare)?;
        Ok(&self.places)
    }

    /// Returns the items found, which are sorted.
    pub fn found(&self) -> &[Place] {
        &self.places
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
                prop_oneof![(-3i8..3).prop_map(f64::from), -1.0f64..1.0, Just(1e300), Just(-1e300), Just(1e-310)], 1..400),
        ) {
            let mut places: Vec<Place> = keys.into_iter().zip(0..).map(|(key, item)| Place::new(key, item)).collect();
            places.reverse();
            let mut expected = places.clone();
            expected.sort_unstable();
            sort(&mut places, &mut Vec::new()).unwrap();
            prop_assert!(places == expected);
        }
    }
}
