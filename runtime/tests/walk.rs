//! Rounds along a known text are those of the served loop, to the last field.

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

use std::cell::Cell;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use hadamard::Isa;
use runtime::Error;
use runtime::backend::Cpu;
use runtime::drafter::{Context, Drafter};
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::round::{
    DrafterProposer, Finish, Generated, Greedy, Limits, Session, Speculation, Unobserved,
};
use runtime::stats::check_rounds;
use runtime::target::{State, Target};
use runtime::walk::Decoding;

const LENGTHS: [usize; 5] = [7, 0, 3, 1, 7];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair")
}

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let path = folder().join("target.gguf");
    Target::open(&path, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap()
});

fn drafter(config: Option<&Path>) -> Drafter {
    let path = folder().join("drafter/model.safetensors");
    Drafter::open(&path, config, &TARGET, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap()
}

/// The pair's drafter, and the same weights on other taps in another order: a bad drafter.
fn drafters() -> [Drafter; 2] {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.json");
    let text = std::fs::read(folder().join("drafter/config.json")).unwrap();
    let mut config: serde_json::Value = serde_json::from_slice(&text).unwrap();
    config["dflash_config"]["target_layer_ids"] = serde_json::json!([2, 3, 4]);
    std::fs::write(&path, config.to_string()).unwrap();
    [drafter(None), drafter(Some(&path))]
}

fn prompts(step: usize) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(folder().join("prompts.jsonl")).unwrap();
    let ids = |line: &str| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        serde_json::from_value(line["ids"].clone()).unwrap()
    };
    text.lines().step_by(step).map(ids).collect()
}

fn served(
    drafter: &Drafter,
    prompt: &[u32],
    budget: usize,
    stop: &BTreeSet<u32>,
    max: usize,
) -> Generated {
    let mut proposer =
        DrafterProposer::new(drafter, Context::new(drafter.config(), KvType::default()));
    let limits = Limits {
        max_tokens: Some(budget),
        stop: stop.clone(),
        prefill_chunk: 16,
        ..Limits::default()
    };
    let state = State::new(TARGET.config(), KvType::default());
    let mut session = Session { state, pending: None };
    let speculation = Speculation::On { proposer: &mut proposer, max };
    session.generate(&TARGET, prompt, &limits, &mut Greedy, speculation, &mut Unobserved).unwrap()
}

fn compare(drafters: &[Drafter; 2], prompt: &[u32], budget: usize, stop: &BTreeSet<u32>) -> Finish {
    let [a, b] = drafters;
    let decoding =
        Decoding { target: &TARGET, kv: KvType::default(), budget, stop, prefill_chunk: 7 };
    let text = decoding.run(&[a, b], prompt, &|| false).unwrap().unwrap();
    for (index, drafter) in drafters.iter().enumerate() {
        let walked = text.walk(&TARGET, index, drafter, &LENGTHS).unwrap();
        for (max, rounds) in LENGTHS.iter().zip(walked) {
            let generated = served(drafter, prompt, budget, stop, *max);
            assert_eq!(text.ids(), generated.ids, "drafter {index}, {max} drafts");
            assert_eq!(text.finish(), generated.finish);
            assert_eq!(rounds, generated.rounds, "drafter {index}, {max} drafts of {budget}");
            check_rounds(&generated, budget, *max).unwrap();
        }
    }
    text.finish()
}

#[test]
fn rounds_are_those_of_the_served_loop() {
    let drafters = drafters();
    let none = BTreeSet::new();
    for prompt in prompts(24) {
        assert_eq!(compare(&drafters, &prompt, 40, &none), Finish::Length);
    }
    let prompt = &prompts(24)[1];
    for budget in [1, 2, 3, 8, 9] {
        compare(&drafters, prompt, budget, &none);
    }
}

#[test]
fn a_stop_may_come_anywhere_in_a_round() {
    let drafters = drafters();
    let mut stopped = 0;
    for prompt in prompts(32) {
        let text = served(&drafters[0], &prompt, 24, &BTreeSet::new(), 7).ids;
        for at in [0, 1, 5, 9, 14, 23] {
            let finish = compare(&drafters, &prompt, 24, &[text[at]].into());
            stopped += usize::from(finish == Finish::Stop);
        }
    }
    assert_eq!(stopped, 18);
}

#[test]
fn what_cannot_be_decoded_is_refused() {
    let drafters = drafters();
    let stop = BTreeSet::new();
    let context = TARGET.config().context_length;
    let decoding = Decoding {
        target: &TARGET,
        kv: KvType::F16,
        budget: context,
        stop: &stop,
        prefill_chunk: 0,
    };
    let all: Vec<&Drafter> = drafters.iter().collect();
    let error = decoding.run(&all, &[1, 2], &|| false).unwrap_err();
    assert!(matches!(error, Error::ContextFull { needed, .. } if needed == context + 1));
    let decoding = Decoding { budget: 8, ..decoding };
    assert!(matches!(decoding.run(&all, &[], &|| false), Err(Error::EmptyPrompt)));
    // Cancelled at any time.
    for after in 0..9 {
        let asked = Cell::new(0);
        let cancelled = || asked.replace(asked.get() + 1) >= after;
        let text = decoding.run(&all, &[1, 2, 3], &cancelled).unwrap();
        assert_eq!(text.is_some(), after > 8, "{after}");
    }
}
