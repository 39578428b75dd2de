//! Rows as they lie in memory, their packed panels, and the two spaces that compare them.

pub(crate) mod classes;
pub(crate) mod codes;
pub(crate) mod dense;
pub(crate) mod derived;
mod key_table;
pub(crate) mod matrix;
pub(crate) mod own_item;
pub(crate) mod panels;
mod scaling;
pub(crate) mod similarity;
pub(crate) mod space;
mod validation;
