//! Single faults in the configuration or the instructions: each ends as wrong data, refusal, stale
//! results or deadlock. A fault that no run shows would be one that the proofs here do not see.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

mod noise;

use std::collections::BTreeMap;

use aie_kernels::arithmetic::{Activations, Mode, matmul};
use aie_kernels::array::{
    Channel, Configuration, Connection, Direction, Instruction, Port, Side, Tile,
};
use aie_kernels::design::configuration;
use aie_kernels::job::Job;
use aie_kernels::simulator::{Schedule, Simulator, SimulatorError};
use aie_kernels::txn::{Operation, decode, encode};
use noise::{Noise, matrix};

const CORE: Tile = Tile { col: 2, row: 3 };
const MEMORY: Tile = Tile { col: 2, row: 1 };

/// A job with the bytes it takes and the values it has to give.
struct Case {
    job: Job,
    weights: Vec<u8>,
    activations: Vec<u8>,
    live: usize,
    expected: Vec<u32>,
}

impl Case {
    fn new(rows: usize, k: usize, live: usize, mode: Mode, seed: u64) -> Self {
        let mut noise = Noise(seed);
        let w = matrix(rows, k, &mut noise, 3);
        let x: Vec<f32> = (0..live * k).map(|_| noise.next() as f32 / 1e9 - 1.0).collect();
        let x = Activations::new(&x, k, mode).unwrap();
        let job = Job::new(rows, k).unwrap();
        Self {
            weights: job.pack_weights(&w).unwrap(),
            activations: job.pack_activations(&x).unwrap(),
            expected: matmul(&w, &x).unwrap().iter().map(|x| x.to_bits()).collect(),
            job,
            live,
        }
    }
}

/// Five strips and three slices, more than any ring holds; then a job on what that one left.
fn cases() -> [Case; 2] {
    [Case::new(5 * 1024, 1536, 8, Mode::N16, 1), Case::new(2048, 640, 3, Mode::N8, 2)]
}

struct Mutant {
    name: String,
    configuration: Configuration,
    /// Of the first job.
    operations: Vec<Operation>,
}

fn outcome(mutant: &Mutant, cases: &[Case; 2], schedule: Schedule) -> Option<&'static str> {
    let fault = |error: &SimulatorError| match error {
        SimulatorError::Deadlock(_) => "deadlock",
        SimulatorError::Unfinished(_) => "stale results",
        _ => "refusal",
    };
    let mut simulator = match Simulator::new(&mutant.configuration.encode(), schedule) {
        Ok(simulator) => simulator,
        Err(error) => return Some(fault(&error)),
    };
    for (n, case) in cases.iter().enumerate() {
        let words = match n {
            0 => encode(8, &mutant.operations),
            _ => case.job.instructions(0).unwrap(),
        };
        let results = vec![0xEE; case.job.result_bytes()];
        let mut objects = [case.weights.clone(), case.activations.clone(), results];
        if let Err(error) = simulator.run(&words, &mut objects) {
            return Some(fault(&error));
        }
        let found = case.job.unpack_results(&objects[2], case.live).unwrap();
        let untouched = objects[0] == case.weights && objects[1] == case.activations;
        if !untouched || !found.iter().map(|x| x.to_bits()).eq(case.expected.iter().copied()) {
            return Some("wrong data");
        }
    }
    None
}

struct Mutants {
    good: Configuration,
    operations: Vec<Operation>,
    all: Vec<Mutant>,
}

impl Mutants {
    fn configuration(&mut self, name: String, mutate: impl Fn(&mut Configuration)) {
        let (mut configuration, operations) = (self.good.clone(), self.operations.clone());
        mutate(&mut configuration);
        assert!(configuration != self.good, "{name} changes nothing");
        self.all.push(Mutant { name, configuration, operations });
    }

    fn instructions(&mut self, name: &str, mutate: impl Fn(&mut Vec<Operation>)) {
        let (configuration, mut operations) = (self.good.clone(), self.operations.clone());
        mutate(&mut operations);
        assert!(operations != self.operations, "{name} changes nothing");
        self.all.push(Mutant { name: name.to_owned(), configuration, operations });
    }

    /// Every channel of a memory tile and of a core.
    fn descriptors(&mut self) {
        let starts = self.good.starts.clone();
        for s in starts.iter().filter(|s| [CORE, MEMORY].contains(&s.channel.tile)) {
            let at = self.good.descriptors.iter();
            let at = at.clone().position(|d| (d.tile, d.id) == (s.channel.tile, s.descriptor));
            let (at, name) = (at.unwrap(), s.channel);
            self.configuration(format!("{name}: a word less"), |c| c.descriptors[at].words -= 1);
            self.configuration(format!("{name}: a word more"), |c| c.descriptors[at].words += 1);
            self.configuration(format!("{name}: address"), |c| c.descriptors[at].address += 4);
            self.configuration(format!("{name}: next is itself"), |c| {
                c.descriptors[at].next = c.descriptors[at].id;
            });
            self.configuration(format!("{name}: acquires the lock it releases"), |c| {
                c.descriptors[at].acquire.0 = c.descriptors[at].release.0;
            });
            self.configuration(format!("{name}: releases the lock it acquires"), |c| {
                c.descriptors[at].release.0 = c.descriptors[at].acquire.0;
            });
            self.configuration(format!("{name}: a stride of two words"), |c| {
                let size = c.descriptors[at].words;
                c.descriptors[at].dimensions =
                    vec![aie_kernels::array::Dimension { size, step: 2 }];
            });
            self.configuration(format!("{name}: not started"), |c| {
                c.starts.retain(|other| other.channel != s.channel);
            });
        }
    }

    fn locks(&mut self) {
        for tile in [CORE, MEMORY] {
            let locks = self.good.locks.clone();
            for (at, lock) in locks.iter().enumerate().filter(|(_, l)| l.tile == tile) {
                if lock.init == 0 {
                    let name = format!("{tile} lock {}: full at the start", lock.id);
                    self.configuration(name, |c| c.locks[at].init = 1);
                } else {
                    let name = format!("{tile} lock {}: nothing free at the start", lock.id);
                    self.configuration(name, |c| c.locks[at].init = 0);
                }
                let name = format!("{tile} lock {}: missing", lock.id);
                self.configuration(name, |c| {
                    c.locks.remove(at);
                });
            }
        }
    }

    fn wires(&mut self) {
        let wires = self.good.connections.clone();
        for (at, w) in wires.iter().enumerate().filter(|(_, w)| w.tile == CORE) {
            let name = format!("{CORE}: no wire from {:?} to {:?}", w.from, w.to);
            self.configuration(name, |c| {
                c.connections.remove(at);
            });
        }
        let port = |side, index| Port { side, index };
        let swap = |c: &mut Configuration, side: Side| {
            for w in c.connections.iter_mut().filter(|w| w.tile == MEMORY) {
                let Connection { from, to, .. } = w;
                let port = if side == Side::Dma { from } else { to };
                if port.side == side && port.index < 2 && (side == Side::Dma || to_north(*port)) {
                    port.index ^= 1;
                }
            }
        };
        self.configuration("two cores get each other's weights".into(), |c| swap(c, Side::North));
        self.configuration("activations end in the third column".into(), |c| {
            let tile = Tile { col: 2, row: 0 };
            c.connections.retain(|w| (w.tile, w.to) != (tile, port(Side::East, 0)));
        });
    }

    /// Each instruction of a core as if it were not there.
    fn programs(&mut self) {
        let at = self.good.programs.iter().position(|p| p.tile == CORE).unwrap();
        for (n, instruction) in self.good.programs[at].code.clone().into_iter().enumerate() {
            let name = format!("{CORE}: without instruction {n}, {instruction:?}");
            self.configuration(name, |c| {
                c.programs[at].code[n] = Instruction::Jump(n as u32 + 1);
            });
        }
    }

    fn sequences(&mut self) {
        let first = |col: u32, kind: fn(&Operation) -> bool| {
            let of = move |o: &Operation| match o {
                Operation::Write { register, .. }
                | Operation::Block { register, .. }
                | Operation::Masked { register, .. }
                | Operation::Patch { register, .. } => register >> 25 == col,
                Operation::Sync { tile, .. } => u32::from(tile.col) == col,
            };
            self.operations.iter().position(|o| of(o) && kind(o)).unwrap()
        };
        let block = first(3, |o| matches!(o, Operation::Block { .. }));
        let patch = first(3, |o| matches!(o, Operation::Patch { .. }));
        let write = first(3, |o| matches!(o, Operation::Write { .. }));
        let masked = first(3, |o| matches!(o, Operation::Masked { .. }));
        let sync = first(7, |o| matches!(o, Operation::Sync { .. }));
        // The results of a column come first, then its weights; activations come last.
        let weights = write + 1;
        let last = self.operations.iter().rposition(|o| matches!(o, Operation::Write { .. }));
        let activations = last.unwrap();
        for (name, at) in [
            ("a descriptor is not written", block),
            ("an address is not patched", patch),
            ("a task is not pushed", write),
            ("a token without its controller", masked),
            ("no wait for the last column", sync),
            ("no weights", weights + 2),
            ("no activations", activations),
        ] {
            self.instructions(name, |o| drop(o.remove(at)));
        }
        for (what, at) in
            [("results", block), ("weights", weights), ("activations", activations - 2)]
        {
            for (name, change) in [("a word less", u32::MAX), ("a word more", 1)] {
                self.instructions(&format!("{what}: {name}"), |o| {
                    let Operation::Block { words, .. } = &mut o[at] else { unreachable!() };
                    words[0] = words[0].wrapping_add(change);
                });
            }
            for other in 0..4 {
                let Operation::Patch { argument, .. } = self.operations[at + 1] else {
                    unreachable!()
                };
                if argument != other {
                    self.instructions(&format!("{what} with argument {other}"), |o| {
                        let Operation::Patch { argument, .. } = &mut o[at + 1] else {
                            unreachable!()
                        };
                        *argument = other;
                    });
                }
            }
            self.instructions(&format!("{what}: another offset"), |o| {
                let Operation::Patch { offset, .. } = &mut o[at + 1] else { unreachable!() };
                *offset += 64;
            });
        }
        for (name, at, change) in [
            ("a queue of another channel", write, 8),
            ("a queue of another column", weights + 2, 1 << 25),
        ] {
            self.instructions(name, |o| {
                let Operation::Write { register, .. } = &mut o[at] else { unreachable!() };
                *register += change;
            });
        }
        self.instructions("activations twice", |o| {
            let Operation::Write { value, .. } = &mut o[activations] else { unreachable!() };
            *value += 1 << 16;
        });
        self.instructions("no token", |o| {
            let Operation::Write { value, .. } = &mut o[write] else { unreachable!() };
            *value &= 0x7fff_ffff;
        });
    }
}

fn to_north(port: Port) -> bool {
    port.side == Side::North
}

#[test]
fn every_fault_is_seen() {
    let cases = cases();
    let words = cases[0].job.instructions(0).unwrap();
    let operations = decode(&words).unwrap().1;
    let mut mutants = Mutants { good: configuration(), operations, all: Vec::new() };
    let schedules =
        [Schedule::RoundRobin, Schedule::SlowestConsumer, Schedule::Random(1), Schedule::Random(2)];
    let good = Mutant {
        name: "none".to_owned(),
        configuration: mutants.good.clone(),
        operations: mutants.operations.clone(),
    };
    for schedule in schedules {
        assert_eq!(outcome(&good, &cases, schedule), None);
    }
    mutants.descriptors();
    mutants.locks();
    mutants.wires();
    mutants.programs();
    mutants.sequences();
    let (mut outcomes, mut survivors) = (BTreeMap::<_, usize>::new(), Vec::new());
    for mutant in &mutants.all {
        match schedules.iter().find_map(|s| outcome(mutant, &cases, *s)) {
            Some(outcome) => *outcomes.entry(outcome).or_default() += 1,
            None => survivors.push(&mutant.name),
        }
    }
    assert!(survivors.is_empty(), "{survivors:#?} of {}", mutants.all.len());
    assert!(mutants.all.len() > 200 && outcomes.len() == 4, "{outcomes:?}");
}

#[test]
fn a_deadlock_says_who_waits_for_whom() {
    let case = &cases()[1];
    let mut c = configuration();
    let direction = Direction::Mm2s;
    c.starts.retain(|s| s.channel != Channel { tile: CORE, direction, index: 0 });
    let mut simulator = Simulator::new(&c.encode(), Schedule::RoundRobin).unwrap();
    let results = vec![0; case.job.result_bytes()];
    let mut objects = [case.weights.clone(), case.activations.clone(), results];
    let error = simulator.run(&case.job.instructions(0).unwrap(), &mut objects).unwrap_err();
    let text = error.to_string();
    for part in ["the controller waits", "memory tile (2, 1) S2MM2 waits for data"] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }
}
