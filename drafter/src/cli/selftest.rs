//! `drafter selftest`: known products on a device, bit by bit, and a pair with and without speculation.

use command_line::Streams;
use command_line::args::Workers;
use command_line::exit::Outcome;
use formats::{GROUP, Source, TernaryRows, pq2_0};
use hadamard::Isa;
use half::f16;
use runtime::backend::{Backend, Cpu, Dot, Reference};
use runtime::exact::{Pair as ExactPair, Proof, prove};
use runtime::quant::{ActQuant, Activations};
use runtime::rotation::Rotation;
use runtime::round::{Greedy, Limits};
use runtime::rows::Rows;
use runtime::weights::{TernaryEncoding, TernaryMatrix};
use serde::Serialize;

use super::SCHEMA;
use super::args::{Device, SelftestArgs};
use super::device;
use super::packs::Packs;
use super::pair::Pair;
use crate::npu;

/// Largest relative difference of a product on silicon, whose float part is not ours.
const TOLERANCE: f32 = 1e-5;

/// Shapes of the products: outputs, inputs, rows.
const SHAPES: [(usize, usize, usize); 4] =
    [(1024, 512, 1), (1024, 512, 8), (1100, 768, 3), (2048, 1536, 8)];

/// The rotation's block, whose factor 1/16 is exact.
const BLOCK: usize = 256;

/// Tokens of the answer that is compared.
const TOKENS: usize = 8;

/// One test.
#[derive(Debug, Serialize)]
struct Test {
    name: String,
    /// `ok`, `failed`, or `skipped`.
    status: &'static str,
    detail: String,
}

/// What `--json` prints.
#[derive(Debug, Serialize)]
struct Document {
    schema: u32,
    device: &'static str,
    passed: bool,
    tests: Vec<Test>,
}

/// Runs the command.
pub(crate) fn run(
    args: &SelftestArgs,
    workers: &Workers,
    streams: &Streams,
) -> anyhow::Result<Outcome> {
    let mut tests = Vec::new();
    let (name, backend): (_, Box<dyn Backend>) = match args.device.device {
        Device::Cpu => ("cpu", Box::new(Cpu::new(Dot::detect(workers.isa())))),
        Device::Auto => match npu::real(&device::files(&args.device.npu)) {
            Ok(npu) => ("npu", Box::new(npu)),
            Err(error) => {
                streams.note(&format!("the CPU takes the place of the NPU: {error}"));
                ("cpu", Box::new(Cpu::new(Dot::detect(workers.isa()))))
            }
        },
        Device::Npu | Device::NpuSim => {
            let (name, npu) = device::open(&args.device)?;
            (name, Box::new(npu))
        }
    };
    for act in [ActQuant::N16, ActQuant::N8] {
        for (rows, k, n) in SHAPES {
            for exact in [true, false] {
                tests.push(product(&*backend, act, (rows, k, n), exact, name != "npu")?);
            }
        }
        tests.push(rows_alone(&*backend, act)?);
    }
    drop(backend);
    tests.push(identity(args, workers, streams)?);
    let passed = tests.iter().all(|test| test.status != "failed");
    if streams.json() {
        streams.document(&Document { schema: SCHEMA, device: name, passed, tests })?;
    } else {
        let lines = tests.iter().map(|t| format!("{:<8} {}: {}\n", t.status, t.name, t.detail));
        let end = if passed { "passed" } else { "FAILED" };
        streams.text(&format!("{}{name}: {end}\n", lines.collect::<String>()))?;
    }
    Ok(if passed { Outcome::Done } else { Outcome::No })
}

/// A matrix and inputs, `[n, k]` before rotation, that are the same everywhere. With `exact` all rotated
/// values are small integers, whose products are the same in every arithmetic.
fn operands(
    (rows, k, n): (usize, usize, usize),
    exact: bool,
) -> anyhow::Result<(TernaryMatrix, Vec<f32>)> {
    let mut state = 0x2545_F491u32;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state
    };
    let mut weights = TernaryRows::zeroed(rows, k);
    for r in 0..rows {
        (0..k).for_each(|at| weights.set_code(r, at, (next() >> 8) as u8 % 4));
        for g in 0..k / GROUP {
            let scale = if exact {
                f16::from_f32([0.5, 1.0, 2.0][next() as usize % 3])
            } else {
                f16::from_bits((0x1400 + (next() >> 8) as u16 % 0x2800) & !7)
            };
            weights.set_scale(r, g, scale);
        }
    }
    let mut bytes = vec![0; rows * pq2_0::row_bytes(k)];
    pq2_0::encode(&weights, &mut bytes);
    let source = Source::from_bytes("selftest", bytes);
    let view = source.view(0, source.len())?;
    let matrix = TernaryMatrix::new(view, TernaryEncoding::Pq2_0, rows, k, "selftest", "w");
    let value = |(at, bits): (usize, u32)| match exact {
        // Four to a block of the rotation: sums of four numbers from -2 to 2.
        true if at % 64 == 13 => 16.0 * ((bits % 5) as f32 - 2.0),
        true => 0.0,
        false => bits as f32 / 2f32.powi(30) - 1.0,
    };
    Ok((matrix, (0..n * k).map(|at| value((at, next() >> 1))).collect()))
}

/// Rows of width `k`, ready for a matrix.
fn activations(x: &[f32], k: usize, act: ActQuant) -> anyhow::Result<Activations> {
    let rotation = Rotation::new(BLOCK, [(k, vec![1; k])].into(), Isa::detect())?;
    Ok(Activations::new(&rotation.rotate(&Rows::from_vec(k, x.to_vec()))?, act)?)
}

fn multiply(
    backend: &dyn Backend,
    matrix: &TernaryMatrix,
    x: &Activations,
) -> Result<Vec<f32>, runtime::Error> {
    let mut out = vec![f32::NAN; x.n() * matrix.out_features()];
    backend.prepare(matrix.clone())?.matmul(x, &mut out)?;
    Ok(out)
}

fn product(
    backend: &dyn Backend,
    act: ActQuant,
    shape: (usize, usize, usize),
    exact: bool,
    bits: bool,
) -> anyhow::Result<Test> {
    let (matrix, x) = operands(shape, exact)?;
    let x = activations(&x, shape.1, act)?;
    let expected = multiply(&Reference, &matrix, &x)?;
    let found = multiply(backend, &matrix, &x)?;
    let differing = found.iter().zip(&expected).filter(|(a, b)| a.to_bits() != b.to_bits()).count();
    let size = expected.iter().fold(0f32, |m, x| m.max(x.abs()));
    let off = found.iter().zip(&expected).fold(0f32, |m, (a, b)| {
        // Not a number is as far off as can be.
        let d = (a - b).abs();
        if d.is_nan() { f32::INFINITY } else { m.max(d) }
    }) / size;
    let good = differing == 0 || (!bits && !exact && off <= TOLERANCE);
    let (rows, k, n) = shape;
    let kind = if exact { "integers" } else { "floats" };
    Ok(Test {
        name: format!("{act}, {kind}, {rows} x {k}, {n} rows"),
        status: if good { "ok" } else { "failed" },
        detail: format!("{differing} of {} differ in a bit, by {off:.1e} at most", found.len()),
    })
}

/// Rows in a batch have the bits of each alone, which is what speculation rests on.
fn rows_alone(backend: &dyn Backend, act: ActQuant) -> anyhow::Result<Test> {
    let (matrix, x) = operands((1024, 512, 8), false)?;
    let prepared = backend.prepare(matrix)?;
    let mut together = vec![f32::NAN; 8 * 1024];
    prepared.matmul(&activations(&x, 512, act)?, &mut together)?;
    let mut alike = 0;
    for (row, x) in x.chunks_exact(512).enumerate() {
        let mut out = vec![f32::NAN; 1024];
        prepared.matmul(&activations(x, 512, act)?, &mut out)?;
        let same = out.iter().zip(&together[row * 1024..]).all(|(a, b)| a.to_bits() == b.to_bits());
        alike += usize::from(same);
    }
    Ok(Test {
        name: format!("{act}, 8 rows as each alone"),
        status: if alike == 8 { "ok" } else { "failed" },
        detail: format!("{alike} of 8 have the same bits"),
    })
}

/// Speculative and plain output of a pair.
fn identity(args: &SelftestArgs, workers: &Workers, streams: &Streams) -> anyhow::Result<Test> {
    let test = |status, detail: String| Test {
        name: "speculative output is plain output".to_owned(),
        status,
        detail,
    };
    if !args.models.pair.is_given() {
        return Ok(test("skipped", "name a link, or give --target and --drafter".to_owned()));
    }
    let pair = Pair::of(&args.models)?;
    if pair.drafter.is_none() {
        return Ok(test("skipped", "there is no drafter".to_owned()));
    }
    let packs = Packs::of(&args.models.packs, streams);
    let loaded = device::load(&pair, &args.models, &args.device, workers, true, &packs, streams)?;
    let Some(drafter) = &loaded.models.drafter else { unreachable!("loaded above") };
    let most = drafter.config().block_size - 1;
    let pair = ExactPair::new(&loaded.models.target, drafter);
    // Any ids do; these are in every vocabulary that has so many.
    let vocab = loaded.models.target.vocab() as u32;
    let prompt: Vec<u32> = (0..4).map(|i| (i * 37 + 11) % vocab).collect();
    let limits = Limits { max_tokens: Some(TOKENS), ..Limits::default() };
    let proof = prove(&pair, &prompt, &limits, most..=most, &mut || Box::new(Greedy), &|_| {
        command_line::signals::received()
    })?;
    Ok(match proof {
        Proof::Exact(proved) => test(
            "ok",
            format!(
                "{} tokens, {} rows of logits and {} states have the same bits",
                proved.tokens, proved.logits, proved.states
            ),
        ),
        Proof::Different(d) => {
            test("failed", format!("{} differs at token {}", d.what.name(), d.token))
        }
        Proof::Cancelled => test("failed", "interrupted".to_owned()),
    })
}
