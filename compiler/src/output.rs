//! What is written, and where each tensor goes in it.
//!
//! The layout of every output is fixed before the first byte is computed, so
//! bands of rows can be written in any order and from any thread.

mod encode;
mod paths;

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use formats::dflash2::config::{Config, PrismHadamard};
use formats::dflash2::drafter::{Drafter, Rotation};
use formats::dflash2::gguf_keys::{self, Hadamard, Lineage};
use formats::dflash2::names::{Codebooks, Role, TensorSpec, specs};
use formats::gguf::{self, GgmlType, Value};
use formats::q4nx;
use formats::safetensors::{self, Dtype};

use crate::Error;

pub(crate) use encode::{Encoder, Rounded, at_least};
pub use paths::config_path;
pub(crate) use paths::{
    check_paths, check_readers, check_space, named_config, resolved, same_file,
};

/// A file format for drafters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Format {
    /// q4nx, exact-ternary profile, for the NPU engines.
    Q4nx,
    /// GGUF with PQ2_0 blocks: 2.125 bits per weight.
    Pq2_0,
    /// GGUF with PTQ1_0 blocks: 1.75 bits per weight.
    Ptq1_0,
    /// Safetensors in the primal basis, F32.
    F32,
    /// Safetensors in the primal basis, BF16.
    Bf16,
}

impl Format {
    /// Every format.
    pub const ALL: [Self; 5] = [Self::Q4nx, Self::Pq2_0, Self::Ptq1_0, Self::F32, Self::Bf16];

    /// The name on the command line and in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Q4nx => "q4nx",
            Self::Pq2_0 => "pq2_0",
            Self::Ptq1_0 => "ptq1_0",
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        }
    }

    /// The format that a file name asks for: `.q4nx`, `.gguf` (PQ2_0) or
    /// `.safetensors` (BF16).
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?;
        match extension.to_ascii_lowercase().as_str() {
            "q4nx" => Some(Self::Q4nx),
            "gguf" => Some(Self::Pq2_0),
            "safetensors" => Some(Self::Bf16),
            _ => None,
        }
    }

    /// Whether matrices are stored as codes and scales.
    #[must_use]
    pub fn is_ternary(self) -> bool {
        matches!(self, Self::Q4nx | Self::Pq2_0 | Self::Ptq1_0)
    }

    fn is_gguf(self) -> bool {
        matches!(self, Self::Pq2_0 | Self::Ptq1_0)
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One output that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Where it goes.
    pub path: PathBuf,
    /// What it is.
    pub format: Format,
}

/// A small file written along with an output.
#[derive(Debug, Clone)]
pub struct SideFile {
    /// Where it goes.
    pub path: PathBuf,
    /// Its contents.
    pub bytes: Vec<u8>,
}

/// A planned output.
#[derive(Debug, Clone)]
pub struct Output {
    /// Where it goes.
    pub path: PathBuf,
    /// What it is.
    pub format: Format,
    /// Size of the whole file.
    pub file_len: u64,
    /// Bytes of tensor data.
    pub data_len: u64,
    /// First byte of each tensor, in the order of the model's specs.
    pub(crate) offsets: Vec<u64>,
    /// The `config.json` beside it, where the format has one.
    pub config: Option<SideFile>,
    header: Header,
}

#[derive(Debug, Clone)]
enum Header {
    Safetensors(Vec<u8>),
    Gguf { metadata: Box<GgufMetadata>, tensors: Vec<gguf::NewTensor> },
}

/// Everything a GGUF header is made of but the input's digest, which is known late.
#[derive(Debug, Clone)]
struct GgufMetadata {
    config: Config,
    encoding: GgmlType,
    hadamard: Hadamard,
    rule: Option<String>,
    tokenizer: Vec<(String, Value)>,
}

/// What all outputs of one run have in common.
#[derive(Debug)]
pub(crate) struct Contents<'a> {
    pub(crate) drafter: &'a Drafter,
    pub(crate) rotation: &'a Rotation,
    pub(crate) codebooks: Codebooks,
    pub(crate) rule: Option<&'a str>,
    pub(crate) tokenizer: &'a [(String, Value)],
}

/// A stand-in of the right length for a digest that is not known yet.
const NO_DIGEST: &str = "0000000000000000000000000000000000000000000000000000000000000000";

impl Output {
    /// Plans one output.
    pub(crate) fn plan(request: &Request, contents: &Contents<'_>) -> Result<Self, Error> {
        let config = &contents.drafter.config;
        let specs = specs(config, contents.codebooks);
        for spec in &specs {
            check_fit(request, spec, contents.rotation)?;
        }
        if request.format.is_gguf() {
            Self::plan_gguf(request, contents, &specs)
        } else {
            Ok(Self::plan_safetensors(request, contents, specs))
        }
    }

    fn plan_safetensors(
        request: &Request,
        contents: &Contents<'_>,
        specs: Vec<TensorSpec>,
    ) -> Self {
        let config = &contents.drafter.config;
        let format = request.format;
        let folded: Vec<String> =
            specs.iter().filter(|s| s.role.is_matrix()).map(|s| s.name.clone()).collect();
        let names: Vec<String> = specs.iter().map(|s| s.name.clone()).collect();
        let layout = safetensors::layout(
            specs
                .into_iter()
                .map(|spec| {
                    let chunked = format == Format::Q4nx && spec.role.is_matrix();
                    let (dtype, shape) = match format {
                        _ if chunked => {
                            let [out, inputs] = [spec.shape[0] as usize, spec.shape[1] as usize];
                            (Dtype::I8, q4nx::chunk_shape(out, inputs).to_vec())
                        }
                        Format::F32 => (Dtype::F32, spec.shape),
                        _ => (Dtype::BF16, spec.shape),
                    };
                    safetensors::NewTensor { name: spec.name, dtype, shape }
                })
                .collect(),
            &BTreeMap::new(),
        );
        let by_name: BTreeMap<&str, u64> =
            layout.tensors.iter().map(|t| (t.name.as_str(), t.offset)).collect();
        let bytes = if format == Format::Q4nx {
            let mut mark = PrismHadamard::unsigned(config, contents.rotation.block, folded);
            if let Some(signs) = contents.rotation.signs.get(&config.q_width()) {
                mark.og_signs.clone_from(signs);
            }
            config.to_json_with_hadamard(&mark)
        } else {
            config.to_json_without_hadamard()
        };
        Self {
            path: request.path.clone(),
            format,
            file_len: layout.file_len,
            data_len: layout.file_len - layout.header.len() as u64,
            offsets: names.iter().map(|name| by_name[name.as_str()]).collect(),
            config: Some(SideFile { path: PathBuf::new(), bytes }),
            header: Header::Safetensors(layout.header),
        }
    }

    fn plan_gguf(
        request: &Request,
        contents: &Contents<'_>,
        specs: &[TensorSpec],
    ) -> Result<Self, Error> {
        let config = &contents.drafter.config;
        let encoding = match request.format {
            Format::Ptq1_0 => GgmlType::PTQ1_0,
            _ => GgmlType::PQ2_0,
        };
        let tensors = specs
            .iter()
            .map(|spec| gguf::NewTensor {
                name: spec.gguf_name.clone(),
                dims: spec.shape.iter().rev().copied().collect(),
                ty: if spec.role.is_matrix() { encoding } else { rest_type(spec.role) },
            })
            .collect();
        let mut hadamard = Hadamard::unsigned(config, contents.rotation.block);
        hadamard.signs.extend(contents.rotation.signs.clone());
        let header = Header::Gguf {
            metadata: Box::new(GgufMetadata {
                config: config.clone(),
                encoding,
                hadamard,
                rule: contents.rule.map(str::to_owned),
                tokenizer: contents.tokenizer.to_vec(),
            }),
            tensors,
        };
        let layout = header.gguf_layout(NO_DIGEST)?;
        Ok(Self {
            path: request.path.clone(),
            format: request.format,
            file_len: layout.file_len,
            data_len: layout.tensors.iter().map(|t| t.len).sum(),
            offsets: layout.tensors.iter().map(|t| t.offset).collect(),
            config: None,
            header,
        })
    }

    /// The file's first bytes, now that the input's digest is known.
    pub(crate) fn header(&self, input_sha256: &str) -> Result<Vec<u8>, Error> {
        match &self.header {
            Header::Safetensors(bytes) => Ok(bytes.clone()),
            gguf @ Header::Gguf { .. } => Ok(gguf.gguf_layout(input_sha256)?.header),
        }
    }
}

impl Header {
    fn gguf_layout(&self, input_sha256: &str) -> Result<gguf::Layout, Error> {
        let Self::Gguf { metadata, tensors } = self else {
            unreachable!("asked of GGUF headers only");
        };
        let lineage = Lineage {
            version: env!("CARGO_PKG_VERSION").into(),
            input_sha256: input_sha256.into(),
            rule: metadata.rule.clone(),
        };
        let keys = gguf_keys::Drafter {
            config: &metadata.config,
            name: None,
            encoding: metadata.encoding,
            hadamard: &metadata.hadamard,
            lineage: &lineage,
            tokenizer: metadata.tokenizer.clone(),
        }
        .keys()?;
        Ok(gguf::layout(&keys, tensors.clone())?)
    }
}

/// Types of the tensors that stay float in a GGUF.
fn rest_type(role: Role) -> GgmlType {
    if role.is_codebook() { GgmlType::BF16 } else { GgmlType::F32 }
}

/// Refuses what the format has no room for.
fn check_fit(request: &Request, spec: &TensorSpec, rotation: &Rotation) -> Result<(), Error> {
    let unsupported = |expected: String, found: String, hint: Option<&str>| Error::Unsupported {
        path: request.path.clone(),
        format: request.format.name(),
        expected,
        found,
        hint: hint.map(str::to_owned),
    };
    if request.format != Format::Q4nx || !spec.role.is_matrix() {
        return Ok(());
    }
    let [out, inputs] = [spec.shape[0], spec.shape[1]];
    for (axis, len, unit) in
        [("rows (outputs)", out, q4nx::ROW_BLOCK), ("columns (inputs)", inputs, q4nx::COL_BLOCK)]
    {
        if len % unit as u64 != 0 {
            return Err(unsupported(
                format!("{axis} in multiples of {unit}"),
                format!("`{}` with [out, in] = [{out}, {inputs}]", spec.name),
                Some("write a GGUF, which has no such rule"),
            ));
        }
    }
    let other_signs = rotation
        .signs
        .get(&(inputs as usize))
        .is_some_and(|signs| spec.role != Role::O && signs.iter().any(|s| *s != 1));
    if other_signs {
        return Err(unsupported(
            "rotation signs on the input of `o_proj` only".into(),
            format!("signs of -1 on the input of `{}`", spec.name),
            Some("write a GGUF, which keeps all sign vectors"),
        ));
    }
    Ok(())
}
