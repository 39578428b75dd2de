//! Ranks of every query's positives, by counting, and the metrics of these ranks.

mod count_job;
mod definite;
pub(crate) mod evaluate;
mod expected;
pub(crate) mod gains;
pub(crate) mod levels;
pub(crate) mod levels_counter;
pub(crate) mod lists;
pub(crate) mod metric;
pub(crate) mod metrics;
pub(crate) mod partial_counts;
mod plan;
pub(crate) mod positive;
mod positives;
pub(crate) mod relation;
mod screen_counter;
mod split;
pub(crate) mod streaming;
mod table_counter;
pub(crate) mod ties;
