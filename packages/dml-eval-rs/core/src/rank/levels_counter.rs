//! Counts of negatives at several levels from the same screened values.
//!
//! A pair is screened unless it matches at every level. What is listed for one level may match at another, or lie below its
//! thresholds, so each level takes its own negatives from the list. Unlisted are those above the first positive of every level:
//! they match at none, so they count at each, unless a level leaves out items.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Above, Hit, SweepResult};
use crate::memory::{Grow, allocate, try_collect, zeros};
use crate::rank::count_job::CountJob;
use crate::rank::screen_counter::{Buffers, ScreenCounter, TaskSide};
use crate::rows::space::{Scratch, Space};
use crate::screen::traverse::{Observer, Task};
use crate::side::Side;

/// Counts in progress, one for each level.
pub(crate) struct LevelsCounter<'a> {
    levels: Vec<ScreenCounter<'a>>,
    /// Whether an item that matches at no level counts at each.
    counts_unlisted: bool,
    /// Codes of the queries' and items' classes at all levels together.
    queries: Vec<u32>,
    gallery: Vec<u32>,
}

/// A listed value: the query, counted from the first of its side, the item, and bounds of the value.
type Listed = (u32, u32, (f64, f64));

/// A thread's buffers.
#[derive(Default)]
pub(crate) struct LevelsBuffers {
    counter: Buffers,
    listed: Vec<Listed>,
    /// The lowest threshold and the class of each query of a side, at one level.
    queries: Vec<(f64, u32)>,
}

impl<'a> LevelsCounter<'a> {
    /// Starts the counts of all queries with positives.
    pub fn new<S: Space>(space: &S, jobs: Vec<CountJob<'a>>, control: &'a Control) -> Result<Self> {
        let (queries, gallery) = join_classes(space, &jobs)?;
        let counts_unlisted = jobs.iter().all(|job| job.relation.leaves_out_own_item_alone());
        let levels = try_collect(jobs.into_iter().map(|job| ScreenCounter::new(space, job, &|_| false, control)))?;
        Ok(LevelsCounter { levels, counts_unlisted, queries, gallery })
    }

    /// Chooses a packing for the screen of so many pairs, by the level with the most positives.
    pub fn packing<'s, S: Space>(&self, space: &'s S, pairs: u64, control: &Control) -> Result<S::Packing<'s>> {
        let most = self.levels.iter().max_by_key(|level| level.positives()).expect("there are at least two levels");
        most.packing(space, pairs, control)
    }

    /// Counts the listed values of one side of a task at each level.
    #[expect(clippy::too_many_arguments, reason = "the parts of a side, and a thread's buffers")]
    fn count_side<S: Space>(
        &self,
        space: &S,
        (first_query, queries): (usize, usize),
        items: &Range<usize>,
        above: &Above,
        listed: impl Iterator<Item = Listed> + Clone,
        scratch: &mut Scratch,
        buffers: &mut LevelsBuffers,
    ) -> Result<()> {
        for level in &self.levels {
            let LevelsBuffers { counter, listed: of_level, queries: own } = buffers;
            own.clear();
            own.try_extend((first_query..first_query + queries).map(|query| level.lowest_and_class(query)))?;
            of_level.clear();
            of_level.try_extend(listed.clone().filter(|(i, item, (_, highest))| {
                let (lowest, class) = own[*i as usize];
                *highest >= lowest && level.is_negative(first_query + *i as usize, class, *item)
            }))?;
            let side = TaskSide { first_query, queries, items: items.clone(), above, hits: of_level.iter().copied() };
            level.count_side(space, side, scratch, counter)?;
        }
        Ok(())
    }
}

/// Encodes the classes of all levels together: two codes are equal if and only if the classes are at every level.
fn join_classes<S: Space>(space: &S, jobs: &[CountJob<'_>]) -> Result<(Vec<u32>, Vec<u32>)> {
    let sides = [Side::Query, Side::Gallery];
    let [queries, gallery] = sides.map(|side| zeros::<u32>(space.rows(side)));
    let mut joined = [queries?, gallery?];
    let mut distinct = allocate(joined.iter().map(Vec::len).sum())?;
    for job in jobs {
        let class = |side, (item, code): (usize, &u32)| (*code, job.relation.class(side, item));
        distinct.clear();
        for (joined, side) in joined.iter().zip(sides) {
            distinct.try_extend(joined.iter().enumerate().map(|of| class(side, of)))?;
        }
        distinct.par_sort_unstable();
        distinct.dedup();
        for (joined, side) in joined.iter_mut().zip(sides) {
            joined.par_iter_mut().enumerate().for_each(|(item, code)| {
                *code = distinct.partition_point(|other| *other < class(side, (item, code))) as u32;
            });
        }
    }
    let [queries, gallery] = joined;
    Ok((queries, gallery))
}

impl Observer for LevelsCounter<'_> {
    type Buffers = LevelsBuffers;

    fn group(&self, side: Side, item: usize) -> u32 {
        if side == Side::Query { self.queries[item] } else { self.gallery[item] }
    }

    fn brackets(&self, query: usize, visit: impl FnMut((f64, f64))) {
        let of_levels = self.levels.iter().filter_map(|level| level.lowest_and_first(query));
        let all = of_levels.reduce(|(low, high), (lowest, first)| (low.min(lowest), high.max(first)));
        let all = all.map(|(low, high)| (low, if self.counts_unlisted { high } else { f64::INFINITY }));
        all.into_iter().for_each(visit);
    }

    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        buffers: &mut LevelsBuffers,
    ) -> Result<()> {
        let row_margin = |h: &Hit| task.row_margins[h.row as usize];
        let of_rows = result.row_hits.iter().map(|h| {
            let bounds = task.bounds(h.row, h.column, h.value, row_margin(h));
            (h.row, (task.columns.start + h.column as usize) as u32, bounds)
        });
        let rows = (task.rows.start, task.rows.len());
        self.count_side(space, rows, &task.columns, &result.row_above, of_rows, scratch, buffers)?;
        if task.symmetric {
            let column_margin = |h: &Hit| task.column_margins[h.column as usize];
            let of_columns = result.column_hits.iter().map(|h| {
                let bounds = task.bounds(h.row, h.column, h.value, column_margin(h));
                (h.column, (task.rows.start + h.row as usize) as u32, bounds)
            });
            let columns = (task.columns.start, task.columns.len());
            self.count_side(space, columns, &task.rows, &result.column_above, of_columns, scratch, buffers)?;
        }
        Ok(())
    }
}
