//! Keys and items in the order of a search.

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

/// The k nearest so far of the items of one query.
pub(super) struct Nearest {
    k: usize,
    places: Vec<Place>,
    /// The k-th nearest, or one beyond any item while there are fewer.
    worst: Place,
    worst_key: f64,
}

impl Nearest {
    pub fn new(k: usize) -> Self {
        Nearest { k, places: Vec::new(), worst: Place(u128::MAX), worst_key: f64::NEG_INFINITY }
    }

    /// The most bytes of a list, approximately.
    pub fn bytes(k: usize) -> usize {
        size_of::<Place>() * (2 * k + 2)
    }

    /// Adds consecutive items from the first on, all but the query's own.
    pub fn add(&mut self, first: u32, keys: &[f64], own: Option<u32>) {
        for (item, &key) in (first..).zip(keys) {
            if key >= self.worst_key && Place::new(key, item) < self.worst && Some(item) != own {
                self.places.push(Place::new(key, item));
                if self.places.len() > 2 * self.k {
                    self.worst = cut(&mut self.places, self.k);
                    self.worst_key = self.worst.key();
                }
            }
        }
    }

    /// Returns the keys and indices of the k nearest, nearest first.
    pub fn sorted(&mut self) -> impl Iterator<Item = (f64, u32)> {
        cut(&mut self.places, self.k);
        self.places.sort_unstable();
        self.places.iter().map(|place| (place.key(), place.item()))
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
    }
}
