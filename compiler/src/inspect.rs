//! What a file is, from its headers alone.
//!
//! A drafter is shown as one: configuration, rotation, lineage, tensors by their
//! role in the model. Any other safetensors or GGUF file, and an MLX 2-bit pack,
//! is listed as it stands, with the reason why it is no drafter. Only files whose
//! frame is damaged are errors. Contents are not read; `verify` does that.

mod metadata;
mod pack;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::path::Path;

use formats::dflash2::config::{Config, MAX_CONFIG_BYTES};
use formats::dflash2::drafter::{Container, Drafter};
use formats::dflash2::gguf_keys::CONFIG;
use formats::safetensors::{Checkpoint, Dtype};
use formats::{Error, Source, gguf, mlx, q4nx, shown, without_bom};
use serde::Serialize;
use serde_json::{Map, Value};

use crate::facts;
use crate::report::SCHEMA;

pub use metadata::Entry;
pub use pack::Module;

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// [`SCHEMA`].
    pub schema: u32,
    /// The path that was given.
    pub path: String,
    /// The kind.
    pub kind: Kind,
    /// What it is, in a line.
    pub what: String,
    /// The files that hold tensors; the configuration where there are none.
    pub files: Vec<FileFacts>,
    /// Where the drafter's configuration was read, unless it came with the container.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_path: Option<String>,
    /// The drafter's configuration by the names of `config.json`, defaults filled in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<Map<String, Value>>,
    /// Basis of a drafter's ternary matrices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rotation: Option<Rotation>,
    /// The `ternarize.*` keys without their prefix: where a compiled drafter came from.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub lineage: BTreeMap<String, String>,
    /// Keys of a GGUF, or `__metadata__` of safetensors files.
    pub metadata: Vec<Entry>,
    /// Packed modules of an MLX pack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<Module>,
    /// The tensors: a drafter's in the order of the model, others in the file's.
    pub tensors: Vec<Tensor>,
    /// Tensors summed up by their encoding.
    pub totals: Vec<Total>,
    /// Why it is no drafter, and what looks odd.
    pub notes: Vec<String>,
}

/// The kinds of files that are told apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A DFlash 2 drafter in any container.
    Drafter,
    /// The configuration of a drafter, without weights.
    DrafterConfig,
    /// Any other safetensors checkpoint.
    Safetensors,
    /// Any other GGUF.
    Gguf,
    /// An MLX 2-bit pack.
    MlxPack,
}

/// One file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct FileFacts {
    /// Its path.
    pub path: String,
    /// Its size.
    pub size_bytes: u64,
}

/// A rotation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rotation {
    /// Inputs per Hadamard transform.
    pub block: usize,
    /// For each input width of a matrix, how many of its signs are -1.
    pub widths: Vec<Signs>,
}

/// The signs of one input width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Signs {
    /// The width.
    pub width: usize,
    /// Signs that are -1; the others are +1.
    pub negative: usize,
}

/// One tensor.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Tensor {
    /// Its name in the file.
    pub name: String,
    /// Its published name, where it is a drafter's and differs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_name: Option<String>,
    /// How it is stored.
    pub encoding: Cow<'static, str>,
    /// Extents, outermost first: `[out, in]` of a drafter's matrix, else as stored.
    pub shape: Vec<u64>,
    /// Its size.
    pub size_bytes: u64,
    /// Its first byte in its file.
    pub offset_bytes: u64,
    /// Index of its file in [`Inspection::files`].
    pub file: usize,
}

/// The tensors of one encoding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Total {
    /// The encoding.
    pub encoding: String,
    /// How many.
    pub tensors: u64,
    /// Their size.
    pub size_bytes: u64,
}

/// Reads the headers of whatever is at `path`: a safetensors file, shard index or
/// folder, a q4nx file, a GGUF, the folder of an MLX 2-bit pack, or the
/// `config.json` of a drafter. `config` overrides the search for a `config.json`.
///
/// # Errors
/// What cannot be read at all: a missing file, a damaged header, a configuration
/// that is no drafter's and has no weights beside it.
pub fn inspect(path: &Path, config: Option<&Path>) -> Result<Inspection, Error> {
    if path.is_dir() {
        let beside = path.join("config.json");
        if object_at(&beside).is_some_and(|json| is_pack(&json)) {
            return pack::inspect_folder(path, &beside);
        }
        if beside.is_file() && !holds_safetensors(path)? {
            return inspect_config(path, &beside);
        }
        return inspect_safetensors(path, config);
    }
    let source = Source::open(path)?;
    let mut magic = [0; 4];
    if source.len() >= 4 {
        source.read_exact_at(0, &mut magic)?;
    }
    if &magic == b"GGUF" {
        return inspect_gguf(path, source, config);
    }
    let is_json = path.extension().is_some_and(|e| e == "json");
    let is_index = path.to_string_lossy().ends_with(".index.json");
    if is_json && !is_index {
        match object_at(path) {
            Some(json) if is_pack(&json) => return pack::inspect_config(path),
            Some(json) if json.contains_key("weight_map") => {}
            _ => return inspect_config(path, path),
        }
    }
    inspect_safetensors(path, config)
}

/// The JSON object in a file, if that is what it holds.
fn object_at(path: &Path) -> Option<Map<String, Value>> {
    let source = Source::open(path).ok().filter(|s| s.len() <= MAX_CONFIG_BYTES)?;
    serde_json::from_slice(without_bom(&source.read_vec(0, source.len()).ok()?)).ok()
}

fn is_pack(config: &Map<String, Value>) -> bool {
    config.get("model_type").and_then(Value::as_str) == Some(mlx::MODEL_TYPE)
}

/// Whether a folder has a checkpoint, or at least an index of one.
fn holds_safetensors(dir: &Path) -> Result<bool, Error> {
    names_in(dir, |name| {
        name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")
    })
    .map(|names| !names.is_empty())
}

/// The names in a folder that `wanted` accepts, sorted.
fn names_in(dir: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<String>, Error> {
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, e))? {
        let name = entry.map_err(|e| Error::io(dir, e))?.file_name();
        names.extend(name.to_str().filter(|name| wanted(name)).map(str::to_owned));
    }
    names.sort_unstable();
    Ok(names)
}

impl Inspection {
    fn new(path: &Path, kind: Kind, what: String) -> Self {
        Self {
            schema: SCHEMA,
            path: path.to_string_lossy().into_owned(),
            kind,
            what,
            files: Vec::new(),
            config_path: None,
            config: None,
            rotation: None,
            lineage: BTreeMap::new(),
            metadata: Vec::new(),
            modules: Vec::new(),
            tensors: Vec::new(),
            totals: Vec::new(),
            notes: Vec::new(),
        }
    }

    fn add_file(&mut self, source: &Source) {
        let path = source.path().to_string_lossy().into_owned();
        self.files.push(FileFacts { path, size_bytes: source.len() });
    }

    /// Shows what is known of a drafter. Files and tensors are replaced.
    fn describe(&mut self, drafter: &Drafter) {
        self.kind = Kind::Drafter;
        self.what = what(drafter);
        self.config_path = drafter.config_path.as_ref().map(|p| p.to_string_lossy().into_owned());
        self.config = Some(shown_config(&drafter.config));
        self.rotation = drafter.rotation.as_ref().map(|rotation| Rotation {
            block: rotation.block,
            widths: drafter
                .config
                .matrix_widths()
                .into_iter()
                .map(|width| Signs {
                    width,
                    negative: rotation
                        .signs
                        .get(&width)
                        .map_or(0, |signs| signs.iter().filter(|s| **s < 0).count()),
                })
                .collect(),
        });
        self.files.clear();
        drafter.files.iter().for_each(|source| self.add_file(source));
        let file_of = |path: &Path| drafter.files.iter().position(|f| f.path() == path);
        self.tensors = drafter
            .tensors
            .iter()
            .map(|tensor| Tensor {
                name: tensor.stored_name.clone(),
                published_name: (tensor.stored_name != tensor.spec.name)
                    .then(|| tensor.spec.name.clone()),
                encoding: tensor.encoding.name().into(),
                shape: tensor.spec.shape.clone(),
                size_bytes: tensor.byte_len(),
                offset_bytes: tensor.offset(),
                file: file_of(tensor.path()).unwrap_or(0),
            })
            .collect();
        self.notes.extend(drafter.notes.iter().cloned());
    }

    /// Sums up the tensors; called last.
    fn summed(mut self) -> Self {
        let mut totals: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for tensor in &self.tensors {
            let (tensors, bytes) = totals.entry(&tensor.encoding).or_default();
            *tensors += 1;
            *bytes += tensor.size_bytes;
        }
        self.totals = totals
            .into_iter()
            .map(|(encoding, (tensors, size_bytes))| Total {
                encoding: encoding.to_owned(),
                tensors,
                size_bytes,
            })
            .collect();
        self
    }

    /// Lists a checkpoint's tensors as they are stored.
    fn list(&mut self, checkpoint: &Checkpoint) {
        for file in checkpoint.files() {
            self.add_file(file.source());
            self.metadata.extend(Entry::of_strings(file.metadata()));
        }
        for (at, file) in checkpoint.files().iter().enumerate() {
            self.tensors.extend(file.tensors().iter().map(|tensor| Tensor {
                name: tensor.name.clone(),
                published_name: None,
                encoding: match chunk_kind(tensor.dtype, &tensor.shape) {
                    Some(kind) => format!("{} ({kind:?} chunks)", tensor.dtype).into(),
                    None => tensor.dtype.name().into(),
                },
                shape: tensor.shape.clone(),
                size_bytes: tensor.len,
                offset_bytes: tensor.offset,
                file: at,
            }));
        }
    }
}

/// What a drafter is, in a line.
fn what(drafter: &Drafter) -> String {
    let mut encodings: Vec<&str> = drafter
        .tensors
        .iter()
        .filter(|t| t.spec.role.is_matrix())
        .map(|t| t.encoding.name())
        .collect();
    encodings.sort_unstable();
    encodings.dedup();
    let encodings = encodings.join(" and ");
    let form = match drafter.container {
        Container::Safetensors => format!("float, safetensors with {encodings} matrices"),
        Container::Q4nx => "ternary, q4nx exact-ternary profile".into(),
        Container::Gguf => format!("ternary, GGUF with {encodings} matrices"),
    };
    match &drafter.rotation {
        Some(rotation) => format!("DFlash 2 drafter, {form}, rotation block {}", rotation.block),
        None => format!("DFlash 2 drafter, {form}, not rotated"),
    }
}

/// The facts of a configuration, and the number of drafts that follows from them.
fn shown_config(config: &Config) -> Map<String, Value> {
    let mut facts = facts::of_config(config);
    facts.insert("drafts".into(), config.drafts().into());
    facts
}

/// What a q4nx tensor's chunks are by their size.
fn chunk_kind(dtype: Dtype, shape: &[u64]) -> Option<q4nx::ChunkKind> {
    let last = *shape.last().filter(|_| dtype == Dtype::I8 && shape.len() >= 2)?;
    q4nx::ChunkKind::from_bytes(last).ok()
}

fn inspect_safetensors(path: &Path, config: Option<&Path>) -> Result<Inspection, Error> {
    // Before the listing, so that two tables of a huge header do not add up.
    let drafter = Drafter::open(path, config);
    let checkpoint = Checkpoint::open(path)?;
    let chunked = checkpoint.tensors().any(|(_, t)| chunk_kind(t.dtype, &t.shape).is_some());
    let what = format!(
        "{}, {} tensors in {}",
        if chunked { "q4nx (safetensors with chunked matrices)" } else { "safetensors" },
        checkpoint.tensors().count(),
        match checkpoint.files().len() {
            1 => "1 file".to_owned(),
            n => format!("{n} files"),
        }
    );
    let mut inspection = Inspection::new(path, Kind::Safetensors, what);
    inspection.list(&checkpoint);
    match drafter {
        Ok(drafter) => inspection.describe(&drafter),
        Err(why) => {
            inspection.notes.push(no_drafter(&why));
            inspection.notes.extend(checkpoint.warnings().iter().cloned());
        }
    }
    Ok(inspection.summed())
}

fn inspect_gguf(path: &Path, source: Source, config: Option<&Path>) -> Result<Inspection, Error> {
    let file = gguf::File::open(source)?;
    let architecture = match file.opt_str("general.architecture") {
        Ok(Some(name)) => format!("architecture `{}`", shown(name)),
        _ => "no architecture".into(),
    };
    let what = format!(
        "GGUF version {}, {architecture}, {} tensors",
        file.version(),
        file.tensors().len()
    );
    let mut inspection = Inspection::new(path, Kind::Gguf, what);
    inspection.add_file(file.source());
    for (key, value) in file.metadata() {
        inspection.metadata.push(Entry::of_gguf(key, value));
        if let (Some(suffix), gguf::Value::String(text)) = (key.strip_prefix("ternarize."), value) {
            // The author's config.json is shown as the configuration.
            if key != CONFIG {
                inspection.lineage.insert(suffix.to_owned(), text.clone());
            }
        }
    }
    inspection.tensors = file
        .tensors()
        .iter()
        .map(|tensor| Tensor {
            name: tensor.name.clone(),
            published_name: None,
            encoding: tensor.ty.name().into(),
            shape: tensor.dims.iter().rev().copied().collect(),
            size_bytes: tensor.len,
            offset_bytes: tensor.offset,
            file: 0,
        })
        .collect();
    drop(file);
    match Drafter::open(path, config) {
        Ok(drafter) => inspection.describe(&drafter),
        Err(why) => inspection.notes.push(no_drafter(&why)),
    }
    Ok(inspection.summed())
}

fn no_drafter(why: &Error) -> String {
    format!("not a drafter that this program reads: {why}")
}

/// A configuration without weights; `path` is what was asked for.
fn inspect_config(path: &Path, config_path: &Path) -> Result<Inspection, Error> {
    let config = Config::read(config_path)?;
    let rotation = match &config.prism_hadamard {
        Some(mark) => format!("of a rotated drafter, block {}", mark.block_size),
        None => "of a float drafter".into(),
    };
    let what = format!("DFlash 2 drafter configuration {rotation}");
    let mut inspection = Inspection::new(path, Kind::DrafterConfig, what);
    inspection.add_file(&Source::open(config_path)?);
    inspection.config_path = Some(config_path.to_string_lossy().into_owned());
    inspection.rotation = config.prism_hadamard.as_ref().map(|mark| Rotation {
        block: mark.block_size,
        widths: vec![Signs {
            width: mark.og_signs.len(),
            negative: mark.og_signs.iter().filter(|s| **s < 0).count(),
        }],
    });
    inspection.config = Some(shown_config(&config));
    if path.is_dir() {
        for name in names_in(path, |name| name.ends_with(".q4nx") || name.ends_with(".gguf"))? {
            inspection.notes.push(format!(
                "`{}` in this folder is not looked at: name the file itself",
                shown(&name)
            ));
        }
    }
    Ok(inspection)
}

#[cfg(test)]
mod tests;
