//! Files that an evaluation writes: whole or not at all.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use command_line::exit::Usage;
use formats::shown_path;

use crate::cli::exit::Advised;

/// Refuses what could not be written in the end, before anything is computed.
pub(crate) fn check(paths: &[&Path], force: bool) -> anyhow::Result<()> {
    for (n, path) in paths.iter().enumerate() {
        let shown = shown_path(path);
        if paths[..n].iter().any(|other| same(path, other)) {
            return Err(Usage(format!("`{shown}` cannot be two files at once")).into());
        }
        match path.symlink_metadata() {
            Ok(meta) if !meta.is_file() => {
                return Err(anyhow!("`{shown}`: expected a name for a file, found something else"));
            }
            Ok(_) if !force => {
                let error = anyhow!("`{shown}` exists already");
                return Err(Advised { error, hint: "--force replaces it".into() }.into());
            }
            _ if !folder(path).is_dir() => {
                return Err(anyhow!("`{shown}`: there is no such folder"));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Refuses to write over what is read, with `--force` too.
pub(crate) fn refuse_inputs<'a>(
    paths: &[&Path],
    inputs: impl Iterator<Item = &'a PathBuf>,
) -> anyhow::Result<()> {
    for input in inputs {
        if let Some(path) = paths.iter().find(|path| same(path, input)) {
            return Err(Usage(format!("`{}` is an input", shown_path(path))).into());
        }
    }
    Ok(())
}

/// Whether two names are of one file, or will be.
fn same(a: &Path, b: &Path) -> bool {
    let file = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let absolute = |path: &Path| std::path::absolute(path).ok();
    file(a).is_some_and(|found| file(b) == Some(found)) || absolute(a) == absolute(b)
}

/// Writes it under its name at once.
pub(crate) fn publish(path: &Path, bytes: &[u8], force: bool) -> anyhow::Result<()> {
    let write = || -> std::io::Result<()> {
        let mut file = tempfile::Builder::new().prefix(".eval-").tempfile_in(folder(path))?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        if force {
            file.persist(path)?;
        } else {
            file.persist_noclobber(path)?;
        }
        File::open(folder(path))?.sync_all()
    };
    write().with_context(|| format!("writing `{}`", shown_path(path)))
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."))
}
