//! Metadata values: scalars, strings, and arrays of one of them.

use super::cursor::{Cursor, Short};
use crate::error::{shown, shown_number};

/// Longest string in bytes.
pub(super) const MAX_STRING: u64 = 16 << 20;
/// Most elements of an array.
pub(super) const MAX_ELEMENTS: u64 = 16 << 20;

/// A metadata value.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is the type of its name")]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    String(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array value. Its elements have one type, which is never an array: ggml
/// refuses nesting, and with it goes all recursion.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "each variant is the type of its name")]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    String(Vec<String>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

/// The numbers that stand for types in a file.
mod id {
    pub(super) const U8: u32 = 0;
    pub(super) const I8: u32 = 1;
    pub(super) const U16: u32 = 2;
    pub(super) const I16: u32 = 3;
    pub(super) const U32: u32 = 4;
    pub(super) const I32: u32 = 5;
    pub(super) const F32: u32 = 6;
    pub(super) const BOOL: u32 = 7;
    pub(super) const STRING: u32 = 8;
    pub(super) const ARRAY: u32 = 9;
    pub(super) const U64: u32 = 10;
    pub(super) const I64: u32 = 11;
    pub(super) const F64: u32 = 12;
}

/// Why a value cannot be read.
pub(super) enum Unreadable {
    /// The file ends first.
    Short(Short),
    /// A rule is broken.
    Wrong { expected: String, found: String },
}

impl From<Short> for Unreadable {
    fn from(short: Short) -> Self {
        Self::Short(short)
    }
}

fn wrong<T>(expected: impl Into<String>, found: impl Into<String>) -> Result<T, Unreadable> {
    Err(Unreadable::Wrong { expected: expected.into(), found: found.into() })
}

impl Value {
    /// The type's name, as messages give it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "u8",
            Self::I8(_) => "i8",
            Self::U16(_) => "u16",
            Self::I16(_) => "i16",
            Self::U32(_) => "u32",
            Self::I32(_) => "i32",
            Self::F32(_) => "f32",
            Self::Bool(_) => "bool",
            Self::String(_) => "string",
            Self::Array(array) => array.type_name(),
            Self::U64(_) => "u64",
            Self::I64(_) => "i64",
            Self::F64(_) => "f64",
        }
    }

    /// The integer, whichever integer type holds it, if it is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, Unreadable> {
        Ok(match cursor.u32()? {
            id::U8 => Self::U8(u8::from_le_bytes(cursor.array()?)),
            id::I8 => Self::I8(i8::from_le_bytes(cursor.array()?)),
            id::U16 => Self::U16(u16::from_le_bytes(cursor.array()?)),
            id::I16 => Self::I16(i16::from_le_bytes(cursor.array()?)),
            id::U32 => Self::U32(cursor.u32()?),
            id::I32 => Self::I32(i32::from_le_bytes(cursor.array()?)),
            id::F32 => Self::F32(f32::from_le_bytes(cursor.array()?)),
            id::BOOL => Self::Bool(bool_of(cursor.array::<1>()?[0])?),
            id::STRING => Self::String(string(cursor, MAX_STRING)?),
            id::ARRAY => Self::Array(Array::read(cursor)?),
            id::U64 => Self::U64(cursor.u64()?),
            id::I64 => Self::I64(i64::from_le_bytes(cursor.array()?)),
            id::F64 => Self::F64(f64::from_le_bytes(cursor.array()?)),
            other => return wrong("a value type of 0 to 12", format!("{other}")),
        })
    }

    /// Appends type and value as they stand in a file. `Err` holds what is legal
    /// and what was given.
    pub(super) fn write(&self, out: &mut Vec<u8>) -> Result<(), (String, String)> {
        let mut typed = |id: u32, bytes: &[u8]| {
            out.extend(id.to_le_bytes());
            out.extend(bytes);
        };
        match self {
            Self::U8(v) => typed(id::U8, &v.to_le_bytes()),
            Self::I8(v) => typed(id::I8, &v.to_le_bytes()),
            Self::U16(v) => typed(id::U16, &v.to_le_bytes()),
            Self::I16(v) => typed(id::I16, &v.to_le_bytes()),
            Self::U32(v) => typed(id::U32, &v.to_le_bytes()),
            Self::I32(v) => typed(id::I32, &v.to_le_bytes()),
            Self::F32(v) => typed(id::F32, &v.to_le_bytes()),
            Self::Bool(v) => typed(id::BOOL, &[u8::from(*v)]),
            Self::U64(v) => typed(id::U64, &v.to_le_bytes()),
            Self::I64(v) => typed(id::I64, &v.to_le_bytes()),
            Self::F64(v) => typed(id::F64, &v.to_le_bytes()),
            Self::String(v) => {
                typed(id::STRING, &[]);
                write_string(out, v)?;
            }
            Self::Array(v) => {
                typed(id::ARRAY, &[]);
                v.write(out)?;
            }
        }
        Ok(())
    }
}

/// Type and, where it is short, the value: what a message says was found.
impl std::fmt::Display for Value {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::U8(v) => write!(f, "u8 {v}"),
            Self::I8(v) => write!(f, "i8 {v}"),
            Self::U16(v) => write!(f, "u16 {v}"),
            Self::I16(v) => write!(f, "i16 {v}"),
            Self::U32(v) => write!(f, "u32 {v}"),
            Self::I32(v) => write!(f, "i32 {v}"),
            Self::F32(v) => write!(f, "f32 {}", shown_number(v)),
            Self::Bool(v) => write!(f, "bool {v}"),
            Self::String(v) => write!(f, "string `{}`", shown(v)),
            Self::Array(v) => write!(f, "{} of {} elements", v.type_name(), v.len()),
            Self::U64(v) => write!(f, "u64 {v}"),
            Self::I64(v) => write!(f, "i64 {v}"),
            Self::F64(v) => write!(f, "f64 {}", shown_number(v)),
        }
    }
}

impl Array {
    /// The type's name, as messages give it.
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::U8(_) => "array of u8",
            Self::I8(_) => "array of i8",
            Self::U16(_) => "array of u16",
            Self::I16(_) => "array of i16",
            Self::U32(_) => "array of u32",
            Self::I32(_) => "array of i32",
            Self::F32(_) => "array of f32",
            Self::Bool(_) => "array of bool",
            Self::String(_) => "array of string",
            Self::U64(_) => "array of u64",
            Self::I64(_) => "array of i64",
            Self::F64(_) => "array of f64",
        }
    }

    /// Number of elements.
    #[must_use]
    pub fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::String(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// Whether there are no elements.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The integers, whichever integer type holds them, if none is negative.
    #[must_use]
    pub fn to_u64s(&self) -> Option<Vec<u64>> {
        fn all<T: Copy + TryInto<u64>>(values: &[T]) -> Option<Vec<u64>> {
            values.iter().map(|v| (*v).try_into().ok()).collect()
        }
        match self {
            Self::U8(v) => all(v),
            Self::I8(v) => all(v),
            Self::U16(v) => all(v),
            Self::I16(v) => all(v),
            Self::U32(v) => all(v),
            Self::I32(v) => all(v),
            Self::U64(v) => all(v),
            Self::I64(v) => all(v),
            Self::F32(_) | Self::F64(_) | Self::Bool(_) | Self::String(_) => None,
        }
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self, Unreadable> {
        let element = cursor.u32()?;
        let count = cursor.u64()?;
        if element > id::F64 || element == id::ARRAY {
            let found = if element == id::ARRAY { "arrays".into() } else { format!("{element}") };
            return wrong("array elements of a scalar type or strings", found);
        }
        if count > MAX_ELEMENTS {
            return wrong(
                format!("an array of at most {MAX_ELEMENTS} elements"),
                format!("{count}"),
            );
        }
        Ok(match element {
            id::U8 => Self::U8(scalars(cursor, count, u8::from_le_bytes)?),
            id::I8 => Self::I8(scalars(cursor, count, i8::from_le_bytes)?),
            id::U16 => Self::U16(scalars(cursor, count, u16::from_le_bytes)?),
            id::I16 => Self::I16(scalars(cursor, count, i16::from_le_bytes)?),
            id::U32 => Self::U32(scalars(cursor, count, u32::from_le_bytes)?),
            id::I32 => Self::I32(scalars(cursor, count, i32::from_le_bytes)?),
            id::F32 => Self::F32(scalars(cursor, count, f32::from_le_bytes)?),
            id::U64 => Self::U64(scalars(cursor, count, u64::from_le_bytes)?),
            id::I64 => Self::I64(scalars(cursor, count, i64::from_le_bytes)?),
            id::F64 => Self::F64(scalars(cursor, count, f64::from_le_bytes)?),
            id::BOOL => {
                let bytes = cursor.take(count)?;
                Self::Bool(bytes.iter().map(|b| bool_of(*b)).collect::<Result<_, _>>()?)
            }
            _ => {
                // Each string is at least its length field.
                cursor.check(count * 8)?;
                let mut strings = Vec::with_capacity(count as usize);
                for _ in 0..count {
                    strings.push(string(cursor, MAX_STRING)?);
                }
                Self::String(strings)
            }
        })
    }

    fn write(&self, out: &mut Vec<u8>) -> Result<(), (String, String)> {
        if self.len() as u64 > MAX_ELEMENTS {
            return Err((
                format!("an array of at most {MAX_ELEMENTS} elements"),
                format!("{}", self.len()),
            ));
        }
        let mut typed = |id: u32, elements: &mut dyn Iterator<Item = &[u8]>| {
            out.extend(id.to_le_bytes());
            out.extend((self.len() as u64).to_le_bytes());
            elements.for_each(|bytes| out.extend(bytes));
        };
        macro_rules! scalars {
            ($id:expr, $v:expr) => {{
                let bytes: Vec<_> = $v.iter().map(|v| v.to_le_bytes()).collect();
                typed($id, &mut bytes.iter().map(|b| b.as_slice()));
            }};
        }
        match self {
            Self::U8(v) => typed(id::U8, &mut std::iter::once(v.as_slice())),
            Self::I8(v) => scalars!(id::I8, v),
            Self::U16(v) => scalars!(id::U16, v),
            Self::I16(v) => scalars!(id::I16, v),
            Self::U32(v) => scalars!(id::U32, v),
            Self::I32(v) => scalars!(id::I32, v),
            Self::F32(v) => scalars!(id::F32, v),
            Self::U64(v) => scalars!(id::U64, v),
            Self::I64(v) => scalars!(id::I64, v),
            Self::F64(v) => scalars!(id::F64, v),
            Self::Bool(v) => {
                let bytes: Vec<u8> = v.iter().map(|v| u8::from(*v)).collect();
                typed(id::BOOL, &mut std::iter::once(bytes.as_slice()));
            }
            Self::String(v) => {
                typed(id::STRING, &mut std::iter::empty());
                for text in v {
                    write_string(out, text)?;
                }
            }
        }
        Ok(())
    }
}

/// Reads `count` elements of `N` bytes; the run is checked against the file
/// before anything is allocated.
fn scalars<T, const N: usize>(
    cursor: &mut Cursor<'_>,
    count: u64,
    decode: fn([u8; N]) -> T,
) -> Result<Vec<T>, Unreadable> {
    let bytes = cursor.take(count * N as u64)?;
    let (elements, _) = bytes.as_chunks::<N>();
    Ok(elements.iter().map(|e| decode(*e)).collect())
}

fn bool_of(byte: u8) -> Result<bool, Unreadable> {
    match byte {
        0 => Ok(false),
        1 => Ok(true),
        other => wrong("a bool of 0 or 1", format!("{other}")),
    }
}

/// Reads a length and that many bytes of UTF-8.
pub(super) fn string(cursor: &mut Cursor<'_>, max: u64) -> Result<String, Unreadable> {
    let len = cursor.u64()?;
    if len > max {
        return wrong(format!("at most {max} bytes of text"), format!("a length of {len}"));
    }
    match std::str::from_utf8(cursor.take(len)?) {
        Ok(text) => Ok(text.to_owned()),
        Err(e) => wrong("text in UTF-8", format!("other bytes at byte {} of it", e.valid_up_to())),
    }
}

/// Appends a length and the bytes of `text`.
pub(super) fn write_string(out: &mut Vec<u8>, text: &str) -> Result<(), (String, String)> {
    if text.len() as u64 > MAX_STRING {
        return Err((format!("at most {MAX_STRING} bytes of text"), format!("{}", text.len())));
    }
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
    Ok(())
}
