//! The program of a core as blocks of MLIR.
//!
//! A block begins where a branch leads or after one. The registers that a block reads before it sets
//! them are its arguments; constants stand in the entry. A program never ends, so its last block, which
//! only ends the operation, is one that nothing leads to.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Elements, MlirError, STACK_BYTES, Text, buffer_of, element, lock_name, name, tile_name,
};
use crate::array::{Configuration, Instruction, Operand, Program, Tile};
use crate::host::{Argument, Kernel};

/// Registers by the name of the value that they hold.
type Values = BTreeMap<u8, String>;

struct Emitter<'a> {
    c: &'a Configuration,
    elements: &'a Elements,
    tile: Tile,
    code: &'a [Instruction],
    /// First instruction of each block, and the registers it takes.
    blocks: BTreeMap<usize, BTreeSet<u8>>,
    n_values: usize,
}

/// Writes the core of a program.
pub(super) fn emit(
    c: &Configuration,
    elements: &Elements,
    program: &Program,
    t: &mut Text,
) -> Result<(), MlirError> {
    let (tile, code) = (program.tile, program.code.as_slice());
    let blocks = blocks(tile, code)?;
    if let Some(register) = blocks[&0].first() {
        return Err(MlirError::Unset { tile, register: *register });
    }
    let mut e = Emitter { c, elements, tile, code, blocks, n_values: 0 };
    t.open(format!("%core_{}_{} = aie.core({}) {{", tile.col, tile.row, tile_name(tile)));
    for value in constants(c, tile, code)? {
        // Constants are written as signed numbers.
        t.line(format!("%c{value} = arith.constant {} : i32", value.cast_signed()));
    }
    let starts: Vec<usize> = e.blocks.keys().copied().collect();
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(code.len());
        e.block(start, end, t)?;
    }
    t.line("^end:");
    t.line("aie.end");
    t.close(&format!("}} {{stack_size = {STACK_BYTES} : i32}}"));
    Ok(())
}

fn target(instruction: &Instruction) -> Option<u32> {
    match *instruction {
        Instruction::IfLess(_, _, to) | Instruction::IfZero(_, to) | Instruction::Jump(to) => {
            Some(to)
        }
        _ => None,
    }
}

/// Registers that an instruction reads, and the one that it sets.
fn uses(instruction: &Instruction) -> (Vec<u8>, Option<u8>) {
    match *instruction {
        Instruction::Set(to, _) => (Vec::new(), Some(to)),
        Instruction::Increment(r) | Instruction::Flip(r) => (vec![r], Some(r)),
        Instruction::Load(to, _, index, _) => (vec![index], Some(to)),
        Instruction::IfLess(a, b, _) => (vec![a, b], None),
        Instruction::IfZero(r, _) => (vec![r], None),
        Instruction::Call(_, ref operands) => {
            let register = |o: &Operand| match *o {
                Operand::Register(r) => Some(r),
                Operand::Value(_) => None,
            };
            (operands.iter().filter_map(register).collect(), None)
        }
        Instruction::Acquire(..) | Instruction::Release(..) | Instruction::Jump(_) => {
            (Vec::new(), None)
        }
    }
}

/// Where blocks begin, with the registers that are live there.
fn blocks(tile: Tile, code: &[Instruction]) -> Result<BTreeMap<usize, BTreeSet<u8>>, MlirError> {
    let problem = |at, problem| Err(MlirError::Program { tile, at, problem });
    if !matches!(code.last(), Some(Instruction::Jump(_))) {
        return problem(code.len(), "a program ends with a jump");
    }
    let mut out = BTreeMap::from([(0, BTreeSet::new())]);
    for (at, instruction) in code.iter().enumerate() {
        let Some(to) = target(instruction) else { continue };
        if to as usize >= code.len() {
            return problem(at, "a branch out of the program");
        }
        out.insert(to as usize, BTreeSet::new());
        if at + 1 < code.len() {
            out.insert(at + 1, BTreeSet::new());
        }
    }
    // Liveness, backwards, until nothing changes.
    loop {
        let before = out.clone();
        let starts: Vec<usize> = out.keys().copied().collect();
        for (i, &start) in starts.iter().enumerate().rev() {
            let end = starts.get(i + 1).copied().unwrap_or(code.len());
            let mut live = BTreeSet::new();
            if !matches!(code[end - 1], Instruction::Jump(_)) {
                live.extend(out.get(&end).into_iter().flatten());
            }
            for instruction in code[start..end].iter().rev() {
                if let Some(to) = target(instruction) {
                    live.extend(out[&(to as usize)].iter());
                }
                let (read, set) = uses(instruction);
                set.map(|r| live.remove(&r));
                live.extend(read);
            }
            out.insert(start, live);
        }
        if out == before {
            return Ok(out);
        }
    }
}

/// All numbers of a program.
fn constants(
    c: &Configuration,
    tile: Tile,
    code: &[Instruction],
) -> Result<BTreeSet<u32>, MlirError> {
    let mut out = BTreeSet::new();
    for instruction in code {
        match *instruction {
            Instruction::Set(_, value)
            | Instruction::Acquire(_, value)
            | Instruction::Release(_, value) => drop(out.insert(value)),
            Instruction::Increment(_) | Instruction::Flip(_) => drop(out.insert(1)),
            Instruction::IfZero(..) => drop(out.insert(0)),
            Instruction::Load(_, address, _, stride) => {
                out.extend([word_offset(c, tile, address)?, words(tile, stride)?]);
            }
            Instruction::Call(kernel, ref operands) => {
                for (operand, argument) in operands.iter().zip(kernel.arguments()) {
                    if let (Operand::Value(value), Argument::Number) = (*operand, *argument) {
                        out.insert(value);
                    }
                }
            }
            Instruction::IfLess(..) | Instruction::Jump(_) => {}
        }
    }
    Ok(out)
}

fn words(tile: Tile, bytes: u32) -> Result<u32, MlirError> {
    let whole = bytes.is_multiple_of(4).then_some(bytes / 4);
    whole.ok_or(MlirError::Address { tile, address: bytes, expected: "a whole number of words" })
}

/// Words from the beginning of the buffer that an address is in.
fn word_offset(c: &Configuration, tile: Tile, address: u32) -> Result<u32, MlirError> {
    words(tile, address - buffer_of(c, tile, address)?.address)
}

impl Emitter<'_> {
    fn value(&mut self) -> String {
        self.n_values += 1;
        format!("%v{}", self.n_values)
    }

    /// A branch's aim with the values it hands over.
    fn aim(&self, to: usize, values: &Values) -> String {
        let live: Vec<&String> = self.blocks[&to].iter().map(|r| &values[r]).collect();
        if live.is_empty() {
            return format!("^i{to}");
        }
        let names: Vec<&str> = live.iter().map(|v| v.as_str()).collect();
        let types = vec!["i32"; live.len()].join(", ");
        format!("^i{to}({} : {types})", names.join(", "))
    }

    fn block(&mut self, start: usize, end: usize, t: &mut Text) -> Result<(), MlirError> {
        let mut values = Values::new();
        if start > 0 {
            let mut arguments = Vec::new();
            for r in &self.blocks[&start] {
                let name = format!("%i{start}_r{r}");
                arguments.push(format!("{name}: i32"));
                values.insert(*r, name);
            }
            let arguments = arguments.join(", ");
            let arguments = if arguments.is_empty() { arguments } else { format!("({arguments})") };
            t.line(format!("^i{start}{arguments}:"));
        }
        for at in start..end {
            let instruction = self.code[at].clone();
            self.instruction(&instruction, at, &mut values, t)?;
        }
        if target(&self.code[end - 1]).is_none() {
            t.line(format!("cf.br {}", self.aim(end, &values)));
        }
        Ok(())
    }

    fn instruction(
        &mut self,
        instruction: &Instruction,
        at: usize,
        values: &mut Values,
        t: &mut Text,
    ) -> Result<(), MlirError> {
        let tile = self.tile;
        match *instruction {
            Instruction::Set(to, value) => drop(values.insert(to, format!("%c{value}"))),
            Instruction::Increment(r) | Instruction::Flip(r) => {
                let flips = matches!(instruction, Instruction::Flip(_));
                let op = if flips { "xori" } else { "addi" };
                let v = self.value();
                t.line(format!("{v} = arith.{op} {}, %c1 : i32", values[&r]));
                values.insert(r, v);
            }
            Instruction::Load(to, address, index, stride) => {
                let b = buffer_of(self.c, tile, address)?;
                let at = word_offset(self.c, tile, address)?;
                let (product, sum, index_value) = (self.value(), self.value(), self.value());
                let v = self.value();
                let stride = words(tile, stride)?;
                t.line(format!("{product} = arith.muli {}, %c{stride} : i32", values[&index]));
                t.line(format!("{sum} = arith.addi {product}, %c{at} : i32"));
                t.line(format!("{index_value} = arith.index_cast {sum} : i32 to index"));
                let memref = element(self.elements, b).memref(b.bytes);
                if memref.ends_with("f32>") {
                    return Err(MlirError::Element { tile, buffer: b.name.clone() });
                }
                t.line(format!("{v} = memref.load %{}[{index_value}] : {memref}", name(b)));
                values.insert(to, v);
            }
            Instruction::Acquire(lock, value) => t.line(format!(
                "aie.use_lock(%{}, AcquireGreaterEqual, %c{value})",
                lock_name(tile, lock)
            )),
            Instruction::Release(lock, value) => {
                t.line(format!("aie.use_lock(%{}, Release, %c{value})", lock_name(tile, lock)))
            }
            Instruction::Call(kernel, ref operands) => self.call(kernel, operands, values, t)?,
            Instruction::IfLess(a, b, to) => {
                let (a, b) = (values[&a].clone(), values[&b].clone());
                self.branch(&format!("ult, {a}, {b}"), to as usize, at, values, t);
            }
            Instruction::IfZero(r, to) => {
                let r = values[&r].clone();
                self.branch(&format!("eq, {r}, %c0"), to as usize, at, values, t);
            }
            Instruction::Jump(to) => t.line(format!("cf.br {}", self.aim(to as usize, values))),
        }
        Ok(())
    }

    fn branch(&mut self, compare: &str, to: usize, at: usize, values: &Values, t: &mut Text) {
        let v = self.value();
        t.line(format!("{v} = arith.cmpi {compare} : i32"));
        let (yes, no) = (self.aim(to, values), self.aim(at + 1, values));
        t.line(format!("cf.cond_br {v}, {yes}, {no}"));
    }

    fn call(
        &self,
        kernel: Kernel,
        operands: &[Operand],
        values: &Values,
        t: &mut Text,
    ) -> Result<(), MlirError> {
        let types = super::parameters(self.c, self.elements, (self.tile, kernel, operands))?;
        let mut names = Vec::new();
        for (operand, argument) in operands.iter().zip(kernel.arguments()) {
            names.push(match (*operand, *argument) {
                (Operand::Register(r), _) => values[&r].clone(),
                (Operand::Value(value), Argument::Number) => format!("%c{value}"),
                (Operand::Value(address), _) => {
                    format!("%{}", name(super::buffer_at(self.c, self.tile, address)?))
                }
            });
        }
        t.line(format!(
            "func.call @{}({}) : ({}) -> ()",
            kernel.symbol(),
            names.join(", "),
            types.join(", ")
        ));
        Ok(())
    }
}
