//! Sweeps count and list the products in a tile. `several` is a sweep for multiple brackets per
//! item, in portable Rust.

use std::ops::Range;

use super::brackets::ItemBrackets;
use crate::error::Result;
use crate::memory::Grow;

/// The sides of a tile with thresholds to be compared with the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sides {
    Rows,
    Both,
}

/// A value between the thresholds of the row or column, and the position in the task.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hit {
    pub row: u32,
    pub column: u32,
    pub value: f32,
}

/// The number of unlisted values above a bracket, per bracket and item on a side.
#[derive(Default)]
pub(crate) struct Above {
    counts: Vec<u32>,
    pub(super) items: usize,
}

impl Above {
    fn reset(&mut self, items: usize, brackets: usize) -> Result<()> {
        self.items = items;
        self.counts.clear();
        self.counts.try_resize(items * brackets, 0)
    }

    /// Returns the counts per bracket, item by item.
    pub fn by_bracket(&self) -> std::slice::ChunksExact<'_, u32> {
        self.counts.chunks_exact(self.items.max(1))
    }

    /// Returns the counts for a bracket.
    pub fn of(&mut self, bracket: usize) -> &mut [u32] {
        &mut self.counts[bracket * self.items..][..self.items]
    }
}

/// The counts and hits from the sweeps of a task.
#[derive(Default)]
pub(crate) struct SweepResult {
    pub row_above: Above,
    pub column_above: Above,
    pub row_hits: Vec<Hit>,
    pub column_hits: Vec<Hit>,
}

impl SweepResult {
    /// Starts a task, given how many rows and columns it has, and how many brackets each row and
    /// each column has.
    pub fn reset(
        &mut self,
        (rows, row_brackets): (usize, usize),
        (columns, column_brackets): (usize, usize),
    ) -> Result<()> {
        self.row_hits.clear();
        self.column_hits.clear();
        self.row_above.reset(rows, row_brackets)?;
        self.column_above.reset(columns, column_brackets)
    }

    /// Reserves room for the hits of tiles with `values` values, so that sweeps, which can't fail,
    /// will not allocate.
    pub fn make_room(&mut self, sides: Sides, values: usize) -> Result<()> {
        self.row_hits.make_room(values)?;
        if sides == Sides::Both { self.column_hits.make_room(values) } else { Ok(()) }
    }
}

/// Adds a hit in a tile. There must be room for it.
#[inline(always)]
#[expect(
    clippy::disallowed_methods,
    reason = "room for all values of a tile is reserved before its sweep"
)]
pub(super) fn add(hits: &mut Vec<Hit>, hit: Hit) {
    debug_assert!(hits.len() < hits.capacity());
    hits.push(hit);
}

/// Sweeps a tile of `C` columns. `column` and `tile_rows` tell where it begins in the task.
#[inline(always)]
pub(super) fn several<const C: usize>(
    sides: Sides,
    tile: &[f32],
    (rows, columns): (&ItemBrackets, &ItemBrackets),
    (tile_rows, column): (Range<usize>, usize),
    result: &mut SweepResult,
) {
    let both = sides == Sides::Both;
    let (lines, _) = tile.as_chunks::<C>();
    let of_columns = columns.part(column, C);
    let numbers = |of: &[f32]| -> [f32; C] { of.try_into().expect("a part of C") };
    let group: [u32; C] = of_columns.group.try_into().expect("a part of C");
    let lowest = numbers(of_columns.lowest);
    for (row, values) in tile_rows.zip(lines) {
        let (row_group, row_lowest) = (rows.group(row), rows.lowest(row));
        let (mut row_passing, mut column_passing) = ([0u32; C], [0u32; C]);
        let (mut any_row, mut any_column) = (0, 0);
        for c in 0..C {
            let apart = u32::from(group[c] != row_group);
            row_passing[c] = apart & u32::from(values[c] >= row_lowest);
            any_row |= row_passing[c];
            if both {
                column_passing[c] = apart & u32::from(values[c] >= lowest[c]);
                any_column |= column_passing[c];
            }
        }
        let hit = |c: usize| Hit { row: row as u32, column: (column + c) as u32, value: values[c] };
        if any_row != 0 {
            let mut within = [0u32; C];
            for b in 0..rows.count() {
                let (low, high) = rows.ends(row, b);
                let mut above = 0;
                for c in 0..C {
                    let is_above = row_passing[c] & u32::from(values[c] > high);
                    above += is_above;
                    within[c] |= row_passing[c] & u32::from(values[c] >= low) & (is_above ^ 1);
                }
                result.row_above.of(b)[row] += above;
            }
            let uncount = |c: usize, above: &mut Above| {
                for b in (0..rows.count()).filter(|b| values[c] > rows.ends(row, *b).1) {
                    above.of(b)[row] -= 1;
                }
            };
            list(&within, |c| {
                uncount(c, &mut result.row_above);
                add(&mut result.row_hits, hit(c));
            });
        }
        if any_column != 0 {
            let mut within = [0u32; C];
            for b in 0..columns.count() {
                let (low, high) = (numbers(of_columns.low(b)), numbers(of_columns.high(b)));
                let above = &mut result.column_above.of(b)[column..column + C];
                for c in 0..C {
                    let is_above = column_passing[c] & u32::from(values[c] > high[c]);
                    above[c] += is_above;
                    within[c] |=
                        column_passing[c] & u32::from(values[c] >= low[c]) & (is_above ^ 1);
                }
            }
            let uncount = |c: usize, above: &mut Above| {
                for b in (0..columns.count()).filter(|b| values[c] > of_columns.high(*b)[c]) {
                    above.of(b)[column + c] -= 1;
                }
            };
            list(&within, |c| {
                uncount(c, &mut result.column_above);
                add(&mut result.column_hits, hit(c));
            });
        }
    }
}

/// Calls a function for lanes that are set, which should be few.
#[inline(always)]
fn list<const C: usize>(lanes: &[u32; C], mut of: impl FnMut(usize)) {
    const PART: usize = 4;
    for (p, part) in lanes.chunks_exact(PART).enumerate() {
        if part.iter().fold(0, |any, lane| any | lane) != 0 {
            part.iter()
                .enumerate()
                .filter(|(_, lane)| **lane != 0)
                .for_each(|(c, _)| of(PART * p + c));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{Word, names, select};

    /// The group and the brackets of an item.
    type Item = (u32, Vec<(f32, f32)>);

    fn items(most: usize) -> impl Strategy<Value = Vec<Item>> {
        let bracket =
            (-4i8..5, 0i8..3).prop_map(|(low, width)| (f32::from(low), f32::from(low + width)));
        proptest::collection::vec((0u32..3, proptest::collection::vec(bracket, 0..most)), 48)
    }

    fn fill(items: &[Item]) -> ItemBrackets {
        let mut brackets = ItemBrackets::default();
        brackets.reset(items.len()).unwrap();
        for (i, (group, of_item)) in items.iter().enumerate() {
            brackets.set_group(i, *group);
            for (b, ends) in of_item.iter().enumerate() {
                if b == brackets.count() {
                    brackets.grow().unwrap();
                }
                brackets.set(i, b, *ends);
            }
        }
        brackets
    }

    /// Counts and lists the values of an item by definition. Returns the count per bracket, then
    /// the listed positions.
    fn reference((group, of_item): &Item, values: &[(u32, f32)]) -> (Vec<u32>, Vec<usize>) {
        let apart = || values.iter().enumerate().filter(|(_, (other, _))| other != group);
        let is_within =
            |value: f32| of_item.iter().any(|(low, high)| value >= *low && value <= *high);
        let listed =
            apart().filter(|(_, (_, value))| is_within(*value)).map(|(at, _)| at).collect();
        let above = |high: f32| {
            apart().filter(|(_, (_, value))| *value > high && !is_within(*value)).count() as u32
        };
        (of_item.iter().map(|(_, high)| above(*high)).collect(), listed)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

        #[test]
        fn values_are_counted_above_brackets_and_listed_within_them(
            (row_items, column_items) in
                (1usize..6).prop_flat_map(|most| (items(most), items(most))),
            values in proptest::collection::vec(-5i8..6, 8 * 48), both in any::<bool>(),
        ) {
            for (name, word) in
                names().into_iter().flat_map(|name| [(name, Word::Float32), (name, Word::Bits)])
            {
                let tiles = select(Some(name)).unwrap().tiles(word);
                let (height, width) = (tiles.rows, tiles.columns);
                let (row_items, column_items) = (&row_items[..height], &column_items[..width]);
                let tile: Vec<f32> =
                    values[..height * width].iter().map(|v| f32::from(*v)).collect();
                // When only rows are compared, columns are given groups but not brackets.
                let groups = || {
                    column_items
                        .iter()
                        .map(|(group, _)| (*group, Vec::new()))
                        .collect::<Vec<Item>>()
                };
                let (rows, columns) =
                    (fill(row_items), if both { fill(column_items) } else { fill(&groups()) });
                let mut result = SweepResult::default();
                result.reset((height, rows.count()), (width, columns.count())).unwrap();
                result.make_room(Sides::Both, height * width).unwrap();
                let sides = if both { Sides::Both } else { Sides::Rows };
                tiles.sweep(sides, &tile, (&rows, &columns), (0..height, 0), &mut result);
                let check = |items: &[Item],
                             others: &[Item],
                             above: &Above,
                             hits: Vec<(usize, usize, f32)>,
                             at: &dyn Fn(usize, usize) -> f32| {
                    for (i, item) in items.iter().enumerate() {
                        let values: Vec<_> = others
                            .iter()
                            .enumerate()
                            .map(|(j, other)| (other.0, at(i, j)))
                            .collect();
                        let (counts, listed) = reference(item, &values);
                        let found: Vec<u32> = above.by_bracket().map(|of| of[i]).collect();
                        assert_eq!(found[..counts.len()], counts, "{name}");
                        assert!(found[counts.len()..].iter().all(|count| *count == 0));
                        let of_item = hits.iter().filter(|hit| hit.0 == i);
                        let mut found: Vec<usize> = of_item
                            .map(|hit| {
                                assert_eq!(hit.2, at(i, hit.1));
                                hit.1
                            })
                            .collect();
                        found.sort_unstable();
                        assert_eq!(found, listed, "{name}");
                    }
                };
                let hits = |hits: &[Hit], swap: bool| -> Vec<(usize, usize, f32)> {
                    let of = |h: &Hit| (h.row as usize, h.column as usize, h.value);
                    hits.iter()
                        .map(of)
                        .map(|(r, c, v)| if swap { (c, r, v) } else { (r, c, v) })
                        .collect()
                };
                let at = |r: usize, c: usize| tile[r * width + c];
                check(
                    row_items,
                    column_items,
                    &result.row_above,
                    hits(&result.row_hits, false),
                    &at,
                );
                if both {
                    check(
                        column_items,
                        row_items,
                        &result.column_above,
                        hits(&result.column_hits, true),
                        &|c, r| at(r, c),
                    );
                } else {
                    prop_assert!(result.column_hits.is_empty());
                }
            }
        }
    }
}
