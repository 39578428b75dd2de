//! Exact retrieval and clustering metrics: counts of certified comparisons, never a sort.
//!
//! The way through the crate: a [`Matrix`] is viewed as a [`Dense`] space (or packed codes as [`Codes`]), whose rows are packed
//! and multiplied tile by tile (`traverse`, `kernel`); [`evaluate`] counts what falls between every query's positives
//! (`ledger`, [`Books`]) and turns ranks into metrics (`metrics`); [`nearest`] keeps shortlists. Fast arithmetic only ever screens: what
//! its error bound can't decide is decided in float64 in one stated order (`exact`), so results have the same bits everywhere.

mod books;
mod clustering;
mod codes;
mod control;
mod dense;
mod error;
mod evaluate;
mod exact;
mod kernel;
mod kmeans;
mod ledger;
mod matrix;
mod metrics;
mod random;
mod search;
mod space;
mod traverse;

pub use books::{Books, Positive, Ties};
pub use clustering::{ami, nmi};
pub use codes::{Codes, binarize};
pub use control::Control;
pub use dense::{Dense, Precision, Similarity};
pub use error::{Error, Result};
pub use evaluate::{count, evaluate, find_positives};
pub use kernel::{Kernel, names as kernel_names, select as select_kernel};
pub use kmeans::{KMeans, Options as KMeansOptions, kmeans};
pub use matrix::Matrix;
pub use metrics::{PerQuery, mean};
pub use search::nearest;
