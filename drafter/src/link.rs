//! Links: names for pairs of a target and a drafter that were checked to fit.
//!
//! A link is a small JSON file that says where the files of both models lie and by what they are
//! known again. Nothing is copied.

pub(crate) mod files;
pub(crate) mod places;
pub(crate) mod search;
pub(crate) mod store;
