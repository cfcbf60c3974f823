//! Instruction set levels, and the token that proves the CPU has one.
//!
//! A kernel compiled for AVX2 is undefined behaviour on a CPU without it, so the choice of a kernel
//! must not be a number that safe code can invent. An [`Isa`] can only be had by asking the CPU;
//! holding one is the proof that a `#[target_feature]` function of its [`Level`] may be called.

use std::fmt;
use std::str::FromStr;

/// A set of instructions kernels are written for. Ordered: a higher level includes the lower ones.
///
/// [`features`](Self::features) lists what each level requires of the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// Plain Rust, the reference for every other level.
    Scalar,
    /// 256-bit vectors: `avx2`.
    Avx2,
    /// 512-bit vectors: `avx512f`, `avx512bw`, `avx512dq`, `avx512vl`, and `avx2`.
    Avx512,
}

/// Defines a list of CPU features, `const LIST: &[&str]`, and `fn DETECTED() -> bool`, its detector,
/// from the same literals.
#[macro_export]
macro_rules! cpu_features {
    ($list:ident, $detected:ident, $($feature:tt),+) => {
        const $list: &[&str] = &[$($feature),+];

        #[cfg(target_arch = "x86_64")]
        fn $detected() -> bool {
            $(std::arch::is_x86_feature_detected!($feature))&&+
        }

        #[cfg(not(target_arch = "x86_64"))]
        fn $detected() -> bool {
            false
        }
    };
}

/// Declares functions that are compiled once per instruction set from one plain body, and take an
/// [`Isa`] before their other arguments.
///
/// For loops over elements that do not depend on each other: the compiler finds the lanes, and as it
/// neither re-orders nor contracts operations on floats, every level gives the same bits. What a body
/// calls must be `#[inline(always)]`, or it is compiled for the baseline.
///
/// A function that is given to another one as a value would not do: the shim that calls it is compiled
/// for the baseline, and may not be inlined.
#[macro_export]
macro_rules! per_isa {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $(-> $result:ty)? $body:block
    )*) => {$(
        $(#[$attribute])*
        #[cfg_attr(
            target_arch = "x86_64",
            allow(unsafe_code, reason = "calls code compiled for instructions of the CPU at hand")
        )]
        fn $name(isa: $crate::Isa, $($argument: $ty),*) $(-> $result)? {
            #[inline(always)]
            fn plain($($argument: $ty),*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2")]
            fn avx2($($argument: $ty),*) $(-> $result)? {
                plain($($argument),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,avx512f,avx512bw,avx512dq,avx512vl")]
            fn avx512($($argument: $ty),*) $(-> $result)? {
                plain($($argument),*)
            }

            match isa.level() {
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx512 => {
                    // SAFETY: an `Isa` of this level exists only if the CPU has avx2, avx512f,
                    // avx512bw, avx512dq and avx512vl, which the function is compiled for.
                    unsafe { avx512($($argument),*) }
                }
                #[cfg(target_arch = "x86_64")]
                $crate::Level::Avx2 => {
                    // SAFETY: an `Isa` of this level exists only if the CPU has avx2.
                    unsafe { avx2($($argument),*) }
                }
                _ => plain($($argument),*),
            }
        }
    )*};
}

// The one place that says what a level requires. `#[target_feature]` takes literals only, so the
// kernels repeat these lists; a test of this module compares them.
cpu_features!(AVX2, has_avx2, "avx2");
cpu_features!(AVX512, has_avx512, "avx2", "avx512f", "avx512bw", "avx512dq", "avx512vl");

impl Level {
    /// Every level, ascending.
    pub const ALL: &'static [Level] = &[Level::Scalar, Level::Avx2, Level::Avx512];

    /// The CPU features the level requires, as `#[target_feature(enable = "...")]` names them.
    ///
    /// An [`Isa`] of this level proves that the CPU has all of them and those of lower levels.
    #[must_use]
    pub const fn features(self) -> &'static [&'static str] {
        match self {
            Level::Scalar => &[],
            Level::Avx2 => AVX2,
            Level::Avx512 => AVX512,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Level::Scalar => "scalar",
            Level::Avx2 => "avx2",
            Level::Avx512 => "avx512",
        }
    }

    fn is_detected(self) -> bool {
        match self {
            Level::Scalar => true,
            Level::Avx2 => has_avx2(),
            Level::Avx512 => has_avx512(),
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The text is not the name of a [`Level`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown instruction set `{found}`, expected `scalar`, `avx2` or `avx512`")]
pub struct ParseLevelError {
    found: String,
}

impl FromStr for Level {
    type Err = ParseLevelError;

    /// Parses `scalar`, `avx2` or `avx512`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Level::ALL
            .iter()
            .copied()
            .find(|level| level.name() == text)
            .ok_or_else(|| ParseLevelError { found: text.to_owned() })
    }
}

/// Proof that this CPU has an instruction set.
///
/// Values come only from [`Isa::scalar`], [`detect`](Isa::detect), [`available`](Isa::available)
/// and [`at_most`](Isa::at_most), none of which names a level the CPU lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Isa(Level);

impl Isa {
    /// No special instructions: works everywhere.
    #[must_use]
    pub const fn scalar() -> Self {
        Isa(Level::Scalar)
    }

    /// The best level of this CPU.
    #[must_use]
    pub fn detect() -> Self {
        Self::at_most(Level::Avx512)
    }

    /// Every level of this CPU, ascending, [`Level::Scalar`] first.
    #[must_use]
    pub fn available() -> Vec<Self> {
        Self::detected().collect()
    }

    /// The best level of this CPU that is not above `cap`.
    #[must_use]
    pub fn at_most(cap: Level) -> Self {
        Self::detected().take_while(|isa| isa.level() <= cap).last().unwrap_or(Self::scalar())
    }

    /// The level this token proves.
    #[must_use]
    pub const fn level(self) -> Level {
        self.0
    }

    /// Levels ascend and include each other, so the first one missing ends the list.
    fn detected() -> impl Iterator<Item = Self> {
        Level::ALL.iter().copied().take_while(|level| level.is_detected()).map(Isa)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn available_ascends_from_scalar_to_the_detected_level() {
        let available = Isa::available();
        assert_eq!(available.first(), Some(&Isa::scalar()));
        assert_eq!(available.last(), Some(&Isa::detect()));
        assert!(available.is_sorted_by_key(|isa| isa.level()));
    }

    /// The kernel's list of features is an independent witness; no level it lists is missed.
    #[test]
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    fn every_level_of_the_cpu_is_detected() {
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap();
        let flags = cpuinfo.lines().find(|line| line.starts_with("flags")).unwrap();
        let has = |feature: &&str| flags.split_whitespace().any(|flag| flag == *feature);
        for &level in Level::ALL {
            let listed = level.features().iter().all(has);
            assert_eq!(Isa::detect().level() >= level, listed, "{level}");
        }
    }

    #[test]
    fn a_cap_is_respected() {
        for &cap in Level::ALL {
            let isa = Isa::at_most(cap);
            assert!(isa.level() <= cap);
            assert!(Isa::available().contains(&isa));
            assert_eq!(isa.level(), cap.min(Isa::detect().level()));
        }
    }

    #[test]
    fn names_round_trip() {
        for &level in Level::ALL {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        let error = "sse2".parse::<Level>().unwrap_err().to_string();
        assert!(error.contains("sse2"));
        for level in Level::ALL {
            assert!(error.contains(&format!("`{level}`")), "{error}");
        }
    }

    /// A kernel that enables a feature its level does not test for would be unsound.
    #[test]
    fn kernels_enable_exactly_the_features_of_their_level() {
        let kernels = [
            (Level::Avx2, include_str!("fwht/avx2.rs")),
            (Level::Avx512, include_str!("fwht/avx512.rs")),
        ];
        for (level, source) in kernels {
            let attribute =
                format!("#[target_feature(enable = \"{}\")]", level.features().join(","));
            let mut n_functions = 0;
            for line in source.lines().filter(|line| line.contains("target_feature(")) {
                assert_eq!(line.trim(), attribute);
                n_functions += 1;
            }
            assert!(n_functions > 0);
        }
    }
}
