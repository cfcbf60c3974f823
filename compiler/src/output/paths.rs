//! Where outputs may go.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use formats::shown_path;

use super::Output;
use crate::Error;
use crate::pending::{folder_of, partial_path};

/// The `config.json` of an output: beside it, unless that file is the input's own
/// or readers would find an older `<stem>.config.json` first; then it has that name.
#[must_use]
pub fn config_path(output: &Path, input_config: Option<&Path>) -> PathBuf {
    let plain = output.with_file_name("config.json");
    let named = named_config(output);
    let is_input = input_config.is_some_and(|input| same_file(input, &plain));
    if is_input || named.exists() { named } else { plain }
}

/// `<stem>.config.json` beside an output.
pub(crate) fn named_config(output: &Path) -> PathBuf {
    let mut name = output.file_stem().unwrap_or_default().to_os_string();
    name.push(".config.json");
    output.with_file_name(name)
}

/// Whether two paths lead to one existing file.
pub(crate) fn same_file(a: &Path, b: &Path) -> bool {
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
        let spelled = path.as_os_str().as_bytes();
        let as_folder = spelled.ends_with(b"/") || spelled.ends_with(b"/.");
        if path.file_name().is_none() || (as_folder && !path.is_dir()) {
            return refuse(path, "this is no file name".into(), None);
        }
        if path.extension().is_some_and(|e| e == "partial") {
            return refuse(
                path,
                "names in .partial are kept for outputs that are not whole".into(),
                Some("choose another name for the output"),
            );
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
        if let Some(input) = inputs.iter().find(|input| same_file(input, path)) {
            return refuse(
                path,
                format!("this is the input `{}`", shown_path(input)),
                Some("choose another name for the output"),
            );
        }
        if let Some(input) = inputs.iter().find(|input| same_file(input, &partial_path(path))) {
            return refuse(
                path,
                format!("its bytes would pass through the input `{}`", shown_path(input)),
                Some("choose another name for the output"),
            );
        }
        let folder = folder_of(path);
        match fs::metadata(folder) {
            Ok(meta) if meta.is_dir() && is_of_the_kernel(folder) => {
                return refuse(
                    path,
                    format!("`{}` shows the kernel's state and takes no files", shown_path(folder)),
                    Some("name a file in another folder"),
                );
            }
            Ok(meta) if meta.is_dir() => {}
            Ok(_) => return refuse(path, format!("`{}` is no folder", shown_path(folder)), None),
            Err(e) => {
                return refuse(path, format!("folder `{}`: {e}", shown_path(folder)), None);
            }
        }
        match fs::symlink_metadata(path) {
            Ok(meta) if meta.is_dir() => {
                return refuse(path, "this is a folder".into(), Some("name a file in it"));
            }
            Ok(meta) if !meta.is_file() => {
                return refuse(
                    path,
                    "this is a link, pipe or device, which an output would replace".into(),
                    Some("name a regular file"),
                );
            }
            Ok(_) if !force => {
                let hint = match path.file_name().is_some_and(|name| name == "config.json") {
                    true => {
                        "it may be another drafter's: name an output in another folder, or use --force to replace it"
                    }
                    false => "use --force to replace it",
                };
                return refuse(path, "the file exists".into(), Some(hint));
            }
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

/// Refuses a `<stem>.config.json` that another weights file of the same stem would
/// be read with: the input's, or another output's.
pub(crate) fn check_readers(outputs: &[Output], inputs: &[&Path]) -> Result<(), Error> {
    for (i, output) in outputs.iter().enumerate() {
        let Some(config) = &output.config else { continue };
        let named = resolved(&named_config(&output.path));
        if resolved(&config.path) != named {
            continue;
        }
        let reads = |path: &Path| resolved(&named_config(path)) == named;
        let others = outputs
            .iter()
            .enumerate()
            .filter(|(j, o)| *j != i && o.config.as_ref().is_some_and(|c| c.bytes != config.bytes));
        let other = inputs.iter().copied().find(|input| {
            input.extension().is_some_and(|e| e == "safetensors" || e == "q4nx") && reads(input)
        });
        let other = other.or_else(|| others.map(|(_, o)| o.path.as_path()).find(|p| reads(p)));
        if let Some(other) = other {
            return Err(Error::OutputPath {
                path: output.path.clone(),
                problem: format!(
                    "its configuration would be `{}`, which `{}` would be read with too",
                    shown_path(&config.path),
                    shown_path(other)
                ),
                hint: Some("give the output another stem or another folder".into()),
            });
        }
    }
    Ok(())
}

/// Whether a folder is of a file system that is no store: /proc, /sys.
fn is_of_the_kernel(folder: &Path) -> bool {
    const SYSFS: u64 = 0x6265_6572;
    rustix::fs::statfs(folder).is_ok_and(|fs| {
        let kind = fs.f_type as u64;
        kind == rustix::fs::PROC_SUPER_MAGIC as u64 || kind == SYSFS
    })
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
        // One that counts no blocks has no size, and tells when it is written.
        if fs.f_blocks == 0 {
            continue;
        }
        let available = fs.f_bavail.saturating_mul(fs.f_frsize);
        if available < needed {
            return Err(Error::NoSpace { path: path.to_path_buf(), needed, available });
        }
    }
    Ok(())
}
