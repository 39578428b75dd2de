//! Relates queries to gallery items: which items match, and which are excluded from the ranking.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use crate::error::{Result, argument};
use crate::memory::{Grow, allocate, collect, full};
use crate::rank::grades::Grades;
use crate::rows::classes::Classes;
use crate::rows::lists::Lists;
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::side::Side;

/// Tells how an item relates to a query. `DistanceRanker` uses the integers as marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Negative = 0,
    Match = 1,
    Excluded = 2,
}

/// Codes for queries and gallery, one per row.
struct Codes<'a> {
    queries: Cow<'a, [u32]>,
    gallery: Cow<'a, [u32]>,
}

/// The items that match a query unless they are excluded.
enum Candidates<'a> {
    /// Items with the label of the query.
    Labelled(Classes),
    /// Items that are listed for the query.
    Listed(Lists<'a>),
}

/// The relation between queries and the items of a gallery, or of a part of it.
///
/// A gallery item matches a query if the labels are equal, or if it is listed for the query. A
/// query's ranking excludes the query itself, items with the query's label and group, and items
/// listed to be excluded, so these never match or count.
pub struct Relation<'a> {
    /// The labels or, if matches are listed, 0 for all queries and 1 for all items.
    classes: Codes<'a>,
    candidates: Candidates<'a>,
    groups: Option<Codes<'a>>,
    own: OwnItem<'a>,
    excluded: Option<Lists<'a>>,
    grades: Option<Grades<'a>>,
    /// The index of this part's first item in the full gallery.
    first_item: u64,
    /// Where the second block begins if this part consists of two blocks, and the gallery index of
    /// each block's first item.
    blocks: Option<(u32, [u64; 2])>,
    /// The number of matches per query.
    numbers: Vec<u32>,
    /// Per query, items that aren't negatives although the class differs: excluded items and, if
    /// listed, the candidates.
    excluded_others: Option<(Vec<usize>, Vec<u32>)>,
}

fn check_length(name: &str, given: usize, expected: usize, why: &str) -> Result<()> {
    match given == expected {
        true => Ok(()),
        false => argument(format!("{name} has {given} entries; expected {expected}, {why}")),
    }
}

impl<'a> Relation<'a> {
    /// Relates items with equal labels. Labels must be dense codes, shared by both sides. If
    /// `gallery_labels` is `None`, the queries are also the gallery.
    pub fn of_labels(labels: &'a [u32], gallery_labels: Option<&'a [u32]>) -> Result<Self> {
        let gallery = gallery_labels.unwrap_or(labels);
        let classes = Codes { queries: Cow::Borrowed(labels), gallery: Cow::Borrowed(gallery) };
        Self::new(classes, Candidates::Labelled(Classes::new(gallery)?), gallery_labels.is_none())
    }

    /// Relates queries to the items that are listed. `gallery` is the number of items; if `None`,
    /// the queries are also the gallery.
    pub fn of_lists(lists: Lists<'a>, gallery: Option<usize>) -> Result<Self> {
        let items = gallery.unwrap_or(lists.len());
        lists.check("relevant", lists.len(), items)?;
        let classes = Codes {
            queries: Cow::Owned(full(lists.len(), 0)?),
            gallery: Cow::Owned(full(items, 1)?),
        };
        Self::new(classes, Candidates::Listed(lists), gallery.is_none())
    }

    fn new(classes: Codes<'a>, candidates: Candidates<'a>, own_gallery: bool) -> Result<Self> {
        let relation = Relation {
            classes,
            candidates,
            groups: None,
            own: if own_gallery { OwnItem::SameIndex } else { OwnItem::Absent },
            excluded: None,
            grades: None,
            first_item: 0,
            blocks: None,
            numbers: Vec::new(),
            excluded_others: None,
        };
        relation.count()
    }

    /// Grades the listed matches. `values` must be numbers above 0, in the order of the lists.
    pub fn with_grades(mut self, values: &'a [f64]) -> Result<Self> {
        let Candidates::Listed(lists) = self.candidates else {
            return argument(
                "grades need listed matches, but the relation uses labels; omit grades",
            );
        };
        self.grades = Some(Grades::new(lists, values)?);
        Ok(self)
    }

    /// Excludes the items that have the query's label and group. Groups must be dense codes, shared
    /// by both sides. If `gallery_groups` is `None`, `groups` are also the gallery's.
    pub fn with_groups(self, groups: &'a [u32], gallery_groups: Option<&'a [u32]>) -> Result<Self> {
        if matches!(self.candidates, Candidates::Listed(_)) {
            return argument(
                "groups need labels, but the relation lists matches; omit groups or use labels",
            );
        }
        let gallery = gallery_groups.unwrap_or(groups);
        check_length("groups", groups.len(), self.queries(), "one per label")?;
        check_length("gallery_groups", gallery.len(), self.items(), "one per gallery label")?;
        let groups = Codes { queries: Cow::Borrowed(groups), gallery: Cow::Borrowed(gallery) };
        Relation { groups: Some(groups), ..self }.count()
    }

    /// Declares that this gallery is a part of a larger gallery, in which the first item has the
    /// index `first_item`.
    pub fn with_first_item(self, first_item: u64) -> Result<Self> {
        Relation { first_item, ..self }.count()
    }

    /// Declares that the items, which are also the queries, are two blocks of a larger gallery: the
    /// items before `split`, and the others. `first_items` are the indices in the gallery where the
    /// blocks begin; the second must come later.
    pub fn with_blocks(self, split: usize, first_items: [u64; 2]) -> Result<Self> {
        if split > self.items() || first_items[1] < first_items[0] + split as u64 {
            return argument(format!(
                "blocks begin at {first_items:?}, and the first has {split} of {} items; expected \
                 blocks in ascending order that don't overlap",
                self.items()
            ));
        }
        Ok(Relation { blocks: Some((split as u32, first_items)), ..self })
    }

    /// Excludes the queries themselves. `indices` are indices in the full gallery, or −1 for a
    /// query that isn't in the gallery.
    pub fn with_own_items(self, indices: &'a [i64]) -> Result<Self> {
        let own = OwnItem::Listed(indices);
        own.check(self.queries(), 1 << 62)?;
        Relation { own, ..self }.count()
    }

    /// Excludes the items listed per query.
    pub fn with_excluded(self, lists: Lists<'a>) -> Result<Self> {
        lists.check("excluded", self.queries(), self.items())?;
        Relation { excluded: Some(lists), ..self }.count()
    }

    /// Counts the matches per query, and lists the items that must not be counted although the
    /// class differs.
    fn count(mut self) -> Result<Self> {
        let (queries, gallery) = (&self.classes.queries, &self.classes.gallery);
        // Sort the labels and groups of the items, so that a binary search can count the items of a
        // label and group.
        let item_groups = self.groups.as_ref().map_or(&[][..], |groups| &groups.gallery);
        let mut item_codes = collect(gallery.iter().copied().zip(item_groups.iter().copied()))?;
        item_codes.par_sort_unstable();
        let mut numbers = allocate(queries.len())?;
        let listed = match &self.candidates {
            Candidates::Labelled(_) => None,
            Candidates::Listed(lists) => Some(lists),
        };
        let most = [listed, self.excluded.as_ref()]
            .map(|lists| lists.map_or(0, |lists| lists.items.len()));
        let mut offsets = allocate(queries.len() + 1)?;
        let mut items = allocate(most.iter().sum::<usize>() + queries.len())?;
        offsets.try_push(0)?;
        let mut named = Vec::new();
        for q in 0..queries.len() {
            named.clear();
            named.try_extend(self.own_item(q).map(|item| item as u32))?;
            named.try_extend(self.excluded.map_or(&[][..], |lists| lists.of(q)).iter().copied())?;
            named.sort_unstable();
            named.dedup();
            let excluded = named
                .iter()
                .filter(|item| self.is_candidate(q, **item) && !self.shares_group(q, **item));
            let in_group = self.groups.as_ref().map_or(0, |groups| {
                let own = (queries[q], groups.queries[q]);
                let from = &item_codes[item_codes.partition_point(|other| *other < own)..];
                from.partition_point(|other| *other == own)
            });
            numbers.try_push((self.candidates(q).len() - excluded.count() - in_group) as u32)?;
            if listed.is_some() {
                named.try_extend(self.candidates(q).iter().copied())?;
                named.sort_unstable();
                named.dedup();
                items.try_extend(named.iter().copied())?;
            } else {
                items.try_extend(
                    named.iter().copied().filter(|item| gallery[*item as usize] != queries[q]),
                )?;
            }
            offsets.try_push(items.len())?;
        }
        self.numbers = numbers;
        self.excluded_others = (!items.is_empty()).then_some((offsets, items));
        Ok(self)
    }

    /// Returns the gallery item that is the query itself, if it is in this part of the gallery.
    fn own_item(&self, query: usize) -> Option<usize> {
        let place = usize::try_from(self.own.of(query)?.checked_sub(self.first_item)?).ok()?;
        (place < self.items()).then_some(place)
    }

    fn is_candidate(&self, query: usize, item: u32) -> bool {
        match &self.candidates {
            Candidates::Labelled(_) => {
                self.classes.gallery[item as usize] == self.classes.queries[query]
            }
            Candidates::Listed(lists) => lists.holds(query, item),
        }
    }

    fn shares_group(&self, query: usize, item: u32) -> bool {
        self.groups
            .as_ref()
            .is_some_and(|groups| groups.queries[query] == groups.gallery[item as usize])
    }

    /// Checks that the relation and the space have equal numbers of queries and of items.
    pub(crate) fn check<S: Space>(&self, space: &S) -> Result<()> {
        check_length("labels", self.queries(), space.rows(Side::Query), "one per query")?;
        check_length(
            "gallery_labels",
            self.items(),
            space.rows(Side::Gallery),
            "one per gallery row",
        )
    }

    /// Returns the number of queries.
    pub fn queries(&self) -> usize {
        self.classes.queries.len()
    }

    fn items(&self) -> usize {
        self.classes.gallery.len()
    }

    /// Whether pairs can be compared once for both items: the queries are also the gallery, and
    /// only items with the query's class are excluded.
    pub(crate) fn is_symmetric(&self) -> bool {
        matches!((self.own, &self.excluded_others), (OwnItem::SameIndex, None))
    }

    /// Returns the number of matches of a query.
    pub fn number(&self, query: usize) -> usize {
        self.numbers[query] as usize
    }

    /// Returns the grades of the matches, or `None` if all have equal weight.
    pub(crate) fn grades(&self) -> Option<&Grades<'a>> {
        self.grades.as_ref()
    }

    /// Returns the items that match a query unless they are excluded.
    pub(crate) fn candidates(&self, query: usize) -> &[u32] {
        match &self.candidates {
            Candidates::Labelled(classes) => classes.members(self.classes.queries[query]),
            Candidates::Listed(lists) => lists.of(query),
        }
    }

    /// Returns a number that is equal for queries with the same candidates.
    pub(crate) fn candidates_id(&self, query: usize) -> u32 {
        match &self.candidates {
            Candidates::Labelled(_) => self.classes.queries[query],
            Candidates::Listed(_) => query as u32,
        }
    }

    /// Whether `item`, a candidate of `query`, is excluded from the ranking.
    pub(crate) fn excludes(&self, query: usize, item: u32) -> bool {
        self.own_item(query) == Some(item as usize)
            || self.shares_group(query, item)
            || self.excluded.is_some_and(|lists| lists.holds(query, item))
    }

    /// Lists the matches of a query in order.
    pub(crate) fn matches(&self, query: usize) -> impl Iterator<Item = u32> {
        self.candidates(query).iter().copied().filter(move |item| !self.excludes(query, *item))
    }

    /// Tells per item of a range whether it is a match or a negative of the query, or excluded.
    pub(crate) fn kinds(
        &self,
        query: usize,
        items: Range<usize>,
        kinds: &mut Vec<Kind>,
    ) -> Result<()> {
        let class = self.classes.queries[query];
        kinds.clear();
        let kind = |item: &u32| if *item == class { Kind::Match } else { Kind::Negative };
        kinds.try_extend(self.classes.gallery[items.clone()].iter().map(kind))?;
        let mut set = |item: u32, kind: Kind| {
            if let Some(own) =
                (item as usize).checked_sub(items.start).and_then(|place| kinds.get_mut(place))
            {
                *own = kind;
            }
        };
        self.excluded_others(query).iter().for_each(|item| set(*item, Kind::Excluded));
        match &self.candidates {
            Candidates::Listed(_) => self.matches(query).for_each(|item| set(item, Kind::Match)),
            Candidates::Labelled(_) if self.groups.is_none() && self.excluded.is_none() => {
                self.own_item(query).into_iter().for_each(|item| set(item as u32, Kind::Excluded));
            }
            Candidates::Labelled(_) => {
                let excluded =
                    self.candidates(query).iter().filter(|item| self.excludes(query, **item));
                excluded.for_each(|item| set(*item, Kind::Excluded));
            }
        }
        Ok(())
    }

    /// Returns the items that must not be counted for a query although they have a different class,
    /// in ascending order.
    pub(crate) fn excluded_others(&self, query: usize) -> &[u32] {
        match &self.excluded_others {
            Some((offsets, items)) => &items[offsets[query]..offsets[query + 1]],
            None => &[],
        }
    }

    /// Returns the index of an item of this part in the full gallery.
    pub(crate) fn gallery_index(&self, item: u32) -> u64 {
        match self.blocks {
            None => self.first_item + u64::from(item),
            Some((split, [first, _])) if item < split => first + u64::from(item),
            Some((split, [_, second])) => second + u64::from(item - split),
        }
    }

    /// Returns the class of a query or an item. Negatives have a different class than the query.
    pub(crate) fn class(&self, side: Side, item: usize) -> u32 {
        if side == Side::Query { self.classes.queries[item] } else { self.classes.gallery[item] }
    }
}
