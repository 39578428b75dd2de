//! Peers implemented by a Python object.

use std::sync::Mutex;

use dml_eval::{Alone, Control, Error, Peers, Result, collect};
use numpy::{Element, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::convert::copy;
use crate::running::{ArgumentNames, run};

const NAMES: ArgumentNames = ArgumentNames::one("peers");

/// A Python object with `rank`, `world_size`, `all_gather` and `all_reduce`.
struct PythonPeers {
    object: Py<PyAny>,
    rank: usize,
    world_size: usize,
    /// The exception that an exchange raised.
    failure: Mutex<Option<PyErr>>,
}

impl PythonPeers {
    fn exchange<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| call(self.object.bind(py))).map_err(|error| {
            let message = error.to_string();
            *self.failure.lock().expect("no thread panics while it holds the lock") = Some(error);
            Error::Exchange(message)
        })
    }
}

impl Peers for PythonPeers {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world_size(&self) -> usize {
        self.world_size
    }

    fn all_gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        self.exchange(|peers| {
            let gathered =
                peers.call_method1("all_gather", (copy(peers.py(), numbers.iter().copied())?,))?;
            numbers_of(&gathered, "all_gather", "float64")
        })
    }

    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
        self.exchange(|peers| {
            let signed = copy(peers.py(), counts.iter().map(|c| *c as i64))?;
            let sums = peers.call_method1("all_reduce", (signed,))?;
            let counts = numbers_of::<i64>(&sums, "all_reduce", "int64")?;
            if counts.iter().any(|count| *count < 0) {
                return Err(PyValueError::new_err(
                    "peers.all_reduce returned a negative count; expected sums of counts",
                ));
            }
            NAMES.check(collect(counts.into_iter().map(|count| count as u64)))
        })
    }
}

/// Copies the one-dimensional array that a method returned.
fn numbers_of<T: Element + Copy>(
    found: &Bound<'_, PyAny>,
    method: &str,
    dtype: &str,
) -> PyResult<Vec<T>> {
    if let Ok(array) = found.extract::<PyReadonlyArray1<'_, T>>() {
        return NAMES.check(collect(array.as_array().iter().copied()));
    }
    let came = match found.cast::<PyUntypedArray>() {
        Ok(array) => format!("an array of {} dimensions and dtype {}", array.ndim(), array.dtype()),
        Err(_) => format!("a {}", found.get_type().name()?),
    };
    Err(PyTypeError::new_err(format!(
        "peers.{method} returned {came}; expected a numpy array of one dimension and dtype {dtype}"
    )))
}

/// Runs work like `run`, using the peers if given, and raises the peers' exceptions.
pub fn run_with_peers<T: Send>(
    py: Python<'_>,
    names: ArgumentNames,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'_, PyAny>>,
    work: impl FnOnce(&dyn Peers, &Control) -> Result<T> + Send,
) -> PyResult<T> {
    let Some(peers) = peers else {
        return run(py, names, threads, progress, |control| work(&Alone, control));
    };
    let (rank, world_size) =
        (peers.getattr("rank")?.extract()?, peers.getattr("world_size")?.extract()?);
    let peers = PythonPeers { object: peers.unbind(), rank, world_size, failure: Mutex::new(None) };
    let result = run(py, names, threads, progress, |control| work(&peers, control));
    let failure = peers.failure.into_inner().expect("no thread panics while it holds the lock");
    failure.map_or(result, Err)
}
