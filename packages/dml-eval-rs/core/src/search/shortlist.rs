//! A query's candidates for its k nearest items: their values lie between bounds, and keys are computed for as few as possible.

use crate::control::Control;
use crate::error::Result;
use crate::memory::{Grow, allocate};
use crate::rows::space::{Scratch, Space};
use crate::screen::rounding::{round_down, round_up};
use crate::search::places::{Place, cut, sort};

/// The most candidates beyond k, and a quarter of k, before they are pruned. A threshold rises when they are, so few are kept
/// for a small k.
const SPARE: usize = 32;

/// The most items that a list begins with: to look for each candidate among more would cost more than to compute their keys again.
const FEW: usize = 40;

/// A gallery item whose value lies between two bounds.
#[derive(Clone, Copy)]
pub(super) struct Candidate {
    index: u32,
    lower: f32,
    upper: f32,
    /// Its key, or NaN until that is computed.
    key: f64,
}

impl Candidate {
    /// The place of an item whose key is known.
    fn place(&self) -> Place {
        Place::new(self.key, self.index)
    }

    /// An item whose key is known. The rounding of its value is far below that of its float32 bounds.
    fn of_key<S: Space>(space: &S, query: usize, index: u32, key: f64) -> Self {
        let (value, slack) = (space.value(query, key), space.value_slack());
        Candidate { index, lower: round_down(value - slack), upper: round_up(value + slack), key }
    }
}

/// A thread's buffers for keys.
#[derive(Default)]
pub(super) struct Keys {
    pairs: Vec<(u32, u32)>,
    keys: Vec<f64>,
    scratch: Scratch,
    places: Vec<Place>,
    spare: Vec<Place>,
}

impl Keys {
    /// Computes the keys of some items.
    pub fn compute<S: Space>(&mut self, space: &S, query: usize, items: impl Iterator<Item = u32>) -> Result<&[f64]> {
        self.pairs.clear();
        self.pairs.try_extend(items.map(|item| (query as u32, item)))?;
        self.keys.clear();
        self.keys.try_resize(self.pairs.len(), 0.0)?;
        self.keys.clear();
        space.keys(&self.pairs, &mut self.scratch, &mut self.keys)?;
        Ok(&self.keys)
    }

    /// Takes the keys of some items from their screened values, or computes them.
    pub fn take_or_compute<S: Space>(
        &mut self,
        space: &S,
        query: usize,
        items: impl Iterator<Item = u32>,
        screened: impl Iterator<Item = Option<f64>>,
    ) -> Result<&[f64]> {
        let mut screened = screened.peekable();
        if screened.peek().is_none_or(|key| key.is_none()) {
            return self.compute(space, query, items);
        }
        self.keys.clear();
        self.keys.try_extend(screened.map(|key| key.expect("a screen determines all keys or none")))?;
        Ok(&self.keys)
    }

    /// Sorts the k nearest of some items.
    pub fn sort(&mut self, k: usize, items: impl Iterator<Item = Place>) -> Result<&[Place]> {
        self.places.clear();
        self.places.try_extend(items)?;
        cut(&mut self.places, k);
        sort(&mut self.places, &mut self.spare)?;
        Ok(&self.places)
    }
}

/// Every item that may be among a query's k nearest.
pub(super) struct Shortlist {
    query: usize,
    k: usize,
    candidates: Vec<Candidate>,
    /// Items that the list began with.
    first: Vec<u32>,
}

/// Returns the number of candidates beyond the k nearest at which they are pruned to half as many.
fn spare(k: usize) -> usize {
    k / 4 + SPARE.min(4 * k + 4)
}

impl Shortlist {
    pub fn new(query: usize, k: usize) -> Result<Self> {
        Ok(Shortlist { query, k, candidates: allocate(k + spare(k))?, first: Vec::new() })
    }

    /// The bytes of a list for the k nearest, approximately.
    pub fn bytes(k: usize) -> usize {
        size_of::<Candidate>() * (k + spare(k)) + size_of::<Shortlist>()
    }

    /// Begins an empty list with at least k items whose keys are known, if these are few, and returns a lower bound of the k-th nearest
    /// item's value.
    pub fn begin<S: Space>(&mut self, space: &S, items: &[(u32, f64)]) -> Result<f32> {
        let candidate = |(index, key): &(u32, f64)| Candidate::of_key(space, self.query, *index, *key);
        self.candidates.try_extend(items.iter().map(candidate))?;
        let threshold = self.drop_beaten();
        if items.len() <= FEW {
            self.first.try_extend(items.iter().map(|(index, _)| *index))?;
        } else {
            self.candidates.clear();
        }
        Ok(threshold)
    }

    /// Adds an item whose value lies between two bounds, unless the list began with it; returns whether the list is full.
    #[expect(clippy::disallowed_methods, reason = "a list that is full is pruned")]
    pub fn push(&mut self, index: u32, (lower, upper): (f32, f32)) -> bool {
        if !self.first.contains(&index) {
            self.candidates.push(Candidate { index, lower, upper, key: f64::NAN });
        }
        self.candidates.len() == self.candidates.capacity()
    }

    /// Drops candidates that k others certainly beat, and returns a lower bound of the k-th nearest item's value. If the bounds leave too
    /// many, keys sharpen those of the k most promising, then all, and then decide.
    pub fn prune<S: Space>(&mut self, space: &S, keys: &mut Keys, control: &Control) -> Result<f32> {
        let most = self.k + spare(self.k) / 2;
        let mut threshold = self.drop_beaten();
        control.took(|| {
            if self.candidates.len() > most { "candidates pruned by keys" } else { "candidates pruned by bounds" }
        });
        if self.candidates.len() > most {
            self.sharpen_promising(space, keys)?;
            threshold = self.drop_beaten();
        }
        if self.candidates.len() > most {
            control.took(|| "candidates pruned by all keys");
            sharpen(space, self.query, &mut self.candidates, keys)?;
            threshold = self.drop_beaten();
        }
        if self.candidates.len() > most {
            self.candidates.select_nth_unstable_by_key(self.k - 1, Candidate::place);
            self.candidates.truncate(self.k);
            control.took(|| "candidates decided early");
        }
        Ok(threshold)
    }

    /// Decides the k nearest candidates by key, ties by index: nearest first.
    pub fn decide<'k, S: Space>(&mut self, space: &S, keys: &'k mut Keys) -> Result<&'k [Place]> {
        if self.candidates.len() > self.k {
            self.sharpen_promising(space, keys)?;
            self.drop_beaten();
        }
        sharpen(space, self.query, &mut self.candidates, keys)?;
        keys.sort(self.k, self.candidates.iter().map(Candidate::place))
    }

    /// Drops the candidates below the k-th largest lower bound, and returns that.
    fn drop_beaten(&mut self) -> f32 {
        let (_, kth, _) = self.candidates.select_nth_unstable_by(self.k - 1, |a, b| b.lower.total_cmp(&a.lower));
        let threshold = kth.lower;
        self.candidates.retain(|c| c.upper >= threshold);
        threshold
    }

    /// Sharpens the bounds of the k candidates with the largest upper ones.
    fn sharpen_promising<S: Space>(&mut self, space: &S, keys: &mut Keys) -> Result<()> {
        self.candidates.select_nth_unstable_by(self.k - 1, |a, b| b.upper.total_cmp(&a.upper));
        sharpen(space, self.query, &mut self.candidates[..self.k], keys)
    }
}

/// Computes the keys that are not known, and replaces the bounds by theirs.
fn sharpen<S: Space>(space: &S, query: usize, candidates: &mut [Candidate], keys: &mut Keys) -> Result<()> {
    keys.compute(space, query, candidates.iter().filter(|c| c.key.is_nan()).map(|c| c.index))?;
    for (candidate, &key) in candidates.iter_mut().filter(|c| c.key.is_nan()).zip(&keys.keys) {
        *candidate = Candidate::of_key(space, query, candidate.index, key);
    }
    Ok(())
}
