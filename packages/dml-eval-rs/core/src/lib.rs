//! Exact retrieval and clustering metrics: counts of certified comparisons, never a sort.
//!
//! The way through the crate: a [`Matrix`] is viewed as a [`Dense`] space (or packed codes as [`Codes`]). [`evaluate`] finds every
//! query's positives (`positives`), counts what falls between them into [`Books`], and turns ranks into metrics (`metrics`). Most
//! counts come from packed rows that are multiplied tile by tile (`panels`, `traverse`, `kernel`, `ledger`); queries with very many
//! positives are counted from all of their keys (`key_table`, `crowd`). [`nearest`] keeps shortlists. Fast arithmetic only ever
//! screens: what its error bound can't decide is decided in float64 in one stated order (`exact`), so results have the same bits
//! everywhere. So several processes can share the work ([`Peers`]): what each counts is added up.

mod books;
#[cfg(test)]
mod bounds;
mod clustering;
mod codes;
mod control;
mod crowd;
mod dense;
mod error;
mod evaluate;
mod exact;
mod kernel;
mod key_table;
mod kmeans;
mod ledger;
mod matrix;
mod memory;
mod metrics;
mod panels;
mod peers;
mod positives;
mod random;
mod search;
mod space;
mod traverse;
mod validation;

pub use books::{Books, Positive, Ties};
pub use clustering::{ami, nmi};
pub use codes::{Codes, binarize};
pub use control::Control;
pub use dense::{Dense, Precision, Similarity};
pub use error::{Error, Result};
pub use evaluate::{Options as EvaluateOptions, count, evaluate, find_positives};
pub use kernel::{Kernel, names as kernel_names, select as select_kernel};
pub use kmeans::{KMeans, Options as KMeansOptions, kmeans};
pub use matrix::{Joined, Matrix, Source, Unit};
pub use memory::collected;
pub use metrics::{PerQuery, mean};
pub use peers::{Alone, Peers};
pub use search::nearest;
