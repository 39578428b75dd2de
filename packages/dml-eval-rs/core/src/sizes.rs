//! Sizes that choose between ways to compute. They affect the time and memory that a call needs,
//! but not a bit of the result.
//!
//! The defaults are measured (docs/internals/evaluator-speed.md). Tests lower sizes, so that a few
//! rows take the paths of millions.

use crate::error::{Result, argument};

macro_rules! sizes {
    ($($(#[$doc:meta])* $name:ident: $default:expr;)*) => {
        /// The sizes of a computation, by name.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Sizes {
            $($(#[$doc])* pub $name: usize,)*
            /// With at least this number of positives, all keys of a query are computed; `None`
            /// chooses the fastest.
            pub many_positives: Option<usize>,
            /// The number of principal directions to screen along, or 0 to screen complete rows;
            /// `None` chooses the fastest.
            pub directions: Option<usize>,
        }

        impl Default for Sizes {
            fn default() -> Self {
                Sizes { $($name: $default,)* many_positives: None, directions: None }
            }
        }

        impl Sizes {
            /// Sets the size with this name.
            pub fn set(&mut self, name: &str, size: usize) -> Result<()> {
                match name {
                    $(stringify!($name) => self.$name = size,)*
                    "many_positives" => self.many_positives = Some(size),
                    "directions" => self.directions = Some(size),
                    _ => {
                        let names =
                            [$(stringify!($name),)* "many_positives", "directions"].join(", ");
                        return argument(format!("unknown size {name:?}; expected one of {names}"));
                    }
                }
                Ok(())
            }
        }
    };
}

sizes! {
    /// The maximum bytes of a packed block, unless it is a single panel. Two blocks are in memory.
    block_bytes: 24 << 20;
    /// The maximum numbers of panels in the rows and columns of a task, for short rows. Between
    /// tasks, thresholds are updated and cancellations noticed. With larger tasks, more values pass
    /// the low initial thresholds; smaller tasks have more overhead.
    task_row_panels: 24;
    /// See `task_row_panels`.
    task_column_panels: 16;
    /// If panels consist of more words than this, a panel for a few rows is narrow; otherwise a
    /// padded panel is faster.
    narrow_panel_words: 6 << 20;
    /// Rows are also rounded to bytes if they have at least this number of words of integers.
    rounded_words: 12;
    /// The maximum number of words of items that are packed at a time to compute a table of keys.
    table_item_words: 1 << 20;
    /// The approximate maximum number of keys in a table, for all queries together.
    table_keys: 4 << 20;
    /// The queries per table, enough that packing the gallery costs little compared with the
    /// products.
    table_queries: 512;
    /// Queries are ranked from values in float32, unless these leave more than one item in this
    /// number open for most queries of a sample.
    items_per_open_value: 10;
    /// The minimum number of queries to rank from tables of values in float32, which are computed
    /// for a sample of the queries first.
    value_queries: 128;
    /// If a class or the open pairs of a task have at least this number of queries, and of items,
    /// keys come from a table.
    class_table: 16;
    /// The maximum bytes of positives and counts in memory, or `bytes_per_input_byte` times the
    /// bytes of the inputs if that is more.
    count_bytes: 128 << 20;
    /// See `count_bytes`.
    bytes_per_input_byte: 1;
    /// If a query has at most this number of positives, and all ranks matter, the screen counts
    /// negatives between positives.
    counted_brackets: 32;
    /// Open pairs are decided using a table of all keys in a task if at least one pair in this
    /// number is open.
    pairs_per_open_key: 8;
    /// The approximate maximum bytes of a search's lists in memory, unless each pair of an array is
    /// compared once: this needs the lists of all queries.
    candidate_bytes: 64 << 20;
    /// The k nearest neighbours come from tables of keys if the gallery contains at most this
    /// number of items, times 2 + k^(2/3).
    table_items: 72;
    /// The sample used to find thresholds contains at most one gallery item per this number of
    /// items, but at least a panel if this is at most half of the gallery. If this size is 0,
    /// thresholds are not guessed.
    guess_spacing: 8;
    /// Scales the number of sampled values above a guess, in percent. At 100, few guesses are too
    /// high.
    guess_percent: 100;
    /// The thresholds of ranks are guessed if at most this number of values are sampled per listed
    /// value that this saves.
    sampled_per_listed: 32;
    /// With at least this number of gallery items per allowed item, the keys of all allowed items
    /// are computed.
    items_per_allowed: 64;
    /// Up to this number of queries, gallery rows are compared in place instead of being packed.
    few_queries: 20;
    /// The maximum bytes that a search from tables uses to store the nearest items found so far.
    nearest_bytes: 48 << 20;
    /// The items per cell, in whole panels.
    cell_items: 48;
    /// The queries per batch of a range search. The items found for a batch are in memory twice:
    /// before and after sorting.
    range_queries: 1024;
    /// The number of scores to sample in a verification, to estimate brackets.
    verify_sample: 4 << 20;
    /// The maximum number of negatives, of 12 bytes each, that a verification lists. If float64
    /// decides, a sixteenth is kept.
    verify_listed: 12 << 20;
    /// The maximum number of positives' scores that a verification keeps, at 8 bytes each, or up to
    /// 60 while counting slots.
    verify_held: 4 << 20;
    /// The minimum number of distinct positive scores in a part, for which negatives are listed and
    /// counted together. The scores and counts of a part stay in a core's first-level cache.
    slot_part: 1024;
    /// The negatives that are listed for a part before they are counted, enough that fetching the
    /// part costs little.
    slot_list: 16384;
    /// The maximum number of queries (and of gallery items) per table of distances.
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
        assert!(
            message.starts_with("unknown size \"blocks\"; expected one of block_bytes, "),
            "{message}"
        );
    }
}
