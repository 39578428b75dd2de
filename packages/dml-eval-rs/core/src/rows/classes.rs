//! Groups rows by label.

use crate::counting_sort::sort_by_part;
use crate::error::Result;

/// Row indices, grouped by label.
pub(crate) struct Classes {
    /// The end of the rows in `members`, per label.
    ends: Vec<u32>,
    members: Vec<u32>,
}

impl Classes {
    /// Groups rows by label and keeps the order within a label.
    pub fn new(labels: &[u32]) -> Result<Self> {
        let classes = labels.iter().max().map_or(0, |l| *l as usize + 1);
        let (mut ends, mut members) = (Vec::new(), Vec::new());
        sort_by_part(
            0..labels.len() as u32,
            classes,
            |row| labels[*row as usize] as usize,
            &mut ends,
            &mut members,
        )?;
        Ok(Classes { ends, members })
    }

    /// Returns the rows with a label, in order.
    pub fn members(&self, label: u32) -> &[u32] {
        let Some(&end) = self.ends.get(label as usize) else { return &[] };
        let start = if label > 0 { self.ends[label as usize - 1] } else { 0 };
        &self.members[start as usize..end as usize]
    }
}
