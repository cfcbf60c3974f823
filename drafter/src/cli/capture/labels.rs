//! The files of labels, one per unit.

use std::path::{Path, PathBuf};

use anyhow::Context as _;
use formats::calib::Texts;
use formats::labels::{self, Contents, Document};
use formats::{Source, shown_path};
use runtime::capture::Captured;

use super::atomic;
use crate::cli::exit::{Advised, Input};

/// Likeliest tokens of a position.
pub(super) const TOP: usize = 32;

/// A folder of labels.
#[derive(Debug)]
pub(super) struct Folder {
    path: PathBuf,
    force: bool,
    /// What all files have in common.
    document: Document,
}

impl Folder {
    /// At `path`, made where it is not there.
    pub(super) fn open(path: &Path, force: bool, document: Document) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("writing to `{}`", shown_path(path)))?;
        Ok(Self { path: path.to_path_buf(), force, document })
    }

    fn file(&self, unit: u64) -> PathBuf {
        self.path.join(format!("{unit:06}.safetensors"))
    }

    /// What is known of a unit that was written before.
    pub(super) fn done(&self, unit: u64) -> anyhow::Result<Option<Texts>> {
        let path = self.file(unit);
        if self.force || !path.exists() {
            return Ok(None);
        }
        let hint = "--force replaces labels of other models or texts";
        let advised = |error| Advised { error, hint: hint.into() };
        let found = labels::document(Source::open(&path)?).map_err(|e| advised(e.into()))?;
        let same =
            found.texts.same_origin(&self.document.texts) && found.texts.units.contains(unit);
        let bare = Document {
            texts: self.document.texts.clone(),
            first: self.document.first,
            ..found.clone()
        };
        if !same || bare != self.document {
            let message = format!("`{}`: labels of other models or texts", shown_path(&path));
            return Err(advised(Input(message).into()).into());
        }
        Ok(Some(found.texts))
    }

    /// Writes the labels of a unit.
    pub(super) fn write(&self, unit: u64, texts: Texts, captured: &Captured) -> anyhow::Result<()> {
        let Some(labels) = &captured.labels else { return Ok(()) };
        let document = Document { texts, first: labels.first, ..self.document.clone() };
        let bytes = labels::bytes(
            &document,
            &Contents {
                ids: &captured.ids,
                anchors: &labels.anchors,
                taps: labels.taps.data(),
                tap_width: labels.taps.width(),
                likeliest: &labels.likeliest,
            },
        );
        atomic::write(&self.file(unit), |put| Ok(put(0, &bytes)?))
    }
}
