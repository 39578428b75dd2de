//! The keys of every query's positives: pair by pair in small classes, table by table in large ones.

use std::ops::Range;

use rayon::prelude::*;

use crate::books::Positive;
use crate::control::Control;
use crate::error::Result;
use crate::memory::{collected, room, zeros};
use crate::peers::{Peers, part};
use crate::space::{Scratch, Space};

/// Gallery indices by label.
pub(crate) struct Classes {
    offsets: Vec<usize>,
    members: Vec<u32>,
}

impl Classes {
    pub fn new(labels: &[u32]) -> Result<Self> {
        let classes = labels.iter().max().map_or(0, |l| *l as usize + 1);
        let mut offsets: Vec<usize> = zeros(classes + 1)?;
        for &l in labels {
            offsets[l as usize + 1] += 1;
        }
        for c in 0..classes {
            offsets[c + 1] += offsets[c];
        }
        let mut next = collected(offsets.iter().copied())?;
        let mut members: Vec<u32> = zeros(labels.len())?;
        for (i, &l) in labels.iter().enumerate() {
            members[next[l as usize]] = i as u32;
            next[l as usize] += 1;
        }
        Ok(Classes { offsets, members })
    }

    pub fn members(&self, label: u32) -> &[u32] {
        match self.offsets.get(label as usize..label as usize + 2) {
            Some(&[from, to]) => &self.members[from..to],
            _ => &[],
        }
    }
}

/// Where positives are looked for.
pub(crate) struct Find<'a> {
    pub labels: &'a [u32],
    pub classes: &'a Classes,
    /// The index, in the whole gallery, of the first item of this one.
    pub first_item: u64,
    /// The index, in the whole gallery, of every query that is left out.
    pub itself: Option<&'a [i64]>,
}

/// A query, and where its positives go.
type Part<'a> = (u32, &'a mut [Positive]);

impl Find<'_> {
    /// From how many queries and gallery items of a class on their keys come from a table.
    const TABLE: usize = 16;
    /// Keys of a table that are held at a time.
    const TABLE_KEYS: usize = 4 << 20;

    /// Gallery items of the query's class, without the query itself.
    fn others(&self, query: u32) -> impl Iterator<Item = u32> {
        let own = self.itself.map(|i| i[query as usize]);
        let is_own = move |m: u32| own == i64::try_from(self.first_item + u64::from(m)).ok();
        self.classes.members(self.labels[query as usize]).iter().copied().filter(move |m| !is_own(*m))
    }

    /// Where the positives of some queries begin, and where the last ones end; those of which `wanted` is 0 have none.
    fn offsets(&self, queries: Range<usize>, wanted: &dyn Fn(usize) -> usize) -> Result<Vec<usize>> {
        let mut offsets = room(queries.len() + 1)?;
        offsets.push(0);
        for query in queries {
            let number = if wanted(query) > 0 { self.others(query as u32).count() } else { 0 };
            offsets.push(offsets[offsets.len() - 1] + number);
        }
        Ok(offsets)
    }

    /// The positives of some queries, and where each query's begin; none for those of which `wanted` is 0.
    pub fn positives<S: Space>(
        &self,
        space: &S,
        queries: Range<usize>,
        wanted: &dyn Fn(usize) -> usize,
        control: &Control,
    ) -> Result<(Vec<usize>, Vec<Positive>)> {
        let offsets = self.offsets(queries.clone(), wanted)?;
        let mut positives: Vec<Positive> = zeros(offsets[queries.len()])?;
        let mut parts: Vec<Part<'_>> = room(queries.len())?;
        let mut rest = positives.as_mut_slice();
        for (i, query) in queries.enumerate() {
            let (part, after) = rest.split_at_mut(offsets[i + 1] - offsets[i]);
            rest = after;
            if !part.is_empty() {
                parts.push((query as u32, part));
            }
        }
        // In place, where a stable sort would need room.
        parts.sort_unstable_by_key(|(query, _)| (self.labels[*query as usize], *query));
        let label = |part: &Part<'_>| self.labels[part.0 as usize];
        let classes: Vec<&mut [Part<'_>]> = parts.chunk_by_mut(|a, b| label(a) == label(b)).collect();
        classes.into_par_iter().try_for_each_init(Buffers::default, |buffers, class| {
            let members = self.classes.members(label(&class[0]));
            if class.len().min(members.len()) < Self::TABLE {
                class.iter_mut().for_each(|part| self.by_pairs(space, part, buffers, control));
                return Ok(());
            }
            let mut tables = class.chunks_mut((Self::TABLE_KEYS / members.len()).max(1));
            tables.try_for_each(|parts| self.by_table(space, members, parts, control))
        })?;
        control.check()?;
        Ok((offsets, positives))
    }

    /// The same of all queries, of which each of the peers finds a part.
    pub fn together<S: Space>(
        &self,
        space: &S,
        wanted: &dyn Fn(usize) -> usize,
        peers: &dyn Peers,
        control: &Control,
    ) -> Result<(Vec<usize>, Vec<Positive>)> {
        let own = part(peers, self.labels.len(), |q| wanted(q) as u64);
        let (offsets, positives) = self.positives(space, own, wanted, control)?;
        if peers.is_alone() {
            return Ok((offsets, positives));
        }
        let mut numbers = room(2 * positives.len())?;
        numbers.extend(positives.iter().flat_map(|p| [p.key, p.index as f64]));
        let all = peers.gather(&numbers)?;
        let positives = collected(all.chunks_exact(2).map(|p| Positive { key: p[0], index: p[1] as u64 }))?;
        Ok((self.offsets(0..self.labels.len(), wanted)?, positives))
    }

    fn by_pairs<S: Space>(&self, space: &S, part: &mut Part<'_>, buffers: &mut Buffers, control: &Control) {
        if control.is_cancelled() {
            return;
        }
        let Buffers { pairs, keys, scratch } = buffers;
        pairs.clear();
        pairs.extend(self.others(part.0).map(|m| (part.0, m)));
        keys.clear();
        space.keys(pairs, scratch, keys);
        for ((slot, key), pair) in part.1.iter_mut().zip(keys.iter()).zip(pairs.iter()) {
            *slot = Positive { key: *key, index: self.first_item + u64::from(pair.1) };
        }
    }

    fn by_table<S: Space>(&self, space: &S, members: &[u32], parts: &mut [Part<'_>], control: &Control) -> Result<()> {
        let queries = collected(parts.iter().map(|part| part.0))?;
        let mut keys: Vec<f64> = zeros(queries.len() * members.len())?;
        space.key_table(&queries, members, &mut keys, control)?;
        parts.par_iter_mut().zip(keys.par_chunks(members.len())).for_each(|((query, part), keys)| {
            let own = self.itself.map(|i| i[*query as usize]);
            let all = members.iter().zip(keys).map(|(m, key)| (self.first_item + u64::from(*m), *key));
            let others = all.filter(|(index, _)| own != i64::try_from(*index).ok());
            for (slot, (index, key)) in part.iter_mut().zip(others) {
                *slot = Positive { key, index };
            }
        });
        Ok(())
    }
}

/// Buffers of one thread.
#[derive(Default)]
struct Buffers {
    scratch: Scratch,
    pairs: Vec<(u32, u32)>,
    keys: Vec<f64>,
}
