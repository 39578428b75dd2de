//! Lower bounds of the values of the k-th nearest items, from a part of the gallery, before the rest of it is screened.
//!
//! They spare the traversal most of the candidates of its first tasks. Each lane names the item of its largest screened value. These
//! are distinct items, so the k-th largest of their keys is at most the key of the k-th nearest item, whatever the screen's errors.

use rayon::prelude::*;

use crate::control::Control;
use crate::kernel::MAX_TILE;
use crate::rows::narrow_panels::multiply;
use crate::rows::own_item::OwnItem;
use crate::rows::packing::Packing;
use crate::rows::space::{Scratch, Space};
use crate::screen::rounding::round_down;
use crate::screen::traverse::Blocks;

/// One panel of so many belongs to the part, where that gives enough lanes.
const SPACING: usize = 12;
/// The least spacing: a larger part would cost more than it spares.
const LEAST_SPACING: usize = 4;

/// A part of a block's panels, of which each group of lanes keeps the largest values.
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
    fn choose(panels: usize, width: usize, k: usize) -> Option<Part> {
        let groups = (2 * k).div_ceil(width);
        let spacing = (panels / (2 * groups)).min(SPACING);
        (spacing >= LEAST_SPACING).then(|| Part { spacing, panels: panels / spacing, groups })
    }
}

/// The largest values so far: for each group, row and lane one of a tile, with its panel's number in the part.
struct Largest {
    tile: Vec<f32>,
    values: Vec<f32>,
    panels: Vec<u32>,
    found: Vec<(f32, u32)>,
    pairs: Vec<(u32, u32)>,
    keys: Vec<f64>,
    scratch: Scratch,
}

impl Largest {
    fn new(size: usize) -> Self {
        Largest {
            tile: vec![0.0; MAX_TILE],
            values: vec![f32::NEG_INFINITY; size],
            panels: vec![0; size],
            found: Vec::new(),
            pairs: Vec::new(),
            keys: Vec::new(),
            scratch: Scratch::default(),
        }
    }
}

/// Calls `raise` with a query and a lower bound of the value of its k-th nearest item, for each query of the row block for which the
/// column block has enough items.
pub(super) fn first_thresholds<S: Space>(
    space: &S,
    packing: &impl Packing,
    blocks: Blocks<'_>,
    (k, own): (usize, OwnItem<'_>),
    control: &Control,
    raise: impl Fn(usize, f32) + Sync,
) {
    let Blocks { rows, columns } = blocks;
    let kernel = space.kernel();
    let (height, width) = (kernel.rows, kernel.columns);
    let Some(part) = Part::choose(columns.rows.len() / width, width, k) else { return };
    let size = height * width;
    let product = space.kernel().product(packing.word());
    (0..rows.rows.len().div_ceil(height)).into_par_iter().for_each_init(
        || Largest::new(part.groups * size),
        |largest, row_panel| {
            if control.is_cancelled() {
                return;
            }
            let queries =
                rows.rows.start + row_panel * height..rows.rows.end.min(rows.rows.start + (row_panel + 1) * height);
            largest.values.fill(f32::NEG_INFINITY);
            for number in 0..part.panels {
                let panel = number * part.spacing;
                let tile = &mut largest.tile[..size];
                multiply(product, packing.steps(), (rows.panel(row_panel), columns.panel(panel)), tile);
                kernel.vectorize(|| subtract_rests(tile, width, &blocks, queries.start, panel));
                let first = columns.rows.start + panel * width;
                for (line, query) in tile.chunks_exact_mut(width).zip(queries.clone()) {
                    let own = own.of(query).and_then(|own| (own as usize).checked_sub(first));
                    if let Some(value) = own.and_then(|lane| line.get_mut(lane)) {
                        *value = f32::NEG_INFINITY;
                    }
                }
                let of_group = number % part.groups * size..(number % part.groups + 1) * size;
                let (values, panels) = (&mut largest.values[of_group.clone()], &mut largest.panels[of_group]);
                kernel.vectorize(|| keep_larger(tile, number as u32, values, panels));
            }
            for (row, query) in queries.enumerate() {
                let item = |panel: u32, lane: usize| {
                    (columns.rows.start + panel as usize * part.spacing * width + lane) as u32
                };
                if let Some(key) = largest.kth_key(space, query, k, (row, height, width), item) {
                    raise(query, round_down(space.value(query, key) - space.value_slack()));
                }
            }
        },
    );
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
    /// Computes the k-th largest key of the items with the largest values of a row; `None` if they are fewer.
    fn kth_key<S: Space>(
        &mut self,
        space: &S,
        query: usize,
        k: usize,
        (row, height, width): (usize, usize, usize),
        item: impl Fn(u32, usize) -> u32,
    ) -> Option<f64> {
        self.found.clear();
        for (values, panels) in self.values.chunks_exact(height * width).zip(self.panels.chunks_exact(height * width)) {
            let lanes = values[row * width..][..width].iter().zip(&panels[row * width..]).enumerate();
            let lanes = lanes.filter(|(_, (value, _))| **value > f32::NEG_INFINITY);
            self.found.extend(lanes.map(|(lane, (value, panel))| (*value, item(*panel, lane))));
        }
        // Some more than k, since values are not quite in the order of keys.
        let most = k + k / 4 + 1;
        if self.found.len() < k {
            return None;
        }
        if self.found.len() > most {
            self.found.select_nth_unstable_by(most - 1, |a, b| b.0.total_cmp(&a.0));
            self.found.truncate(most);
        }
        self.pairs.clear();
        self.pairs.extend(self.found.iter().map(|(_, item)| (query as u32, *item)));
        self.keys.clear();
        space.keys(&self.pairs, &mut self.scratch, &mut self.keys);
        let (_, kth, _) = self.keys.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
        Some(*kth)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use ndarray::Array2;
    use proptest::prelude::*;

    use super::*;
    use crate::error::Result;
    use crate::kernel::{SweepResult, names, select};
    use crate::rows::codes::Codes;
    use crate::rows::dense::{Dense, Precision};
    use crate::rows::dense_packing::DensePacking;
    use crate::rows::matrix::Matrix;
    use crate::rows::packing::{ExpectedThreshold, Goal};
    use crate::rows::similarity::Similarity;
    use crate::screen::traverse::{Observer, Task, traverse_rectangle};
    use crate::side::Side;

    #[test]
    fn a_part_has_lanes_for_twice_k_and_is_at_most_a_quarter() {
        for k in 1..200 {
            for panels in 0..400 {
                let Some(Part { spacing, panels: chosen, groups }) = Part::choose(panels, 8, k) else {
                    assert!(panels < 8 * (2 * k).div_ceil(8));
                    continue;
                };
                assert!(groups * 8 >= 2 * k && chosen >= 2 * groups);
                assert!(spacing >= LEAST_SPACING && chosen * spacing <= panels);
            }
        }
    }

    /// Keeps the thresholds of the first blocks.
    struct First<'a> {
        k: usize,
        own: OwnItem<'a>,
        found: Mutex<Vec<(usize, f32)>>,
    }

    impl Observer for First<'_> {
        type Buffers = ();

        fn group(&self, _side: Side, _item: usize) -> u32 {
            0
        }

        fn brackets(&self, _query: usize, _visit: impl FnMut((f64, f64))) {}

        fn begin<S: Space>(&self, space: &S, packing: &impl Packing, blocks: Blocks<'_>, control: &Control) {
            let raise = |query, threshold| self.found.lock().unwrap().push((query, threshold));
            first_thresholds(space, packing, blocks, (self.k, self.own), control, raise);
        }

        fn observe<S: Space>(&self, _: &S, _: &Task<'_>, _: &SweepResult, _: &mut Scratch, (): &mut ()) {}
    }

    /// Returns the number of queries with thresholds, none of which is above the value of its k-th nearest item.
    fn check<S: Space>(space: &S, packing: &impl Packing, k: usize, own: OwnItem<'_>) -> usize {
        let (first, control) = (First { k, own, found: Mutex::default() }, Control::default());
        traverse_rectangle(space, packing, &first, 0..space.rows(Side::Query), &control).unwrap();
        let found = first.found.into_inner().unwrap();
        for &(query, threshold) in &found {
            let items = (0..space.rows(Side::Gallery) as u32).filter(|item| own.of(query) != Some(u64::from(*item)));
            let (mut keys, pairs) = (Vec::new(), items.map(|item| (query as u32, item)).collect::<Vec<_>>());
            space.keys(&pairs, &mut Scratch::default(), &mut keys);
            keys.sort_unstable_by(|a, b| b.total_cmp(a));
            assert!(f64::from(threshold) <= space.value(query, keys[k - 1]));
        }
        found.len()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

        #[test]
        fn thresholds_are_at_most_the_values_of_the_k_th_nearest(
            values in proptest::collection::vec(0u8..4, 500 * 3),
            k in 1usize..9,
            own in proptest::sample::select(&[OwnItem::Absent, OwnItem::SameIndex][..]),
        ) {
            let x = Array2::from_shape_fn((500, 3), |(i, j)| f32::from(values[3 * i + j]) + 0.25);
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
