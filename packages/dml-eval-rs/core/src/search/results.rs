//! The output of a search.

use std::sync::Mutex;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::memory::each;
use crate::search::keys::Keys;
use crate::search::places::{Nearest, Place};

/// The output of a search: k scores and indices for each query, which `score` computes from a query and a key.
pub(crate) struct Results<'a, T, F> {
    pub k: usize,
    pub score: F,
    pub scores: &'a mut [T],
    pub indices: &'a mut [i64],
}

impl<T: Send, F: Fn(usize, f64) -> T + Sync> Results<'_, T, F> {
    /// Stores the nearest items of the queries from `first` on, and empties their lists. `search_again` is called with a query and its
    /// k-th nearest item, if there is one; it may fill the list anew, and then returns true.
    pub(super) fn store(
        &mut self,
        first: usize,
        lists: &mut [Mutex<Nearest>],
        control: &Control,
        search_again: impl Fn(usize, Option<Place>, &mut Nearest, &mut Keys) -> Result<bool> + Sync + Send,
    ) -> Result<()> {
        let (k, score) = (self.k, &self.score);
        let out = self.scores[first * k..].par_chunks_mut(k).zip(self.indices[first * k..].par_chunks_mut(k));
        each(
            lists.par_iter_mut().zip(out).enumerate(),
            || Ok(<(Keys, Vec<Place>)>::default()),
            |(keys, spare), (q, (list, (scores, indices)))| {
                let list = list.get_mut().expect("no thread panics while it holds the lock");
                let last = list.sorted(spare)?.get(k - 1).copied();
                let found = if search_again(first + q, last, list, keys)? { list.sorted(spare)? } else { list.found() };
                indices[found.len()..].fill(-1);
                for ((out_score, index), place) in scores.iter_mut().zip(indices).zip(found) {
                    *out_score = score(first + q, place.key());
                    *index = i64::from(place.item());
                }
                list.clear();
                control.check()
            },
        )
    }
}
