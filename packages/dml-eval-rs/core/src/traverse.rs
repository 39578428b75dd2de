//! The walk over all pairs: blocks that bound memory, tasks that share the work, tiles that stay in cache.
//!
//! What is done with a screened value is the observer's business: counting ranks (`ledger`) or finding neighbours (`search`).

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Edge, Found, MAX_TILE};
use crate::memory::collected;
use crate::space::{Block, Scratch, Side, Space};

/// Packed bytes of a block: two are alive at a time.
const BLOCK_BYTES: usize = 24 << 20;
/// Packed bytes of a task's rows and columns, about: what stays in a core's second-level cache.
const TASK_ROW_BYTES: usize = 192 << 10;
const TASK_COLUMN_BYTES: usize = 512 << 10;

/// Packed bytes of a band of tasks, about: what stays in a core's share of the third-level cache.
const BAND_BYTES: usize = 2 << 20;
/// The most panels of a task, however short the rows: thresholds rise, and Ctrl-C is looked for, between tasks.
const MOST_PANELS: usize = 64;

/// Thresholds that nothing passes.
const CLOSED: (f32, f32) = (f32::INFINITY, f32::INFINITY);

/// Takes in what the tiles of a task hold. Called from many threads at once.
pub(crate) trait Observer: Sync {
    type Notes: Default + Send;

    /// Two items of the same group are not compared.
    fn group(&self, side: Side, item: usize) -> u32;

    /// A query's thresholds (`Edge::low`, `Edge::high`) when a task begins; `margin` bounds the error of its values.
    fn limits(&self, query: usize, margin: f64) -> (f32, f32);

    /// The values of a finished task.
    fn absorb<S: Space>(
        &self,
        space: &S,
        task: &Task<'_>,
        found: &Found,
        scratch: &mut Scratch,
        notes: &mut Self::Notes,
    );
}

/// A rectangle of pairs.
pub(crate) struct Task<'a> {
    /// The items of its rows (queries), and of its columns (gallery).
    pub first_row: usize,
    pub rows: usize,
    pub first_column: usize,
    pub columns: usize,
    /// Margins of its rows and columns.
    pub row_margins: &'a [f64],
    pub column_margins: &'a [f64],
    /// Whether the columns count as queries of the rows, too.
    pub symmetric: bool,
}

#[derive(Default)]
struct Buffers<N> {
    tile: Vec<f32>,
    sides: [SideBuffers; 2],
    found: Found,
    scratch: Scratch,
    notes: N,
}

#[derive(Default)]
struct SideBuffers {
    low: Vec<f32>,
    high: Vec<f32>,
    group: Vec<u32>,
}

impl SideBuffers {
    /// Takes up the thresholds and groups, and fills up with ones that nothing passes.
    fn fill(&mut self, padded: usize, items: impl Iterator<Item = ((f32, f32), u32)>) {
        self.low.clear();
        self.high.clear();
        self.group.clear();
        for ((low, high), group) in items.chain(std::iter::repeat((CLOSED, u32::MAX))).take(padded) {
            self.low.push(low);
            self.high.push(high);
            self.group.push(group);
        }
    }

    fn edge(&self, from: usize, to: usize) -> Edge<'_> {
        Edge { low: &self.low[from..to], high: &self.high[from..to], group: &self.group[from..to] }
    }
}

/// Rows of a block of this space.
fn rows_per_block<S: Space>(space: &S) -> usize {
    let kernel = space.kernel();
    let panel = kernel.rows * kernel.columns;
    (BLOCK_BYTES / (4 * space.steps())).div_ceil(panel).max(1) * panel
}

fn blocks(rows: std::ops::Range<usize>, size: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let end = rows.end;
    rows.step_by(size).map(move |start| start..(start + size).min(end))
}

/// Every pair of an item in `rows` and a later one in `columns`, of one array.
pub(crate) fn triangle<S: Space, O: Observer>(
    space: &S,
    observer: &O,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
    control: &Control,
) -> Result<()> {
    let size = rows_per_block(space);
    for columns in blocks(columns, size) {
        control.check()?;
        let column_block = Block::load(space, Side::Query, columns.clone(), space.kernel().columns)?;
        for rows in blocks(rows.start..rows.end.min(columns.end), size) {
            control.check()?;
            let row_block = Block::load(space, Side::Query, rows, space.kernel().rows)?;
            pair(space, observer, &row_block, &column_block, true, control)?;
        }
    }
    Ok(())
}

/// Every pair of a query in `queries` and a gallery item.
pub(crate) fn rectangle<S: Space, O: Observer>(
    space: &S,
    observer: &O,
    queries: std::ops::Range<usize>,
    control: &Control,
) -> Result<()> {
    let size = rows_per_block(space);
    for columns in blocks(0..space.rows(Side::Gallery), size) {
        control.check()?;
        let column_block = Block::load(space, Side::Gallery, columns, space.kernel().columns)?;
        for rows in blocks(queries.clone(), size) {
            control.check()?;
            let row_block = Block::load(space, Side::Query, rows, space.kernel().rows)?;
            pair(space, observer, &row_block, &column_block, false, control)?;
        }
    }
    Ok(())
}

fn pair<S: Space, O: Observer>(
    space: &S,
    observer: &O,
    rows: &Block,
    columns: &Block,
    symmetric: bool,
    control: &Control,
) -> Result<()> {
    let kernel = space.kernel();
    let row_margins = collected(rows.extents.iter().map(|&e| space.margin(e, columns.worst)))?;
    let column_margins = collected(columns.extents.iter().map(|&e| space.margin(e, rows.worst)))?;
    let fitting = |bytes: usize, lanes: usize| (bytes / (4 * space.steps() * lanes)).clamp(1, MOST_PANELS) * lanes;
    let (task_rows, task_columns) = (fitting(TASK_ROW_BYTES, kernel.rows), fitting(TASK_COLUMN_BYTES, kernel.columns));
    let (row_tasks, column_tasks) = (rows.rows.len().div_ceil(task_rows), columns.rows.len().div_ceil(task_columns));
    let band_tasks = (BAND_BYTES / TASK_ROW_BYTES).max(1);
    (0..row_tasks * column_tasks).into_par_iter().for_each_init(
        || Buffers { tile: vec![0.0; MAX_TILE], ..Buffers::<O::Notes>::default() },
        |buffers, index| {
            if control.is_cancelled() {
                return;
            }
            // Neighbouring indices share columns, which stay in the second-level cache while the rows of a band go by; the
            // band stays in the third-level cache, with what is read of its original rows, while the columns go by.
            let (band, within) = (index / (band_tasks * column_tasks), index % (band_tasks * column_tasks));
            let tasks_of_band = band_tasks.min(row_tasks - band * band_tasks);
            let (c, r) = (within / tasks_of_band, band * band_tasks + within % tasks_of_band);
            let row_range = r * task_rows..((r + 1) * task_rows).min(rows.rows.len());
            let column_range = c * task_columns..((c + 1) * task_columns).min(columns.rows.len());
            let task = Task {
                first_row: rows.rows.start + row_range.start,
                rows: row_range.len(),
                first_column: columns.rows.start + column_range.start,
                columns: column_range.len(),
                row_margins: &row_margins[row_range],
                column_margins: &column_margins[column_range],
                symmetric,
            };
            if !symmetric || task.first_row + 1 < task.first_column + task.columns {
                run(space, observer, rows, columns, &task, buffers);
            }
            control.advance(task.pairs());
        },
    );
    control.check()
}

impl Task<'_> {
    /// Pairs that count: under symmetry only those whose row comes before the column.
    fn pairs(&self) -> u64 {
        if !self.symmetric {
            return self.rows as u64 * self.columns as u64;
        }
        let end = self.first_column + self.columns;
        (self.first_row..self.first_row + self.rows)
            .map(|row| end.saturating_sub(self.first_column.max(row + 1)) as u64)
            .sum()
    }
}

fn run<S: Space, O: Observer>(
    space: &S,
    observer: &O,
    rows: &Block,
    columns: &Block,
    task: &Task<'_>,
    buffers: &mut Buffers<O::Notes>,
) {
    let kernel = space.kernel();
    let (height, width) = (kernel.rows, kernel.columns);
    let product = kernel.product(space.word());
    let steps = space.steps();
    let Buffers { tile, sides: [row_side, column_side], found, scratch, notes } = buffers;
    let padded = task.columns.next_multiple_of(width);
    row_side.fill(
        task.rows,
        (0..task.rows).map(|i| {
            let query = task.first_row + i;
            (observer.limits(query, task.row_margins[i]), observer.group(Side::Query, query))
        }),
    );
    column_side.fill(
        padded,
        (0..task.columns).map(|j| {
            let item = task.first_column + j;
            let limits = if task.symmetric { observer.limits(item, task.column_margins[j]) } else { CLOSED };
            (limits, observer.group(Side::Gallery, item))
        }),
    );
    found.reset(task.rows, padded);
    for j in (0..padded).step_by(width) {
        let first_column = task.first_column + j;
        let valid = (task.columns - j).min(width);
        let column_at = first_column - columns.rows.start;
        for i in (0..task.rows).step_by(height) {
            let first_row = task.first_row + i;
            let tall = (task.rows - i).min(height);
            if task.symmetric && first_row + 1 >= first_column + valid {
                break;
            }
            let row_at = first_row - rows.rows.start;
            product.tile(steps, rows.panel(row_at / height), columns.panel(column_at / width), tile);
            if space.biased() {
                let column_biases = &columns.biases[column_at..column_at + width];
                for (line, row_bias) in tile.chunks_exact_mut(width).zip(&rows.biases[row_at..row_at + tall]) {
                    for (value, column_bias) in line.iter_mut().zip(column_biases) {
                        *value -= row_bias + column_bias;
                    }
                }
            }
            let on_diagonal = task.symmetric && first_row + tall > first_column;
            if on_diagonal || valid < width {
                for (k, line) in tile.chunks_exact_mut(width).take(tall).enumerate() {
                    if on_diagonal {
                        let below = (first_row + k + 1).saturating_sub(first_column).min(width);
                        line[..below].fill(f32::NEG_INFINITY);
                    }
                    line[valid..].fill(f32::NEG_INFINITY);
                }
            }
            kernel.sweep(tile, row_side.edge(i, i + tall), column_side.edge(j, j + width), (i as u32, j as u32), found);
        }
    }
    observer.absorb(space, task, found, scratch, notes);
}
