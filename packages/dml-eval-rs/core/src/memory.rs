//! Allocations that grow with the input. One that fails is an error, and does not abort the process.

use zerocopy::FromZeros;

use crate::error::{Error, Result};

/// Allocates an empty vector with a capacity of `len` elements.
pub(crate) fn allocate<T>(len: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).map_err(|_| out_of_memory::<T>(len))?;
    Ok(vector)
}

/// Allocates `len` zeros without touching a page.
pub(crate) fn zeros<T: FromZeros>(len: usize) -> Result<Vec<T>> {
    T::new_vec_zeroed(len).map_err(|_| out_of_memory::<T>(len))
}

/// Allocates `len` copies of a value.
pub(crate) fn full<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut vector = allocate(len)?;
    vector.resize(len, value);
    Ok(vector)
}

/// Collects an iterator of known length.
pub fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut vector = allocate(items.len())?;
    vector.extend(items);
    Ok(vector)
}

/// Appends the items of an iterator of known length to a vector whose final length isn't known.
pub(crate) fn append<T>(vector: &mut Vec<T>, items: impl ExactSizeIterator<Item = T>) -> Result<()> {
    reserve(vector, items.len())?;
    vector.extend(items);
    Ok(())
}

/// Reserves room for `more` elements in a vector whose final length isn't known.
pub(crate) fn reserve<T>(vector: &mut Vec<T>, more: usize) -> Result<()> {
    vector.try_reserve(more).map_err(|_| out_of_memory::<T>(more))
}

fn out_of_memory<T>(len: usize) -> Error {
    Error::Memory { bytes: len.saturating_mul(size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_allocation_beyond_any_machine_is_an_error() {
        let most = usize::MAX / 16;
        assert_eq!(allocate::<f64>(most), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(zeros::<f64>(most), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(zeros::<f64>(usize::MAX), Err(Error::Memory { bytes: usize::MAX }));
        assert_eq!(full(most, 1.0), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(collect((0..most).map(|i| i as f64)), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(zeros::<u32>(3), Ok(vec![0; 3]));
        assert_eq!(full(2, 7), Ok(vec![7; 2]));
        assert_eq!(collect(4..6), Ok(vec![4, 5]));
        let mut vector = vec![3.0];
        let too_many = (0..most).map(|i| i as f64);
        assert_eq!(append(&mut vector, too_many), Err(Error::Memory { bytes: most * 8 }));
        append(&mut vector, [4.0, 5.0].into_iter()).unwrap();
        assert_eq!(vector, [3.0, 4.0, 5.0]);
    }
}
