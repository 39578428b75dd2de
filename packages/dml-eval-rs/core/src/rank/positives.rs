//! Finds the keys of the positives per query: pair by pair in small classes, from tables in large
//! classes.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Error, Result};
use crate::memory::{Grow, allocate, collect, each, zeros};
use crate::peers::{Peers, gather, part};
use crate::rank::partial_counts::split;
use crate::rank::relation::Relation;
use crate::rank::ties::Positive;
use crate::rows::keys::Keys;
use crate::rows::space::Space;

/// Finds the positives of queries in a gallery or a part of it.
pub(crate) struct PositiveFinder<'a>(pub &'a Relation<'a>);

/// A query, with the slice to be filled with positives.
type Part<'a> = (u32, &'a mut [Positive]);

impl PositiveFinder<'_> {
    /// The number of positives to process between checks for cancellation.
    const PAIRS: usize = 1 << 14;

    /// Computes the start of the positives per query, then the end for the last query. A query is
    /// skipped if `wanted` is 0.
    fn offsets(
        &self,
        queries: Range<usize>,
        wanted: &dyn Fn(usize) -> usize,
    ) -> Result<Vec<usize>> {
        let mut offsets = allocate(queries.len() + 1)?;
        offsets.try_push(0)?;
        for query in queries {
            let number = if wanted(query) > 0 { self.0.number(query) } else { 0 };
            offsets.try_push(offsets[offsets.len() - 1] + number)?;
        }
        Ok(offsets)
    }

    /// Returns the offsets and the positives of some queries. If `wanted` is 0, a query gets none.
    pub fn find<S: Space>(
        &self,
        space: &S,
        queries: Range<usize>,
        wanted: &dyn Fn(usize) -> usize,
        control: &Control,
    ) -> Result<(Vec<usize>, Vec<Positive>)> {
        let offsets = self.offsets(queries.clone(), wanted)?;
        let mut positives: Vec<Positive> = zeros(offsets[queries.len()])?;
        let mut parts: Vec<Part<'_>> = allocate(queries.len())?;
        let all = queries.zip(split(&mut positives, &offsets)?);
        parts.try_extend(
            all.filter(|(_, part)| !part.is_empty()).map(|(query, part)| (query as u32, part)),
        )?;
        // Sorts in place because a stable sort would allocate.
        let id = |part: &Part<'_>| self.0.candidates_id(part.0 as usize);
        parts.par_sort_unstable_by_key(|part| (id(part), part.0));
        let sizes = control.sizes();
        let same = |a: &Part<'_>, b: &Part<'_>| id(a) == id(b);
        let mut classes = allocate(parts.chunk_by(same).count())?;
        classes.try_extend(parts.chunk_by_mut(same))?;
        each(
            classes.into_par_iter(),
            || Ok(Keys::default()),
            |keys, class| {
                let members = self.0.candidates(class[0].0 as usize);
                if class.len().min(members.len()) < sizes.class_table {
                    control.took(|| "positives by pairs");
                    return class
                        .iter_mut()
                        .try_for_each(|part| self.find_by_pairs(space, part, keys, control));
                }
                let mut tables = class.chunks_mut((sizes.table_keys / members.len().max(1)).max(1));
                control.took(|| "positives from tables");
                tables.try_for_each(|parts| self.find_by_table(space, members, parts, control))
            },
        )?;
        control.check()?;
        Ok((offsets, positives))
    }

    /// Finds the positives of all queries; when peers are used, every peer finds a part.
    pub fn find_with_peers<S: Space>(
        &self,
        space: &S,
        wanted: &dyn Fn(usize) -> usize,
        peers: &dyn Peers,
        control: &Control,
    ) -> Result<(Vec<usize>, Vec<Positive>)> {
        let queries = self.0.queries();
        let own = part(peers, queries, |q| wanted(q) as u64);
        let (offsets, positives) = self.find(space, own, wanted, control)?;
        if peers.is_alone() {
            return Ok((offsets, positives));
        }
        let offsets = self.offsets(0..queries, wanted)?;
        let own = collect(positives.iter().map(|p| p.key))?;
        let keys = gather(peers, &own, offsets[queries])?;
        if keys.iter().any(|key| !key.is_finite()) {
            return Err(Error::Exchange(
                "all_gather returned NaN or infinite keys; expected finite keys".into(),
            ));
        }
        let items = (0..queries).filter(|q| wanted(*q) > 0).flat_map(|q| self.0.matches(q));
        let mut positives = allocate(keys.len())?;
        let positive = |(item, key)| Positive { key, index: self.0.gallery_index(item) };
        positives.try_extend(items.zip(keys).map(positive))?;
        Ok((offsets, positives))
    }

    fn find_by_pairs<S: Space>(
        &self,
        space: &S,
        (query, slots): &mut Part<'_>,
        keys: &mut Keys,
        control: &Control,
    ) -> Result<()> {
        let mut matches = self.0.matches(*query as usize);
        for slots in slots.chunks_mut(Self::PAIRS) {
            control.check()?;
            keys.compute(space, *query as usize, matches.by_ref().take(slots.len()))?;
            for (slot, (item, key)) in slots.iter_mut().zip(keys.with_items()) {
                *slot = Positive { key, index: self.0.gallery_index(item) };
            }
        }
        Ok(())
    }

    fn find_by_table<S: Space>(
        &self,
        space: &S,
        members: &[u32],
        parts: &mut [Part<'_>],
        control: &Control,
    ) -> Result<()> {
        let queries = collect(parts.iter().map(|part| part.0))?;
        let mut keys: Vec<f64> = zeros(queries.len() * members.len())?;
        space.key_table(&queries, members, &mut keys, control)?;
        parts.par_iter_mut().zip(keys.par_chunks(members.len())).for_each(
            |((query, part), keys)| {
                let matches = members
                    .iter()
                    .zip(keys)
                    .filter(|(item, _)| !self.0.excludes(*query as usize, **item));
                for (slot, (item, key)) in part.iter_mut().zip(matches) {
                    *slot = Positive { key: *key, index: self.0.gallery_index(*item) };
                }
            },
        );
        Ok(())
    }
}
