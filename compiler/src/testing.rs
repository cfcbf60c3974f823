//! A tiny drafter of random weights on disk, for tests.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use formats::dflash2::config::Config;
use formats::dflash2::names::{Codebooks, specs};
use formats::safetensors::{Dtype, NewTensor, layout};
use half::bf16;
use rand::{Rng, SeedableRng};
use serde_json::Value;

const PUBLISHED: &[u8] = include_bytes!("../../tests/fixtures/published-drafter/config.json");

/// The published configuration cut down to one layer of width 256, after `edit`.
pub(crate) fn config_json(edit: impl FnOnce(&mut Value)) -> Value {
    let mut json: Value = serde_json::from_slice(PUBLISHED).unwrap();
    json["num_hidden_layers"] = 1.into();
    json["layer_types"] = vec!["sliding_attention"].into();
    json["hidden_size"] = 256.into();
    json["intermediate_size"] = 512.into();
    json["num_attention_heads"] = 4.into();
    json["num_key_value_heads"] = 2.into();
    json["head_dim"] = 64.into();
    json["vocab_size"] = 96.into();
    json["dflash_config"]["mask_token_id"] = 95.into();
    json["dflash_config"]["selector_rank"] = 32.into();
    json["dflash_config"]["target_layer_ids"] = vec![5, 19].into();
    edit(&mut json);
    json
}

/// The configuration of [`config_json`], checked.
pub(crate) fn config(edit: impl FnOnce(&mut Value)) -> Config {
    Config::parse(Path::new("config.json"), config_json(edit).to_string().as_bytes()).unwrap()
}

/// Writes `model.safetensors` (BF16) and `config.json` into `dir`, which is made.
/// The same seed gives the same bytes. One group of `fc` is all zero.
pub(crate) fn write_drafter(dir: &Path, seed: u64, edit: impl FnOnce(&mut Value)) -> PathBuf {
    std::fs::create_dir_all(dir).unwrap();
    let json = config_json(edit).to_string();
    std::fs::write(dir.join("config.json"), &json).unwrap();
    let config = Config::parse(Path::new("config.json"), json.as_bytes()).unwrap();
    let layout = layout(
        specs(&config, Codebooks::Bare)
            .into_iter()
            .map(|spec| NewTensor { name: spec.name, dtype: Dtype::BF16, shape: spec.shape })
            .collect(),
        &BTreeMap::from([("format".into(), "pt".into())]),
    );
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut uniform = || f64::from(rng.next_u32()) / f64::from(u32::MAX) - 0.5;
    let mut bytes = layout.header;
    for tensor in &layout.tensors {
        let is_fc = tensor.name == "fc.weight";
        for i in 0..tensor.len / 2 {
            // Sums of uniforms are near enough to Gaussian.
            let weight: f64 = 0.05 * (0..6).map(|_| uniform()).sum::<f64>();
            let zero = is_fc && i < 256;
            bytes.extend(bf16::from_f64(if zero { 0.0 } else { weight }).to_le_bytes());
        }
    }
    let path = dir.join("model.safetensors");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Numbers spread evenly over -0.5 to 0.5.
pub(crate) fn uniform(seed: u64) -> impl FnMut() -> f64 {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    move || f64::from(rng.next_u32()) / f64::from(u32::MAX) - 0.5
}
