//! The negatives between all positives: exact counts of all scores, which give the whole ROC curve, its area, and every crossing.
//!
//! Each score goes to the list of its part of the positives, of equally many, whatever their distribution. A full list is counted
//! while its part and counts stay in a core's caches.

use std::hint::select_unpredictable;
use std::ops::Range;
use std::sync::Mutex;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Work;
use crate::memory::{allocate, collect, full, zeros};
use crate::peers::{Peers, part, reduce};
use crate::rows::dense::Dense;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::all_scores::visit_scores;
use crate::verification::level::{Crossing, Level};
use crate::verification::pairs::PairLabels;
use crate::verification::sample::Bracket;

/// Cells of a ladder.
const CELLS: usize = 4096;
/// Scores that are compared together. More comparisons cost less than a jump that the CPU mispredicts.
const TOGETHER: usize = 4;
/// Scores of a thread's list for a part.
const SHORT: usize = 64;
/// The most scores of a part, and parts.
const MOST: usize = 1 << 15;

/// Positives and negatives, by score.
#[derive(Debug, PartialEq)]
pub struct Slots {
    /// The distinct scores of the positives, ascending.
    pub scores: Vec<f64>,
    /// The number of positives with each score.
    pub positives: Vec<u64>,
    /// Negatives: below the first score, equal to it, between it and the second, and so on, and above the last.
    pub negatives: Vec<u64>,
}

/// Where a level is reached.
pub(crate) enum Place {
    /// At a positive's score.
    At(Crossing),
    /// Between positives: the negatives above, their number there, and the least and the largest number there.
    Between { above: u64, negatives: u64, range: (f64, f64) },
}

impl Slots {
    /// Finds where a level is reached.
    pub(crate) fn place(&self, level: Level) -> Place {
        const BLOCK: usize = 4096;
        let (mut above, mut positives, mut end) = (0, 0, self.scores.len());
        while end > 0 {
            let start = end.saturating_sub(BLOCK);
            let negatives = above + self.negatives[2 * start + 1..=2 * end].iter().sum::<u64>();
            let accepted = positives + self.positives[start..end].iter().sum::<u64>();
            if level.reached(negatives, accepted) {
                break;
            }
            (above, positives, end) = (negatives, accepted, start);
        }
        loop {
            let negatives = self.negatives[2 * end];
            if end == 0 || level.reached(above + negatives, positives) {
                let low = if end == 0 { f64::NEG_INFINITY } else { self.scores[end - 1].next_up() };
                let high = self.scores.get(end).map_or(f64::INFINITY, |score| score.next_down());
                return Place::Between { above, negatives, range: (low, high) };
            }
            end -= 1;
            above += negatives;
            positives += self.positives[end];
            let at_least = above + self.negatives[2 * end + 1];
            if level.reached(at_least, positives) {
                return Place::At(Crossing { score: self.scores[end], above, at_least });
            }
            above = at_least;
        }
    }
}

/// Ascending distinct numbers, and how many are in lower cells than each of some of equal width.
struct Ladder<'a> {
    /// The numbers, and some beyond them, which are larger.
    numbers: &'a [f64],
    lowest: f64,
    scale: f64,
    before: Vec<u16>,
    /// The most numbers of a cell.
    most: usize,
}

impl<'a> Ladder<'a> {
    /// Makes cells for the first `count` numbers, behind which there are at least [`TOGETHER`] more.
    fn new(numbers: &'a [f64], count: usize) -> Result<Self> {
        let (lowest, width) = if count > 0 { (numbers[0], numbers[count - 1] - numbers[0]) } else { (0.0, 0.0) };
        let scale = if width > 0.0 { (CELLS as f64 / width).min(f64::MAX) } else { 0.0 };
        let mut ladder = Ladder { numbers, lowest, scale, before: zeros(CELLS + 1)?, most: 0 };
        for number in &numbers[..count] {
            let cell = ladder.cell(*number);
            ladder.before[cell + 1] += 1;
        }
        ladder.most = ladder.before.iter().max().map_or(0, |most| usize::from(*most));
        for cell in 0..CELLS {
            ladder.before[cell + 1] += ladder.before[cell];
        }
        Ok(ladder)
    }

    /// Returns the cell of a score. It never decreases as scores increase.
    #[inline(always)]
    fn cell(&self, score: f64) -> usize {
        let at = ((score - self.lowest) * self.scale).clamp(0.0, (CELLS - 1) as f64);
        // The lowest bits of the sum are its integer, without the care that a conversion takes of numbers out of range.
        (at + (1u64 << 52) as f64).to_bits() as usize % CELLS
    }

    /// Counts the numbers smaller than a score, the last `N` by comparisons of all, which must be at most [`TOGETHER`].
    #[inline(always)]
    fn count_smaller<const N: usize>(&self, score: f64) -> usize {
        let mut before = usize::from(self.before[self.cell(score)]);
        let mut rest = self.most;
        while rest > N {
            let half = rest / 2;
            let is_smaller = self.numbers.get(before + half - 1).is_some_and(|number| *number < score);
            before = select_unpredictable(is_smaller, before + half, before);
            rest -= half;
        }
        before + self.numbers[before..][..N].iter().map(|number| usize::from(*number < score)).sum::<usize>()
    }
}

/// A part of the positives.
struct Part<'a> {
    ladder: Ladder<'a>,
    scores: usize,
    listed: Mutex<Listed>,
}

/// The scores listed for a part, and its counts: negatives behind so many of its scores, and equal to each.
struct Listed {
    scores: Vec<f64>,
    counts: Vec<u64>,
}

impl Part<'_> {
    #[inline(never)]
    fn count(&self, Listed { scores, counts }: &mut Listed) {
        for &score in &*scores {
            let smaller = self.ladder.count_smaller::<TOGETHER>(score);
            let is_equal = self.ladder.numbers[smaller] == score;
            counts[smaller + usize::from(is_equal) * (self.scores + 1)] += 1;
        }
        scores.clear();
    }
}

/// Negatives in a bracket; `None` where they were too many.
type Kept = Option<Vec<f64>>;

/// Counts of negatives, and those in some brackets.
struct Counter<'a> {
    /// The last score of each part but the last.
    ends: Ladder<'a>,
    parts: Vec<Part<'a>>,
    brackets: &'a [Bracket],
    kept: Vec<Mutex<Kept>>,
    capacity: usize,
    longest: usize,
}

/// Short lists of a thread, by part.
struct Lists {
    lengths: Vec<u32>,
    scores: Vec<[f64; SHORT]>,
}

impl Counter<'_> {
    fn lists(&self) -> Result<Lists> {
        Ok(Lists { lengths: zeros(self.parts.len())?, scores: full(self.parts.len(), [0.0; SHORT])? })
    }

    /// Moves a short list to that of its part, which is counted if the next one might not fit.
    fn flush(&self, lists: &mut Lists, part: usize) {
        let scores = &lists.scores[part][..std::mem::take(&mut lists.lengths[part]) as usize];
        self.keep(part, scores);
        let mut listed = self.parts[part].listed.lock().expect("no thread panics while it holds the lock");
        listed.scores.extend_from_slice(scores);
        if listed.scores.len() + SHORT > self.longest {
            self.parts[part].count(&mut listed);
        }
    }

    /// Keeps the scores in brackets.
    fn keep(&self, part: usize, scores: &[f64]) {
        let above = if part > 0 { self.ends.numbers[part - 1] } else { f64::NEG_INFINITY };
        for (&Bracket { low, high, .. }, kept) in self.brackets.iter().zip(&self.kept) {
            if high <= above || low > self.ends.numbers[part] {
                continue;
            }
            let mut kept = kept.lock().expect("no thread panics while it holds the lock");
            if let Some(list) = &mut *kept {
                list.extend(scores.iter().filter(|score| (low..=high).contains(*score)));
                if list.len() > self.capacity {
                    *kept = None;
                }
            }
        }
    }
}

/// Adds those scores of a line whose label is another.
struct Add<'a> {
    counter: &'a Counter<'a>,
    lists: &'a mut Lists,
    scores: &'a [f64],
    labels: &'a [u32],
    label: u32,
}

impl Work for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Add { counter, lists, scores, labels, label } = self;
        for (&score, &other) in scores.iter().zip(labels) {
            let part = counter.ends.count_smaller::<1>(score);
            let length = &mut lists.lengths[part];
            lists.scores[part][*length as usize % SHORT] = score;
            *length += u32::from(other != label);
            if *length as usize == SHORT {
                counter.flush(lists, part);
            }
        }
    }
}

/// Counts the negatives between the positives, of which there is at least one; `positives` are their scores, ascending. Peers each
/// count a part, and get the whole.
pub fn count_slots(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    positives: &[f64],
    peers: &dyn Peers,
    control: &Control,
) -> Result<Slots> {
    count_and_keep(space, labels, positives, &[], peers, control).map(|(slots, _)| slots)
}

/// Counts as [`count_slots`] does, and keeps the negatives in brackets: of a process, those of its part.
pub(crate) fn count_and_keep(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    positives: &[f64],
    brackets: &[Bracket],
    peers: &dyn Peers,
    control: &Control,
) -> Result<(Slots, Vec<Kept>)> {
    let sizes = control.sizes();
    let groups = || positives.chunk_by(|a, b| a == b);
    let distinct = groups().count();
    let mut scores = allocate(distinct + TOGETHER)?;
    scores.extend(groups().map(|group| group[0]).chain([f64::INFINITY; TOGETHER]));
    let of_part = sizes.slot_part.max(distinct / MOST).clamp(1, MOST);
    let last_of_parts = scores[..distinct - 1].iter().skip(of_part - 1).step_by(of_part);
    let mut ends = allocate(last_of_parts.len() + TOGETHER)?;
    ends.extend(last_of_parts.copied().chain([f64::INFINITY; TOGETHER]));
    let longest = sizes.slot_list.max(SHORT);
    let parts = (0..distinct).step_by(of_part).map(|start| {
        let number = of_part.min(distinct - start);
        let listed = Listed { scores: allocate(longest)?, counts: zeros(2 * number + 1)? };
        Ok(Part { ladder: Ladder::new(&scores[start..], number)?, scores: number, listed: Mutex::new(listed) })
    });
    let counter = Counter {
        ends: Ladder::new(&ends, ends.len() - TOGETHER)?,
        parts: parts.collect::<Result<_>>()?,
        brackets,
        kept: collect(brackets.iter().map(|_| Mutex::new(Some(Vec::new()))))?,
        capacity: sizes.verify_listed / brackets.len().max(1),
        longest,
    };
    control.took(|| if counter.parts.len() > 1 { "slots in parts" } else { "slots" });

    let (own, (queries, items)) = (labels.gallery.is_none(), (space.rows(Side::Query), space.rows(Side::Gallery)));
    let part = part(peers, queries, |query| (items - if own { query } else { 0 }) as u64);
    let width = space.kernel().exact.columns;
    let visit = |lists: &mut Lists, queries: Range<usize>, items: Range<usize>, tile: &[f64]| {
        let others = &labels.gallery()[items.clone()];
        for (query, line) in queries.zip(tile.chunks_exact(width)) {
            let first = if own { (query + 1).saturating_sub(items.start).min(items.len()) } else { 0 };
            let (scores, labels, label) = (&line[first..items.len()], &others[first..], labels.queries[query]);
            space.kernel().vectorize(Add { counter: &counter, lists, scores, labels, label });
        }
    };
    let end = |mut lists: Lists| (0..counter.parts.len()).for_each(|part| counter.flush(&mut lists, part));
    visit_scores(space, part, control, || counter.lists(), visit, end)?;

    let mut numbers = allocate(distinct)?;
    numbers.extend(groups().map(|group| group.len() as u64));
    let mut negatives: Vec<u64> = zeros(2 * distinct + 1)?;
    let Counter { parts, kept, .. } = counter;
    for (p, part) in parts.into_iter().enumerate() {
        let mut listed = part.listed.lock().expect("no thread panics while it holds the lock");
        part.count(&mut listed);
        let slots = &mut negatives[2 * of_part * p..];
        let (between, equal) = listed.counts.split_at(part.scores + 1);
        slots.iter_mut().step_by(2).zip(between).for_each(|(slot, count)| *slot += count);
        slots.iter_mut().skip(1).step_by(2).zip(equal).for_each(|(slot, count)| *slot += count);
    }
    scores.truncate(distinct);
    let negatives = if peers.is_alone() { negatives } else { reduce(peers, &negatives)? };
    let kept = kept.into_iter().map(|kept| kept.into_inner().expect("no thread panics while it holds the lock"));
    Ok((Slots { scores, positives: numbers, negatives }, kept.collect()))
}
