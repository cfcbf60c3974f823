//! Element types of safetensors 0.8, in the library's order.

/// Type of a tensor's elements. The order of the variants is the one the
/// library sorts tensors by when it writes (descending).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
#[expect(non_camel_case_types, reason = "spelled as in the file format")]
pub enum Dtype {
    /// Boolean, one byte.
    BOOL,
    /// 4-bit float (MXFP4 element).
    F4,
    /// 6-bit float, 2 exponent and 3 mantissa bits.
    F6_E2M3,
    /// 6-bit float, 3 exponent and 2 mantissa bits.
    F6_E3M2,
    /// Unsigned byte.
    U8,
    /// Signed byte.
    I8,
    /// 8-bit float, 5 exponent bits.
    F8_E5M2,
    /// 8-bit float, 4 exponent bits.
    F8_E4M3,
    /// 8-bit power of two (block scale).
    F8_E8M0,
    /// 8-bit float, 4 exponent bits, no negative zero.
    F8_E4M3FNUZ,
    /// 8-bit float, 5 exponent bits, no negative zero.
    F8_E5M2FNUZ,
    /// Signed 16-bit integer.
    I16,
    /// Unsigned 16-bit integer.
    U16,
    /// IEEE half.
    F16,
    /// Upper half of an f32.
    BF16,
    /// Signed 32-bit integer.
    I32,
    /// Unsigned 32-bit integer.
    U32,
    /// IEEE single.
    F32,
    /// Complex of two f32.
    C64,
    /// IEEE double.
    F64,
    /// Signed 64-bit integer.
    I64,
    /// Unsigned 64-bit integer.
    U64,
}

const ALL: [(Dtype, &str, u64); 22] = [
    (Dtype::BOOL, "BOOL", 8),
    (Dtype::F4, "F4", 4),
    (Dtype::F6_E2M3, "F6_E2M3", 6),
    (Dtype::F6_E3M2, "F6_E3M2", 6),
    (Dtype::U8, "U8", 8),
    (Dtype::I8, "I8", 8),
    (Dtype::F8_E5M2, "F8_E5M2", 8),
    (Dtype::F8_E4M3, "F8_E4M3", 8),
    (Dtype::F8_E8M0, "F8_E8M0", 8),
    (Dtype::F8_E4M3FNUZ, "F8_E4M3FNUZ", 8),
    (Dtype::F8_E5M2FNUZ, "F8_E5M2FNUZ", 8),
    (Dtype::I16, "I16", 16),
    (Dtype::U16, "U16", 16),
    (Dtype::F16, "F16", 16),
    (Dtype::BF16, "BF16", 16),
    (Dtype::I32, "I32", 32),
    (Dtype::U32, "U32", 32),
    (Dtype::F32, "F32", 32),
    (Dtype::C64, "C64", 64),
    (Dtype::F64, "F64", 64),
    (Dtype::I64, "I64", 64),
    (Dtype::U64, "U64", 64),
];

impl Dtype {
    /// All types, ascending.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|(dtype, ..)| *dtype)
    }

    /// The type a header's `dtype` string names.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        ALL.iter().find(|row| row.1 == name).map(|row| row.0)
    }

    /// The string that stands for it in a header.
    #[must_use]
    pub fn name(self) -> &'static str {
        ALL[self as usize].1
    }

    /// Bits of one element.
    #[must_use]
    pub fn bits(self) -> u64 {
        ALL[self as usize].2
    }

    /// Bytes of a tensor of `shape`; nothing if that overflows or is not whole.
    #[must_use]
    pub fn byte_len(self, shape: &[u64]) -> Option<u64> {
        let bits = shape
            .iter()
            .try_fold(1_u64, |n, dim| n.checked_mul(*dim))
            .and_then(|n| n.checked_mul(self.bits()))?;
        (bits % 8 == 0).then_some(bits / 8)
    }
}

impl std::fmt::Display for Dtype {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_rows_stand_at_their_own_variant() {
        for (i, dtype) in Dtype::all().enumerate() {
            assert_eq!(dtype as usize, i);
            assert_eq!(Dtype::parse(dtype.name()), Some(dtype));
        }
        assert_eq!(Dtype::parse("Q4NX"), None);
    }

    #[test]
    fn names_order_and_bits_are_those_of_the_library() {
        let theirs: Vec<safetensors::Dtype> = Dtype::all()
            .map(|d| serde_json::from_value(serde_json::Value::from(d.name())).unwrap())
            .collect();
        assert!(theirs.is_sorted());
        for (ours, theirs) in Dtype::all().zip(theirs) {
            assert_eq!(ours.bits(), theirs.bitsize() as u64, "{ours}");
        }
    }

    #[test]
    fn sizes_are_checked() {
        assert_eq!(Dtype::BF16.byte_len(&[3, 5]), Some(30));
        assert_eq!(Dtype::F32.byte_len(&[]), Some(4));
        assert_eq!(Dtype::F32.byte_len(&[0, 7]), Some(0));
        assert_eq!(Dtype::F4.byte_len(&[2, 3]), Some(3));
        assert_eq!(Dtype::F4.byte_len(&[3]), None);
        assert_eq!(Dtype::BF16.byte_len(&[1 << 33, 1 << 33]), None);
        assert_eq!(Dtype::U8.byte_len(&[1 << 61]), None);
    }
}
