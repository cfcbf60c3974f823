//! The element types of ggml and the size of their blocks.

/// Type of a tensor's elements, with the number that stands for it in a file.
///
/// The reader can size all of them; which can be decoded is up to the codecs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u32)]
#[expect(non_camel_case_types, reason = "spelled as in ggml")]
#[expect(missing_docs, reason = "the names of ggml are all there is to say")]
pub enum GgmlType {
    F32 = 0,
    F16 = 1,
    Q4_0 = 2,
    Q4_1 = 3,
    Q5_0 = 6,
    Q5_1 = 7,
    Q8_0 = 8,
    Q8_1 = 9,
    Q2_K = 10,
    Q3_K = 11,
    Q4_K = 12,
    Q5_K = 13,
    Q6_K = 14,
    Q8_K = 15,
    IQ2_XXS = 16,
    IQ2_XS = 17,
    IQ3_XXS = 18,
    IQ1_S = 19,
    IQ4_NL = 20,
    IQ3_S = 21,
    IQ2_S = 22,
    IQ4_XS = 23,
    I8 = 24,
    I16 = 25,
    I32 = 26,
    I64 = 27,
    F64 = 28,
    IQ1_M = 29,
    BF16 = 30,
    TQ1_0 = 34,
    TQ2_0 = 35,
    MXFP4 = 39,
    NVFP4 = 40,
    Q1_0 = 41,
    /// Upstream's: 64 values in 18 bytes. Older PrismML files use the number for
    /// what is now [`GgmlType::PQ2_0`]; the reader tells them apart by offsets.
    Q2_0 = 42,
    /// PrismML's 2-bit ternary: 128 values in 34 bytes.
    PQ2_0 = 142,
    /// PrismML's dense ternary: 128 values in 28 bytes.
    PTQ1_0 = 143,
}

/// Type, name, values per block, bytes per block.
const ALL: [(GgmlType, &str, u64, u64); 37] = [
    (GgmlType::F32, "F32", 1, 4),
    (GgmlType::F16, "F16", 1, 2),
    (GgmlType::Q4_0, "Q4_0", 32, 18),
    (GgmlType::Q4_1, "Q4_1", 32, 20),
    (GgmlType::Q5_0, "Q5_0", 32, 22),
    (GgmlType::Q5_1, "Q5_1", 32, 24),
    (GgmlType::Q8_0, "Q8_0", 32, 34),
    (GgmlType::Q8_1, "Q8_1", 32, 36),
    (GgmlType::Q2_K, "Q2_K", 256, 84),
    (GgmlType::Q3_K, "Q3_K", 256, 110),
    (GgmlType::Q4_K, "Q4_K", 256, 144),
    (GgmlType::Q5_K, "Q5_K", 256, 176),
    (GgmlType::Q6_K, "Q6_K", 256, 210),
    (GgmlType::Q8_K, "Q8_K", 256, 292),
    (GgmlType::IQ2_XXS, "IQ2_XXS", 256, 66),
    (GgmlType::IQ2_XS, "IQ2_XS", 256, 74),
    (GgmlType::IQ3_XXS, "IQ3_XXS", 256, 98),
    (GgmlType::IQ1_S, "IQ1_S", 256, 50),
    (GgmlType::IQ4_NL, "IQ4_NL", 32, 18),
    (GgmlType::IQ3_S, "IQ3_S", 256, 110),
    (GgmlType::IQ2_S, "IQ2_S", 256, 82),
    (GgmlType::IQ4_XS, "IQ4_XS", 256, 136),
    (GgmlType::I8, "I8", 1, 1),
    (GgmlType::I16, "I16", 1, 2),
    (GgmlType::I32, "I32", 1, 4),
    (GgmlType::I64, "I64", 1, 8),
    (GgmlType::F64, "F64", 1, 8),
    (GgmlType::IQ1_M, "IQ1_M", 256, 56),
    (GgmlType::BF16, "BF16", 1, 2),
    (GgmlType::TQ1_0, "TQ1_0", 256, 54),
    (GgmlType::TQ2_0, "TQ2_0", 256, 66),
    (GgmlType::MXFP4, "MXFP4", 32, 17),
    (GgmlType::NVFP4, "NVFP4", 64, 36),
    (GgmlType::Q1_0, "Q1_0", 128, 18),
    (GgmlType::Q2_0, "Q2_0", 64, 18),
    (GgmlType::PQ2_0, "PQ2_0", 128, 34),
    (GgmlType::PTQ1_0, "PTQ1_0", 128, 28),
];

impl GgmlType {
    /// All types, by number.
    pub fn all() -> impl Iterator<Item = Self> {
        ALL.iter().map(|row| row.0)
    }

    /// The type that `id` stands for. Numbers that ggml removed (4, 5, 31-33,
    /// 36-38) or has not given out stand for none.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        Self::all().find(|ty| ty.id() == id)
    }

    /// The number that stands for it in a file.
    #[must_use]
    pub fn id(self) -> u32 {
        self as u32
    }

    /// ggml's name of it.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Values of one block; a row is whole blocks.
    #[must_use]
    pub fn block_values(self) -> u64 {
        self.row().2
    }

    /// Bytes of one block.
    #[must_use]
    pub fn block_bytes(self) -> u64 {
        self.row().3
    }

    fn row(self) -> &'static (Self, &'static str, u64, u64) {
        ALL.iter()
            .find(|row| row.0 == self)
            .expect("every type has a row in the table")
    }
}

impl std::fmt::Display for GgmlType {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_sorted_and_found() {
        assert!(ALL.is_sorted_by_key(|row| row.0.id()));
        for (ty, name, ..) in ALL {
            assert_eq!(GgmlType::from_id(ty.id()), Some(ty));
            assert_eq!(ty.name(), name);
            assert_eq!(format!("{ty:?}"), name);
        }
        for id in [4, 5, 31, 32, 33, 36, 37, 38, 43, 141, 144, u32::MAX] {
            assert_eq!(GgmlType::from_id(id), None);
        }
    }
}
