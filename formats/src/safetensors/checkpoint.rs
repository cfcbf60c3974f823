//! A checkpoint: one file, or the shards of an index.
//!
//! ```text
//! model.safetensors.index.json: { "metadata": { "total_size": bytes },
//!                                 "weight_map": { tensor: file name } }
//! ```
//!
//! Only files that the index names are read. A second copy of the weights in
//! the same folder is common (another precision, an older export), so other
//! safetensors files are never merged, only warned of.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;

use super::header::UniqueMap;
use super::{File, TensorInfo};
use crate::error::shown;
use crate::{Error, Source, without_bom};

/// File name of an index.
const INDEX: &str = "model.safetensors.index.json";
/// File name of a checkpoint in one piece.
const SINGLE: &str = "model.safetensors";
/// Longest index in bytes that is read: one line per tensor of all shards.
const MAX_INDEX_LEN: u64 = 32_000_000;
/// Names listed in one message.
const MAX_LISTED: usize = 10;

/// The safetensors files of one model, opened and checked against each other.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    dir: PathBuf,
    files: Vec<File>,
    /// (file, tensor in the file), by tensor name.
    by_name: Vec<(u32, u32)>,
    warnings: Vec<String>,
}

impl Checkpoint {
    /// Opens a safetensors file, an `*.index.json`, or a folder that holds
    /// `model.safetensors.index.json`, `model.safetensors`, or exactly one file
    /// called `*.safetensors` (looked for in this order).
    ///
    /// # Errors
    /// Those of [`File::open`] for each file; [`Error::Structure`] when a folder
    /// holds no or several candidates, or the index is malformed;
    /// [`Error::Names`] when shards are missing, a tensor is not in the shard
    /// that the index names, or is in two.
    pub fn open(path: &Path) -> Result<Self, Error> {
        if path.is_dir() {
            return Self::open_folder(path);
        }
        let dir = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        if path.extension().is_some_and(|e| e == "json") {
            Self::open_index(path, dir)
        } else {
            Self::from_files(path, dir, vec![File::open(Source::open(path)?)?])
        }
    }

    fn open_folder(dir: &Path) -> Result<Self, Error> {
        let index = dir.join(INDEX);
        if index.exists() {
            return Self::open_index(&index, dir);
        }
        let candidates = safetensors_in(dir)?;
        let name = match candidates.as_slice() {
            [only] => only,
            [] => {
                return Err(Error::Structure {
                    path: dir.to_path_buf(),
                    part: "folder".into(),
                    expected: format!("{INDEX} or a .safetensors file"),
                    found: "neither".into(),
                    hint: None,
                });
            }
            several => match several.iter().find(|name| *name == SINGLE) {
                Some(name) => name,
                None => {
                    return Err(Error::Structure {
                        path: dir.to_path_buf(),
                        part: "folder".into(),
                        expected: format!("{INDEX}, {SINGLE} or one .safetensors file"),
                        found: listed(several.iter().map(String::as_str)).join(", "),
                        hint: Some("give the path of one file".into()),
                    });
                }
            },
        };
        let path = dir.join(name);
        let mut checkpoint = Self::from_files(&path, dir, vec![File::open(Source::open(&path)?)?])?;
        checkpoint.warn_of_strays(candidates.iter().filter(|other| *other != name));
        Ok(checkpoint)
    }

    fn open_index(path: &Path, dir: &Path) -> Result<Self, Error> {
        let index = Index::read(path)?;
        let mut shards: Vec<&str> = index.weight_map.0.values().map(String::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        for (tensor, shard) in &index.weight_map.0 {
            if !is_plain_file_name(shard) {
                return Err(Error::Tensor {
                    path: path.to_path_buf(),
                    tensor: shown(tensor),
                    expected: "the name of a file in the same folder".into(),
                    found: format!("`{}`", shown(shard)),
                    hint: None,
                });
            }
        }
        names_error(
            path,
            "missing shard files",
            shards.iter().copied().filter(|s| !dir.join(s).exists()),
        )?;
        let mut files = Vec::with_capacity(shards.len());
        for shard in &shards {
            files.push(File::open(Source::open(dir.join(shard))?)?);
        }

        let mut absent = Vec::new();
        for (tensor, shard) in &index.weight_map.0 {
            // Every shard of the map is in the sorted list.
            let held = shards
                .binary_search(&shard.as_str())
                .is_ok_and(|at| files[at].get(tensor).is_some());
            if !held {
                absent.push(format!("{tensor} ({shard})"));
            }
        }
        names_error(
            path,
            "tensors that are not in the shard the index names",
            absent.iter().map(String::as_str),
        )?;

        let mut checkpoint = Self::from_files(path, dir, files)?;
        checkpoint.warn_of_index(&index);
        let strays = safetensors_in(dir)?;
        checkpoint.warn_of_strays(
            strays.iter().filter(|name| shards.binary_search(&name.as_str()).is_err()),
        );
        Ok(checkpoint)
    }

    /// Joins opened files; `path` is the one to name in errors.
    fn from_files(path: &Path, dir: &Path, files: Vec<File>) -> Result<Self, Error> {
        let mut by_name: Vec<(u32, u32)> = Vec::new();
        for (f, file) in files.iter().enumerate() {
            by_name.extend((0..file.tensors().len()).map(|t| (f as u32, t as u32)));
        }
        let name = |(f, t): (u32, u32)| files[f as usize].tensors()[t as usize].name.as_str();
        by_name.sort_by(|a, b| name(*a).cmp(name(*b)));
        names_error(
            path,
            "tensors that are in two shards",
            by_name
                .windows(2)
                .filter(|pair| name(pair[0]) == name(pair[1]))
                .map(|pair| name(pair[0])),
        )?;
        Ok(Self { dir: dir.to_path_buf(), files, by_name, warnings: Vec::new() })
    }

    fn warn_of_index(&mut self, index: &Index) {
        let actual: u64 = self.tensors().fold(0, |sum: u64, (_, t)| sum.saturating_add(t.len));
        if let Some(stated) = &index.metadata.total_size
            && stated.as_f64() != Some(actual as f64)
        {
            self.warnings.push(format!(
                "the index states a total_size of {}, the shards hold {actual} bytes",
                shown(&stated.to_string())
            ));
        }
        let unmapped = listed(
            self.tensors()
                .map(|(_, t)| t.name.as_str())
                .filter(|name| !index.weight_map.0.contains_key(*name)),
        );
        if !unmapped.is_empty() {
            self.warnings.push(format!(
                "tensors in the shards that the index does not name: {}",
                unmapped.join(", ")
            ));
        }
    }

    fn warn_of_strays<'a>(&mut self, strays: impl Iterator<Item = &'a String>) {
        let strays = listed(strays.map(String::as_str));
        if !strays.is_empty() {
            self.warnings.push(format!(
                "ignored files that are not part of the checkpoint: {}",
                strays.join(", ")
            ));
        }
    }

    /// The files, by name.
    #[must_use]
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// All tensors by name, each with the index of its file in [`Self::files`].
    pub fn tensors(&self) -> impl Iterator<Item = (usize, &TensorInfo)> {
        self.by_name.iter().map(|at| self.at(*at))
    }

    /// The tensor called `name`, with the index of its file.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<(usize, &TensorInfo)> {
        self.by_name
            .binary_search_by(|at| self.at(*at).1.name.as_str().cmp(name))
            .ok()
            .map(|i| self.at(self.by_name[i]))
    }

    fn at(&self, (file, tensor): (u32, u32)) -> (usize, &TensorInfo) {
        let file = file as usize;
        (file, &self.files[file].tensors()[tensor as usize])
    }

    /// What is odd but no error: stray files, unnamed tensors, a wrong total.
    #[must_use]
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// The folder that the files are in.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

#[derive(Deserialize)]
struct Index {
    #[serde(default)]
    metadata: IndexMetadata,
    weight_map: UniqueMap<String>,
}

/// What an index says of itself. All of it is advisory.
#[derive(Default)]
struct IndexMetadata {
    total_size: Option<serde_json::Number>,
}

impl<'de> Deserialize<'de> for IndexMetadata {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Other keys hold anything; skipping them takes no recursion.
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = IndexMetadata;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<IndexMetadata, A::Error> {
                let mut out = IndexMetadata::default();
                while let Some(key) = map.next_key::<String>()? {
                    if key == "total_size" {
                        out.total_size = map.next_value()?;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(out)
            }
        }
        deserializer.deserialize_map(Visitor)
    }
}

impl Index {
    fn read(path: &Path) -> Result<Self, Error> {
        let source = Source::open(path)?;
        let structure = |expected: String, found: String| Error::Structure {
            path: path.to_path_buf(),
            part: "index".into(),
            expected,
            found,
            hint: None,
        };
        if source.len() > MAX_INDEX_LEN {
            return Err(structure(
                format!("at most {MAX_INDEX_LEN} bytes"),
                format!("{}", source.len()),
            ));
        }
        let json = source.read_vec(0, source.len())?;
        let expected = "a JSON object with a `weight_map` of tensor to file name";
        let json = without_bom(&json);
        // A derived struct would also be read from an array of its fields.
        if json.trim_ascii_start().first() != Some(&b'{') {
            return Err(structure(expected.into(), "no object".into()));
        }
        let index: Self = serde_json::from_slice(json)
            .map_err(|e| structure(expected.into(), shown(&e.to_string())))?;
        if index.weight_map.0.is_empty() {
            return Err(structure("a `weight_map` of at least one tensor".into(), "none".into()));
        }
        Ok(index)
    }
}

/// Whether joining `name` to a folder stays in that folder.
fn is_plain_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\\', '\0'])
}

/// The names of the safetensors files in a folder, sorted.
fn safetensors_in(dir: &Path) -> Result<Vec<String>, Error> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let path = entry.map_err(|e| Error::io(dir, e))?.path();
        if path.extension().is_some_and(|e| e == "safetensors") && path.is_file() {
            names.extend(path.file_name().and_then(|n| n.to_str()).map(String::from));
        }
    }
    Ok(names.into_iter().collect())
}

/// The first names, made fit for a message, and how many were left out.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut out = Vec::new();
    let mut left_out = 0_u64;
    for name in names {
        if out.len() < MAX_LISTED {
            out.push(shown(name));
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        out.push(format!("and {left_out} more"));
    }
    out
}

/// An error if there are any names.
fn names_error<'a>(
    path: &Path,
    problem: &str,
    names: impl Iterator<Item = &'a str>,
) -> Result<(), Error> {
    let names = listed(names);
    if names.is_empty() {
        return Ok(());
    }
    Err(Error::Names { path: path.to_path_buf(), problem: problem.into(), names, hint: None })
}
