//! Models on the NPU backend, through shim and simulated XRT, against the scalar arithmetic on the CPU:
//! ids, bits of logits, digests of the state. And what happens when the device fails.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

mod support;

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};
use std::path::Path;

use formats::gguf::GgmlType;
use hadamard::Isa;
use runtime::Error;
use runtime::backend::npu::{Need, Options};
use runtime::backend::{Backend, ModelOnNpu, Npu, Reference};
use runtime::drafter::{Context, Drafter};
use runtime::kv::KvType;
use runtime::pack_cache::{Event, PackCache, SourceFile};
use runtime::quant::ActQuant;
use runtime::round::{
    DrafterProposer, Generated, Limits, Observer, Sampler, Sampling, Session, Speculation,
};
use runtime::target::{Digest, State, Target};
use support::drafter::{Kind, config, write};
use support::{Shape, Storage, noise};
use xrt_sim::device::{ContextFault, DispatchFault};
use xrt_sim::{Faults, Simulated};
use xrt_sys::Device;

fn open(simulated: &Simulated) -> Result<Npu, Error> {
    let device = Device::open(&xrt_sim::api().unwrap(), simulated.index()).unwrap();
    Npu::open(&device, xrt_sim::image(), &Options::new("npu-sim"))
}

fn sound() -> (Simulated, Npu) {
    let simulated = Simulated::new(Faults::default());
    let npu = open(&simulated).unwrap();
    (simulated, npu)
}

fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Everything a run shows.
#[derive(Debug, Default, PartialEq)]
struct Trace {
    ids: Vec<u32>,
    logits: Vec<Vec<u32>>,
    /// By the number of delivered tokens.
    states: BTreeMap<usize, Digest>,
}

impl Observer for Trace {
    fn token(&mut self, id: u32, logits: &[f32]) -> ControlFlow<()> {
        self.ids.push(id);
        self.logits.push(bits(logits));
        ControlFlow::Continue(())
    }

    fn committed(&mut self, state: &State, pending: u32) {
        self.states.insert(self.ids.len(), state.digest(Some(pending)));
    }
}

/// Target and drafter of noise, all matrices ternary.
struct Models {
    target: Target,
    drafter: Drafter,
}

impl Models {
    fn noise(backend: &dyn Backend) -> Result<Self, Error> {
        Self::of_shape(&Shape::mini(), backend)
    }

    /// One layer of each kind.
    fn smallest(backend: &dyn Backend) -> Result<Self, Error> {
        Self::of_shape(&Shape { mask: vec![true, false], ..Shape::mini() }, backend)
    }

    fn of_shape(shape: &Shape, backend: &dyn Backend) -> Result<Self, Error> {
        let (act, isa) = (ActQuant::N16, Isa::detect());
        let source = noise(shape, Storage::Pq2_0, 7).source();
        let target = Target::load(source, act, isa, backend)?;
        let dir = tempfile::tempdir().unwrap();
        let kind = Kind::Gguf(GgmlType::PQ2_0);
        let path = write(dir.path(), &config(shape), kind, shape.block, 3);
        let drafter = Drafter::open(&path, None, &target, act, isa, backend)?;
        Ok(Self { target, drafter })
    }

    /// The trained pair; its drafter is float, which the CPU multiplies.
    fn trained(backend: &dyn Backend) -> Self {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
        let (act, isa) = (ActQuant::N16, Isa::detect());
        let target = Target::open(&folder.join("target.gguf"), act, isa, backend).unwrap();
        let path = folder.join("drafter/model.safetensors");
        let drafter = Drafter::open(&path, None, &target, act, isa, backend).unwrap();
        Self { target, drafter }
    }

    fn run(
        &self,
        drafts: usize,
        sampling: Sampling,
        prompt: &[u32],
        tokens: usize,
    ) -> Result<(Generated, Trace), Error> {
        let kv = KvType::F16;
        let context = Context::new(self.drafter.config(), kv);
        let mut proposer = DrafterProposer::new(&self.drafter, context);
        let speculation = match drafts {
            0 => Speculation::Off,
            max => Speculation::On { proposer: &mut proposer, max },
        };
        let limits = Limits { max_tokens: Some(tokens), ..Limits::default() };
        let mut session = Session { state: State::new(self.target.config(), kv), pending: None };
        let mut trace = Trace::default();
        let mut sampler = Sampler::new(sampling).unwrap();
        let generated = session.generate(
            &self.target,
            prompt,
            &limits,
            &mut sampler,
            speculation,
            &mut trace,
        )?;
        Ok((generated, trace))
    }
}

fn samplings() -> [Sampling; 2] {
    let greedy = Sampling { temperature: 0.0, ..Sampling::default() };
    [greedy, Sampling { temperature: 0.9, top_k: 40, seed: 5, ..Sampling::default() }]
}

/// The same run on both backends, plain and speculative, shows the same; with speculation as without.
fn assert_equal(cpu: &Models, npu: &Models, prompt: &[u32], tokens: usize) {
    for sampling in samplings() {
        let (_, plain) = cpu.run(0, sampling, prompt, tokens).unwrap();
        assert_eq!(plain.ids.len(), tokens);
        for drafts in [0, 7] {
            let (generated, found) = npu.run(drafts, sampling, prompt, tokens).unwrap();
            let (_, expected) = cpu.run(drafts, sampling, prompt, tokens).unwrap();
            assert!(found == expected, "{drafts} drafts, {sampling:?}");
            assert!((found.ids == plain.ids) && (found.logits == plain.logits), "{drafts} drafts");
            for (n, state) in &found.states {
                assert_eq!(plain.states.get(n), Some(state), "state after {n} tokens");
            }
            assert_eq!(drafts > 0, generated.rounds.iter().any(|round| round.drafted > 0));
        }
    }
}

#[test]
fn the_trained_pair_runs_as_on_the_cpu() {
    let (simulated, npu) = sound();
    let models = Models::trained(&npu);
    let before = simulated.counts().dispatches;
    // "def fib" in its tokens; any ids would do.
    assert_equal(&Models::trained(&Reference), &models, &[279, 512, 17, 900], 5);
    // Six layers of seven or eight matrices, and the head.
    assert!(simulated.counts().dispatches > before + 4 * 40);
    assert_eq!(npu.replays(), 0);
}

#[test]
fn ternary_drafters_run_as_on_the_cpu() {
    let (_simulated, npu) = sound();
    let cpu = Models::noise(&Reference).unwrap();
    assert_equal(&cpu, &Models::noise(&npu).unwrap(), &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 6);
}

const PROMPT: [u32; 3] = [7, 8, 9];

/// The prompt and a round with drafts, by the pair of noise; the dispatches it took.
fn round(models: &Models, simulated: &Simulated) -> (Result<Trace, Error>, Range<u64>) {
    let before = simulated.counts().dispatches;
    let result = models.run(7, samplings()[0], &PROMPT, 3).map(|(generated, trace)| {
        assert!(generated.rounds[0].drafted > 0);
        trace
    });
    (result, before..simulated.counts().dispatches)
}

#[test]
fn a_fault_at_any_dispatch_costs_time_and_no_token() {
    let (simulated, npu) = sound();
    let models = Models::smallest(&npu).unwrap();
    let (expected, dispatches) = round(&models, &simulated);
    let expected = expected.unwrap();
    let n = dispatches.end - dispatches.start;
    // Seven matrices of attention, six of the delta net, the head.
    let prompt = 14;
    assert!(n > prompt + 30, "{n} dispatches of prompt and round");
    let kinds = [
        DispatchFault::Timeout,
        DispatchFault::Abort,
        DispatchFault::Error,
        DispatchFault::Nothing,
    ];
    // Every command fails once, each in every way: it is run again, in a new context.
    for offset in 0..4 {
        let (first, replays) = (simulated.counts().dispatches, npu.replays());
        let kind = |at: u64| kinds[(at + offset) as usize % kinds.len()];
        let dispatches = (0..n).map(|at| (first + 2 * at, kind(at))).collect();
        simulated.set_faults(Faults { dispatches, ..Faults::default() });
        let (found, dispatches) = round(&models, &simulated);
        assert!(found.unwrap() == expected, "{offset}");
        assert_eq!((dispatches.end - dispatches.start, npu.replays()), (2 * n, replays + n));
    }
    // Twice in a row: an error that says what happened.
    for at in (prompt..n).step_by(5) {
        let kind = kinds[at as usize % 4];
        let first = simulated.counts().dispatches + at;
        let dispatches = BTreeMap::from([(first, kind), (first + 1, kind)]);
        simulated.set_faults(Faults { dispatches, ..Faults::default() });
        let error = round(&models, &simulated).0.unwrap_err();
        let text = error.to_string();
        let cause = match kind {
            DispatchFault::Timeout => "a command ended with timeout (8): the command timed out",
            DispatchFault::Abort => "a command ended with abort (6): the command was aborted",
            DispatchFault::Error => "a command ended with error (5): the array reports an error",
            _ => "a command completed, but 32 of 32 strips were not written",
        };
        assert_eq!(text, format!("npu-sim: {cause}; tried again: {cause}"));
        assert!(matches!(error, Error::Device { hint: Some(_), .. }));
    }
    // Nothing is left of all that.
    simulated.set_faults(Faults::default());
    assert!(round(&models, &simulated).0.unwrap() == expected);
}

#[test]
fn a_device_that_hangs_is_named() {
    for at in [0, 20, 40] {
        let (simulated, npu) = sound();
        let models = Models::smallest(&npu).unwrap();
        let first = simulated.counts().dispatches;
        let dispatches = BTreeMap::from([(first + at, DispatchFault::Hang)]);
        simulated.set_faults(Faults { dispatches, ..Faults::default() });
        let Error::Device { what, hint, .. } = round(&models, &simulated).0.unwrap_err() else {
            panic!("another error")
        };
        assert!(what.contains("no response (9)") && what.contains("err=-62"), "{what}");
        assert!(hint.unwrap().contains("the NPU hangs"));
        // It stays so, and says so.
        assert!(round(&models, &simulated).0.is_err());
    }
}

#[test]
fn what_keeps_a_session_from_starting_is_named() {
    let message = |faults: Faults| {
        let simulated = Simulated::new(faults);
        let error = open(&simulated).map(|npu| Models::noise(&npu).map(drop));
        match error {
            Err(error) | Ok(Err(error)) => match error {
                Error::Device { device, what, hint } => {
                    assert_eq!(device, "npu-sim");
                    (what, hint.unwrap_or_default())
                }
                other => panic!("{other}"),
            },
            Ok(Ok(())) => panic!("it started"),
        }
    };
    let memlock = |bytes| Faults { memlock_bytes: Some(bytes), ..Faults::default() };
    // Not even the probe fits; then the probe fits and the models do not.
    for bytes in [1 << 16, 1 << 20] {
        let (what, hint) = message(memlock(bytes));
        assert!(what.contains("Resource temporarily unavailable"), "{what}");
        assert!(hint.contains("memory has to be locked"), "{hint}");
    }
    let context =
        |fault| Faults { contexts: BTreeMap::from([(0, fault), (1, fault)]), ..Faults::default() };
    let (what, hint) = message(context(ContextFault::Busy));
    assert!(what.contains("making a hardware context") && what.contains("busy"), "{what}");
    assert!(hint.contains("other programs have all contexts"), "{hint}");
    let (what, hint) = message(context(ContextFault::Invalid));
    assert!(what.contains("Invalid argument") && hint.contains("refuses the image"), "{what}");
    let twice = BTreeMap::from([(0, DispatchFault::Hang), (1, DispatchFault::Hang)]);
    let (what, hint) = message(Faults { dispatches: twice, ..Faults::default() });
    assert!(what.contains("no response") && hint.contains("hangs"), "{what}");

    // An image of something else.
    let (simulated, _npu) = sound();
    let device = Device::open(&xrt_sim::api().unwrap(), simulated.index()).unwrap();
    let error = Npu::open(&device, b"xclbin2\0".to_vec(), &Options::new("npu")).unwrap_err();
    assert!(error.to_string().contains("npu: making a hardware context: Invalid xclbin"));
}

/// The need is what a device with as many lockable bytes, and no fewer, can hold.
#[test]
fn the_need_of_locked_memory_is_exact() {
    const HEAP: u64 = 64 << 20;
    /// What the first product takes, and gives back.
    const PROBE: u64 = 1 << 19;
    let need = Need::new();
    Models::noise(&need).unwrap();
    // 3 layers of 7 or 8 matrices and the head; the drafter's.
    assert!(need.matrices() > 30 && need.too_large().is_none());
    let bytes = need.locked_bytes() - HEAP;
    let run = |limit: u64| {
        let faults = Faults { memlock_bytes: Some(limit), ..Faults::default() };
        let simulated = Simulated::new(faults);
        let models = Models::noise(&open(&simulated)?)?;
        let trace = models.run(7, samplings()[0], &PROMPT, 3)?.1;
        Ok::<_, Error>((trace, simulated.counts().buffer_bytes))
    };
    let (_, used) = run(bytes.max(PROBE)).unwrap();
    // Not every width of the drafter's matrices is used in so short a run.
    assert!(used <= bytes && bytes - used < bytes / 20, "{used} {bytes}");
    // Shapes can make room for each other, weights cannot.
    assert!(run(used / 2).is_err());
}

/// Weights from a pack on disk are those that would be packed at every start.
#[test]
fn packed_weights_of_a_file_run_as_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    let cache = PackCache::in_dir(dir.path().join("packs"));
    let model = dir.path().join("model");
    std::fs::write(&model, "the model that the pack is of").unwrap();
    let (act, isa) = (ActQuant::N8, Isa::detect());
    let shape = Shape::mini();
    let load = |backend: &dyn Backend| {
        let source = noise(&shape, Storage::Pq2_0, 7).source();
        Target::load(source, act, isa, backend).unwrap()
    };
    let logits = |target: &Target| {
        let mut state = State::new(target.config(), KvType::F16);
        bits(target.verify(&mut state, &PROMPT, &[]).unwrap().0.logits.unwrap().data())
    };
    let expected = logits(&load(&Reference));
    for how in ["Made", "Found"] {
        let (simulated, npu) = sound();
        let model_on = ModelOnNpu::new(&npu);
        let target = load(&model_on);
        let before = simulated.counts().buffer_bytes;
        let sources = vec![SourceFile::now(&model).unwrap()];
        let pack = model_on.pack();
        assert_eq!(pack.kind, "npu-pack/1");
        let on = &mut |_: Event<'_>| ControlFlow::Continue(());
        assert_eq!(format!("{:?}", cache.attach(&pack, sources, on).unwrap()), how);
        model_on.load().unwrap();
        assert_eq!(simulated.counts().buffer_bytes - before, pack.bytes());
        assert_eq!(logits(&target), expected, "{how}");
    }
    let entries = cache.entries().unwrap();
    assert_eq!(entries.len(), 1);
    assert_eq!(entries[0].pack.as_ref().unwrap().header().kind, "npu-pack/1");

    // Without a cache they are packed in memory; a device without room says so before any token.
    let (_simulated, npu) = sound();
    let model_on = ModelOnNpu::new(&npu);
    let target = load(&model_on);
    model_on.load().unwrap();
    assert_eq!(logits(&target), expected);
    let simulated = Simulated::new(Faults { memlock_bytes: Some(1 << 20), ..Faults::default() });
    let model_on = ModelOnNpu::new(&open(&simulated).unwrap());
    let _target = load(&model_on);
    let error = model_on.load().unwrap_err();
    assert!(matches!(error, Error::Device { hint: Some(_), .. }));
    let (error, bytes) = (error.to_string(), model_on.pack().bytes());
    assert!(
        error.contains("temporarily unavailable") && error.contains(&bytes.to_string()),
        "{error}"
    );
}
