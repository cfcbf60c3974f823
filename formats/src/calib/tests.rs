use std::collections::BTreeMap;
use std::convert::Infallible;

use proptest::prelude::*;

use super::*;
use crate::{Error, Source};

const BLOCK: usize = 4;

fn document(drafter: char, units: &[u64], full: bool) -> Document {
    let mut set = Units::default();
    units.iter().for_each(|unit| set.insert(*unit));
    let input = |width, full| InputRecord {
        width,
        exponent: -8,
        rows: 3,
        weight: 3 * WEIGHT_ONE,
        full,
        sha256: Vec::new(),
    };
    let names: BTreeMap<String, InputRecord> =
        [("fc".into(), input(12, full)), ("layers.0.qkv".into(), input(4, false))].into();
    Document {
        program: "test 1".into(),
        models: Models {
            target_sha256: "ab".repeat(32),
            drafter_sha256: drafter.to_string().repeat(64),
            act: "a8".into(),
            kv: "f16".into(),
            block: BLOCK,
            row_weights: vec![WEIGHT_ONE; 8],
        },
        texts: vec![Texts {
            kind: "prompts".into(),
            sha256: "cd".repeat(32),
            template_sha256: None,
            think: None,
            decoding: "greedy".into(),
            draft_max: 7,
            max_tokens: 64,
            max_positions: None,
            n_units: 10,
            units: set,
            positions: 5 * units.len() as u64,
            rounds: 2 * units.len() as u64,
            context_rows: 9 * units.len() as u64,
        }],
        inputs: names,
    }
}

/// Values that are a function of the place, and of `salt`.
struct Made(i64);

impl Tiles<Infallible> for Made {
    fn tile(&mut self, input: Input, tile: Tile) -> Result<Vec<i64>, Infallible> {
        let base = match tile {
            Tile::Diagonal(i) => i as i64,
            Tile::Pair(i, j) => (10 * i + j) as i64,
        } + 1000 * i64::from(input == Input::Fc);
        Ok((0..tile.len(BLOCK)).map(|n| (base + n as i64) * self.0).collect())
    }
}

fn file_of(document: &Document, tiles: &mut dyn Tiles<Infallible>) -> Vec<u8> {
    let mut document = document.clone();
    let mut bytes = vec![0; file_len(&document) as usize];
    let mut written = 0;
    let put = &mut |offset: u64, part: &[u8]| {
        bytes[offset as usize..][..part.len()].copy_from_slice(part);
        written += part.len();
        Ok(())
    };
    write(&mut document, tiles, put).unwrap();
    assert_eq!(written, bytes.len(), "every byte once");
    bytes
}

fn open(bytes: Vec<u8>) -> Result<File, Error> {
    File::read(Source::from_bytes("x.safetensors", bytes))
}

fn made(units: &[u64], salt: i64) -> File {
    open(file_of(&document('1', units, true), &mut Made(salt))).unwrap()
}

fn merged(files: &[File]) -> Result<Vec<u8>, Error> {
    let (mut document, mut tiles) = merge(files)?;
    let mut bytes = vec![0; file_len(&document) as usize];
    write(&mut document, &mut tiles, &mut |offset: u64, part: &[u8]| {
        bytes[offset as usize..][..part.len()].copy_from_slice(part);
        Ok(())
    })?;
    Ok(bytes)
}

#[test]
fn what_is_written_is_read() {
    let file = made(&[0, 1, 5], 2);
    assert_eq!(file.document().texts[0].units.count(), 3);
    let block = file.block(Input::Fc, 1).unwrap();
    // Upper triangle of 4: 0 1 2 3 | 4 5 6 | 7 8 | 9, from 1001 on, times 2, in units of 2^-8.
    let value = |n: i64| ((1001 + n) * 2) as f64 / 256.0;
    assert_eq!(block[..4], [value(0), value(1), value(2), value(3)]);
    assert_eq!(block[4..8], [value(1), value(4), value(5), value(6)]);
    assert_eq!(block[15], value(9));
    let pair = file.pair(Input::Fc, 0, 2).unwrap().unwrap();
    assert_eq!((pair.len(), pair[5]), (16, ((1002 + 5) * 2) as f64 / 256.0));
    assert_eq!(file.pair(Input::Qkv(0), 0, 0).unwrap(), None);
    assert_eq!(file.input(Input::Fc).unwrap().total_weight(), 3.0);
    assert!(file.input(Input::Down(0)).is_err());
    file.check_drafter(&"1".repeat(64)).unwrap();
    let refused = file.check_drafter(&"2".repeat(64)).unwrap_err().to_string();
    assert!(refused.contains("drafter_sha256"), "{refused}");
}

#[test]
fn tiles_stand_one_after_the_other() {
    for n in 1..6 {
        let pairs = Tile::all(n, true).filter(|t| matches!(t, Tile::Pair(..)));
        assert!(pairs.enumerate().all(|(place, tile)| tile.place(n) == place));
        assert_eq!(Tile::all(n, true).count(), n * (n + 1) / 2);
    }
}

#[test]
fn merging_knows_no_order() {
    let parts = [made(&[0, 3], 1), made(&[1], 5), made(&[2, 7], 25)];
    let all = merged(&parts).unwrap();
    // As one run would have had it: 1 + 5 + 25 times the values.
    let mut whole = document('1', &[0, 1, 2, 3, 7], true);
    whole.inputs.values_mut().for_each(|input| {
        input.rows = 9;
        input.weight = 9 * WEIGHT_ONE;
    });
    assert_eq!(all, file_of(&whole, &mut Made(31)));
    for order in [[0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        let files = order.map(|i: usize| parts[i].clone());
        assert_eq!(merged(&files).unwrap(), all);
    }
    let some = open(merged(&parts[1..]).unwrap()).unwrap();
    assert_eq!(merged(&[some, parts[0].clone()]).unwrap(), all);
}

#[test]
fn what_does_not_belong_together_is_not_merged() {
    let file = made(&[0], 1);
    let other = |change: fn(&mut Document)| {
        let mut other = document('1', &[1], true);
        change(&mut other);
        open(file_of(&other, &mut Made(1))).unwrap()
    };
    for (part, change) in [
        ("drafter_sha256", (|d| d.models.drafter_sha256 = "3".repeat(64)) as fn(&mut Document)),
        ("target_sha256", |d| d.models.target_sha256 = "3".repeat(64)),
        ("act", |d| d.models.act = "a16".into()),
        ("kv", |d| d.models.kv = "f32".into()),
        ("row_weights", |d| d.models.row_weights[3] = 7),
        ("inputs.fc.exponent", |d| {
            d.inputs.get_mut("fc").unwrap().exponent = 1;
        }),
        ("inputs.fc.full", |d| d.inputs.get_mut("fc").unwrap().full = false),
        ("document.inputs", |d| {
            d.inputs.remove("fc");
        }),
        ("units", |d| d.texts[0].units.insert(0)),
    ] {
        let error = merged(&[file.clone(), other(change)]).unwrap_err().to_string();
        assert!(error.contains(part), "{part}: {error}");
        assert!(!error.contains('\n'));
    }
    // Other texts of the same models are welcome.
    let other = other(|d| d.texts[0].sha256 = "ef".repeat(32));
    let both = open(merged(&[file, other]).unwrap()).unwrap();
    assert_eq!(both.document().texts.len(), 2);
    // Sums that do not fit.
    let large = |unit| {
        let document = document('1', &[unit], false);
        struct Large;
        impl Tiles<Infallible> for Large {
            fn tile(&mut self, _: Input, tile: Tile) -> Result<Vec<i64>, Infallible> {
                Ok(vec![i64::MAX / 2 + 1; tile.len(BLOCK)])
            }
        }
        open(file_of(&document, &mut Large)).unwrap()
    };
    let error = merged(&[large(0), large(1)]).unwrap_err().to_string();
    assert!(error.contains("64 bits"), "{error}");
}

#[test]
fn damage_is_refused() {
    let bytes = file_of(&document('1', &[0], true), &mut Made(1));
    let all = |file: &File| {
        for (name, record) in &file.document().inputs {
            let input = Input::parse(name).unwrap();
            for tile in record.tiles(BLOCK) {
                file.units(input, tile)?;
            }
        }
        Ok::<_, Error>(())
    };
    all(&open(bytes.clone()).unwrap()).unwrap();
    for len in (0..bytes.len()).step_by(7) {
        assert!(open(bytes[..len].to_vec()).is_err(), "cut to {len}");
    }
    for at in 0..bytes.len() {
        for bit in [0x01, 0x80] {
            let mut bytes = bytes.clone();
            bytes[at] ^= bit;
            let result = open(bytes).and_then(|file| all(&file));
            let error = result.expect_err("a flipped bit").to_string();
            assert!(!error.contains('\n'), "{error}");
        }
    }
}

#[test]
fn impossible_documents_are_refused() {
    let mut sound = document('1', &[0], true);
    write(&mut sound, &mut Made(1), &mut |_, _| Ok(())).unwrap();
    for (part, change) in [
        ("block", (|d| d.models.block = 3) as fn(&mut Document)),
        ("block", |d| d.models.block = 1 << 20),
        ("fc", |d| d.inputs.get_mut("fc").unwrap().width = usize::MAX),
        ("fc", |d| d.inputs.get_mut("fc").unwrap().width = 0),
        ("fc", |d| d.inputs.get_mut("fc").unwrap().exponent = 1000),
        ("fc", |d| d.inputs.get_mut("fc").unwrap().weight = 0),
        ("units", |d| d.texts[0].n_units = 0),
        ("target_sha256", |d| d.models.target_sha256 = "x".into()),
    ] {
        let mut bad = sound.clone();
        change(&mut bad);
        let error = Document::parse(std::path::Path::new("x"), &bad.text()).unwrap_err();
        assert!(error.to_string().contains(part), "{error}");
    }
    let mut bad = sound.clone();
    let fc = bad.inputs.remove("fc").unwrap();
    bad.inputs.insert("layers.01.qkv".into(), fc);
    assert!(Document::parse(std::path::Path::new("x"), &bad.text()).is_err());
}

#[test]
fn units_have_a_scale_of_the_mean_square() {
    assert_eq!(exponent_of(1.0), -24);
    assert_eq!(exponent_of(1.9), -24);
    assert_eq!(exponent_of(0.5), -25);
    assert_eq!(exponent_of(0.0), -124);
    assert_eq!(exponent_of(f64::NAN), -124);
    assert_eq!(to_units(3.0, -24), Some(3 << 24));
    assert_eq!(to_units(-2.5, 0), Some(-2));
    assert_eq!(to_units(f64::NAN, 0), None);
    assert_eq!(to_units(f64::INFINITY, 0), None);
    assert_eq!(to_units(1e30, 0), None);
}

#[test]
fn names_of_inputs() {
    for input in [Input::Fc, Input::Context, Input::Selector, Input::Qkv(0), Input::Down(12)] {
        assert_eq!(Input::parse(&input.to_string()), Some(input));
    }
    for name in ["", "layers.", "layers.1", "layers.01.qkv", "layers.+1.qkv", "layers.1.k", "FC"] {
        assert_eq!(Input::parse(name), None, "{name}");
    }
}

proptest! {
    #[test]
    fn sets_of_units(a in prop::collection::btree_set(0u64..40, 0..20), b in prop::collection::btree_set(0u64..40, 0..20)) {
        let set = |units: &std::collections::BTreeSet<u64>| {
            let mut set = Units::default();
            units.iter().rev().for_each(|unit| set.insert(*unit));
            set
        };
        let (left, right) = (set(&a), set(&b));
        for unit in 0..41 {
            prop_assert_eq!(left.contains(unit), a.contains(&unit));
        }
        prop_assert_eq!(left.count(), a.len() as u64);
        match left.union(&right) {
            Some(both) => {
                prop_assert!(a.is_disjoint(&b));
                prop_assert_eq!(both, set(&a.union(&b).copied().collect()));
            }
            None => prop_assert!(!a.is_disjoint(&b)),
        }
    }
}
