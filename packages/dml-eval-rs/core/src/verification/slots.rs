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
/// Scores whose cells are computed together.
const CHUNK: usize = 32;
/// The most bytes of lists and counts that threads keep apart.
const COUNTER_BYTES: usize = 48 << 20;
/// Scores of a thread's list for a part.
const SHORT: usize = 64;
/// Parts from which on they hold more positives, so that the lists of all stay in a core's second-level cache, and the most positives.
const MANY_PARTS: usize = 1024;
const LARGEST_PART: usize = 1 << 15;

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
    /// Between positives, in this range.
    Between((f64, f64)),
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
                return Place::Between((low, high));
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

    /// Calls `take` with each score, the numbers smaller than it, and those equal to it, 0 or 1. `N` numbers are compared with it
    /// together, at most [`TOGETHER`].
    #[inline(always)]
    fn place<const N: usize>(&self, scores: &[f64], mut take: impl FnMut(usize, f64, usize, usize)) {
        for (c, chunk) in scores.chunks(CHUNK).enumerate() {
            let mut cells = [0; CHUNK];
            cells.iter_mut().zip(chunk).for_each(|(cell, score)| *cell = self.cell(*score));
            for (i, (&score, cell)) in chunk.iter().zip(cells).enumerate() {
                let mut before = usize::from(self.before[cell]);
                let mut rest = self.most;
                while rest > N {
                    let half = rest / 2;
                    let is_smaller = self.numbers.get(before + half - 1).is_some_and(|number| *number < score);
                    before = select_unpredictable(is_smaller, before + half, before);
                    rest -= half;
                }
                let numbers = &self.numbers[before..][..N];
                let smaller: usize = numbers.iter().map(|number| usize::from(*number < score)).sum();
                let equal: usize = numbers.iter().map(|number| usize::from(*number == score)).sum();
                take(CHUNK * c + i, score, before + smaller, equal);
            }
        }
    }
}

/// A part of the positives.
struct Part<'a> {
    ladder: Ladder<'a>,
    scores: usize,
    /// One for each of some threads.
    listed: Vec<Mutex<Listed>>,
}

/// The scores listed for a part, and its counts: negatives behind so many of its scores, and equal to each.
struct Listed {
    scores: Vec<f64>,
    counts: Vec<u64>,
}

impl Part<'_> {
    #[inline(never)]
    fn count(&self, Listed { scores, counts }: &mut Listed) {
        let add = |_, _, smaller: usize, equal: usize| counts[smaller + (self.scores + 1) * equal] += 1;
        self.ladder.place::<TOGETHER>(scores, add);
        scores.clear();
    }
}

/// The negatives above a bracket, and those inside; `None` where they were too many.
pub(crate) type Kept = (u64, Option<Vec<f64>>);

/// Counts of negatives, and those in some brackets.
struct Counter<'a> {
    /// The last score of each part but the last.
    ends: Ladder<'a>,
    parts: Vec<Part<'a>>,
    brackets: &'a [Bracket],
    inside: Vec<Mutex<Option<Vec<f64>>>>,
    capacity: usize,
    longest: usize,
    /// Lists that no thread uses, and the number of all.
    idle: Mutex<(Vec<Lists>, usize)>,
}

/// Short lists of a thread, by part, and which of the parts' lists these are moved to.
struct Lists {
    copy: usize,
    /// Negatives above each bracket.
    above: Vec<u64>,
    lengths: Vec<u32>,
    scores: Vec<[f64; SHORT]>,
}

impl Counter<'_> {
    /// Takes some thread's lists that no other uses, or new ones.
    fn lists(&self) -> Result<Lists> {
        let mut idle = self.idle.lock().expect("no thread panics while it holds the lock");
        if let Some(lists) = idle.0.pop() {
            return Ok(lists);
        }
        idle.1 += 1;
        let copy = idle.1 % self.parts[0].listed.len();
        let above = zeros(self.brackets.len())?;
        Ok(Lists { copy, above, lengths: zeros(self.parts.len())?, scores: full(self.parts.len(), [0.0; SHORT])? })
    }

    /// Moves a short list to that of its part, which is counted if the next one might not fit.
    fn flush(&self, lists: &mut Lists, part: usize) {
        let scores = &lists.scores[part][..std::mem::take(&mut lists.lengths[part]) as usize];
        self.keep(part, scores, &mut lists.above);
        let mut listed = self.parts[part].listed[lists.copy].lock().expect("no thread panics while it holds the lock");
        listed.scores.extend_from_slice(scores);
        if listed.scores.len() + SHORT > self.longest {
            self.parts[part].count(&mut listed);
        }
    }

    /// Keeps the scores in brackets, and counts those above.
    fn keep(&self, part: usize, scores: &[f64], above: &mut [u64]) {
        for ((bracket, inside), above) in self.brackets.iter().zip(&self.inside).zip(above) {
            if bracket.low > self.ends.numbers[part] {
                continue;
            }
            // All scores are above the last one of the part before.
            let are_larger = part > 0 && self.ends.numbers[part - 1] >= bracket.high;
            let count_larger = || scores.iter().map(|score| usize::from(*score > bracket.high)).sum();
            let larger = if are_larger { scores.len() } else { count_larger() };
            *above += larger as u64;
            if larger < scores.len() {
                let mut inside = inside.lock().expect("no thread panics while it holds the lock");
                if let Some(list) = &mut *inside {
                    if list.len() + scores.len() > self.capacity || list.try_reserve(scores.len()).is_err() {
                        *inside = None;
                        continue;
                    }
                    list.extend(scores.iter().filter(|score| (bracket.low..=bracket.high).contains(*score)));
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
        counter.ends.place::<1>(scores, |i, score, part, _| {
            let length = &mut lists.lengths[part];
            lists.scores[part][*length as usize % SHORT] = score;
            *length += u32::from(labels[i] != label);
            if *length as usize == SHORT {
                counter.flush(lists, part);
            }
        });
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
    let of_part = sizes.slot_part.max(distinct / MANY_PARTS).clamp(1, LARGEST_PART);
    let last_of_parts = scores[..distinct - 1].iter().skip(of_part - 1).step_by(of_part);
    let mut ends = allocate(last_of_parts.len() + TOGETHER)?;
    ends.extend(last_of_parts.copied().chain([f64::INFINITY; TOGETHER]));
    let longest = sizes.slot_list.max(SHORT);
    let bytes = 8 * (2 * distinct + distinct.div_ceil(of_part) * longest);
    let copies = (COUNTER_BYTES / bytes).clamp(1, rayon::current_num_threads());
    let parts = (0..distinct).step_by(of_part).map(|start| {
        let number = of_part.min(distinct - start);
        let listed = || Ok(Mutex::new(Listed { scores: allocate(longest)?, counts: zeros(2 * number + 1)? }));
        let listed = (0..copies).map(|_| listed()).collect::<Result<_>>()?;
        Ok(Part { ladder: Ladder::new(&scores[start..], number)?, scores: number, listed })
    });
    let counter = Counter {
        ends: Ladder::new(&ends, ends.len() - TOGETHER)?,
        parts: parts.collect::<Result<_>>()?,
        brackets,
        inside: collect(brackets.iter().map(|_| Mutex::new(Some(Vec::new()))))?,
        capacity: sizes.verify_listed / brackets.len().max(1),
        longest,
        idle: Mutex::default(),
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
    let idle = || counter.idle.lock().expect("no thread panics while it holds the lock");
    visit_scores(space, part, control, || counter.lists(), visit, |lists| idle().0.push(lists))?;
    let mut above: Vec<u64> = zeros(brackets.len())?;
    for mut lists in std::mem::take(&mut idle().0) {
        (0..counter.parts.len()).for_each(|part| counter.flush(&mut lists, part));
        above.iter_mut().zip(lists.above).for_each(|(sum, above)| *sum += above);
    }

    let mut numbers = allocate(distinct)?;
    numbers.extend(groups().map(|group| group.len() as u64));
    let mut negatives: Vec<u64> = zeros(2 * distinct + 1)?;
    let Counter { parts, inside, .. } = counter;
    for (p, part) in parts.into_iter().enumerate() {
        for listed in &part.listed {
            let mut listed = listed.lock().expect("no thread panics while it holds the lock");
            part.count(&mut listed);
            let slots = &mut negatives[2 * of_part * p..];
            let (between, equal) = listed.counts.split_at(part.scores + 1);
            slots.iter_mut().step_by(2).zip(between).for_each(|(slot, count)| *slot += count);
            slots.iter_mut().skip(1).step_by(2).zip(equal).for_each(|(slot, count)| *slot += count);
        }
    }
    scores.truncate(distinct);
    let negatives = if peers.is_alone() { negatives } else { reduce(peers, &negatives)? };
    let inside = inside.into_iter().map(|list| list.into_inner().expect("no thread panics while it holds the lock"));
    Ok((Slots { scores, positives: numbers, negatives }, above.into_iter().zip(inside).collect()))
}
