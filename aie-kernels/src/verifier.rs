//! Holds a configuration, and the instructions of a job, against what the hardware has.
//!
//! Limits are those of the target model of AIE2P in mlir-aie: memory, locks, descriptors, channels,
//! bits of wraps and steps, ports of the stream switches, queues. Whether the locks are used in a way
//! that ends is the simulator's to find.

use std::collections::{BTreeMap, BTreeSet};

use crate::array::{
    Buffer, Channel, Configuration, Connection, Descriptor, Direction, Instruction, Kind, N_ROWS,
    Operand, Port, Side, Tile,
};
use crate::design::STACK_BYTES;
use crate::host::{Argument, MEMORY_BYTES};
use crate::simulator::{MEMORY_TILE_BYTES, neighbour, shim_channel};
use crate::txn::{Operation, TxnError, decode};

/// What a tile of a kind has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of memory.
    pub memory: u32,
    /// Locks.
    pub locks: u8,
    /// Buffer descriptors.
    pub descriptors: u8,
    /// DMA channels of each direction.
    pub channels: u8,
    /// Dimensions of a transfer.
    pub dimensions: usize,
    /// Bits of a wrap.
    pub wrap_bits: u32,
    /// Bits of a step in words.
    pub step_bits: u32,
    /// Bits of a transfer's length in words.
    pub length_bits: u32,
}

/// The largest value of a lock.
pub const LOCK_MAX: u32 = 63;
/// Buffer arguments that the firmware translates.
pub const ARGUMENTS: u32 = 5;
/// Tasks of a channel that are pushed without a wait.
pub const TASKS: usize = 4;
/// The largest repeat count of a task.
pub const REPEATS: u32 = 255;

impl Limits {
    /// The limits of a kind of tile.
    #[must_use]
    pub fn of(kind: Kind) -> Self {
        let (memory, locks, descriptors, channels, dimensions) = match kind {
            Kind::Shim => (0, 16, 16, 2, 3),
            Kind::Memory => (MEMORY_TILE_BYTES as u32, 64, 48, 6, 4),
            Kind::Core => (MEMORY_BYTES as u32, 16, 16, 2, 3),
        };
        let (wrap_bits, step_bits, length_bits) = match kind {
            Kind::Shim => (10, 20, 32),
            Kind::Memory => (10, 17, 17),
            Kind::Core => (8, 13, 14),
        };
        Self { memory, locks, descriptors, channels, dimensions, wrap_bits, step_bits, length_bits }
    }
}

/// Ports of a tile's stream switch on one side, towards (`out`) or from its neighbour.
#[must_use]
pub fn ports(kind: Kind, side: Side, out: bool) -> u8 {
    match (kind, side) {
        (_, Side::Dma) => Limits::of(kind).channels,
        (_, Side::North) => [4, 6][usize::from(out)],
        (Kind::Shim, Side::South) => 0,
        (_, Side::South) => [6, 4][usize::from(out)],
        (Kind::Memory, Side::East | Side::West) => 0,
        (_, Side::East | Side::West) => 4,
    }
}

/// Something the hardware does not have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{at}: {problem}")]
pub struct Violation {
    /// The tile, channel or port.
    pub at: String,
    /// What is wrong.
    pub problem: String,
}

/// One line of the budget: the tile that uses most.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Usage {
    /// What is counted.
    pub resource: &'static str,
    /// Where most is used.
    pub tile: Tile,
    /// How much.
    pub used: u32,
    /// How much there is.
    pub limit: u32,
}

#[derive(Default)]
struct Findings(Vec<Violation>);

impl Findings {
    fn add(&mut self, at: &impl ToString, problem: impl Into<String>) {
        self.0.push(Violation { at: at.to_string(), problem: problem.into() });
    }

    fn within(&mut self, at: &impl ToString, what: &str, found: u64, limit: u64) {
        if found > limit {
            self.add(at, format!("{what} {found} exceeds {limit}"));
        }
    }
}

/// All violations of a configuration; none if the hardware can take it.
#[must_use]
pub fn check(c: &Configuration) -> Vec<Violation> {
    let mut f = Findings::default();
    f.within(&"array", "the number of columns", c.columns.into(), 8);
    buffers(c, &mut f);
    locks(c, &mut f);
    descriptors(c, &mut f);
    channels(c, &mut f);
    wires(c, &mut f);
    programs(c, &mut f);
    f.0
}

fn inside(tile: Tile, c: &Configuration) -> bool {
    tile.col < c.columns && tile.row < N_ROWS
}

fn buffers(c: &Configuration, f: &mut Findings) {
    for (i, b) in c.buffers.iter().enumerate() {
        let at = format!("{} buffer `{}`", b.tile, b.name);
        let end = u64::from(b.address) + u64::from(b.bytes);
        if !inside(b.tile, c) {
            f.add(&at, "there is no such tile");
        }
        if b.bytes == 0 || b.bytes % 64 != 0 || b.address % 64 != 0 {
            f.add(
                &at,
                "address and length have to be multiples of 64 bytes, the length above zero",
            );
        }
        f.within(&at, "its end", end, Limits::of(b.tile.kind()).memory.into());
        if b.tile.kind() == Kind::Core && b.address < STACK_BYTES {
            f.add(&at, "it overlaps the stack");
        }
        for other in c.buffers[..i].iter().filter(|o| o.tile == b.tile) {
            let other_end = u64::from(other.address) + u64::from(other.bytes);
            if u64::from(b.address) < other_end && u64::from(other.address) < end {
                f.add(&at, format!("it overlaps `{}`", other.name));
            }
        }
    }
}

fn locks(c: &Configuration, f: &mut Findings) {
    let mut seen = BTreeSet::new();
    for l in &c.locks {
        let at = format!("{} lock {}", l.tile, l.id);
        if l.id >= Limits::of(l.tile.kind()).locks {
            f.add(&at, format!("there are only {} locks", Limits::of(l.tile.kind()).locks));
        }
        f.within(&at, "its value", l.init.into(), LOCK_MAX.into());
        if !seen.insert((l.tile, l.id)) {
            f.add(&at, "it is there twice");
        }
    }
    // A lock that is acquired needs somebody who releases it.
    let calls = |p: &crate::array::Program, acquires: bool| -> Vec<(Tile, u8)> {
        let lock = |i: &Instruction| match *i {
            Instruction::Acquire(lock, _) if acquires => Some((p.tile, lock)),
            Instruction::Release(lock, _) if !acquires => Some((p.tile, lock)),
            _ => None,
        };
        p.code.iter().filter_map(lock).collect()
    };
    let of = |acquires: bool| -> BTreeSet<(Tile, u8)> {
        let side = |d: &Descriptor| if acquires { d.acquire.0 } else { d.release.0 };
        let dma = c.descriptors.iter().map(|d| (d.tile, side(d)));
        dma.chain(c.programs.iter().flat_map(|p| calls(p, acquires))).collect()
    };
    let (acquired, released) = (of(true), of(false));
    for &(tile, id) in acquired.union(&released).filter(|lock| !seen.contains(lock)) {
        f.add(&format!("{tile} lock {id}"), "it is used but not there");
    }
    for (tile, id) in acquired.difference(&released) {
        f.add(&format!("{tile} lock {id}"), "it is acquired and nobody releases it");
    }
}

fn descriptors(c: &Configuration, f: &mut Findings) {
    let mut seen = BTreeSet::new();
    for d in &c.descriptors {
        let at = format!("{} descriptor {}", d.tile, d.id);
        let limits = Limits::of(d.tile.kind());
        if !inside(d.tile, c) || d.tile.kind() == Kind::Shim {
            f.add(&at, "descriptors here belong to memory tiles and cores");
            continue;
        }
        if d.id >= limits.descriptors {
            f.add(&at, format!("there are only {} descriptors", limits.descriptors));
        }
        if !seen.insert((d.tile, d.id)) {
            f.add(&at, "it is there twice");
        }
        if d.words == 0 {
            f.add(&at, "a transfer of no words never ends");
        }
        f.within(&at, "its length in words", d.words.into(), (1 << limits.length_bits) - 1);
        if d.address % 4 != 0 {
            f.add(&at, "its address is no multiple of 4 bytes");
        }
        dimensions(d, limits, &at, f);
        let end = u64::from(d.address) + 4 * (reach(d) + 1);
        let within = |b: &Buffer| {
            b.tile == d.tile
                && b.address <= d.address
                && end <= u64::from(b.address) + u64::from(b.bytes)
        };
        if !c.buffers.iter().any(within) {
            f.add(&at, "it reaches beyond every buffer");
        }
        for (what, value) in [("acquires", d.acquire.1), ("releases", d.release.1)] {
            if value == 0 || value > LOCK_MAX {
                f.add(&at, format!("it {what} {value}, expected 1 to {LOCK_MAX}"));
            }
        }
    }
}

fn dimensions(d: &Descriptor, limits: Limits, at: &String, f: &mut Findings) {
    if d.dimensions.is_empty() {
        return;
    }
    f.within(at, "the number of dimensions", d.dimensions.len() as u64, limits.dimensions as u64);
    let words = d.dimensions.iter().fold(1u64, |n, d| n.saturating_mul(d.size.into()));
    if words != u64::from(d.words) {
        f.add(at, format!("its dimensions hold {words} words, its length is {}", d.words));
    }
    let (wrap, step) = ((1u64 << limits.wrap_bits) - 1, 1u64 << limits.step_bits);
    for dimension in &d.dimensions {
        f.within(at, "a wrap", dimension.size.into(), wrap);
        f.within(at, "a step", dimension.step.into(), step);
        if dimension.step == 0 {
            f.add(at, "a step of zero");
        }
    }
}

/// The last word of a descriptor, counted from its address.
fn reach(d: &Descriptor) -> u64 {
    if d.dimensions.is_empty() {
        return u64::from(d.words).saturating_sub(1);
    }
    let last = |d: &crate::array::Dimension| {
        u64::from(d.size).saturating_sub(1).saturating_mul(d.step.into())
    };
    d.dimensions.iter().map(last).fold(0, u64::saturating_add)
}

fn channels(c: &Configuration, f: &mut Findings) {
    let ids: BTreeMap<(Tile, u8), u8> =
        c.descriptors.iter().map(|d| ((d.tile, d.id), d.next)).collect();
    let mut owners: BTreeMap<(Tile, u8), Channel> = BTreeMap::new();
    let mut started = BTreeSet::new();
    for s in &c.starts {
        let (channel, tile) = (s.channel, s.channel.tile);
        if !started.insert(channel) {
            f.add(&channel, "it is started twice");
            continue;
        }
        if channel.index >= Limits::of(tile.kind()).channels {
            f.add(&channel, format!("there are only {}", Limits::of(tile.kind()).channels));
        }
        let (mut at, mut chain) = (s.descriptor, BTreeSet::new());
        while chain.insert(at) {
            if tile.kind() == Kind::Memory && (at < 24) != channel.index.is_multiple_of(2) {
                f.add(&channel, format!("descriptor {at} is in the other parity's half"));
            }
            if let Some(owner) = owners.insert((tile, at), channel) {
                f.add(&channel, format!("descriptor {at} belongs to {owner}"));
            }
            let Some(next) = ids.get(&(tile, at)) else {
                f.add(&channel, format!("there is no descriptor {at}"));
                break;
            };
            at = *next;
        }
        if at != s.descriptor && ids.contains_key(&(tile, at)) {
            f.add(&channel, "its descriptors do not come back to the first");
        }
    }
    for &(tile, id) in ids.keys().filter(|id| !owners.contains_key(id)) {
        f.add(&format!("{tile} descriptor {id}"), "no channel runs it");
    }
    // What has a wire and what runs are the same.
    let mut wired = BTreeSet::new();
    for w in &c.connections {
        if w.from.side == Side::Dma {
            let direction = Direction::Mm2s;
            wired.insert(Channel { tile: w.tile, direction, index: w.from.index });
        }
        if w.to.side == Side::Dma {
            let direction = Direction::S2mm;
            wired.insert(Channel { tile: w.tile, direction, index: w.to.index });
        }
    }
    for channel in started.difference(&wired) {
        f.add(channel, "it runs without a wire");
    }
    for channel in wired.difference(&started).filter(|c| c.tile.kind() != Kind::Shim) {
        f.add(channel, "it has a wire and does not run");
    }
}

/// Whether a switch can connect two ports of its own. A memory tile passes a stream up or down on the
/// port it came in by; elsewhere only a stream that turns back is bound to it.
#[must_use]
pub fn connects(kind: Kind, from: Port, to: Port) -> bool {
    let vertical = |port: Port| matches!(port.side, Side::North | Side::South);
    match kind {
        Kind::Memory if vertical(from) && vertical(to) => from.index == to.index,
        // The two directions of a shim's DMA are behind its multiplexer.
        Kind::Shim if from.side == Side::Dma && to.side == Side::Dma => false,
        _ => from.side != to.side || from.index == to.index,
    }
}

fn port_name(tile: Tile, port: Port) -> String {
    format!("{tile} port {:?} {}", port.side, port.index)
}

fn wires(c: &Configuration, f: &mut Findings) {
    let sources: BTreeSet<(Tile, Port)> = c.connections.iter().map(|w| (w.tile, w.from)).collect();
    let mut driven = BTreeSet::new();
    let mut arrivals: BTreeSet<(Tile, Port)> = BTreeSet::new();
    for &Connection { tile, from, to } in &c.connections {
        for (port, out) in [(from, false), (to, true)] {
            let limit = ports(tile.kind(), port.side, out);
            if port.index >= limit {
                let way = if out { "out" } else { "in" };
                f.add(&port_name(tile, port), format!("there are only {limit} ports {way}"));
            }
        }
        if !driven.insert((tile, to)) {
            f.add(&port_name(tile, to), "two wires drive it");
        }
        if !connects(tile.kind(), from, to) {
            let from = format!("{:?} {}", from.side, from.index);
            f.add(&port_name(tile, to), format!("the switch has no way from {from} to it"));
        }
        if to.side == Side::Dma {
            continue;
        }
        match neighbour(tile, to, c.columns) {
            None => f.add(&port_name(tile, to), "it leaves the array"),
            Some(at) => {
                if !sources.contains(&at) {
                    f.add(&port_name(tile, to), "nothing takes what it carries");
                }
                arrivals.insert(at);
            }
        }
    }
    for &(tile, from) in sources.iter().filter(|(_, from)| from.side != Side::Dma) {
        if !arrivals.contains(&(tile, from)) {
            f.add(&port_name(tile, from), "nothing arrives there");
        }
    }
}

fn programs(c: &Configuration, f: &mut Findings) {
    let mut seen = BTreeSet::new();
    for p in &c.programs {
        let at = &p.tile;
        if !inside(p.tile, c) || p.tile.kind() != Kind::Core {
            f.add(at, "programs run on cores");
        }
        if !seen.insert(p.tile) {
            f.add(at, "it has two programs");
        }
        let holds = |address: u32| {
            let mut mine = c.buffers.iter().filter(|b| b.tile == p.tile);
            mine.any(|b| b.address <= address && address - b.address < b.bytes)
        };
        for (n, i) in p.code.iter().enumerate() {
            match i {
                Instruction::IfLess(_, _, to)
                | Instruction::IfZero(_, to)
                | Instruction::Jump(to)
                    if *to as usize >= p.code.len() =>
                {
                    f.add(at, format!("instruction {n} goes to {to}, beyond the program"));
                }
                Instruction::Load(_, address, _, _) if !holds(*address) => {
                    f.add(at, format!("instruction {n} loads from outside every buffer"));
                }
                Instruction::Call(kernel, operands) => {
                    let expected = kernel.arguments();
                    if operands.len() != expected.len() {
                        f.add(at, format!("instruction {n}: wrong number of arguments"));
                    }
                    for (operand, kind) in operands.iter().zip(expected) {
                        match (operand, kind) {
                            (_, Argument::Number) => {}
                            (Operand::Value(address), _) if holds(*address) => {}
                            _ => f.add(at, format!("instruction {n}: an argument is no buffer")),
                        }
                    }
                }
                _ => {}
            }
        }
        if !matches!(p.code.last(), Some(Instruction::Jump(_))) {
            f.add(at, "its program ends");
        }
    }
}

/// All violations of a job's instructions on an array of `c`.
///
/// # Errors
/// Words that are no instructions.
pub fn check_instructions(c: &Configuration, words: &[u32]) -> Result<Vec<Violation>, TxnError> {
    let (columns, operations) = decode(words)?;
    let mut s = Sequence { columns, ..Sequence::default() };
    if columns != c.columns {
        s.f.add(&"instructions", format!("for {columns} columns, the array has {}", c.columns));
    }
    for operation in &operations {
        s.operation(operation);
    }
    for (channel, tokens) in &s.tokens {
        if *tokens > 0 {
            s.f.add(channel, "nobody waits for its token");
        }
    }
    Ok(s.f.0)
}

#[derive(Default)]
struct Sequence {
    columns: u8,
    f: Findings,
    /// Descriptors of shims; whether their address is patched.
    written: BTreeMap<(Tile, u32), bool>,
    /// Descriptors of tasks that nobody has waited for.
    pending: BTreeMap<Channel, Vec<u32>>,
    tokens: BTreeMap<Channel, u32>,
    controllers: BTreeSet<Channel>,
}

impl Sequence {
    fn operation(&mut self, operation: &Operation) {
        match operation {
            Operation::Block { register, words } => self.block(*register, words),
            Operation::Patch { register, argument, offset } => {
                let (tile, at) = place(*register);
                let id = at.wrapping_sub(0x1D000) / 0x20;
                let right = at.wrapping_sub(0x1D000) % 0x20 == 4;
                match self.written.get_mut(&(tile, id)) {
                    Some(patched) if right => *patched = true,
                    _ => self.f.add(&tile, format!("register {at:#x} is no address to patch")),
                }
                self.f.within(&tile, "the argument", (*argument).into(), u64::from(ARGUMENTS) - 1);
                self.f.within(&tile, "the offset", (*offset).into(), i32::MAX as u64);
            }
            Operation::Masked { register, .. } => match shim_channel(*register) {
                Some((channel, false)) => drop(self.controllers.insert(channel)),
                _ => self.f.add(&place(*register).0, "not a control register of a channel"),
            },
            Operation::Write { register, value } => self.push(*register, *value),
            Operation::Sync { tile, direction, channel } => {
                let direction = if *direction == 0 { Direction::S2mm } else { Direction::Mm2s };
                let channel = Channel { tile: *tile, direction, index: *channel };
                match self.tokens.get_mut(&channel) {
                    Some(tokens) if *tokens > 0 => *tokens -= 1,
                    _ => self.f.add(&channel, "a wait for a token that is never sent"),
                }
                self.pending.remove(&channel);
            }
        }
    }

    fn block(&mut self, register: u32, words: &[u32]) {
        let (tile, at) = place(register);
        let (id, rest) = (at.wrapping_sub(0x1D000) / 0x20, at.wrapping_sub(0x1D000) % 0x20);
        let limits = Limits::of(Kind::Shim);
        if tile.row != 0 || tile.col >= self.columns || rest != 0 || words.len() != 8 {
            self.f.add(&tile, format!("register {at:#x} is no descriptor of a shim"));
            return;
        }
        if id >= limits.descriptors.into() {
            self.f.add(&tile, format!("descriptor {id}: there are only {}", limits.descriptors));
        }
        if words[0] == 0 {
            self.f.add(&tile, format!("descriptor {id}: a transfer of no words never ends"));
        }
        // Wraps and steps lie above these bits; a linear transfer has none.
        if words[3] != 0 || words[4] & 0x3fff_ffff != 0 || words[6] != 0 {
            self.f.add(&tile, format!("descriptor {id} is not linear"));
        }
        if words[7] & 0x0200_0000 == 0 {
            self.f.add(&tile, format!("descriptor {id} is not valid"));
        }
        if self.pending.iter().any(|(c, ids)| c.tile == tile && ids.contains(&id)) {
            self.f.add(&tile, format!("descriptor {id} is written while a task uses it"));
        }
        self.written.insert((tile, id), false);
    }

    fn push(&mut self, register: u32, value: u32) {
        let Some((channel, true)) = shim_channel(register) else {
            self.f.add(&place(register).0, "not a queue of a channel");
            return;
        };
        let id = value & 15;
        match self.written.get(&(channel.tile, id)) {
            Some(true) => {}
            Some(false) => self.f.add(&channel, format!("descriptor {id} has no address")),
            None => self.f.add(&channel, format!("descriptor {id} is not written")),
        }
        self.f.within(
            &channel,
            "the repeat count",
            u64::from(value >> 16 & 255) + 1,
            REPEATS.into(),
        );
        let tasks = self.pending.entry(channel).or_default();
        tasks.push(id);
        self.f.within(&channel, "tasks without a wait", tasks.len() as u64, TASKS as u64);
        if value >> 31 != 0 {
            *self.tokens.entry(channel).or_default() += 1;
            if !self.controllers.contains(&channel) {
                self.f.add(&channel, "its token goes to no controller");
            }
        } else if channel.direction == Direction::S2mm {
            self.f.add(&channel, "results without a token: nobody knows when they are there");
        }
    }
}

fn place(register: u32) -> (Tile, u32) {
    let tile = Tile { col: (register >> 25) as u8, row: (register >> 20 & 31) as u8 };
    (tile, register & 0xf_ffff)
}

/// Where each resource is used most, by kind of tile.
#[must_use]
pub fn budget(c: &Configuration) -> Vec<Usage> {
    let mut out = Vec::new();
    for kind in [Kind::Core, Kind::Memory, Kind::Shim] {
        let tiles = (0..c.columns).flat_map(|col| (0..N_ROWS).map(move |row| Tile { col, row }));
        let tiles: Vec<Tile> = tiles.filter(|t| t.kind() == kind).collect();
        let mut most = |resource, limit: u32, used: &dyn Fn(Tile) -> u32| {
            let found = tiles.iter().rev().map(|t| (used(*t), *t)).max_by_key(|(used, _)| *used);
            if let Some((used, tile)) = found.filter(|_| limit > 0) {
                out.push(Usage { resource, tile, used, limit });
            }
        };
        let l = Limits::of(kind);
        let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        most("bytes of memory", l.memory, &|t| {
            let stack = if kind == Kind::Core { STACK_BYTES } else { 0 };
            stack + c.buffers.iter().filter(|b| b.tile == t).map(|b| b.bytes).sum::<u32>()
        });
        if kind != Kind::Shim {
            most("locks", l.locks.into(), &|t| {
                count(c.locks.iter().filter(|l| l.tile == t).count())
            });
            let of = |t, from: u8, to: u8| {
                let ids = c.descriptors.iter().filter(|d| d.tile == t);
                count(ids.filter(|d| (from..to).contains(&d.id)).count())
            };
            if kind == Kind::Memory {
                most("descriptors of even channels", 24, &|t| of(t, 0, 24));
                most("descriptors of odd channels", 24, &|t| of(t, 24, 48));
            } else {
                most("descriptors", l.descriptors.into(), &|t| of(t, 0, 16));
            }
        }
        for (name, side, out) in [
            ("S2MM channels", Side::Dma, true),
            ("MM2S channels", Side::Dma, false),
            ("ports out to the north", Side::North, true),
            ("ports out to the south", Side::South, true),
            ("ports out to the east", Side::East, true),
        ] {
            most(name, ports(kind, side, out).into(), &|t| {
                let port = |w: &Connection| if out { w.to } else { w.from };
                let wires = c.connections.iter().filter(|w| w.tile == t && port(w).side == side);
                count(wires.map(port).collect::<BTreeSet<_>>().len())
            });
        }
    }
    out
}
