//! Room for what grows with the input. Where there is none the caller gets an error, and the process goes on.

use zerocopy::FromZeros;

use crate::error::{Error, Result};

/// An empty vector with room for `len` elements.
pub(crate) fn room<T>(len: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).map_err(|_| lacking::<T>(len))?;
    Ok(vector)
}

/// `len` zeros, of which no page is touched yet.
pub(crate) fn zeros<T: FromZeros>(len: usize) -> Result<Vec<T>> {
    T::new_vec_zeroed(len).map_err(|_| lacking::<T>(len))
}

/// `len` times the same.
pub(crate) fn filled<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut vector = room(len)?;
    vector.resize(len, value);
    Ok(vector)
}

/// What an iterator gives that knows its length.
pub fn collected<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut vector = room(items.len())?;
    vector.extend(items);
    Ok(vector)
}

fn lacking<T>(len: usize) -> Error {
    Error::Memory { bytes: len.saturating_mul(size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_any_machine_has_is_an_error() {
        let most = usize::MAX / 16;
        assert_eq!(room::<f64>(most), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(zeros::<f64>(most), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(zeros::<f64>(usize::MAX), Err(Error::Memory { bytes: usize::MAX }));
        assert_eq!(filled(most, 1.0), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(collected((0..most).map(|i| i as f64)), Err(Error::Memory { bytes: most * 8 }));
        assert_eq!(zeros::<u32>(3), Ok(vec![0; 3]));
        assert_eq!(filled(2, 7), Ok(vec![7; 2]));
        assert_eq!(collected(4..6), Ok(vec![4, 5]));
    }
}
