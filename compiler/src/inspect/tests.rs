use std::fs;

use formats::gguf::{Array, GgmlType};
use formats::safetensors::{self, NewTensor, layout};
use hadamard::Isa;
use serde_json::json;

use super::*;
use crate::observer::Unobserved;
use crate::output::{Format, Request};
use crate::plan::{Options, Plan, Ternarize};
use crate::ternary::Rule;
use crate::testing::{config_json, write_drafter};

/// Writes a safetensors file of zeros.
fn write_zeros(path: &Path, tensors: &[(&str, Dtype, &[u64])]) {
    let tensors = tensors.iter().map(|(name, dtype, shape)| NewTensor {
        name: (*name).to_owned(),
        dtype: *dtype,
        shape: shape.to_vec(),
    });
    let layout: safetensors::Layout =
        layout(tensors.collect(), &BTreeMap::from([("format".into(), "mlx".into())]));
    let mut bytes = layout.header;
    bytes.resize(layout.file_len as usize, 0);
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_drafter_is_told_in_every_container() {
    let dir = tempfile::tempdir().unwrap();
    let float = write_drafter(&dir.path().join("float"), 1, |_| {});
    let drafter = Drafter::open(&float, None).unwrap();
    let request = |name: &str, format| Request { path: dir.path().join(name), format };
    let options = Options {
        outputs: vec![request("m.q4nx", Format::Q4nx), request("m.gguf", Format::Ptq1_0)],
        ternarize: Some(Ternarize { rule: Rule::Optimal, block: 256 }),
        calibration: None,
        codebooks: None,
        tokenizer: Vec::new(),
        round_scales: false,
        other_inputs: Vec::new(),
        report: None,
        force: false,
        isa: Isa::detect(),
        threads: 1,
    };
    Plan::new(&drafter, options).unwrap().run(&Unobserved).unwrap();
    for (path, form) in [
        (
            float.parent().unwrap().to_path_buf(),
            "float, safetensors with BF16 matrices, not rotated",
        ),
        (dir.path().join("m.q4nx"), "ternary, q4nx exact-ternary profile, rotation block 256"),
        (dir.path().join("m.gguf"), "ternary, GGUF with PTQ1_0 matrices, rotation block 256"),
    ] {
        let found = inspect(&path, None).unwrap();
        assert_eq!(found.kind, Kind::Drafter, "{:?}", found.notes);
        assert_eq!(found.what, format!("DFlash 2 drafter, {form}"));
        assert_eq!(found.tensors.len(), 21);
        assert_eq!(found.notes, Vec::<String>::new());
        let config = found.config.as_ref().unwrap();
        assert_eq!((&config["block_size"], &config["drafts"]), (&json!(8), &json!(7)));
        assert_eq!(config["target_layer_ids"], json!([5, 19]));
        assert_eq!(config["rms_norm_eps"], json!(1e-6));
        let end = found.tensors.iter().map(|t| t.offset_bytes + t.size_bytes).max().unwrap();
        assert!(end <= found.files[0].size_bytes && end + 32 > found.files[0].size_bytes);
        let sum: u64 = found.totals.iter().map(|t| t.size_bytes).sum();
        assert_eq!(sum, found.tensors.iter().map(|t| t.size_bytes).sum::<u64>());
        match found.rotation {
            None => assert!(form.starts_with("float")),
            Some(rotation) => {
                assert_eq!(rotation.block, 256);
                let signs = |width| Signs { width, negative: 0 };
                assert_eq!(rotation.widths, [signs(256), signs(512)]);
            }
        }
        if form.contains("GGUF") {
            assert_eq!(found.lineage["rule"], "optimal");
            assert_eq!(found.lineage["input_sha256"].len(), 64);
            let name = found.tensors[0].published_name.clone();
            assert_eq!((found.tensors[0].name.as_str(), name), ("fc.weight", None));
            assert!(found.tensors[1].published_name.as_deref() == Some("hidden_norm.weight"));
        }
    }

    // Its configuration is lost: a list with the reason.
    fs::remove_file(dir.path().join("config.json")).unwrap();
    let found = inspect(&dir.path().join("m.q4nx"), None).unwrap();
    assert_eq!(found.kind, Kind::Safetensors);
    assert_eq!(found.what, "q4nx (safetensors with chunked matrices), 21 tensors in 1 file");
    assert!(found.notes[0].contains("not a drafter") && found.notes[0].contains("config.json"));
    assert!(found.totals.iter().any(|t| t.encoding == "I8 (Q4_1 chunks)" && t.tensors == 11));
}

#[test]
fn a_configuration_alone_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("drafter.json");
    fs::write(&path, config_json(|_| {}).to_string()).unwrap();
    let found = inspect(&path, None).unwrap();
    assert_eq!(found.kind, Kind::DrafterConfig);
    assert_eq!(found.what, "DFlash 2 drafter configuration of a float drafter");
    assert_eq!(found.config.unwrap()["hidden_size"], json!(256));
    // In a folder, with weights that are not looked for there.
    fs::rename(&path, dir.path().join("config.json")).unwrap();
    fs::write(dir.path().join("model.q4nx"), "").unwrap();
    let found = inspect(dir.path(), None).unwrap();
    assert_eq!(found.notes, ["`model.q4nx` in this folder is not looked at: name the file itself"]);
    fs::write(&path, "{}").unwrap();
    assert!(inspect(&path, None).is_err());
    fs::write(&path, "[").unwrap();
    assert!(inspect(&path, None).is_err());
}

#[test]
fn a_target_gguf_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("target.gguf");
    let metadata = [
        ("general.architecture".into(), gguf::Value::String("qwen35".into())),
        (
            "tokenizer.ggml.tokens".into(),
            gguf::Value::Array(Array::String(vec!["\u{1b}[31m".into(); 1000])),
        ),
    ];
    let tensor = gguf::NewTensor {
        name: "blk.0.ffn_up.weight".into(),
        dims: vec![256, 64],
        ty: GgmlType::PQ2_0,
    };
    let layout = gguf::layout(&metadata, vec![tensor]).unwrap();
    let mut bytes = layout.header;
    bytes.resize(layout.file_len as usize, 0);
    fs::write(&path, &bytes).unwrap();
    let found = inspect(&path, None).unwrap();
    assert_eq!(found.kind, Kind::Gguf);
    assert_eq!(found.what, "GGUF version 3, architecture `qwen35`, 1 tensors");
    assert!(found.notes[0].contains("`qwen35`"), "{:?}", found.notes);
    assert_eq!(found.metadata[1].text(), "array of 1000 strings");
    assert_eq!(
        (found.tensors[0].shape.as_slice(), found.tensors[0].size_bytes),
        (&[64, 256][..], 4352)
    );
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!((&json["schema"], &json["kind"]), (&json!(1), &json!("gguf")));
    assert_eq!(
        json["metadata"][1],
        json!({
            "key": "tokenizer.ggml.tokens", "type": "string", "length": 1000
        })
    );

    bytes.truncate(bytes.len() - 4096);
    fs::write(&path, &bytes).unwrap();
    assert!(matches!(inspect(&path, None), Err(Error::Truncated { .. })));
}

#[test]
fn up_104_half_a_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let float = write_drafter(dir.path(), 1, |_| {});
    let bytes = fs::read(&float).unwrap();
    fs::write(&float, &bytes[..bytes.len() / 2]).unwrap();
    let error = inspect(&float, None).unwrap_err();
    assert!(matches!(error, Error::Truncated { .. }), "{error}");
    assert!(inspect(dir.path(), None).is_err());
    assert!(inspect(&dir.path().join("absent"), None).is_err());
}

#[test]
fn any_safetensors_file_is_listed() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors");
    write_zeros(&path, &[("a", Dtype::F32, &[2, 3]), ("b", Dtype::I8, &[1, 1, 8704])]);
    let found = inspect(&path, None).unwrap();
    assert_eq!(found.kind, Kind::Safetensors);
    assert_eq!(found.metadata[0].text(), "mlx");
    let encodings: Vec<&str> = found.tensors.iter().map(|t| &*t.encoding).collect();
    assert_eq!(encodings, ["F32", "I8 (Q8 chunks)"]);
}

#[test]
fn an_mlx_pack_is_listed_with_its_modules() {
    let dir = tempfile::tempdir().unwrap();
    let module = |path: &str, block: u64| json!({"path": path, "dtype": "float16", "block": block, "embedding": false});
    let config = json!({
        "model_type": mlx::MODEL_TYPE,
        "quantization": {"bits": 2, "group_size": 128},
        "modules": [module("model.layers.0.mlp.up_proj", 1024), module("lm_head", 0)],
    });
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    let up = "model.layers.0.mlp.up_proj";
    write_zeros(
        &dir.path().join("model.safetensors"),
        &[
            (&format!("{up}.weight"), Dtype::U32, &[8, 64]),
            (&format!("{up}.scales"), Dtype::F16, &[8, 8]),
            (&format!("{up}.biases"), Dtype::F16, &[8, 8]),
            ("lm_head.weight", Dtype::U32, &[4, 8]),
            ("lm_head.scales", Dtype::F16, &[4, 1]),
        ],
    );
    let found = inspect(dir.path(), None).unwrap();
    assert_eq!(found.kind, Kind::MlxPack);
    assert_eq!(
        found.what,
        "MLX 2-bit pack `prism_hadamard_qwen35`, 2 modules, rotation block 1024"
    );
    assert_eq!(found.modules[0].shape, Some([8, 1024]));
    assert_eq!(found.notes, ["`lm_head.biases` is missing"]);
    assert_eq!(found.tensors.len(), 5);
    let found = inspect(&dir.path().join("config.json"), None).unwrap();
    assert_eq!((found.kind, found.modules.len()), (Kind::MlxPack, 2));
}
