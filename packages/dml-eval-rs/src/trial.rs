//! A trial: settings that a test or a benchmark chooses for this process's calls, and the paths
//! that the calls took.
//!
//! The settings apply to all functions, so that functions do not need parameters that users never
//! set.

use std::sync::{Mutex, MutexGuard};

use dml_eval::{Control, Kernel, Paths, Precision, Result, Sizes};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::evaluation::NAMES;

struct Trial {
    kernel: &'static Kernel,
    screen: Option<Precision>,
    sizes: Sizes,
    paths: Paths,
}

static TRIAL: Mutex<Option<Trial>> = Mutex::new(None);

fn trial() -> MutexGuard<'static, Option<Trial>> {
    TRIAL.lock().expect("no thread panics while it holds the lock")
}

/// Returns the trial's kernel, or by default the fastest.
pub fn kernel() -> Result<&'static Kernel> {
    trial().as_ref().map_or_else(|| dml_eval::select_kernel(None), |trial| Ok(trial.kernel))
}

/// Returns the trial's screen, or `screen` if the trial has none.
pub fn screen_or(screen: Precision) -> Precision {
    trial().as_ref().and_then(|trial| trial.screen).unwrap_or(screen)
}

/// Returns a call's control, which is traced if there is a trial.
pub fn control() -> Control {
    trial().as_ref().map_or_else(Control::default, |trial| Control::traced(trial.sizes.clone()))
}

/// Adds a call's paths to the trial, if there is one.
pub fn add_paths(control: &Control) {
    if let Some(trial) = trial().as_mut() {
        for (path, times) in control.paths() {
            *trial.paths.entry(path).or_default() += times;
        }
    }
}

/// Starts a trial with a kernel, a screen ("float32" or "16-bit") and sizes by name (see
/// `core/src/sizes.rs`). If a setting is not given, it is chosen as usual.
#[pyfunction]
#[pyo3(signature = (*, kernel=None, screen=None, **sizes))]
pub fn begin_trial(
    kernel: Option<&str>,
    screen: Option<&str>,
    sizes: Option<&Bound<'_, PyDict>>,
) -> PyResult<()> {
    let kernel = NAMES.check(dml_eval::select_kernel(kernel))?;
    let screen = screen.map(|name| NAMES.check(name.parse())).transpose()?;
    let mut chosen = Sizes::default();
    for (name, size) in sizes.into_iter().flatten() {
        NAMES.check(chosen.set(&name.extract::<String>()?, size.extract()?))?;
    }
    let mut trial = trial();
    if trial.is_some() {
        return Err(PyRuntimeError::new_err("a trial is in progress; end it before the next"));
    }
    *trial = Some(Trial { kernel, screen, sizes: chosen, paths: Paths::new() });
    Ok(())
}

/// Ends the trial, then returns how often paths were taken.
#[pyfunction]
pub fn end_trial() -> PyResult<Paths> {
    let ended =
        trial().take().ok_or_else(|| PyRuntimeError::new_err("there is no trial to end"))?;
    Ok(ended.paths)
}

/// Lists the kernels that this machine can run.
#[pyfunction]
pub fn kernels() -> Vec<&'static str> {
    dml_eval::kernel_names()
}

/// Lists the kernels that this machine can't run.
#[pyfunction]
pub fn missing_kernels() -> Vec<&'static str> {
    dml_eval::missing_kernel_names()
}
