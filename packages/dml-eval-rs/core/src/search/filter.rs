//! Chooses the items that a search may return per query.

use crate::error::{Result, argument};
use crate::rows::keys::Keys;
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::side::Side;

/// The group of a query that isn't a gallery item. Items never have this group: without labels, an item's group is the index.
const NO_GROUP: u32 = u32::MAX;

/// Conditions on gallery items per query. A search returns an item only if the item meets all conditions.
#[derive(Clone, Copy)]
pub struct Filter<'a> {
    /// Excludes the query itself.
    pub own: OwnItem<'a>,
    /// Labels for queries and items. Excludes items with the query's label, and therefore the query itself.
    pub labels: Option<(&'a [u32], &'a [u32])>,
    /// Returns the items to exclude per query, in ascending order.
    pub excluded: Option<&'a (dyn Fn(usize) -> &'a [u32] + Sync)>,
    /// A bound per query. Excludes items with a score that is not below the bound.
    pub below: Option<&'a [f64]>,
}

impl<'a> From<OwnItem<'a>> for Filter<'a> {
    fn from(own: OwnItem<'a>) -> Self {
        Filter { own, labels: None, excluded: None, below: None }
    }
}

impl<'a> Filter<'a> {
    /// Whether the query itself is the only item that is excluded.
    pub(super) fn excludes_only_own(&self) -> bool {
        self.labels.is_none() && self.excluded.is_none() && self.below.is_none()
    }

    pub(super) fn check(&self, queries: usize, gallery: usize) -> Result<()> {
        self.own.check(queries, gallery as u64)?;
        if let Some((of_queries, of_items)) = self.labels
            && (of_queries.len(), of_items.len()) != (queries, gallery)
        {
            let (a, b) = (of_queries.len(), of_items.len());
            return argument(format!("labels have {a} and {b} entries; expected {queries} and {gallery}"));
        }
        if let Some(below) = self.below
            && (below.len() != queries || below.iter().any(|bound| bound.is_nan()))
        {
            return argument(format!("below has {} bounds, or some are NaN; expected {queries} numbers", below.len()));
        }
        Ok(())
    }

    /// Returns the group of a query or an item. Items in the query's group are excluded.
    pub(super) fn group(&self, side: Side, item: usize) -> u32 {
        match (side, self.labels) {
            (Side::Query, Some((queries, _))) => queries[item],
            (Side::Gallery, Some((_, gallery))) => gallery[item],
            (Side::Gallery, None) => item as u32,
            (Side::Query, None) => self.own.of(item).map_or(NO_GROUP, |own| own as u32),
        }
    }

    /// Returns the items to exclude although the group differs from the query's, in ascending order.
    pub(super) fn excluded(&self, query: usize) -> &[u32] {
        self.excluded.map_or(&[], |excluded| excluded(query))
    }

    /// Whether an item is excluded for a query regardless of the score.
    pub(super) fn excludes(&self, query: u32, item: u32) -> bool {
        let query = query as usize;
        self.group(Side::Query, query) == self.group(Side::Gallery, item as usize)
            || self.excluded(query).binary_search(&item).is_ok()
    }

    /// Drops items with a score that isn't below the query's bound.
    pub(super) fn drop_beyond<S: Space>(
        &self,
        space: &S,
        query: usize,
        items: &mut Vec<u32>,
        keys: &mut Keys,
    ) -> Result<()> {
        let Some(bounds) = self.below else { return Ok(()) };
        let mut scores = keys.compute_scores(space, query, items.iter().copied())?.iter();
        items.retain(|_| *scores.next().expect("a score for each item") < bounds[query]);
        Ok(())
    }
}
