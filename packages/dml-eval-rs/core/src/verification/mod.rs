//! Verification: pairs accepted by thresholds, over all pairs of two sides.
//!
//! A pair is positive if its labels are equal, else negative. A *level* asks for the score at which the numbers of accepted
//! negatives and positives reach a total. `sieve` finds it by one screened traversal, `decided` where the screen can't, and
//! `slots` counts the negatives between all positives. In `streaming` a gallery comes in blocks, and `distances` are those of codes.

mod all_scores;
pub(crate) mod crossings;
pub(crate) mod curve;
pub(crate) mod decided;
pub(crate) mod distances;
mod exchange;
pub(crate) mod hashed;
pub(crate) mod level;
pub(crate) mod pairs;
mod sample;
mod sieve;
pub(crate) mod slots;
pub(crate) mod streaming;
mod traversal;
