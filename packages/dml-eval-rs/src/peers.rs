//! Peers behind a Python object.

use std::sync::Mutex;

use dml_eval::{Alone, Control, Error, Peers, Result};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::running::{ArgumentNames, run};

/// A Python object with `rank`, `world_size`, `all_gather` and `all_reduce`.
struct PythonPeers {
    object: Py<PyAny>,
    rank: usize,
    world_size: usize,
    /// The exception of an exchange.
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
            let gathered = peers.call_method1("all_gather", (PyArray1::from_slice(peers.py(), numbers),))?;
            Ok(gathered.extract::<PyReadonlyArray1<'_, f64>>()?.as_slice()?.to_vec())
        })
    }

    fn all_reduce(&self, counts: &[u64]) -> Result<Vec<u64>> {
        self.exchange(|peers| {
            let signed = PyArray1::from_iter(peers.py(), counts.iter().map(|c| *c as i64));
            let sums = peers.call_method1("all_reduce", (signed,))?;
            let sums = sums.extract::<PyReadonlyArray1<'_, i64>>()?;
            Ok(sums.as_slice()?.iter().map(|c| *c as u64).collect())
        })
    }
}

/// Runs work as `run` does, with peers if they are given, and raises their exceptions.
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
    let (rank, world_size) = (peers.getattr("rank")?.extract()?, peers.getattr("world_size")?.extract()?);
    let peers = PythonPeers { object: peers.unbind(), rank, world_size, failure: Mutex::new(None) };
    let result = run(py, names, threads, progress, |control| work(&peers, control));
    let failure = peers.failure.into_inner().expect("no thread panics while it holds the lock");
    failure.map_or(result, Err)
}
