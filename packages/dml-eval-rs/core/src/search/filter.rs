//! Chooses the items that a search may return per query.

use crate::control::Control;
use crate::error::{Result, argument};
use crate::memory::{Grow, allocate};
use crate::rows::keys::Keys;
use crate::rows::lists::Lists;
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::screen::tiling::blocks;
use crate::side::Side;

/// The group of a query that isn't a gallery item. Items never have this group: without labels,
/// groups are items' indices.
const NO_GROUP: u32 = u32::MAX;

/// Conditions on gallery items per query. A search returns an item only if the item meets all
/// conditions.
#[derive(Clone, Copy)]
pub struct Filter<'a> {
    /// The items that are the queries themselves, which are excluded.
    pub own: OwnItem<'a>,
    /// Labels for queries and items. Excludes items with the query's label, and therefore the query
    /// itself.
    pub labels: Option<(&'a [u32], &'a [u32])>,
    /// Returns the items to exclude per query, in ascending order.
    pub excluded: Option<&'a (dyn Fn(usize) -> &'a [u32] + Sync)>,
    /// A bound per query. Excludes items with a score that is not below the bound.
    pub below: Option<&'a [f64]>,
    /// The items to choose from; `None` for all items.
    pub allowed: Option<Lists<'a>>,
}

impl<'a> From<OwnItem<'a>> for Filter<'a> {
    fn from(own: OwnItem<'a>) -> Self {
        Filter { own, labels: None, excluded: None, below: None, allowed: None }
    }
}

impl<'a> Filter<'a> {
    /// Whether the query itself is the only item that is excluded.
    pub(super) fn excludes_only_own(&self) -> bool {
        self.labels.is_none()
            && self.excluded.is_none()
            && self.below.is_none()
            && self.allowed.is_none()
    }

    /// Whether queries find each other or don't, if the queries are also the gallery. Bounds may
    /// differ, but none may be compared with the query itself, which a triangle lacks.
    pub(super) fn is_symmetric(&self) -> bool {
        let has_same_labels = self.labels.is_none_or(|(queries, items)| queries == items);
        let lists = self.excluded.is_some() || self.allowed.is_some();
        let bounds_own = self.below.is_some() && self.finds_own();
        has_same_labels && !lists && !bounds_own && !matches!(self.own, OwnItem::Listed(_))
    }

    /// Whether queries that are also the gallery find themselves.
    pub(super) fn finds_own(&self) -> bool {
        self.labels.is_none() && matches!(self.own, OwnItem::Absent)
    }

    pub(super) fn check(&self, queries: usize, gallery: usize) -> Result<()> {
        self.own.check(queries, gallery as u64)?;
        if let Some(allowed) = self.allowed {
            allowed.check("allowed", queries, gallery)?;
        }
        if let Some((of_queries, of_items)) = self.labels
            && (of_queries.len(), of_items.len()) != (queries, gallery)
        {
            let (a, b) = (of_queries.len(), of_items.len());
            return argument(format!(
                "labels have {a} and {b} entries; expected {queries} and {gallery}"
            ));
        }
        if let Some(below) = self.below
            && (below.len() != queries || below.iter().any(|bound| bound.is_nan()))
        {
            return argument(format!(
                "below has {} bounds, or some are NaN; expected {queries} numbers",
                below.len()
            ));
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

    /// Returns the items to exclude although the group differs from the query's, in ascending
    /// order.
    pub(super) fn excluded(&self, query: usize) -> &[u32] {
        self.excluded.map_or(&[], |excluded| excluded(query))
    }

    /// Whether a query's list of allowed items, if there is one, contains the item.
    pub(super) fn allows(&self, query: usize, item: u32) -> bool {
        self.allowed.is_none_or(|allowed| allowed.holds(query, item))
    }

    /// Returns the number of allowed pairs if computing all of their keys is faster than a screen.
    pub(super) fn few_allowed(&self, gallery: usize, control: &Control) -> Option<u64> {
        let allowed = self.allowed?;
        let pairs = (0..allowed.len()).map(|query| allowed.of(query).len() as u64).sum::<u64>();
        let all = allowed.len() as u64 * gallery as u64;
        let is_few = pairs.saturating_mul(control.sizes().items_per_allowed as u64) <= all;
        is_few.then(|| {
            control.took(|| "allowed items one by one");
            pairs
        })
    }

    /// Calls `visit` with items that are allowed but not excluded, some at a time.
    pub(super) fn visit(
        &self,
        query: usize,
        gallery: usize,
        mut visit: impl FnMut(&mut Vec<u32>) -> Result<()>,
    ) -> Result<()> {
        const TOGETHER: usize = 512;
        let mut items = allocate(TOGETHER)?;
        let listed = self.allowed.map(|allowed| allowed.of(query));
        for places in blocks(0..listed.map_or(gallery, <[u32]>::len), TOGETHER) {
            let item = |place: usize| listed.map_or(place as u32, |listed| listed[place]);
            items.clear();
            items
                .try_extend(places.map(item).filter(|item| !self.excludes_allowed(query, *item)))?;
            visit(&mut items)?;
        }
        Ok(())
    }

    /// Whether an item is excluded for a query regardless of the score.
    pub(super) fn excludes(&self, query: u32, item: u32) -> bool {
        !self.allows(query as usize, item) || self.excludes_allowed(query as usize, item)
    }

    fn excludes_allowed(&self, query: usize, item: u32) -> bool {
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
