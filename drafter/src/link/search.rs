//! Finds installed targets by name.

use std::fs;
use std::path::{Path, PathBuf};

use super::places::{Place, Places};

/// Folders below a place: a Hugging Face cache has `models--ORG--NAME/snapshots/REV/FILE`.
const MAX_DEPTH: usize = 6;

/// Entries that are looked at in one place: a cache of a home is far smaller.
const MAX_ENTRIES: usize = 100_000;

/// What may be a target.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// Whose folder it lies in.
    pub(crate) owner: &'static str,
    pub(crate) kind: Kind,
    /// What it can be called, in lower case.
    names: Vec<String>,
}

/// What a candidate looks like from outside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A GGUF file.
    Gguf,
    /// The folder of an MLX pack.
    Pack,
    /// A q4nx container, which can hold a drafter; one with a target cannot be read.
    Q4nx,
}

/// Candidates in all places, those whose name is exactly `name` before those that contain it. Without
/// a name, all.
pub(crate) fn find(places: &Places, name: Option<&str>) -> Vec<Candidate> {
    let mut found = Vec::new();
    for place in places.existing() {
        let mut walk = Walk { place, entries: 0, found: &mut found };
        walk.folder(&place.dir, 0);
    }
    let mut seen = Vec::new();
    found.retain(|candidate| {
        // The same file by several ways: links of a cache, or a place inside another.
        let real = fs::canonicalize(&candidate.path).unwrap_or_else(|_| candidate.path.clone());
        let new = !seen.contains(&real);
        if new {
            seen.push(real);
        }
        new
    });
    let Some(name) = name.map(str::to_lowercase) else { return found };
    let (exact, rest): (Vec<_>, Vec<_>) =
        found.into_iter().partition(|candidate| candidate.names.contains(&name));
    if !exact.is_empty() {
        return exact;
    }
    rest.into_iter().filter(|c| c.names.iter().any(|other| other.contains(&name))).collect()
}

struct Walk<'a> {
    place: &'a Place,
    entries: usize,
    found: &'a mut Vec<Candidate>,
}

impl Walk<'_> {
    fn folder(&mut self, dir: &Path, depth: usize) {
        // What cannot be listed holds nothing that could be opened.
        let Ok(listed) = fs::read_dir(dir) else { return };
        let mut paths: Vec<PathBuf> = listed.filter_map(|e| Some(e.ok()?.path())).collect();
        paths.sort();
        if ["config.json", "hadamard.json"].iter().all(|name| dir.join(name).is_file()) {
            self.take(dir, Kind::Pack);
        }
        for path in paths {
            self.entries += 1;
            if self.entries > MAX_ENTRIES {
                return;
            }
            let extension = path.extension().map(|e| e.to_ascii_lowercase());
            match extension.as_deref().and_then(|e| e.to_str()) {
                Some("gguf") if path.is_file() => self.take(&path, Kind::Gguf),
                Some("q4nx") if path.is_file() => self.take(&path, Kind::Q4nx),
                // Links to folders may lead in circles.
                _ if depth < MAX_DEPTH && path.is_dir() && !path.is_symlink() => {
                    self.folder(&path, depth + 1);
                }
                _ => {}
            }
        }
    }

    fn take(&mut self, path: &Path, kind: Kind) {
        let names = names(&self.place.dir, path);
        let path = path.to_path_buf();
        self.found.push(Candidate { path, owner: self.place.owner, kind, names });
    }
}

/// What a file or folder of a place can be called: its name with and without extension, the
/// repository that it is from, and its path in the place.
fn names(place: &Path, path: &Path) -> Vec<String> {
    let lower = |text: &std::ffi::OsStr| text.to_string_lossy().to_lowercase();
    let mut names: Vec<String> = path.file_name().into_iter().map(lower).collect();
    names.extend(path.file_stem().map(lower));
    let below = path.strip_prefix(place).unwrap_or(path);
    let parents: Vec<String> = below.parent().into_iter().flat_map(Path::iter).map(lower).collect();
    match parents.iter().find_map(|parent| parent.strip_prefix("models--")) {
        // models--ORG--NAME/snapshots/REV
        Some(repository) => {
            names.extend(repository.split("--").last().map(str::to_owned));
            names.push(repository.replace("--", "/"));
        }
        None => {
            names.extend(parents.last().cloned());
            if !parents.is_empty() {
                names.push(parents.join("/"));
            }
        }
    }
    names.push(lower(below.as_os_str()));
    names.sort();
    names.dedup();
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A place with these empty files.
    fn place(files: &[&str]) -> (tempfile::TempDir, Places) {
        let dir = tempfile::tempdir().unwrap();
        for file in files {
            let path = dir.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let place = Place { owner: "Hugging Face", dir: dir.path().to_path_buf() };
        (dir, Places { links: None, packs: None, models: vec![place] })
    }

    #[track_caller]
    fn found(places: &Places, name: Option<&str>, expected: &[&str]) {
        let dir = &places.models[0].dir;
        let found: Vec<PathBuf> = find(places, name)
            .into_iter()
            .map(|c| c.path.strip_prefix(dir).unwrap().to_path_buf())
            .collect();
        let expected: Vec<PathBuf> = expected.iter().map(PathBuf::from).collect();
        assert_eq!(found, expected, "{name:?}");
    }

    const HUB: &str = "models--prism-ml--Ternary-Bonsai-2-27B-gguf/snapshots/0a1b";

    #[test]
    fn files_of_a_cache_have_the_names_of_repository_and_file() {
        let file = format!("{HUB}/Ternary-Bonsai-2-27B-PQ2_0.gguf");
        let other = "models--org--Other/snapshots/1/Other.gguf";
        let (_dir, places) = place(&[&file, other]);
        for name in [
            "prism-ml/Ternary-Bonsai-2-27B-gguf",
            "ternary-bonsai-2-27b-gguf",
            "Ternary-Bonsai-2-27B-PQ2_0",
            "ternary-bonsai-2-27b-pq2_0.gguf",
            "bonsai",
        ] {
            found(&places, Some(name), &[&file]);
        }
        found(&places, None, &[other, &file]);
        found(&places, Some("nothing"), &[]);
    }

    #[test]
    fn an_exact_name_goes_before_longer_ones() {
        let (_dir, places) = place(&["a/bonsai-large.gguf", "a/bonsai.gguf"]);
        found(&places, Some("bonsai"), &["a/bonsai.gguf"]);
        found(&places, Some("bons"), &["a/bonsai-large.gguf", "a/bonsai.gguf"]);
        found(&places, Some("a"), &["a/bonsai-large.gguf", "a/bonsai.gguf"]);
    }

    #[test]
    fn packs_are_folders_and_containers_are_named() {
        let (_dir, places) =
            place(&["pack/config.json", "pack/hadamard.json", "o/model.q4nx", "o/config.json"]);
        found(&places, Some("pack"), &["pack"]);
        assert_eq!(find(&places, Some("model"))[0].kind, Kind::Q4nx);
    }

    #[test]
    fn links_are_followed_to_files_only_and_the_same_file_counts_once() {
        let (dir, places) = place(&["blobs/abc", "deep/1/2/3/4/5/6/7/x.gguf"]);
        let root = dir.path();
        fs::create_dir_all(root.join("s")).unwrap();
        for name in ["s/model.gguf", "s/again.gguf"] {
            std::os::unix::fs::symlink(root.join("blobs/abc"), root.join(name)).unwrap();
        }
        std::os::unix::fs::symlink(root, root.join("s/circle")).unwrap();
        found(&places, None, &["s/again.gguf"]);
    }
}
