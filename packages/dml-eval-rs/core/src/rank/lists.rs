//! A list of gallery items per query, with grades for listed matches.

use crate::error::{Result, argument};

/// Items per query, stored in a single array.
#[derive(Clone, Copy, Debug)]
pub struct Lists<'a> {
    /// The start of the items per query, then the end for the last query.
    pub offsets: &'a [u64],
    /// The items, which must be sorted and distinct per query.
    pub items: &'a [u32],
}

impl<'a> Lists<'a> {
    /// Returns the number of queries.
    #[expect(clippy::len_without_is_empty, reason = "callers always have queries")]
    pub fn len(&self) -> usize {
        self.offsets.len().saturating_sub(1)
    }

    /// Checks that there is a list for each of the `queries`, and that lists are sorted and contain
    /// only gallery items.
    pub(crate) fn check(&self, name: &str, queries: usize, gallery: usize) -> Result<()> {
        let (first, last) = (self.offsets.first(), self.offsets.last());
        let delimits = first == Some(&0)
            && last == Some(&(self.items.len() as u64))
            && self.offsets.is_sorted();
        if self.offsets.len() != queries + 1 || !delimits {
            return argument(format!(
                "{name} has {} offsets that don't delimit {} items for {queries} queries; expected \
                 {} ascending numbers from 0",
                self.offsets.len(),
                self.items.len(),
                queries + 1
            ));
        }
        let valid = |items: &[u32]| {
            items.is_sorted_by(|a, b| a < b)
                && items.last().is_none_or(|last| (*last as usize) < gallery)
        };
        match (0..queries).find(|q| !valid(self.of(*q))) {
            Some(q) => argument(format!(
                "{name} lists {:?} for query {q}; expected distinct items below {gallery}, in \
                 ascending order",
                self.of(q)
            )),
            None => Ok(()),
        }
    }

    /// Returns a query's items.
    pub(crate) fn of(&self, query: usize) -> &'a [u32] {
        &self.items[self.offsets[query] as usize..self.offsets[query + 1] as usize]
    }

    /// Whether `item` is listed for `query`.
    pub(crate) fn holds(&self, query: usize, item: u32) -> bool {
        self.of(query).binary_search(&item).is_ok()
    }
}

/// The grades of the matches that a relation lists.
#[derive(Clone, Copy, Debug)]
pub struct Grades<'a> {
    lists: Lists<'a>,
    values: &'a [f64],
}

impl<'a> Grades<'a> {
    /// Grades listed matches. `values` must be finite numbers above 0, in the order of the lists.
    pub fn new(lists: Lists<'a>, values: &'a [f64]) -> Result<Self> {
        if values.len() != lists.items.len() {
            return argument(format!(
                "grades has {} entries; expected {}",
                values.len(),
                lists.items.len()
            ));
        }
        if let Some(grade) = values.iter().find(|grade| !(grade.is_finite() && **grade > 0.0)) {
            return argument(format!("grades contains {grade}; expected finite numbers above 0"));
        }
        Ok(Grades { lists, values })
    }

    /// Returns the grade of a match.
    pub(crate) fn grade(&self, query: usize, index: u64) -> f64 {
        let at = self.lists.of(query).partition_point(|item| u64::from(*item) < index);
        self.values[self.lists.offsets[query] as usize + at]
    }
}
