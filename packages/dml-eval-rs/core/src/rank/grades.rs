//! Grades of the matches that are listed per query.

use crate::error::{Result, argument};
use crate::rows::lists::Lists;

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
        self.values[self.lists.places(query).start + at]
    }
}
