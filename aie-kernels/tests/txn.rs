//! Words of instructions: golden, there and back, and as another decoder reads them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::fmt::Write as _;
use std::process::Command;

use aie_kernels::array::Tile;
use aie_kernels::job::Job;
use aie_kernels::txn::{Operation, decode, encode};
use proptest::prelude::*;

#[test]
fn golden_words() {
    let tile = Tile { col: 1, row: 0 };
    let operations = [
        Operation::Block { register: 0x0201_D000, words: (1..9).collect() },
        Operation::Patch { register: 0x0201_D004, argument: 2, offset: 64 },
        Operation::Masked { register: 0x0201_D200, value: 0xF00, mask: 0x1F00 },
        Operation::Write { register: 0x0201_D204, value: 0x8000_0000 },
        Operation::Sync { tile, direction: 0, channel: 0 },
    ];
    let expected = [
        vec![0x0604_0100, 0x108, 5, 180],
        vec![1, 0, 0x0201_D000, 48, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![0x81, 48, 0, 0, 0, 0, 0x0201_D004, 0, 2, 0, 64, 0],
        vec![3, 0, 0x0201_D200, 0, 0xF00, 0x1F00, 28],
        vec![0, 0, 0x0201_D204, 0, 0x8000_0000, 24],
        vec![0x80, 16, 0x1_0000, 0x1_0100],
    ];
    assert_eq!(encode(8, &operations), expected.concat());
}

#[test]
fn another_decoder_reads_the_same() {
    let folder = tempfile::tempdir().unwrap();
    for (rows, k) in [(5120, 17408), (248_320, 5120)] {
        let words = Job::new(rows, k).unwrap().instructions(4096).unwrap();
        let path = folder.path().join("insts.bin");
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        std::fs::write(&path, bytes).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/npu/decode_txn.py");
        let output = Command::new("python3").arg(script).arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut expected = "columns 8 memory_rows 1\n".to_owned();
        for operation in decode(&words).unwrap().1 {
            match operation {
                Operation::Write { register, value } => {
                    write!(expected, "write {register:#x} {value:#x}").unwrap();
                }
                Operation::Block { register, words } => {
                    write!(expected, "block {register:#x}").unwrap();
                    words.iter().for_each(|w| write!(expected, " {w:#x}").unwrap());
                }
                Operation::Masked { register, value, mask } => {
                    write!(expected, "masked {register:#x} {value:#x} {mask:#x}").unwrap();
                }
                Operation::Sync { tile, direction, channel } => {
                    write!(expected, "sync {} {} {direction} {channel}", tile.col, tile.row)
                        .unwrap();
                }
                Operation::Patch { register, argument, offset } => {
                    write!(expected, "patch {register:#x} {argument} {offset}").unwrap();
                }
            }
            expected.push('\n');
        }
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}

fn operation() -> impl Strategy<Value = Operation> {
    let words = proptest::collection::vec(any::<u32>(), 1..12);
    prop_oneof![
        any::<(u32, u32)>().prop_map(|(register, value)| Operation::Write { register, value }),
        (any::<u32>(), words).prop_map(|(register, words)| Operation::Block { register, words }),
        any::<(u32, u32, u32)>().prop_map(|(register, value, mask)| Operation::Masked {
            register,
            value,
            mask
        }),
        any::<(u8, u8, u8, u8)>().prop_map(|(col, row, direction, channel)| {
            Operation::Sync { tile: Tile { col, row }, direction, channel }
        }),
        any::<(u32, u32, u32)>().prop_map(|(register, argument, offset)| Operation::Patch {
            register,
            argument,
            offset
        }),
    ]
}

proptest! {
    #[test]
    fn round_trips(columns in 1u8..9, operations in proptest::collection::vec(operation(), 0..9)) {
        let words = encode(columns, &operations);
        prop_assert_eq!(decode(&words), Ok((columns, operations)));
        for n in 0..words.len() {
            prop_assert!(decode(&words[..n]).is_err());
        }
    }

    #[test]
    fn any_words_are_read_or_refused(words in proptest::collection::vec(0u32..132, 0..40)) {
        let _ = decode(&[vec![0x0604_0100, 0x108, 1, 4 * (4 + words.len() as u32)], words].concat());
    }
}
