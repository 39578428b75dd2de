//! Which gallery items match a query, and which its ranking leaves out.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;

use crate::error::{Result, argument};
use crate::memory::{Grow, allocate, collect, full};
use crate::rank::lists::{Grades, Lists};
use crate::rows::classes::Classes;
use crate::rows::own_item::OwnItem;
use crate::rows::space::Space;
use crate::side::Side;

/// What an item is to a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Negative,
    Match,
    LeftOut,
}

/// Codes of both sides, one for each row.
struct Codes<'a> {
    queries: Cow<'a, [u32]>,
    gallery: Cow<'a, [u32]>,
}

/// The items that match a query, unless its ranking leaves them out.
enum Candidates<'a> {
    /// Those of the query's label.
    Labelled(Classes),
    /// Those that are listed for the query.
    Listed(Lists<'a>),
}

/// A relation of queries to the items of a gallery, or of a part of it.
///
/// A gallery item matches a query if both have the same label, or if it is listed for the query. A query's ranking leaves out its
/// own item, items with the query's label and group, and items listed for this purpose: they are no matches, and are not counted.
pub struct Relation<'a> {
    /// Labels; where matches are listed, one class for all queries and another for all items.
    classes: Codes<'a>,
    candidates: Candidates<'a>,
    groups: Option<Codes<'a>>,
    own: OwnItem<'a>,
    left_out: Option<Lists<'a>>,
    grades: Option<Grades<'a>>,
    /// The index, in the whole gallery, of the first item of this part.
    first_item: u64,
    /// Where this part is two blocks of the gallery: the second one's first item, and the indices of each block's first item.
    blocks: Option<(u32, [u64; 2])>,
    /// The number of each query's matches.
    numbers: Vec<u32>,
    /// The items of other classes than the query's that are never counted, if they are not the candidates.
    uncounted: Option<(Vec<usize>, Vec<u32>)>,
}

fn check_length(name: &str, given: usize, expected: usize, why: &str) -> Result<()> {
    match given == expected {
        true => Ok(()),
        false => argument(format!("{name} has {given} entries; expected {expected}, {why}")),
    }
}

impl<'a> Relation<'a> {
    /// Relates items of the same label. Labels are dense codes, shared by both sides. Without `gallery_labels` the queries are
    /// their own gallery.
    pub fn of_labels(labels: &'a [u32], gallery_labels: Option<&'a [u32]>) -> Result<Self> {
        let gallery = gallery_labels.unwrap_or(labels);
        let classes = Codes { queries: Cow::Borrowed(labels), gallery: Cow::Borrowed(gallery) };
        Self::new(classes, Candidates::Labelled(Classes::new(gallery)?), gallery_labels.is_none())
    }

    /// Relates each query to the items listed for it. Without `gallery`, the number of items, the queries are their own gallery.
    pub fn of_lists(lists: Lists<'a>, gallery: Option<usize>) -> Result<Self> {
        let items = gallery.unwrap_or(lists.len());
        lists.check("relevant", lists.len(), items)?;
        let classes = Codes { queries: Cow::Owned(full(lists.len(), 0)?), gallery: Cow::Owned(full(items, 1)?) };
        Self::new(classes, Candidates::Listed(lists), gallery.is_none())
    }

    fn new(classes: Codes<'a>, candidates: Candidates<'a>, own_gallery: bool) -> Result<Self> {
        let relation = Relation {
            classes,
            candidates,
            groups: None,
            own: if own_gallery { OwnItem::SameIndex } else { OwnItem::Absent },
            left_out: None,
            grades: None,
            first_item: 0,
            blocks: None,
            numbers: Vec::new(),
            uncounted: None,
        };
        relation.count()
    }

    /// Grades the listed matches, in their order: numbers above 0.
    pub fn with_grades(mut self, values: &'a [f64]) -> Result<Self> {
        let Candidates::Listed(lists) = self.candidates else {
            return argument("grades came with labels; expected them with listed matches");
        };
        self.grades = Some(Grades::new(lists, values)?);
        Ok(self)
    }

    /// Leaves out the items that have a query's label and group. Groups are dense codes, shared by both sides; without
    /// `gallery_groups` the queries' are the gallery's.
    pub fn with_groups(self, groups: &'a [u32], gallery_groups: Option<&'a [u32]>) -> Result<Self> {
        if matches!(self.candidates, Candidates::Listed(_)) {
            return argument("groups came with listed matches; expected them with labels");
        }
        let gallery = gallery_groups.unwrap_or(groups);
        check_length("groups", groups.len(), self.queries(), "as many as labels")?;
        check_length("gallery_groups", gallery.len(), self.items(), "as many as labels")?;
        let groups = Codes { queries: Cow::Borrowed(groups), gallery: Cow::Borrowed(gallery) };
        Relation { groups: Some(groups), ..self }.count()
    }

    /// Declares the gallery a part of a larger one, in which the part's first item has this index.
    pub fn with_first_item(self, first_item: u64) -> Result<Self> {
        Relation { first_item, ..self }.count()
    }

    /// Declares the items, which are their own queries, two blocks of a larger gallery: those before `split` and the others. The
    /// first item of each block has these indices there, ascending.
    pub fn with_blocks(self, split: usize, first_items: [u64; 2]) -> Result<Self> {
        if split > self.items() || first_items[1] < first_items[0] + split as u64 {
            return argument(format!(
                "blocks of a gallery begin at {first_items:?}, and the first has {split} of {} items; expected blocks that do \
                 not overlap",
                self.items()
            ));
        }
        Ok(Relation { blocks: Some((split as u32, first_items)), ..self })
    }

    /// Leaves out each query's own item, given its index in the whole gallery, and −1 for queries outside it.
    pub fn with_own_items(self, indices: &'a [i64]) -> Result<Self> {
        let own = OwnItem::Listed(indices);
        own.check(self.queries(), 1 << 62)?;
        Relation { own, ..self }.count()
    }

    /// Leaves out the items listed for each query.
    pub fn with_left_out(self, lists: Lists<'a>) -> Result<Self> {
        lists.check("left_out", self.queries(), self.items())?;
        Relation { left_out: Some(lists), ..self }.count()
    }

    /// Counts each query's matches, and lists the items that must not be counted although their class is another.
    fn count(mut self) -> Result<Self> {
        let (queries, gallery) = (&self.classes.queries, &self.classes.gallery);
        // The label and the group of each item, sorted: equal ones are counted by searching for their ends.
        let of_items = self.groups.as_ref().map_or(&[][..], |groups| &groups.gallery);
        let mut of_items = collect(gallery.iter().copied().zip(of_items.iter().copied()))?;
        of_items.par_sort_unstable();
        let mut numbers = allocate(queries.len())?;
        let listed = match &self.candidates {
            Candidates::Labelled(_) => None,
            Candidates::Listed(lists) => Some(lists),
        };
        let most = [listed, self.left_out.as_ref()].map(|lists| lists.map_or(0, |lists| lists.items.len()));
        let mut offsets = allocate(queries.len() + 1)?;
        let mut items = allocate(most.iter().sum::<usize>() + queries.len())?;
        offsets.try_push(0)?;
        let mut named = Vec::new();
        for q in 0..queries.len() {
            named.clear();
            named.try_extend(self.own_item(q).map(|item| item as u32))?;
            named.try_extend(self.left_out.map_or(&[][..], |lists| lists.of(q)).iter().copied())?;
            named.sort_unstable();
            named.dedup();
            let left_out = named.iter().filter(|item| self.is_candidate(q, **item) && !self.shares_group(q, **item));
            let of_group = self.groups.as_ref().map_or(0, |groups| {
                let own = (queries[q], groups.queries[q]);
                let from = &of_items[of_items.partition_point(|other| *other < own)..];
                from.partition_point(|other| *other == own)
            });
            numbers.try_push((self.candidates(q).len() - left_out.count() - of_group) as u32)?;
            if listed.is_some() {
                named.try_extend(self.candidates(q).iter().copied())?;
                named.sort_unstable();
                named.dedup();
                items.try_extend(named.iter().copied())?;
            } else {
                items.try_extend(named.iter().copied().filter(|item| gallery[*item as usize] != queries[q]))?;
            }
            offsets.try_push(items.len())?;
        }
        self.numbers = numbers;
        self.uncounted = (!items.is_empty()).then_some((offsets, items));
        Ok(self)
    }

    /// Returns a query's own item, if this part of the gallery holds it.
    fn own_item(&self, query: usize) -> Option<usize> {
        let place = usize::try_from(self.own.of(query)?.checked_sub(self.first_item)?).ok()?;
        (place < self.items()).then_some(place)
    }

    fn is_candidate(&self, query: usize, item: u32) -> bool {
        match &self.candidates {
            Candidates::Labelled(_) => self.classes.gallery[item as usize] == self.classes.queries[query],
            Candidates::Listed(lists) => lists.holds(query, item),
        }
    }

    fn shares_group(&self, query: usize, item: u32) -> bool {
        self.groups.as_ref().is_some_and(|groups| groups.queries[query] == groups.gallery[item as usize])
    }

    /// Checks that each row of the space has a label, or that the lists are of these rows.
    pub(crate) fn check<S: Space>(&self, space: &S) -> Result<()> {
        check_length("labels", self.queries(), space.rows(Side::Query), "one for each query")?;
        check_length("gallery_labels", self.items(), space.rows(Side::Gallery), "one for each gallery row")
    }

    /// Returns the number of queries.
    pub fn queries(&self) -> usize {
        self.classes.queries.len()
    }

    fn items(&self) -> usize {
        self.classes.gallery.len()
    }

    /// Whether one look at a pair of items serves both as queries: the queries are their own gallery, and what one's ranking leaves
    /// out beyond its class, the other's leaves out, too.
    pub(crate) fn is_symmetric(&self) -> bool {
        matches!((self.own, &self.uncounted), (OwnItem::SameIndex, None))
    }

    /// Whether a query's ranking leaves out nothing but its own item.
    pub(crate) fn leaves_out_own_item_alone(&self) -> bool {
        self.groups.is_none() && self.left_out.is_none() && self.uncounted.is_none()
    }

    /// Returns the number of a query's matches.
    pub fn number(&self, query: usize) -> usize {
        self.numbers[query] as usize
    }

    /// Returns the grades of the matches; `None` if all count alike.
    pub(crate) fn grades(&self) -> Option<&Grades<'a>> {
        self.grades.as_ref()
    }

    /// Returns the items that match a query, unless its ranking leaves them out.
    pub(crate) fn candidates(&self, query: usize) -> &[u32] {
        match &self.candidates {
            Candidates::Labelled(classes) => classes.members(self.classes.queries[query]),
            Candidates::Listed(lists) => lists.of(query),
        }
    }

    /// Returns a number that queries with the same candidates share.
    pub(crate) fn candidates_id(&self, query: usize) -> u32 {
        match &self.candidates {
            Candidates::Labelled(_) => self.classes.queries[query],
            Candidates::Listed(_) => query as u32,
        }
    }

    /// Whether a query's ranking leaves out one of its candidates.
    pub(crate) fn leaves_out(&self, query: usize, item: u32) -> bool {
        self.own_item(query) == Some(item as usize)
            || self.shares_group(query, item)
            || self.left_out.is_some_and(|lists| lists.holds(query, item))
    }

    /// Lists a query's matches, in order.
    pub(crate) fn matches(&self, query: usize) -> impl Iterator<Item = u32> {
        self.candidates(query).iter().copied().filter(move |item| !self.leaves_out(query, *item))
    }

    /// Tells what each of some adjoining items is to a query.
    pub(crate) fn kinds(&self, query: usize, items: Range<usize>, kinds: &mut Vec<Kind>) -> Result<()> {
        let class = self.classes.queries[query];
        kinds.clear();
        let of_class = |item: &u32| if *item == class { Kind::Match } else { Kind::Negative };
        kinds.try_extend(self.classes.gallery[items.clone()].iter().map(of_class))?;
        let mut set = |item: u32, kind: Kind| {
            if let Some(own) = (item as usize).checked_sub(items.start).and_then(|place| kinds.get_mut(place)) {
                *own = kind;
            }
        };
        self.uncounted(query).iter().for_each(|item| set(*item, Kind::LeftOut));
        match &self.candidates {
            Candidates::Listed(_) => self.matches(query).for_each(|item| set(item, Kind::Match)),
            Candidates::Labelled(_) if self.groups.is_none() && self.left_out.is_none() => {
                self.own_item(query).into_iter().for_each(|item| set(item as u32, Kind::LeftOut));
            }
            Candidates::Labelled(_) => {
                let left_out = self.candidates(query).iter().filter(|item| self.leaves_out(query, **item));
                left_out.for_each(|item| set(*item, Kind::LeftOut));
            }
        }
        Ok(())
    }

    /// Returns the items that are never counted for a query although their class is another, ascending.
    pub(crate) fn uncounted(&self, query: usize) -> &[u32] {
        match &self.uncounted {
            Some((offsets, items)) => &items[offsets[query]..offsets[query + 1]],
            None => &[],
        }
    }

    /// Returns the index in the whole gallery of an item of this part.
    pub(crate) fn gallery_index(&self, item: u32) -> u64 {
        match self.blocks {
            None => self.first_item + u64::from(item),
            Some((split, [first, _])) if item < split => first + u64::from(item),
            Some((split, [_, second])) => second + u64::from(item - split),
        }
    }

    /// Returns the class of a query or of an item of this part. A query's negatives are of other classes.
    pub(crate) fn class(&self, side: Side, item: usize) -> u32 {
        if side == Side::Query { self.classes.queries[item] } else { self.classes.gallery[item] }
    }
}
