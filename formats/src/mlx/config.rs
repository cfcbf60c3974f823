//! The `config.json` of a PrismML pack: which modules are packed, and how their
//! input is rotated.
//!
//! ```text
//!  model_type    "prism_hadamard_qwen35"     schema_version  1 or 2
//!  quantization  { bits: 2, group_size: 128, mode: "affine" }
//!  modules       [ { path, dtype: "float16", block: 1024, embedding: false }, … ]
//!  components    { vision: true }            text tensors then start with
//!                                            "language_model."
//! ```

use std::collections::HashSet;
use std::path::Path;

use serde_json::Value;

use super::ScaleType;
use super::object::{self, Object, describe};
use crate::{Error, GROUP};

/// What a pack's `config.json` says about its packed tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackConfig {
    /// The packed modules, in the file's order, with unique paths.
    pub modules: Vec<PackModule>,
    /// Whether the pack has a vision part.
    pub vision: bool,
}

/// One packed module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PackModule {
    /// The module's name in the model; the tensors are `<path>.weight`, `.scales`
    /// and `.biases`, after [`PackConfig::prefix`].
    pub path: String,
    /// The type that `dtype` names for scales and biases.
    pub dtype: ScaleType,
    /// Width of the Hadamard blocks of the input; 0 when it is not rotated.
    pub block: usize,
    /// Whether the module is the embedding, whose rows are looked up.
    pub embedding: bool,
}

/// `model_type` of the packs that are read.
pub const MODEL_TYPE: &str = "prism_hadamard_qwen35";
const BASE_MODEL_TYPE: &str = "qwen3_5";
const BLOCKS: [u64; 5] = [0, 512, 1024, 2048, 4096];

impl PackConfig {
    /// Reads the text of a `config.json`; `path` stands in messages.
    ///
    /// # Errors
    /// [`Error::Structure`] when it is not a JSON object, [`Error::Key`] when a
    /// key is missing or has a value that a pack does not have.
    pub fn parse(path: impl AsRef<Path>, json: &[u8]) -> Result<Self, Error> {
        let path = path.as_ref();
        let root = object::parse(path, json)?;
        Self::from_root(&Object::root(path, &root))
    }

    pub(super) fn from_root(root: &Object<'_>) -> Result<Self, Error> {
        root.exactly("model_type", MODEL_TYPE)?;
        if root.map.contains_key("base_model_type") {
            root.exactly("base_model_type", BASE_MODEL_TYPE)?;
        }
        if root.map.contains_key("schema_version") {
            root.one_of("schema_version", &[1, 2])?;
        }
        let quantization = root.object("quantization")?;
        quantization.one_of("bits", &[2])?;
        quantization.one_of("group_size", &[GROUP as u64])?;
        if quantization.map.contains_key("mode") {
            quantization.exactly("mode", "affine")?;
        }
        let vision = match root.map.get("components") {
            None => false,
            Some(_) => truthy(root.object("components")?.map.get("vision")),
        };
        Ok(Self { modules: root.modules()?, vision })
    }

    /// What the names of the text model's tensors start with.
    #[must_use]
    pub fn prefix(&self) -> &'static str {
        if self.vision { "language_model." } else { "" }
    }
}

/// Python's truth of a JSON value, which is what the packs' own reader asks.
fn truthy(value: Option<&Value>) -> bool {
    match value {
        None | Some(Value::Null) => false,
        Some(Value::Bool(b)) => *b,
        Some(Value::Number(n)) => n.as_f64() != Some(0.0),
        Some(Value::String(s)) => !s.is_empty(),
        Some(Value::Array(a)) => !a.is_empty(),
        Some(Value::Object(o)) => !o.is_empty(),
    }
}

impl Object<'_> {
    fn modules(&self) -> Result<Vec<PackModule>, Error> {
        let Some(Value::Array(list)) = self.map.get("modules") else {
            return Err(self.wrong("modules", "a list of packed modules"));
        };
        let mut seen = HashSet::new();
        let mut modules = Vec::with_capacity(list.len());
        for (i, entry) in list.iter().enumerate() {
            let key = format!("modules[{i}]");
            let Value::Object(map) = entry else {
                return Err(Error::Key {
                    path: self.path.to_path_buf(),
                    key,
                    expected: "an object".into(),
                    found: describe(entry),
                    hint: None,
                });
            };
            let entry = Object { path: self.path, key, map };
            let module = entry.module()?;
            if !seen.insert(module.path.clone()) {
                return Err(entry.wrong("path", "a path that no other module has"));
            }
            modules.push(module);
        }
        Ok(modules)
    }

    fn module(&self) -> Result<PackModule, Error> {
        let path = match self.map.get("path").and_then(Value::as_str) {
            Some(path) if !path.is_empty() => path.to_owned(),
            _ => return Err(self.wrong("path", "the module's name")),
        };
        let dtype = match self.map.get("dtype").and_then(Value::as_str) {
            Some("float16") => ScaleType::F16,
            Some("bfloat16") => ScaleType::Bf16,
            _ => return Err(self.wrong("dtype", "\"float16\" or \"bfloat16\"")),
        };
        let embedding = self
            .map
            .get("embedding")
            .and_then(Value::as_bool)
            .ok_or_else(|| self.wrong("embedding", "true or false"))?;
        Ok(PackModule { path, dtype, block: self.one_of("block", &BLOCKS)? as usize, embedding })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn config() -> Value {
        json!({
            "schema_version": 2,
            "model_type": "prism_hadamard_qwen35",
            "base_model_type": "qwen3_5",
            "quantization": {"bits": 2, "group_size": 128, "mode": "affine"},
            "components": {"vision": true},
            "modules": [
                {"path": "model.embed_tokens", "dtype": "float16", "block": 1024, "embedding": true},
                {"path": "lm_head", "dtype": "float16", "block": 0, "embedding": false}
            ],
            "text_config": {"hidden_size": 5120}
        })
    }

    fn parse(value: &Value) -> Result<PackConfig, Error> {
        PackConfig::parse("config.json", value.to_string().as_bytes())
    }

    #[test]
    fn modules_and_prefix() {
        let pack = parse(&config()).unwrap();
        assert_eq!(pack.prefix(), "language_model.");
        let [embed, head] = &pack.modules[..] else { panic!("{pack:?}") };
        assert_eq!(
            *embed,
            PackModule {
                path: "model.embed_tokens".into(),
                dtype: ScaleType::F16,
                block: 1024,
                embedding: true
            }
        );
        assert_eq!((head.block, head.embedding), (0, false));
        for falsy in [json!(false), json!(null), json!({}), json!(0)] {
            let mut config = config();
            config["components"]["vision"] = falsy;
            assert_eq!(parse(&config).unwrap().prefix(), "");
        }
    }

    #[test]
    fn what_is_optional() {
        let mut config = config();
        let root = config.as_object_mut().unwrap();
        for key in ["schema_version", "base_model_type", "components", "text_config"] {
            root.remove(key);
        }
        root["quantization"].as_object_mut().unwrap().remove("mode");
        assert!(!parse(&config).unwrap().vision);
    }

    #[test]
    fn wrong_values_are_named_by_key() {
        for (pointer, value, key) in [
            ("/model_type", json!("qwen3_5"), "model_type"),
            ("/base_model_type", json!(3), "base_model_type"),
            ("/schema_version", json!(3), "schema_version"),
            ("/quantization", json!([]), "quantization"),
            ("/quantization/bits", json!(4), "quantization.bits"),
            ("/quantization/group_size", json!(64), "quantization.group_size"),
            ("/quantization/mode", json!("mxfp4"), "quantization.mode"),
            ("/components", json!(1), "components"),
            ("/modules", json!({}), "modules"),
            ("/modules/1", json!("x"), "modules[1]"),
            ("/modules/1/path", json!(""), "modules[1].path"),
            ("/modules/1/path", json!("model.embed_tokens"), "modules[1].path"),
            ("/modules/1/dtype", json!("int8"), "modules[1].dtype"),
            ("/modules/1/block", json!(1000), "modules[1].block"),
            ("/modules/1/block", json!(-1), "modules[1].block"),
            ("/modules/1/embedding", json!("no"), "modules[1].embedding"),
        ] {
            let mut config = config();
            *config.pointer_mut(pointer).unwrap() = value;
            match parse(&config) {
                Err(Error::Key { key: named, .. }) => assert_eq!(named, key),
                other => panic!("{pointer}: {other:?}"),
            }
        }
    }

    #[test]
    fn missing_keys_are_found_nothing() {
        for key in ["model_type", "quantization", "modules"] {
            let mut config = config();
            config.as_object_mut().unwrap().remove(key);
            let message = parse(&config).unwrap_err().to_string();
            assert!(message.contains(key) && message.contains("found nothing"), "{message}");
        }
        for text in ["", "[]", "{", "null", "\u{0}"] {
            let error = PackConfig::parse("config.json", text.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::Structure { .. }), "{error}");
        }
        let deep = "[".repeat(100_000);
        assert!(PackConfig::parse("config.json", deep.as_bytes()).is_err());
    }
}
