//! Conversions from numpy arrays to views.

use dml_eval::ndarray::{Array2, ArrayView2, Dim, Dimension};
use dml_eval::{Error, Matrix, Result, Source};
use half::f16;
use numpy::{
    Element, PyArray, PyArray1, PyArray2, PyArrayMethods, PyReadonlyArray1, PyReadonlyArray2,
    PyUntypedArray, PyUntypedArrayMethods,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::evaluation::NAMES;
use crate::running::run;

/// A two-dimensional array of floats of any width, or of packed codes, borrowed to be read.
pub enum Items<'py> {
    Rows(Rows<'py>),
    Codes(PyReadonlyArray2<'py, u8>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Items<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract() {
            Ok(codes) => Ok(Items::Codes(codes)),
            Err(_) => Rows::extract(object).map(Items::Rows),
        }
    }
}

/// A two-dimensional array of floats of any width, borrowed to be read.
pub enum Rows<'py> {
    F16(PyReadonlyArray2<'py, f16>),
    F32(PyReadonlyArray2<'py, f32>),
    F64(PyReadonlyArray2<'py, f64>),
    I8(PyReadonlyArray2<'py, i8>),
}

impl<'a, 'py> FromPyObject<'a, 'py> for Rows<'py> {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        let array = object.cast::<PyUntypedArray>()?;
        if !array.getattr("flags")?.getattr("aligned")?.extract::<bool>()? {
            return Err(PyValueError::new_err(
                "the array is not aligned; expected an aligned one: use numpy.require(x, \
                 requirements='A')",
            ));
        }
        if let Ok(x) = object.extract() {
            Ok(Rows::F32(x))
        } else if let Ok(x) = object.extract() {
            Ok(Rows::F64(x))
        } else if let Ok(x) = object.extract() {
            Ok(Rows::F16(x))
        } else if let Ok(x) = object.extract() {
            Ok(Rows::I8(x))
        } else {
            Err(PyTypeError::new_err(format!(
                "got an array of {} dimensions and dtype {}; expected two dimensions, and int8, \
                 float16, float32 or float64",
                array.ndim(),
                array.dtype()
            )))
        }
    }
}

/// A view of embeddings or of codes, which can be sent to threads.
#[derive(Clone, Copy)]
pub enum Sides<'a> {
    Rows(Matrix<'a>),
    Codes(ArrayView2<'a, u8>),
}

impl<'a> Sides<'a> {
    /// Returns the number of items.
    pub fn len(&self) -> usize {
        match self {
            Sides::Rows(rows) => rows.rows(),
            Sides::Codes(codes) => codes.nrows(),
        }
    }

    /// Returns the embeddings, or an error if the items are codes.
    pub fn rows(self) -> Result<Matrix<'a>> {
        match self {
            Sides::Rows(rows) => Ok(rows),
            Sides::Codes(_) => Err(Error::Argument(
                "the gallery contains codes; expected embeddings, like the queries".into(),
            )),
        }
    }

    /// Returns the codes, or an error if the items are embeddings.
    pub fn codes(self) -> Result<ArrayView2<'a, u8>> {
        match self {
            Sides::Codes(codes) => Ok(codes),
            Sides::Rows(_) => Err(Error::Argument(
                "the gallery contains embeddings; expected codes, like the queries".into(),
            )),
        }
    }
}

impl Items<'_> {
    pub fn view(&self) -> Sides<'_> {
        match self {
            Items::Rows(rows) => Sides::Rows(rows.matrix()),
            Items::Codes(codes) => Sides::Codes(codes.as_array()),
        }
    }

    /// Views the items under a similarity: unless it is "hamming", bytes are vectors.
    pub fn view_under(&self, similarity: &str) -> Sides<'_> {
        match self {
            Items::Codes(bytes) if similarity != "hamming" => {
                Sides::Rows(Matrix::U8(bytes.as_array()))
            }
            _ => self.view(),
        }
    }

    /// Views the items as a matrix. Codes become rows of `bits` numbers, 0 or 1.
    pub fn matrix(&self, bits: usize) -> PyResult<Matrix<'_>> {
        match self {
            Items::Rows(rows) => Ok(rows.matrix()),
            Items::Codes(codes) if bits.div_ceil(8) == codes.as_array().ncols() => {
                Ok(Matrix::Bits(codes.as_array(), bits))
            }
            Items::Codes(codes) => Err(PyValueError::new_err(format!(
                "codes have {} bytes each; expected {} for {bits} bits",
                codes.as_array().ncols(),
                bits.div_ceil(8)
            ))),
        }
    }
}

impl Rows<'_> {
    pub fn matrix(&self) -> Matrix<'_> {
        match self {
            Rows::F16(x) => Matrix::F16(x.as_array()),
            Rows::F32(x) => Matrix::F32(x.as_array()),
            Rows::F64(x) => Matrix::F64(x.as_array()),
            Rows::I8(x) => Matrix::I8(x.as_array()),
        }
    }
}

/// Copies the codes at these rows.
pub fn select_codes(codes: ArrayView2<'_, u8>, rows: &[usize]) -> Result<Array2<u8>> {
    let mut selected = dml_eval::collect((0..rows.len() * codes.ncols()).map(|_| 0))?;
    for (copy, &row) in selected.chunks_exact_mut(codes.ncols()).zip(rows) {
        codes.row(row).iter().zip(copy).for_each(|(byte, copy)| *copy = *byte);
    }
    Ok(Array2::from_shape_vec((rows.len(), codes.ncols()), selected).expect("the sizes agree"))
}

/// Packs a bit per element, which is set if the element exceeds the threshold.
#[pyfunction]
#[pyo3(signature = (embeddings, threshold, *, threads=None))]
pub fn binarize<'py>(
    py: Python<'py>,
    embeddings: Rows<'py>,
    threshold: f64,
    threads: Option<usize>,
) -> PyResult<Bound<'py, PyArray2<u8>>> {
    let matrix = embeddings.matrix();
    let codes = zeros(py, [matrix.rows(), matrix.dim().div_ceil(8)])?;
    let mut guard = codes.readwrite();
    let out = guard.as_array_mut();
    run(py, NAMES, threads, None, |control| dml_eval::binarize(matrix, threshold, out, control))?;
    Ok(codes)
}

/// Returns the options, or an error if no keyword was passed.
pub fn required<T>(options: Option<T>) -> PyResult<T> {
    options.ok_or_else(|| PyTypeError::new_err("no options are given; expected keyword arguments"))
}

/// Borrows the slice of an optional array.
pub fn optional_slice<'a, T: Element>(
    array: &'a Option<PyReadonlyArray1<'_, T>>,
) -> PyResult<Option<&'a [T]>> {
    Ok(array.as_ref().map(|a| a.as_slice()).transpose()?)
}

/// Creates an array of zeros. Uses numpy's function, to raise a MemoryError if the allocation
/// fails.
pub fn zeros<'py, T: Element, const N: usize>(
    py: Python<'py>,
    shape: [usize; N],
) -> PyResult<Bound<'py, PyArray<T, Dim<[usize; N]>>>>
where
    Dim<[usize; N]>: Dimension,
{
    let array = py.import("numpy")?.call_method1("zeros", (shape, numpy::dtype::<T>(py)))?;
    Ok(array.cast_into()?)
}

/// Copies numbers to an array, or raises a MemoryError if the allocation fails.
pub fn copy<'py, T: Element>(
    py: Python<'py>,
    numbers: impl ExactSizeIterator<Item = T>,
) -> PyResult<Bound<'py, PyArray1<T>>> {
    let array = zeros(py, [numbers.len()])?;
    array
        .readwrite()
        .as_slice_mut()?
        .iter_mut()
        .zip(numbers)
        .for_each(|(out, number)| *out = number);
    Ok(array)
}
