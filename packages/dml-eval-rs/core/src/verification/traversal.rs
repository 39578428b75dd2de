//! Traverses all pairs once for both a sieve and a decider.

use crate::control::Control;
use crate::error::Result;
use crate::kernel::SweepResult;
use crate::peers::{Peers, part};
use crate::rows::dense::Dense;
use crate::rows::dense_packing::DensePacking;
use crate::rows::space::{Scratch, Space};
use crate::screen::traverse::{Observer, Task, traverse_rectangle, traverse_triangle};
use crate::side::Side;
use crate::verification::decided::{self, Decider};
use crate::verification::sieve::{Listed, Sieve};

/// The receivers of a traversal's values. A receiver gets all requested values, and possibly more.
pub(crate) struct Both<'a, 'rows> {
    pub sieve: Sieve,
    pub decider: Decider<'a, 'rows>,
}

impl<'a, 'rows> Both<'a, 'rows> {
    pub fn new(sieve: Sieve, mut decider: Decider<'a, 'rows>) -> Self {
        decider.brackets_before = sieve.len();
        Both { sieve, decider }
    }
}

#[derive(Default)]
pub(crate) struct Buffers {
    sieve: Vec<Vec<Listed>>,
    decider: decided::Buffers,
}

impl Observer for Both<'_, '_> {
    type Buffers = Buffers;

    fn group(&self, side: Side, item: usize) -> u32 {
        let labels = self.decider.labels;
        if side == Side::Query { labels.queries[item] } else { labels.gallery()[item] }
    }

    fn brackets(&self, _query: usize, mut visit: impl FnMut((f64, f64))) {
        self.sieve.brackets(&mut visit);
        self.decider.brackets(visit);
    }

    /// A pair must count only once, so columns are not compared.
    fn compares_columns(&self) -> bool {
        false
    }

    fn observe<S: Space>(
        &self,
        _space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        buffers: &mut Buffers,
    ) -> Result<()> {
        self.sieve.observe(task, result, &mut buffers.sieve)?;
        self.decider.observe(task, result, scratch, &mut buffers.decider)
    }
}

/// Shows both receivers the screened values of all pairs, or of all unordered pairs of a single
/// array. Peers take parts.
pub(crate) fn traverse(
    space: &Dense<'_>,
    packing: &DensePacking<'_, '_>,
    observer: &Both<'_, '_>,
    peers: &dyn Peers,
    control: &Control,
) -> Result<()> {
    let (queries, items) = (space.rows(Side::Query), space.rows(Side::Gallery));
    if space.is_own_gallery() {
        let columns = part(peers, queries, |column| column as u64);
        control.add_to_total(columns.clone().map(|column| column as u64).sum());
        traverse_triangle(space, packing, observer, 0..queries, columns, control)
    } else {
        let rows = part(peers, queries, |_| 1);
        control.add_to_total(rows.len() as u64 * items as u64);
        traverse_rectangle(space, packing, observer, rows, control)
    }
}
