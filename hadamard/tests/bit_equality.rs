//! Every kernel this CPU can run gives the bits of the scalar reference.

use hadamard::{BlockHadamard, Error, Isa, Signs};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};

const BLOCKS: std::ops::RangeInclusive<u32> = 1..=13;

/// A block size, some blocks of numbers, and a sign for each.
fn blocks() -> impl Strategy<Value = (usize, Vec<f32>, Vec<i8>)> {
    BLOCKS.prop_flat_map(|exponent| {
        let block = 1_usize << exponent;
        // Small blocks get more of them, so that a case is about as long for any size.
        let max_blocks = (8192 / block).clamp(3, 40);
        (1..=max_blocks).prop_flat_map(move |n_blocks| {
            let len = n_blocks * block;
            let values =
                number().prop_perturb(move |kind, mut random| fill(&mut random, kind, len));
            let signs = prop_oneof![
                1 => Just(vec![1; len]),
                3 => Just(()).prop_perturb(move |(), mut random| random_signs(&mut random, len)),
            ];
            (Just(block), values, signs)
        })
    })
}

/// What the elements of a case look like.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// Of about the same size, as weights are.
    Uniform,
    /// Any bits but NaN and infinity, kept small enough that no sum overflows.
    AnyFinite,
    /// Subnormals, and sums that become subnormal or zero.
    Tiny,
    /// Zeros of both signs, infinities, the largest numbers; sums may become NaN.
    Special,
    /// Mostly zeros of both signs.
    Zeros,
}

fn number() -> impl Strategy<Value = Kind> {
    prop_oneof![
        Just(Kind::Uniform),
        Just(Kind::AnyFinite),
        Just(Kind::Tiny),
        Just(Kind::Special),
        Just(Kind::Zeros),
    ]
}

/// The same numbers in every run.
fn fixed() -> TestRng {
    TestRng::deterministic_rng(RngAlgorithm::ChaCha)
}

fn fill(random: &mut TestRng, kind: Kind, len: usize) -> Vec<f32> {
    let mut element = || match kind {
        Kind::Uniform => (random.next_u32() as f32 / u32::MAX as f32) * 2.0 - 1.0,
        Kind::AnyFinite => {
            let x = f32::from_bits(random.next_u32());
            if x.is_finite() { x / 16384.0 } else { 1.0 }
        }
        Kind::Tiny => f32::from_bits(random.next_u32() & 0x80ff_ffff),
        Kind::Special => {
            const CHOICES: [f32; 8] =
                [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, 1.0];
            let choice = random.next_u32();
            // Infinities are rare, or all outputs would be NaN.
            if choice.is_multiple_of(997) { CHOICES[choice as usize / 1024 % 8] } else { -0.0 }
        }
        Kind::Zeros => [0.0, -0.0, -0.0, -0.0, -1.0][random.next_u32() as usize % 5],
    };
    (0..len).map(|_| element()).collect()
}

fn random_signs(random: &mut TestRng, len: usize) -> Vec<i8> {
    (0..len).map(|_| if random.next_u32() & 1 == 0 { 1 } else { -1 }).collect()
}

/// The bits, with every NaN made the same.
fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| if x.is_nan() { f32::NAN } else { *x }.to_bits()).collect()
}

type Operation = fn(&BlockHadamard, &mut [f32], &Signs) -> Result<(), Error>;

const OPERATIONS: [(&str, Operation); 3] = [
    ("transform", |hadamard, x, _| hadamard.transform(x)),
    ("forward", BlockHadamard::forward),
    ("inverse", BlockHadamard::inverse),
];

fn assert_bit_equal(block: usize, x: &[f32], signs: &Signs) {
    for (name, operation) in OPERATIONS {
        let reference = BlockHadamard::new(block, Isa::scalar()).expect("a valid block size");
        let mut expected = x.to_vec();
        assert_eq!(operation(&reference, &mut expected, signs), Ok(()));
        for isa in Isa::available() {
            let hadamard = BlockHadamard::new(block, isa).expect("a valid block size");
            let mut found = x.to_vec();
            assert_eq!(operation(&hadamard, &mut found, signs), Ok(()));
            assert!(bits(&found) == bits(&expected), "{name} of blocks of {block} on {isa:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn kernels_give_the_bits_of_the_reference((block, x, signs) in blocks()) {
        assert_bit_equal(block, &x, &Signs::new(signs).unwrap());
    }
}

#[test]
fn every_block_size_and_kind_of_number() {
    let mut random = fixed();
    for exponent in BLOCKS {
        let block = 1 << exponent;
        let len = 3 * block;
        let signs = Signs::new(random_signs(&mut random, len)).unwrap();
        for kind in [Kind::Uniform, Kind::AnyFinite, Kind::Tiny, Kind::Special, Kind::Zeros] {
            assert_bit_equal(block, &fill(&mut random, kind, len), &signs);
        }
    }
}

#[test]
fn alignment_does_not_matter() {
    let block = 128;
    let x = fill(&mut fixed(), Kind::Uniform, block + 16);
    for isa in Isa::available() {
        let hadamard = BlockHadamard::new(block, isa).unwrap();
        for start in 0..16 {
            let mut unaligned = x.clone();
            hadamard.transform(&mut unaligned[start..start + block]).unwrap();
            let mut expected = x[start..start + block].to_vec();
            BlockHadamard::new(block, Isa::scalar()).unwrap().transform(&mut expected).unwrap();
            assert_eq!(bits(&unaligned[start..start + block]), bits(&expected));
            assert_eq!(bits(&unaligned[..start]), bits(&x[..start]));
            assert_eq!(bits(&unaligned[start + block..]), bits(&x[start + block..]));
        }
    }
}

#[test]
fn a_nan_reaches_its_whole_block_and_no_other() {
    for isa in Isa::available() {
        for exponent in BLOCKS {
            let block = 1 << exponent;
            let mut x = fill(&mut fixed(), Kind::Uniform, 3 * block);
            x[block + block / 3] = f32::NAN;
            BlockHadamard::new(block, isa).unwrap().transform(&mut x).unwrap();
            for (idx, x) in x.iter().enumerate() {
                assert_eq!(
                    x.is_nan(),
                    idx / block == 1,
                    "element {idx}, blocks of {block}, {isa:?}"
                );
            }
        }
    }
}
