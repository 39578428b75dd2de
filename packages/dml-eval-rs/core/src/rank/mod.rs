//! Ranks of the positives per query, computed by counting, and the metrics of these ranks.

pub(crate) mod blocks;
mod choice;
mod distance_ranker;
pub(crate) mod evaluate;
pub(crate) mod grades;
pub(crate) mod metric;
pub(crate) mod metrics;
pub(crate) mod partial_counts;
mod plan;
mod positives;
pub(crate) mod relation;
mod row_ranker;
mod screen_counter;
mod tables;
pub(crate) mod ties;
mod values;
