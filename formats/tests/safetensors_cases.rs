//! Broken safetensors files, most of them reported against other readers, and
//! odd ones that real writers make and that must open.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::fs;
use std::path::Path;

use formats::safetensors::{Checkpoint, Dtype, File};
use formats::{Error, Source};

fn bytes(json: &str, data: &[u8]) -> Vec<u8> {
    let len = json.len() as u64;
    [&len.to_le_bytes()[..], json.as_bytes(), data].concat()
}

fn open_bytes(bytes: Vec<u8>) -> Result<File, Box<Error>> {
    File::open(Source::from_bytes("x.safetensors", bytes)).map_err(Box::new)
}

fn open(json: &str, data_len: usize) -> Result<File, Box<Error>> {
    open_bytes(bytes(json, &vec![0; data_len]))
}

#[track_caller]
fn refused(result: Result<File, Box<Error>>) -> String {
    let message = result.unwrap_err().to_string();
    assert!(message.starts_with("`x.safetensors`: "), "{message}");
    assert!(!message.contains('\n') && message.len() < 1000, "{message}");
    message
}

/// The message of the error that a header in front of `data_len` bytes ends in.
#[track_caller]
fn refusal(json: &str, data_len: usize) -> String {
    refused(open(json, data_len))
}

#[track_caller]
fn assert_says(message: &str, parts: &[&str]) {
    for part in parts {
        assert!(message.contains(part), "`{part}` is not in: {message}");
    }
}

/// An entry of one tensor.
fn entry(name: &str, dtype: &str, shape: &str, offsets: &str) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}"#)
}

/// A header of one tensor `t`.
fn one(dtype: &str, shape: &str, offsets: &str) -> String {
    format!("{{{}}}", entry("t", dtype, shape, offsets))
}

#[test]
fn up_101_the_header_length_is_held_against_limit_and_file() {
    for (len, total) in [(1_u64 << 63, 16), (u64::MAX, 16), (100_000_001, 40)] {
        let mut file = len.to_le_bytes().to_vec();
        file.resize(total, b' ');
        let message = refused(open_bytes(file));
        assert_says(&message, &["header length", "100000000", &len.to_string()]);
        assert_says(&message, &[&format!("a file of {total} bytes")]);
    }
    for len in [33_u64, 16_000_000] {
        let mut file = len.to_le_bytes().to_vec();
        file.resize(40, b' ');
        let expected = format!("the header needs {} bytes, the file has 40", len + 8);
        assert_says(&refused(open_bytes(file)), &["truncated", &expected]);
    }
    for len in 0..8 {
        assert_says(&refused(open_bytes(vec![0; len])), &["truncated", "needs 8"]);
    }
}

#[test]
fn up_102_offsets_stay_in_order_and_inside() {
    let descending = refusal(&one("U8", "[4]", "[8,4]"), 8);
    assert_says(&descending, &["tensor `t`", "ascending", "[8, 4]"]);
    let past = refusal(&one("U8", "[9]", "[0,9]"), 8);
    assert_says(&past, &["truncated"]);
    let far = refusal(&one("U8", "[1]", "[18446744073709551614,18446744073709551615]"), 8);
    assert_says(&far, &["tensor `t`", "a hole"]);
    let all = refusal(&one("U8", "[18446744073709551615]", "[0,18446744073709551615]"), 8);
    assert_says(&all, &["tensor `t`", "fits 64 bits"]);
    let bytes = refusal(&one("U8", "[2305843009213693951]", "[0,2305843009213693951]"), 8);
    assert_says(&bytes, &["truncated"]);
}

#[test]
fn up_103_offsets_agree_with_the_shape() {
    let short = refusal(&one("BF16", "[4,4]", "[0,30]"), 30);
    assert_says(&short, &["tensor `t`", "32 bytes for BF16 [4, 4]", "found 30"]);
    let overflow = refusal(&one("BF16", "[8589934592,8589934592]", "[0,0]"), 0);
    assert_says(&overflow, &["tensor `t`", "BF16 [8589934592, 8589934592]"]);
    let half_byte = refusal(&one("F4", "[3]", "[0,1]"), 1);
    assert_says(&half_byte, &["whole bytes", "F4 [3]"]);
    let many = format!("[{}1]", "1,".repeat(9999));
    let many = refusal(&one("F32", &many, "[0,8]"), 8);
    assert_says(&many, &["tensor `t`", "at most 64 dimensions", "10000 dimensions"]);
}

#[test]
fn up_104_a_file_cut_anywhere_is_refused() {
    let json = format!(
        r#"{{"__metadata__":{{"format":"pt"}},{},{}}}"#,
        entry("a", "F32", "[2,2]", "[0,16]"),
        entry("b", "BF16", "[3]", "[16,22]"),
    );
    let whole = bytes(&json, &[0; 22]);
    open_bytes(whole.clone()).unwrap();
    for len in 0..whole.len() {
        let error = open_bytes(whole[..len].to_vec()).unwrap_err();
        assert!(
            matches!(*error, Error::Truncated { found, .. } if found == len as u64),
            "cut at {len}: {error}"
        );
    }
    let half = whole.len() - 11;
    let sizes = format!("needs {} bytes, the file has {half}", whole.len());
    let message = refused(open_bytes(whole[..half].to_vec()));
    assert_says(&message, &["truncated: the data that the header promises", &sizes]);
}

#[test]
fn up_106_a_header_is_one_json_object() {
    for json in ["[]", "1", "null", "\"x\"", " {}", "\u{feff}{}", "\0{}", ""] {
        assert_says(&refusal(json, 0), &["header", "`{` as its first byte"]);
    }
    for json in ["{", "{}x", "{}\0", "{},{}", "{\"a\"}", "{\"a\":}", "{'a':1}", "{\u{e9}:1}"] {
        refusal(json, 0);
    }
    let mut not_utf8 = bytes("{\"?\":1}", &[]);
    not_utf8[8 + 2] = 0xff;
    refused(open_bytes(not_utf8));
}

#[test]
fn up_106_nesting_is_refused_where_it_starts() {
    let depth = 1_000_000;
    for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
        let bomb = format!("{}1{}", open.repeat(depth), close.repeat(depth));
        refusal(&bomb, 0);
        refusal(&format!("{{\"t\":{bomb}}}"), 0);
        refusal(&format!("{{\"__metadata__\":{{\"k\":{bomb}}}}}"), 0);
        refusal(&one("U8", &bomb, "[0,1]"), 1);
        refusal(&one("U8", "[1]", &bomb), 1);
        let extra =
            format!(r#"{{"t":{{"extra":{bomb},"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        refusal(&extra, 1);
    }
    // Unclosed, as a hostile file would have it.
    refusal(&format!("{{\"t\":{}", "[".repeat(depth)), 0);
}

#[test]
fn up_106_keys_come_once() {
    let a = entry("t", "U8", "[1]", "[0,1]");
    let b = entry("t", "U8", "[1]", "[1,2]");
    assert_says(&refusal(&format!("{{{a},{b}}}"), 2), &["tensor `t`", "several"]);
    assert_says(&refusal(&format!("{{{a},{a}}}"), 1), &["tensor `t`", "several"]);
    // Empty ones too, which leave no hole.
    let empty = entry("t", "U8", "[0]", "[0,0]");
    assert_says(&refusal(&format!("{{{empty},{empty}}}"), 0), &["tensor `t`", "several"]);
    // The same name in another spelling.
    let escaped = entry("\\u0074", "U8", "[1]", "[1,2]");
    assert_says(&refusal(&format!("{{{a},{escaped}}}"), 2), &["tensor `t`", "several"]);

    let fields = r#"{"t":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}"#;
    assert_says(&refusal(fields, 1), &["tensor `t`", "`shape` a second time"]);
    let metadata = r#"{"__metadata__":{},"__metadata__":{}}"#;
    assert_says(&refusal(metadata, 0), &["key `__metadata__`", "a second time"]);
    let inner = r#"{"__metadata__":{"k":"1","k":"1"}}"#;
    assert_says(&refusal(inner, 0), &["key `__metadata__`", "`k` a second time"]);
}

#[test]
fn up_106_numbers_are_unsigned_integers() {
    for offsets in [
        "[-1,1]",
        "[0.0,1]",
        "[0,1e0]",
        "[0,1.5]",
        "[0]",
        "[0,1,2]",
        "{}",
        "\"01\"",
        "[0,18446744073709551616]",
        "[null,1]",
    ] {
        assert_says(&refusal(&one("U8", "[1]", offsets), 1), &["tensor `t`"]);
    }
    for shape in ["[-1]", "[1.0]", "1", "[[1]]", "[true]", "null", "[18446744073709551616]"] {
        assert_says(&refusal(&one("U8", shape, "[0,1]"), 1), &["tensor `t`"]);
    }
}

#[test]
fn up_106_entries_have_three_fields_and_no_others() {
    for (json, what) in [
        (r#"{"t":{"shape":[1],"data_offsets":[0,1]}}"#, "`dtype`"),
        (r#"{"t":{"dtype":"U8","data_offsets":[0,1]}}"#, "`shape`"),
        (r#"{"t":{"dtype":"U8","shape":[1]}}"#, "`data_offsets`"),
        (r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"zero":0}}"#, "`zero`"),
        (r#"{"t":["U8",[1],[0,1]]}"#, "an object"),
        (r#"{"t":{"dtype":8,"shape":[1],"data_offsets":[0,1]}}"#, "a string"),
        (r#"{"t":null}"#, "an object"),
    ] {
        assert_says(&refusal(json, 1), &["tensor `t`", what]);
    }
    for json in
        [r#"{"__metadata__":{"k":1}}"#, r#"{"__metadata__":[]}"#, r#"{"__metadata__":null}"#]
    {
        assert_says(&refusal(json, 0), &["key `__metadata__`"]);
    }
}

#[test]
fn up_106_unknown_dtypes_are_quoted() {
    for dtype in ["F5", "f32", "", "Q4NX_FLL", "F32 "] {
        let message = refusal(&one(dtype, "[2]", "[0,1]"), 1);
        assert_says(&message, &["tensor `t`", "a dtype", &format!("`{dtype}`")]);
    }
    // F4 is one of the format's types now.
    assert_eq!(open(&one("F4", "[2]", "[0,1]"), 1).unwrap().tensors()[0].dtype, Dtype::F4);
    // What a file can put into a message is bounded.
    let long = refusal(&one(&"x".repeat(1 << 20), "[2]", "[0,1]"), 1);
    assert_says(&long, &["`xxxx", "xxx...`"]);
    refusal(&one("a\\nb", "[2]", "[0,1]"), 1);
}

#[test]
fn legacy_q4nx_is_recognised() {
    let error = open(&one("Q4NX", "[2]", "[0,1]"), 1).unwrap_err();
    assert_says(&error.to_string(), &["`Q4NX`", "legacy q4nx"]);
    assert_says(error.hint().unwrap(), &["legacy q4nx", "re-export"]);
}

#[test]
fn names_have_no_nul() {
    let json = format!("{{{}}}", entry("a\\u0000b", "U8", "[1]", "[0,1]"));
    assert_says(&refusal(&json, 1), &["without NUL", r"tensor `a\u{0}b`"]);
}

#[test]
fn the_data_section_is_covered_exactly() {
    let two = |a: &str, b: &str| {
        format!("{{{},{}}}", entry("a", "U8", "[2]", a), entry("b", "U8", "[2]", b))
    };
    open(&two("[2,4]", "[0,2]"), 4).unwrap();
    assert_says(&refusal(&two("[0,2]", "[3,5]"), 5), &["tensor `b`", "a hole", "from 3 on"]);
    assert_says(&refusal(&two("[0,2]", "[1,3]"), 3), &["tensor `b`", "an overlap"]);
    assert_says(&refusal(&two("[1,3]", "[3,5]"), 5), &["tensor `a`", "a hole"]);
    assert_says(&refusal(&two("[0,2]", "[0,2]"), 2), &["an overlap"]);
    assert_says(&refusal(&two("[0,2]", "[2,4]"), 5), &["data section: expected 4", "found 5"]);
    assert_says(&refusal("{}", 1), &["data section: expected 0 bytes", "found 1"]);
}

#[test]
fn other_kinds_of_file_are_pointed_out() {
    for (start, hint) in [
        (&b"GGUF\x03\0\0\0"[..], "GGUF"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        (b"PK\x03\x04\0\0\x08\x08", "zip"),
    ] {
        let error = open_bytes(start.to_vec()).unwrap_err();
        assert_says(error.hint().unwrap(), &[hint]);
    }
}

#[test]
fn scalars_empty_tensors_and_unaligned_data_open() {
    let json = format!(
        "{{{},{},{},{}}}",
        entry("odd", "BF16", "[2]", "[1,5]"),
        entry("scalar", "U8", "[]", "[0,1]"),
        entry("empty", "F32", "[0,7]", "[1,1]"),
        entry("end", "F32", "[3,0]", "[5,5]"),
    );
    let file = open(&json, 5).unwrap();
    let names: Vec<_> = file.tensors().iter().map(|t| t.name.as_str()).collect();
    assert_eq!(names, ["scalar", "empty", "odd", "end"]);
    let start = file.data_start();
    assert_eq!(file.get("odd").unwrap().offset, start + 1);
    assert_eq!(file.get("scalar").unwrap().len, 1);
    assert_eq!((file.get("end").unwrap().offset, file.get("end").unwrap().len), (start + 5, 0));
    open("{}", 0).unwrap();
    open("{ }  \n", 0).unwrap();
    open(r#"{"__metadata__":{}}"#, 0).unwrap();
}

#[test]
fn a_header_is_limited_in_bytes_and_in_entries() {
    let mut over = 16_000_001u64.to_le_bytes().to_vec();
    over.resize(40, b' ');
    assert_says(
        &open_bytes(over).unwrap_err().to_string(),
        &["16000001", "at most 16000000", "the format's own limit is 100000000"],
    );
    let tensors = |n: usize| {
        let entries: Vec<_> =
            (0..n).map(|i| entry(&format!("{i:x}"), "U8", "[0]", "[0,0]")).collect();
        format!("{{{}}}", entries.join(","))
    };
    assert_eq!(open(&tensors(100_000), 0).unwrap().tensors().len(), 100_000);
    assert_says(&refusal(&tensors((1 << 18) + 1), 0), &["more than 262144 tensors"]);
    let keys: Vec<_> = (0..=1 << 18).map(|i| format!(r#""{i:x}":"""#)).collect();
    let metadata = format!(r#"{{"__metadata__":{{{}}}}}"#, keys.join(","));
    assert_says(&refusal(&metadata, 0), &["`__metadata__`", "more than 262144 keys"]);
}

#[test]
fn an_index_may_start_with_a_byte_order_mark() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["a"]);
    write_shard(dir.path(), S2, &["b"]);
    write_index(dir.path(), "2", &[("a", S1), ("b", S2)]);
    let index = dir.path().join("model.safetensors.index.json");
    let marked = [b"\xEF\xBB\xBF".to_vec(), fs::read(&index).unwrap()].concat();
    fs::write(&index, marked).unwrap();
    assert_eq!(Checkpoint::open(&index).unwrap().tensors().count(), 2);
}

#[test]
fn a_header_padded_to_4_mib_opens() {
    let mut json = one("U32", "[2,2]", "[0,16]");
    json.push_str(&" ".repeat((4 << 20) - json.len()));
    let file = open(&json, 16).unwrap();
    assert_eq!((file.header_len(), file.tensors()[0].offset), (4 << 20, (4 << 20) + 8));
    assert_eq!(file.tensors()[0].dtype, Dtype::U32);
}

// Folders and indexes.

fn write_shard(dir: &Path, file: &str, tensors: &[&str]) {
    let entries: Vec<_> = (0..)
        .zip(tensors)
        .map(|(i, name)| entry(name, "U8", "[1]", &format!("[{i},{}]", i + 1)))
        .collect();
    let json = format!("{{{}}}", entries.join(","));
    fs::write(dir.join(file), bytes(&json, &vec![7; tensors.len()])).unwrap();
}

fn write_index(dir: &Path, total_size: &str, map: &[(&str, &str)]) {
    let map: Vec<_> = map.iter().map(|(t, f)| format!(r#""{t}":"{f}""#)).collect();
    let json = format!(
        r#"{{"metadata":{{"total_size":{total_size},"x":[[{{}}]]}},"weight_map":{{{}}}}}"#,
        map.join(",")
    );
    fs::write(dir.join("model.safetensors.index.json"), json).unwrap();
}

const S1: &str = "model-00001-of-00002.safetensors";
const S2: &str = "model-00002-of-00002.safetensors";

#[track_caller]
fn checkpoint_refusal(path: &Path) -> String {
    let message = Checkpoint::open(path).unwrap_err().to_string();
    assert!(!message.contains('\n'), "{message}");
    message
}

#[test]
fn shards_are_joined_by_their_index() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["c", "a"]);
    write_shard(dir.path(), S2, &["b"]);
    write_index(dir.path(), "3", &[("a", S1), ("b", S2), ("c", S1)]);
    for path in [dir.path().to_path_buf(), dir.path().join("model.safetensors.index.json")] {
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(checkpoint.dir(), dir.path());
        assert_eq!(checkpoint.files().len(), 2);
        assert_eq!(checkpoint.warnings(), [""; 0]);
        let names: Vec<_> = checkpoint.tensors().map(|(f, t)| (f, t.name.as_str())).collect();
        assert_eq!(names, [(0, "a"), (1, "b"), (0, "c")]);
        let (file, b) = checkpoint.get("b").unwrap();
        assert_eq!(checkpoint.files()[file].source().read_vec(b.offset, b.len).unwrap(), [7]);
        assert!(checkpoint.get("d").is_none());
    }
}

#[test]
fn up_105_missing_shards_are_listed() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["a"]);
    write_index(dir.path(), "2", &[("a", S1), ("b", S2)]);
    assert_says(&checkpoint_refusal(dir.path()), &["missing shard files", S2]);
}

#[test]
fn up_105_mapped_tensors_are_in_their_shard() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["a"]);
    write_shard(dir.path(), S2, &["b"]);
    write_index(dir.path(), "2", &[("a", S2), ("b", S2), ("gone", S1)]);
    let message = checkpoint_refusal(dir.path());
    assert_says(&message, &["not in the shard", &format!("a ({S2})"), &format!("gone ({S1})")]);
}

#[test]
fn up_107_a_stray_copy_is_warned_of_and_not_merged() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["a"]);
    write_shard(dir.path(), "model.safetensors", &["a", "z"]);
    write_index(dir.path(), "1", &[("a", S1)]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(checkpoint.get("z").is_none());
    assert_eq!(checkpoint.warnings().len(), 1);
    assert_says(&checkpoint.warnings()[0], &["ignored", "model.safetensors"]);
}

#[test]
fn up_107_a_tensor_in_two_shards_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["a", "b"]);
    write_shard(dir.path(), S2, &["b", "c"]);
    write_index(dir.path(), "4", &[("a", S1), ("b", S2), ("c", S2)]);
    assert_says(&checkpoint_refusal(dir.path()), &["in two shards", ": b"]);
}

#[test]
fn up_107_a_stale_index_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    write_shard(dir.path(), S1, &["a", "extra"]);
    write_index(dir.path(), "99", &[("a", S1)]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert_says(&checkpoint.warnings()[0], &["total_size of 99", "2 bytes"]);
    assert_says(&checkpoint.warnings()[1], &["extra"]);
}

#[test]
fn shard_names_stay_in_the_folder() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["../m.safetensors", "/etc/passwd", "a/b.safetensors", "..", ".", "", "a\\\\b"] {
        write_index(dir.path(), "1", &[("a", name)]);
        assert_says(&checkpoint_refusal(dir.path()), &["tensor `a`", "in the same folder"]);
    }
}

#[test]
fn indexes_are_read_strictly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("model.safetensors.index.json");
    let bomb = "[".repeat(1_000_000);
    for json in [
        "",
        "[]",
        "{}",
        "[{},{}]",
        r#"{"weight_map":{}}"#,
        r#"{"weight_map":[]}"#,
        r#"{"weight_map":{"a":1}}"#,
        r#"{"weight_map":{"a":"x","a":"x"}}"#,
        r#"{"weight_map":{"a":"x"}"#,
        &format!(r#"{{"weight_map":{{"a":"x"}},"metadata":{{"total_size":{bomb}"#),
        &format!(r#"{{"weight_map":{{"a":"x"}},"metadata":{{"other":{bomb}"#),
        &format!(r#"{{"weight_map":{{"a":"x"}},"other":{bomb}"#),
    ] {
        fs::write(&path, json).unwrap();
        assert_says(&checkpoint_refusal(dir.path()), &["index: expected"]);
    }
}

#[test]
fn a_folder_without_index_holds_one_file() {
    let dir = tempfile::tempdir().unwrap();
    assert_says(&checkpoint_refusal(dir.path()), &["a .safetensors file", "neither"]);
    write_shard(dir.path(), "drafter.safetensors", &["a"]);
    assert!(Checkpoint::open(dir.path()).unwrap().get("a").is_some());
    assert_says(
        &checkpoint_refusal(&dir.path().join("absent.safetensors")),
        &["absent.safetensors"],
    );

    write_shard(dir.path(), "other.safetensors", &["b"]);
    let error = Checkpoint::open(dir.path()).unwrap_err();
    assert_says(&error.to_string(), &["drafter.safetensors, other.safetensors"]);
    assert!(error.hint().is_some());
    let one = Checkpoint::open(&dir.path().join("other.safetensors")).unwrap();
    assert!(one.get("b").is_some() && one.warnings().is_empty());

    write_shard(dir.path(), "model.safetensors", &["m"]);
    let checkpoint = Checkpoint::open(dir.path()).unwrap();
    assert!(checkpoint.get("m").is_some() && checkpoint.get("a").is_none());
    assert_says(&checkpoint.warnings()[0], &["drafter.safetensors, other.safetensors"]);
}
