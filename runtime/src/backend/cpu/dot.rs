//! Which instruction multiplies codes with integers, and the proof that the CPU has it.
//!
//! All kernels are made of a dot of four: four unsigned bytes times four signed ones, added to a
//! 32-bit sum. x86 has it as one instruction in several encodings, or as two on 16-bit sums; sums of
//! a group fit either way, so all give the same integers.

use hadamard::{Isa, Level, cpu_features};

/// An instruction for the dot of four. Values come only from [`Dot::portable`], [`Dot::detect`] and
/// [`Dot::available`], none of which names one that the CPU lacks: holding a value proves that a
/// function that enables its [`features`](Dot::features) may be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dot(pub(super) Kind);

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Portable,
    Maddubs,
    AvxVnni,
    Avx512Vl,
    Avx512,
}

// `#[target_feature]` takes literals only, so the kernels repeat these lists; a test compares them.
cpu_features!(MADDUBS, has_maddubs, "avx2", "f16c");
cpu_features!(AVX_VNNI, has_avx_vnni, "avx2", "f16c", "avxvnni");
cpu_features!(AVX512_VL, has_avx512_vl, "avx2", "f16c", "avx512f", "avx512vl", "avx512vnni");
cpu_features!(
    AVX512,
    has_avx512,
    "avx2",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vnni"
);

impl Kind {
    /// From the slowest to the best.
    const ALL: [Self; 5] =
        [Self::Portable, Self::Maddubs, Self::Avx512Vl, Self::AvxVnni, Self::Avx512];

    fn is_detected(self) -> bool {
        match self {
            Self::Portable => true,
            Self::Maddubs => has_maddubs(),
            Self::AvxVnni => has_avx_vnni(),
            Self::Avx512Vl => has_avx512_vl(),
            Self::Avx512 => has_avx512(),
        }
    }

    /// The level that a cap must allow.
    fn level(self) -> Level {
        match self {
            Self::Portable => Level::Scalar,
            Self::Maddubs | Self::AvxVnni => Level::Avx2,
            Self::Avx512Vl | Self::Avx512 => Level::Avx512,
        }
    }
}

impl Dot {
    /// Plain multiplications: works everywhere.
    #[must_use]
    pub const fn portable() -> Self {
        Self(Kind::Portable)
    }

    /// The best instruction of this CPU that is part of `isa` or stands beside it: AVX-VNNI counts as
    /// AVX2.
    #[must_use]
    pub fn detect(isa: Isa) -> Self {
        Self::available(isa).pop().unwrap_or(Self::portable())
    }

    /// All that this CPU has within `isa`, the best last.
    #[must_use]
    pub fn available(isa: Isa) -> Vec<Self> {
        let mut all = Kind::ALL.to_vec();
        all.retain(|kind| kind.level() <= isa.level() && kind.is_detected());
        all.into_iter().map(Self).collect()
    }

    /// The CPU features that a value proves, as `#[target_feature(enable = "...")]` names them.
    #[must_use]
    pub const fn features(self) -> &'static [&'static str] {
        match self.0 {
            Kind::Portable => &[],
            Kind::Maddubs => MADDUBS,
            Kind::AvxVnni => AVX_VNNI,
            Kind::Avx512Vl => AVX512_VL,
            Kind::Avx512 => AVX512,
        }
    }

    /// Instruction and width of a vector.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self.0 {
            Kind::Portable => "portable",
            Kind::Maddubs => "vpmaddubsw-256",
            Kind::AvxVnni => "avx-vpdpbusd-256",
            Kind::Avx512Vl => "vpdpbusd-256",
            Kind::Avx512 => "vpdpbusd-512",
        }
    }
}

impl std::fmt::Display for Dot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cap_is_respected() {
        assert_eq!(Dot::available(Isa::scalar()), [Dot::portable()]);
        for isa in Isa::available() {
            let dots = Dot::available(isa);
            assert_eq!(dots.first(), Some(&Dot::portable()));
            assert_eq!(dots.last(), Some(&Dot::detect(isa)));
            assert!(dots.iter().all(|dot| dot.0.level() <= isa.level()));
        }
    }

    /// The kernel's list of features is an independent witness; nothing it lists is missed.
    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn every_instruction_of_the_cpu_is_detected() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap();
        let has = |feature: &&str| {
            let name = match *feature {
                "avx512vnni" => "avx512_vnni",
                "avxvnni" => "avx_vnni",
                name => name,
            };
            flags.split_whitespace().any(|flag| flag == name)
        };
        for kind in Kind::ALL {
            let listed = Dot(kind).features().iter().all(has);
            assert_eq!(kind.is_detected(), listed, "{kind:?}");
        }
    }

    /// A kernel that enables a feature that is not tested for would be unsound.
    #[test]
    fn kernels_enable_exactly_the_features_of_their_instruction() {
        let attribute =
            |kind| format!("#[target_feature(enable = \"{}\")]", Dot(kind).features().join(","));
        let mut found = Vec::new();
        for source in [include_str!("avx512.rs"), include_str!("wide.rs")] {
            let lines = source.lines().map(str::trim);
            found.extend(lines.filter(|line| line.starts_with("#[target_feature(")));
        }
        found.sort_unstable();
        found.dedup();
        let kinds = [Kind::Maddubs, Kind::AvxVnni, Kind::Avx512Vl, Kind::Avx512];
        let mut expected = kinds.map(attribute);
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
}
