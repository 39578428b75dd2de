//! The items among which a search looks for a query's nearest.

use crate::error::{Result, argument};
use crate::rows::keys::Keys;
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::side::Side;

/// The group of a query that is no gallery item; without labels, an item's group is its index, which is below this.
const NO_GROUP: u32 = u32::MAX;

/// Predicates over the items of a gallery, for each query. An item counts if it meets all of them.
#[derive(Clone, Copy)]
pub struct Filter<'a> {
    /// A query's own item doesn't count.
    pub own: OwnItem<'a>,
    /// Labels of the queries and of the items: an item of the query's label doesn't count. A query's own item has its label.
    pub labels: Option<(&'a [u32], &'a [u32])>,
    /// Returns the items that don't count for a query, ascending.
    pub left_out: Option<&'a (dyn Fn(usize) -> &'a [u32] + Sync)>,
    /// A number for each query: only items with a lower score count.
    pub below: Option<&'a [f64]>,
}

impl<'a> From<OwnItem<'a>> for Filter<'a> {
    fn from(own: OwnItem<'a>) -> Self {
        Filter { own, labels: None, left_out: None, below: None }
    }
}

impl<'a> Filter<'a> {
    /// Whether own items alone don't count.
    pub(super) fn leaves_out_own_alone(&self) -> bool {
        self.labels.is_none() && self.left_out.is_none() && self.below.is_none()
    }

    pub(super) fn check(&self, queries: usize, gallery: usize) -> Result<()> {
        self.own.check(queries, gallery as u64)?;
        if let Some((of_queries, of_items)) = self.labels
            && (of_queries.len(), of_items.len()) != (queries, gallery)
        {
            let (a, b) = (of_queries.len(), of_items.len());
            return argument(format!("there are {a} and {b} labels; expected {queries} and {gallery}"));
        }
        if let Some(below) = self.below
            && (below.len() != queries || below.iter().any(|bound| bound.is_nan()))
        {
            return argument(format!("there are {} bounds, or one is NaN; expected {queries} numbers", below.len()));
        }
        Ok(())
    }

    /// Returns an item's group: items of a query's group don't count for it.
    pub(super) fn group(&self, side: Side, item: usize) -> u32 {
        match (side, self.labels) {
            (Side::Query, Some((queries, _))) => queries[item],
            (Side::Gallery, Some((_, gallery))) => gallery[item],
            (Side::Gallery, None) => item as u32,
            (Side::Query, None) => self.own.of(item).map_or(NO_GROUP, |own| own as u32),
        }
    }

    /// Returns the items that don't count for a query although their group is another, ascending.
    pub(super) fn left_out(&self, query: usize) -> &[u32] {
        self.left_out.map_or(&[], |left_out| left_out(query))
    }

    /// Whether an item doesn't count for a query, whatever its score.
    pub(super) fn leaves_out(&self, query: u32, item: u32) -> bool {
        let query = query as usize;
        self.group(Side::Query, query) == self.group(Side::Gallery, item as usize)
            || self.left_out(query).binary_search(&item).is_ok()
    }

    /// Drops items whose scores aren't below the query's bound.
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
