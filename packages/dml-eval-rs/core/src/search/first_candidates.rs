//! The first candidates of each query, from a part of the gallery, before the rest of it is screened: the cells near the query where like
//! items adjoin, or else panels evenly spaced.
//!
//! They spare the traversal most of its candidates. Each lane names the item of its largest screened value. These are distinct items,
//! so the k-th largest of their keys is at most the key of the k-th nearest item, whatever the screen's errors.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{MAX_TILE, Tiles};
use crate::memory::{Grow, collect, full, ready, zeros};
use crate::rows::narrow_panels::multiply;
use crate::rows::packing::Packing;
use crate::rows::space::Space;
use crate::screen::block::Blocks;
use crate::screen::rounding::round_down;
use crate::search::cells::{Cells, Nearness};
use crate::search::filter::Filter;
use crate::search::shortlist::Keys;

/// One panel of so many belongs to the part, where that gives enough lanes.
const SPACING: usize = 12;
/// Items of the cells near some queries: the least, and for each neighbour.
const LEAST_NEAR: usize = 768;
const NEAR_PER_NEIGHBOUR: usize = 32;

/// A part of a block's panels, evenly spaced, of which each group of lanes keeps the largest values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    /// Panels between two of the part.
    spacing: usize,
    panels: usize,
    /// Groups of lanes: panel i of the part belongs to group i modulo this.
    groups: usize,
}

impl Part {
    /// Chooses a part of so many panels of `width` lanes for k nearest items; `None` if there are too few.
    fn choose(panels: usize, width: usize, k: usize, least_spacing: usize) -> Option<Part> {
        let groups = (2 * k).div_ceil(width);
        let spacing = (panels / (2 * groups)).min(SPACING);
        (spacing >= least_spacing.max(1)).then(|| Part { spacing, panels: panels / spacing, groups })
    }
}

/// The largest values so far: for each group, row and lane one of a tile, with its panel.
struct Largest {
    tile: Vec<f32>,
    most: Vec<f32>,
    values: Vec<f32>,
    panels: Vec<u32>,
    found: Vec<(f32, u32)>,
    candidates: Vec<(u32, f64)>,
    keys: Keys,
    nearness: Nearness,
}

impl Largest {
    fn new(size: usize) -> Result<Self> {
        Ok(Largest {
            tile: zeros(MAX_TILE)?,
            most: Vec::new(),
            values: full(size, f32::NEG_INFINITY)?,
            panels: zeros(size)?,
            found: Vec::new(),
            candidates: Vec::new(),
            keys: Keys::default(),
            nearness: Nearness::default(),
        })
    }
}

/// Calls `take` with a query and at least k items that count for it, with their keys, in any order, for each query of the row block for
/// which the column block has enough items. `below` bounds a query's values.
pub(super) fn first_candidates<S: Space>(
    space: &S,
    packing: &impl Packing,
    blocks: Blocks<'_>,
    (k, filter, below): (usize, &Filter<'_>, impl Fn(usize) -> f64 + Sync),
    control: &Control,
    take: impl Fn(usize, &[(u32, f64)]) -> Result<()> + Sync,
) -> Result<()> {
    let Blocks { rows, columns } = blocks;
    let kernel = space.kernel();
    let Tiles { rows: height, columns: width, .. } = *kernel.tiles(packing.word());
    let Some(part) = Part::choose(columns.rows.len() / width, width, k, control.sizes().first_spacing) else {
        return Ok(());
    };
    let size = height * width;
    let product = kernel.product(packing.word());
    // The cells nearest to a query have its label, and values above its bound.
    let cells = if filter.labels.is_some() || filter.below.is_some() {
        None
    } else {
        Cells::of(columns, packing, kernel, control)?
    };
    control
        .took(|| if cells.is_some() { "first candidates from cells" } else { "first candidates from spaced panels" });
    let most = part.panels.min(LEAST_NEAR.max(NEAR_PER_NEIGHBOUR * k) / width).max(1);
    let spaced = collect((0..part.panels).map(|number| (number * part.spacing) as u32))?;
    (0..rows.rows.len().div_ceil(height)).into_par_iter().try_for_each_init(
        || Largest::new(part.groups * size),
        |largest, row_panel| -> Result<()> {
            control.check()?;
            let largest = ready(largest)?;
            let queries =
                rows.rows.start + row_panel * height..rows.rows.end.min(rows.rows.start + (row_panel + 1) * height);
            let panels = match &cells {
                Some(cells) => {
                    cells.nearest(kernel, rows.panel(row_panel), queries.len(), most, &mut largest.nearness)?
                }
                None => &spaced,
            };
            // Values from here on may reach the bound.
            let most = queries.clone().map(|query| {
                let margin = packing.margin(rows.extents[query - rows.rows.start], columns.worst);
                round_down(below(query) - packing.offset() - margin)
            });
            largest.most.clear();
            largest.most.try_extend(most)?;
            largest.values.fill(f32::NEG_INFINITY);
            for (number, &panel) in panels.iter().enumerate() {
                let tile = &mut largest.tile[..size];
                multiply(product, packing.steps(), (rows.panel(row_panel), columns.panel(panel as usize)), tile)?;
                let first = columns.rows.start + panel as usize * width;
                kernel.vectorize(|| {
                    let of_query = queries.clone().zip(&largest.most);
                    for (line, (query, most)) in tile.chunks_exact_mut(width).zip(of_query) {
                        filter.mask(query, first..first + width, *most, line);
                    }
                    subtract_rests(tile, width, &blocks, queries.start, panel as usize);
                });
                let of_group = number % part.groups * size..(number % part.groups + 1) * size;
                let (values, panels) = (&mut largest.values[of_group.clone()], &mut largest.panels[of_group]);
                kernel.vectorize(|| keep_larger(tile, panel, values, panels));
            }
            for (row, query) in queries.enumerate() {
                let item = |panel: u32, lane: usize| (columns.rows.start + panel as usize * width + lane) as u32;
                if let Some(candidates) = largest.candidates(space, query, k, (row, height, width), item)? {
                    take(query, candidates)?;
                }
            }
            Ok(())
        },
    )
}

/// Keeps the larger of each two values, and the number of the panel that it comes from.
#[inline(always)]
fn keep_larger(tile: &[f32], number: u32, values: &mut [f32], panels: &mut [u32]) {
    for ((&value, most), panel) in tile.iter().zip(values).zip(panels) {
        // Without a branch, so that the compiler can use vectors.
        *panel = if value > *most { number } else { *panel };
        *most = if value > *most { value } else { *most };
    }
}

/// Takes half of the width of each value's bounds off, where not all of a row is packed.
#[inline(always)]
fn subtract_rests(tile: &mut [f32], width: usize, blocks: &Blocks<'_>, query: usize, panel: usize) {
    let Blocks { rows, columns } = blocks;
    if rows.rests.is_empty() || columns.rests.is_empty() {
        return;
    }
    let of_columns = &columns.rests[panel * width..][..width];
    for (line, of_row) in tile.chunks_exact_mut(width).zip(&rows.rests[query - rows.rows.start..]) {
        for (value, of_column) in line.iter_mut().zip(of_columns) {
            *value -= (of_row * of_column) as f32;
        }
    }
}

impl Largest {
    /// Returns some items with the largest values of a row, with their keys; `None` if they are fewer than k.
    fn candidates<S: Space>(
        &mut self,
        space: &S,
        query: usize,
        k: usize,
        (row, height, width): (usize, usize, usize),
        item: impl Fn(u32, usize) -> u32,
    ) -> Result<Option<&[(u32, f64)]>> {
        self.found.clear();
        for (values, panels) in self.values.chunks_exact(height * width).zip(self.panels.chunks_exact(height * width)) {
            let lanes = values[row * width..][..width].iter().zip(&panels[row * width..]).enumerate();
            let lanes = lanes.filter(|(_, (value, _))| **value > f32::NEG_INFINITY);
            self.found.try_extend(lanes.map(|(lane, (value, panel))| (*value, item(*panel, lane))))?;
        }
        // Some more than k, since values are not quite in the order of keys.
        let most = k + k / 4 + 1;
        if self.found.len() < k {
            return Ok(None);
        }
        if self.found.len() > most {
            self.found.select_nth_unstable_by(most - 1, |a, b| b.0.total_cmp(&a.0));
            self.found.truncate(most);
        }
        let keys = self.keys.compute(space, query, self.found.iter().map(|(_, item)| *item))?;
        self.candidates.clear();
        self.candidates.try_extend(self.found.iter().zip(keys).map(|((_, item), key)| (*item, *key)))?;
        Ok(Some(&self.candidates))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::Mutex;

    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::{SweepResult, names, select};
    use crate::rows::codes::Codes;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::dense_packing::DensePacking;
    use crate::rows::matrix::Matrix;
    use crate::rows::own_item::OwnItem;
    use crate::rows::packing::{ExpectedThreshold, Goal};
    use crate::rows::similarity::Similarity;
    use crate::rows::space::Scratch;
    use crate::screen::traverse::{Observer, Task, traverse_rectangle};
    use crate::side::Side;

    #[test]
    fn a_part_has_lanes_for_twice_k_and_is_at_most_a_quarter() {
        const LEAST: usize = 4;
        for k in 1..200 {
            for panels in 0..400 {
                let Some(Part { spacing, panels: chosen, groups }) = Part::choose(panels, 8, k, LEAST) else {
                    assert!(panels < 8 * (2 * k).div_ceil(8));
                    continue;
                };
                assert!(groups * 8 >= 2 * k && chosen >= 2 * groups);
                assert!(spacing >= LEAST && chosen * spacing <= panels);
            }
        }
    }

    /// A query and its candidates.
    type Found = (usize, Vec<(u32, f64)>);

    /// Keeps the candidates of the first blocks.
    struct First<'a> {
        k: usize,
        own: OwnItem<'a>,
        found: Mutex<Vec<Found>>,
    }

    impl Observer for First<'_> {
        type Buffers = ();

        fn group(&self, _side: Side, _item: usize) -> u32 {
            0
        }

        fn brackets(&self, _query: usize, _visit: impl FnMut((f64, f64))) {}

        fn begin<S: Space>(
            &self,
            space: &S,
            packing: &impl Packing,
            blocks: Blocks<'_>,
            control: &Control,
        ) -> Result<()> {
            let take = |query, candidates: &[_]| {
                self.found.lock().unwrap().push((query, candidates.to_vec()));
                Ok(())
            };
            first_candidates(space, packing, blocks, (self.k, &self.own.into(), |_| f64::INFINITY), control, take)
        }

        fn observe<S: Space>(&self, _: &S, _: &Task<'_>, _: &SweepResult, _: &mut Scratch, (): &mut ()) -> Result<()> {
            Ok(())
        }
    }

    /// Returns the number of queries with candidates. These are different items with their keys, at least k.
    fn check<S: Space>(space: &S, packing: &impl Packing, k: usize, own: OwnItem<'_>) -> usize {
        let (first, control) = (First { k, own, found: Mutex::default() }, Control::default());
        traverse_rectangle(space, packing, &first, 0..space.rows(Side::Query), &control).unwrap();
        let found = first.found.into_inner().unwrap();
        for (query, candidates) in &found {
            let items: BTreeSet<u32> = candidates.iter().map(|(item, _)| *item).collect();
            assert!(items.len() == candidates.len() && items.len() >= k);
            assert!(items.iter().all(|item| own.of(*query) != Some(u64::from(*item))));
            let pairs: Vec<(u32, u32)> = candidates.iter().map(|(item, _)| (*query as u32, *item)).collect();
            let mut keys = Vec::new();
            space.keys(&pairs, &mut Scratch::default(), &mut keys).unwrap();
            assert_eq!(keys, candidates.iter().map(|(_, key)| *key).collect::<Vec<f64>>());
        }
        found.len()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn candidates_are_items_with_their_keys(
            values in proptest::collection::vec(0u8..4, 500 * 3),
            k in 1usize..9,
            own in proptest::sample::select(&[OwnItem::Absent, OwnItem::SameIndex][..]),
            is_in_order in any::<bool>(),
        ) {
            let mut rows: Vec<&[u8]> = values.chunks(3).collect();
            if is_in_order {
                rows.sort_unstable();
            }
            let x = Array2::from_shape_fn((500, 3), |(i, j)| f32::from(rows[i][j]) + 0.25);
            for name in names() {
                let kernel = select(Some(name)).unwrap();
                let control = Control::default();
                for similarity in [Similarity::Cosine, Similarity::Euclidean] {
                    let rows = Matrix::F32(x.view());
                    let dense = Dense::new(rows, None, similarity, Precision::SixteenBit, kernel, &control).unwrap();
                    for packing in DensePacking::of_each_kind(&dense) {
                        prop_assert_eq!(check(&dense, &packing, k, own), 500);
                    }
                }
                let codes = x.mapv(|v| v as u8);
                let codes = Codes::new(codes.view(), None, kernel).unwrap();
                let none = || -> Result<Vec<ExpectedThreshold>> { Ok(Vec::new()) };
                let packing = codes.packing(&Goal { pairs: 1, thresholds: &none }, &control).unwrap();
                prop_assert_eq!(check(&codes, &packing, k, own), 500);
            }
        }
    }
}
