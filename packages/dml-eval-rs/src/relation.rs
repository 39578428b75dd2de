//! Arrays for a relation between queries and gallery items.

use dml_eval::{Grades, Kernel, Lists, Metric, Precision, Relation, Result};
use numpy::PyReadonlyArray1;
use pyo3::prelude::*;

use crate::convert::optional_slice;

/// The attributes of `dml_eval_rs.matches.relation.Relation`.
#[derive(FromPyObject)]
pub struct RelationArrays<'py> {
    labels: Option<PyReadonlyArray1<'py, u32>>,
    gallery_labels: Option<PyReadonlyArray1<'py, u32>>,
    groups: Option<PyReadonlyArray1<'py, u32>>,
    gallery_groups: Option<PyReadonlyArray1<'py, u32>>,
    exclude: Option<PyReadonlyArray1<'py, i64>>,
    offsets: Option<PyReadonlyArray1<'py, u64>>,
    items: Option<PyReadonlyArray1<'py, u32>>,
    grades: Option<PyReadonlyArray1<'py, f64>>,
    ignored_offsets: Option<PyReadonlyArray1<'py, u64>>,
    ignored_items: Option<PyReadonlyArray1<'py, u32>>,
    kept: Option<PyReadonlyArray1<'py, usize>>,
}

/// Views of a relation's arrays, which can be sent to threads.
#[derive(Clone, Copy)]
pub struct RelationView<'a> {
    labels: &'a [u32],
    gallery_labels: Option<&'a [u32]>,
    groups: Option<&'a [u32]>,
    gallery_groups: Option<&'a [u32]>,
    exclude: Option<&'a [i64]>,
    relevant: Option<Lists<'a>>,
    grades: Option<&'a [f64]>,
    ignored: Option<Lists<'a>>,
    /// The rows of the gallery (or of the queries, if a gallery is not given) to use; `None` to use
    /// all.
    pub kept: Option<&'a [usize]>,
}

impl RelationArrays<'_> {
    pub fn view(&self) -> PyResult<RelationView<'_>> {
        let lists = |offsets, items| {
            Some(Lists {
                offsets: optional_slice(offsets).ok()??,
                items: optional_slice(items).ok()??,
                of_queries: None,
            })
        };
        Ok(RelationView {
            labels: optional_slice(&self.labels)?.unwrap_or_default(),
            gallery_labels: optional_slice(&self.gallery_labels)?,
            groups: optional_slice(&self.groups)?,
            gallery_groups: optional_slice(&self.gallery_groups)?,
            exclude: optional_slice(&self.exclude)?,
            relevant: lists(&self.offsets, &self.items),
            grades: optional_slice(&self.grades)?,
            ignored: lists(&self.ignored_offsets, &self.ignored_items),
            kept: optional_slice(&self.kept)?,
        })
    }
}

impl<'a> RelationView<'a> {
    /// Builds the relation to a gallery of `gallery` items, or if `None`, to the queries
    /// themselves.
    pub fn build(&self, gallery: Option<usize>) -> Result<Relation<'a>> {
        let mut relation = match self.relevant {
            Some(lists) => Relation::of_lists(lists, gallery)?,
            None => Relation::of_labels(self.labels, self.gallery_labels)?,
        };
        if let Some(grades) = self.grades {
            relation = relation.with_grades(grades)?;
        }
        if let Some(groups) = self.groups {
            relation = relation.with_groups(groups, self.gallery_groups)?;
        }
        if let Some(own) = self.exclude {
            relation = relation.with_own_items(own)?;
        }
        if let Some(lists) = self.ignored {
            relation = relation.with_excluded(lists)?;
        }
        Ok(relation)
    }

    /// Returns the grades of the listed matches, if given.
    pub fn graded(&self) -> Result<Option<Grades<'a>>> {
        match (self.relevant, self.grades) {
            (Some(lists), Some(values)) => Grades::new(lists, values).map(Some),
            _ => Ok(None),
        }
    }

    /// Chooses the faster screen for these metrics.
    pub fn screen(&self, metrics: &[Metric], kernel: &Kernel) -> Precision {
        let every_rank = metrics.iter().any(|metric| metric.depth() == u64::MAX);
        let (positives, queries) = match self.relevant {
            Some(lists) => (lists.items.len(), lists.len()),
            None => (self.labels.len(), self.labels.iter().max().map_or(1, |l| *l as usize + 1)),
        };
        Precision::for_positives(positives, queries, every_rank, kernel)
    }
}
