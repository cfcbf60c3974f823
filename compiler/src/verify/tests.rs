use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::observer::Unobserved;
use crate::output::{Format, Request};
use crate::plan::{self, Plan, Ternarize};
use crate::ternary::Rule;
use crate::testing::write_drafter;

/// A folder with a float drafter and its three ternary forms.
struct Files {
    dir: TempDir,
}

const TERNARY: [&str; 3] = ["out/model.q4nx", "out/pq2.gguf", "out/ptq1.gguf"];

impl Files {
    fn new(block: usize) -> Self {
        let files = Self { dir: tempfile::tempdir().unwrap() };
        let float = write_drafter(&files.path("float"), 1, |_| {});
        files.ternarize(&float, "out", block);
        files
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn ternarize(&self, float: &Path, out: &str, block: usize) {
        fs::create_dir_all(self.path(out)).unwrap();
        let request = |name: &str, format| Request { path: self.path(out).join(name), format };
        let drafter = Drafter::open(float, None).unwrap();
        let options = plan::Options {
            outputs: vec![
                request("model.q4nx", Format::Q4nx),
                request("pq2.gguf", Format::Pq2_0),
                request("ptq1.gguf", Format::Ptq1_0),
            ],
            ternarize: Some(Ternarize { rule: Rule::Optimal, block }),
            calibration: None,
            codebooks: None,
            tokenizer: Vec::new(),
            round_scales: false,
            other_inputs: Vec::new(),
            report: None,
            force: false,
            isa: Isa::detect(),
            threads: 2,
        };
        Plan::new(&drafter, options).unwrap().run(&Unobserved).unwrap();
    }

    fn open(&self, name: &str) -> Drafter {
        Drafter::open(&self.path(name), None).unwrap()
    }

    /// Writes `bad` beside `name`: the same bytes after `edit`.
    fn edited(&self, name: &str, edit: impl FnOnce(&mut Vec<u8>)) -> PathBuf {
        let path = self.path(name);
        let mut bytes = fs::read(&path).unwrap();
        edit(&mut bytes);
        let bad = path.with_file_name("bad").with_extension(path.extension().unwrap());
        fs::write(&bad, bytes).unwrap();
        bad
    }

    /// As [`Files::edited`], where `edit` is given the bytes of one tensor.
    fn patched(&self, name: &str, tensor: &str, edit: impl FnOnce(&mut [u8])) -> PathBuf {
        let drafter = self.open(name);
        let tensor = drafter.tensors.iter().find(|t| t.spec.name == tensor).unwrap();
        let (start, len) = (tensor.offset() as usize, tensor.byte_len() as usize);
        self.edited(name, |bytes| edit(&mut bytes[start..start + len]))
    }

    fn verify(&self, path: &Path, against: Option<&str>) -> Result<Verification, Error> {
        let file = Drafter::open(path, None)?;
        let against = against.map(|name| self.open(name));
        let options = Options {
            against: against.as_ref(),
            max_error: DEFAULT_MAX_ERROR,
            isa: Isa::detect(),
            threads: 4,
        };
        verify(&file, &options, &Unobserved)
    }

    /// The reason for a no.
    #[track_caller]
    fn no(&self, path: &Path, against: Option<&str>) -> String {
        let verification = self.verify(path, against).unwrap();
        assert_eq!(verification.verdict, Verdict::No);
        verification.reason.unwrap()
    }

    /// The message about a damaged file.
    #[track_caller]
    fn damaged(&self, path: &Path) -> String {
        let error = self.verify(path, None).expect_err("damaged");
        assert!(matches!(error, Error::Input(_)), "{error:?}");
        error.to_string()
    }
}

/// Where block `group` of row `row` of `fc.weight`, `[256, 512]`, starts.
fn block(row: usize, group: usize, block_bytes: usize) -> usize {
    (row * 4 + group) * block_bytes
}

#[test]
fn what_the_compiler_writes_is_sound_and_equal() {
    let files = Files::new(256);
    for name in TERNARY {
        let v = files.verify(&files.path(name), Some("float")).unwrap();
        assert_eq!((v.verdict, v.reason, v.block), (Verdict::Ok, None, 256), "{name}");
        assert_eq!((v.matrices.len(), v.other_tensors.len()), (11, 10));
        let error = v.total.comparison.relative_error.unwrap();
        assert!((0.15..0.2).contains(&error), "{error}");
        assert_eq!(v.total.figures.zero_scales, 2, "one block of `fc` is zero");
        assert!(v.matrices.iter().all(|m| m.expected_bytes == m.stored_bytes));
        assert!(v.other_tensors.iter().all(|t| t.expected_bytes == t.stored_bytes));
        assert!(v.other_tensors.iter().all(|t| t.comparison.differing == Some(0)));
        assert_eq!(v.notes, Vec::<String>::new());
        for other in TERNARY {
            let v = files.verify(&files.path(name), Some(other)).unwrap();
            assert_eq!((v.verdict, v.reason), (Verdict::Ok, None), "{name} {other}");
            assert_eq!(v.total.comparison.differing, Some(0));
        }
    }
}

#[test]
fn errors_are_those_of_the_report_for_any_number_of_threads() {
    let files = Files::new(256);
    let (file, float) = (files.open(TERNARY[0]), files.open("float"));
    let json = |threads| {
        let options = Options {
            against: Some(&float),
            max_error: DEFAULT_MAX_ERROR,
            isa: Isa::detect(),
            threads,
        };
        let mut v = verify(&file, &options, &Unobserved).unwrap();
        v.elapsed_ms = 0;
        serde_json::to_string(&v).unwrap()
    };
    assert_eq!(json(1), json(3));
    assert!(json(1).starts_with(r#"{"schema":1,"version":"#), "{}", json(1));
    assert!(json(1).contains(r#""verdict":"ok","reason":null"#));
}

#[test]
fn a_flipped_code_is_named() {
    let files = Files::new(256);
    let path = files.patched(TERNARY[1], "fc.weight", |bytes| {
        // Weight 131 of a row is weight 3 of its group 1.
        let byte = &mut bytes[block(5, 1, 34) + 2];
        let code = *byte >> 6;
        *byte = (*byte & 0x3F) | ((code + 1) % 3) << 6;
    });
    for against in [TERNARY[0], TERNARY[2]] {
        let reason = files.no(&path, Some(against));
        assert!(reason.starts_with("`fc.weight`: row 5, column 131: expected "), "{reason}");
        assert!(reason.ends_with("(1 in all)"), "{reason}");
    }
    // One weight is far inside the error of the rounding.
    assert_eq!(files.verify(&path, Some("float")).unwrap().verdict, Verdict::Ok);
    let v = files.verify(&path, Some(TERNARY[0])).unwrap();
    let difference = v.matrices[0].comparison.first_difference.unwrap();
    assert_eq!(difference.place, Place::Cell { row: 5, column: 131 });
    let json = serde_json::to_value(difference).unwrap();
    assert_eq!((&json["row"], &json["column"]), (&5.into(), &131.into()));
}

#[test]
fn a_flipped_scale_is_named() {
    let files = Files::new(256);
    let path = files.patched(TERNARY[2], "layers.0.mlp.down_proj.weight", |bytes| {
        bytes[block(200, 3, 28) + 27] ^= 0x04;
    });
    let reason = files.no(&path, Some(TERNARY[1]));
    let expected = "`layers.0.mlp.down_proj.weight`: scale of row 200, group 3: expected ";
    assert!(reason.starts_with(expected), "{reason}");
}

#[test]
fn a_flipped_norm_or_codebook_is_named() {
    let files = Files::new(256);
    for name in TERNARY {
        let value_bytes = if name == TERNARY[0] { 2 } else { 4 };
        let path = files.patched(name, "layers.0.input_layernorm.weight", |bytes| {
            bytes[7 * value_bytes] ^= 1;
        });
        for against in ["float", TERNARY[0]] {
            let reason = files.no(&path, Some(against));
            let expected = "`layers.0.input_layernorm.weight`: value 7: expected ";
            assert!(reason.starts_with(expected), "{reason}");
        }
    }
    let codebook = "candidate_selector.successor_codebook";
    let path = files.patched(TERNARY[1], codebook, |bytes| bytes[2 * (9 * 32 + 5)] ^= 1);
    let reason = files.no(&path, Some("float"));
    assert!(reason.starts_with(&format!("`{codebook}`: row 9, column 5: ")), "{reason}");
}

#[test]
fn a_mirrored_group_is_the_same_group() {
    let files = Files::new(256);
    let path = files.patched(TERNARY[1], "fc.weight", |bytes| {
        let block = &mut bytes[block(9, 2, 34)..][..34];
        block[1] ^= 0x80;
        for byte in &mut block[2..] {
            // Code c becomes 2 - c.
            *byte = 0xAA - *byte;
        }
    });
    let v = files.verify(&path, Some(TERNARY[0])).unwrap();
    assert_eq!((v.verdict, v.total.figures.negative_scales), (Verdict::Ok, 1));
}

#[test]
fn up_403_scales_that_are_no_numbers_name_tensor_and_group() {
    let files = Files::new(256);
    for bits in [0x7C00u16, 0xFC00, 0x7E00] {
        for (name, bytes, at) in [(TERNARY[1], 34, 0), (TERNARY[2], 28, 26)] {
            let path = files.patched(name, "fc.weight", |data| {
                data[block(40, 2, bytes) + at..][..2].copy_from_slice(&bits.to_le_bytes());
            });
            let message = files.damaged(&path);
            assert!(message.contains("tensor `fc.weight`: group 162: "), "{message}");
            assert!(message.contains("expected a finite scale"), "{message}");
        }
        let wide = half::bf16::from_f32(half::f16::from_bits(bits).to_f32()).to_bits();
        let path = files.patched(TERNARY[0], "fc.weight", |data| {
            let chunk = &mut data[3 * q4nx::CHUNK_BYTES..][..q4nx::CHUNK_BYTES];
            // Row 1 in groups 0 to 3 of both planes.
            for group in 0..4 {
                let at = 2 * (32 * group + 1);
                chunk[at..at + 2].copy_from_slice(&wide.to_le_bytes());
                chunk[512 + at..][..2].copy_from_slice(&(wide ^ 0x8000).to_le_bytes());
            }
        });
        let message = files.damaged(&path);
        assert!(message.contains("tensor `fc.weight`: chunk 3: "), "{message}");
    }
}

#[test]
fn chunks_that_the_engines_refuse_are_damage() {
    let files = Files::new(256);
    // A minimum that is not the negated scale; a code 3.
    for (at, flip) in [(512, 1), (5119, 0x33)] {
        let path = files.patched(TERNARY[0], "layers.0.self_attn.q_proj.weight", |data| {
            let byte = &mut data[2 * q4nx::CHUNK_BYTES + at];
            *byte = if at < 1024 { *byte ^ flip } else { flip };
        });
        let message = files.damaged(&path);
        assert!(message.contains("`layers.0.self_attn.q_proj.weight`: chunk 2: "), "{message}");
    }
}

#[test]
fn up_405_a_nan_in_a_norm_or_codebook_is_damage() {
    let files = Files::new(256);
    for (name, tensor, bytes) in [
        (TERNARY[0], "norm.weight", &[0xC0, 0x7F][..]),
        (TERNARY[1], "norm.weight", &[0, 0, 0xC0, 0x7F]),
        (TERNARY[1], "candidate_selector.predecessor_codebook", &[0x80, 0xFF]),
    ] {
        let path = files.patched(name, tensor, |data| {
            data[11 * bytes.len()..12 * bytes.len()].copy_from_slice(bytes);
        });
        let message = files.damaged(&path);
        assert!(message.contains("value 11: expected a finite number"), "{message}");
    }
}

#[test]
fn the_first_of_two_faults_is_told_every_time() {
    let files = Files::new(256);
    let path = files.edited(TERNARY[1], |bytes| {
        let drafter = files.open(TERNARY[1]);
        // The first is in a late band, the second early in the next tensor.
        for (tensor, group) in [(0, 255 * 4), (2, 0)] {
            let at = drafter.tensors[tensor].offset() as usize + 34 * group;
            bytes[at..at + 2].copy_from_slice(&[0, 0x7C]);
        }
    });
    let first = files.damaged(&path);
    for _ in 0..20 {
        assert_eq!(files.damaged(&path), first);
    }
    assert!(first.contains("`fc.weight`: group 1020"), "{first}");
}

#[test]
fn weights_of_another_drafter_are_not_its_own() {
    let files = Files::new(256);
    write_drafter(&files.path("other"), 2, |_| {});
    let reason = files.no(&files.path(TERNARY[0]), Some("other"));
    assert!(reason.starts_with("`fc.weight`: relative squared error: expected at most 0.75, "));
    let v = files.verify(&files.path(TERNARY[0]), Some("other")).unwrap();
    assert!(v.total.comparison.relative_error.unwrap() > 1.0);
}

#[test]
fn a_configuration_that_differs_is_named() {
    let files = Files::new(256);
    write_drafter(&files.path("other"), 1, |json| {
        json["rope_parameters"]["rope_theta"] = 1e6.into()
    });
    let reason = files.no(&files.path(TERNARY[1]), Some("other"));
    assert_eq!(reason, "`rope_theta`: expected 1000000.0, found 10000000.0");
    write_drafter(&files.path("wide"), 1, |json| json["intermediate_size"] = 768.into());
    let reason = files.no(&files.path(TERNARY[1]), Some("wide"));
    assert_eq!(reason, "`intermediate_size`: expected 768, found 512");
}

#[test]
fn a_rotation_that_differs_is_named() {
    let files = Files::new(256);
    files.ternarize(&files.path("float"), "narrow", 128);
    let reason = files.no(&files.path(TERNARY[1]), Some("narrow/model.q4nx"));
    assert_eq!(reason, "the rotation: expected blocks of 128, found 256");

    let path = files.edited(TERNARY[1], |bytes| flip_sign_3_of_width_256(bytes));
    let reason = files.no(&path, Some(TERNARY[1]));
    assert_eq!(reason, "the rotation: sign 3 of the input width 256 is not INPUT's");
}

/// Sets sign 3 of the first input width, 256, to -1.
fn flip_sign_3_of_width_256(bytes: &mut [u8]) {
    const KEY: &[u8] = b"prism.hadamard.sign_values";
    let at = bytes.windows(KEY.len()).position(|w| w == KEY).unwrap();
    // Value type, element type and count come before the i32 values.
    let at = at + KEY.len() + 4 + 4 + 8 + 3 * 4;
    assert_eq!(bytes[at..at + 4], 1i32.to_le_bytes());
    bytes[at..at + 4].copy_from_slice(&(-1i32).to_le_bytes());
}

#[test]
fn signs_are_part_of_the_basis() {
    let files = Files::new(256);
    let signed = files.edited(TERNARY[1], |bytes| flip_sign_3_of_width_256(bytes));
    // With column 3 of all these matrices negated the rotated weights are the same.
    write_drafter(&files.path("negated"), 1, |_| {});
    let drafter = files.open("negated");
    let path = files.path("negated/model.safetensors");
    let mut bytes = fs::read(&path).unwrap();
    for tensor in &drafter.tensors {
        if tensor.spec.role.is_matrix() && tensor.spec.inputs() == 256 {
            for row in 0..tensor.spec.shape[0] {
                bytes[(tensor.offset() + 2 * (row * 256 + 3) + 1) as usize] ^= 0x80;
            }
        }
    }
    fs::write(&path, bytes).unwrap();
    let plain = files.verify(&files.path(TERNARY[1]), Some("float")).unwrap();
    let turned = files.verify(&signed, Some("negated")).unwrap();
    assert_eq!((turned.verdict, turned.negative_signs), (Verdict::Ok, 1));
    assert_eq!(turned.total.comparison.relative_error, plain.total.comparison.relative_error);
    let wrong = files.verify(&signed, Some("float")).unwrap();
    assert!(wrong.total.comparison.relative_error > plain.total.comparison.relative_error);
}

#[test]
fn truncated_files_are_damaged() {
    let files = Files::new(256);
    for name in TERNARY {
        let len = fs::metadata(files.path(name)).unwrap().len() as usize;
        for rest in [len - 64, len / 2, 9, 0] {
            let path = files.edited(name, |bytes| bytes.truncate(rest));
            files.damaged(&path);
        }
    }
}

#[test]
fn up_303_a_turned_tile_raster_is_refused_with_both_shapes() {
    let files = Files::new(256);
    let path = files.edited(TERNARY[0], |bytes| {
        // `fc.weight` has 8 row blocks of 2 chunks; the other way round the size is the same.
        let at = bytes.windows(10).position(|w| w == b"[8,2,5120]").unwrap();
        bytes[at..at + 10].copy_from_slice(b"[2,8,5120]");
    });
    let message = files.damaged(&path);
    assert!(message.contains("expected shape [8, 2, 5120]"), "{message}");
    assert!(message.contains("found [2, 8, 5120]"), "{message}");
}

#[test]
fn code_3_passes_in_pq2_0_with_a_note() {
    let files = Files::new(256);
    let path = files.patched(TERNARY[1], "fc.weight", |bytes| bytes[block(7, 0, 34) + 2] |= 3);
    let v = files.verify(&path, None).unwrap();
    assert_eq!((v.verdict, v.total.figures.code_3), (Verdict::Ok, 1));
    assert_eq!(v.notes, ["1 codes 3 (+2 scales), which q4nx and PTQ1_0 cannot hold"]);
    assert!(files.no(&path, Some(TERNARY[0])).contains("row 7, column 0"));
}

#[test]
fn odd_scales_and_bytes_pass_with_a_note() {
    let files = Files::new(256);
    let path = files.patched(TERNARY[2], "fc.weight", |bytes| {
        bytes[block(7, 0, 28)] = 1;
        bytes[block(8, 0, 28) + 26] |= 1;
    });
    let v = files.verify(&path, None).unwrap();
    assert_eq!(v.verdict, Verdict::Ok);
    assert_eq!((v.total.figures.off_grid_scales, v.total.figures.noncanonical_blocks), (1, 1));
    assert_eq!(v.notes.len(), 2);
    let path = files.edited(TERNARY[1], |bytes| bytes.extend([0; 77]));
    let v = files.verify(&path, None).unwrap();
    assert_eq!(v.notes, ["77 bytes after the last tensor are not read"]);
}

#[test]
fn a_matrix_outside_the_rotation_is_refused() {
    let files = Files::new(256);
    let path = files.edited(TERNARY[1], |bytes| {
        let after = |bytes: &[u8], key: &[u8]| {
            bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len()
        };
        // Value type, element type, count; then the first name, with its length before it.
        let count = after(bytes, b"prism.hadamard.weight_names") + 8;
        assert_eq!(
            bytes[count..count + 16],
            [[11, 0, 0, 0], [0; 4], [9, 0, 0, 0], [0; 4]].concat()
        );
        bytes[count] -= 1;
        let name: Vec<u8> = bytes.drain(count + 8..count + 8 + 8 + 9).collect();
        assert!(name.ends_with(b"fc.weight"));
        // The rule's name grows by as much, so that the tensors stay where they are.
        let len = after(bytes, b"ternarize.rule") + 4;
        bytes[len] += 17;
        bytes.splice(len + 8..len + 8, [b'x'; 17]);
    });
    let message = files.damaged(&path);
    assert!(message.contains("`prism.hadamard.weight_names`: expected all matrices"), "{message}");
    assert!(message.contains("a list without `fc.weight`"), "{message}");
}

#[test]
fn a_float_drafter_has_nothing_to_verify() {
    let files = Files::new(256);
    let error = files.verify(&files.path("float"), None).unwrap_err();
    assert!(error.to_string().contains("expected a ternary drafter"), "{error}");
}

#[test]
fn it_stops_when_asked_to() {
    struct Cancelled;
    impl Observer for Cancelled {
        fn progress(&self, _done: u64, _total: u64, _tensor: &str) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let files = Files::new(256);
    let file = files.open(TERNARY[1]);
    let options = Options { against: None, max_error: 0.5, isa: Isa::detect(), threads: 2 };
    assert!(matches!(verify(&file, &options, &Cancelled), Err(Error::Undecided)));
    // Nothing would have been written anyway.
    assert!(!Error::Undecided.to_string().contains("written"));
    assert_eq!(Error::Undecided.failure(), crate::Failure::Interrupted);
}
