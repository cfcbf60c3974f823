//! A pack as a whole: its folder, with configuration, rotation and weights checked against each other.
//!
//! ```text
//!  config.json        modules, text_config
//!  hadamard.json      the rotation; names every packed module
//!  model.safetensors  per module weight, scales, biases, and signs [K], which repeat those of the
//!                     rotation; the rest of the model is float
//! ```
//!
//! Shapes of the model are the caller's to check; what is checked here holds for any model.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use serde_json::json;

use super::object::{self, Object};
use super::rotation::key;
use super::{PackConfig, PackModule, PackRotation, ScaleType, TextConfig};
use crate::error::shown;
use crate::safetensors::{Checkpoint, Dtype, TensorInfo};
use crate::{Error, GROUP, Source, View};

const CONFIG: &str = "config.json";
const ROTATION: &str = "hadamard.json";
/// Larger files are refused unread: the published ones have 58 and 298 kB.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
const MAX_ROTATION_BYTES: u64 = 1 << 22;
/// The one module whose rows are rotated, not its input.
const EMBEDDING: &str = "model.embed_tokens";

/// An opened pack; weights are mapped, see [`Source::mapped`] for the contract.
#[derive(Debug)]
pub struct Pack {
    dir: PathBuf,
    config: PackConfig,
    text: TextConfig,
    block: usize,
    signs: BTreeMap<usize, Vec<i8>>,
    checkpoint: Checkpoint,
    /// Of each file of the checkpoint.
    sources: Vec<Source>,
    /// Packed modules by path.
    modules: BTreeMap<String, Packed>,
}

/// A packed module in its file.
#[derive(Debug, Clone)]
pub struct Packed {
    /// The file of its codes.
    pub path: PathBuf,
    /// The tensor of its codes.
    pub name: String,
    /// Number of rows (outputs).
    pub rows: usize,
    /// Number of columns (inputs), whole groups of 128.
    pub cols: usize,
    /// `[rows, cols/16]` U32 words.
    pub weight: View,
    /// `[rows, cols/128]`.
    pub scales: View,
    /// `[rows, cols/128]`.
    pub biases: View,
    /// The type of scales and biases.
    pub scale_type: ScaleType,
}

impl Pack {
    /// Opens the pack in the folder `dir`.
    ///
    /// # Errors
    /// [`Error::Io`] for files that are not there; [`Error::Key`] for a configuration that is not a
    /// pack's, or where configuration and rotation do not fit; [`Error::Names`] and [`Error::Tensor`]
    /// for parts of modules that are missing, or have another shape, type or signs.
    pub fn open(dir: &Path) -> Result<Self, Error> {
        let config_path = dir.join(CONFIG);
        let map = object::read(&config_path, MAX_CONFIG_BYTES)?;
        let root = Object::root(&config_path, &map);
        let config = PackConfig::from_root(&root)?;
        root.only("hadamard_config", &json!(ROTATION))?;
        root.only("gdn_activation_layout", &json!("grouped"))?;
        let text = TextConfig::from_root(&root)?;

        let rotation_path = dir.join(ROTATION);
        let map = object::read(&rotation_path, MAX_ROTATION_BYTES)?;
        let rotation = PackRotation::from_root(&Object::root(&rotation_path, &map))?;
        fit(&root, &config, &Object::root(&rotation_path, &map), &rotation)?;

        let checkpoint = Checkpoint::open(dir)?;
        let sources = checkpoint.files().iter().map(|file| file.source().mapped());
        let mut pack = Self {
            dir: dir.to_path_buf(),
            sources: sources.collect::<Result<_, _>>()?,
            checkpoint,
            modules: BTreeMap::new(),
            config,
            text,
            block: rotation.block,
            signs: BTreeMap::new(),
        };
        let mut signs = rotation.signs.clone().unwrap_or_default();
        for module in &pack.config.modules {
            let packed = pack.packed(module)?;
            if rotation.signs.is_none() {
                signs.entry(packed.cols).or_insert_with(|| vec![1; packed.cols]);
            }
            pack.check_signs(module, packed.cols, &signs)?;
            pack.modules.insert(module.path.clone(), packed);
        }
        pack.signs = signs;
        Ok(pack)
    }

    /// The folder.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What its configuration says of its modules.
    #[must_use]
    pub fn config(&self) -> &PackConfig {
        &self.config
    }

    /// The dimensions of its text model.
    #[must_use]
    pub fn text(&self) -> &TextConfig {
        &self.text
    }

    /// Inputs per transform.
    #[must_use]
    pub fn block(&self) -> usize {
        self.block
    }

    /// Signs of every width that a packed module has, each +1 or -1.
    #[must_use]
    pub fn signs(&self) -> &BTreeMap<usize, Vec<i8>> {
        &self.signs
    }

    /// The packed module at `path`, without prefix.
    #[must_use]
    pub fn module(&self, path: &str) -> Option<&Packed> {
        self.modules.get(path)
    }

    /// A tensor of the text model, and the file it is in; `name` is without prefix.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<(&Source, &TensorInfo)> {
        let (file, info) = self.checkpoint.get(&format!("{}{name}", self.config.prefix()))?;
        Some((&self.sources[file], info))
    }

    /// As [`Pack::tensor`].
    ///
    /// # Errors
    /// [`Error::Names`] when there is none.
    pub fn require(&self, name: &str) -> Result<(&Source, &TensorInfo), Error> {
        self.tensor(name).ok_or_else(|| Error::Names {
            path: self.dir.clone(),
            problem: "missing tensors".into(),
            names: vec![shown(&format!("{}{name}", self.config.prefix()))],
            hint: None,
        })
    }

    /// The codes, scales and biases of a module.
    fn packed(&self, module: &PackModule) -> Result<Packed, Error> {
        let part = |part: &str| self.require(&format!("{}.{part}", module.path));
        let (source, weight) = part("weight")?;
        let (rows, words) = match (weight.dtype, weight.shape.as_slice()) {
            (Dtype::U32, [rows, words]) if *words > 0 => (*rows, *words),
            _ => return Err(wrong(source, weight, "U32 [rows, columns / 16]".into())),
        };
        let block = self.block as u64;
        // The words lie in a file: 16 times their number fits 64 bits.
        let cols = words * 16;
        if !cols.is_multiple_of(block) || !cols.is_multiple_of(GROUP as u64) {
            let expected = format!("columns in whole blocks of {block}");
            return Err(wrong(source, weight, expected));
        }
        let scale_dtype = match module.dtype {
            ScaleType::F16 => Dtype::F16,
            ScaleType::Bf16 => Dtype::BF16,
        };
        let groups = [rows, cols / GROUP as u64];
        let view = |name: &str| {
            let (source, info) = part(name)?;
            if info.dtype != scale_dtype || info.shape != groups {
                return Err(wrong(source, info, format!("{scale_dtype:?} {groups:?}")));
            }
            source.view(info.offset, info.len)
        };
        Ok(Packed {
            path: source.path().to_path_buf(),
            name: weight.name.clone(),
            rows: rows as usize,
            cols: cols as usize,
            weight: source.view(weight.offset, weight.len)?,
            scales: view("scales")?,
            biases: view("biases")?,
            scale_type: module.dtype,
        })
    }

    /// Refuses a module of `width` inputs whose signs are not those of the rotation.
    fn check_signs(
        &self,
        module: &PackModule,
        width: usize,
        signs: &BTreeMap<usize, Vec<i8>>,
    ) -> Result<(), Error> {
        let (source, info) = self.require(&format!("{}.signs", module.path))?;
        let Some(expected) = signs.get(&width) else {
            return Err(Error::Key {
                path: self.dir.join(ROTATION),
                key: key("sign_widths"),
                expected: format!("{width}, the columns of `{}`", shown(&module.path)),
                found: "no such width".into(),
                hint: None,
            });
        };
        if info.shape != [width as u64] {
            return Err(wrong(source, info, format!("[{width}]")));
        }
        let Some(found) = floats(source, info)? else {
            return Err(wrong(source, info, "F32, F16 or BF16".into()));
        };
        let mut pairs = found.iter().zip(expected);
        let Some(at) = pairs.position(|(found, sign)| *found != f32::from(*sign)) else {
            return Ok(());
        };
        Err(Error::Tensor {
            path: source.path().to_path_buf(),
            tensor: shown(&info.name),
            expected: format!("{} at {at}, as in {ROTATION}", expected[at]),
            found: found[at].to_string(),
            hint: None,
        })
    }
}

/// Refuses a rotation that is not that of exactly the packed modules.
fn fit(
    root: &Object<'_>,
    config: &PackConfig,
    rotation_root: &Object<'_>,
    rotation: &PackRotation,
) -> Result<(), Error> {
    let name = |module: &PackModule| format!("{}{}.weight", config.prefix(), module.path);
    for (i, module) in config.modules.iter().enumerate() {
        let at = |field: &str| format!("modules[{i}].{field}");
        if module.block != rotation.block {
            let expected = format!("{}, the block of {ROTATION}", rotation.block);
            return Err(root.found(&at("block"), expected, module.block.to_string()));
        }
        if module.embedding != (module.path == EMBEDDING) {
            let expected = format!("true for `{EMBEDDING}` and no other module");
            return Err(root.found(&at("embedding"), expected, module.embedding.to_string()));
        }
        let (list, names) = match module.embedding {
            true => ("inverse_weight_names", &rotation.inverse_weight_names),
            false => ("weight_names", &rotation.weight_names),
        };
        if !names.contains(&name(module)) {
            let expected = format!("`{}`, a module of {CONFIG}", shown(&name(module)));
            return Err(rotation_root.found(&key(list), expected, "no such name"));
        }
    }
    let modules: BTreeSet<String> = config.modules.iter().map(name).collect();
    for (list, names) in [
        ("weight_names", &rotation.weight_names),
        ("inverse_weight_names", &rotation.inverse_weight_names),
    ] {
        if let Some(stranger) = names.difference(&modules).next() {
            let expected = format!("names of modules of {CONFIG}");
            return Err(rotation_root.found(
                &key(list),
                expected,
                format!("`{}`", shown(stranger)),
            ));
        }
    }
    Ok(())
}

/// All values of a float tensor; none if it is of another type.
///
/// # Errors
/// As [`Source::read_vec`].
pub fn floats(source: &Source, info: &TensorInfo) -> Result<Option<Vec<f32>>, Error> {
    let bytes = || source.view(info.offset, info.len);
    Ok(Some(match info.dtype {
        Dtype::F32 => bytes()?.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
        Dtype::F16 => {
            bytes()?.as_chunks().0.iter().map(|b| f16::from_le_bytes(*b).into()).collect()
        }
        Dtype::BF16 => {
            bytes()?.as_chunks().0.iter().map(|b| bf16::from_le_bytes(*b).into()).collect()
        }
        _ => return Ok(None),
    }))
}

/// A tensor that has another type or shape.
fn wrong(source: &Source, info: &TensorInfo, expected: String) -> Error {
    Error::Tensor {
        path: source.path().to_path_buf(),
        tensor: shown(&info.name),
        expected,
        found: format!("{:?} {:?}", info.dtype, info.shape),
        hint: None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;
    use crate::mlx::MODEL_TYPE;
    use crate::mlx::rotation::tests::rotation;
    use crate::safetensors::{NewTensor, layout};

    const BLOCK: usize = 512;

    /// Two modules of one row; the text model is not looked at.
    struct Written {
        config: Value,
        rotation: Value,
        tensors: Vec<(String, Dtype, Vec<u64>, Vec<u8>)>,
    }

    fn pack() -> Written {
        let names = ["lm_head", "model.embed_tokens"];
        let modules: Vec<Value> = names
            .iter()
            .map(|name| {
                let embedding = *name == EMBEDDING;
                json!({"path": name, "dtype": "float16", "block": BLOCK, "embedding": embedding})
            })
            .collect();
        let mut config = crate::mlx::text::tests::config();
        config["model_type"] = json!(MODEL_TYPE);
        config["schema_version"] = json!(2);
        config["quantization"] = json!({"bits": 2, "group_size": 128, "mode": "affine"});
        config["components"] = json!({"text": true, "vision": true});
        config["gdn_activation_layout"] = json!("grouped");
        config["hadamard_config"] = json!(ROTATION);
        config["modules"] = json!(modules);
        let [head, embedding] = names.map(|name| format!("language_model.{name}.weight"));
        let rotation = rotation(BLOCK, &[&head], &[&embedding]);
        let signs = rotation[key("sign_values")].as_array().unwrap().iter();
        let signs: Vec<u8> =
            signs.flat_map(|s| (s.as_f64().unwrap() as f32).to_le_bytes()).collect();
        let mut tensors = Vec::new();
        for name in names {
            let mut push = |part: &str, dtype, shape: &[u64], bytes: Vec<u8>| {
                let name = format!("language_model.{name}.{part}");
                tensors.push((name, dtype, shape.to_vec(), bytes));
            };
            push("weight", Dtype::U32, &[1, 32], vec![0x55; 128]);
            push("scales", Dtype::F16, &[1, 4], [0, 0x3C].repeat(4));
            push("biases", Dtype::F16, &[1, 4], [0, 0xBC].repeat(4));
            push("signs", Dtype::F32, &[512], signs.clone());
        }
        tensors.push((
            "language_model.model.norm.weight".into(),
            Dtype::F16,
            vec![1],
            vec![0, 0x3C],
        ));
        Written { config, rotation, tensors }
    }

    fn open(pack: &Written) -> Result<Pack, Error> {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CONFIG), pack.config.to_string()).unwrap();
        fs::write(dir.path().join(ROTATION), pack.rotation.to_string()).unwrap();
        let new = |(name, dtype, shape, _): &(String, Dtype, Vec<u64>, Vec<u8>)| NewTensor {
            name: name.clone(),
            dtype: *dtype,
            shape: shape.clone(),
        };
        let plan = layout(pack.tensors.iter().map(new).collect(), &BTreeMap::new());
        let mut bytes = plan.header.clone();
        bytes.resize(plan.file_len as usize, 0);
        for info in &plan.tensors {
            let (.., data) = pack.tensors.iter().find(|(name, ..)| *name == info.name).unwrap();
            bytes[info.offset as usize..][..data.len()].copy_from_slice(data);
        }
        fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        Pack::open(dir.path())
    }

    #[test]
    fn modules_and_tensors() {
        let mut written = pack();
        let found = open(&written).unwrap();
        assert_eq!((found.block(), found.signs()[&BLOCK].len()), (BLOCK, BLOCK));
        let head = found.module("lm_head").unwrap();
        assert_eq!((head.rows, head.cols, head.weight.len()), (1, 512, 128));
        assert_eq!(head.name, "language_model.lm_head.weight");
        assert!(found.module("model.norm").is_none());
        let (source, norm) = found.require("model.norm.weight").unwrap();
        assert_eq!(floats(source, norm).unwrap().unwrap(), [1.0]);
        let (source, words) = found.require("lm_head.weight").unwrap();
        assert_eq!(floats(source, words).unwrap(), None);
        let message = found.require("model.nor").unwrap_err().to_string();
        assert!(message.contains("language_model.model.nor"), "{message}");

        written.rotation[key("sign_mode")] = json!("identity");
        let message = open(&written).unwrap_err().to_string();
        assert!(message.contains("expected 1 at 0") && message.contains("found -1"), "{message}");
        for (name, .., bytes) in &mut written.tensors {
            if name.ends_with("signs") {
                *bytes = 1f32.to_le_bytes().repeat(BLOCK);
            }
        }
        assert_eq!(open(&written).unwrap().signs()[&BLOCK], vec![1; BLOCK]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        type Change = fn(&mut Written);
        let cases: [(Change, &[&str]); 14] = [
            (
                |p| p.config["hadamard_config"] = json!("h.json"),
                &["config.json", "hadamard_config"],
            ),
            (|p| p.config["gdn_activation_layout"] = json!("tiled"), &["gdn_activation_layout"]),
            (
                |p| p.config["modules"][0]["block"] = json!(0),
                &["modules[0].block", "512", "found 0"],
            ),
            (|p| p.config["modules"][0]["embedding"] = json!(true), &["modules[0].embedding"]),
            (|p| p.config["modules"][1]["embedding"] = json!(false), &["modules[1].embedding"]),
            (
                |p| p.rotation[key("weight_names")] = json!(["x.weight"]),
                &["hadamard.json", "weight_names", "language_model.lm_head.weight"],
            ),
            (
                |p| p.rotation[key("inverse_weight_names")] = json!([]),
                &["inverse_weight_names", "embed_tokens"],
            ),
            (
                |p| drop(p.config["modules"].as_array_mut().unwrap().remove(0)),
                &["weight_names", "names of modules", "lm_head"],
            ),
            (|p| p.tensors[0].1 = Dtype::I32, &["model.safetensors", "lm_head.weight", "I32"]),
            (
                |p| {
                    p.tensors[0].2 = vec![4, 8];
                },
                &["lm_head.weight", "whole blocks of 512"],
            ),
            (|p| p.tensors[1].1 = Dtype::BF16, &["lm_head.scales", "F16 [1, 4]", "BF16"]),
            (|p| p.tensors[2].2 = vec![4, 1], &["lm_head.biases", "[1, 4]", "[4, 1]"]),
            (|p| drop(p.tensors.remove(3)), &["missing tensors", "lm_head.signs"]),
            (
                |p| p.tensors[3].3[4..8].copy_from_slice(&(-1f32).to_le_bytes()),
                &["lm_head.signs", "expected 1 at 1", "found -1"],
            ),
        ];
        for (change, parts) in cases {
            let mut written = pack();
            change(&mut written);
            let message = open(&written).unwrap_err().to_string();
            assert!(parts.iter().all(|part| message.contains(part)), "{parts:?}: {message}");
            assert!(!message.contains('\n'), "{message}");
        }
        let message = Pack::open(Path::new("/nowhere")).unwrap_err().to_string();
        assert!(message.contains("config.json"), "{message}");
    }
}
