//! Rows as they lie in memory, packed panels, and the spaces used to compare rows.

pub(crate) mod abridged;
mod byte_rows;
pub(crate) mod classes;
pub(crate) mod codes;
pub(crate) mod comparable;
pub(crate) mod dense;
pub(crate) mod dense_packing;
mod dense_space;
pub(crate) mod derived;
mod encoding;
mod frame;
mod key_table;
pub(crate) mod keys;
pub(crate) mod matrix;
pub(crate) mod narrow_panels;
pub(crate) mod own_item;
pub(crate) mod packing;
pub(crate) mod panels;
mod prefix;
mod prefix_choice;
mod principal;
pub(crate) mod row_words;
mod sample;
mod scaling;
pub(crate) mod similarity;
pub(crate) mod space;
mod validation;
