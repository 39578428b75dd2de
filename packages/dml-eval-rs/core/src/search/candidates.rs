//! Keeps the items of a query that may be among the k nearest, with values instead of keys.
//!
//! Such a list needs half the memory of a list with keys, so more searches of one array can keep
//! the lists of all queries and compare each pair once, for both items.

use crate::error::Result;
use crate::memory::{Grow, allocate};
use crate::rows::keys::Keys;
use crate::rows::space::Space;
use crate::screen::rounding::round_down;
use crate::search::places::{Found, Place};

/// The candidates of a query so far.
pub(super) struct Candidates {
    k: usize,
    /// Values, which are products of packed rows, and items.
    items: Vec<(f32, u32)>,
    /// A bound for the errors of all values.
    margin: f64,
    /// The k-th nearest item if keys have decided that the first k items are the nearest so far.
    worst: Option<Place>,
}

/// The k-th nearest candidate.
pub(super) enum Kth {
    /// A lower bound for its value.
    Value(f64),
    Key(f64),
}

/// The capacity for more than k items.
fn spare(k: usize) -> usize {
    k * 3 / 8 + 2
}

impl Candidates {
    pub fn new(k: usize) -> Result<Self> {
        Ok(Candidates { k, items: allocate(k + spare(k))?, margin: 0.0, worst: None })
    }

    /// Returns the approximate size of the candidates in bytes.
    pub fn bytes(k: usize) -> usize {
        size_of::<(f32, u32)>() * (k + spare(k)) + size_of::<Candidates>()
    }

    /// Declares that the errors of the values to be added may have this bound.
    pub fn allow(&mut self, margin: f64) {
        self.margin = self.margin.max(margin);
    }

    /// Adds an item. Returns true if the list is full: then, call [`make_room`](Self::make_room).
    #[expect(clippy::disallowed_methods, reason = "a list that is full is cut")]
    pub fn add(&mut self, value: f32, item: u32) -> bool {
        self.items.push((value, item));
        self.items.len() == self.items.capacity()
    }

    /// Drops items of a full list that are not among the k nearest. If the values of too many items
    /// are nearly equal, keys decide.
    pub fn make_room<S: Space>(&mut self, space: &S, query: usize, keys: &mut Keys) -> Result<Kth> {
        let (k, roomy) = (self.k, self.k + self.k * 3 / 16);
        if self.worst.is_none() {
            let bound = self.cut();
            if self.items.len() <= roomy {
                return Ok(Kth::Value(bound));
            }
        }
        if let Some(worst) = self.worst {
            keys.compute(space, query, self.items[k..].iter().map(|item| item.1))?;
            let mut kept = k;
            for (i, (item, key)) in (k..).zip(keys.with_items()) {
                self.items.swap(kept, i);
                kept += usize::from(Place::new(key, item) < worst);
            }
            self.items.truncate(kept);
            if self.items.len() <= roomy {
                return Ok(Kth::Key(worst.key()));
            }
        }
        keys.compute(space, query, self.items.iter().map(|item| item.1))?;
        let places = keys.with_items().map(|(item, key)| Place::new(key, item));
        let mut sorted = allocate(self.items.len())?;
        sorted.try_extend(places)?;
        let worst = *sorted.select_nth_unstable(k - 1).1;
        // From now on, values don't matter.
        self.items.clear();
        self.items.try_extend(sorted[..k].iter().map(|place| (0.0, place.item())))?;
        self.worst = Some(worst);
        Ok(Kth::Key(worst.key()))
    }

    /// Drops items that certainly aren't among the k nearest, according to the values. Returns a
    /// lower bound for the k-th value.
    fn cut(&mut self) -> f64 {
        let (k, items) = (self.k, &mut self.items);
        if items.len() < k {
            return f64::NEG_INFINITY;
        }
        let (_, &mut (value, _), _) =
            items.select_nth_unstable_by(k - 1, |a, b| b.0.total_cmp(&a.0));
        let bound = f64::from(value) - self.margin;
        let least = round_down(bound - self.margin);
        let mut kept = k;
        for i in k..items.len() {
            items.swap(kept, i);
            kept += usize::from(items[kept].0 >= least);
        }
        items.truncate(kept);
        bound
    }

    /// Copies the k nearest items, of these and `own`, to `found`.
    pub fn finish<S: Space>(
        &mut self,
        space: &S,
        query: usize,
        own: Option<u32>,
        found: &mut Found,
    ) -> Result<()> {
        if self.worst.is_none() {
            self.cut();
        }
        let Found { places, keys, .. } = found;
        keys.compute(space, query, self.items.iter().map(|item| item.1).chain(own))?;
        places.clear();
        places.try_extend(keys.with_items().map(|(item, key)| Place::new(key, item)))?;
        found.sort(self.k)
    }
}
