//! Python bindings for `dml-eval`, which convert arguments, release the GIL and map errors.
//! `python/dml_eval_rs` is the facade.
//!
//! Options are passed as keywords and extracted into a struct; `evaluate` reads the options from an
//! object's attributes.

#![deny(clippy::disallowed_macros, clippy::disallowed_methods, clippy::disallowed_types)]

mod clustering;
mod convert;
mod evaluation;
mod peers;
mod relation;
mod running;
mod search;
mod shards;
mod trial;
mod verification;
mod verification_shards;

use pyo3::prelude::*;

#[pymodule(gil_used = false)]
mod _native {
    use pyo3::exceptions::PyRuntimeWarning;
    use pyo3::prelude::*;

    #[pymodule_export]
    use super::clustering::{ami, ari, kmeans, nmi};
    #[pymodule_export]
    use super::convert::binarize;
    #[pymodule_export]
    use super::evaluation::evaluate;
    #[pymodule_export]
    use super::search::{hard_negatives, index_recall, knn, range_search, top_pairs};
    #[pymodule_export]
    use super::shards::{
        compute_metrics, count_negatives, count_symmetric_negatives, find_positives,
    };
    #[pymodule_export]
    use super::trial::{begin_trial, end_trial, kernels, missing_kernels};
    #[pymodule_export]
    use super::verification::{count_distances, pair_scores, roc_curve, verify};
    #[pymodule_export]
    use super::verification_shards::{advance_searches, begin_pairs, begin_searches, count_pairs};

    /// The version of the package.
    #[pymodule_export]
    const VERSION: &str = env!("CARGO_PKG_VERSION");

    /// Warns if this build is not optimised, because such a build is about fifty times slower than
    /// an optimised build.
    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        if cfg!(debug_assertions) {
            let message =
                c"dml_eval_rs was built without optimisation and is tens of times slower \
                            than an optimised build: build it with 'maturin develop --release'";
            let category = module.py().get_type::<PyRuntimeWarning>();
            PyErr::warn(module.py(), &category, message, 2)?;
        }
        Ok(())
    }
}
