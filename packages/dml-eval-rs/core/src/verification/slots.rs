//! Counts the negatives between adjacent positives. These exact counts give the ROC curve, the area
//! under the curve, and every crossing.
//!
//! The positives are divided into parts of equal size. The negatives are collected in a list per
//! part, and counted when the list is full, so that the part and the counts stay in a core's
//! caches. Memory limits the speed, so a part is prefetched, and lists are stored past the caches.

use std::hint::select_unpredictable;
use std::ops::Range;
use std::sync::{Mutex, MutexGuard};

use crate::control::Control;
use crate::error::Result;
use crate::kernel::{Kernel, Work, copy_past_caches, prefetch};
use crate::memory::{Grow, allocate, collect, zeros};
use crate::peers::{Peers, part, reduce};
use crate::rows::dense::Dense;
use crate::rows::panels::LINE;
use crate::rows::space::Space;
use crate::side::Side;
use crate::verification::all_scores::visit_scores;
use crate::verification::level::{Crossing, Level};
use crate::verification::pairs::PairLabels;
use crate::verification::sample::Bracket;

/// The cells per number of a `Ladder`: of the ladder that finds a score's part, and of a part's
/// ladder of positives.
const CELLS_PER_PART: usize = 16;
const CELLS_PER_POSITIVE: usize = 4;
/// In `Ladder::before`, `OPEN_CELL` marks a cell with numbers, and the bits `BEFORE` count the
/// numbers in lower cells.
const OPEN_CELL: u16 = 1 << 15;
const BEFORE: u16 = OPEN_CELL - 1;
/// The number of scores whose cells are computed together.
const CHUNK: usize = 32;
/// A score is compared with this number of positives at once: more comparisons are faster than a
/// mispredicted branch.
const TOGETHER: usize = 4;
/// The maximum number of scores that wait to be compared with the positives in the cells.
const OPEN: usize = 8 * CHUNK;
/// The maximum size of separate lists and counts for threads, in bytes.
const COUNTER_BYTES: usize = 48 << 20;
/// The length of a thread's list for a part. A chunk is added before the lengths of lists are
/// checked, because a branch per score would often be mispredicted.
const SHORT: usize = 128;
const WITH_CHUNK: usize = SHORT + CHUNK;
/// The number of scores that are moved to the short lists together, so that these stay in a core's
/// first-level cache, which a tile's product fills.
const BATCH: usize = 4096;
/// With more parts than this, parts get larger instead, so that a thread's short lists stay in a
/// core's second-level cache.
const PARTS: usize = 256;

/// Counts of positives and negatives by score.
#[derive(Debug, PartialEq)]
pub struct Slots {
    /// The distinct scores of the positives, in ascending order.
    pub scores: Vec<f64>,
    /// The number of positives per score.
    pub positives: Vec<u64>,
    /// The numbers of negatives below the first score, equal to it, between the first and the
    /// second, and so on, and above the last.
    pub negatives: Vec<u64>,
}

/// Where a level is reached.
pub(crate) enum Place {
    /// At the score of a positive.
    At(Crossing),
    /// Between positives, in this range, with this number of negatives above the range.
    Between((f64, f64), u64),
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
                return Place::Between((low, high), above);
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

/// Distinct ascending numbers, and cells of equal width, with the count of numbers in lower cells.
struct Ladder<'a> {
    /// The numbers in the cells, optionally followed by larger numbers without cells.
    numbers: &'a [f64],
    lowest: f64,
    scale: f64,
    /// The index of the last cell.
    last: usize,
    before: Vec<u16>,
    /// The maximum number of numbers per cell.
    most: usize,
}

impl<'a> Ladder<'a> {
    /// Makes cells for the first `count` numbers, about `each` cells per number.
    fn new(numbers: &'a [f64], count: usize, each: usize) -> Result<Self> {
        let cells = (each * count.max(1)).next_power_of_two();
        let (lowest, width) =
            if count > 0 { (numbers[0], numbers[count - 1] - numbers[0]) } else { (0.0, 0.0) };
        let scale = if width > 0.0 { (cells as f64 / width).min(f64::MAX) } else { 0.0 };
        let mut ladder =
            Ladder { numbers, lowest, scale, last: cells - 1, before: zeros(cells + 1)?, most: 0 };
        for number in &numbers[..count] {
            let cell = ladder.cell(*number);
            ladder.before[cell + 1] += 1;
        }
        ladder.most = ladder.before.iter().max().map_or(0, |most| usize::from(*most));
        for cell in 0..cells {
            ladder.before[cell + 1] += ladder.before[cell];
        }
        for cell in 0..cells {
            let is_empty = ladder.before[cell] == ladder.before[cell + 1];
            ladder.before[cell] |= if is_empty { 0 } else { OPEN_CELL };
        }
        Ok(ladder)
    }

    /// Returns the cell of a score, which never decreases as scores increase.
    #[inline(always)]
    fn cell(&self, score: f64) -> usize {
        let at = ((score - self.lowest) * self.scale).clamp(0.0, self.last as f64);
        // Adding 2⁵² puts the integer into the lowest bits. This is faster than a cast, which
        // handles numbers out of range.
        (at + (1u64 << 52) as f64).to_bits() as usize & self.last
    }

    /// Halves the candidates in a score's cell until at most `most` are left. Returns how many
    /// numbers come before these.
    #[inline(always)]
    fn halve(&self, score: f64, mut before: usize, most: usize) -> usize {
        let mut rest = self.most;
        while rest > most {
            let half = rest / 2;
            let is_smaller =
                self.numbers.get(before + half - 1).is_some_and(|number| *number < score);
            before = select_unpredictable(is_smaller, before + half, before);
            rest -= half;
        }
        before
    }
}

/// A part of the positives.
struct Part<'a> {
    ladder: Ladder<'a>,
    scores: usize,
    /// A list per thread, and counts: the negatives between the part's distinct scores, then the
    /// negatives equal to a score.
    copies: Vec<(Mutex<List>, Mutex<Vec<u64>>)>,
}

/// A list of negatives.
struct List {
    /// Entries to align the list to `LINE` bytes, then the list.
    entries: Vec<f64>,
    length: usize,
}

impl List {
    fn new(longest: usize) -> Result<List> {
        Ok(List { entries: zeros(longest + LINE / 8)?, length: 0 })
    }

    fn scores(&self) -> &[f64] {
        &self.entries[self.entries.as_ptr().align_offset(LINE)..][..self.length]
    }

    fn append(&mut self, scores: &[f64]) {
        let end = self.entries.as_ptr().align_offset(LINE) + self.length;
        copy_past_caches(scores, &mut self.entries[end..][..scores.len()]);
        self.length += scores.len();
    }
}

/// Adds scores to the counts of a part.
struct Count<'a, 'b> {
    part: &'a Part<'b>,
    scores: &'a [f64],
    counts: &'a mut [u64],
}

impl Work for Count<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Count { part: Part { ladder, scores: number, .. }, scores, counts } = self;
        let (between, equal) = counts.split_at_mut(number + 1);
        prefetch(&ladder.before);
        prefetch(&ladder.numbers[..*number]);
        prefetch(between);
        let before = &ladder.before[..];
        let mut open = [(0.0, 0); OPEN];
        let mut waiting = 0;
        for chunk in scores.chunks(CHUNK) {
            let mut cells = [0; CHUNK];
            cells.iter_mut().zip(chunk).for_each(|(cell, score)| *cell = ladder.cell(*score));
            for (score, cell) in chunk.iter().zip(cells) {
                // If a cell does not contain positives, all scores in it are between the same
                // positives.
                let is_open = before[cell] / OPEN_CELL;
                between[usize::from(before[cell] & BEFORE)] += u64::from(1 - is_open);
                open[waiting % OPEN] = (*score, before[cell]);
                waiting += usize::from(is_open);
            }
            if waiting > OPEN - CHUNK {
                ladder.compare(&open[..std::mem::take(&mut waiting)], between, equal);
            }
        }
        ladder.compare(&open[..waiting], between, equal);
    }
}

impl Ladder<'_> {
    /// Counts scores between two numbers or equal to a number, given the count of numbers in lower
    /// cells.
    #[inline(always)]
    fn compare(&self, open: &[(f64, u16)], between: &mut [u64], equal: &mut [u64]) {
        for &(score, before) in open {
            let before = self.halve(score, usize::from(before & BEFORE), TOGETHER);
            let numbers = &self.numbers[before..][..TOGETHER];
            let smaller: usize = numbers.iter().map(|number| usize::from(*number < score)).sum();
            let is_equal = numbers.contains(&score);
            let counts = if is_equal { &mut *equal } else { &mut *between };
            counts[before + smaller] += 1;
        }
    }
}

/// The negatives in a bracket, or `None` if the limit was exceeded.
pub(crate) type Kept = Option<Vec<f64>>;

/// Counts negatives, keeping those in brackets.
struct Counter<'a> {
    /// The last score of each part, and infinity for the last part.
    ends: Ladder<'a>,
    parts: Vec<Part<'a>>,
    kept: Vec<(Bracket, Mutex<Kept>)>,
    longest: usize,
    kernel: &'static Kernel,
    control: &'a Control,
    /// Lists that are not used by a thread, and the number of all lists.
    idle: Mutex<(Vec<Lists>, usize)>,
}

/// The short lists of a thread, one per part, and which copy of the parts receives them.
struct Lists {
    copy: usize,
    /// The list that replaces a full list.
    spare: List,
    /// Negatives that aren't in a short list yet. The first `number` entries are valid.
    waiting: Vec<f64>,
    number: usize,
    /// The short lists one after the other, and their lengths.
    scores: Vec<f64>,
    lengths: Vec<u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no thread panicked while it held the lock")
}

impl Counter<'_> {
    /// Takes lists that are not used by a thread, or makes new lists.
    fn lists(&self) -> Result<Lists> {
        let mut idle = lock(&self.idle);
        if let Some(lists) = idle.0.pop() {
            return Ok(lists);
        }
        idle.1 += 1;
        let parts = self.parts.len();
        Ok(Lists {
            copy: idle.1 % self.parts[0].copies.len(),
            spare: List::new(self.longest)?,
            waiting: zeros(BATCH + self.kernel.exact.columns + CHUNK)?,
            number: 0,
            scores: zeros(parts * WITH_CHUNK)?,
            lengths: zeros(parts)?,
        })
    }

    /// Moves the waiting negatives to the short lists of parts.
    #[inline(always)]
    fn distribute(&self, lists: &mut Lists) {
        let (ends, number) = (&self.ends, std::mem::take(&mut lists.number));
        for start in (0..number).step_by(CHUNK) {
            let scores = &lists.waiting[start..][..CHUNK];
            // Compute all cells first, so that the compiler can vectorize this.
            let mut parts = [0; CHUNK];
            parts.iter_mut().zip(scores).for_each(|(part, score)| *part = ends.cell(*score));
            for (part, score) in parts.iter_mut().zip(scores) {
                let mut before = usize::from(ends.before[*part] & BEFORE);
                if ends.most > 1 {
                    before = ends.halve(*score, before, 1);
                }
                *part = before + usize::from(ends.numbers[before] < *score);
            }
            let parts = &parts[..CHUNK.min(number - start)];
            let mut longest = 0;
            for (part, score) in parts.iter().zip(scores) {
                let length = &mut lists.lengths[*part];
                lists.scores[*part * WITH_CHUNK + *length as usize] = *score;
                *length += 1;
                longest = longest.max(*length);
            }
            if longest as usize >= SHORT {
                for part in parts {
                    if lists.lengths[*part] as usize >= SHORT {
                        self.flush(lists, *part);
                    }
                }
            }
        }
    }

    /// Moves a full short list to the part's list, which is counted when another might not fit.
    #[inline(never)]
    fn flush(&self, lists: &mut Lists, part: usize) {
        let short = &mut lists.scores[part * WITH_CHUNK..][..WITH_CHUNK];
        let mut list = lock(&self.parts[part].copies[lists.copy].0);
        list.append(&short[..SHORT]);
        if list.length + SHORT > self.longest {
            self.control.took(|| "slots from full lists");
            // Swap the list first, so that other threads needn't wait for the count.
            std::mem::swap(&mut *list, &mut lists.spare);
            drop(list);
            self.count(part, lists.copy, lists.spare.scores());
            lists.spare.length = 0;
        }
        short.copy_within(SHORT.., 0);
        lists.lengths[part] -= SHORT as u32;
    }

    /// Counts the scores of a part, keeping those in brackets.
    #[expect(
        clippy::disallowed_methods,
        reason = "extends only if the capacity suffices, else drops the list"
    )]
    fn count(&self, part: usize, copy: usize, scores: &[f64]) {
        // All of these scores are above the last score of the previous part.
        let (low, high) =
            (part.checked_sub(1).map(|before| self.ends.numbers[before]), self.ends.numbers[part]);
        for (bracket, kept) in &self.kept {
            if high < bracket.low || low.is_some_and(|low| low >= bracket.high) {
                continue;
            }
            let inside =
                || scores.iter().filter(|score| (bracket.low..=bracket.high).contains(*score));
            let mut kept = lock(kept);
            if kept.as_ref().is_some_and(|list| inside().count() > list.capacity() - list.len()) {
                *kept = None;
            }
            kept.iter_mut().for_each(|list| list.extend(inside()));
        }
        let part = &self.parts[part];
        self.kernel.vectorize(Count { part, scores, counts: &mut lock(&part.copies[copy].1) });
    }
}

/// Adds the scores in a tile of pairs with different labels.
struct Add<'a> {
    counter: &'a Counter<'a>,
    lists: &'a mut Lists,
    labels: &'a PairLabels<'a>,
    queries: Range<usize>,
    items: Range<usize>,
    tile: &'a [f64],
    width: usize,
}

impl Work for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Add { counter, lists, labels, queries, items, tile, width } = self;
        let others = &labels.gallery()[items.clone()];
        for (query, line) in queries.zip(tile.chunks_exact(width)) {
            let first = match labels.gallery {
                None => (query + 1).saturating_sub(items.start).min(items.len()),
                Some(_) => 0,
            };
            let label = labels.queries[query];
            let (scores, others) = (&line[first..items.len()], &others[first..]);
            let waiting = &mut lists.waiting[lists.number..][..scores.len()];
            // Most lines have no positives. Don't stop at the first, so that the compiler can
            // vectorize this.
            if !others.iter().fold(false, |any, other| any | (*other == label)) {
                waiting.copy_from_slice(scores);
                lists.number += scores.len();
            } else {
                // Store all scores without a branch, but advance only after a negative, so the next
                // score replaces a positive.
                let mut number = 0;
                for (score, other) in scores.iter().zip(others) {
                    waiting[number] = *score;
                    number += usize::from(*other != label);
                }
                lists.number += number;
            }
            if lists.number > BATCH {
                counter.distribute(lists);
            }
        }
    }
}

/// Counts the negatives between adjacent positives. `positives` must be sorted in ascending order,
/// and not empty. With peers, each process counts a part, and all return the complete result.
pub fn count_slots(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    positives: &[f64],
    peers: &dyn Peers,
    control: &Control,
) -> Result<Slots> {
    count_and_keep(space, labels, positives, &[], peers, control).map(|(slots, _)| slots)
}

/// Counts like [`count_slots`], but also between the ends of brackets, and keeps a bracket's
/// negatives if they don't exceed the number given with the bracket. Each process keeps only
/// negatives in its part.
pub(crate) fn count_and_keep(
    space: &Dense<'_>,
    labels: &PairLabels<'_>,
    positives: &[f64],
    brackets: &[(Bracket, usize)],
    peers: &dyn Peers,
    control: &Control,
) -> Result<(Slots, Vec<Kept>)> {
    let sizes = control.sizes();
    let mut edges = allocate(2 * brackets.len())?;
    edges.try_extend(
        brackets.iter().flat_map(|(b, _)| [b.low, b.high]).filter(|edge| edge.is_finite()),
    )?;
    edges.sort_unstable_by(f64::total_cmp);
    edges.dedup();
    let distinct = |scores: &[f64]| scores.chunk_by(|a, b| a == b).count();
    let mut all = allocate(distinct(positives) + distinct(&edges) + TOGETHER)?;
    let mut edges = edges.into_iter().peekable();
    for group in positives.chunk_by(|a, b| a == b) {
        while let Some(edge) = edges.next_if(|edge| *edge < group[0]) {
            all.try_push(edge)?;
        }
        all.try_push(group[0])?;
    }
    all.try_extend(edges)?;
    all.dedup();
    let distinct = all.len();
    all.try_extend([f64::INFINITY; TOGETHER])?;
    let part_size = sizes.slot_part.max(distinct.div_ceil(PARTS)).clamp(1, usize::from(BEFORE));
    let last_scores = all[..distinct - 1].iter().skip(part_size - 1).step_by(part_size);
    let mut ends = allocate(last_scores.len() + 1)?;
    ends.try_extend(last_scores.copied().chain([f64::INFINITY]))?;
    let longest = sizes.slot_list.max(SHORT);
    let bytes = 8 * (2 * distinct + distinct.div_ceil(part_size) * longest);
    let threads = (COUNTER_BYTES / bytes).clamp(1, rayon::current_num_threads());
    let mut parts = allocate(distinct.div_ceil(part_size))?;
    for start in (0..distinct).step_by(part_size) {
        let number = part_size.min(distinct - start);
        let mut copies = allocate(threads)?;
        for _ in 0..threads {
            copies
                .try_push((Mutex::new(List::new(longest)?), Mutex::new(zeros(2 * number + 1)?)))?;
        }
        parts.try_push(Part {
            ladder: Ladder::new(&all[start..], number, CELLS_PER_POSITIVE)?,
            scores: number,
            copies,
        })?;
    }
    let mut kept = allocate(brackets.len())?;
    for &(bracket, most) in brackets {
        kept.try_push((bracket, Mutex::new(Some(allocate(most)?))))?;
    }
    let idle = Mutex::new((allocate(rayon::current_num_threads())?, 0));
    let ends = Ladder::new(&ends, ends.len() - 1, CELLS_PER_PART)?;
    let counter = Counter { ends, parts, kept, longest, kernel: space.kernel(), control, idle };
    control.took(|| if counter.parts.len() > 1 { "slots in parts" } else { "slots" });

    let (own, (queries, items)) =
        (labels.gallery.is_none(), (space.rows(Side::Query), space.rows(Side::Gallery)));
    let part = part(peers, queries, |query| (items - if own { query } else { 0 }) as u64);
    let width = space.kernel().exact.columns;
    let visit = |lists: &mut Lists, queries: Range<usize>, items: Range<usize>, tile: &[f64]| {
        space.kernel().vectorize(Add {
            counter: &counter,
            lists,
            labels,
            queries,
            items,
            tile,
            width,
        });
    };
    #[expect(clippy::disallowed_methods, reason = "there is room for the lists of all threads")]
    let end = |lists| lock(&counter.idle).0.push(lists);
    visit_scores(space, part, control, || counter.lists(), visit, end)?;
    for mut lists in std::mem::take(&mut lock(&counter.idle).0) {
        counter.kernel.vectorize(|| counter.distribute(&mut lists));
        for (part, scores) in lists.scores.chunks_exact(WITH_CHUNK).enumerate() {
            counter.count(part, lists.copy, &scores[..lists.lengths[part] as usize]);
        }
    }
    for (p, part) in counter.parts.iter().enumerate() {
        for (copy, (list, _)) in part.copies.iter().enumerate() {
            let list = lock(list);
            counter.count(p, copy, list.scores());
        }
    }
    let Counter { parts, kept, .. } = counter;
    let mut negatives: Vec<u64> = zeros(2 * distinct + 1)?;
    // Free the memory of a part before adding the counts of the next.
    for (p, part) in parts.into_iter().enumerate() {
        for (_, counts) in part.copies {
            let slots = &mut negatives[2 * part_size * p..];
            let counts = counts.into_inner().expect("no thread panicked while it held the lock");
            let (between, equal) = counts.split_at(part.scores + 1);
            slots.iter_mut().step_by(2).zip(between).for_each(|(slot, count)| *slot += count);
            slots.iter_mut().skip(1).step_by(2).zip(equal).for_each(|(slot, count)| *slot += count);
        }
    }
    let taken = |(_, kept): (_, Mutex<Kept>)| {
        kept.into_inner().expect("no thread panicked while it held the lock")
    };
    let kept = collect(kept.into_iter().map(taken))?;
    all.truncate(distinct);
    let mut rest = positives;
    let numbers = all.iter().map(|score| {
        let number = rest.iter().take_while(|positive| *positive == score).count();
        rest = &rest[number..];
        number as u64
    });
    let positives = collect(numbers)?;
    let negatives = if peers.is_alone() { negatives } else { reduce(peers, &negatives)? };
    Ok((Slots { scores: all, positives, negatives }, kept))
}
