//! A float drafter in memory, to be changed in one place and written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use formats::Source;
use formats::dflash2::config::Config;
use formats::dflash2::names::{Codebooks, TensorSpec, specs};
use formats::safetensors::{Dtype, File, NewTensor, layout};
use half::{bf16, f16};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use serde_json::{Value, json};

/// The bytes of one tensor.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Stored {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<u64>,
    pub(crate) bytes: Vec<u8>,
}

/// Configuration and tensors by name.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) config: Value,
    pub(crate) tensors: BTreeMap<String, Stored>,
}

/// The tiny drafter's configuration with one layer and one tap: 0.4 million
/// weights, all inputs 256 wide.
pub(crate) fn mini_config() -> Value {
    let mut config = xtask::fixture::tiny_config();
    for (key, value) in [
        ("num_hidden_layers", json!(1)),
        ("layer_types", json!(["sliding_attention"])),
        ("intermediate_size", json!(256)),
        ("vocab_size", json!(64)),
        ("eos_token_id", json!(2)),
        ("pad_token_id", json!(2)),
    ] {
        config[key] = value;
    }
    config["dflash_config"]["target_layer_ids"] = json!([2]);
    config["dflash_config"]["selector_rank"] = json!(32);
    config["dflash_config"]["mask_token_id"] = json!(3);
    config
}

/// `[out, in]` of a matrix.
pub(crate) fn dims(spec: &TensorSpec) -> [usize; 2] {
    [spec.shape[0], spec.shape[1]].map(|n| usize::try_from(n).unwrap())
}

impl Stored {
    pub(crate) fn new(dtype: Dtype, shape: &[u64], values: &[f32]) -> Self {
        assert_eq!(shape.iter().product::<u64>(), values.len() as u64);
        let bytes = match dtype {
            Dtype::BF16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
            Dtype::F16 => values.iter().flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
            Dtype::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            other => panic!("no drafter is stored in {other}"),
        };
        Self { dtype, shape: shape.to_vec(), bytes }
    }

    pub(crate) fn values(&self) -> Vec<f32> {
        match self.dtype {
            Dtype::BF16 => self.halves().map(|bits| bf16::from_bits(bits).to_f32()).collect(),
            Dtype::F16 => self.halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
            Dtype::F32 => {
                self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
            }
            other => panic!("no drafter is stored in {other}"),
        }
    }

    /// Changes the values, and stores them in `dtype`.
    pub(crate) fn edit(&mut self, dtype: Dtype, edit: impl FnOnce(&mut [f32])) {
        let mut values = self.values();
        edit(&mut values);
        *self = Self::new(dtype, &self.shape, &values);
    }

    fn halves(&self) -> impl Iterator<Item = u16> {
        self.bytes.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes))
    }
}

impl Model {
    /// The tiny drafter that comes with the tests.
    pub(crate) fn fixture() -> Self {
        let dir = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/tiny-drafter"));
        let config = serde_json::from_slice(&fs::read(dir.join("config.json")).unwrap()).unwrap();
        Self { config, tensors: read(&dir.join("model.safetensors")) }
    }

    /// A drafter of these dimensions, each tensor's values from `values`.
    pub(crate) fn new(
        config: Value,
        dtype: Dtype,
        mut values: impl FnMut(&TensorSpec) -> Vec<f32>,
    ) -> Self {
        let parsed = Config::parse(Path::new("config.json"), config.to_string().as_bytes());
        let tensors = specs(&parsed.unwrap(), Codebooks::Bare)
            .into_iter()
            .map(|spec| {
                let stored = Stored::new(dtype, &spec.shape, &values(&spec));
                (spec.name, stored)
            })
            .collect();
        Self { config, tensors }
    }

    /// A drafter of these dimensions with uniform noise in [-1, 1).
    pub(crate) fn noise(config: Value, dtype: Dtype, seed: u64) -> Self {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        Self::new(config, dtype, |spec| {
            (0..spec.parameters())
                .map(|_| rng.next_u32().cast_signed() as f32 / 2f32.powi(31))
                .collect()
        })
    }

    /// The configuration, edited.
    pub(crate) fn with_config(mut self, edit: impl FnOnce(&mut Value)) -> Self {
        edit(&mut self.config);
        self
    }

    /// With `name` edited.
    pub(crate) fn with(mut self, name: &str, edit: impl FnOnce(&mut Stored)) -> Self {
        edit(self.tensors.get_mut(name).unwrap());
        self
    }

    /// With every name replaced by what `rename` makes of it.
    pub(crate) fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        self.tensors =
            self.tensors.into_iter().map(|(name, stored)| (rename(&name), stored)).collect();
        self
    }

    /// Without the tensors whose names `drop` accepts.
    pub(crate) fn without(mut self, drop: impl Fn(&str) -> bool) -> Self {
        self.tensors.retain(|name, _| !drop(name));
        self
    }

    /// Writes `config.json` and `model.safetensors` to a folder, made if need be.
    pub(crate) fn write(&self, dir: &Path) -> PathBuf {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("config.json"), format!("{:#}\n", self.config)).unwrap();
        let path = dir.join("model.safetensors");
        write(&path, self.tensors.iter());
        path
    }

    /// Writes `config.json`, two shards, each with every other tensor, and their
    /// index. Returns the names of the shards.
    pub(crate) fn write_shards(&self, dir: &Path) -> [&'static str; 2] {
        let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("config.json"), format!("{:#}\n", self.config)).unwrap();
        let mut map = serde_json::Map::new();
        for (i, shard) in shards.iter().enumerate() {
            let tensors = || self.tensors.iter().skip(i).step_by(2);
            write(&dir.join(shard), tensors());
            map.extend(tensors().map(|(name, _)| (name.clone(), json!(shard))));
        }
        let total: usize = self.tensors.values().map(|t| t.bytes.len()).sum();
        let index = json!({ "metadata": { "total_size": total }, "weight_map": map });
        fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
        shards
    }
}

fn write<'a>(path: &Path, tensors: impl Iterator<Item = (&'a String, &'a Stored)> + Clone) {
    let planned = layout(
        tensors
            .clone()
            .map(|(name, t)| NewTensor {
                name: name.clone(),
                dtype: t.dtype,
                shape: t.shape.clone(),
            })
            .collect(),
        &BTreeMap::new(),
    );
    let by_name: BTreeMap<&String, &Stored> = tensors.collect();
    let mut bytes = planned.header;
    for tensor in &planned.tensors {
        bytes.extend(&by_name[&tensor.name].bytes);
    }
    fs::write(path, bytes).unwrap();
}

/// The tensors of a safetensors file.
pub(crate) fn read(path: &Path) -> BTreeMap<String, Stored> {
    let file = File::open(Source::open(path).unwrap()).unwrap();
    let stored = |t: &formats::safetensors::TensorInfo| Stored {
        dtype: t.dtype,
        shape: t.shape.clone(),
        bytes: file.source().read_vec(t.offset, t.len).unwrap(),
    };
    file.tensors().iter().map(|t| (t.name.clone(), stored(t))).collect()
}
