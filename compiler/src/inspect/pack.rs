//! MLX 2-bit packs: which modules are packed, and whether their parts are there.

use std::path::Path;

use formats::dflash2::config::MAX_CONFIG_BYTES;
use formats::mlx::{self, PackConfig, PackModule, ScaleType};
use formats::safetensors::{Checkpoint, Dtype};
use formats::{Error, Source, shown};
use serde::Serialize;

use super::{Inspection, Kind};

/// Notes on modules are cut after this many.
const MAX_NOTES: usize = 10;

/// One packed module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Module {
    /// Its name in the model.
    pub path: String,
    /// `[out, in]` by its words; absent where the weight is not there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<[u64; 2]>,
    /// Inputs per Hadamard transform; 0 where the input is not rotated.
    pub block: usize,
    /// Type of scales and biases by the configuration.
    pub scale_type: &'static str,
    /// Whether it is the embedding.
    pub embedding: bool,
}

/// A folder with a pack's configuration and weights.
pub(super) fn inspect_folder(dir: &Path, config: &Path) -> Result<Inspection, Error> {
    let pack = read(config)?;
    let checkpoint = Checkpoint::open(dir)?;
    let mut inspection = Inspection::new(dir, Kind::MlxPack, what(&pack));
    inspection.list(&checkpoint);
    inspection.notes.extend(checkpoint.warnings().iter().cloned());
    let mut wrong = Vec::new();
    for module in &pack.modules {
        let name = |part: &str| format!("{}{}.{part}", pack.prefix(), module.path);
        let words =
            checkpoint.get(&name("weight")).map(|(_, t)| t).filter(|t| t.dtype == Dtype::U32);
        let shape = match words.map(|t| t.shape.as_slice()) {
            Some([rows, words]) => words.checked_mul(16).map(|cols| [*rows, cols]),
            _ => None,
        };
        if shape.is_none() {
            wrong.push(format!("`{}` is no U32 matrix of this folder", shown(&name("weight"))));
        }
        for part in ["scales", "biases"] {
            if checkpoint.get(&name(part)).is_none() {
                wrong.push(format!("`{}` is missing", shown(&name(part))));
            }
        }
        inspection.modules.push(described(module, shape));
    }
    let more = wrong.len().saturating_sub(MAX_NOTES);
    inspection.notes.extend(wrong.into_iter().take(MAX_NOTES));
    if more > 0 {
        inspection.notes.push(format!("and {more} more parts of modules like these"));
    }
    Ok(inspection.summed())
}

/// A pack's configuration alone.
pub(super) fn inspect_config(config: &Path) -> Result<Inspection, Error> {
    let pack = read(config)?;
    let mut inspection = Inspection::new(config, Kind::MlxPack, what(&pack));
    inspection.add_file(&Source::open(config)?);
    inspection.modules = pack.modules.iter().map(|module| described(module, None)).collect();
    inspection.notes.push("only the configuration: name the folder to see the tensors".into());
    Ok(inspection)
}

fn read(config: &Path) -> Result<PackConfig, Error> {
    let source = Source::open(config)?;
    // What is larger was not taken for a pack's.
    let len = source.len().min(MAX_CONFIG_BYTES);
    PackConfig::parse(config, &source.read_vec(0, len)?)
}

fn what(pack: &PackConfig) -> String {
    let mut blocks: Vec<usize> = pack.modules.iter().map(|m| m.block).filter(|b| *b > 0).collect();
    blocks.sort_unstable();
    blocks.dedup();
    let rotation = match blocks.as_slice() {
        [] => "not rotated".to_owned(),
        blocks => {
            let blocks: Vec<String> = blocks.iter().map(usize::to_string).collect();
            format!("rotation block {}", blocks.join(", "))
        }
    };
    format!("MLX 2-bit pack `{}`, {} modules, {rotation}", mlx::MODEL_TYPE, pack.modules.len())
}

fn described(module: &PackModule, shape: Option<[u64; 2]>) -> Module {
    Module {
        path: module.path.clone(),
        shape,
        block: module.block,
        scale_type: match module.dtype {
            ScaleType::F16 => "F16",
            ScaleType::Bf16 => "BF16",
        },
        embedding: module.embedding,
    }
}
