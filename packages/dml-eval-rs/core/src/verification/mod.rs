//! Verification: pairs accepted by thresholds, over all pairs of two sides.
//!
//! A pair is positive if its labels are equal, else negative. A *level* asks for the score at which the numbers of accepted
//! negatives and positives reach a total. `sieve` finds it by one screened traversal, `decided` where the screen can't, and
//! `slots` counts the negatives between all positives. `blocks` compares blocks in several passes, and `distances` are those of codes.

mod all_scores;
pub(crate) mod blocks;
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
mod traversal;
