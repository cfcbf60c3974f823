//! A target in rotation blocks of 1024 that is too large for the repository: made from its seed,
//! against the tokens that the f64 reference and the engine `ferrox` give for the same file
//! (`tools/pair/check_other_engines.py --wide`, which reads it as PTQ1_0).

use hadamard::Isa;
use runtime::backend::Cpu;
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::round::{Greedy, Limits, Session, Speculation, Unobserved};
use runtime::target::{State, Target};
use xtask::synth_target::{Shape, write};

#[test]
fn blocks_of_1024_give_the_tokens_of_other_engines() {
    let golden: serde_json::Value =
        serde_json::from_str(include_str!("../fixtures/wide-target/golden.json")).unwrap();
    let ids = |key: &str| -> Vec<u32> { serde_json::from_value(golden[key].clone()).unwrap() };
    // Sums in another order differ by about 1e-5.
    let margins: Vec<f64> = serde_json::from_value(golden["margins"].clone()).unwrap();
    assert!(margins.iter().all(|margin| *margin > 1e-4));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("wide.gguf");
    write(&path, Shape::Small, 1, false).unwrap();
    let target = Target::open(&path, ActQuant::F32, Isa::detect(), &Cpu::default()).unwrap();
    let state = State::new(target.config(), KvType::F32);
    let mut session = Session { state, pending: None };
    let expected = ids("greedy");
    let limits = Limits { max_tokens: Some(expected.len()), ..Limits::default() };
    let generated = session
        .generate(&target, &ids("prompt"), &limits, &mut Greedy, Speculation::Off, &mut Unobserved)
        .unwrap();
    assert_eq!(generated.ids, expected);
}
