//! What XRT and the firmware demand is demanded here, through the shim.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

use std::collections::BTreeMap;

use aie_kernels::arithmetic::{Activations, Matrix, Mode, matmul};
use aie_kernels::job::Job;
use xrt_sim::device::{ContextFault, DispatchFault};
use xrt_sim::{Faults, Simulated, api, image};
use xrt_sys::{Api, Argument, Buffer, Context, Device, Failure, Kernel, Memory, Run, State};

macro_rules! argument {
    ($name:ident, $index:literal, $memory:ident) => {
        #[derive(Debug)]
        struct $name;
        impl Argument for $name {
            const INDEX: u32 = $index;
            const MEMORY: Memory = Memory::$memory;
        }
    };
}

argument!(Code, 1, Instructions);
argument!(Weights, 3, Host);
argument!(Inputs, 4, Host);
argument!(Outputs, 5, Host);
// The place of the outputs, in the memory of instructions.
argument!(WrongMemory, 5, Instructions);

// More than there is a place for.
argument!(Fourth, 6, Host);
argument!(Fifth, 7, Host);
argument!(Sixth, 8, Host);

/// A small product, ready to run.
struct Ready {
    kernel: Kernel,
    job: Job,
    words: i32,
    expected: Vec<f32>,
    code: Buffer<Code>,
    weights: Buffer<Weights>,
    inputs: Buffer<Inputs>,
    outputs: Buffer<Outputs>,
}

const ROWS: usize = 40;
const K: usize = 256;

fn open(simulated: &Simulated) -> Result<Kernel, Failure> {
    let device = Device::open(&api().unwrap(), simulated.index())?;
    Kernel::new(&Context::new(&device, &image())?, "MLIR_AIE")
}

fn fill<A: Argument>(buffer: &mut Buffer<A>, bytes: &[u8]) {
    buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
    buffer.send(0..bytes.len()).unwrap();
}

impl Ready {
    fn new(simulated: &Simulated) -> Self {
        Self::on(open(simulated).unwrap())
    }

    fn on(kernel: Kernel) -> Self {
        let codes = (0..ROWS * K).map(|i| (i * 7 % 11 % 3) as u8).collect();
        let w = Matrix::new(ROWS, K, codes, vec![0x3e80; ROWS * K / 128]).unwrap();
        let x: Vec<f32> = (0..2 * K).map(|i| (i * 13 % 101) as f32 - 50.0).collect();
        let x = Activations::new(&x, K, Mode::N16).unwrap();
        let job = Job::new(ROWS, K).unwrap();
        let words: Vec<u8> =
            job.instructions(0).unwrap().iter().flat_map(|word| word.to_le_bytes()).collect();
        let mut ready = Self {
            words: words.len() as i32 / 4,
            expected: matmul(&w, &x).unwrap(),
            code: kernel.buffer(words.len()).unwrap(),
            weights: kernel.buffer(job.weight_bytes()).unwrap(),
            inputs: kernel.buffer(job.activation_bytes()).unwrap(),
            outputs: kernel.buffer(job.result_bytes()).unwrap(),
            kernel,
            job,
        };
        fill(&mut ready.code, &words);
        fill(&mut ready.weights, &job.pack_weights(&w).unwrap());
        fill(&mut ready.inputs, &job.pack_activations(&x).unwrap());
        ready
    }

    fn run(&self) -> Run {
        let mut run = Run::new(&self.kernel).unwrap();
        run.set_u64(0, 3).unwrap();
        run.set(&self.code).unwrap();
        run.set_i32(2, self.words).unwrap();
        run.set(&self.weights).unwrap();
        run.set(&self.inputs).unwrap();
        run.set(&self.outputs).unwrap();
        run
    }

    fn results(&self) -> Vec<f32> {
        self.job.unpack_results(self.outputs.bytes(), 2).unwrap()
    }
}

#[test]
fn a_product_needs_every_synchronisation() {
    let simulated = Simulated::new(Faults::default());
    let mut ready = Ready::new(&simulated);
    let device = Device::open(&api().unwrap(), simulated.index()).unwrap();
    assert_eq!(device.name().unwrap(), "NPU simulator");
    assert_eq!(device.address().unwrap(), format!("sim:{}", simulated.index()));
    assert_eq!(device.xrt_version().unwrap(), "0.0.0");

    let mut run = ready.run();
    assert_eq!(run.execute(100).unwrap(), (State::Completed, String::new()));
    // The host's copy is what it was.
    assert!(ready.outputs.bytes().iter().all(|byte| *byte == 0xA5));
    ready.outputs.fetch(0..ready.outputs.len()).unwrap();
    assert_eq!(ready.results(), ready.expected);

    // What is not sent is not seen.
    ready.inputs.bytes_mut().fill(0);
    run.execute(100).unwrap();
    ready.outputs.fetch(0..ready.outputs.len()).unwrap();
    assert_eq!(ready.results(), ready.expected);
    let header = ready.inputs.len() - 64;
    ready.inputs.fetch(header..ready.inputs.len()).unwrap();
    ready.inputs.send(0..ready.inputs.len()).unwrap();
    assert_eq!(run.execute(100).unwrap().0, State::Completed);
    ready.outputs.fetch(0..ready.outputs.len()).unwrap();
    assert!(ready.results().iter().all(|value| *value == 0.0));
    assert_eq!(simulated.counts().dispatches, 3);
}

#[test]
fn arguments_are_checked() {
    let refused = |change: &dyn Fn(&Ready, &mut Run), text: &str| {
        let simulated = Simulated::new(Faults::default());
        let ready = Ready::new(&simulated);
        let mut run = ready.run();
        change(&ready, &mut run);
        let (state, found) = run.execute(100).unwrap();
        assert_ne!(state, State::Completed);
        assert!(found.contains(text), "{found}");
        // The context is dead.
        let (state, found) = ready.run().execute(100).unwrap();
        assert!(state == State::Abort && found.contains("died"), "{found}");
    };
    refused(&|_, run| run.set_u64(0, 2).unwrap(), "opcode 3");
    refused(&|_, run| run.set_i32(0, 3).unwrap(), "opcode 3");
    refused(&|_, run| run.set_u64(2, 9).unwrap(), "32-bit number of instruction words");
    refused(&|ready, run| run.set_i32(2, ready.words * 4).unwrap(), "more instruction words");
    refused(&|ready, run| run.set_i32(2, ready.words - 4).unwrap(), "instructions: word");
    refused(&|ready, run| run.set(&ready.kernel.buffer::<Fifth>(64).unwrap()).unwrap(), "a gap");
    let too_many = |ready: &Ready, run: &mut Run| {
        run.set(&ready.kernel.buffer::<Fourth>(64).unwrap()).unwrap();
        run.set(&ready.kernel.buffer::<Fifth>(64).unwrap()).unwrap();
        run.set(&ready.kernel.buffer::<Sixth>(64).unwrap()).unwrap();
    };
    refused(&too_many, "more than 5 buffers");

    // Before any argument is set.
    let simulated = Simulated::new(Faults::default());
    let ready = Ready::new(&simulated);
    let (state, text) = Run::new(&ready.kernel).unwrap().execute(100).unwrap();
    assert!(state == State::Error && text.contains("opcode 3"), "{text}");
}

#[test]
fn a_buffer_in_the_wrong_memory_is_not_reached() {
    let simulated = Simulated::new(Faults::default());
    let mut ready = Ready::new(&simulated);
    let wrong: Buffer<WrongMemory> = ready.kernel.buffer(ready.outputs.len()).unwrap();
    let mut run = ready.run();
    run.set(&wrong).unwrap();
    assert_eq!(run.execute(100).unwrap().0, State::Completed);
    ready.outputs.fetch(0..ready.outputs.len()).unwrap();
    assert!(ready.outputs.bytes().iter().all(|byte| *byte == 0x5A));
}

#[test]
fn devices_fail_as_told() {
    let nobody = Device::open(&api().unwrap(), u32::MAX).unwrap_err();
    assert_eq!(nobody.to_string(), "opening the device: No such device with index '4294967295'");

    for fault in DispatchFault::ALL {
        let dispatches = BTreeMap::from([(0, fault)]);
        let simulated = Simulated::new(Faults { dispatches, ..Faults::default() });
        let ready = Ready::new(&simulated);
        let (state, text) = ready.run().execute(100).unwrap();
        let expected = match fault {
            DispatchFault::Timeout => State::Timeout,
            DispatchFault::Abort => State::Abort,
            DispatchFault::Error => State::Error,
            DispatchFault::Hang => State::NoResponse,
            DispatchFault::Nothing => State::Completed,
        };
        assert_eq!((state, text.is_empty()), (expected, state == State::Completed));
        let again = open(&simulated);
        match fault {
            DispatchFault::Hang => assert_eq!(again.unwrap_err().errno(), Some(62)),
            _ => drop(again.unwrap()),
        }
    }
    for (fault, errno) in [(ContextFault::Invalid, 22), (ContextFault::Busy, 16)] {
        let contexts = BTreeMap::from([(0, fault)]);
        let simulated = Simulated::new(Faults { contexts, ..Faults::default() });
        assert_eq!(open(&simulated).unwrap_err().errno(), Some(errno));
        open(&simulated).unwrap();
    }
    let simulated = Simulated::new(Faults { memlock_bytes: Some(1000), ..Faults::default() });
    let kernel = open(&simulated).unwrap();
    let first = kernel.buffer::<Weights>(600).unwrap();
    assert_eq!(kernel.buffer::<Weights>(600).unwrap_err().errno(), Some(11));
    drop(first);
    kernel.buffer::<Weights>(600).unwrap();
    let all: Vec<_> = (0..15).map(|_| open(&simulated).unwrap()).collect();
    assert_eq!(open(&simulated).unwrap_err().errno(), Some(16));
    drop(all);
    open(&simulated).unwrap();
}

#[test]
fn other_images_and_kernels_are_refused() {
    let simulated = Simulated::new(Faults::default());
    let device = Device::open(&api().unwrap(), simulated.index()).unwrap();
    for image in [&b"xclbin2\0"[..], b"", &image()[..200]] {
        let error = Context::new(&device, image).unwrap_err();
        assert!(error.reason.contains("not an image"), "{error}");
    }
    let context = Context::new(&device, &image()).unwrap();
    let error = Kernel::new(&context, "OTHER").unwrap_err();
    assert!(error.reason.contains("`OTHER'") || error.reason.contains("'OTHER'"), "{error}");
}

/// The library that `Api::open` finds by its path does what the linked one does.
#[test]
fn a_shim_is_opened_at_run_time() {
    // Beside the folder of this program, where cargo puts examples.
    let folder = std::env::current_exe().unwrap();
    let folder = folder.parent().unwrap().parent().unwrap().join("examples");
    let api = Api::open(&folder.join("libdrafter_xrt.so")).unwrap();
    let device = Device::open(&api, 0).unwrap();
    assert_eq!(device.address().unwrap(), "sim:0");
    let kernel = Kernel::new(&Context::new(&device, &image()).unwrap(), "MLIR_AIE").unwrap();
    let ready = Ready::on(kernel);
    let mut run = ready.run();
    assert_eq!(run.execute(100).unwrap().0, State::Completed);
    let mut ready = ready;
    ready.outputs.fetch(0..ready.outputs.len()).unwrap();
    assert_eq!(ready.results(), ready.expected);
    // Its devices are not those of this program.
    assert!(Device::open(&api, 1).is_err());

    let nothing = std::env::temp_dir().join("no-such-folder/libdrafter_xrt.so");
    let error = Api::open(&nothing).unwrap_err().to_string();
    assert!(error.contains("no-such-folder"), "{error}");
}
