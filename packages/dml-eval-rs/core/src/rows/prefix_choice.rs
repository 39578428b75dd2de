//! Chooses a prefix: the number of directions that makes a screen cheapest, or none.
//!
//! The cost of a screen of full rows is the number of words. A screen of prefixes uses fewer words,
//! but a key must be computed for each value that stays above the threshold; a sample of both sides
//! is used to estimate how many do. If all directions are about equally long, a prefix can't help;
//! a few products show this. See prefix.rs for the gains of a prefix.

use rayon::prelude::*;

use crate::control::Control;
use crate::error::Result;
use crate::kernel::Word;
use crate::memory::{Grow, allocate, collect, collect_counted, collect_each, full, try_collect};
use crate::rows::dense::Dense;
use crate::rows::frame::{Frame, Framed};
use crate::rows::packing::{ExpectedThreshold, Goal};
use crate::rows::prefix::Prefix;
use crate::rows::principal::{multiply, principal_directions};
use crate::rows::row_words;
use crate::rows::sample::Sample;
use crate::side::Side;

/// A prefix is considered only if a screen of full rows multiplies at least this many words per
/// product in the sample. So the choice takes at most a third of the time for a screen of full
/// rows.
const LEAST_WORK: u64 = 100;
/// The sample contains this number of rows per side and direction, and at most `SAMPLE` rows per
/// side.
const SAMPLE_PER_DIRECTION: usize = 4;
const SAMPLE: usize = 1024;
/// The number of rows from which the effective dimension is estimated.
const EFFECTIVE: usize = 128;
/// A prefix can help if the effective dimension is at most this share of the dimension.
const LARGEST_EFFECTIVE: f64 = 1.0 / 3.0;
/// Items in the sample that are compared with thresholds.
const ITEMS: usize = 512;
/// A prefix has a multiple of `DIRECTIONS` directions, and at most `MOST`.
const DIRECTIONS: usize = 16;
const MOST: usize = 256;
/// Costs, in words: of a product's comparison, of a key for short rows, and of each number in the
/// rows of a key.
const COMPARISON: f64 = 12.0;
const SHORT_KEY: f64 = 5000.0;
const KEY_NUMBER: f64 = 30.0;
/// The cost must be at most this share of the cost of full rows, because a sample gives only an
/// estimate.
const WORTH: f64 = 0.8;
/// Estimates of a product's relative rounding error: all bfloat16 numbers are assumed to be off by
/// half a unit in the last place.
const BFLOAT16_ERROR: f64 = 1.0 / 256.0;
const INT16_ERROR: f64 = 1.0 / 8192.0;

/// Chooses the prefix that makes a screen cheapest, or returns `None` if full rows of `steps` words
/// are cheapest.
pub(super) fn choose_prefix(
    of: &Dense<'_>,
    frame: &Frame,
    steps: usize,
    goal: &Goal<'_>,
    control: &Control,
) -> Result<Option<Prefix>> {
    let (kernel, dim) = (of.kernel(), of.dim());
    if let Some(given) = control.sizes().directions {
        return prefix_of(of, frame, given, control);
    }
    let count = MOST.min(dim / 4) / DIRECTIONS * DIRECTIONS;
    let drawn = SAMPLE.min(SAMPLE_PER_DIRECTION * count);
    let products = (drawn * count * dim) as u64;
    if count == 0 || goal.pairs.saturating_mul(steps as u64) < LEAST_WORK * products {
        return Ok(None);
    }
    let Sample { mut rows, items } = Sample::draw(of, drawn)?;
    let framed = collect(rows.chunks_exact_mut(dim).map(|row| frame.enter(row)))?;
    let some = &rows[..EFFECTIVE.min(framed.len()) * dim];
    if framed.len() < 2 * count
        || effective_dimension(of, some, control)? > LARGEST_EFFECTIVE * dim as f64
    {
        return Ok(None);
    }
    // If there is a gallery, `rows` contains both sides' samples, so use every second row.
    let every = if of.is_own_gallery() { 1 } else { 2 };
    let mut some = allocate(framed.len().div_ceil(every) * dim)?;
    for row in rows.chunks_exact(dim).step_by(every) {
        some.try_extend(row.iter().copied())?;
    }
    let (directions, thresholds) =
        rayon::join(|| principal_directions(kernel, &some, dim, count, control), goal.thresholds);
    let (directions, thresholds) = (directions?, thresholds?);
    if thresholds.is_empty() {
        return Ok(None);
    }
    let shares =
        passing_shares(of, frame, &directions, (&rows, &items, &framed), &thresholds, control)?;
    let cost =
        |words: f64, share: f64| words + COMPARISON + share * (SHORT_KEY + KEY_NUMBER * dim as f64);
    let costs = shares.iter().enumerate().map(|(i, share)| {
        let length = (i + 1) * DIRECTIONS - 1;
        let words = row_words::steps(of.word(), length + 1, frame.is_biased());
        (cost(words as f64, *share), length)
    });
    let best = costs.min_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((cost, length)) if cost < WORTH * (steps as f64 + COMPARISON) => {
            Prefix::new(kernel, &directions[..length * dim], dim, control).map(Some)
        }
        _ => Ok(None),
    }
}

/// Makes a prefix with about `directions` directions, or none if 0.
fn prefix_of(
    of: &Dense<'_>,
    frame: &Frame,
    directions: usize,
    control: &Control,
) -> Result<Option<Prefix>> {
    let Sample { mut rows, .. } = Sample::draw(of, SAMPLE)?;
    let count = directions.min(of.dim()).min(rows.len() / of.dim());
    if count == 0 {
        return Ok(None);
    }
    rows.chunks_exact_mut(of.dim()).for_each(|row| {
        frame.enter(row);
    });
    let directions = principal_directions(of.kernel(), &rows, of.dim(), count, control)?;
    if directions.is_empty() {
        Ok(None)
    } else {
        Prefix::new(of.kernel(), &directions, of.dim(), control).map(Some)
    }
}

/// Estimates the number of equally long directions that would give products of this size.
fn effective_dimension(of: &Dense<'_>, rows: &[f64], control: &Control) -> Result<f64> {
    let products = multiply(of.kernel(), rows, rows, of.dim(), control)?;
    let count = rows.len() / of.dim();
    let (mut squares, mut others) = (0.0, 0.0);
    for (at, product) in products.iter().enumerate() {
        if at / count == at % count { squares += product } else { others += product * product }
    }
    let (mean_square, mean_other) =
        (squares / count as f64, others / (count * (count - 1)).max(1) as f64);
    Ok(if mean_other > 0.0 { mean_square * mean_square / mean_other } else { f64::INFINITY })
}

/// Computes the share of pairs that stay above the threshold, for prefixes with 1, 2, ... times
/// `DIRECTIONS` directions.
fn passing_shares(
    of: &Dense<'_>,
    frame: &Frame,
    directions: &[f64],
    (rows, items, framed): (&[f64], &[u32], &[Framed]),
    thresholds: &[ExpectedThreshold],
    control: &Control,
) -> Result<Vec<f64>> {
    let (dim, kernel) = (of.dim(), of.kernel());
    let count = directions.len() / dim;
    let spacing = items.len().div_ceil(ITEMS);
    let mut item_rows = allocate(items.len().div_ceil(spacing) * dim)?;
    for row in rows.chunks_exact(dim).take(items.len()).step_by(spacing) {
        item_rows.try_extend(row.iter().copied())?;
    }
    let framed = collect(framed.iter().copied().take(items.len()).step_by(spacing))?;
    let items = collect(items.iter().copied().step_by(spacing))?;
    let by_query = collect_counted(thresholds.chunk_by(|a, b| a.query == b.query))?;
    let mut queries = allocate(by_query.len() * dim)?;
    let mut row = allocate(dim)?;
    let mut framed_queries = allocate(by_query.len())?;
    for thresholds in &by_query {
        of.scale_row(Side::Query, thresholds[0].query as usize, &mut row)?;
        framed_queries.try_push(frame.enter(&mut row))?;
        queries.try_extend(row.iter().copied())?;
    }
    let of_items = multiply(kernel, &item_rows, directions, dim, control)?;
    let of_queries = multiply(kernel, &queries, directions, dim, control)?;
    let steps = count / DIRECTIONS;
    let residual_norms = |square: f64, coordinates: &[f64]| {
        let mut left = square;
        collect(coordinates.chunks_exact(DIRECTIONS).map(|part| {
            left -= part.iter().map(|v| v * v).sum::<f64>();
            left.max(0.0).sqrt()
        }))
    };
    let item_residuals = try_collect(
        framed
            .iter()
            .zip(of_items.chunks_exact(count))
            .map(|(f, item)| residual_norms(f.square, item)),
    )?;
    let error = match of.word() {
        Word::BFloat16Pair => BFLOAT16_ERROR,
        Word::Int16Pair => INT16_ERROR,
        Word::Float32 | Word::ByteQuad | Word::Bits => 0.0,
    };
    let of_query =
        |((thresholds, query), framed_query): ((&&[ExpectedThreshold], &[f64]), &Framed)| {
            let (mut passed, mut pairs) = (full(steps, 0.0)?, 0.0);
            let query_residuals = residual_norms(framed_query.square, query)?;
            for (((index, item), item_residuals), framed_item) in
                items.iter().zip(of_items.chunks_exact(count)).zip(&item_residuals).zip(&framed)
            {
                if of.is_own_gallery() && *index == thresholds[0].query {
                    continue;
                }
                pairs += thresholds.iter().map(|threshold| threshold.share).sum::<f64>();
                let rounding = error * (framed_query.square * framed_item.square).sqrt();
                let mut value = frame.offset() - framed_query.bias - framed_item.bias + rounding;
                let parts = query.chunks_exact(DIRECTIONS).zip(item.chunks_exact(DIRECTIONS));
                for (step, (a, b)) in parts.enumerate() {
                    value += a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
                    let most = value + query_residuals[step] * item_residuals[step];
                    passed[step] +=
                        thresholds.iter().filter(|t| most >= t.value).map(|t| t.share).sum::<f64>();
                }
            }
            Ok((passed, pairs))
        };
    let queries = by_query.par_iter().zip(of_queries.par_chunks_exact(count)).zip(&framed_queries);
    let found = collect_each(queries, || Ok(()), |(), query| of_query(query))?;
    let pairs = found.iter().map(|(_, pairs)| pairs).sum::<f64>().max(1.0);
    collect(
        (0..steps).map(|step| found.iter().map(|(passed, _)| passed[step]).sum::<f64>() / pairs),
    )
}

#[cfg(test)]
mod tests {
    use ndarray::Array2;

    use super::*;
    use crate::kernel::{names, select};
    use crate::random::Random;
    use crate::rows::dense::Precision;
    use crate::rows::matrix::Matrix;
    use crate::rows::packing::Packing;
    use crate::rows::similarity::Similarity;
    use crate::rows::space::Space;
    use crate::sizes::Sizes;

    const DIM: usize = 96;
    const ROWS: usize = 2000;

    /// Makes rows in which all numbers after the first `long` are smaller by a factor.
    fn rows(long: usize, factor: f64) -> Array2<f32> {
        let mut random = Random::new(4);
        let factor = |i: usize| if i < long { 1.0 } else { factor };
        Array2::from_shape_fn((ROWS, DIM), |(_, i)| ((random.uniform() - 0.5) * factor(i)) as f32)
    }

    /// Returns how many words per row are chosen for a screen with the threshold 0.95, and how many
    /// a full row has.
    fn words(x: &Array2<f32>, kernel: &'static str, pairs: u64) -> (usize, usize) {
        let (kernel, control) = (select(Some(kernel)).unwrap(), Control::default());
        let whole = Control::traced(Sizes { directions: Some(0), ..Sizes::default() });
        let rows = Matrix::F32(x.view());
        let space =
            Dense::new(rows, None, Similarity::Cosine, Precision::SixteenBit, kernel, &control)
                .unwrap();
        let expected = |query| ExpectedThreshold { query, value: 0.95, share: 1.0 };
        let thresholds = || Ok((0..40).map(expected).collect());
        let goal = Goal { pairs, thresholds: &thresholds };
        let chosen = space.packing(&goal, &control).unwrap().steps();
        (chosen, space.packing(&goal, &whole).unwrap().steps())
    }

    #[test]
    fn long_directions_are_screened_alone() {
        for kernel in names() {
            let (chosen, whole) = words(&rows(10, 0.02), kernel, 1 << 40);
            assert!(2 * chosen < whole, "{kernel}: {chosen} of {whole} words");
        }
    }

    #[test]
    fn equally_long_directions_and_little_work_are_screened_whole() {
        for kernel in names() {
            let (chosen, whole) = words(&rows(DIM, 1.0), kernel, 1 << 40);
            assert_eq!(chosen, whole);
            let (chosen, whole) = words(&rows(10, 0.02), kernel, 1 << 10);
            assert_eq!(chosen, whole);
        }
    }
}
