//! Sizes by which one way of computing is chosen over another. They change the time and the memory of a call, and no bit of its result.
//!
//! The defaults are measured (docs/internals/evaluator-speed.md). Tests lower them, so that a few rows take the paths of millions.

use crate::error::{Result, argument};

macro_rules! sizes {
    ($($(#[$doc:meta])* $name:ident: $default:expr;)*) => {
        /// Sizes of a computation, by name.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Sizes {
            $($(#[$doc])* pub $name: usize,)*
            /// The number of positives from which on all keys of a query are computed; `None` for the fastest.
            pub many_positives: Option<usize>,
            /// The principal directions along which rows are screened, or 0 for whole rows; `None` for the fastest.
            pub directions: Option<usize>,
        }

        impl Default for Sizes {
            fn default() -> Self {
                Sizes { $($name: $default,)* many_positives: None, directions: None }
            }
        }

        impl Sizes {
            /// Sets a size by its name.
            pub fn set(&mut self, name: &str, size: usize) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = size,)*
                    "many_positives" => self.many_positives = Some(size),
                    "directions" => self.directions = Some(size),
                    _ => {
                        let names = [$(stringify!($name),)* "many_positives", "directions"].join(", ");
                        return argument(format!("unknown size {name:?}; expected one of {names}"));
                    }
                }
                Ok(())
            }
        }
    };
}

sizes! {
    /// The most packed bytes of a block of more than one panel. Two blocks are in memory at a time.
    block_bytes: 24 << 20;
    /// The most panels of a task's rows and columns, for short rows: thresholds are updated, and a cancellation is noticed, between
    /// tasks. With larger tasks more values pass the first, low thresholds; with smaller ones, tasks have more overhead. A preview
    /// takes at most 64 row panels together.
    task_row_panels: 24;
    /// See `task_row_panels`.
    task_column_panels: 16;
    /// Words from which on a panel of a few rows is narrow; a panel of fewer words costs less time padded.
    narrow_panel_words: 6 << 20;
    /// The least words of integers for which rows are abridged.
    abridged_words: 12;
    /// Words of queries, and of items, that are packed at a time for a table of keys.
    table_query_words: 8 << 20;
    /// See `table_query_words`.
    table_item_words: 1 << 20;
    /// Keys of tables in memory at a time, for all queries together.
    table_keys: 4 << 20;
    /// Queries of a table: enough that packing the gallery for them costs little compared with the products.
    table_queries: 512;
    /// Items of a row from which on its keys are sorted by three digits instead of two.
    three_digits: 1 << 17;
    /// Items from which on a row's items are sorted digit by digit.
    radix_entries: 512;
    /// The fewest queries, and gallery items, of a class or of a task's open pairs whose keys come from a table.
    class_table: 16;
    /// The most bytes of positives and counts in memory, or this multiple of the inputs' bytes if that is more.
    count_bytes: 96 << 20;
    /// See `count_bytes`.
    count_bytes_per_input_byte: 1;
    /// The most positives of a query between which the screen itself counts the negatives.
    counted_brackets: 16;
    /// Open pairs are decided by a table of all keys of a task if one pair of so many is open.
    pairs_per_open_key: 8;
    /// The approximate most bytes of candidates of a search in memory.
    candidate_bytes: 48 << 20;
    /// The fewest neighbours that are found from tables of keys, and the items of the gallery for each.
    table_neighbours: 32;
    /// See `table_neighbours`.
    items_per_table_neighbour: 5;
    /// The fewest neighbours whose thresholds are guessed: fewer than k items of the sample may reach them.
    guessed_neighbours: 32;
    /// The items of the gallery for each of the sample from which thresholds come, at least.
    guess_spacing: 8;
    /// The sampled values above a guess, in percent of those for which few guesses are too high.
    guess_percent: 100;
    /// The most queries that are compared with the rows of a gallery as these lie in memory.
    few_queries: 32;
    /// The most items of a gallery whose neighbours are found from tables of keys, however few are wanted.
    few_items: 128;
    /// The most bytes of nearest items so far in memory, for a search from tables.
    nearest_bytes: 48 << 20;
    /// Items of a cell, in whole panels.
    cell_items: 48;
    /// Queries whose items above a threshold are in memory twice, before and after they are sorted.
    range_queries: 1024;
    /// The scores of the sample from which a verification estimates brackets.
    verify_sample: 4 << 20;
    /// Negatives of 12 bytes that a verification lists at a time; a sixteenth is kept where float64 decides.
    verify_listed: 12 << 20;
    /// The most positives whose scores a verification holds. Each takes 8 bytes, and at most 60 while slots are counted.
    verify_held: 4 << 20;
    /// The fewest distinct scores of positives between which negatives are counted together: with their counts they stay in a core's
    /// first-level cache.
    slot_part: 1024;
    /// Negatives that are listed for a part before they are counted: enough that fetching the part costs little.
    slot_list: 16384;
    /// Queries, and gallery items, of a table of distances.
    distance_table: 2048;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_is_set_by_its_name() {
        let mut sizes = Sizes::default();
        sizes.set("block_bytes", 5).unwrap();
        sizes.set("directions", 7).unwrap();
        assert_eq!(sizes, Sizes { block_bytes: 5, directions: Some(7), ..Sizes::default() });
        let message = sizes.set("blocks", 1).unwrap_err().to_string();
        assert!(message.starts_with("unknown size \"blocks\"; expected one of block_bytes, "), "{message}");
    }
}
