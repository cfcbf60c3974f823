//! Broken GGUF files, most of them reported against other readers. Each one is
//! written byte by byte, and must be refused with a message that tells what is
//! wrong, where.

use formats::gguf::{Array, File, GgmlType, Value};
use formats::{Error, Source};

/// A GGUF file in pieces, none of them checked.
struct Raw {
    version: u32,
    tensors: Vec<Vec<u8>>,
    metadata: Vec<Vec<u8>>,
    data_len: usize,
}

impl Raw {
    fn new() -> Self {
        Self {
            version: 3,
            tensors: Vec::new(),
            metadata: Vec::new(),
            data_len: 0,
        }
    }

    fn version(version: u32) -> Self {
        Self {
            version,
            ..Self::new()
        }
    }

    fn key(mut self, key: impl AsRef<[u8]>, ty: u32, value: impl AsRef<[u8]>) -> Self {
        let parts = [&text(key.as_ref())[..], &ty.to_le_bytes(), value.as_ref()];
        self.metadata.push(parts.concat());
        self
    }

    fn tensor(mut self, name: impl AsRef<[u8]>, dims: &[u64], ty: u32, offset: u64) -> Self {
        self.tensors
            .push(tensor(name, dims.len() as u32, dims, ty, offset));
        self
    }

    fn data(mut self, len: usize) -> Self {
        self.data_len = len;
        self
    }

    fn bytes(&self) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(self.version.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        out.extend(self.metadata.concat());
        out.extend(self.tensors.concat());
        out.resize(out.len().next_multiple_of(32) + self.data_len, 0);
        out
    }

    fn open(&self) -> Result<File, Error> {
        open(self.bytes())
    }

    /// The message of the error that opening must end in.
    #[track_caller]
    fn refusal(&self) -> String {
        refusal(self.bytes())
    }
}

fn open(bytes: Vec<u8>) -> Result<File, Error> {
    File::open(Source::from_bytes("x.gguf", bytes))
}

#[track_caller]
fn refusal(bytes: Vec<u8>) -> String {
    let message = open(bytes).unwrap_err().to_string();
    assert!(message.starts_with("`x.gguf`: "), "{message}");
    assert!(!message.contains('\n'), "{message}");
    message
}

fn text(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

fn tensor(name: impl AsRef<[u8]>, n_dims: u32, dims: &[u64], ty: u32, offset: u64) -> Vec<u8> {
    let mut out = text(name.as_ref());
    out.extend(n_dims.to_le_bytes());
    dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
    out.extend(ty.to_le_bytes());
    out.extend(offset.to_le_bytes());
    out
}

fn array(element: u32, count: u64, elements: &[u8]) -> Vec<u8> {
    let parts = [
        &element.to_le_bytes()[..],
        &count.to_le_bytes()[..],
        elements,
    ];
    parts.concat()
}

const U32: u32 = 4;
const BOOL: u32 = 7;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

#[test]
fn up_201_a_declared_length_is_held_against_the_file() {
    for len in [1_u64 << 20, 1 << 30, 1 << 62, 1 << 63, u64::MAX] {
        let message = Raw::new()
            .key("s", STRING, len.to_le_bytes())
            .data(96)
            .refusal();
        assert_says(&message, &["key `s`"]);
        for element in (0..=12).filter(|e| *e != ARRAY) {
            let message = Raw::new()
                .key("a", ARRAY, array(element, len, &[]))
                .data(96)
                .refusal();
            assert_says(&message, &["key `a`"]);
        }
        let mut long_key = Raw::new().data(96);
        long_key.metadata.push(len.to_le_bytes().to_vec());
        assert_says(&long_key.refusal(), &["metadata entry 0"]);
    }
}

#[test]
fn up_201_declared_counts_are_held_against_the_file() {
    for at in [8, 16] {
        for count in [2_u64, 60_000, 65_537, 1 << 40, 1 << 62, u64::MAX] {
            let mut bytes = Raw::new().bytes();
            bytes[at..at + 8].copy_from_slice(&count.to_le_bytes());
            assert_says(&refusal(bytes), &[&count.to_string()]);
        }
    }
}

#[test]
fn up_202_dimension_products_do_not_wrap() {
    for (dims, ty) in [
        (&[u64::MAX, 2, 1, 1][..], 0),
        (&[1 << 32, 1 << 32, 2], 0),
        (&[1 << 32, 1 << 32], 0),
        (&[1 << 62], 0),
        (&[1 << 63], 24),
        (&[1 << 63, 1], 142),
        (&[u64::MAX], 24),
    ] {
        let message = Raw::new().tensor("t", dims, ty, 0).data(64).refusal();
        assert_says(&message, &["tensor `t`", "smaller than 2^63"]);
    }
    let message = Raw::new().tensor("t", &[0], 0, 0).data(64).refusal();
    assert_says(&message, &["at least 1", "F32 [0]"]);
}

#[test]
fn up_202_a_size_past_the_end_of_the_file_is_named() {
    let message = Raw::new().tensor("t", &[1 << 60], 24, 0).data(64).refusal();
    assert_says(&message, &["truncated: tensor `t`", "the file has 128"]);
}

#[test]
fn up_203_alignment_must_be_a_power_of_two() {
    for bad in [
        0_u32,
        1,
        3,
        4,
        33,
        48,
        (1 << 20) + 8,
        1 << 21,
        1 << 31,
        u32::MAX,
    ] {
        let message = Raw::new()
            .key("general.alignment", U32, bad.to_le_bytes())
            .tensor("t", &[8], 0, 0)
            .data(1 << 12)
            .refusal();
        assert_says(
            &message,
            &["key `general.alignment`", &format!("u32 {bad}")],
        );
    }
    // A value of another type is refused as well, whatever it is.
    let message = Raw::new()
        .key("general.alignment", 10, 32_u64.to_le_bytes())
        .refusal();
    assert_says(&message, &["a u32", "u64 32"]);
}

#[test]
fn up_203_legal_alignments_move_the_tensors() {
    for alignment in [8_u32, 64, 256] {
        let step = u64::from(alignment).max(32);
        let file = Raw::new()
            .key("general.alignment", U32, alignment.to_le_bytes())
            .tensor("a", &[8], 0, 0)
            .tensor("b", &[8], 0, step)
            .data(4096)
            .open()
            .unwrap();
        assert_eq!(file.data_start() % u64::from(alignment), 0);
        assert_eq!(file.tensors()[1].offset, file.data_start() + step);
    }
}

#[test]
fn up_204_dimensions_are_counted_before_they_are_read() {
    for n_dims in [0, 5, 1_000_000, u32::MAX] {
        let mut raw = Raw::new();
        raw.tensors.push(tensor("t", n_dims, &[], 0, 0));
        let message = raw.refusal();
        assert_says(&message, &["tensor `t`", "1 to 4", &n_dims.to_string()]);
    }
}

/// 5120 x 6 values of type 42: 8,640 bytes upstream, 8,160 in older PrismML files.
const Q2_0_DIMS: [u64; 2] = [5120, 6];

#[test]
fn up_205_the_older_prism_layout_of_type_42_is_explained() {
    let followed = Raw::new()
        .tensor("first", &Q2_0_DIMS, 42, 0)
        .tensor("second", &Q2_0_DIMS, 42, 8160)
        .data(2 * 8160);
    let error = followed.open().unwrap_err();
    let layouts = ["64 values in 18 bytes", "128 values in 34 bytes"];
    assert_says(&error.to_string(), &["tensor `first`"]);
    assert_says(&error.to_string(), &layouts);
    assert_says(error.hint().unwrap(), &["PQ2_0", "142"]);

    let last = Raw::new().tensor("only", &Q2_0_DIMS, 42, 0).data(8160);
    assert_says(&last.refusal(), &["tensor `only`"]);
    assert_says(&last.refusal(), &layouts);

    // Between tensors of other types.
    let mixed = Raw::new()
        .tensor("norm", &[8], 0, 0)
        .tensor("first", &Q2_0_DIMS, 42, 32)
        .tensor("after", &[8], 0, 32 + 8160)
        .data(32 + 8160 + 32);
    assert_says(&mixed.refusal(), &["tensor `first`"]);
    assert_says(&mixed.refusal(), &layouts);
}

#[test]
fn up_205_the_upstream_layout_of_type_42_opens() {
    let file = Raw::new()
        .tensor("first", &Q2_0_DIMS, 42, 0)
        .tensor("second", &Q2_0_DIMS, 42, 8640)
        .data(2 * 8640)
        .open()
        .unwrap();
    assert_eq!(file.tensors()[1].ty, GgmlType::Q2_0);
    assert_eq!(file.tensors()[1].len, 8640);
}

#[test]
fn up_205_other_wrong_offsets_stay_wrong_offsets() {
    let message = Raw::new()
        .tensor("first", &Q2_0_DIMS, 42, 0)
        .tensor("second", &Q2_0_DIMS, 42, 8000)
        .data(2 * 8640)
        .refusal();
    assert_says(&message, &["tensor `second`", "offset 8640", "found 8000"]);
}

#[test]
fn up_206_a_file_shorter_than_declared_is_refused_at_open() {
    let mut bytes = Raw::new().tensor("t", &[4096], 0, 0).data(4 * 4096).bytes();
    let whole = bytes.len();
    bytes.truncate(whole - 4096);
    let sizes = format!("needs {whole} bytes, the file has {}", whole - 4096);
    assert_says(&refusal(bytes), &["truncated: tensor `t`", &sizes]);
}

#[test]
fn up_206_the_padding_after_the_last_tensor_may_be_missing() {
    let mut bytes = Raw::new().tensor("t", &[3], 0, 0).data(32).bytes();
    bytes.truncate(bytes.len() - 20);
    assert_eq!(open(bytes).unwrap().tensors()[0].len, 12);
}

#[test]
fn up_207_keys_match_whole() {
    let file = Raw::new()
        .key("clip.vision.block_count", U32, 27_u32.to_le_bytes())
        .key("general.architecture", STRING, text(b"qwen35"))
        .key("qwen35.block_count", U32, 64_u32.to_le_bytes())
        .open()
        .unwrap();
    let key = file.arch_key("block_count").unwrap();
    assert_eq!(key, "qwen35.block_count");
    assert_eq!(file.require_u32(&key).unwrap(), 64);
    assert_eq!(file.get("block_count"), None);
    assert_eq!(file.get("vision.block_count"), None);
}

#[test]
fn up_208_long_and_non_utf8_names_are_refused() {
    let name = |name: &[u8]| Raw::new().tensor(name, &[1], 24, 0).data(32);
    assert_says(
        &name(&[b'n'; 200]).refusal(),
        &["tensor entry 0", "at most 63 bytes", "200"],
    );
    assert_says(&name(&[b'n'; 64]).refusal(), &["at most 63 bytes"]);
    assert_says(&name(b"a\xff").refusal(), &["tensor entry 0", "UTF-8"]);
    assert_says(&name(b"").refusal(), &["tensor entry 0", "empty"]);
    assert_says(&name(b"a\0b").refusal(), &["tensor entry 0", "NUL"]);
    name(&[b'n'; 63]).open().unwrap();
    name("\u{e9}\u{6f22}".as_bytes()).open().unwrap();
}

#[test]
fn up_208_keys_and_strings_follow_the_same_rules() {
    let key = |key: &[u8]| Raw::new().key(key, BOOL, [1]);
    assert_says(&key(b"").refusal(), &["metadata entry 0", "empty"]);
    assert_says(&key(b"a\0").refusal(), &["metadata entry 0", "NUL"]);
    assert_says(&key(b"\xc3").refusal(), &["metadata entry 0", "UTF-8"]);
    assert_says(&key(&[b'k'; 65_536]).refusal(), &["at most 65535 bytes"]);
    key(&[b'k'; 65_535]).open().unwrap();
    let value = Raw::new().key("k", STRING, text(b"ab\xff"));
    assert_says(&value.refusal(), &["key `k`", "UTF-8", "byte 2"]);
    let element = Raw::new().key("k", ARRAY, array(STRING, 1, &text(b"\xff")));
    assert_says(&element.refusal(), &["key `k`", "UTF-8"]);
}

#[test]
fn up_209_prism_types_are_known_and_unknown_ones_named() {
    let file = Raw::new()
        .tensor("two", &[256], 142, 0)
        .tensor("dense", &[256], 143, 96)
        .data(96 + 64)
        .open()
        .unwrap();
    let sizes: Vec<_> = file.tensors().iter().map(|t| (t.ty, t.len)).collect();
    assert_eq!(sizes, [(GgmlType::PQ2_0, 68), (GgmlType::PTQ1_0, 56)]);

    for id in [43, 141, 144, 200, u32::MAX] {
        let message = Raw::new().tensor("t", &[256], id, 0).data(512).refusal();
        assert_says(&message, &["tensor `t`", "142 (PQ2_0)", "143 (PTQ1_0)"]);
        assert_says(&message, &[&format!("type {id}")]);
    }
    let removed = Raw::new().tensor("t", &[256], 31, 0).data(512).refusal();
    assert_says(&removed, &["type 31, which ggml removed"]);
}

#[test]
fn versions_two_and_three_open_and_others_say_why_not() {
    for version in [2, 3] {
        assert_eq!(Raw::version(version).open().unwrap().version(), version);
    }
    for version in [1, 4, 5, 0x7fff_ffff] {
        assert_says(
            &Raw::version(version).refusal(),
            &["version: expected 2 or 3", &format!("found {version}")],
        );
    }
    let swapped = Raw::version(3_u32.swap_bytes()).refusal();
    assert_says(&swapped, &["big-endian", "version 3"]);
}

#[test]
fn other_files_are_refused_by_their_magic() {
    assert_says(&refusal(b"GGML\x01\0\0\0".to_vec()), &["magic", "`GGML`"]);
    let binary = refusal(b"\0\n\xff\x01".to_vec());
    assert_says(&binary, &["magic", r"`\x00\n\xff\x01`"]);
    assert_says(&refusal(Vec::new()), &["truncated: the magic"]);
    assert_says(&refusal(b"GGUF".to_vec()), &["truncated: the version"]);
}

#[test]
fn keys_and_tensors_come_once() {
    let keys = Raw::new().key("k", BOOL, [1]).key("k", BOOL, [1]);
    assert_says(&keys.refusal(), &["key `k`", "several"]);
    let tensors = Raw::new()
        .tensor("t", &[8], 0, 0)
        .tensor("t", &[8], 0, 32)
        .data(64);
    assert_says(&tensors.refusal(), &["tensor `t`", "several"]);
}

#[test]
fn values_have_a_known_type_and_no_nesting() {
    for ty in [13, 14, 255, u32::MAX] {
        let message = Raw::new().key("k", ty, [0; 64]).refusal();
        assert_says(&message, &["key `k`", &ty.to_string()]);
    }
    let nested = Raw::new().key("k", ARRAY, array(ARRAY, 1, &array(0, 0, &[])));
    assert_says(&nested.refusal(), &["key `k`", "arrays"]);
    let empty_nested = Raw::new().key("k", ARRAY, array(ARRAY, 0, &[]));
    assert_says(&empty_nested.refusal(), &["key `k`", "arrays"]);
    let unknown = Raw::new().key("k", ARRAY, array(13, 0, &[]));
    assert_says(&unknown.refusal(), &["key `k`", "13"]);
}

#[test]
fn bools_are_zero_or_one() {
    let message = Raw::new().key("k", BOOL, [2]).refusal();
    assert_says(&message, &["key `k`", "a bool of 0 or 1", "found 2"]);
    let elements = array(BOOL, 3, &[0, 1, 0xff]);
    let message = Raw::new().key("k", ARRAY, elements).refusal();
    assert_says(&message, &["key `k`", "found 255"]);
}

#[test]
fn offsets_are_the_running_sum() {
    // A gap, an overlap, an unaligned and a far one.
    for second in [64, 0, 33, u64::MAX] {
        let message = Raw::new()
            .tensor("a", &[8], 0, 0)
            .tensor("b", &[8], 0, second)
            .data(256)
            .refusal();
        assert_says(&message, &["tensor `b`", "offset 32", &second.to_string()]);
    }
    let first = Raw::new().tensor("a", &[8], 0, 32).data(256);
    assert_says(&first.refusal(), &["tensor `a`", "offset 0"]);
}

#[test]
fn rows_are_whole_blocks() {
    let message = Raw::new().tensor("t", &[64, 2], 142, 0).data(64).refusal();
    assert_says(&message, &["whole blocks of 128", "PQ2_0 [64, 2]"]);
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let whole = Raw::new()
        .key("general.architecture", STRING, text(b"dflash"))
        .key("n", ARRAY, array(U32, 2, &[1; 8]))
        .key("s", ARRAY, array(STRING, 1, &text(b"token")))
        .tensor("a", &[256, 2], 142, 0)
        .tensor("b", &[8], 0, 160)
        .data(192)
        .bytes();
    open(whole.clone()).unwrap();
    for len in 0..whole.len() {
        let error = open(whole[..len].to_vec()).unwrap_err();
        assert!(
            matches!(error, Error::Truncated { found, .. } if found == len as u64),
            "cut at {len}: {error}"
        );
    }
}

#[test]
fn golden_bytes_of_every_value_type() {
    let file = Raw::new()
        .key("u8", 0, [200])
        .key("i8", 1, [0xfe])
        .key("u16", 2, [0x34, 0x12])
        .key("i16", 3, [0xff, 0xff])
        .key("u32", 4, [1, 0, 0, 0x80])
        .key("i32", 5, [0xfe, 0xff, 0xff, 0xff])
        .key("f32", 6, [0, 0, 0x80, 0x3f])
        .key("bool", 7, [1])
        .key("string", 8, [3, 0, 0, 0, 0, 0, 0, 0, 0xe2, 0x9c, 0x93])
        .key("array", 9, array(3, 2, &[1, 0, 0xff, 0xff]))
        .key("u64", 10, [0, 0, 0, 0, 1, 0, 0, 0])
        .key("i64", 11, [0xff; 8])
        .key("f64", 12, [0, 0, 0, 0, 0, 0, 0xf0, 0xbf])
        .open()
        .unwrap();
    let expected = [
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-2)),
        ("u16", Value::U16(0x1234)),
        ("i16", Value::I16(-1)),
        ("u32", Value::U32(0x8000_0001)),
        ("i32", Value::I32(-2)),
        ("f32", Value::F32(1.0)),
        ("bool", Value::Bool(true)),
        ("string", Value::String("\u{2713}".into())),
        ("array", Value::Array(Array::I16(vec![1, -1]))),
        ("u64", Value::U64(1 << 32)),
        ("i64", Value::I64(-1)),
        ("f64", Value::F64(-1.0)),
    ];
    let expected: Vec<_> = expected.map(|(k, v)| (k.to_owned(), v)).into();
    assert_eq!(file.metadata(), expected);
}

#[test]
fn getters_take_any_integer_that_fits_and_name_what_does_not() {
    let file = Raw::new()
        .key("u8", 0, [7])
        .key("i64", 11, 9_i64.to_le_bytes())
        .key("negative", 5, (-1_i32).to_le_bytes())
        .key("large", 10, (1_u64 << 40).to_le_bytes())
        .key("text", STRING, text(b"seven"))
        .key("half", 12, 0.5_f64.to_le_bytes())
        .key("ids", ARRAY, array(5, 2, &[6, 0, 0, 0, 20, 0, 0, 0]))
        .open()
        .unwrap();
    assert_eq!(file.require_u32("u8").unwrap(), 7);
    assert_eq!(file.require_u32("i64").unwrap(), 9);
    assert_eq!(file.require_u64("large").unwrap(), 1 << 40);
    assert_eq!(file.require_f32("half").unwrap(), 0.5);
    assert_eq!(file.require_str("text").unwrap(), "seven");
    assert_eq!(file.require_u64s("ids").unwrap(), [6, 20]);
    assert_eq!(file.opt_u32("absent").unwrap(), None);

    let absent = file.require_u32("absent").unwrap_err().to_string();
    assert_says(
        &absent,
        &["key `absent`", "an integer that fits u32", "found nothing"],
    );
    let large = file.require_u32("large").unwrap_err().to_string();
    assert_says(&large, &["u64 1099511627776"]);
    let negative = file.opt_u32("negative").unwrap_err().to_string();
    assert_says(&negative, &["i32 -1"]);
    let text = file.opt_bool("text").unwrap_err().to_string();
    assert_says(&text, &["a bool", "string `seven`"]);
    let ids = file.opt_strs("ids").unwrap_err().to_string();
    assert_says(&ids, &["array of i32 of 2 elements"]);
    let arch = file.arch_key("x").unwrap_err().to_string();
    assert_says(&arch, &["general.architecture"]);
}
