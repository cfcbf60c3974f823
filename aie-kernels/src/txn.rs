//! Instructions of a job, as the firmware of the NPU takes them (a "TXN" stream): register writes,
//! descriptor writes whose address is that of a buffer object, and waits.
//!
//! ```text
//! header  0x06040100, columns | memory rows << 8, operations, bytes
//! 0x00    {0, 0, register, 0, value, 24}
//! 0x01    {1, 0, register, bytes, words...}
//! 0x03    {3, 0, register, 0, value, mask, 28}
//! 0x80    {0x80, 16, col << 16 | row << 8 | direction, channel << 24 | cols << 16 | rows << 8}
//! 0x81    {0x81, 48, 0, 0, 0, 0, register, 0, argument, 0, offset, 0}
//! register = col << 25 | row << 20 | offset
//! ```

use crate::array::Tile;

/// First word for AIE2P: version 1.0, generation 4, six rows.
pub const VERSION: u32 = 0x0604_0100;

/// One operation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Writes a register.
    Write {
        /// The register.
        register: u32,
        /// The value.
        value: u32,
    },
    /// Writes consecutive registers.
    Block {
        /// The first register.
        register: u32,
        /// Their values.
        words: Vec<u32>,
    },
    /// Writes the bits of a register that the mask has.
    Masked {
        /// The register.
        register: u32,
        /// The value.
        value: u32,
        /// The bits.
        mask: u32,
    },
    /// Waits for the token that a channel sends at the end of a task.
    Sync {
        /// The tile.
        tile: Tile,
        /// 0 for S2MM, 1 for MM2S.
        direction: u8,
        /// The channel.
        channel: u8,
    },
    /// Puts the address of a buffer object into a descriptor.
    Patch {
        /// Register of the low address word.
        register: u32,
        /// The argument: which buffer object.
        argument: u32,
        /// Bytes into it.
        offset: u32,
    },
}

/// Words that are no instructions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("instructions: word {at}: {problem}")]
pub struct TxnError {
    /// Index of the word.
    pub at: usize,
    /// What is wrong.
    pub problem: &'static str,
}

/// The words of `operations` for `columns` columns.
#[must_use]
pub fn encode(columns: u8, operations: &[Operation]) -> Vec<u32> {
    let mut out = vec![VERSION, 0x100 | u32::from(columns), operations.len() as u32, 0];
    for operation in operations {
        match *operation {
            Operation::Write { register, value } => out.extend([0, 0, register, 0, value, 24]),
            Operation::Block { register, ref words } => {
                out.extend([1, 0, register, 16 + 4 * words.len() as u32]);
                out.extend(words);
            }
            Operation::Masked { register, value, mask } => {
                out.extend([3, 0, register, 0, value, mask, 28]);
            }
            Operation::Sync { tile, direction, channel } => {
                let tile = u32::from(tile.col) << 16 | u32::from(tile.row) << 8;
                let channel = u32::from(channel) << 24 | 0x1_0100;
                out.extend([0x80, 16, tile | u32::from(direction), channel]);
            }
            Operation::Patch { register, argument, offset } => {
                out.extend([0x81, 48, 0, 0, 0, 0, register, 0, argument, 0, offset, 0]);
            }
        }
    }
    out[3] = 4 * out.len() as u32;
    out
}

/// Reads what [`encode`] wrote: the columns and the operations.
///
/// # Errors
/// Words that are something else, or operations that are not used here.
pub fn decode(words: &[u32]) -> Result<(u8, Vec<Operation>), TxnError> {
    let fail = |at: usize, problem: &'static str| TxnError { at, problem };
    let word = |at: usize| words.get(at).copied().ok_or(fail(at, "missing"));
    let zeros = |at: usize, n: usize| {
        let is = words.get(at..at + n).is_some_and(|words| words.iter().all(|w| *w == 0));
        if is { Ok(()) } else { Err(fail(at, "expected zeros")) }
    };
    let size = |at: usize, expected: u32| {
        if word(at)? == expected { Ok(()) } else { Err(fail(at, "a wrong size")) }
    };
    if word(0)? != VERSION {
        return Err(fail(0, "not made for AIE2P"));
    }
    let columns = word(1)?.wrapping_sub(0x100);
    if columns == 0 || columns > 8 {
        return Err(fail(1, "expected 1 to 8 columns and one row of memory tiles"));
    }
    if word(3)? as usize != 4 * words.len() {
        return Err(fail(3, "a length that is not that of the words"));
    }
    let (mut at, mut out) = (4, Vec::new());
    while at < words.len() {
        let start = at;
        out.push(match word(at)? {
            0 => {
                zeros(at + 1, 1)?;
                zeros(at + 3, 1)?;
                size(at + 5, 24)?;
                at += 6;
                Operation::Write { register: word(start + 2)?, value: word(start + 4)? }
            }
            1 => {
                zeros(at + 1, 1)?;
                let bytes = word(at + 3)? as usize;
                if bytes < 20 || !bytes.is_multiple_of(4) {
                    return Err(fail(at + 3, "a wrong size"));
                }
                at += bytes / 4;
                let words = words.get(start + 4..at).ok_or(fail(words.len(), "missing"))?;
                Operation::Block { register: word(start + 2)?, words: words.to_vec() }
            }
            3 => {
                zeros(at + 1, 1)?;
                zeros(at + 3, 1)?;
                size(at + 6, 28)?;
                at += 7;
                let (value, mask) = (word(start + 4)?, word(start + 5)?);
                Operation::Masked { register: word(start + 2)?, value, mask }
            }
            0x80 => {
                size(at + 1, 16)?;
                at += 4;
                let (tile, channel) = (word(start + 2)?, word(start + 3)?);
                if tile >> 24 != 0 || channel & 0xff_ffff != 0x1_0100 {
                    return Err(fail(start + 2, "expected a wait for one channel"));
                }
                let [direction, row, col, _] = tile.to_le_bytes();
                let channel = (channel >> 24) as u8;
                Operation::Sync { tile: Tile { col, row }, direction, channel }
            }
            0x81 => {
                size(at + 1, 48)?;
                zeros(at + 2, 4)?;
                zeros(at + 7, 1)?;
                zeros(at + 9, 1)?;
                zeros(at + 11, 1)?;
                at += 12;
                let (argument, offset) = (word(start + 8)?, word(start + 10)?);
                Operation::Patch { register: word(start + 6)?, argument, offset }
            }
            _ => return Err(fail(at, "no operation that is known here")),
        });
    }
    if out.len() == word(2)? as usize {
        Ok((columns as u8, out))
    } else {
        Err(fail(2, "not the number of operations"))
    }
}
