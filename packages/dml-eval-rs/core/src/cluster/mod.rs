//! k-means, and the agreement between partitions.

pub(crate) mod agreement;
mod assignment;
mod initial_centroids;
pub(crate) mod kmeans;
mod pair_sort;
