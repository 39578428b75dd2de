//! Traverses all pairs tile by tile: multiplies, corrects the products, then compares them with
//! thresholds.
//!
//! An observer receives the screened values per task: `rank` counts values, and `search` keeps the
//! nearest items.

use std::ops::Range;

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{ItemBrackets, MAX_TILE, Sides, SweepResult, Tiles, WHOLE};
use crate::memory::{Grow, collect, each, full};
use crate::rows::byte_words::find_least_sums;
use crate::rows::narrow_panels::multiply;
use crate::rows::packing::{Axis, Packing};
use crate::rows::space::{Scratch, Space};
use crate::screen::block::{Block, Blocks, Memory};
use crate::screen::excluded::ExcludedPairs;
use crate::screen::preview::Preview;
use crate::screen::rounding::{round_down, round_up};
use crate::screen::tile::mask_excluded;
use crate::screen::tiling::{TaskGrid, TileShape, blocks, count_pairs, reaches_above_diagonal};
use crate::side::Side;

/// Receives the screened values of tasks, from threads in parallel.
pub(crate) trait Observer: Sync {
    /// Buffers for a thread.
    type Buffers: Default + Send;

    /// Returns an item's group. Items that share a group are not compared.
    fn group(&self, side: Side, item: usize) -> u32;

    /// Returns the gallery items to exclude although the group differs from the query's, in
    /// ascending order. Ignored when a triangle is traversed.
    fn excluded_others(&self, _query: usize) -> &[u32] {
        &[]
    }

    /// Visits the brackets (ranges of values) per query. Items with a value in a bracket are
    /// listed, other items are counted for every bracket below the value. Items below all brackets
    /// will be ignored.
    fn brackets(&self, query: usize, visit: impl FnMut((f64, f64)));

    /// Whether values in a triangle are also compared with the brackets of columns.
    fn compares_columns(&self) -> bool {
        true
    }

    /// Receives a block of rows and a block of columns, before the tasks for these rows begin: the
    /// first columns or, in a triangle, the columns of the same items.
    fn begin<S: Space>(
        &self,
        _space: &S,
        _packing: &impl Packing,
        _blocks: Blocks<'_>,
        _control: &Control,
    ) -> Result<()> {
        Ok(())
    }

    /// Receives the values per task.
    fn observe<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        result: &SweepResult,
        scratch: &mut Scratch,
        buffers: &mut Self::Buffers,
    ) -> Result<()>;
}

/// A rectangle of pairs.
pub(crate) struct Task<'a> {
    /// The items in rows (queries).
    pub rows: Range<usize>,
    /// The items in columns (gallery).
    pub columns: Range<usize>,
    /// The error bound for values, per row.
    pub row_margins: &'a [f64],
    /// The error bound for values, per column.
    pub column_margins: &'a [f64],
    /// The residual norms of rows and columns, if only a prefix is packed.
    residual_norms: Option<(&'a [f64], &'a [f64])>,
    /// The number to add to products.
    offset: f64,
    /// Whether columns are also queries. If so, only pairs with a row before the column count.
    pub symmetric: bool,
}

impl Task<'_> {
    /// Returns bounds for the value of a row and a column, given the product and the margin.
    #[inline]
    pub fn bounds(&self, row: u32, column: u32, product: f32, margin: f64) -> (f64, f64) {
        let value = f64::from(product) + self.offset;
        let residuals = self
            .residual_norms
            .map_or(0.0, |(rows, columns)| rows[row as usize] * columns[column as usize]);
        (value - margin - 2.0 * residuals, value + margin)
    }

    /// Returns the smallest product that may belong to `value` in a row with this margin.
    pub fn least_product(&self, value: f64, margin: f64) -> f32 {
        round_down(value - self.offset - margin)
    }
}

#[derive(Default)]
struct TaskBuffers<B> {
    tile: Vec<f32>,
    /// The least sums of integers that matter, per row in the panels of the task. Empty if columns
    /// also have thresholds, or products aren't in the order of sums.
    least_sums: Vec<i32>,
    rows: ItemBrackets,
    columns: ItemBrackets,
    excluded: ExcludedPairs,
    preview: Preview,
    result: SweepResult,
    scratch: Scratch,
    observer: B,
}

/// Converts the ends of a bracket, in units of values, to thresholds for products.
///
/// With v the exact value, a product plus `offset` is between v − margin and v + margin +
/// 2·residuals, where `residuals` is the product of the residual norms.
fn product_thresholds(
    (low, high): (f64, f64),
    offset: f64,
    margin: f64,
    residuals: f64,
) -> (f32, f32) {
    (round_down(low - offset - margin), round_up(high - offset + margin + 2.0 * residuals))
}

#[inline(always)]
fn fill_brackets<O: Observer>(
    observer: &O,
    query: usize,
    (item, brackets): (usize, &mut ItemBrackets),
    offset: f64,
    margin: f64,
    residuals: f64,
) -> Result<()> {
    let (mut b, mut result) = (0, Ok(()));
    observer.brackets(query, |bracket| {
        if b == brackets.count() {
            result = brackets.grow();
        }
        if b < brackets.count() {
            brackets.set(item, b, product_thresholds(bracket, offset, margin, residuals));
        }
        b += 1;
    });
    result
}

fn tile_shape<S: Space>(space: &S, packing: &impl Packing) -> TileShape {
    let Tiles { rows, columns, .. } = *space.kernel().tiles(packing.word());
    // Rounded rows consist of about half of the words.
    let rounded = if packing.rounding().is_some() { packing.steps() / 2 } else { 0 };
    TileShape { height: rows, width: columns, steps: packing.steps() + rounded }
}

/// Traverses all pairs of an item in `rows` and a later item in `columns` of a single array.
pub(crate) fn traverse_triangle<S: Space, O: Observer>(
    space: &S,
    packing: &impl Packing,
    observer: &O,
    rows: Range<usize>,
    columns: Range<usize>,
    control: &Control,
) -> Result<()> {
    let (shape, sizes) = (tile_shape(space, packing), control.sizes());
    let (mut of_rows, mut of_columns) = <(Memory, Memory)>::default();
    let size = shape.rows_per_block(shape.width, sizes);
    for columns in blocks(columns, size) {
        control.check()?;
        let (of, width) = ((Side::Query, Axis::Columns), shape.width);
        let column_block = Block::load(packing, of, columns.clone(), width, of_columns, control)?;
        // Traverse the last rows first, so that `begin` receives items before these are columns.
        let groups = blocks(rows.start..rows.end.min(columns.end), size).rev();
        let of_group = |rows| blocks(rows, shape.rows_per_block(shape.height, sizes)).rev();
        for rows in groups.flat_map(of_group) {
            control.check()?;
            let begins = rows.start >= columns.start;
            let (of, height) = ((Side::Query, Axis::Rows), shape.height);
            let row_block = Block::load(packing, of, rows, height, of_rows, control)?;
            let blocks = Blocks { rows: &row_block, columns: &column_block };
            if begins {
                observer.begin(space, packing, blocks, control)?;
                control.check()?;
            }
            traverse_blocks(space, packing, observer, blocks, true, control)?;
            of_rows = row_block.into_memory();
        }
        of_columns = column_block.into_memory();
    }
    Ok(())
}

/// Traverses all pairs of a query in `queries` and a gallery item.
pub(crate) fn traverse_rectangle<S: Space, O: Observer>(
    space: &S,
    packing: &impl Packing,
    observer: &O,
    queries: Range<usize>,
    control: &Control,
) -> Result<()> {
    let (shape, sizes) = (tile_shape(space, packing), control.sizes());
    let (mut of_rows, mut of_columns) = <(Memory, Memory)>::default();
    for columns in blocks(0..space.rows(Side::Gallery), shape.rows_per_block(shape.width, sizes)) {
        control.check()?;
        let (of, width) = ((Side::Gallery, Axis::Columns), shape.width);
        let column_block = Block::load(packing, of, columns, width, of_columns, control)?;
        for rows in blocks(queries.clone(), shape.rows_per_block(shape.height, sizes)) {
            control.check()?;
            let (of, height) = ((Side::Query, Axis::Rows), shape.height);
            let row_block = Block::load(packing, of, rows, height, of_rows, control)?;
            let blocks = Blocks { rows: &row_block, columns: &column_block };
            if column_block.rows.start == 0 {
                observer.begin(space, packing, blocks, control)?;
                control.check()?;
            }
            traverse_blocks(space, packing, observer, blocks, false, control)?;
            of_rows = row_block.into_memory();
        }
        of_columns = column_block.into_memory();
    }
    Ok(())
}

fn traverse_blocks<S: Space, O: Observer>(
    space: &S,
    packing: &impl Packing,
    observer: &O,
    blocks: Blocks<'_>,
    symmetric: bool,
    control: &Control,
) -> Result<()> {
    let Blocks { rows, columns } = blocks;
    let row_margins = collect(rows.extents.iter().map(|&e| packing.margin(e, columns.worst)))?;
    let column_margins = collect(columns.extents.iter().map(|&e| packing.margin(e, rows.worst)))?;
    let grid = TaskGrid::new(
        rows.rows.len(),
        columns.rows.len(),
        tile_shape(space, packing),
        control.sizes(),
    );
    each(
        (0..grid.len()).into_par_iter(),
        || Ok(TaskBuffers { tile: full(MAX_TILE, 0.0)?, ..TaskBuffers::<O::Buffers>::default() }),
        |buffers, index| {
            control.check()?;
            let (task_rows, task_columns) = grid.task(index);
            let task = Task {
                rows: rows.rows.start + task_rows.start..rows.rows.start + task_rows.end,
                columns: columns.rows.start + task_columns.start
                    ..columns.rows.start + task_columns.end,
                row_margins: &row_margins[task_rows.clone()],
                column_margins: &column_margins[task_columns.clone()],
                residual_norms: (!rows.residual_norms.is_empty()).then(|| {
                    (&rows.residual_norms[task_rows], &columns.residual_norms[task_columns])
                }),
                offset: packing.offset(),
                symmetric,
            };
            if !symmetric || reaches_above_diagonal(&task.rows, &task.columns) {
                sweep_task(space, packing, observer, (blocks, &task), buffers, control)?;
            }
            control.advance(count_pairs(&task.rows, &task.columns, symmetric));
            Ok(())
        },
    )
}

fn sweep_task<S: Space, O: Observer>(
    space: &S,
    packing: &impl Packing,
    observer: &O,
    (blocks, task): (Blocks<'_>, &Task<'_>),
    buffers: &mut TaskBuffers<O::Buffers>,
    control: &Control,
) -> Result<()> {
    let kernel = space.kernel();
    let (TileShape { height, width, .. }, steps) = (tile_shape(space, packing), packing.steps());
    let (product, tiles) = (kernel.product(packing.word()), kernel.tiles(packing.word()));
    let TaskBuffers {
        tile,
        least_sums,
        rows: of_rows,
        columns: of_columns,
        excluded,
        preview,
        result,
        scratch,
        observer: own,
    } = buffers;
    let padded = task.columns.len().next_multiple_of(width);
    let both = task.symmetric && observer.compares_columns();
    of_rows.reset(task.rows.len())?;
    for (row, query) in task.rows.clone().enumerate() {
        of_rows.set_group(row, observer.group(Side::Query, query));
        let residuals = task
            .residual_norms
            .map_or(0.0, |(rows, _)| rows[row] * blocks.columns.worst.residual_norm);
        fill_brackets(
            observer,
            query,
            (row, of_rows),
            task.offset,
            task.row_margins[row],
            residuals,
        )?;
    }
    of_columns.reset(padded)?;
    for (column, item) in task.columns.clone().enumerate() {
        of_columns.set_group(column, observer.group(Side::Gallery, item));
        if both {
            let residuals = task
                .residual_norms
                .map_or(0.0, |(_, columns)| columns[column] * blocks.rows.worst.residual_norm);
            fill_brackets(
                observer,
                item,
                (column, of_columns),
                task.offset,
                task.column_margins[column],
                residuals,
            )?;
        }
    }
    if of_rows.are_impassable() && of_columns.are_impassable() {
        return Ok(());
    }
    excluded.fill(
        (height, width),
        task.rows.clone().map(|query| observer.excluded_others(query)),
        &task.columns,
    )?;
    result.reset((task.rows.len(), of_rows.count()), (padded, of_columns.count()))?;
    let sides = if both { Sides::Both } else { Sides::Rows };
    let first_panel = (task.rows.start - blocks.rows.rows.start) / height;
    least_sums.clear();
    if !both && packing.has_one_scale() {
        least_sums.try_resize(task.rows.len().next_multiple_of(height), 0)?;
        for (p, sums) in least_sums.chunks_exact_mut(height).enumerate() {
            let panel = blocks.rows.panel(first_panel + p).words();
            find_least_sums(panel, of_rows.lowest_from(p * height, height), sums);
        }
    }
    preview.start();
    for j in (0..padded).step_by(width) {
        let columns =
            task.columns.start + j..(task.columns.start + j + width).min(task.columns.end);
        let column_panel = (columns.start - blocks.columns.rows.start) / width;
        let reaching = |i: &usize| {
            !task.symmetric
                || reaches_above_diagonal(&(task.rows.start + i..task.rows.end), &columns)
        };
        let panels = (0..task.rows.len()).step_by(height).take_while(reaching).count();
        let at = (first_panel..first_panel + panels, column_panel);
        let least = (of_rows.lowest_from(0, panels * height), of_columns.lowest_from(j, width));
        let parts = preview.left(kernel, blocks, at, least)?;
        let column_panel = blocks.columns.panel(column_panel);
        result.make_room(sides, panels * height * width)?;
        for (p, &parts) in parts.iter().enumerate().filter(|(_, parts)| **parts != 0) {
            let (i, row_panel) = (p * height, blocks.rows.panel(first_panel + p));
            let rows = task.rows.start + i..(task.rows.start + i + height).min(task.rows.end);
            let words = (row_panel.words(), column_panel.words());
            if parts != WHOLE {
                kernel.fill_parts(steps, words.0, words.1, parts, tile);
            } else if let Some(least) = least_sums.get(i..i + height) {
                if !kernel.tile_reaching(steps, words.0, words.1, least, tile) {
                    continue;
                }
            } else {
                multiply(product, steps, (row_panel, column_panel), tile)?;
            }
            mask_excluded(tile, width, &rows, &columns, task.symmetric);
            excluded.mask(tile, (i, j));
            tiles.sweep(sides, tile, (of_rows, of_columns), (i..i + rows.len(), j), result);
        }
    }
    control.took(|| {
        let screened = if packing.is_sorted() { "along directions" } else { "whole rows" };
        let skips = if preview.has_ruled_out() { ", skipping tiles" } else { "" };
        let shape = if task.symmetric { "both sides" } else { "rows" };
        let excluded = if excluded.is_empty() { "" } else { ", leaving out pairs" };
        let brackets = if of_rows.count() > 1 { ", several brackets" } else { "" };
        let word = packing.word();
        format!("screen: {}, {word:?}, {screened}{skips}, {shape}{excluded}{brackets}", kernel.name)
    });
    observer.observe(space, task, result, scratch, own)
}
