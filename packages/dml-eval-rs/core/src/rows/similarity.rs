//! The similarities of real vectors.

use crate::error::{Error, Result, argument};

/// The similarity of a pair of vectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Similarity {
    /// q·g / (|q||g|).
    Cosine,
    /// q·g.
    Dot,
    /// −|q − g|².
    Euclidean,
}

impl std::str::FromStr for Similarity {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        match name {
            "cosine" => Ok(Similarity::Cosine),
            "dot" => Ok(Similarity::Dot),
            "euclidean" => Ok(Similarity::Euclidean),
            _ => {
                argument(format!("unknown similarity {name:?}; expected cosine, dot or euclidean"))
            }
        }
    }
}
