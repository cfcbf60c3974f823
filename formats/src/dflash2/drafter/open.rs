//! Opening: from a path to checked descriptions of all tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::{Container, Drafter, Encoding, Rotation, Tensor, config_candidates};
use crate::dflash2::config::Config;
use crate::dflash2::gguf_keys::Hadamard;
use crate::dflash2::names::{self, Resolved, TensorSpec, check_shape};
use crate::safetensors::{Checkpoint, Dtype};
use crate::{Error, Source, gguf, q4nx, safetensors, shown, shown_path};

impl Drafter {
    /// Opens the drafter at `path`: a safetensors file, shard index or folder, a
    /// q4nx file, or a GGUF. Containers are told apart by their contents.
    /// `config` overrides the search for a `config.json`.
    ///
    /// # Errors
    /// Any rule of the container, the configuration or the model that is broken.
    pub fn open(path: &Path, config: Option<&Path>) -> Result<Self, Error> {
        if path.is_file() {
            let source = Source::open(path)?;
            if is_gguf(&source)? {
                if let Some(config) = config {
                    return Err(Error::Structure {
                        path: path.to_path_buf(),
                        part: "the configuration".into(),
                        expected: "none beside a GGUF, which carries its own".into(),
                        found: format!("`{}`", shown_path(config)),
                        hint: Some(
                            "give no configuration (--config, --drafter-config) for a GGUF".into(),
                        ),
                    });
                }
                return Self::open_gguf(path, &gguf::File::open(source)?);
            }
        }
        Self::open_safetensors(path, config)
    }

    fn open_safetensors(path: &Path, config: Option<&Path>) -> Result<Self, Error> {
        let checkpoint = Checkpoint::open(path)?;
        let config_path = match config {
            Some(path) => path.to_path_buf(),
            None => find_config(path, &checkpoint)?,
        };
        let config = Config::read(&config_path)?;
        let Resolved { codebooks, tensors, mut notes } =
            names::resolve(path, &config, checkpoint.tensors().map(|(_, t)| t.name.as_str()))?;
        notes.extend(checkpoint.warnings().iter().cloned());

        let chunked = checkpoint.tensors().any(|(_, t)| t.dtype == Dtype::I8);
        let mut opened = Vec::with_capacity(tensors.len());
        for (spec, stored_name) in tensors {
            // `resolve` was given exactly these names.
            let Some((file, info)) = checkpoint.get(&stored_name) else { continue };
            let source = checkpoint.files()[file].source().clone();
            let encoding = if chunked && spec.role.is_matrix() {
                chunked_encoding(&source, &spec, info)?
            } else {
                float_encoding(&source, &spec, info)?
            };
            opened.push(Tensor {
                spec,
                stored_name,
                encoding,
                source,
                offset: info.offset,
                len: info.len,
            });
        }
        let rotation = match (chunked, &config.prism_hadamard) {
            (false, None) => None,
            (true, Some(mark)) => {
                check_folded(&config_path, &mark.folded, &opened)?;
                let mut signs = BTreeMap::new();
                if mark.og_signs.iter().any(|s| *s != 1) {
                    signs.insert(config.q_width(), mark.og_signs.clone());
                    refuse_shared_signs(&config_path, &config)?;
                }
                Some(Rotation { block: mark.block_size, signs })
            }
            (true, None) => {
                return Err(Error::Key {
                    path: config_path,
                    key: "prism_hadamard".into(),
                    expected: "the rotation of the ternary matrices".into(),
                    found: "nothing".into(),
                    hint: Some("give the config.json that was written with the q4nx file".into()),
                });
            }
            (false, Some(_)) => {
                return Err(Error::Key {
                    path: config_path,
                    key: "prism_hadamard".into(),
                    expected: "no rotation, since all matrices are float".into(),
                    found: "a rotation".into(),
                    hint: Some("give the config.json of the float drafter".into()),
                });
            }
        };
        Ok(Self {
            path: path.to_path_buf(),
            container: if chunked { Container::Q4nx } else { Container::Safetensors },
            config,
            config_path: Some(config_path),
            codebooks,
            rotation,
            tensors: opened,
            files: checkpoint.files().iter().map(|f| f.source().clone()).collect(),
            notes,
        })
    }

    fn open_gguf(path: &Path, file: &gguf::File) -> Result<Self, Error> {
        let config = Config::from_gguf(file)?;
        let rotation = Hadamard::from_gguf(file, &config)?;
        let Resolved { codebooks, tensors, notes } =
            names::resolve_gguf(path, &config, file.tensors().iter().map(|t| t.name.as_str()))?;
        let mut opened = Vec::with_capacity(tensors.len());
        for (spec, stored_name) in tensors {
            // `resolve_gguf` was given exactly these names.
            let Some(info) = file.tensor(&stored_name) else { continue };
            let mut shape = info.dims.clone();
            shape.reverse();
            check_shape(path, &spec, &shape)?;
            let encoding = gguf_encoding(path, &spec, info)?;
            if let Some(rotation) = &rotation
                && spec.role.is_matrix()
                && !rotation.weight_names.contains(&stored_name)
            {
                return Err(Error::Key {
                    path: path.to_path_buf(),
                    key: "prism.hadamard.weight_names".into(),
                    expected: "all matrices of the drafter".into(),
                    found: format!("a list without `{stored_name}`"),
                    hint: None,
                });
            }
            opened.push(Tensor {
                spec,
                stored_name,
                encoding,
                source: file.source().clone(),
                offset: info.offset,
                len: info.len,
            });
        }
        Ok(Self {
            path: path.to_path_buf(),
            container: Container::Gguf,
            config,
            config_path: None,
            codebooks,
            rotation: rotation.map(|h| Rotation { block: h.block_size, signs: h.signs }),
            tensors: opened,
            files: vec![file.source().clone()],
            notes,
        })
    }
}

/// Whether the file starts as a GGUF does.
fn is_gguf(source: &Source) -> Result<bool, Error> {
    if source.len() < 4 {
        return Ok(false);
    }
    let mut magic = [0; 4];
    source.read_exact_at(0, &mut magic)?;
    Ok(&magic == b"GGUF")
}

fn find_config(path: &Path, checkpoint: &Checkpoint) -> Result<PathBuf, Error> {
    let candidates = if path.is_dir() {
        vec![checkpoint.dir().join("config.json")]
    } else {
        config_candidates(path).to_vec()
    };
    candidates.iter().find(|p| p.exists()).cloned().ok_or_else(|| Error::Structure {
        path: path.to_path_buf(),
        part: "the configuration".into(),
        expected: format!(
            "a file {}",
            candidates
                .iter()
                .map(|p| format!("`{}`", shown_path(p)))
                .collect::<Vec<_>>()
                .join(" or ")
        ),
        found: "none of them".into(),
        hint: Some(
            "name it (ternarize: --config, --against-config; drafter: --drafter-config)".into(),
        ),
    })
}

/// Refuses a list of rotated tensors that is not the list of matrices: a matrix in
/// another basis than its reader believes drafts noise.
fn check_folded(path: &Path, folded: &[String], tensors: &[Tensor]) -> Result<(), Error> {
    let refuse = |found: String| {
        Err(Error::Key {
            path: path.to_path_buf(),
            key: "prism_hadamard.folded".into(),
            expected: "all matrices of the drafter, and nothing else".into(),
            found,
            hint: Some("give the config.json that was written with the q4nx file".into()),
        })
    };
    let matrices = || tensors.iter().filter(|t| t.spec.role.is_matrix());
    let is = |t: &Tensor, name: &String| *name == t.spec.name || *name == t.stored_name;
    if let Some(left_out) = matrices().find(|t| !folded.iter().any(|name| is(t, name))) {
        return refuse(format!("a list without `{}`", left_out.spec.name));
    }
    if let Some(other) = folded.iter().find(|name| !matrices().any(|t| is(t, name))) {
        return refuse(format!("`{}`, which is no matrix of it", shown(other)));
    }
    Ok(())
}

/// Signs of -1 on the attention output cannot be told from signs on another
/// matrix of the same input width: no file of this profile has both.
fn refuse_shared_signs(path: &Path, config: &Config) -> Result<(), Error> {
    let width = config.q_width();
    if [config.hidden_size, config.intermediate_size, config.fc_in()].contains(&width) {
        return Err(Error::Key {
            path: path.to_path_buf(),
            key: "prism_hadamard.og_signs".into(),
            expected: format!("all +1, since other matrices have {width} inputs too"),
            found: "signs of -1".into(),
            hint: None,
        });
    }
    Ok(())
}

fn float_encoding(
    source: &Source,
    spec: &TensorSpec,
    info: &safetensors::TensorInfo,
) -> Result<Encoding, Error> {
    let encoding = match info.dtype {
        Dtype::F32 => Encoding::F32,
        Dtype::F16 => Encoding::F16,
        Dtype::BF16 => Encoding::Bf16,
        other => {
            return Err(Error::Tensor {
                path: source.path().to_path_buf(),
                tensor: info.name.clone(),
                expected: "BF16, F16 or F32".into(),
                found: other.name().into(),
                hint: None,
            });
        }
    };
    check_shape(source.path(), spec, &info.shape)?;
    Ok(encoding)
}

/// A ternary matrix in 5120-byte chunks, in the 2-D or the flat form.
fn chunked_encoding(
    source: &Source,
    spec: &TensorSpec,
    info: &safetensors::TensorInfo,
) -> Result<Encoding, Error> {
    let error = |expected: String, found: String, hint: Option<&str>| Error::Tensor {
        path: source.path().to_path_buf(),
        tensor: info.name.clone(),
        expected,
        found,
        hint: hint.map(str::to_owned),
    };
    if info.dtype != Dtype::I8 {
        return Err(error(
            "exact-ternary chunks (I8), as the other matrices have".into(),
            info.dtype.name().into(),
            Some("a q4nx drafter has all its matrices in chunks; convert it again"),
        ));
    }
    let last = info.shape.last().copied().unwrap_or(0);
    let kind = q4nx::ChunkKind::from_bytes(last)
        .map_err(|why| error(q4nx::ChunkKind::READABLE.into(), why, None))?;
    if kind != q4nx::ChunkKind::Q4_1 {
        return Err(error(
            "exact-ternary chunks of 5120 bytes".into(),
            format!("chunks of {last} bytes ({kind:?}), which are not ternary"),
            None,
        ));
    }
    let (rows, cols) = (spec.shape[0] as usize, spec.shape[1] as usize);
    let two_d = q4nx::chunk_shape(rows, cols).to_vec();
    let flat = vec![two_d[0] * two_d[1], two_d[2]];
    let fits = rows.is_multiple_of(q4nx::ROW_BLOCK) && cols.is_multiple_of(q4nx::COL_BLOCK);
    if !fits || (info.shape != two_d && info.shape != flat) {
        return Err(error(
            format!("shape {two_d:?} or {flat:?} for the [out, in] = [{rows}, {cols}] matrix"),
            format!("{:?}", info.shape),
            None,
        ));
    }
    Ok(Encoding::Q4nx)
}

fn gguf_encoding(
    path: &Path,
    spec: &TensorSpec,
    info: &gguf::TensorInfo,
) -> Result<Encoding, Error> {
    use gguf::GgmlType as T;
    let encoding = match info.ty {
        T::F32 => Encoding::F32,
        T::F16 => Encoding::F16,
        T::BF16 => Encoding::Bf16,
        T::PQ2_0 => Encoding::Pq2_0,
        T::PTQ1_0 => Encoding::Ptq1_0,
        other => {
            return Err(Error::Tensor {
                path: path.to_path_buf(),
                tensor: info.name.clone(),
                expected: "PQ2_0 or PTQ1_0 for a matrix, F32, F16 or BF16 for the rest".into(),
                found: other.name().into(),
                hint: None,
            });
        }
    };
    if encoding.is_ternary() != spec.role.is_matrix() {
        return Err(Error::Tensor {
            path: path.to_path_buf(),
            tensor: info.name.clone(),
            expected: if spec.role.is_matrix() { "PQ2_0 or PTQ1_0" } else { "F32, F16 or BF16" }
                .into(),
            found: encoding.name().into(),
            hint: None,
        });
    }
    Ok(encoding)
}
