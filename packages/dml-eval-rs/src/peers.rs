//! Peers that Python reaches, by whatever it has for that.

use std::sync::Mutex;

use dml_eval::{Alone, Control, Error, Peers, Result};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::running::run;

/// An object with `rank`, `world_size`, `all_gather` and `all_reduce`.
struct Reached {
    object: Py<PyAny>,
    place: (usize, usize),
    /// What an exchange raised.
    failure: Mutex<Option<PyErr>>,
}

impl Reached {
    fn exchange<T>(&self, of: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> Result<T> {
        Python::attach(|py| of(self.object.bind(py))).map_err(|error| {
            let message = error.to_string();
            *self.failure.lock().expect("no thread panics while it holds an error") = Some(error);
            Error::Exchange(message)
        })
    }
}

impl Peers for Reached {
    fn place(&self) -> (usize, usize) {
        self.place
    }

    fn gather(&self, numbers: &[f64]) -> Result<Vec<f64>> {
        self.exchange(|peers| {
            let gathered = peers.call_method1("all_gather", (PyArray1::from_slice(peers.py(), numbers),))?;
            Ok(gathered.extract::<PyReadonlyArray1<'_, f64>>()?.as_slice()?.to_vec())
        })
    }

    fn sum(&self, counts: &[u64]) -> Result<Vec<u64>> {
        self.exchange(|peers| {
            let signed = PyArray1::from_iter(peers.py(), counts.iter().map(|c| *c as i64));
            let sums = peers.call_method1("all_reduce", (signed,))?;
            let sums = sums.extract::<PyReadonlyArray1<'_, i64>>()?;
            Ok(sums.as_slice()?.iter().map(|c| *c as u64).collect())
        })
    }
}

/// `run`, with peers if there are any. What they raise is raised.
pub fn run_together<T: Send>(
    py: Python<'_>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    peers: Option<Bound<'_, PyAny>>,
    work: impl FnOnce(&dyn Peers, &Control) -> Result<T> + Send,
) -> PyResult<T> {
    let Some(peers) = peers else {
        return run(py, threads, progress, |control| work(&Alone, control));
    };
    let place = (peers.getattr("rank")?.extract()?, peers.getattr("world_size")?.extract()?);
    let reached = Reached { object: peers.unbind(), place, failure: Mutex::new(None) };
    let result = run(py, threads, progress, |control| work(&reached, control));
    let failure = reached.failure.into_inner().expect("no thread panics while it holds an error");
    failure.map_or(result, Err)
}
