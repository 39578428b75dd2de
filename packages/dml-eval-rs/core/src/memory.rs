//! Allocates memory that grows with the input. When an allocation fails, the functions return an
//! error instead of aborting the process.
//!
//! Other modules must only grow vectors with these functions: clippy.toml lists methods of the
//! standard library and of rayon that abort the process. For parallel work that may fail, use
//! [`each`], or [`collect_each`] to get the results.

#![expect(clippy::disallowed_methods, reason = "each call follows a reservation that succeeded")]

use rayon::prelude::*;
use zerocopy::FromZeros;

use crate::error::{Error, Result};

/// Allocates an empty vector with a capacity of `len` elements.
pub(crate) fn allocate<T>(len: usize) -> Result<Vec<T>> {
    let mut vector = Vec::new();
    vector.try_reserve_exact(len).map_err(|_| out_of_memory::<T>(len))?;
    Ok(vector)
}

/// Allocates `len` zeros and does not touch the pages.
pub(crate) fn zeros<T: FromZeros>(len: usize) -> Result<Vec<T>> {
    T::new_vec_zeroed(len).map_err(|_| out_of_memory::<T>(len))
}

/// Allocates `len` copies of a value.
pub(crate) fn full<T: Clone>(len: usize, value: T) -> Result<Vec<T>> {
    let mut vector = allocate(len)?;
    vector.resize(len, value);
    Ok(vector)
}

/// Collects an iterator with a known length.
pub fn collect<T>(items: impl ExactSizeIterator<Item = T>) -> Result<Vec<T>> {
    let mut vector = allocate(items.len())?;
    vector.extend(items);
    Ok(vector)
}

/// Collects the results of an iterator with a known length, or returns the first error.
pub fn try_collect<T>(items: impl ExactSizeIterator<Item = Result<T>>) -> Result<Vec<T>> {
    let mut vector = allocate(items.len())?;
    for item in items {
        vector.push(item?);
    }
    Ok(vector)
}

/// Collects an iterator with an unknown length. Iterates twice, so that the vector is allocated at
/// the final size.
pub(crate) fn collect_counted<T>(items: impl Iterator<Item = T> + Clone) -> Result<Vec<T>> {
    let mut vector = allocate(items.clone().count())?;
    vector.extend(items);
    Ok(vector)
}

/// Growth of a vector that can fail. When it fails, the vector is unchanged, except for items that
/// `try_extend` already added.
pub(crate) trait Grow<T> {
    /// Adds `item`.
    fn try_push(&mut self, item: T) -> Result<()>;
    /// Adds the items of an iterator. If the vector is empty and the length is known, allocates the
    /// final size.
    fn try_extend(&mut self, items: impl IntoIterator<Item = T>) -> Result<()>;
    /// Reserves room for `more` items.
    fn make_room(&mut self, more: usize) -> Result<()>;
    /// Shortens the vector to `len`, or adds copies of `value` up to this length.
    fn try_resize(&mut self, len: usize, value: T) -> Result<()>
    where
        T: Clone;
}

impl<T> Grow<T> for Vec<T> {
    #[inline(always)]
    fn try_push(&mut self, item: T) -> Result<()> {
        self.make_room(1)?;
        self.push(item);
        Ok(())
    }

    #[inline(always)]
    fn try_extend(&mut self, items: impl IntoIterator<Item = T>) -> Result<()> {
        let items = items.into_iter();
        let (least, most) = items.size_hint();
        self.make_room(least)?;
        if most == Some(least) {
            self.extend(items);
            return Ok(());
        }
        for item in items {
            self.try_push(item)?;
        }
        Ok(())
    }

    #[inline(always)]
    fn make_room(&mut self, more: usize) -> Result<()> {
        if more > self.capacity() - self.len() { reserve(self, more) } else { Ok(()) }
    }

    #[inline(always)]
    fn try_resize(&mut self, len: usize, value: T) -> Result<()>
    where
        T: Clone,
    {
        self.make_room(len.saturating_sub(self.len()))?;
        self.resize(len, value);
        Ok(())
    }
}

/// Reserves room: exactly for an empty vector, otherwise with room for later growth.
#[cold]
fn reserve<T>(vector: &mut Vec<T>, more: usize) -> Result<()> {
    let reserved = match vector.is_empty() && more > 1 {
        true => vector.try_reserve_exact(more),
        false => vector.try_reserve(more),
    };
    reserved.map_err(|_| out_of_memory::<T>(more))
}

/// Borrows a thread's value, or returns the error if creating this value failed.
pub(crate) fn ready<T>(made: &mut Result<T>) -> Result<&mut T> {
    made.as_mut().map_err(|error| error.clone())
}

/// Works on items in parallel, using scratch from `make` per group of items. Stops at the first
/// error and returns it.
pub(crate) fn each<I: ParallelIterator, S>(
    items: I,
    make: impl Fn() -> Result<S> + Sync + Send,
    work: impl Fn(&mut S, I::Item) -> Result<()> + Sync + Send,
) -> Result<()> {
    items.try_for_each_init(make, |scratch, item| work(ready(scratch)?, item))
}

/// Works on items in parallel like [`each`], and collects the results.
pub(crate) fn collect_each<I: IndexedParallelIterator, S, T: Default + Send>(
    items: I,
    make: impl Fn() -> Result<S> + Sync + Send,
    work: impl Fn(&mut S, I::Item) -> Result<T> + Sync + Send,
) -> Result<Vec<T>> {
    let mut results = allocate(items.len())?;
    results.resize_with(items.len(), T::default);
    each(items.zip(&mut results), make, |scratch, (item, result)| {
        *result = work(scratch, item)?;
        Ok(())
    })?;
    Ok(results)
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
        assert_eq!(vector.try_extend(too_many), Err(Error::Memory { bytes: most * 8 }));
        vector.try_extend([4.0, 5.0]).unwrap();
        vector.try_push(6.0).unwrap();
        assert_eq!(vector, [3.0, 4.0, 5.0, 6.0]);
    }
}
