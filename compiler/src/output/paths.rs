//! Where outputs may go.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::Output;
use crate::Error;
use crate::pending::{folder_of, partial_path};

/// The `config.json` of an output: beside it, unless that file is the input's own
/// or belongs to another output; then `<stem>.config.json`, which readers look up first.
#[must_use]
pub fn config_path(output: &Path, input_config: Option<&Path>) -> PathBuf {
    let plain = output.with_file_name("config.json");
    if input_config.is_some_and(|input| same_file(input, &plain)) {
        return named_config(output);
    }
    plain
}

/// `<stem>.config.json` beside an output.
pub(crate) fn named_config(output: &Path) -> PathBuf {
    let mut name = output.file_stem().unwrap_or_default().to_os_string();
    name.push(".config.json");
    output.with_file_name(name)
}

/// Whether two paths lead to one existing file.
fn same_file(a: &Path, b: &Path) -> bool {
    match (fs::metadata(a), fs::metadata(b)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

/// The path with links and dots in its folder resolved: two spellings of one file
/// that is not there yet become equal.
pub(crate) fn resolved(path: &Path) -> PathBuf {
    match (fs::canonicalize(folder_of(path)), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_path_buf(),
    }
}

/// Refuses outputs that would clobber something, before anything is created.
pub(crate) fn check_paths(
    outputs: &[Output],
    report: Option<&Path>,
    inputs: &[&Path],
    force: bool,
) -> Result<(), Error> {
    let refuse = |path: &Path, problem: String, hint: Option<&str>| {
        Err(Error::OutputPath { path: path.to_path_buf(), problem, hint: hint.map(str::to_owned) })
    };
    // A configuration with its contents; outputs and the report have none yet.
    let mut files: Vec<(&Path, Option<&[u8]>)> = Vec::new();
    for output in outputs {
        files.push((&output.path, None));
        files.extend(output.config.as_ref().map(|c| (c.path.as_path(), Some(c.bytes.as_slice()))));
    }
    files.extend(report.map(|path| (path, None)));
    for (i, (path, bytes)) in files.iter().copied().enumerate() {
        if path == Path::new("-") {
            return refuse(
                path,
                "an output is written at several places at once and cannot be a pipe".into(),
                Some("name a file"),
            );
        }
        if path.file_name().is_none() {
            return refuse(path, "this is no file name".into(), None);
        }
        // Two q4nx files of one run share their config.json where it is the same.
        let place = resolved(path);
        let same = |(p, _): &&(&Path, _)| resolved(p) == place || same_file(p, path);
        if let Some((_, other)) = files[..i].iter().find(same) {
            if bytes.is_none() || *other != bytes {
                return refuse(path, "two outputs would be this file".into(), None);
            }
            continue;
        }
        let passes = |(p, _): &(&Path, _)| {
            let other = resolved(p);
            partial_path(&other) == place || other == partial_path(&place)
        };
        if files[..i].iter().any(passes) {
            return refuse(path, "another output passes through this name".into(), None);
        }
        if let Some(input) = inputs.iter().find(|input| same_file(input, path)) {
            return refuse(
                path,
                format!("this is the input `{}`", input.display()),
                Some("choose another name for the output"),
            );
        }
        if let Some(input) = inputs.iter().find(|input| same_file(input, &partial_path(path))) {
            return refuse(
                path,
                format!("its bytes would pass through the input `{}`", input.display()),
                Some("choose another name for the output"),
            );
        }
        let folder = folder_of(path);
        match fs::metadata(folder) {
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return refuse(path, format!("`{}` is no folder", folder.display()), None),
            Err(e) => {
                return refuse(path, format!("folder `{}`: {e}", folder.display()), None);
            }
        }
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => {
                return refuse(path, "this is a folder".into(), Some("name a file in it"));
            }
            Ok(_) if !force => {
                return refuse(path, "the file exists".into(), Some("use --force to replace it"));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Refuses a run that the file systems have no room for.
pub(crate) fn check_space(outputs: &[Output]) -> Result<(), Error> {
    let mut needed: BTreeMap<u64, (u64, &Path)> = BTreeMap::new();
    for output in outputs {
        let folder = folder_of(&output.path);
        // `check_paths` has looked at the folder; if it went away, creating the file tells.
        let Ok(meta) = fs::metadata(folder) else { continue };
        let entry = needed.entry(meta.dev()).or_insert((0, &output.path));
        entry.0 += output.file_len;
    }
    for (needed, path) in needed.into_values() {
        let Ok(fs) = rustix::fs::statvfs(folder_of(path)) else { continue };
        let available = fs.f_bavail.saturating_mul(fs.f_frsize);
        if available < needed {
            return Err(Error::NoSpace { path: path.to_path_buf(), needed, available });
        }
    }
    Ok(())
}
