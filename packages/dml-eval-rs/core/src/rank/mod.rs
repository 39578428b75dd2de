//! Ranks of every query's positives, by counting, and the metrics of these ranks.

pub(crate) mod evaluate;
mod labels;
pub(crate) mod metrics;
pub(crate) mod partial_counts;
mod plan;
mod positives;
mod screen_counter;
pub(crate) mod streaming;
mod table_counter;
