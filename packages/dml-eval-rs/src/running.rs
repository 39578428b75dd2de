//! Long computations outside the interpreter: threads, Ctrl-C, progress, and how the core's errors
//! are raised in Python.
//!
//! All work of a call must run in [`run`], which starts a thread pool and joins the threads before
//! the call returns. rayon's global pool would be started by work outside a pool, but must not be
//! used: its threads never end, so after a fork the child would wait for threads that do not exist.
//! The pool's threads set the floating-point environment. The calling thread's environment must not
//! be changed, so this thread must not do arithmetic.

use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use dml_eval::{Control, Error, Result, Side};
use pyo3::exceptions::{
    PyKeyboardInterrupt, PyMemoryError, PyOSError, PyRuntimeError, PyValueError,
};
use pyo3::prelude::*;

use crate::trial;

/// How often signals are checked and progress is reported.
const INTERVAL: Duration = Duration::from_millis(50);

/// The bytes to allocate to test if a thread's stack fits: the maximum size of a stack, and too
/// large to reuse freed memory.
const THREAD_BYTES: usize = 64 << 20;

/// The names that a Python function uses for the queries and for the gallery.
#[derive(Clone, Copy)]
pub struct ArgumentNames {
    pub queries: &'static str,
    pub gallery: &'static str,
}

impl ArgumentNames {
    /// Uses the same name for both if there is only a single array.
    pub const fn one(name: &'static str) -> Self {
        ArgumentNames { queries: name, gallery: name }
    }

    fn of(self, side: Side) -> &'static str {
        match side {
            Side::Query => self.queries,
            Side::Gallery => self.gallery,
        }
    }

    /// Converts a result from the core.
    pub fn check<T>(self, result: Result<T>) -> PyResult<T> {
        result.map_err(|error| self.to_py_err(error))
    }

    /// Converts an error from the core, using Python's names for arguments and options.
    fn to_py_err(self, error: Error) -> PyErr {
        let message = match error {
            Error::Cancelled => return PyKeyboardInterrupt::new_err(()),
            Error::Memory { .. } => return PyMemoryError::new_err(error.to_string()),
            Error::Shape { side, rows, columns, expected } => {
                format!("{} has shape ({rows}, {columns}); expected {expected}", self.of(side))
            }
            Error::NonFinite { side, row, count } => format!(
                "{} row {row} holds NaN or infinity (the first of {count} such rows); expected \
                 finite numbers: drop or repair those rows",
                self.of(side)
            ),
            Error::ZeroNorm { side, row, count } => format!(
                "{} row {row} is all zeros (the first of {count} such rows), and the cosine with \
                 it is undefined; drop those rows, or use similarity='dot' or 'euclidean'",
                self.of(side)
            ),
            Error::TooLarge { side, row, magnitude } => format!(
                "{} row {row} has an element of magnitude {magnitude:e}; expected at most 2**500, \
                 so that sums of products stay within float64: scale the rows down, or use \
                 similarity='cosine'",
                self.of(side)
            ),
            other => other.to_string(),
        };
        PyValueError::new_err(message)
    }
}

/// Converts the error if a thread can't be started: tries to allocate a stack, to see if memory or
/// the number of threads is short.
fn no_thread(reason: io::Error) -> PyErr {
    let mut room = Vec::<u8>::new();
    let fits = room.try_reserve_exact(THREAD_BYTES).is_ok();
    // The compiler would remove an unused allocation.
    std::hint::black_box(&room);
    if !fits {
        return PyMemoryError::new_err(format!("out of memory: can't start a thread: {reason}"));
    }
    PyOSError::new_err(format!("can't start a thread: {reason}"))
}

/// Threads that are joined when this is dropped.
#[derive(Default)]
struct Threads(Vec<JoinHandle<()>>);

impl Drop for Threads {
    fn drop(&mut self) {
        for thread in self.0.drain(..) {
            // When the work panics, rayon passes the panic to `install`; for other panics it aborts
            // the process.
            let _ = thread.join();
        }
    }
}

/// Runs `work` in a pool of `threads` threads (0 for rayon's default), and joins the threads before
/// this returns or panics. If a thread can't be started, `work` does not run.
#[expect(clippy::disallowed_methods, reason = "threads are few")]
fn run_in_pool<T: Send>(threads: usize, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    // Declared first, to be dropped after the pool: the pool asks its threads to end, but does not
    // wait.
    let mut started = Threads::default();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).spawn_handler(|thread| {
        started.0.push(std::thread::Builder::new().spawn(|| {
            dml_eval::set_default_float_environment();
            thread.run();
        })?);
        Ok(())
    });
    let pool = pool.build().map_err(io::Error::other)?;
    Ok(pool.install(work))
}

/// Releases the GIL, and runs `work` on `threads` threads (default: `RAYON_NUM_THREADS`, or one per
/// available core).
pub fn run<T: Send>(
    py: Python<'_>,
    names: ArgumentNames,
    threads: Option<usize>,
    progress: Option<Py<PyAny>>,
    work: impl FnOnce(&Control) -> Result<T> + Send,
) -> PyResult<T> {
    if threads == Some(0) {
        return Err(PyValueError::new_err(
            "threads is 0; expected at least 1, or None for all cores",
        ));
    }
    let control = trial::control();
    let report = |py: Python<'_>| -> PyResult<()> {
        py.check_signals()?;
        match &progress {
            Some(progress) => progress.call1(py, control.progress()).map(drop),
            None => Ok(()),
        }
    };
    let result = py.detach(|| {
        std::thread::scope(|scope| {
            let (control, (finished, waiting)) = (&control, channel::<()>());
            let worker = std::thread::Builder::new().spawn_scoped(scope, move || {
                // This is dropped when the thread ends, even by a panic, to wake the waiting
                // thread.
                let _finished = finished;
                run_in_pool(threads.unwrap_or(0), || work(control))
            });
            let worker = worker.map_err(no_thread)?;
            let mut interrupted = None;
            while interrupted.is_none()
                && waiting.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout)
            {
                if let Err(error) = Python::attach(report) {
                    control.cancel();
                    interrupted = Some(error);
                }
            }
            match (worker.join(), interrupted) {
                (_, Some(error)) => Err(error),
                (Ok(result), None) => names.check(result.map_err(no_thread)?),
                (Err(panic), None) => {
                    let text = panic.downcast_ref::<String>().map(String::as_str);
                    let text = text
                        .or_else(|| panic.downcast_ref::<&str>().copied())
                        .unwrap_or("no message");
                    Err(PyRuntimeError::new_err(format!(
                        "internal error in dml-eval-rs, please report it: {text}"
                    )))
                }
            }
        })
    })?;
    trial::add_paths(&control);
    report(py)?;
    Ok(result)
}
