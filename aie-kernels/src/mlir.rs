//! A configuration, and the instructions of a job, as the MLIR text that the vendor's compiler reads
//! (`aiecc` 1.4 of mlir-aie, in the custom form of its `aie` and `aiex` dialects).
//!
//! Everything is pinned: addresses of buffers, numbers of locks and descriptors, and every wire of every
//! stream switch, so that what the verifier counted and the simulator ran is what gets compiled. The
//! programs of cores become branches between blocks (`core`), the instructions a
//! `runtime_sequence` of the same register writes (`sequence`).

mod core;
mod sequence;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::array::{
    Buffer, Channel, Configuration, Descriptor, Direction, Instruction, Kind, Operand, Port, Side,
    Tile,
};
use crate::design::STACK_BYTES;
use crate::host::{Argument, Kernel};
use crate::txn::TxnError;

pub use sequence::Sequence;

/// The configuration has no form in MLIR.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MlirError {
    /// An address that is in no buffer, or not where it has to be.
    #[error("{tile}: address {address:#x} is not {expected}")]
    Address {
        /// The tile.
        tile: Tile,
        /// The address.
        address: u32,
        /// What it should be.
        expected: &'static str,
    },
    /// A buffer that one kernel takes as integers and another one as floats.
    #[error("{tile}: kernels do not agree whether `{buffer}` holds integers")]
    Element {
        /// The tile.
        tile: Tile,
        /// The buffer.
        buffer: String,
    },
    /// A register that is read before it is set.
    #[error("{tile}: register {register} is read before it is set")]
    Unset {
        /// The core.
        tile: Tile,
        /// The register.
        register: u8,
    },
    /// A program without its end, or that leaves itself.
    #[error("{tile}: instruction {at}: {problem}")]
    Program {
        /// The core.
        tile: Tile,
        /// The instruction.
        at: usize,
        /// What is wrong.
        problem: &'static str,
    },
    /// Instructions that are none.
    #[error(transparent)]
    Instructions(#[from] TxnError),
}

/// Element of a buffer's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Element {
    I32,
    F32,
}

impl Element {
    fn memref(self, bytes: u32) -> String {
        let name = match self {
            Self::I32 => "i32",
            Self::F32 => "f32",
        };
        format!("memref<{}x{name}>", bytes / 4)
    }
}

/// Lines at a depth.
#[derive(Debug, Default)]
struct Text {
    out: String,
    depth: usize,
}

impl Text {
    fn line(&mut self, line: impl AsRef<str>) {
        let line = line.as_ref();
        // Writing to a string does not fail. Labels stand one step out.
        let depth = self.depth - usize::from(line.starts_with('^'));
        let _ = writeln!(self.out, "{:1$}{line}", "", 2 * depth);
    }

    fn open(&mut self, line: impl AsRef<str>) {
        self.line(line);
        self.depth += 1;
    }

    fn close(&mut self, line: &str) {
        self.depth -= 1;
        self.line(line);
    }
}

/// The device of `c` with a `runtime_sequence` for each of `sequences`.
///
/// # Errors
/// Addresses outside of buffers, programs that no blocks of MLIR express, words that are no instructions.
pub fn module(c: &Configuration, sequences: &[Sequence<'_>]) -> Result<String, MlirError> {
    let elements = elements(c)?;
    let mut t = Text::default();
    t.open("module {");
    t.open("aie.device(npu2) {");
    for kernel in Kernel::ALL {
        if let Some(call) = calls(c).find(|(_, k, _)| *k == kernel) {
            t.line(declaration(kernel, &parameters(c, &elements, call)?));
        }
    }
    for tile in tiles(c) {
        t.line(format!("%tile_{0}_{1} = aie.tile({0}, {1})", tile.col, tile.row));
    }
    for b in &c.buffers {
        let name = name(b);
        let (tile, element) = (tile_name(b.tile), element(&elements, b));
        t.line(format!(
            "%{name} = aie.buffer({tile}) {{address = {} : i32, sym_name = \"{name}\"}} : {}",
            b.address,
            element.memref(b.bytes)
        ));
    }
    for l in &c.locks {
        let name = lock_name(l.tile, l.id);
        t.line(format!(
            "%{name} = aie.lock({}, {}) {{init = {} : i32, sym_name = \"{name}\"}}",
            tile_name(l.tile),
            l.id,
            l.init
        ));
    }
    for tile in tiles(c) {
        switch(c, tile, &mut t);
    }
    for tile in tiles(c).filter(|t| t.kind() != Kind::Shim) {
        dma(c, &elements, tile, &mut t)?;
    }
    for program in &c.programs {
        core::emit(c, &elements, program, &mut t)?;
    }
    sequence::emit(sequences, &mut t)?;
    t.close("}");
    t.close("}");
    Ok(t.out)
}

/// How MLIR declares a kernel: `parameters` are the types of its arguments.
#[must_use]
pub fn declaration(kernel: Kernel, parameters: &[String]) -> String {
    format!(
        "func.func private @{}({}) attributes {{link_with = \"{}.o\"}}",
        kernel.symbol(),
        parameters.join(", "),
        kernel.source()
    )
}

fn tiles(c: &Configuration) -> impl Iterator<Item = Tile> {
    let columns = c.columns;
    (0..columns).flat_map(|col| (0..crate::array::N_ROWS).map(move |row| Tile { col, row }))
}

fn tile_name(tile: Tile) -> String {
    format!("%tile_{}_{}", tile.col, tile.row)
}

fn name(b: &Buffer) -> String {
    format!("{}_{}_{}", b.name, b.tile.col, b.tile.row)
}

fn lock_name(tile: Tile, id: u8) -> String {
    format!("lock_{}_{}_{id}", tile.col, tile.row)
}

/// Calls of kernels in all programs.
fn calls(c: &Configuration) -> impl Iterator<Item = (Tile, Kernel, &[Operand])> {
    c.programs.iter().flat_map(|p| {
        p.code.iter().filter_map(|i| match i {
            Instruction::Call(kernel, operands) => Some((p.tile, *kernel, operands.as_slice())),
            _ => None,
        })
    })
}

/// The buffer that begins at an address.
fn buffer_at(c: &Configuration, tile: Tile, address: u32) -> Result<&Buffer, MlirError> {
    let mut all = c.buffers.iter();
    all.find(|b| b.tile == tile && b.address == address).ok_or(MlirError::Address {
        tile,
        address,
        expected: "the beginning of a buffer",
    })
}

/// The buffer that an address is in.
fn buffer_of(c: &Configuration, tile: Tile, address: u32) -> Result<&Buffer, MlirError> {
    let mut all = c.buffers.iter().filter(|b| b.tile == tile);
    all.find(|b| b.address <= address && address - b.address < b.bytes).ok_or(MlirError::Address {
        tile,
        address,
        expected: "in a buffer",
    })
}

/// Where the buffers are that kernels take, and as what.
type Elements = BTreeMap<(Tile, u32), Element>;

fn elements(c: &Configuration) -> Result<Elements, MlirError> {
    let mut out = Elements::new();
    for (tile, kernel, operands) in calls(c) {
        for (operand, argument) in operands.iter().zip(kernel.arguments()) {
            let (Operand::Value(address), element) = (*operand, kind(*argument)) else { continue };
            let Some(element) = element else { continue };
            let buffer = buffer_at(c, tile, address)?;
            if *out.entry((tile, address)).or_insert(element) != element {
                return Err(MlirError::Element { tile, buffer: buffer.name.clone() });
            }
        }
    }
    Ok(out)
}

fn kind(argument: Argument) -> Option<Element> {
    match argument {
        Argument::Words => Some(Element::I32),
        Argument::Floats => Some(Element::F32),
        Argument::Number => None,
    }
}

/// What no kernel takes is words.
fn element(elements: &Elements, b: &Buffer) -> Element {
    elements.get(&(b.tile, b.address)).copied().unwrap_or(Element::I32)
}

/// Types of the arguments of a call.
fn parameters(
    c: &Configuration,
    elements: &Elements,
    (tile, kernel, operands): (Tile, Kernel, &[Operand]),
) -> Result<Vec<String>, MlirError> {
    let type_of = |(operand, argument): (&Operand, &Argument)| match (*operand, kind(*argument)) {
        (_, None) => Ok("i32".to_owned()),
        (Operand::Value(address), Some(_)) => {
            let b = buffer_at(c, tile, address)?;
            Ok(element(elements, b).memref(b.bytes))
        }
        (Operand::Register(register), Some(_)) => Err(MlirError::Address {
            tile,
            address: register.into(),
            expected: "known: a buffer cannot be in a register",
        }),
    };
    operands.iter().zip(kernel.arguments()).map(type_of).collect()
}

/// The stream switch of a tile; in a shim, also the multiplexer between it and the DMA.
fn switch(c: &Configuration, tile: Tile, t: &mut Text) {
    let wires: Vec<_> = c.connections.iter().filter(|w| w.tile == tile).collect();
    if wires.is_empty() {
        return;
    }
    let (col, row) = (tile.col, tile.row);
    let connect = |from: String, to: String| format!("aie.connect<{from}, {to}>");
    t.open(format!("%switchbox_{col}_{row} = aie.switchbox({}) {{", tile_name(tile)));
    for w in &wires {
        t.line(connect(port(tile, w.from, false), port(tile, w.to, true)));
    }
    t.close("}");
    let mut muxed: Vec<String> = Vec::new();
    for w in wires.iter().filter(|_| tile.kind() == Kind::Shim) {
        let dma = |p: Port| format!("DMA : {}", p.index);
        let north = |p: Port, out| port(tile, p, out).replace("South", "North");
        let mut add = |line| (!muxed.contains(&line)).then(|| muxed.push(line));
        if w.from.side == Side::Dma {
            add(connect(dma(w.from), north(w.from, false)));
        }
        if w.to.side == Side::Dma {
            add(connect(north(w.to, true), dma(w.to)));
        }
    }
    if !muxed.is_empty() {
        t.open(format!("%shim_mux_{col}_{row} = aie.shim_mux({}) {{", tile_name(tile)));
        muxed.iter().for_each(|line| t.line(line));
        t.close("}");
    }
}

/// A port as MLIR names it. The DMA of a shim hangs on ports of the switch's south: 3 and 7 into it,
/// 2 and 3 out of it.
fn port(tile: Tile, port: Port, out: bool) -> String {
    let side = match port.side {
        Side::Dma if tile.kind() == Kind::Shim => {
            let south = if out { port.index + 2 } else { 4 * port.index + 3 };
            return format!("South : {south}");
        }
        Side::Dma => "DMA",
        Side::North => "North",
        Side::South => "South",
        Side::East => "East",
        Side::West => "West",
    };
    format!("{side} : {}", port.index)
}

/// The channels of a tile that run from the start.
fn dma(c: &Configuration, elements: &Elements, tile: Tile, t: &mut Text) -> Result<(), MlirError> {
    let starts: Vec<_> = c.starts.iter().filter(|s| s.channel.tile == tile).collect();
    if starts.is_empty() {
        return Ok(());
    }
    let mut values: Vec<u32> = Vec::new();
    for d in c.descriptors.iter().filter(|d| d.tile == tile) {
        values.extend([d.acquire.1, d.release.1]);
    }
    values.sort_unstable();
    values.dedup();
    let op = if tile.kind() == Kind::Memory { "memtile_dma" } else { "mem" };
    t.open(format!("%dma_{}_{} = aie.{op}({}) {{", tile.col, tile.row, tile_name(tile)));
    for value in values {
        t.line(format!("%c{value} = arith.constant {value} : i32"));
    }
    for (i, s) in starts.iter().enumerate() {
        if i > 0 {
            t.line(format!("^start{i}:"));
        }
        let next = if i + 1 < starts.len() { format!("start{}", i + 1) } else { "end".to_owned() };
        let Channel { direction, index, .. } = s.channel;
        let direction = match direction {
            Direction::S2mm => "S2MM",
            Direction::Mm2s => "MM2S",
        };
        let first = s.descriptor;
        t.line(format!("%start{i} = aie.dma_start({direction}, {index}, ^bd{first}, ^{next})"));
        let (mut at, mut seen) = (first, Vec::new());
        while !seen.contains(&at) {
            let Some(d) = c.descriptors.iter().find(|d| (d.tile, d.id) == (tile, at)) else {
                break;
            };
            descriptor(c, elements, d, t)?;
            seen.push(at);
            at = d.next;
        }
    }
    t.line("^end:");
    t.line("aie.end");
    t.close("}");
    Ok(())
}

fn descriptor(
    c: &Configuration,
    elements: &Elements,
    d: &Descriptor,
    t: &mut Text,
) -> Result<(), MlirError> {
    let b = buffer_of(c, d.tile, d.address)?;
    let use_lock = |lock: (u8, u32), how: &str| {
        format!("aie.use_lock(%{}, {how}, %c{})", lock_name(d.tile, lock.0), lock.1)
    };
    let mut shape = String::new();
    if !d.dimensions.is_empty() {
        // Outermost first.
        let list = |of: fn(&crate::array::Dimension) -> u32| {
            let all: Vec<_> = d.dimensions.iter().rev().map(|d| of(d).to_string()).collect();
            all.join(", ")
        };
        shape = format!(" sizes = [{}] strides = [{}]", list(|d| d.size), list(|d| d.step));
    }
    t.line(format!("^bd{}:", d.id));
    t.line(use_lock(d.acquire, "AcquireGreaterEqual"));
    t.line(format!(
        "aie.dma_bd(%{} : {} offset = {} len = {}{shape}) {{bd_id = {} : i32}}",
        name(b),
        element(elements, b).memref(b.bytes),
        (d.address - b.address) / 4,
        d.words,
        d.id
    ));
    t.line(use_lock(d.release, "Release"));
    t.line(format!("aie.next_bd ^bd{}", d.next));
    Ok(())
}
