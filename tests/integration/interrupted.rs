//! Runs that are stopped halfway (UP-301), and what the next run finds.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, ChildStderr, Stdio};

use formats::safetensors::Dtype;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::json;

use crate::harness::{Case, Model, mini_config};

/// Six layers of 512: enough work that a run is still at it when its first
/// half has been seen.
fn big() -> Model {
    let mut config = mini_config();
    for (key, value) in [
        ("hidden_size", json!(512)),
        ("num_attention_heads", json!(8)),
        ("intermediate_size", json!(2048)),
        ("num_hidden_layers", json!(6)),
        ("layer_types", json!(vec!["sliding_attention"; 6])),
    ] {
        config[key] = value;
    }
    // The values do not matter, but zeros would be sorted too fast.
    let noise: Vec<f32> = (0..1_u32 << 20)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / 1e8 - 0.08)
        .collect();
    Model::new(config, Dtype::BF16, |spec| noise[..spec.parameters() as usize].to_vec())
}

/// The slowest run there is, killed at the latest when the test is through with it.
struct Running {
    child: Child,
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn start(case: &Case, outputs: &[&str], more: &[&str]) -> Self {
        let slow = ["--threads=1", "--isa=scalar", "--progress=plain"];
        let mut child = case
            .command(outputs, &[&slow, more].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        Self { child, stderr }
    }

    /// Waits until `percent` of the input are through.
    fn wait_for(&mut self, percent: f64) {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.stderr.read_line(&mut line).unwrap(), 0, "the run ended too early");
            let done = line.split_once('%').and_then(|(done, _)| done.trim().parse::<f64>().ok());
            if done.is_some_and(|done| done >= percent) {
                return;
            }
        }
    }

    /// Sends a signal. The exit code, and what was printed since.
    fn end(mut self, signal: Signal) -> (Option<i32>, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let mut rest = String::new();
        self.stderr.read_to_string(&mut rest).unwrap();
        (self.child.wait().unwrap().code(), rest)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn up_301_a_killed_run_leaves_partial_files_only_and_the_next_one_takes_them_over() {
    let case = Case::new(&big());
    let mut run = Running::start(&case, &["m.q4nx", "m.gguf"], &[]);
    run.wait_for(40.0);
    let partial = ["config.json.partial", "m.gguf.partial", "m.q4nx.partial"];
    assert_eq!(case.made(), partial);
    assert_eq!(run.end(Signal::KILL).0, None);
    assert_eq!(case.made(), partial);

    case.ternarize(&["m.q4nx", "m.gguf"], &[]).ok();
    assert_eq!(case.made(), ["config.json", "m.gguf", "m.q4nx"]);
    case.ternarize(&["whole.q4nx", "whole.gguf"], &["--force"]).ok();
    for (again, whole) in [("m.q4nx", "whole.q4nx"), ("m.gguf", "whole.gguf")] {
        assert!(fs::read(case.out(again)).unwrap() == fs::read(case.out(whole)).unwrap());
    }
}

#[test]
fn up_301_a_partial_file_has_no_name_that_would_be_read() {
    let case = Case::new(&big());
    let mut run = Running::start(&case, &["m.q4nx", "m.gguf"], &[]);
    run.wait_for(30.0);
    run.end(Signal::KILL);
    // Its header is written last.
    case.convert("m.q4nx.partial", "new.gguf", &[]).refused(3, &["m.q4nx.partial"]);
    case.convert("m.gguf.partial", "new.gguf", &[]).refused(3, &["m.gguf.partial"]);
}

#[test]
fn an_interrupted_run_cleans_up_and_says_so() {
    let case = Case::new(&big());
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let mut run = Running::start(&case, &["m.q4nx", "m.gguf"], &[]);
        run.wait_for(20.0);
        let (found, stderr) = run.end(signal);
        assert_eq!(found, Some(code), "{stderr}");
        assert_eq!(stderr.lines().last(), Some("ternarize: interrupted; nothing was written"));
        assert!(case.made().is_empty(), "left behind: {:?}", case.made());
    }
}

#[test]
fn an_interrupted_run_leaves_the_file_it_would_have_replaced() {
    let case = Case::new(&big());
    fs::write(case.out("m.q4nx"), "mine").unwrap();
    let mut run = Running::start(&case, &["m.q4nx"], &["--force"]);
    run.wait_for(10.0);
    assert_eq!(run.end(Signal::INT).0, Some(130));
    assert_eq!(fs::read(case.out("m.q4nx")).unwrap(), b"mine");
    assert_eq!(case.made(), ["m.q4nx"]);
}

#[test]
fn two_runs_for_one_output_do_not_mix() {
    let case = Case::new(&big());
    let mut first = Running::start(&case, &["m.gguf"], &[]);
    first.wait_for(5.0);
    case.ternarize(&["m.gguf"], &[]).refused(4, &["m.gguf", "another run is writing this output"]);
    assert_eq!(case.made(), ["m.gguf.partial"], "the other run's file is still there");
    first.end(Signal::TERM);
}
