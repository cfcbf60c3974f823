//! What the array is configured with: buffers, locks, buffer descriptors, routes and core programs; and
//! its binary form, which is all that the simulator sees.

use crate::host::Kernel;

/// Rows of the array: shim, memory tiles, four rows of cores.
pub const N_ROWS: u8 = 6;

/// A tile of the array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tile {
    /// Column.
    pub col: u8,
    /// Row, 0 for the shim.
    pub row: u8,
}

impl std::fmt::Display for Tile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let kind = match self.kind() {
            Kind::Shim => "shim",
            Kind::Memory => "memory tile",
            Kind::Core => "core",
        };
        write!(f, "{kind} ({}, {})", self.col, self.row)
    }
}

/// What stands in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Row 0: to memory of the host.
    Shim,
    /// Row 1.
    Memory,
    /// Rows 2 to 5.
    Core,
}

impl Tile {
    /// What it is.
    #[must_use]
    pub fn kind(self) -> Kind {
        match self.row {
            0 => Kind::Shim,
            1 => Kind::Memory,
            _ => Kind::Core,
        }
    }
}

/// Direction of a DMA channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// From a stream into memory.
    S2mm,
    /// From memory into a stream.
    Mm2s,
}

/// A DMA channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Channel {
    /// Its tile.
    pub tile: Tile,
    /// Its direction.
    pub direction: Direction,
    /// Its number.
    pub index: u8,
}

impl std::fmt::Display for Channel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let direction = match self.direction {
            Direction::S2mm => "S2MM",
            Direction::Mm2s => "MM2S",
        };
        write!(f, "{} {direction}{}", self.tile, self.index)
    }
}

/// Sides of a stream switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Side {
    /// The tile's own DMA. (In a shim, through its multiplexer.)
    Dma = 0,
    /// The tile above.
    North = 1,
    /// The tile below.
    South = 2,
    /// The next column.
    East = 3,
    /// The column before.
    West = 4,
}

/// A port of a stream switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port {
    /// The side.
    pub side: Side,
    /// The number on that side; for DMA ports that of the channel.
    pub index: u8,
}

/// A wire in a stream switch. Several from one port are a multicast.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Connection {
    /// The tile.
    pub tile: Tile,
    /// Where data comes in.
    pub from: Port,
    /// Where it goes out.
    pub to: Port,
}

/// Memory of a tile with a name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Buffer {
    /// The tile.
    pub tile: Tile,
    /// The name, unique in the tile.
    pub name: String,
    /// Byte address in the tile's memory.
    pub address: u32,
    /// Length.
    pub bytes: u32,
}

/// A lock's value at the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lock {
    /// The tile.
    pub tile: Tile,
    /// Its number.
    pub id: u8,
    /// Value at the start.
    pub init: u32,
}

/// A dimension of a transfer: how often, and how many words from one to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dimension {
    /// Elements.
    pub size: u32,
    /// Words between them.
    pub step: u32,
}

/// A buffer descriptor of a memory tile or a core.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Descriptor {
    /// The tile.
    pub tile: Tile,
    /// Its number.
    pub id: u8,
    /// Byte address in the tile's memory.
    pub address: u32,
    /// Words of 32 bits.
    pub words: u32,
    /// Innermost first; empty for consecutive words.
    pub dimensions: Vec<Dimension>,
    /// Lock that has to be at least this value, which is then subtracted.
    pub acquire: (u8, u32),
    /// Lock and what is added at the end.
    pub release: (u8, u32),
    /// The descriptor after it.
    pub next: u8,
}

/// A channel that runs from the start, and its first descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Start {
    /// The channel.
    pub channel: Channel,
    /// Number of the first descriptor.
    pub descriptor: u8,
}

/// Argument of a kernel call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operand {
    /// An address or a number.
    Value(u32),
    /// A register of the program.
    Register(u8),
}

/// Instruction of a core program, a machine of eight registers.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Instruction {
    /// Register = number.
    Set(u8, u32),
    /// Register + 1.
    Increment(u8),
    /// Register xor 1: the other half of a ring of two.
    Flip(u8),
    /// First register = word at address + second register * stride.
    Load(u8, u32, u8, u32),
    /// Waits until the lock has this value, and subtracts it.
    Acquire(u8, u32),
    /// Adds to the lock.
    Release(u8, u32),
    /// Calls a kernel.
    Call(Kernel, Vec<Operand>),
    /// Goes to the instruction if the first register is less than the second.
    IfLess(u8, u8, u32),
    /// Goes to the instruction if the register is zero.
    IfZero(u8, u32),
    /// Goes to the instruction.
    Jump(u32),
}

/// Program of a core.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Program {
    /// The core.
    pub tile: Tile,
    /// Its instructions.
    pub code: Vec<Instruction>,
}

/// All of it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Configuration {
    /// Columns in use.
    pub columns: u8,
    /// Named memory.
    pub buffers: Vec<Buffer>,
    /// Locks.
    pub locks: Vec<Lock>,
    /// Descriptors of memory tiles and cores; those of the shim come with the instructions of a job.
    pub descriptors: Vec<Descriptor>,
    /// Channels that run from the start.
    pub starts: Vec<Start>,
    /// Wires.
    pub connections: Vec<Connection>,
    /// Programs.
    pub programs: Vec<Program>,
}

const MAGIC: u32 = 0x3145_4941; // "AIE1"

/// The bytes are no configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("configuration: word {at}: {problem}")]
pub struct DecodeError {
    /// Index of the word.
    pub at: usize,
    /// What is wrong.
    pub problem: &'static str,
}

fn tile_word(tile: Tile) -> u32 {
    u32::from(tile.col) << 8 | u32::from(tile.row)
}

fn port_word(port: Port) -> u32 {
    (port.side as u32) << 8 | u32::from(port.index)
}

impl Configuration {
    /// The binary form: little-endian words. Names of buffers are not part of it.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![MAGIC, self.columns.into()];
        let mut section = |n: usize, words: Vec<u32>| {
            out.push(n as u32);
            out.extend(words);
        };
        let locks = self.locks.iter().flat_map(|l| [tile_word(l.tile), l.id.into(), l.init]);
        section(self.locks.len(), locks.collect());
        let descriptors = self.descriptors.iter().flat_map(|d| {
            let mut words = vec![
                tile_word(d.tile),
                d.id.into(),
                d.address,
                d.words,
                d.acquire.0.into(),
                d.acquire.1,
                d.release.0.into(),
                d.release.1,
                d.next.into(),
                d.dimensions.len() as u32,
            ];
            words.extend(d.dimensions.iter().flat_map(|d| [d.size, d.step]));
            words
        });
        section(self.descriptors.len(), descriptors.collect());
        let starts = self.starts.iter().flat_map(|s| {
            let c = s.channel;
            [tile_word(c.tile), c.direction as u32, c.index.into(), s.descriptor.into()]
        });
        section(self.starts.len(), starts.collect());
        let wires = self.connections.iter();
        let wires = wires.flat_map(|c| [tile_word(c.tile), port_word(c.from), port_word(c.to)]);
        section(self.connections.len(), wires.collect());
        let programs = self.programs.iter().flat_map(|p| {
            let code: Vec<u32> = p.code.iter().flat_map(instruction_words).collect();
            [vec![tile_word(p.tile), p.code.len() as u32], code].concat()
        });
        section(self.programs.len(), programs.collect());
        out.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads what [`encode`](Self::encode) wrote.
    ///
    /// # Errors
    /// Bytes that are something else.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let (words, rest) = bytes.as_chunks::<4>();
        let mut r = Reader { words, at: 0 };
        if !rest.is_empty() || r.word()? != MAGIC {
            return r.fail("not a configuration");
        }
        let columns = r.byte()?;
        if columns == 0 || columns > 8 {
            return r.fail("expected 1 to 8 columns");
        }
        let mut out = Self { columns, ..Self::default() };
        for _ in 0..r.word()? {
            out.locks.push(Lock { tile: r.tile(columns)?, id: r.byte()?, init: r.word()? });
        }
        for _ in 0..r.word()? {
            let mut d = Descriptor {
                tile: r.tile(columns)?,
                id: r.byte()?,
                address: r.word()?,
                words: r.word()?,
                acquire: (r.byte()?, r.word()?),
                release: (r.byte()?, r.word()?),
                next: r.byte()?,
                dimensions: Vec::new(),
            };
            for _ in 0..r.word()? {
                d.dimensions.push(Dimension { size: r.word()?, step: r.word()? });
            }
            out.descriptors.push(d);
        }
        for _ in 0..r.word()? {
            let channel = r.channel(columns)?;
            out.starts.push(Start { channel, descriptor: r.byte()? });
        }
        for _ in 0..r.word()? {
            let tile = r.tile(columns)?;
            out.connections.push(Connection { tile, from: r.port()?, to: r.port()? });
        }
        for _ in 0..r.word()? {
            let tile = r.tile(columns)?;
            let mut code = Vec::new();
            for _ in 0..r.word()? {
                code.push(r.instruction()?);
            }
            out.programs.push(Program { tile, code });
        }
        if r.at != words.len() { r.fail("words behind the end") } else { Ok(out) }
    }
}

fn instruction_words(instruction: &Instruction) -> Vec<u32> {
    use Instruction::{Acquire, Call, Flip, IfLess, IfZero, Increment, Jump, Load, Release, Set};
    match *instruction {
        Set(r, value) => vec![0, r.into(), value],
        Increment(r) => vec![1, r.into()],
        Flip(r) => vec![2, r.into()],
        Load(r, address, index, stride) => vec![3, r.into(), address, index.into(), stride],
        Acquire(lock, value) => vec![4, lock.into(), value],
        Release(lock, value) => vec![5, lock.into(), value],
        Call(kernel, ref operands) => {
            let mut words = vec![6, kernel as u32, operands.len() as u32];
            for operand in operands {
                words.extend(match *operand {
                    Operand::Value(value) => [0, value],
                    Operand::Register(r) => [1, r.into()],
                });
            }
            words
        }
        IfLess(a, b, to) => vec![7, a.into(), b.into(), to],
        IfZero(r, to) => vec![8, r.into(), to],
        Jump(to) => vec![9, to],
    }
}

struct Reader<'a> {
    words: &'a [[u8; 4]],
    at: usize,
}

impl Reader<'_> {
    fn fail<T>(&self, problem: &'static str) -> Result<T, DecodeError> {
        Err(DecodeError { at: self.at, problem })
    }

    fn word(&mut self) -> Result<u32, DecodeError> {
        let Some(word) = self.words.get(self.at) else { return self.fail("missing") };
        self.at += 1;
        Ok(u32::from_le_bytes(*word))
    }

    fn byte(&mut self) -> Result<u8, DecodeError> {
        let word = self.word()?;
        u8::try_from(word).or_else(|_| self.fail("expected a value below 256"))
    }

    fn register(&mut self) -> Result<u8, DecodeError> {
        let r = self.byte()?;
        if r < 8 { Ok(r) } else { self.fail("expected one of 8 registers") }
    }

    fn tile(&mut self, columns: u8) -> Result<Tile, DecodeError> {
        let word = self.word()?;
        let tile = Tile { col: (word >> 8 & 255) as u8, row: (word & 255) as u8 };
        let inside = word < 1 << 16 && tile.col < columns && tile.row < N_ROWS;
        if inside { Ok(tile) } else { self.fail("no such tile") }
    }

    fn channel(&mut self, columns: u8) -> Result<Channel, DecodeError> {
        let tile = self.tile(columns)?;
        let direction = match self.word()? {
            0 => Direction::S2mm,
            1 => Direction::Mm2s,
            _ => return self.fail("no such direction"),
        };
        Ok(Channel { tile, direction, index: self.byte()? })
    }

    fn port(&mut self) -> Result<Port, DecodeError> {
        let word = self.word()?;
        let side = match word >> 8 {
            0 => Side::Dma,
            1 => Side::North,
            2 => Side::South,
            3 => Side::East,
            4 => Side::West,
            _ => return self.fail("no such side of a switch"),
        };
        Ok(Port { side, index: (word & 255) as u8 })
    }

    fn instruction(&mut self) -> Result<Instruction, DecodeError> {
        Ok(match self.word()? {
            0 => Instruction::Set(self.register()?, self.word()?),
            1 => Instruction::Increment(self.register()?),
            2 => Instruction::Flip(self.register()?),
            3 => Instruction::Load(self.register()?, self.word()?, self.register()?, self.word()?),
            4 => Instruction::Acquire(self.byte()?, self.word()?),
            5 => Instruction::Release(self.byte()?, self.word()?),
            6 => {
                let id = self.word()?;
                let Some(&kernel) = Kernel::ALL.iter().find(|k| **k as u32 == id) else {
                    return self.fail("no such kernel");
                };
                let mut operands = Vec::new();
                for _ in 0..self.word()? {
                    operands.push(match self.word()? {
                        0 => Operand::Value(self.word()?),
                        1 => Operand::Register(self.register()?),
                        _ => return self.fail("no such operand"),
                    });
                }
                Instruction::Call(kernel, operands)
            }
            7 => Instruction::IfLess(self.register()?, self.register()?, self.word()?),
            8 => Instruction::IfZero(self.register()?, self.word()?),
            9 => Instruction::Jump(self.word()?),
            _ => return self.fail("no such instruction"),
        })
    }
}
