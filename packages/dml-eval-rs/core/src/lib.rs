#![doc = include_str!("../README.md")]
//!
//! # How it works
//!
//! A [`Matrix`] is viewed as a [`Dense`] space, and packed codes as [`Codes`]. [`evaluate`] finds
//! the positives per query, counts the negatives in between ([`PartialCounts`]) and computes
//! metrics from the ranks ([`PerQuery`]). Use [`nearest`] to search and [`kmeans`] to cluster. Fast
//! arithmetic only screens: if its error bound leaves a comparison open, float64 sums in a fixed
//! order (`exact`) decide. So results are identical everywhere, if threads use the default
//! floating-point environment, which [`set_default_float_environment`] sets. Processes can share
//! the work ([`Peers`]).
//!
//! A module must import only from lower layers and from the module's folder (see tests/layers.rs):
//!
//! | layer | modules | contents |
//! |---|---|---|
//! | 6 | `cluster` | k-means, NMI, AMI and ARI |
//! | 5 | `rank`, `search`, `verification` | ranks of positives and metrics; nearest neighbours; accepted pairs |
//! | 4 | `screen` | the traversal of all pairs, and pairs that the screen leaves open |
//! | 3 | `rows` | matrices, packed panels, and the spaces with keys and error bounds |
//! | 2 | `kernel` | an implementation of the inner loops per instruction set |
//! | 1 | `control`, `counting_sort`, `error`, `exact`, `logarithm`, `memory`, `peers`, `random`, `side`, `sizes` | shared by all |

#![cfg_attr(
    not(test),
    deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)
)]

#[cfg(test)]
mod bounds_tests;
mod cluster;
mod control;
mod counting_sort;
mod error;
mod exact;
mod kernel;
mod logarithm;
mod memory;
mod peers;
mod random;
mod rank;
mod rows;
mod screen;
mod search;
mod side;
mod sizes;
mod verification;

pub use half;
pub use ndarray;

pub use cluster::agreement::{Average, ami, ari, nmi};
pub use cluster::kmeans::{KMeans, Options as KMeansOptions, kmeans};
pub use control::{Control, Paths};
pub use error::{Error, Result};
pub use kernel::{
    Kernel, missing as missing_kernel_names, names as kernel_names, select as select_kernel,
    set_default_float_environment,
};
pub use memory::collect;
pub use peers::{Alone, Peers};
pub use rank::blocks::{count_negatives, count_symmetric_negatives, find_positives};
pub use rank::evaluate::{Options as EvaluateOptions, evaluate};
pub use rank::grades::Grades;
pub use rank::metric::Metric;
pub use rank::metrics::{PerQuery, mean};
pub use rank::partial_counts::PartialCounts;
pub use rank::relation::Relation;
pub use rank::ties::{Positive, TieRules, Ties};
pub use rows::codes::{Codes, binarize};
pub use rows::comparable::Comparable;
pub use rows::dense::{Dense, Precision};
pub use rows::derived::{Concatenated, Normalized, Selected};
pub use rows::lists::Lists;
pub use rows::matrix::{Matrix, Source};
pub use rows::own_item::OwnItem;
pub use rows::similarity::Similarity;
pub use search::filter::Filter;
pub use search::hard_negatives::{Ceiling, Hardness, Positives, hard_negatives};
pub use search::index_recall::index_recall;
pub use search::nearest::{knn, nearest};
pub use search::range::{Ranges, range_search};
pub use search::top_pairs::top_pairs;
pub use side::Side;
pub use sizes::Sizes;
pub use verification::blocks::{advance_searches, begin_block, begin_searches, observe_block};
pub use verification::crossings::{Point, Verified, VerifyTasks, verify};
pub use verification::curve::{Curve, roc_curve};
pub use verification::decided::{Observed, Search};
pub use verification::distances::{Distances, count_distances};
pub use verification::hashed::HashedScores;
pub use verification::level::{Crossing, Level};
pub use verification::pairs::{PairLabels, code_pair_scores, pair_scores};
pub use verification::slots::{Slots, count_slots};
