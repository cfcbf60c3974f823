//! What holds for any safetensors or GGUF file: what the writers plan, the
//! readers read back; damaged bytes are refused or describe tensors inside the
//! file; and opening takes no more memory than the file justifies. For
//! safetensors the reference library is the oracle.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::collections::{BTreeMap, HashMap};

use formats::gguf::{self, Array, GgmlType, Value};
use formats::safetensors::{self as st, Dtype};
use formats::{Error, Source};
use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use safetensors::tensor::TensorView;

fn open_st(bytes: Vec<u8>) -> Result<st::File, Box<Error>> {
    st::File::open(Source::from_bytes("x.safetensors", bytes)).map_err(Box::new)
}

fn open_gguf(bytes: Vec<u8>) -> Result<gguf::File, Box<Error>> {
    gguf::File::open(Source::from_bytes("x.gguf", bytes)).map_err(Box::new)
}

fn theirs(dtype: Dtype) -> safetensors::Dtype {
    serde_json::from_value(dtype.name().into()).unwrap()
}

// safetensors

fn st_tensors() -> impl Strategy<Value = Vec<st::NewTensor>> {
    let dtypes: Vec<_> = Dtype::all().collect();
    let shape = vec(0_u64..5, 0..4).prop_map(|mut shape| {
        // The sub-byte types need a whole number of bytes.
        shape.push(8);
        shape
    });
    btree_map(any::<String>(), (proptest::sample::select(dtypes), shape), 0..8).prop_map(|map| {
        map.into_iter()
            .map(|(name, (dtype, shape))| st::NewTensor {
                name: name.replace('\0', "0"),
                dtype,
                shape,
            })
            .collect()
    })
}

fn unique(tensors: &[st::NewTensor]) -> bool {
    let names: std::collections::HashSet<_> = tensors.iter().map(|t| &t.name).collect();
    names.len() == tensors.len()
}

/// The bytes of a planned file; each tensor is filled with its position.
fn st_bytes(layout: &st::Layout) -> Vec<u8> {
    let mut out = layout.header.clone();
    out.resize(layout.file_len as usize, 0);
    for (i, t) in layout.tensors.iter().enumerate() {
        out[t.offset as usize..(t.offset + t.len) as usize].fill(i as u8);
    }
    out
}

/// The bytes the reference library writes for the same tensors.
fn st_oracle(layout: &st::Layout, metadata: &BTreeMap<String, String>) -> Vec<u8> {
    let bytes = st_bytes(layout);
    let views = layout.tensors.iter().map(|t| {
        let shape = t.shape.iter().map(|d| *d as usize).collect();
        let data = &bytes[t.offset as usize..(t.offset + t.len) as usize];
        (t.name.clone(), TensorView::new(theirs(t.dtype), shape, data).unwrap())
    });
    // Their order must not decide ours.
    let views: HashMap<_, _> = views.collect();
    let metadata: HashMap<_, _> = metadata.clone().into_iter().collect();
    safetensors::serialize(views, (!metadata.is_empty()).then_some(metadata)).unwrap()
}

proptest! {
    #[test]
    fn st_layout_is_that_of_the_reference_library(
        tensors in st_tensors().prop_filter("unique", |t| unique(t)),
        metadata in btree_map(any::<String>(), any::<String>(), 0..2),
    ) {
        let layout = st::layout(tensors, &metadata);
        prop_assert_eq!(st_bytes(&layout), st_oracle(&layout, &metadata));
    }

    #[test]
    fn st_layout_reads_back(
        tensors in st_tensors().prop_filter("unique", |t| unique(t)),
        metadata in btree_map(any::<String>(), any::<String>(), 0..5),
    ) {
        let layout = st::layout(tensors, &metadata);
        prop_assert_eq!(layout.header.len() % 8, 0);
        let file = open_st(st_bytes(&layout)).unwrap();
        prop_assert_eq!(file.metadata(), &metadata);
        prop_assert_eq!(file.data_start(), layout.header.len() as u64);
        for tensor in &layout.tensors {
            prop_assert_eq!(file.get(&tensor.name), Some(tensor));
        }
        prop_assert_eq!(file.tensors().len(), layout.tensors.len());
    }

    #[test]
    fn st_arbitrary_bytes_are_refused_or_sound(
        len in 0_u64..200,
        json in prop_oneof![
            vec(any::<u8>(), 0..200),
            "[{}\\[\\]\",:0-9a-z_\\\\ ]{0,120}".prop_map(String::into_bytes),
        ],
    ) {
        check_st(&[&len.to_le_bytes()[..], &json].concat());
    }

    #[test]
    fn gguf_layout_reads_back(
        metadata in btree_map("[a-z.]{1,12}", value(), 0..6),
        tensors in gguf_tensors(),
    ) {
        let metadata: Vec<_> = metadata.into_iter().collect();
        let layout = gguf::layout(&metadata, tensors).unwrap();
        let mut bytes = layout.header.clone();
        bytes.resize(layout.file_len as usize, 0);
        prop_assert_eq!(bytes.len() % 32, 0);
        let file = open_gguf(bytes).unwrap();
        prop_assert_eq!(file.version(), 3);
        prop_assert_eq!(file.metadata(), metadata);
        prop_assert_eq!(file.tensors(), layout.tensors);
        prop_assert_eq!(file.data_start(), layout.header.len() as u64);
    }

    #[test]
    fn gguf_arbitrary_bytes_are_refused_or_sound(
        tensors in 0_u64..3,
        keys in 0_u64..3,
        rest in vec(prop_oneof![Just(0_u8), Just(1), any::<u8>()], 0..200),
    ) {
        let head = [b"GGUF\x03\0\0\0".to_vec(), tensors.to_le_bytes().into(), keys.to_le_bytes().into()];
        check_gguf(&[head.concat(), rest].concat());
    }
}

/// A file is refused, or all of it is inside its bytes, and the library that
/// set the format sees the same.
fn check_st(bytes: &[u8]) {
    let Ok(file) = open_st(bytes.to_vec()) else {
        return;
    };
    let oracle = safetensors::SafeTensors::deserialize(bytes).unwrap();
    assert_eq!(file.tensors().len(), oracle.len());
    let mut end = file.data_start();
    for t in file.tensors() {
        assert_eq!(t.offset, end);
        end += t.len;
        let view = oracle.tensor(&t.name).unwrap();
        assert_eq!(view.dtype(), theirs(t.dtype));
        assert_eq!(file.source().read_vec(t.offset, t.len).unwrap(), view.data());
        assert_eq!(file.get(&t.name), Some(t));
    }
    assert_eq!(end, bytes.len() as u64);
}

fn check_gguf(bytes: &[u8]) {
    let Ok(file) = open_gguf(bytes.to_vec()) else {
        return;
    };
    for t in file.tensors() {
        assert!(t.offset >= file.data_start() && t.offset + t.len <= bytes.len() as u64);
        assert_eq!(file.tensor(&t.name), Some(t));
    }
    for (key, value) in file.metadata() {
        // Not equal when the value is NaN.
        assert_eq!(file.get(key).map(Value::to_string), Some(value.to_string()));
    }
}

/// Calls `check` with each byte of `bytes` before `end` replaced by each value,
/// and with each byte removed or doubled.
fn damage(bytes: &[u8], end: usize, check: impl Fn(&[u8])) {
    let mut damaged = bytes.to_vec();
    for at in 0..end {
        for byte in 0..=255 {
            damaged[at] = byte;
            check(&damaged);
        }
        damaged[at] = bytes[at];
        check(&[&bytes[..at], &bytes[at + 1..]].concat());
        check(&[&bytes[..=at], &bytes[at..]].concat());
    }
}

#[test]
fn st_damaged_files_are_refused_or_sound() {
    let tensor = |name: &str, dtype, shape: &[u64]| st::NewTensor {
        name: name.into(),
        dtype,
        shape: shape.into(),
    };
    let tensors = vec![
        tensor("a.weight", Dtype::BF16, &[2, 4]),
        tensor("b", Dtype::I8, &[]),
        tensor("c\n", Dtype::F32, &[0]),
    ];
    let layout = st::layout(tensors, &BTreeMap::from([("format".into(), "pt".into())]));
    damage(&st_bytes(&layout), layout.header.len(), check_st);
}

#[test]
fn gguf_damaged_files_are_refused_or_sound() {
    let metadata = [
        ("general.architecture", Value::String("dflash".into())),
        ("t", Value::Array(Array::String(vec!["a".into(), "bc".into()]))),
        ("n", Value::Array(Array::U32(vec![1, 2]))),
        ("b", Value::Bool(true)),
    ]
    .map(|(k, v)| (k.to_owned(), v));
    let tensor =
        |name: &str, ty, dims: &[u64]| gguf::NewTensor { name: name.into(), dims: dims.into(), ty };
    let tensors = vec![
        tensor("fc.weight", GgmlType::PQ2_0, &[256, 2]),
        tensor("norm", GgmlType::F32, &[5]),
        tensor("q", GgmlType::Q2_0, &[128, 1]),
    ];
    let layout = gguf::layout(&metadata, tensors).unwrap();
    let mut bytes = layout.header.clone();
    bytes.resize(layout.file_len as usize, 0);
    damage(&bytes, layout.header.len(), check_gguf);
    assert!(peak_memory() < 1 << 30, "opening allocated without need");
}

/// Largest address space this process has had, in bytes.
fn peak_memory() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmPeak:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn st_more_metadata_is_sorted() {
    let metadata =
        BTreeMap::from(["b", "a", "c"].map(|k| (k.to_owned(), "\"\u{1f}\u{e9}".to_owned())));
    let layout = st::layout(Vec::new(), &metadata);
    let json = String::from_utf8(layout.header[8..].to_vec()).unwrap();
    let value = r#""\"\u001fé""#;
    let expected = format!(r#"{{"__metadata__":{{"a":{value},"b":{value},"c":{value}}}}}"#);
    assert_eq!(json.trim_end_matches(' '), expected);
}

// GGUF

fn value() -> impl Strategy<Value = Value> {
    let float = any::<f32>().prop_filter("comparable", |v| !v.is_nan());
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        float.clone().prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        any::<String>().prop_map(Value::String),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        float.clone().prop_map(|v| Value::F64(v.into())),
        array(any::<u8>(), Array::U8),
        array(any::<i8>(), Array::I8),
        array(any::<u16>(), Array::U16),
        array(any::<i16>(), Array::I16),
        array(any::<u32>(), Array::U32),
        array(any::<i32>(), Array::I32),
        array(float.clone(), Array::F32),
        array(any::<bool>(), Array::Bool),
        array(any::<String>(), Array::String),
        array(any::<u64>(), Array::U64),
        array(any::<i64>(), Array::I64),
        array(float.prop_map(f64::from), Array::F64),
    ]
}

fn array<T: std::fmt::Debug + 'static>(
    element: impl Strategy<Value = T> + 'static,
    of: fn(Vec<T>) -> Array,
) -> BoxedStrategy<Value> {
    vec(element, 0..5).prop_map(move |v| Value::Array(of(v))).boxed()
}

fn gguf_tensors() -> impl Strategy<Value = Vec<gguf::NewTensor>> {
    let types: Vec<_> = GgmlType::all().collect();
    let shape = (proptest::sample::select(types), vec(1_u64..4, 1..=4));
    btree_map("[a-z.]{1,20}", shape, 0..6).prop_map(|map| {
        map.into_iter()
            .map(|(name, (ty, mut dims))| {
                dims[0] *= ty.block_values();
                gguf::NewTensor { name, dims, ty }
            })
            .collect()
    })
}

#[test]
fn gguf_layout_golden_bytes() {
    let metadata = [("k".to_owned(), Value::U32(7))];
    let tensors = ["x", "y"].map(|name| gguf::NewTensor {
        name: name.into(),
        dims: vec![128, 2],
        ty: GgmlType::PQ2_0,
    });
    let layout = gguf::layout(&metadata, tensors.into()).unwrap();
    let mut expected = b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0".to_vec();
    expected.extend(b"\x01\0\0\0\0\0\0\0k\x04\0\0\0\x07\0\0\0");
    for (name, offset) in [(b'x', 0), (b'y', 96)] {
        expected.extend(b"\x01\0\0\0\0\0\0\0");
        expected.push(name);
        expected.extend(b"\x02\0\0\0\x80\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0");
        expected.extend(b"\x8e\0\0\0");
        expected.extend([offset, 0, 0, 0, 0, 0, 0, 0]);
    }
    expected.resize(expected.len().next_multiple_of(32), 0);
    assert_eq!(layout.header, expected);
    let start = expected.len() as u64;
    let places: Vec<_> = layout.tensors.iter().map(|t| (t.offset - start, t.len)).collect();
    assert_eq!(places, [(0, 68), (96, 68)]);
    assert_eq!(layout.file_len, start + 192);
}

#[test]
fn gguf_layout_refuses_what_readers_refuse() {
    let tensor = |name: &str, dims: &[u64]| gguf::NewTensor {
        name: name.into(),
        dims: dims.into(),
        ty: GgmlType::PQ2_0,
    };
    let long = "n".repeat(64);
    for (tensors, says) in [
        (vec![tensor("t", &[128]), tensor("t", &[128])], "several"),
        (vec![tensor(&long, &[128])], "1 to 63 bytes"),
        (vec![tensor("", &[128])], "empty"),
        (vec![tensor("a\0", &[128])], "NUL"),
        (vec![tensor("t", &[64, 2])], "whole blocks of 128"),
        (vec![tensor("t", &[])], "1 to 4 dimensions"),
        (vec![tensor("t", &[128, 1, 1, 1, 1])], "1 to 4 dimensions"),
        (vec![tensor("t", &[128, 0])], "at least 1"),
        (vec![tensor("t", &[1 << 62, 4])], "2^63"),
        (
            vec![
                tensor("t", &[1 << 62]),
                tensor("u", &[1 << 62]),
                tensor("v", &[1 << 62]),
                tensor("w", &[1 << 62]),
                tensor("x", &[1 << 62]),
                tensor("y", &[1 << 62]),
                tensor("z", &[1 << 62]),
                tensor("0", &[1 << 62]),
            ],
            "2^63",
        ),
    ] {
        let message = gguf::layout(&[], tensors).unwrap_err().to_string();
        assert!(message.contains(says), "`{says}` is not in: {message}");
    }
    let key = |key: &str, value| (key.to_owned(), value);
    for (metadata, says) in [
        (vec![key("k", Value::U8(1)), key("k", Value::U8(1))], "several"),
        (vec![key("", Value::U8(1))], "empty"),
        (vec![key(&"k".repeat(65_536), Value::U8(1))], "1 to 65535 bytes"),
        (vec![key("general.alignment", Value::U32(32))], "no such key"),
        (vec![key("k", Value::String("x".repeat((16 << 20) + 1)))], "at most 16777216 bytes"),
        (
            vec![key("k", Value::Array(Array::U8(vec![0; (16 << 20) + 1])))],
            "at most 16777216 elements",
        ),
        ((0..=65_536).map(|i| key(&i.to_string(), Value::U8(1))).collect(), "at most 65536"),
    ] {
        let message = gguf::layout(&metadata, Vec::new()).unwrap_err().to_string();
        assert!(message.contains(says), "`{says}` is not in: {message}");
    }
}
