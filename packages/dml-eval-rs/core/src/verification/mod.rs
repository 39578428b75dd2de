//! Verification: pairs that thresholds accept, among all pairs of queries and items.
//!
//! A pair is positive if the labels are equal, otherwise negative. A *level* asks for a *crossing*:
//! the score at which the numbers of accepted negatives and positives reach a total. `sieve` finds
//! it in a screened traversal, or `decided` if the screen can't. `slots` counts the negatives
//! between adjacent positives. `blocks` compares blocks in many passes; `distances` is for codes.

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
