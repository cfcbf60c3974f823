//! Where a command keeps the packed weights of its models.

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use command_line::{Streams, signals};
use formats::shown_path;
use runtime::pack_cache::{Attached, Event, Pack, PackCache, SourceFile};

use super::args::PackArgs;
use crate::link::files::Interrupted;
use crate::link::places::Places;

/// Models whose packed weights are smaller are packed in memory, which is quicker than a file.
const LEAST: u64 = 64 << 20;

/// The pack cache of a command, if it uses one.
#[derive(Debug)]
pub(crate) struct Packs<'a> {
    cache: Option<PackCache>,
    /// The smallest pack that is kept.
    least: u64,
    streams: &'a Streams,
}

impl<'a> Packs<'a> {
    /// As the arguments say.
    pub(crate) fn of(args: &PackArgs, streams: &'a Streams) -> Self {
        let (dir, least) = match &args.pack_cache {
            _ if args.no_pack_cache => (None, LEAST),
            Some(dir) => (Some(dir.clone()), 0),
            None => (Places::of_process().packs, LEAST),
        };
        Self { cache: dir.map(PackCache::in_dir), least, streams }
    }

    /// The model's files as they are before it is opened; nothing where no cache is used.
    pub(crate) fn sources(&self, files: &[PathBuf]) -> Option<Vec<SourceFile>> {
        self.cache.as_ref()?;
        // What cannot be read is an error when the model is opened.
        files.iter().map(|path| SourceFile::now(path)).collect::<Result<_, _>>().ok()
    }

    /// Gives a model its packed weights; without a cache it packs them when they are used.
    pub(crate) fn attach(
        &self,
        model: &Path,
        pack: &Pack,
        sources: Option<Vec<SourceFile>>,
    ) -> anyhow::Result<()> {
        let (Some(cache), Some(sources)) = (&self.cache, sources) else { return Ok(()) };
        if pack.bytes() < self.least.max(1) {
            return Ok(());
        }
        let (model, mut waiting) = (shown_path(model), false);
        let attached = cache.attach(pack, sources, &mut |event| {
            self.tell(&model, event, &mut waiting);
            if signals::received() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        self.streams.progress("");
        match attached? {
            Attached::Found | Attached::Made => {}
            Attached::Unusable(why) => {
                let gb = gigabytes(pack.bytes());
                self.streams.note(&format!(
                    "pack cache: {why}; {gb} of weights are packed in memory instead"
                ));
            }
            Attached::Interrupted => return Err(Interrupted.into()),
        }
        Ok(())
    }

    fn tell(&self, model: &str, event: Event<'_>, waiting: &mut bool) {
        match event {
            Event::Waiting if *waiting => {}
            Event::Waiting => {
                *waiting = true;
                self.streams.status("pack cache: another program is packing; waiting for it");
            }
            Event::Begin { bytes, path, replaced } => {
                let again = replaced
                    .map_or_else(String::new, |why| format!(" again, because it differs ({why})"));
                self.streams.status(&format!(
                    "packing the weights of `{model}`{again}: {} in `{}`, once (--no-pack-cache keeps them in memory)",
                    gigabytes(bytes),
                    shown_path(path)
                ));
            }
            Event::Progress { done, total } => {
                let percent = 100 * done / total.max(1);
                self.streams.progress(&format!("packing: {percent} %"));
            }
        }
    }
}

/// A size for people.
pub(crate) fn gigabytes(bytes: u64) -> String {
    match bytes {
        0..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}
