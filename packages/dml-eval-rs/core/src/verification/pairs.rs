//! Scores of positive pairs, and of given pairs.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::{Grow, allocate, collect, each, zeros};
use crate::rows::classes::Classes;
use crate::rows::codes::Codes;
use crate::rows::dense::Dense;
use crate::rows::space::{Scratch, Space};
use crate::side::Side;

/// Pairs that a thread processes per batch.
const CHUNK: usize = 1024;

/// Labels of both sides as dense codes, and groups that exclude pairs.
#[derive(Clone, Copy, Debug)]
pub struct PairLabels<'a> {
    /// The labels of the queries.
    pub queries: &'a [u32],
    /// The labels of the gallery, or `None` if the queries are also the gallery.
    pub gallery: Option<&'a [u32]>,
    /// The groups of both sides. Pairs with equal labels and equal groups are excluded.
    pub groups: Option<(&'a [u32], &'a [u32])>,
}

impl PairLabels<'_> {
    /// Checks that the rows have labels, and groups if groups are given.
    pub(crate) fn check(&self, space: &impl Space, is_own_gallery: bool) -> Result<()> {
        let rows = [Side::Query, Side::Gallery].map(|side| space.rows(side));
        let gallery = self.gallery.unwrap_or(self.queries);
        let groups = self.groups.unwrap_or((self.queries, gallery));
        if [self.queries.len(), gallery.len()] != rows || [groups.0.len(), groups.1.len()] != rows {
            return argument(format!(
                "labels or groups don't match {} queries and {} gallery rows",
                rows[0], rows[1]
            ));
        }
        if self.gallery.is_none() != is_own_gallery {
            return argument(
                "gallery labels must be given if and only if there is a separate gallery",
            );
        }
        Ok(())
    }

    /// Returns the labels of the gallery, which may be the queries.
    pub(crate) fn gallery(&self) -> &[u32] {
        self.gallery.unwrap_or(self.queries)
    }

    fn count_pairs(&self, queries: usize, items: usize) -> u64 {
        let (queries, items) = (queries as u64, items as u64);
        if self.gallery.is_none() {
            queries * queries.saturating_sub(1) / 2
        } else {
            queries * items
        }
    }

    /// Counts the pairs with equal labels, in any groups.
    pub(crate) fn count_same(&self) -> Result<u64> {
        let (queries, gallery) = (Classes::new(self.queries)?, Classes::new(self.gallery())?);
        let classes = self.queries.iter().max().map_or(0, |l| l + 1);
        Ok((0..classes)
            .map(|c| self.count_pairs(queries.members(c).len(), gallery.members(c).len()))
            .sum())
    }

    /// Counts the pairs with different labels.
    pub(crate) fn count_negatives(&self) -> Result<u64> {
        Ok(self.count_pairs(self.queries.len(), self.gallery().len()) - self.count_same()?)
    }

    fn is_excluded(&self, query: u32, item: u32) -> bool {
        self.groups
            .is_some_and(|(queries, gallery)| queries[query as usize] == gallery[item as usize])
    }

    /// Whether to count this pair: for a single array, unordered pairs of distinct items count
    /// once.
    pub(crate) fn counts(&self, query: u32, item: u32) -> bool {
        self.gallery.is_some() || query < item
    }

    /// Returns the pair's kind: 0 for negative, 1 for positive, 2 for excluded.
    #[inline]
    pub(crate) fn kind(&self, query: u32, item: u32) -> usize {
        let is_same = self.queries[query as usize] == self.gallery()[item as usize];
        usize::from(is_same) * (1 + usize::from(self.is_excluded(query, item)))
    }

    /// Calls `receive` with the scores of all positive pairs, in parts. For a single array,
    /// unordered pairs are included once.
    pub(crate) fn for_positives(
        &self,
        space: &Dense<'_>,
        control: &Control,
        mut receive: impl FnMut(&[f64]) -> Result<()>,
    ) -> Result<()> {
        // Smaller classes than `least` don't use a table. About `held` scores are in memory, in
        // addition to those that are kept.
        let (least, held) = (control.sizes().class_table, control.sizes().table_keys);
        let (queries, gallery) = (Classes::new(self.queries)?, Classes::new(self.gallery())?);
        let classes = self.queries.iter().max().map_or(0, |l| l + 1);
        let counts =
            |query: u32, item: u32| self.counts(query, item) && !self.is_excluded(query, item);
        // Pairs are listed query by query. When the list is long enough, the scores are computed.
        let widest =
            (0..classes).map(|c| gallery.members(c).len()).filter(|members| *members > 0).max();
        let small =
            |c: &u32| queries.members(*c).len() < least || gallery.members(*c).len() < least;
        let sizes =
            (0..classes).filter(small).map(|c| queries.members(c).len() * gallery.members(c).len());
        let mut pairs: Vec<(u32, u32)> =
            allocate(sizes.sum::<usize>().min(held / 4 + widest.unwrap_or(0)))?;
        let mut flush =
            |pairs: &mut Vec<(u32, u32)>, least: usize, control: &Control| -> Result<()> {
                if pairs.len() >= least.max(1) {
                    receive(&pair_scores(space, pairs, control)?)?;
                    pairs.clear();
                }
                control.check()
            };
        for class in 0..classes {
            let (members, items) = (queries.members(class), gallery.members(class));
            if members.len() < least || items.len() < least {
                for &query in members {
                    pairs.try_extend(
                        items.iter().map(|&item| (query, item)).filter(|&(q, g)| counts(q, g)),
                    )?;
                    flush(&mut pairs, held / 4, control)?;
                }
            }
        }
        flush(&mut pairs, 1, control)?;
        drop(pairs);
        for class in 0..classes {
            let (members, items) = (queries.members(class), gallery.members(class));
            if members.len() < least || items.len() < least {
                continue;
            }
            let mut start = 0;
            while start < members.len() {
                // For a single array, earlier items have already been paired with these members.
                let items = if self.gallery.is_none() { &items[start..] } else { items };
                let part = &members[start..members.len().min(start + (held / items.len()).max(1))];
                start += part.len();
                let mut table: Vec<f64> = zeros(part.len() * items.len())?;
                space.score_table(part, items, &mut table, control)?;
                control.check()?;
                let mut kept = 0;
                for (r, &query) in part.iter().enumerate() {
                    for (c, &item) in items.iter().enumerate() {
                        table[kept] = table[r * items.len() + c];
                        kept += usize::from(counts(query, item));
                    }
                }
                receive(&table[..kept])?;
            }
        }
        Ok(())
    }

    /// Returns the scores of all positive pairs in ascending order.
    pub(crate) fn sorted_positives(
        &self,
        space: &Dense<'_>,
        number: usize,
        control: &Control,
    ) -> Result<Vec<f64>> {
        let mut positives: Vec<f64> = allocate(number)?;
        self.for_positives(space, control, |scores| positives.try_extend(scores.iter().copied()))?;
        positives.par_sort_unstable_by(f64::total_cmp);
        Ok(positives)
    }
}

/// Computes the scores of `pairs` (query, gallery item).
pub fn pair_scores(space: &Dense<'_>, pairs: &[(u32, u32)], control: &Control) -> Result<Vec<f64>> {
    compute_pairs(
        space,
        pairs,
        |pairs, scratch, scores| space.scores(pairs, scratch, scores),
        control,
    )
}

/// Computes the scores of `pairs` (query, gallery item) in a space of codes. A score is minus the
/// distance.
pub fn code_pair_scores(
    space: &Codes<'_>,
    pairs: &[(u32, u32)],
    control: &Control,
) -> Result<Vec<f64>> {
    compute_pairs(
        space,
        pairs,
        |pairs, scratch, scores| space.keys(pairs, scratch, scores),
        control,
    )
}

fn compute_pairs<S: Space>(
    space: &S,
    pairs: &[(u32, u32)],
    compute: impl Fn(&[(u32, u32)], &mut Scratch, &mut Vec<f64>) -> Result<()> + Sync,
    control: &Control,
) -> Result<Vec<f64>> {
    let rows = [Side::Query, Side::Gallery].map(|side| space.rows(side));
    if let Some(pair) =
        pairs.iter().find(|pair| pair.0 as usize >= rows[0] || pair.1 as usize >= rows[1])
    {
        return argument(format!(
            "pair {pair:?} is out of range; expected indices below {} and {}",
            rows[0], rows[1]
        ));
    }
    let mut scores: Vec<f64> = zeros(pairs.len())?;
    each(
        scores.par_chunks_mut(CHUNK).zip(pairs.par_chunks(CHUNK)),
        || Ok((Scratch::default(), Vec::new())),
        |(scratch, found), (out, pairs)| {
            control.check()?;
            found.clear();
            compute(pairs, scratch, found)?;
            out.copy_from_slice(found);
            Ok(())
        },
    )?;
    Ok(scores)
}

/// Lists the indices of a range of rows.
pub(crate) fn indices(rows: std::ops::Range<usize>) -> Result<Vec<u32>> {
    collect(rows.start as u32..rows.end as u32)
}
