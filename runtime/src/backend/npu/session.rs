//! One context on the device at a time, and what is in it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;

use aie_kernels::arithmetic::{self, Matrix, Mode};
use aie_kernels::job::Job;
use aie_kernels::layout::{GROUP, STRIP_FLOATS};
use xrt_sys::{Argument, Buffer, Context, Device, Failure, Kernel, Memory, Run, State};

/// The kernel's name in images by mlir-aie.
pub const KERNEL: &str = "MLIR_AIE";

/// Argument 0: run instructions.
const OPCODE: u64 = 3;

/// How often a command is tried.
const TRIES: u32 = 2;

/// What no result is: a NaN that no sum gives.
const PATTERN: [u8; 4] = [0xFF; 4];

macro_rules! arguments {
    ($($(#[$doc:meta])* $name:ident = $index:literal in $memory:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug)]
        pub(super) struct $name;

        impl Argument for $name {
            const INDEX: u32 = $index;
            const MEMORY: Memory = Memory::$memory;
        }
    )*};
}

arguments! {
    /// The instruction words of a shape.
    Instructions = 1 in Instructions;
    /// A matrix in `npu-pack/1`.
    Weights = 3 in Host;
    /// Slices of activations.
    Slices = 4 in Host;
    /// Strips of results.
    Strips = 5 in Host;
}

/// Argument 2: the number of instruction words.
const WORDS: u32 = 2;

/// Why there is no product.
#[derive(Debug)]
pub(super) enum Fault {
    /// XRT refused a call.
    Call(Failure),
    /// A command did not complete.
    Command {
        state: State,
        text: String,
    },
    /// A command completed and left strips unwritten.
    Unwritten {
        strips: usize,
        of: usize,
    },
    /// The first product is not what it must be.
    Wrong,
    Again {
        first: Box<Fault>,
        then: Box<Fault>,
    },
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self::Call(failure)
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Call(failure) => failure.fmt(f),
            Self::Command { state, text } => write!(f, "a command ended with {state}: {text}"),
            Self::Unwritten { strips, of } => {
                write!(f, "a command completed, but {strips} of {of} strips were not written")
            }
            Self::Wrong => f.write_str("the product of a known matrix is wrong"),
            Self::Again { first, then } => write!(f, "{first}; tried again: {then}"),
        }
    }
}

impl Fault {
    /// What to do, where that is known.
    pub(super) fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Call(failure) => match failure.errno()? {
                11 | 12 => Some(
                    "more memory has to be locked than is allowed: `drafter doctor` says how much, and \
                     how to raise the limit",
                ),
                13 => Some("no access to the device: `drafter doctor` says which group has it"),
                16 | 28 => Some(
                    "other programs have all contexts of the NPU: end them, or use --device cpu",
                ),
                22 => Some(
                    "the driver refuses the image: it is for another NPU, or driver, firmware and \
                     XRT are not of one release; see `drafter doctor`",
                ),
                62 => Some("the NPU hangs: reload the driver amdxdna, or restart the machine"),
                95 => Some("XRT and driver are not of one release: see `drafter doctor`"),
                _ => None,
            },
            Self::Command { state: State::NoResponse, .. } => {
                Some("the NPU hangs: reload the driver amdxdna, or restart the machine")
            }
            Self::Command { state: State::Timeout, .. } => {
                Some("another program may hold the NPU: end it, or use --device cpu")
            }
            Self::Again { first, then } => then.hint().or_else(|| first.hint()),
            Self::Command { .. } | Self::Unwritten { .. } | Self::Wrong => {
                Some("`drafter selftest` shows whether the device computes as it must")
            }
        }
    }
}

/// A matrix on the device.
#[derive(Debug)]
pub(super) struct Resident {
    job: Job,
    weights: Buffer<Weights>,
    /// Its command's place among those of the session.
    number: u64,
}

/// What matrices of one shape share.
#[derive(Debug)]
struct Shape {
    words: i32,
    instructions: Buffer<Instructions>,
    slices: Buffer<Slices>,
    strips: Buffer<Strips>,
}

/// The device, and the context on it.
#[derive(Debug)]
pub(super) struct Session {
    device: Device,
    image: Vec<u8>,
    timeout_ms: u32,
    /// None before the first one, and after a failure.
    kernel: Option<Kernel>,
    /// The commands of the context, which they keep alive; by the number of their matrix.
    runs: HashMap<u64, Run>,
    shapes: HashMap<Job, Shape>,
    /// Matrices so far.
    loaded: u64,
    replays: u64,
}

impl Session {
    pub(super) fn new(device: Device, image: Vec<u8>, timeout_ms: u32) -> Self {
        let (runs, shapes) = (HashMap::new(), HashMap::new());
        Self { device, image, timeout_ms, kernel: None, runs, shapes, loaded: 0, replays: 0 }
    }

    pub(super) fn replays(&self) -> u64 {
        self.replays
    }

    /// Gives up the context and everything a command of it might still write to.
    pub(super) fn abandon(&mut self) {
        self.runs.clear();
        self.shapes.clear();
        self.kernel = None;
    }

    /// The kernel, in a new context if there is none.
    fn kernel(&mut self) -> Result<Kernel, Failure> {
        if let Some(kernel) = &self.kernel {
            return Ok(kernel.clone());
        }
        let context = Context::new(&self.device, &self.image)?;
        let kernel = Kernel::new(&context, KERNEL)?;
        self.kernel = Some(kernel.clone());
        Ok(kernel)
    }

    /// Puts a matrix on the device.
    pub(super) fn load(&mut self, job: Job, bytes: &[u8]) -> Result<Resident, Fault> {
        let kernel = self.kernel()?;
        let mut weights = kernel.buffer::<Weights>(bytes.len())?;
        weights.bytes_mut().copy_from_slice(bytes);
        weights.send(0..bytes.len())?;
        self.loaded += 1;
        Ok(Resident { job, weights, number: self.loaded })
    }

    /// Forgets a matrix that is about to go.
    pub(super) fn unload(&mut self, resident: &Resident) {
        self.runs.remove(&resident.number);
    }

    /// Multiplies; gives the bytes of the results.
    pub(super) fn multiply(&mut self, resident: &Resident, slices: &[u8]) -> Result<&[u8], Fault> {
        let mut first = None;
        for _ in 0..TRIES {
            match self.command(resident, slices) {
                Ok(()) => {
                    let shape = &self.shapes[&resident.job];
                    return Ok(shape.strips.bytes());
                }
                Err(fault) => {
                    self.abandon();
                    if let Some(first) = first {
                        return Err(Fault::Again { first: Box::new(first), then: Box::new(fault) });
                    }
                    first = Some(fault);
                    self.replays += 1;
                }
            }
        }
        unreachable!("two tries end above")
    }

    /// One command. After an error the context is not to be used any more.
    fn command(&mut self, resident: &Resident, slices: &[u8]) -> Result<(), Fault> {
        let kernel = self.kernel()?;
        let shape = match self.shapes.entry(resident.job) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(Shape::new(&kernel, resident.job)?),
        };
        let run = match self.runs.entry(resident.number) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(shape.run(&kernel, &resident.weights)?),
        };

        shape.slices.bytes_mut().copy_from_slice(slices);
        shape.slices.send(0..slices.len())?;
        let len = shape.strips.len();
        for strip in shape.strips.bytes_mut().chunks_exact_mut(4 * STRIP_FLOATS) {
            strip[4 * (STRIP_FLOATS - 1)..].copy_from_slice(&PATTERN);
        }
        shape.strips.send(0..len)?;
        match run.execute(self.timeout_ms)? {
            (State::Completed, _) => {}
            (state, text) => return Err(Fault::Command { state, text }),
        }
        shape.strips.fetch(0..len)?;
        let strips = shape.strips.bytes().chunks_exact(4 * STRIP_FLOATS);
        let of = strips.len();
        let unwritten = strips.filter(|strip| strip.ends_with(&PATTERN)).count();
        if unwritten > 0 {
            return Err(Fault::Unwritten { strips: unwritten, of });
        }
        Ok(())
    }

    /// Multiplies a matrix whose product is known and exact in every arithmetic: small integers.
    pub(super) fn probe(&mut self) -> Result<(), Fault> {
        const ROWS: usize = 1024;
        const K: usize = 4 * GROUP;
        let codes = (0..ROWS * K).map(|i| ((i / K * 5 + i % K * 7) % 11 % 3) as u8).collect();
        let scales = (0..ROWS * K / GROUP).map(|i| if i % 3 == 0 { 0x3f80 } else { 0x4000 });
        let x: Vec<f32> = (0..2 * K).map(|i| ((i * 29) % 15) as f32 - 7.0).collect();
        let parts = Job::new(ROWS, K).ok().zip(Matrix::new(ROWS, K, codes, scales.collect()).ok());
        let x = arithmetic::Activations::new(&x, K, Mode::N16).ok();
        let Some(((job, w), x)) = parts.zip(x) else { unreachable!("the operands are in order") };
        let parts = job.pack_weights(&w).ok().zip(job.pack_activations(&x).ok());
        let (Some((weights, slices)), Ok(expected)) = (parts, arithmetic::matmul(&w, &x)) else {
            unreachable!("the operands are in order")
        };
        let resident = self.load(job, &weights)?;
        let bytes = self.multiply(&resident, &slices)?;
        match job.unpack_results(bytes, x.live_rows()) {
            Ok(found) if found == expected => {}
            _ => return Err(Fault::Wrong),
        }
        self.unload(&resident);
        self.shapes.remove(&job);
        Ok(())
    }
}

impl Shape {
    /// The command that multiplies `weights`.
    fn run(&self, kernel: &Kernel, weights: &Buffer<Weights>) -> Result<Run, Failure> {
        let mut run = Run::new(kernel)?;
        run.set_u64(0, OPCODE)?;
        run.set(&self.instructions)?;
        run.set_i32(WORDS, self.words)?;
        run.set(weights)?;
        run.set(&self.slices)?;
        run.set(&self.strips)?;
        Ok(run)
    }

    fn new(kernel: &Kernel, job: Job) -> Result<Self, Fault> {
        let refused = |reason: String| Failure { call: "making instructions", reason };
        let words = job.instructions(0).map_err(|error| refused(error.to_string()))?;
        let mut instructions = kernel.buffer::<Instructions>(4 * words.len())?;
        for (out, word) in instructions.bytes_mut().chunks_exact_mut(4).zip(&words) {
            out.copy_from_slice(&word.to_le_bytes());
        }
        instructions.send(0..4 * words.len())?;
        Ok(Self {
            // At most a few thousand.
            words: words.len() as i32,
            instructions,
            slices: kernel.buffer(job.activation_bytes())?,
            strips: kernel.buffer(job.result_bytes())?,
        })
    }
}
