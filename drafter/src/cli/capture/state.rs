//! What a capture has so far, on disk: a calibration file of the units that are done.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use formats::calib::{self, Document, Input as MatrixInput, Tile, Tiles};
use formats::shown_path;
use runtime::moments::Moments;

use super::args::Shard;
use super::atomic;
use crate::cli::exit::{Advised, Input};

/// Saving may take one part of so many of the time.
const SHARE: u32 = 20;

/// The file of a capture under way, `<out>.state`.
#[derive(Debug)]
pub(super) struct State {
    path: PathBuf,
    out: PathBuf,
    /// When the last save ended, and how long it took.
    saved: Option<(Instant, Duration)>,
}

impl State {
    /// Of the output `out`, which must not be there unless `force`.
    pub(super) fn of(out: &Path, force: bool) -> anyhow::Result<Self> {
        if !force && out.exists() {
            let out = shown_path(out);
            anyhow::bail!("`{out}`: the file exists; --force replaces it");
        }
        Ok(Self { path: atomic::beside(out, ".state"), out: out.to_path_buf(), saved: None })
    }

    /// Goes on from what an earlier run saved, if it did: `document` and `moments` are then those of its
    /// units.
    pub(super) fn resume(
        &self,
        document: &mut Document,
        moments: &Moments,
        shard: Shard,
    ) -> anyhow::Result<bool> {
        if !self.path.exists() {
            return Ok(false);
        }
        let hint = format!("delete `{}` to start over", shown_path(&self.path));
        let advised = |error: anyhow::Error| Advised { error, hint: hint.clone() };
        let file = calib::File::open(&self.path).map_err(|e| advised(e.into()))?;
        if let Some(what) = other(document, file.document(), shard) {
            let path = shown_path(&self.path);
            let error = Input(format!("`{path}`: the state of another run: {what} differ"));
            return Err(advised(error.into()).into());
        }
        moments.restore(&file).map_err(|e| advised(e.into()))?;
        document.texts.clone_from(&file.document().texts);
        Ok(true)
    }

    /// Whether saving now costs little beside what was done since.
    pub(super) fn is_due(&self) -> bool {
        self.saved.is_none_or(|(when, cost)| when.elapsed() >= cost * SHARE)
    }

    /// Saves the moments of the units that `document` names.
    pub(super) fn save(&mut self, document: &Document, moments: &Moments) -> anyhow::Result<()> {
        let begin = Instant::now();
        let mut document = Document { inputs: moments.records(), ..document.clone() };
        atomic::write(&self.path, |put| {
            calib::write(&mut document, &mut Source(moments), &mut |offset, bytes: &[u8]| {
                Ok(put(offset, bytes)?)
            })
        })?;
        self.saved = Some((Instant::now(), begin.elapsed()));
        Ok(())
    }

    /// Gives what was saved its final name.
    pub(super) fn publish(&self) -> anyhow::Result<()> {
        atomic::rename(&self.path, &self.out)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

struct Source<'a>(&'a Moments);

impl Tiles<anyhow::Error> for Source<'_> {
    fn tile(&mut self, input: MatrixInput, tile: Tile) -> anyhow::Result<Vec<i64>> {
        Ok(self.0.tile(input, tile))
    }
}

/// What makes a saved document another run's.
fn other(ours: &Document, saved: &Document, shard: Shard) -> Option<&'static str> {
    let shape = |document: &Document| -> Vec<_> {
        let inputs = document.inputs.iter();
        inputs.map(|(name, r)| (name.clone(), r.width, r.exponent, r.full)).collect()
    };
    let [texts] = saved.texts.as_slice() else { return Some("the texts") };
    if saved.program != ours.program {
        Some("the programs")
    } else if saved.models != ours.models {
        Some("the models or their arithmetic")
    } else if shape(saved) != shape(ours) {
        Some("the inputs")
    } else if !ours.texts[0].same_origin(texts) {
        Some("the texts")
    } else if (0..texts.n_units).any(|unit| texts.units.contains(unit) && !shard.has(unit)) {
        Some("the shards")
    } else {
        None
    }
}
