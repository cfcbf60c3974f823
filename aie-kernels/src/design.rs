//! The design: eight columns, each with a stream of weights to four cores, and one stream of
//! activations to all 32.
//!
//! ```text
//!            column c
//!   row 5    core      activations: shim 0 MM2S1 -> along row 0 -> up every column -> S2MM0
//!   row 4    core      weights:     memory tile MM2S 0..3 -> core S2MM1
//!   row 3    core      results:     core MM2S0 -> memory tile S2MM 1, 2, 3, 5
//!   row 2    core
//!   row 1    memory    weights: one ring of 3 per core, filled from shim MM2S0 by S2MM0
//!   row 0    shim      results: memory tile MM2S5 -> shim S2MM0
//! ```
//!
//! The program of every core never ends: take a slice of activations, read its header, go through the
//! strips; on the last slice of K send each strip.

use crate::array::{
    Buffer, Channel, Configuration, Connection, Descriptor, Direction, Instruction, Lock, Operand,
    Port, Program, Side, Start, Tile,
};
use crate::host::Kernel;
use crate::layout::{HEADER_AT, LAST, SLICE_BYTES, STRIP_BYTES, STRIP_FLOATS, STRIPS};

/// Columns.
pub const COLUMNS: usize = 8;
/// Cores of a column.
pub const CORES: usize = 4;
/// Strips whose accumulators a core holds.
pub const MAX_STRIPS: usize = 20;
/// Bytes of a core's stack, at address 0.
pub const STACK_BYTES: u32 = 4096;

const SLICE: u32 = SLICE_BYTES as u32;
const STRIP: u32 = STRIP_BYTES as u32;
const RESULT: u32 = 4 * STRIP_FLOATS as u32;

const SLICES_AT: u32 = STACK_BYTES;
const WEIGHTS_AT: u32 = SLICES_AT + 2 * SLICE;
const ACC_AT: u32 = WEIGHTS_AT + 2 * STRIP;
const OUT_AT: u32 = ACC_AT + MAX_STRIPS as u32 * RESULT;

const DEPTH: u32 = 3;
/// Memory tile: weights [slot][core], then results [slot][core].
const RESULTS_AT: u32 = DEPTH * 4 * STRIP;

/// Channels of a memory tile that results of the four cores come in by.
pub const RESULT_CHANNELS: [u8; CORES] = [1, 2, 3, 5];
/// The channel of a memory tile that results leave by.
pub const RESULT_OUT: u8 = 5;

/// Locks of a core, in pairs of free and filled halves.
mod core_lock {
    pub(super) const SLICE_FREE: u8 = 0;
    pub(super) const SLICE_FULL: u8 = 1;
    pub(super) const WEIGHTS_FREE: u8 = 2;
    pub(super) const WEIGHTS_FULL: u8 = 3;
    pub(super) const OUT_FREE: u8 = 4;
    pub(super) const OUT_FULL: u8 = 5;
}

/// The configuration of the array.
#[must_use]
pub fn configuration() -> Configuration {
    let mut c = Configuration { columns: COLUMNS as u8, ..Configuration::default() };
    for col in 0..COLUMNS as u8 {
        memory_tile(&mut c, Tile { col, row: 1 });
        for core in 0..CORES as u8 {
            core_tile(&mut c, Tile { col, row: 2 + core });
        }
        routes(&mut c, col);
    }
    c
}

/// Numbers of descriptors for the channels of a memory tile: below 24 for even ones, above for odd.
struct Ids {
    even: u8,
    odd: u8,
}

impl Ids {
    fn take(&mut self, channel: u8, n: u8) -> u8 {
        let next = if channel.is_multiple_of(2) { &mut self.even } else { &mut self.odd };
        *next += n;
        *next - n
    }
}

/// Adds a ring of descriptors: `parts` are (address, words, acquired lock, released lock).
fn ring(c: &mut Configuration, channel: Channel, first: u8, parts: &[(u32, u32, u8, u8)]) {
    let n = parts.len() as u8;
    for (i, &(address, bytes, acquire, release)) in (0..n).zip(parts) {
        c.descriptors.push(Descriptor {
            tile: channel.tile,
            id: first + i,
            address,
            words: bytes / 4,
            dimensions: Vec::new(),
            acquire: (acquire, 1),
            release: (release, 1),
            next: first + (i + 1) % n,
        });
    }
    c.starts.push(Start { channel, descriptor: first });
}

fn memory_tile(c: &mut Configuration, tile: Tile) {
    let buffer = |name: &str, address, bytes| Buffer { tile, name: name.into(), address, bytes };
    c.buffers.push(buffer("weights", 0, RESULTS_AT));
    c.buffers.push(buffer("results", RESULTS_AT, 8 * RESULT));
    // Per core: weights free, weights full, results free, results full.
    for core in 0..CORES as u8 {
        let inits = [DEPTH, 0, 2, 0];
        let locks = (0..4).zip(inits).map(|(i, init)| Lock { tile, id: 4 * core + i, init });
        c.locks.extend(locks);
    }
    let channel = |direction, index| Channel { tile, direction, index };
    let (s2mm, mm2s) = (Direction::S2mm, Direction::Mm2s);
    let mut ids = Ids { even: 0, odd: 24 };
    let weights = |slot: u32, core: u32| (slot * 4 + core) * STRIP;
    let results = |slot: u32, core: u32| RESULTS_AT + (slot * 4 + core) * RESULT;

    let all = (0..DEPTH).flat_map(|slot| (0..4u32).map(move |core| (slot, core)));
    let parts: Vec<_> = all
        .map(|(slot, core)| {
            let lock = 4 * core as u8;
            (weights(slot, core), STRIP, lock, lock + 1)
        })
        .collect();
    ring(c, channel(s2mm, 0), ids.take(0, 12), &parts);
    for core in 0..4u32 {
        let lock = 4 * core as u8;
        let parts: Vec<_> =
            (0..DEPTH).map(|slot| (weights(slot, core), STRIP, lock + 1, lock)).collect();
        ring(c, channel(mm2s, core as u8), ids.take(core as u8, 3), &parts);
        let index = RESULT_CHANNELS[core as usize];
        let parts: Vec<_> =
            (0..2).map(|slot| (results(slot, core), RESULT, lock + 2, lock + 3)).collect();
        ring(c, channel(s2mm, index), ids.take(index, 2), &parts);
    }
    let all = (0..2).flat_map(|slot| (0..4u32).map(move |core| (slot, core)));
    let parts: Vec<_> = all
        .map(|(slot, core)| {
            let lock = 4 * core as u8;
            (results(slot, core), RESULT, lock + 3, lock + 2)
        })
        .collect();
    ring(c, channel(mm2s, RESULT_OUT), ids.take(RESULT_OUT, 8), &parts);
}

fn core_tile(c: &mut Configuration, tile: Tile) {
    use core_lock::{OUT_FREE, OUT_FULL, SLICE_FREE, SLICE_FULL, WEIGHTS_FREE, WEIGHTS_FULL};
    for (name, address, bytes) in [
        ("slices", SLICES_AT, 2 * SLICE),
        ("weights", WEIGHTS_AT, 2 * STRIP),
        ("acc", ACC_AT, MAX_STRIPS as u32 * RESULT),
        ("out", OUT_AT, 2 * RESULT),
    ] {
        c.buffers.push(Buffer { tile, name: name.into(), address, bytes });
    }
    c.locks.extend((0..6).map(|id| Lock { tile, id, init: if id % 2 == 0 { 2 } else { 0 } }));
    let channel = |direction, index| Channel { tile, direction, index };
    let rings = [
        (channel(Direction::S2mm, 0), 0, SLICES_AT, SLICE, SLICE_FREE, SLICE_FULL),
        (channel(Direction::S2mm, 1), 2, WEIGHTS_AT, STRIP, WEIGHTS_FREE, WEIGHTS_FULL),
        (channel(Direction::Mm2s, 0), 4, OUT_AT, RESULT, OUT_FULL, OUT_FREE),
    ];
    for (channel, first, address, bytes, acquire, release) in rings {
        let parts =
            [(address, bytes, acquire, release), (address + bytes, bytes, acquire, release)];
        ring(c, channel, first, &parts);
    }
    c.programs.push(Program { tile, code: program() });
}

fn program() -> Vec<Instruction> {
    use Instruction::{Acquire, Call, Flip, IfLess, IfZero, Increment, Jump, Load, Release, Set};
    use Operand::{Register, Value};
    use core_lock::{OUT_FREE, OUT_FULL, SLICE_FREE, SLICE_FULL, WEIGHTS_FREE, WEIGHTS_FULL};
    const SLICE_HALF: u8 = 0;
    const SLOT: u8 = 1;
    const OUT: u8 = 2;
    const STRIP_NO: u8 = 3;
    const N_STRIPS: u8 = 4;
    const IS_LAST: u8 = 5;
    let header = |word: usize| SLICES_AT + (HEADER_AT + 4 * word) as u32;
    let matmul = vec![
        Value(SLICES_AT),
        Register(SLICE_HALF),
        Value(WEIGHTS_AT),
        Register(SLOT),
        Value(ACC_AT),
        Register(STRIP_NO),
    ];
    let out = vec![Value(ACC_AT), Register(STRIP_NO), Value(OUT_AT), Register(OUT)];
    vec![
        Set(SLICE_HALF, 0),
        Set(SLOT, 0),
        Set(OUT, 0),
        Acquire(SLICE_FULL, 1), // 3: the next slice
        Load(N_STRIPS, header(STRIPS), SLICE_HALF, SLICE),
        Load(IS_LAST, header(LAST), SLICE_HALF, SLICE),
        Set(STRIP_NO, 0),
        Acquire(WEIGHTS_FULL, 1), // 7: the next strip
        Call(Kernel::TernaryMatmul, matmul),
        Release(WEIGHTS_FREE, 1),
        Flip(SLOT),
        IfZero(IS_LAST, 16),
        Acquire(OUT_FREE, 1),
        Call(Kernel::StripOut, out),
        Release(OUT_FULL, 1),
        Flip(OUT),
        Increment(STRIP_NO), // 16
        IfLess(STRIP_NO, N_STRIPS, 7),
        Release(SLICE_FREE, 1),
        Flip(SLICE_HALF),
        Jump(3),
    ]
}

fn port(side: Side, index: u8) -> Port {
    Port { side, index }
}

/// Wires of a column. A core's row r leaves `r - 2` rows above it to serve.
fn routes(c: &mut Configuration, col: u8) {
    use Side::{Dma, East, North, South, West};
    let mut wire = |row: u8, from: Port, to: Port| {
        c.connections.push(Connection { tile: Tile { col, row }, from, to });
    };
    // Shim: weights up on port 0, activations up on port 4 and on to the next column, results down. What
    // passes a memory tile keeps its port, and the cores' weights have the four below.
    wire(0, port(Dma, 0), port(North, 0));
    let activations = if col == 0 { port(Dma, 1) } else { port(West, 0) };
    wire(0, activations, port(North, 4));
    if usize::from(col) + 1 < COLUMNS {
        wire(0, activations, port(East, 0));
    }
    wire(0, port(North, 0), port(Dma, 0));
    // Memory tile.
    wire(1, port(South, 0), port(Dma, 0));
    wire(1, port(South, 4), port(North, 4));
    for core in 0..4 {
        wire(1, port(Dma, core), port(North, core));
        wire(1, port(North, core), port(Dma, RESULT_CHANNELS[usize::from(core)]));
    }
    wire(1, port(Dma, RESULT_OUT), port(South, 0));
    // Cores: port n carries the weights up to, and the results down from, core n.
    for core in 0..4u8 {
        let row = 2 + core;
        wire(row, port(South, 4), port(Dma, 0));
        wire(row, port(South, core), port(Dma, 1));
        wire(row, port(Dma, 0), port(South, core));
        for above in core + 1..4 {
            wire(row, port(South, above), port(North, above));
            wire(row, port(North, above), port(South, above));
        }
        if core < 3 {
            wire(row, port(South, 4), port(North, 4));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_binary_form_round_trips() {
        let c = configuration();
        let bytes = c.encode();
        let decoded = Configuration::decode(&bytes).unwrap();
        assert_eq!(Configuration { buffers: Vec::new(), ..c }, decoded);
        for n in 0..bytes.len() {
            assert!(Configuration::decode(&bytes[..n]).is_err());
        }
    }
}
