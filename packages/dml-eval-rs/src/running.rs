//! Long work off the interpreter: its own threads, Ctrl-C, progress, and panics caught.
//!
//! Threads live as long as a call, so that a fork between calls leaves nothing behind that could hang.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use dml_eval::{Control, Error, Result};
use pyo3::exceptions::{PyKeyboardInterrupt, PyMemoryError, PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// How often signals are looked for and progress is told.
const INTERVAL: Duration = Duration::from_millis(50);

/// An error of the core on its way to Python.
pub struct Failure(Error);

impl From<Failure> for PyErr {
    fn from(Failure(error): Failure) -> PyErr {
        match error {
            Error::Cancelled => PyKeyboardInterrupt::new_err(()),
            Error::Memory { .. } => PyMemoryError::new_err(error.to_string()),
            _ => PyValueError::new_err(error.to_string()),
        }
    }
}

/// For `map_err`.
pub fn failed(error: Error) -> PyErr {
    Failure(error).into()
}

/// Does `work` on `threads` threads (all cores that the process may use, if not given), with the interpreter released.
pub fn run<T: Send>(
    py: Python<'_>,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Control) -> Result<T> + Send,
) -> PyResult<T> {
    if threads == Some(0) {
        return Err(PyValueError::new_err("threads is 0; expected at least 1, or None for all cores"));
    }
    let control = Control::default();
    let tell = |py: Python<'_>| -> PyResult<()> {
        py.check_signals()?;
        match &progress {
            Some(progress) => progress.call1(py, control.progress()).map(drop),
            None => Ok(()),
        }
    };
    let result = py.detach(|| {
        std::thread::scope(|scope| {
            let no_thread = |reason: String| PyOSError::new_err(format!("the system starts no more threads: {reason}"));
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads.unwrap_or(0)).build();
            let pool = pool.map_err(|e| no_thread(e.to_string()))?;
            let (control, (finished, waiting)) = (&control, channel::<()>());
            let worker = std::thread::Builder::new().spawn_scoped(scope, move || {
                // Dropped when this thread ends, in a panic, too, which wakes the one that waits.
                let _finished = finished;
                pool.install(|| work(control))
            });
            let worker = worker.map_err(|e| no_thread(e.to_string()))?;
            let mut interrupted = None;
            while interrupted.is_none() && waiting.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                if let Err(error) = Python::attach(tell) {
                    control.cancel();
                    interrupted = Some(error);
                }
            }
            match (worker.join(), interrupted) {
                (_, Some(error)) => Err(error),
                (Ok(result), None) => result.map_err(failed),
                (Err(panic), None) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                    Err(PyRuntimeError::new_err(format!("internal error in dml-eval-rs, please report it: {text}")))
                }
            }
        })
    })?;
    tell(py)?;
    Ok(result)
}
