//! The trained pair against records that an independent implementation made from the same bytes
//! (`tools/pair/golden.py`: numpy in f64; checked against transformers and the `dflash` package).

#![allow(clippy::unwrap_used, reason = "tests, which clippy does not see in helpers")]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use formats::Source;
use formats::safetensors::File;
use hadamard::Isa;
use runtime::backend::Cpu;
use runtime::drafter::{Context, Drafter, top_k};
use runtime::exact::{Pair, Proof, prove};
use runtime::kv::KvType;
use runtime::quant::ActQuant;
use runtime::round::{
    DrafterProposer, Finish, Generated, Greedy, Limits, Session, Speculation, Unobserved, Verifier,
};
use runtime::rows::{Primal, Rows};
use runtime::stats::DraftStats;
use runtime::target::{LogitRows, State, Target};
use runtime::text::{Chat, ChatTemplate, Controls, Message, Tokenizer};
use serde::Deserialize;

/// One prompt of `golden.json`.
#[derive(Debug, Deserialize)]
struct Record {
    class: String,
    prompt: Vec<u32>,
    /// The target's choices after the prompt, past stop tokens.
    greedy: Vec<u32>,
    /// Place of the first stop token in `greedy`.
    first_stop: Option<usize>,
    /// Smallest distance between the two largest logits.
    min_margin: f64,
    /// Of each round at 7 drafts: position of the pending token, accepted drafts.
    rounds_7: Vec<(usize, usize)>,
    rounds_3: Vec<(usize, usize)>,
    drafts: Vec<Vec<u32>>,
    /// Where logits and hidden states were recorded.
    positions: Option<Vec<usize>>,
}

#[derive(Debug, Deserialize)]
struct Golden {
    layers: usize,
    prompts: Vec<Record>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair")
}

static GOLDEN: LazyLock<Golden> = LazyLock::new(|| {
    let json = std::fs::read(folder().join("golden/golden.json")).unwrap();
    serde_json::from_slice(&json).unwrap()
});

fn target(act: ActQuant) -> Target {
    Target::open(&folder().join("target.gguf"), act, Isa::detect(), &Cpu::default()).unwrap()
}

fn drafter(target: &Target, act: ActQuant) -> Drafter {
    let path = folder().join("drafter/model.safetensors");
    Drafter::open(&path, None, target, act, Isa::detect(), &Cpu::default()).unwrap()
}

static ORACLE: LazyLock<Target> = LazyLock::new(|| target(ActQuant::F32));
static INTEGERS: LazyLock<Target> = LazyLock::new(|| target(ActQuant::A8));

/// A tensor of a golden file, as rows of its last dimension.
fn recorded(file: &str, name: &str) -> Rows<Primal> {
    let file = File::open(Source::open(folder().join("golden").join(file)).unwrap()).unwrap();
    let tensor = file.get(name).unwrap();
    let bytes = file.source().read_vec(tensor.offset, tensor.len).unwrap();
    let values = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    Rows::from_vec(*tensor.shape.last().unwrap() as usize, values)
}

/// The largest difference, relative to the larger of 1 and the largest expected value.
fn difference<'a>(
    found: impl IntoIterator<Item = &'a f32>,
    expected: impl IntoIterator<Item = &'a f32> + Clone,
) -> f32 {
    let max = expected.clone().into_iter().fold(1.0f32, |m, x| m.max(x.abs()));
    found.into_iter().zip(expected).fold(0.0f32, |d, (a, b)| d.max((a - b).abs())) / max
}

fn run(
    target: &Target,
    drafter: Option<(&Drafter, usize)>,
    record: &Record,
    kv: KvType,
) -> Generated {
    let limits = Limits { max_tokens: Some(record.greedy.len()), ..Limits::default() };
    let mut session = Session { state: State::new(target.config(), kv), pending: None };
    let mut proposer = drafter.map(|(drafter, max)| {
        (DrafterProposer::new(drafter, Context::new(drafter.config(), kv)), max)
    });
    let speculation = match &mut proposer {
        None => Speculation::Off,
        Some((proposer, max)) => Speculation::On { proposer, max: *max },
    };
    let prompt = &record.prompt;
    session.generate(target, prompt, &limits, &mut Greedy, speculation, &mut Unobserved).unwrap()
}

/// Tapped hidden states of all layers after `ids`, and all logits.
fn pass(target: &Target, ids: &[u32], kv: KvType) -> (Rows<Primal>, Rows<Primal>) {
    let layers: Vec<usize> = (0..target.config().layers.len()).collect();
    let mut state = State::new(target.config(), kv);
    let pass = target.advance(&mut state, ids, &layers, LogitRows::All).unwrap();
    (pass.taps.unwrap(), pass.logits.unwrap())
}

#[test]
fn hidden_states_and_logits_are_those_of_the_f64_reference() {
    let hidden = ORACLE.config().hidden;
    assert_eq!(ORACLE.config().layers.len(), GOLDEN.layers);
    let mut compared = 0;
    for (n, record) in GOLDEN.prompts.iter().enumerate() {
        let Some(positions) = &record.positions else { continue };
        let ids: Vec<u32> = record.prompt.iter().chain(&record.greedy).copied().collect();
        let (taps, logits) = pass(&ORACLE, &ids, KvType::F32);
        // [position, layer, hidden]
        let layers = recorded("target.safetensors", &format!("{n}.layers"));
        let rows = recorded("target.safetensors", &format!("{n}.logits"));
        for (i, position) in positions.iter().enumerate() {
            let found = logits.row(*position);
            let gap = difference(found, rows.row(i));
            assert!(gap < 1e-4, "prompt {n}, position {position}: logits differ by {gap:e}");
            for (l, found) in taps.row(*position).chunks_exact(hidden).enumerate() {
                let gap = difference(found, layers.row(i * GOLDEN.layers + l));
                assert!(gap < 1e-4, "prompt {n}, position {position}, layer {l}: {gap:e}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 6 * 4 * GOLDEN.layers);
}

#[test]
fn greedy_text_is_that_of_the_f64_reference() {
    // Sums in another order differ by about 1e-5.
    let clear: Vec<&Record> = GOLDEN.prompts.iter().filter(|r| r.min_margin > 1e-3).collect();
    assert!(clear.len() >= 12, "{}", clear.len());
    for record in clear.iter().step_by(3) {
        let generated = run(&ORACLE, None, record, KvType::F32);
        assert_eq!((generated.ids, generated.finish), (record.greedy.clone(), Finish::Length));
    }
}

#[test]
fn blocks_are_those_of_the_f64_reference() {
    let drafter = drafter(&ORACLE, ActQuant::F32);
    let config = drafter.config();
    let (taps, top) = (&config.target_layer_ids, config.selector_top_k);
    let (mut rounds, mut equal) = (0, 0);
    let detailed = GOLDEN.prompts.iter().enumerate().filter(|(_, r)| r.positions.is_some());
    for (n, record) in detailed {
        let ids: Vec<u32> = record.prompt.iter().chain(&record.greedy).copied().collect();
        let mut state = State::new(ORACLE.config(), KvType::F32);
        let pass = ORACLE.advance(&mut state, &ids, taps, LogitRows::None).unwrap();
        let rows = pass.taps.unwrap();
        let mut context = Context::new(config, KvType::F32);
        for ((anchor, _), drafts) in record.rounds_7.iter().zip(&record.drafts) {
            let new = rows.slice(context.len()..*anchor);
            drafter.extend(&mut context, &new).unwrap();
            let found = drafter.draft(&mut context, &ORACLE, ids[*anchor]).unwrap();
            rounds += 1;
            equal += usize::from(found == *drafts);
            if *anchor != record.prompt.len() {
                continue;
            }
            let hidden = drafter.block(&mut context, &ORACLE, ids[*anchor], 8).unwrap();
            let expected = recorded("drafter.safetensors", &format!("{n}.hidden"));
            let gap = difference(hidden.data(), expected.data());
            assert!(gap < 1e-4, "prompt {n}: hidden states differ by {gap:e}");
            let logits = ORACLE.head(&hidden.slice(1..8)).unwrap();
            let unary = recorded("drafter.safetensors", &format!("{n}.unary"));
            for (row, unary) in logits.iter().zip(unary.iter()) {
                let found: Vec<f32> =
                    top_k(row, top).into_iter().map(|id| row[id as usize]).collect();
                assert!(difference(&found, unary) < 1e-4, "prompt {n}");
            }
        }
    }
    // Two candidates may be as good as equal.
    assert!(equal + rounds / 200 >= rounds, "{equal} of {rounds} rounds have the same drafts");
}

#[test]
fn rounds_accept_what_the_f64_reference_accepts() {
    let drafter = drafter(&ORACLE, ActQuant::F32);
    for (n, record) in GOLDEN.prompts.iter().enumerate().filter(|(_, r)| r.positions.is_some()) {
        if record.min_margin < 1e-3 {
            continue;
        }
        for (max, expected) in [(3, &record.rounds_3), (7, &record.rounds_7)] {
            let generated = run(&ORACLE, Some((&drafter, max)), record, KvType::F32);
            assert_eq!(generated.ids, record.greedy, "prompt {n}");
            let accepted: Vec<usize> = generated.rounds.iter().map(|r| r.accepted).collect();
            let expected: Vec<usize> = expected.iter().map(|(_, accepted)| *accepted).collect();
            // The budget cuts the last round.
            let whole = accepted.len() - 1;
            assert_eq!(accepted[..whole], expected[..whole], "prompt {n} at {max}");
        }
    }
}

#[test]
fn tokens_per_round_are_as_trained() {
    let drafter = drafter(&INTEGERS, ActQuant::A8);
    let mut all = DraftStats::default();
    for class in ["code", "prose", "chat"] {
        let mut stats = DraftStats::default();
        for record in GOLDEN.prompts.iter().filter(|r| r.class == class).take(5) {
            let generated = run(&INTEGERS, Some((&drafter, 7)), record, KvType::F16);
            stats.add(&generated);
            all.add(&generated);
        }
        let rate = stats.tokens_per_round().unwrap();
        assert!(rate > 2.2, "{class}: {rate}");
        assert!(!stats.is_alarming());
    }
    let rate = all.tokens_per_round().unwrap();
    assert!(rate > 2.9, "{rate}");
}

#[test]
fn speculation_is_exact_on_the_pair() {
    for (act, count) in [(ActQuant::A8, 2), (ActQuant::A16, 1)] {
        let target = target(act);
        let drafter = drafter(&target, act);
        let pair = Pair::new(&target, &drafter);
        for record in GOLDEN.prompts.iter().step_by(8).take(count) {
            let limits = Limits { max_tokens: Some(24), ..Limits::default() };
            let greedy = &mut || -> Box<dyn Verifier> { Box::new(Greedy) };
            let proof = prove(&pair, &record.prompt, &limits, 0..=7, greedy, &|_| false).unwrap();
            let Proof::Exact(proved) = proof else { panic!("{proof:?}") };
            assert_eq!(proved.logits, 8 * 24);
        }
    }
}

#[test]
fn stop_tokens_end_answers_where_they_were_recorded() {
    let mut stopped = 0;
    for record in GOLDEN.prompts.iter() {
        if stopped == 2 {
            break;
        }
        let Some(at) = record.first_stop.filter(|_| record.min_margin > 1e-3) else { continue };
        let stop = [record.greedy[at]].into();
        let limits = Limits { max_tokens: Some(96), stop, ..Limits::default() };
        let state = State::new(ORACLE.config(), KvType::F32);
        let mut session = Session { state, pending: None };
        let generated = session
            .generate(
                &ORACLE,
                &record.prompt,
                &limits,
                &mut Greedy,
                Speculation::Off,
                &mut Unobserved,
            )
            .unwrap();
        assert_eq!((generated.ids.len(), generated.finish), (at + 1, Finish::Stop));
        stopped += 1;
    }
    assert!(stopped > 0);
}

fn gguf() -> formats::gguf::File {
    formats::gguf::File::open(Source::open(folder().join("target.gguf")).unwrap()).unwrap()
}

fn vectors<T: serde::de::DeserializeOwned>(file: &str) -> T {
    serde_json::from_slice(&std::fs::read(folder().join("golden").join(file)).unwrap()).unwrap()
}

#[test]
fn a_thousand_strings_have_the_ids_of_the_tokenizers_library() {
    let tokenizer = Tokenizer::from_gguf(&gguf()).unwrap();
    let strings: Vec<(String, Vec<u32>)> = vectors("tokenizer.json");
    assert!(strings.len() >= 1000);
    for (text, ids) in &strings {
        assert_eq!(tokenizer.encode_with_specials(text), *ids, "{text:?}");
        assert_eq!(tokenizer.decode(ids, Controls::Shown).unwrap(), *text);
        let plain = tokenizer.encode(text);
        assert!(plain.iter().all(|id| !tokenizer.is_special(*id)), "{text:?}");
        assert_eq!(tokenizer.decode(&plain, Controls::Hidden).unwrap(), *text);
    }
}

/// A conversation of `chat.json`, and what jinja2 makes of it.
#[derive(Debug, Deserialize)]
struct Conversation {
    messages: Vec<serde_json::Map<String, serde_json::Value>>,
    add_generation_prompt: bool,
    enable_thinking: Option<bool>,
    preserve_thinking: Option<bool>,
    text: Option<String>,
    error: Option<String>,
}

#[test]
fn conversations_are_rendered_as_jinja2_renders_them() {
    let file = gguf();
    let tokenizer = Tokenizer::from_gguf(&file).unwrap();
    let template = ChatTemplate::from_gguf(&file, &tokenizer).unwrap();
    let all: Vec<Conversation> = vectors("chat.json");
    assert!(all.len() > 40);
    for conversation in &all {
        let messages = conversation.messages.iter().map(|fields| {
            let text = |key: &str| fields.get(key).and_then(|value| value.as_str());
            Message {
                reasoning_content: text("reasoning_content").map(str::to_owned),
                ..Message::new(text("role").unwrap(), text("content").unwrap())
            }
        });
        let mut chat = Chat {
            add_generation_prompt: conversation.add_generation_prompt,
            enable_thinking: conversation.enable_thinking,
            ..Chat::new(messages.collect())
        };
        if let Some(preserve) = conversation.preserve_thinking {
            chat.extra.insert("preserve_thinking".into(), preserve.into());
        }
        match (template.render(&chat), &conversation.text, &conversation.error) {
            (Ok(rendered), Some(text), None) => {
                assert_eq!(rendered.text(), text);
                let ids = tokenizer.encode_rendered(&rendered);
                assert_eq!(tokenizer.decode(&ids, Controls::Shown).unwrap(), *text);
            }
            (Err(error), None, Some(message)) => {
                assert!(error.to_string().contains(message), "{error}");
            }
            (found, ..) => panic!("{found:?} for {conversation:?}"),
        }
    }
}
