//! Instructions of a job as a `runtime_sequence`: the same writes in the same order, so that the
//! compiler's words have to be ours.

use super::{MlirError, Text};
use crate::txn::{Operation, decode};

/// A job's instructions with what its buffer objects hold.
#[derive(Debug, Clone, Copy)]
pub struct Sequence<'a> {
    /// A symbol, unique in the module.
    pub name: &'a str,
    /// The words.
    pub words: &'a [u32],
    /// Name and bytes of each buffer object, in the order of arguments.
    pub arguments: &'a [(&'a str, usize)],
}

pub(super) fn emit(sequences: &[Sequence<'_>], t: &mut Text) -> Result<(), MlirError> {
    let mut globals: Vec<Vec<u32>> = Vec::new();
    let mut bodies = Text { depth: t.depth, ..Text::default() };
    for s in sequences {
        let arguments = s.arguments.iter();
        let arguments: Vec<String> = arguments
            .map(|(name, bytes)| format!("%{name}: memref<{}xi32>", bytes.div_ceil(4)))
            .collect();
        bodies.open(format!("aie.runtime_sequence @{}({}) {{", s.name, arguments.join(", ")));
        for (n, operation) in decode(s.words)?.1.iter().enumerate() {
            write(n, operation, &mut globals, &mut bodies);
        }
        bodies.close("}");
    }
    for (n, words) in globals.iter().enumerate() {
        let values: Vec<String> = words.iter().map(|w| w.cast_signed().to_string()).collect();
        t.line(format!(
            "memref.global \"private\" constant @block_{n} : memref<{}xi32> = dense<[{}]>",
            words.len(),
            values.join(", ")
        ));
    }
    t.out += &bodies.out;
    Ok(())
}

/// Operation number `n`. Its numbers are constants of their own.
fn write(n: usize, operation: &Operation, globals: &mut Vec<Vec<u32>>, t: &mut Text) {
    let constants = |values: &[u32], t: &mut Text| -> String {
        let mut names = Vec::new();
        for (i, value) in values.iter().enumerate() {
            let name = format!("%o{n}_{i}");
            t.line(format!("{name} = arith.constant {} : i32", value.cast_signed()));
            names.push(name);
        }
        names.join(", ")
    };
    let types = |n: usize| vec!["i32"; n].join(", ");
    match *operation {
        Operation::Write { register, value } => {
            let operands = constants(&[register, value], t);
            t.line(format!("aiex.npu.write32({operands}) : {}", types(2)));
        }
        Operation::Masked { register, value, mask } => {
            let operands = constants(&[register, value, mask], t);
            t.line(format!("aiex.npu.maskwrite32({operands}) : {}", types(3)));
        }
        Operation::Block { register, ref words } => {
            let global = globals.iter().position(|w| w == words).unwrap_or_else(|| {
                globals.push(words.clone());
                globals.len() - 1
            });
            let memref = format!("memref<{}xi32>", words.len());
            t.line(format!("%o{n} = memref.get_global @block_{global} : {memref}"));
            t.line(format!(
                "aiex.npu.blockwrite(%o{n}) {{address = {register} : ui32}} : {memref}"
            ));
        }
        Operation::Patch { register, argument, offset } => {
            let offset = constants(&[offset], t);
            t.line(format!(
                "aiex.npu.address_patch({offset} : i32) {{addr = {register} : ui32, arg_idx = \
                 {argument} : i32}}"
            ));
        }
        Operation::Sync { tile, direction, channel } => {
            let tile = [u32::from(tile.col), tile.row.into()];
            let rest = [u32::from(direction), channel.into(), 1, 1];
            let operands = constants(&[tile.as_slice(), &rest].concat(), t);
            t.line(format!("aiex.npu.sync({operands}) : {}", types(6)));
        }
    }
}
