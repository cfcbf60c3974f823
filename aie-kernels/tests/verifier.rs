//! The design is within every budget; broken ones are refused with the reason.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use aie_kernels::array::{
    Channel, Configuration, Connection, Descriptor, Dimension, Direction, Instruction, Kind, Lock,
    Port, Program, Side, Tile,
};
use aie_kernels::design::configuration;
use aie_kernels::job::Job;
use aie_kernels::txn::{Operation, decode, encode};
use aie_kernels::verifier::{budget, check, check_instructions};

const CORE: Tile = Tile { col: 2, row: 3 };
const MEMORY: Tile = Tile { col: 2, row: 1 };

#[test]
fn the_design_is_within_every_budget() {
    let c = configuration();
    assert_eq!(check(&c), []);
    for (rows, k) in [(1024, 4096), (5120, 17408), (17408, 5120), (5120, 25600), (248_320, 5120)] {
        let words = Job::new(rows, k).unwrap().instructions(0).unwrap();
        assert_eq!(check_instructions(&c, &words), Ok(vec![]), "{rows} x {k}");
    }
}

#[test]
fn the_budget_is_that_of_the_design() {
    let budget = budget(&configuration());
    let used = |kind: Kind, resource: &str| {
        let line = budget.iter().find(|u| u.tile.kind() == kind && u.resource == resource);
        line.map(|u| (u.used, u.limit)).unwrap()
    };
    assert_eq!(used(Kind::Core, "bytes of memory"), (54_912, 65_536));
    assert_eq!(used(Kind::Memory, "bytes of memory"), (60_416, 524_288));
    assert_eq!(used(Kind::Core, "locks"), (6, 16));
    assert_eq!(used(Kind::Memory, "locks"), (16, 64));
    assert_eq!(used(Kind::Core, "descriptors"), (6, 16));
    assert_eq!(used(Kind::Memory, "descriptors of even channels"), (20, 24));
    assert_eq!(used(Kind::Memory, "descriptors of odd channels"), (20, 24));
    assert_eq!(used(Kind::Memory, "S2MM channels"), (5, 6));
    assert_eq!(used(Kind::Memory, "MM2S channels"), (5, 6));
    assert_eq!(used(Kind::Core, "S2MM channels"), (2, 2));
    assert_eq!(used(Kind::Core, "MM2S channels"), (1, 2));
    assert_eq!(used(Kind::Core, "ports out to the south"), (4, 4));
    assert_eq!(used(Kind::Memory, "ports out to the north"), (5, 6));
    assert_eq!(used(Kind::Core, "ports out to the north"), (4, 6));
}

fn descriptor(c: &mut Configuration, tile: Tile, id: u8) -> &mut Descriptor {
    c.descriptors.iter_mut().find(|d| (d.tile, d.id) == (tile, id)).unwrap()
}

fn code(c: &mut Configuration) -> &mut Vec<Instruction> {
    &mut c.programs.iter_mut().find(|p| p.tile == CORE).unwrap().code
}

fn port(side: Side, index: u8) -> Port {
    Port { side, index }
}

fn wire(c: &mut Configuration, tile: Tile, from: Port, to: Port) {
    c.connections.push(Connection { tile, from, to });
}

/// What is broken, and a part of the reason.
type Broken = (fn(&mut Configuration), &'static str);

const CONFIGURATIONS: &[Broken] = &[
    (|c| c.columns = 9, "columns 9 exceeds 8"),
    (|c| c.buffers.iter_mut().find(|b| b.tile == CORE).unwrap().address = 0, "overlaps the stack"),
    (|c| c.buffers.iter_mut().find(|b| b.name == "acc").unwrap().bytes += 4, "multiples of 64"),
    (|c| c.buffers.iter_mut().find(|b| b.name == "acc").unwrap().bytes += 64, "overlaps `acc`"),
    (|c| c.buffers.iter_mut().find(|b| b.name == "out").unwrap().bytes = 16_384, "exceeds 65536"),
    (|c| c.buffers.iter_mut().find(|b| b.name == "results").unwrap().bytes = 1 << 20, "524288"),
    (|c| c.buffers.iter_mut().find(|b| b.name == "acc").unwrap().bytes = 0, "above zero"),
    (|c| c.buffers.retain(|b| b.name != "weights"), "beyond every buffer"),
    (|c| c.locks.push(Lock { tile: CORE, id: 16, init: 0 }), "only 16 locks"),
    (|c| c.locks.push(Lock { tile: MEMORY, id: 64, init: 0 }), "only 64 locks"),
    (|c| c.locks.push(Lock { tile: CORE, id: 9, init: 64 }), "64 exceeds 63"),
    (|c| c.locks.push(Lock { tile: CORE, id: 5, init: 0 }), "there twice"),
    (|c| c.locks.retain(|l| (l.tile, l.id) != (CORE, 3)), "used but not there"),
    (|c| descriptor(c, CORE, 4).id = 16, "only 16 descriptors"),
    (|c| descriptor(c, MEMORY, 4).id = 48, "only 48 descriptors"),
    (|c| descriptor(c, CORE, 4).id = 3, "there twice"),
    (|c| descriptor(c, CORE, 4).words = 0, "no words"),
    (|c| descriptor(c, CORE, 0).words = 1 << 14, "exceeds 16383"),
    (|c| descriptor(c, MEMORY, 0).words = 1 << 17, "exceeds 131071"),
    (|c| descriptor(c, CORE, 0).address += 2, "multiple of 4"),
    (|c| descriptor(c, CORE, 5).words += 1, "beyond every buffer"),
    (|c| descriptor(c, CORE, 0).acquire.1 = 0, "acquires 0"),
    (|c| descriptor(c, CORE, 0).release.1 = 64, "releases 64"),
    (|c| [0, 1].map(|id| descriptor(c, CORE, id).release.0 = 5)[0], "nobody releases it"),
    (|c| descriptor(c, CORE, 0).next = 15, "no descriptor 15"),
    (|c| descriptor(c, CORE, 0).next = 2, "belongs to"),
    (|c| descriptor(c, CORE, 1).next = 1, "do not come back"),
    (
        |c| {
            descriptor(c, CORE, 0).dimensions =
                vec![Dimension { size: 256, step: 1 }, Dimension { size: 9, step: 256 }];
        },
        "a wrap 256 exceeds 255",
    ),
    (
        |c| {
            descriptor(c, MEMORY, 0).dimensions =
                vec![Dimension { size: 1024, step: 1 }, Dimension { size: 1, step: 1024 }];
        },
        "a wrap 1024 exceeds 1023",
    ),
    (
        |c| {
            descriptor(c, CORE, 0).dimensions =
                vec![Dimension { size: 2, step: 8193 }, Dimension { size: 1224, step: 1 }];
        },
        "a step 8193 exceeds 8192",
    ),
    (
        |c| descriptor(c, CORE, 0).dimensions = vec![Dimension { size: 1, step: 1 }; 4],
        "dimensions 4 exceeds 3",
    ),
    (
        |c| descriptor(c, MEMORY, 0).dimensions = vec![Dimension { size: 1, step: 1 }; 5],
        "dimensions 5 exceeds 4",
    ),
    (
        |c| descriptor(c, CORE, 0).dimensions = vec![Dimension { size: 12, step: 1 }],
        "its dimensions hold 12 words",
    ),
    (
        |c| {
            let direction = Direction::Mm2s;
            let channel = Channel { tile: MEMORY, direction, index: 1 };
            let ids = c.starts.iter_mut();
            ids.filter(|s| s.channel == channel).for_each(|s| s.descriptor = 0);
        },
        "the other parity's half",
    ),
    (|c| c.starts.push(c.starts[0]), "started twice"),
    (|c| c.starts.retain(|s| s.channel.tile != CORE), "has a wire and does not run"),
    (|c| c.connections.retain(|w| w.tile != CORE), "runs without a wire"),
    (|c| c.starts[0].channel.index = 6, "there are only 6"),
    (|c| wire(c, CORE, port(Side::South, 4), port(Side::South, 4)), "only 4 ports out"),
    (|c| wire(c, CORE, port(Side::South, 4), port(Side::North, 6)), "only 6 ports out"),
    (|c| wire(c, MEMORY, port(Side::South, 1), port(Side::East, 0)), "only 0 ports out"),
    (|c| wire(c, MEMORY, port(Side::North, 4), port(Side::Dma, 4)), "only 4 ports in"),
    (|c| wire(c, CORE, port(Side::South, 4), port(Side::Dma, 1)), "two wires drive it"),
    (|c| wire(c, MEMORY, port(Side::South, 1), port(Side::North, 4)), "no way from South 1"),
    (|c| wire(c, CORE, port(Side::East, 0), port(Side::East, 1)), "no way from East 0"),
    (|c| wire(c, CORE, port(Side::South, 4), port(Side::East, 1)), "nothing takes"),
    (|c| wire(c, CORE, port(Side::West, 0), port(Side::North, 5)), "nothing arrives"),
    (
        |c| wire(c, Tile { col: 0, row: 0 }, port(Side::Dma, 1), port(Side::West, 1)),
        "leaves the array",
    ),
    (|c| code(c).truncate(5), "its program ends"),
    (|c| code(c)[20] = Instruction::Jump(99), "goes to 99"),
    (|c| code(c)[4] = Instruction::Load(4, 65_532, 0, 0), "outside every buffer"),
    (|c| code(c)[3] = Instruction::Acquire(15, 1), "used but not there"),
    (
        |c| {
            let Instruction::Call(_, operands) = &mut code(c)[8] else { unreachable!() };
            operands.truncate(2);
        },
        "wrong number of arguments",
    ),
    (
        |c| {
            let Instruction::Call(_, operands) = &mut code(c)[8] else { unreachable!() };
            operands.swap(0, 1);
        },
        "an argument is no buffer",
    ),
    (|c| c.programs.push(Program { tile: MEMORY, code: Vec::new() }), "programs run on cores"),
    (|c| c.programs.push(c.programs[0].clone()), "two programs"),
];

#[test]
fn broken_configurations_are_refused_with_the_reason() {
    for (n, (mutate, reason)) in CONFIGURATIONS.iter().enumerate() {
        let mut c = configuration();
        mutate(&mut c);
        let found = check(&c);
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(text.iter().any(|t| t.contains(reason)), "{n}: no `{reason}` in {text:#?}");
    }
}

fn push_of(operations: &[Operation]) -> usize {
    operations.iter().position(|o| matches!(o, Operation::Write { .. })).unwrap()
}

/// What is broken, and a part of the reason.
type BrokenSequence = (fn(&mut Vec<Operation>), &'static str);

const SEQUENCES: &[BrokenSequence] = &[
    (|o| drop(o.pop()), "nobody waits"),
    (|o| o.push(o[o.len() - 1].clone()), "never sent"),
    (|o| drop(o.remove(0)), "to patch"),
    (|o| drop(o.remove(1)), "has no address"),
    (|o| drop(o.remove(2)), "goes to no controller"),
    (
        |o| {
            let Operation::Patch { argument, .. } = &mut o[1] else { unreachable!() };
            *argument = 5;
        },
        "the argument 5 exceeds 4",
    ),
    (
        |o| {
            let Operation::Patch { offset, .. } = &mut o[1] else { unreachable!() };
            *offset = 1 << 31;
        },
        "the offset 2147483648",
    ),
    (
        |o| {
            let Operation::Patch { register, .. } = &mut o[1] else { unreachable!() };
            *register += 4;
        },
        "to patch",
    ),
    (
        |o| {
            let at = push_of(o);
            let Operation::Write { value, .. } = &mut o[at] else { unreachable!() };
            *value |= 255 << 16;
        },
        "the repeat count 256",
    ),
    (
        |o| {
            let at = push_of(o);
            let Operation::Write { value, .. } = &mut o[at] else { unreachable!() };
            *value &= 0x7fff_ffff;
        },
        "results without a token",
    ),
    (
        |o| {
            let at = push_of(o);
            let Operation::Write { value, .. } = &mut o[at] else { unreachable!() };
            *value += 8;
        },
        "is not written",
    ),
    (
        |o| {
            let at = push_of(o);
            let Operation::Write { register, .. } = &mut o[at] else { unreachable!() };
            *register += 0x100;
        },
        "not a queue",
    ),
    (
        |o| {
            let at = push_of(o);
            (0..4).for_each(|_| o.insert(at, o[at].clone()));
        },
        "tasks without a wait 5 exceeds 4",
    ),
    (
        |o| {
            let Operation::Block { words, .. } = &mut o[0] else { unreachable!() };
            words[0] = 0;
        },
        "no words",
    ),
    (
        |o| {
            let Operation::Block { words, .. } = &mut o[0] else { unreachable!() };
            words[3] = 0x10_0000;
        },
        "not linear",
    ),
    (
        |o| {
            let Operation::Block { words, .. } = &mut o[0] else { unreachable!() };
            words[7] = 0;
        },
        "not valid",
    ),
    (
        |o| {
            let Operation::Block { register, .. } = &mut o[0] else { unreachable!() };
            *register |= 1 << 20;
        },
        "no descriptor of a shim",
    ),
    (|o| o.insert(push_of(o) + 1, o[0].clone()), "while a task uses it"),
];

#[test]
fn broken_instructions_are_refused_with_the_reason() {
    let words = Job::new(5120, 1024).unwrap().instructions(0).unwrap();
    for (n, (mutate, reason)) in SEQUENCES.iter().enumerate() {
        let (columns, mut operations) = decode(&words).unwrap();
        mutate(&mut operations);
        let found = check_instructions(&configuration(), &encode(columns, &operations)).unwrap();
        let text: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(text.iter().any(|t| t.contains(reason)), "{n}: no `{reason}` in {text:#?}");
    }
    let seven = encode(7, &decode(&words).unwrap().1);
    let found = check_instructions(&configuration(), &seven).unwrap();
    assert!(found.iter().any(|v| v.to_string().contains("for 7 columns")));
}

#[test]
fn the_documents_budget_is_the_verifiers() {
    let lines = budget(&configuration()).into_iter().map(|u| {
        let kind = match u.tile.kind() {
            Kind::Core => "core",
            Kind::Memory => "memory tile",
            Kind::Shim => "shim",
        };
        format!("| {kind} | {} | {} | {} |\n", u.resource, u.used, u.limit)
    });
    let table: String = lines.collect();
    assert!(include_str!("../../docs/npu.md").contains(&table), "{table}");
}
