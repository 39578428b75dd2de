//! Ranks the positives of a query by counting the distances of all items.
//!
//! Distances of codes are small integers, so the numbers of items per distance give the ranks,
//! except the order of items with equal distances. If ties are broken by index, this order comes
//! from a second pass over the items.

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Kernel;
use crate::memory::{Grow, full, zeros};
use crate::rank::relation::Kind;
use crate::rank::ties::{Positive, Ties};
use crate::rank::values::Order;

/// A row is read in this number of parts at once: if consecutive items had the same distance, an
/// addition would wait for the last one.
const PARTS: usize = 4;

/// Counts of items by mark. The mark of an item is twice the distance, plus 1 if it matches.
pub(crate) struct DistanceRanker {
    /// The number of items per mark.
    counts: Vec<u32>,
    /// The number of items per part of the row and mark: all marks of the first part come first.
    by_part: Vec<u32>,
    distances: usize,
    /// The slot of the next positive per distance.
    slots: Vec<u32>,
    /// Per part and distance, the number of items that are nearer than the next item.
    nearer: Vec<u32>,
    /// Per part, the positives: the distance and, in the lower half, the number of nearer items.
    found: Vec<u64>,
    /// The marks of the nearest items, in the row's order.
    nearest: Vec<u16>,
}

/// Calls `visit` with parts and the items in them: the first items of all parts first. The last
/// part is longer than the others if the number of items isn't a multiple of `PARTS`.
#[inline(always)]
fn visit_parts(marks: &[u16], mut visit: impl FnMut(usize, u16)) {
    let length = marks.len() / PARTS;
    let parts: [&[u16]; PARTS] = std::array::from_fn(|part| &marks[part * length..][..length]);
    (0..length).for_each(|at| (0..PARTS).for_each(|part| visit(part, parts[part][at])));
    marks[PARTS * length..].iter().for_each(|mark| visit(PARTS - 1, *mark));
}

impl DistanceRanker {
    /// The largest distance. The mark of excluded items is twice the next integer, and must fit
    /// into 16 bits.
    pub const LARGEST: usize = (1 << 15) - 2;

    /// Allocates counts for distances from 0 to `largest`.
    pub fn new(largest: usize) -> Result<Self> {
        let distances = largest + 1;
        Ok(DistanceRanker {
            counts: zeros(2 * (distances + 1))?,
            by_part: zeros(2 * (distances + 1) * PARTS)?,
            distances,
            slots: zeros(distances + 1)?,
            nearer: zeros((distances + 1) * PARTS)?,
            found: Vec::new(),
            nearest: Vec::new(),
        })
    }

    /// Counts the row's items, and stores the marks.
    pub fn count(
        &mut self,
        row: &[u16],
        kinds: &[Kind],
        marks: &mut Vec<u16>,
        kernel: &Kernel,
    ) -> Result<()> {
        let distances = self.distances;
        marks.try_resize(row.len(), 0)?;
        kernel.vectorize(
            #[inline(always)]
            || {
                // If this was computed before, the compiler would use branches instead of vectors.
                let excluded = 2 * distances as u16;
                for ((mark, distance), kind) in marks.iter_mut().zip(row).zip(kinds) {
                    let counted = 2 * distance + *kind as u16;
                    *mark = if *kind == Kind::Excluded { excluded } else { counted };
                }
            },
        );
        self.counts.fill(0);
        self.count_by_part(marks);
        let stride = self.counts.len();
        for part in self.by_part.chunks_exact(stride) {
            self.counts.iter_mut().zip(part).for_each(|(sum, count)| *sum += count);
        }
        Ok(())
    }

    fn count_by_part(&mut self, marks: &[u16]) {
        self.by_part.fill(0);
        let (stride, by_part) = (self.counts.len(), &mut self.by_part[..]);
        visit_parts(marks, |part, mark| by_part[part * stride + usize::from(mark)] += 1);
    }

    /// Iterates over the numbers of negatives and positives per distance.
    fn by_distance(&self) -> impl Iterator<Item = (usize, usize)> {
        let (counts, _) = self.counts[..2 * self.distances].as_chunks::<2>();
        counts.iter().map(|[negatives, positives]| (*negatives as usize, *positives as usize))
    }

    /// Orders the positives of a marked row under a rule for ties. `depth` is the last rank that
    /// matters apart from the first positive's; larger ranks may be too large.
    pub fn order(
        &mut self,
        marks: &[u16],
        ties: Ties,
        depth: u64,
        control: &Control,
    ) -> Result<Order> {
        if ties == Ties::Expected {
            let mut before = 0;
            let number = self.by_distance().filter(|(_, positives)| *positives > 0).count();
            return Order::from_groups(
                number,
                self.by_distance().filter_map(|(negatives, positives)| {
                    before += negatives as u64;
                    (positives > 0).then(|| {
                        (
                            std::mem::take(&mut before) - negatives as u64,
                            positives as u64,
                            negatives as u64,
                        )
                    })
                }),
            );
        }
        let number = self.by_distance().map(|(_, positives)| positives).sum::<usize>();
        let mut ranks = full(number + 1, 0)?;
        if ties != Ties::Index {
            let mut before = 0;
            for (negatives, positives) in self.by_distance() {
                ranks[before + if ties == Ties::Optimistic { positives } else { 0 }] +=
                    negatives as u64;
                before += positives;
            }
            return Ok(Order::from_counts(ranks));
        }
        ranks.pop();
        self.first_slots();
        let mut nearest = std::mem::take(&mut self.nearest);
        let marks = if self.keep_nearest(marks, depth, &mut nearest)? {
            control.took(|| "first ranks from distances");
            ranks.fill(marks.len() as u64);
            self.count_by_part(&nearest);
            &nearest
        } else {
            marks
        };
        let ends = self.find(marks)?;
        for (part, end) in ends.into_iter().enumerate() {
            for positive in &self.found[part * (marks.len() / PARTS)..end] {
                let slot = &mut self.slots[(positive >> 32) as usize];
                ranks[*slot as usize] = (positive & u64::from(u32::MAX)) + 1;
                *slot += 1;
            }
        }
        self.nearest = nearest;
        Ok(Order::Ranks(ranks))
    }

    /// Keeps the items up to the distance of rank `depth`, and up to the first positive. Returns
    /// false if these are more than half of the row.
    fn keep_nearest(&self, marks: &[u16], depth: u64, nearest: &mut Vec<u16>) -> Result<bool> {
        let (mut before, mut positives_before, mut distances) = (0, 0, 0);
        for (negatives, positives) in self.by_distance() {
            if before >= depth && positives_before > 0 {
                break;
            }
            before += (negatives + positives) as u64;
            positives_before += positives;
            distances += 1;
        }
        if before > marks.len() as u64 / 2 {
            return Ok(false);
        }
        nearest.clear();
        nearest.try_resize(marks.len(), 0)?;
        let mut number = 0;
        for mark in marks {
            // Always store the mark, because the CPU would mispredict a branch.
            nearest[number] = *mark;
            number += usize::from(*mark < 2 * distances);
        }
        nearest.truncate(number);
        Ok(true)
    }

    /// Finds the positives in a marked row. Returns where the positives of each part end.
    fn find(&mut self, marks: &[u16]) -> Result<[usize; PARTS]> {
        let (stride, length) = (self.distances + 1, marks.len() / PARTS);
        let mut before = 0;
        for distance in 0..self.distances {
            for (part, counts) in self.by_part.chunks_exact(2 * stride).enumerate() {
                self.nearer[part * stride + distance] = before;
                before += counts[2 * distance] + counts[2 * distance + 1];
            }
        }
        self.found.try_resize(marks.len(), 0)?;
        let mut ends = std::array::from_fn(|part| part * length);
        let (nearer, found) = (&mut self.nearer[..], &mut self.found[..]);
        visit_parts(marks, |part, mark| {
            let distance = mark >> 1;
            let nearer = &mut nearer[part * stride + usize::from(distance)];
            // Always store the item, because the CPU would mispredict a branch.
            found[ends[part]] = u64::from(distance) << 32 | u64::from(*nearer);
            *nearer += 1;
            ends[part] += usize::from(mark & 1);
        });
        Ok(ends)
    }

    /// Sets the slots of distances to the number of positives at smaller distances. The last slot
    /// is for excluded items.
    fn first_slots(&mut self) {
        let (counts, _) = self.counts[..2 * self.distances].as_chunks::<2>();
        let mut before = 0;
        for (slot, positives) in
            self.slots.iter_mut().zip(counts.iter().map(|[_, positives]| *positives).chain([0]))
        {
            *slot = before;
            before += positives;
        }
    }

    /// Lists the positives of a marked row in ranking order.
    pub fn list_positives(
        &mut self,
        marks: &[u16],
        index: impl Fn(usize) -> u64,
    ) -> Result<Vec<Positive>> {
        self.first_slots();
        let mut positives =
            full(self.slots[self.distances] as usize, Positive { key: 0.0, index: 0 })?;
        for (place, mark) in marks.iter().enumerate().filter(|(_, mark)| *mark & 1 == 1) {
            let slot = &mut self.slots[usize::from(mark >> 1)];
            positives[*slot as usize] =
                Positive { key: 0.0 - f64::from(mark >> 1), index: index(place) };
            *slot += 1;
        }
        Ok(positives)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::kernel::select;
    use crate::rank::metric::Metric;
    use crate::rank::ties::TieRules;
    use crate::rank::values::Discounts;

    proptest! {
        #[test]
        fn counts_are_those_of_each_negatives_slot(
            items in proptest::collection::vec((0u16..7, 0u8..3), 1..90), first in 0u64..9,
        ) {
            let kinds: Vec<Kind> = items
                .iter()
                .map(|(_, kind)| [Kind::Negative, Kind::Match, Kind::Excluded][usize::from(*kind)])
                .collect();
            let row: Vec<u16> = items.iter().map(|(distance, _)| *distance).collect();
            let with_kind = |kind| {
                let own =
                    items.iter().zip(&kinds).enumerate().filter(move |(_, (_, own))| **own == kind);
                own.map(|(i, ((distance, _), _))| Positive {
                    key: 0.0 - f64::from(*distance),
                    index: first + i as u64,
                })
            };
            let mut positives: Vec<Positive> = with_kind(Kind::Match).collect();
            positives.sort_by(|a, b| b.key.total_cmp(&a.key).then(a.index.cmp(&b.index)));
            prop_assume!(!positives.is_empty());
            let (mut ranker, mut marks) = (DistanceRanker::new(6).unwrap(), Vec::new());
            ranker.count(&row, &kinds, &mut marks, select(None).unwrap()).unwrap();
            let shallow = [
                Metric::MapAtR,
                Metric::RPrecision,
                Metric::ReciprocalRank,
                Metric::Recall(9),
            ];
            let deep = [Metric::AveragePrecision];
            let depth = positives.len() as u64;
            let (control, discounts) =
                (Control::default(), Discounts::new(0, &Control::default()).unwrap());
            for ties in [Ties::Index, Ties::Optimistic, Ties::Pessimistic, Ties::Expected] {
                let rules = TieRules::from(ties);
                let mut counts = vec![0; rules.slots_per_positive() * positives.len() + 1];
                with_kind(Kind::Negative)
                    .for_each(|n| counts[rules.slot(0, &positives, n.key, n.index)] += 1);
                for (metrics, depth) in [(&deep[..], u64::MAX), (&shallow[..], depth)] {
                    let orders = [
                        ranker.order(&marks, ties, depth, &control),
                        Order::new(&positives, &counts, (rules, ties)),
                    ];
                    let [found, expected] = orders.map(|order| {
                        order.unwrap().metrics(metrics, None, &discounts, &control).unwrap()
                    });
                    prop_assert_eq!(found, expected);
                }
            }
            prop_assert_eq!(
                ranker.list_positives(&marks, |place| first + place as u64).unwrap(),
                positives
            );
        }
    }
}
