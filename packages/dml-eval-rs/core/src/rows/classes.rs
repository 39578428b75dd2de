//! Rows grouped by label.

use crate::error::Result;
use crate::memory::{collect, zeros};

/// Indices of rows, grouped by label.
pub(crate) struct Classes {
    offsets: Vec<usize>,
    members: Vec<u32>,
}

impl Classes {
    /// Groups rows by their labels, in order.
    pub fn new(labels: &[u32]) -> Result<Self> {
        let classes = labels.iter().max().map_or(0, |l| *l as usize + 1);
        let mut offsets: Vec<usize> = zeros(classes + 1)?;
        for &l in labels {
            offsets[l as usize + 1] += 1;
        }
        for c in 0..classes {
            offsets[c + 1] += offsets[c];
        }
        let mut next = collect(offsets.iter().copied())?;
        let mut members: Vec<u32> = zeros(labels.len())?;
        for (i, &l) in labels.iter().enumerate() {
            members[next[l as usize]] = i as u32;
            next[l as usize] += 1;
        }
        Ok(Classes { offsets, members })
    }

    /// Returns the rows with this label, in order.
    pub fn members(&self, label: u32) -> &[u32] {
        match self.offsets.get(label as usize..label as usize + 2) {
            Some(&[from, to]) => &self.members[from..to],
            _ => &[],
        }
    }
}
