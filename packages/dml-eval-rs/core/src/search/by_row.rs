//! The hits of a task, row by row.

use crate::error::Result;
use crate::kernel::Hit;
use crate::memory::Grow;

/// The hits of a task, sorted by row.
#[derive(Default)]
pub(super) struct ByRow {
    /// The end of each row's hits in `order`.
    pub ends: Vec<usize>,
    /// Positions of the hits.
    pub order: Vec<u32>,
}

impl ByRow {
    /// Sorts hits of so many rows: a counting sort, which keeps the order within a row.
    pub fn sort(&mut self, rows: usize, hits: &[Hit]) -> Result<()> {
        self.ends.clear();
        self.ends.try_resize(rows + 1, 0)?;
        for hit in hits {
            self.ends[hit.row as usize + 1] += 1;
        }
        for row in 0..rows {
            self.ends[row + 1] += self.ends[row];
        }
        self.order.try_resize(hits.len(), 0)?;
        for (h, hit) in hits.iter().enumerate() {
            self.order[self.ends[hit.row as usize]] = h as u32;
            self.ends[hit.row as usize] += 1;
        }
        Ok(())
    }
}
