//! The text for the vendor's compiler: everything of the design is in it, and it is what it was.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::collections::BTreeSet;

use aie_kernels::array::{
    Buffer, Channel, Configuration, Connection, Descriptor, Dimension, Direction, Instruction,
    Lock, Operand, Port, Program, Side, Start, Tile,
};
use aie_kernels::design::configuration;
use aie_kernels::host::Kernel;
use aie_kernels::job::Job;
use aie_kernels::mlir::{MlirError, Sequence, module};
use aie_kernels::txn::{Operation, decode, encode};

const CORE: Tile = Tile { col: 0, row: 2 };

/// One core that sends what arrives, in every kind of instruction.
fn small() -> Configuration {
    use Instruction::{Acquire, Call, Flip, IfLess, IfZero, Increment, Jump, Load, Release, Set};
    let port = |side, index| Port { side, index };
    let wire = |tile, from, to| Connection { tile, from, to };
    let descriptor = |tile, id, address, words, acquire, release| Descriptor {
        tile,
        id,
        address,
        words,
        dimensions: Vec::new(),
        acquire: (acquire, 1),
        release: (release, 2),
        next: id,
    };
    let shim = Tile { col: 0, row: 0 };
    let memory = Tile { col: 0, row: 1 };
    let mut strided = descriptor(CORE, 0, 4160, 16, 0, 1);
    strided.dimensions = vec![Dimension { size: 4, step: 1 }, Dimension { size: 4, step: 8 }];
    let channel = Channel { tile: CORE, direction: Direction::S2mm, index: 0 };
    let out =
        vec![Operand::Value(4096), Operand::Register(1), Operand::Value(8192), Operand::Value(1)];
    Configuration {
        columns: 1,
        buffers: [("acc", 4096, 256), ("out", 8192, 64), ("header", 8256, 64)]
            .map(|(name, address, bytes)| Buffer { tile: CORE, name: name.into(), address, bytes })
            .to_vec(),
        locks: (0..2).map(|id| Lock { tile: CORE, id, init: 2 - 2 * u32::from(id) }).collect(),
        descriptors: vec![strided],
        starts: vec![Start { channel, descriptor: 0 }],
        connections: vec![
            wire(shim, port(Side::Dma, 1), port(Side::North, 4)),
            wire(memory, port(Side::South, 4), port(Side::North, 4)),
            wire(CORE, port(Side::South, 4), port(Side::Dma, 0)),
        ],
        programs: vec![Program {
            tile: CORE,
            code: vec![
                Set(0, 0),
                Acquire(1, 1), // 1
                Load(1, 8260, 0, 32),
                IfZero(1, 6),
                Call(Kernel::StripOut, out),
                Increment(1),
                Flip(0), // 6
                Release(0, 1),
                IfLess(0, 1, 1),
                Jump(1),
            ],
        }],
    }
}

#[test]
fn golden_text() {
    let tile = Tile { col: 0, row: 0 };
    let operations = [
        Operation::Block { register: 0x1_D000, words: vec![16, 0, 0, 0, 0xC000_0000, 1, 0, 1] },
        Operation::Patch { register: 0x1_D004, argument: 1, offset: 64 },
        Operation::Masked { register: 0x1_D200, value: 0xF00, mask: 0x1F00 },
        Operation::Write { register: 0x1_D21C, value: 0x8000_0000 },
        Operation::Sync { tile, direction: 1, channel: 1 },
    ];
    let words = encode(1, &operations);
    let arguments = [("weights", 128), ("activations", 128)];
    let sequence = Sequence { name: "job", words: &words, arguments: &arguments };
    let found = module(&small(), &[sequence]).unwrap();
    assert_eq!(found, include_str!("mlir/small.mlir"));
}

/// Counts of lines that begin with a text, after an optional result.
fn count(text: &str, operation: &str) -> usize {
    let is = |line: &&str| {
        let line = line.trim();
        let line = line.split_once(" = ").filter(|_| line.starts_with('%')).map_or(line, |l| l.1);
        line.starts_with(operation)
    };
    text.lines().filter(is).count()
}

#[test]
fn everything_of_the_design_is_there() {
    let c = configuration();
    let job = Job::new(23 * 1024, 1024).unwrap();
    let words = job.instructions(0).unwrap();
    let arguments =
        [("weights", job.weight_bytes()), ("activations", 1 << 20), ("results", 1 << 20)];
    let text =
        module(&c, &[Sequence { name: "job", words: &words, arguments: &arguments }]).unwrap();

    assert_eq!(count(&text, "aie.tile("), 48);
    for b in &c.buffers {
        let (col, row) = (b.tile.col, b.tile.row);
        let line = format!(
            "aie.buffer(%tile_{col}_{row}) {{address = {} : i32, sym_name = \"{}_{col}_{row}\"}} : \
             memref<{}x",
            b.address,
            b.name,
            b.bytes / 4
        );
        assert!(text.contains(&line), "{line}");
    }
    assert_eq!(count(&text, "aie.buffer("), c.buffers.len());
    for l in &c.locks {
        let (col, row) = (l.tile.col, l.tile.row);
        let line = format!("= aie.lock(%tile_{col}_{row}, {}) {{init = {} : i32,", l.id, l.init);
        assert!(text.contains(&line), "{line}");
    }
    assert_eq!(count(&text, "aie.lock("), c.locks.len());
    assert_eq!(count(&text, "aie.dma_bd("), c.descriptors.len());
    assert_eq!(count(&text, "aie.dma_start("), c.starts.len());
    assert_eq!(count(&text, "aie.core("), c.programs.len());
    // A shim has three wires more, those of its multiplexer (column 0: MM2S0, MM2S1 and S2MM0).
    assert_eq!(count(&text, "aie.connect<"), c.connections.len() + 2 * 8 + 1);

    // Descriptors, tile by tile, with their locks and what follows.
    for d in &c.descriptors {
        let (col, row) = (d.tile.col, d.tile.row);
        let tile = text.split_once(&format!("%dma_{col}_{row} = ")).unwrap().1;
        let block = tile.split_once(&format!("^bd{}:\n", d.id)).unwrap().1;
        let lines: Vec<&str> = block.lines().take(4).map(str::trim).collect();
        let lock = |id| format!("%lock_{col}_{row}_{id}");
        assert_eq!(
            lines[0],
            format!("aie.use_lock({}, AcquireGreaterEqual, %c1)", lock(d.acquire.0))
        );
        let len = format!("len = {}) {{bd_id = {} : i32}}", d.words, d.id);
        assert!(lines[1].ends_with(&len), "{}", lines[1]);
        assert_eq!(lines[2], format!("aie.use_lock({}, Release, %c1)", lock(d.release.0)));
        assert_eq!(lines[3], format!("aie.next_bd ^bd{}", d.next));
    }

    // Instructions, kind by kind and in their order.
    let operations = decode(&words).unwrap().1;
    let sequence = text.split_once("aie.runtime_sequence @job(").unwrap().1;
    let kinds: Vec<&str> = sequence
        .lines()
        .filter_map(|line| line.trim().strip_prefix("aiex.npu.")?.split('(').next())
        .collect();
    let expected: Vec<&str> = operations
        .iter()
        .map(|o| match o {
            Operation::Write { .. } => "write32",
            Operation::Block { .. } => "blockwrite",
            Operation::Masked { .. } => "maskwrite32",
            Operation::Sync { .. } => "sync",
            Operation::Patch { .. } => "address_patch",
        })
        .collect();
    assert_eq!(kinds, expected);

    // Names are given once.
    let names =
        text.lines().filter_map(|line| line.split_once("sym_name = \"")?.1.split('"').next());
    let names: Vec<&str> = names.collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
    assert_eq!(text.matches('{').count(), text.matches('}').count());
}

#[test]
fn what_has_no_form_is_refused() {
    let refused = |mutate: fn(&mut Configuration)| {
        let mut c = small();
        mutate(&mut c);
        module(&c, &[]).unwrap_err().to_string()
    };
    let code = |c: &mut Configuration, at: usize, i| c.programs[0].code[at] = i;
    for (mutate, reason) in [
        ((|c| c.buffers.truncate(2)) as fn(&mut Configuration), "0x2044 is not in a buffer"),
        (|c| c.buffers[0].address = 4100, "0x1000 is not the beginning of a buffer"),
        (|c| c.descriptors[0].address = 64, "0x40 is not in a buffer"),
        (|c| c.programs[0].code.truncate(5), "instruction 5: a program ends with a jump"),
    ] {
        assert!(refused(mutate).contains(reason), "{reason}: {}", refused(mutate));
    }
    let mut c = small();
    code(&mut c, 0, Instruction::Set(3, 0));
    assert_eq!(module(&c, &[]), Err(MlirError::Unset { tile: CORE, register: 0 }));
    let mut c = small();
    code(&mut c, 9, Instruction::Jump(10));
    assert!(module(&c, &[]).unwrap_err().to_string().contains("a branch out of the program"));
    let mut c = small();
    code(&mut c, 2, Instruction::Load(1, 4096, 0, 32));
    assert!(module(&c, &[]).unwrap_err().to_string().contains("`acc` holds integers"));
    let mut c = small();
    code(&mut c, 2, Instruction::Load(1, 8260, 0, 30));
    assert!(module(&c, &[]).unwrap_err().to_string().contains("a whole number of words"));
    let words = Sequence { name: "x", words: &[1, 2], arguments: &[] };
    assert!(module(&small(), &[words]).unwrap_err().to_string().contains("not made for AIE2P"));
}
