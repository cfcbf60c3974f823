//! Jobs on the simulated array against the scalar arithmetic, bit for bit.

#![allow(clippy::unwrap_used, reason = "helpers of tests are parts of tests")]

mod noise;

use aie_kernels::arithmetic::{Activations, Matrix, Mode, matmul};
use aie_kernels::design::configuration;
use aie_kernels::job::Job;
use aie_kernels::passes::{DRAFT, TARGET, Totals};
use aie_kernels::simulator::{Schedule, Simulator, Traffic};
use noise::{Noise, matrix};
use proptest::prelude::*;

fn operands(rows: usize, k: usize, live: usize, mode: Mode, seed: u64) -> (Matrix, Activations) {
    let mut noise = Noise(seed);
    let w = matrix(rows, k, &mut noise, 3);
    let x: Vec<f32> = (0..live * k).map(|_| noise.next() as f32 / 1e9 - 1.0).collect();
    (w, Activations::new(&x, k, mode).unwrap())
}

fn run(simulator: &mut Simulator, w: &Matrix, x: &Activations) -> (Vec<f32>, Traffic) {
    let job = Job::new(w.rows(), w.k()).unwrap();
    let mut objects = [
        job.pack_weights(w).unwrap(),
        job.pack_activations(x).unwrap(),
        vec![0xEE; job.result_bytes()],
    ];
    let traffic = simulator.run(&job.instructions(0).unwrap(), &mut objects).unwrap();
    (job.unpack_results(&objects[2], x.live_rows()).unwrap(), traffic)
}

fn check(simulator: &mut Simulator, rows: usize, k: usize, live: usize, mode: Mode, seed: u64) {
    let (w, x) = operands(rows, k, live, mode, seed);
    let (found, _) = run(simulator, &w, &x);
    let expected = matmul(&w, &x).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert!(bits(&found) == bits(&expected), "{rows} x {k}, {live} rows, {mode:?}");
}

#[test]
fn every_schedule_has_the_bits_of_the_arithmetic() {
    let blob = configuration().encode();
    for schedule in
        [Schedule::RoundRobin, Schedule::Random(1), Schedule::Random(2), Schedule::SlowestConsumer]
    {
        // One array runs one job after another; 100 and 1100 outputs are no whole blocks.
        let mut simulator = Simulator::new(&blob, schedule).unwrap();
        check(&mut simulator, 2048, 1024, 8, Mode::N16, 1);
        check(&mut simulator, 1100, 640, 3, Mode::N8, 2);
        check(&mut simulator, 100, 1536, 1, Mode::N16, 3);
    }
}

#[test]
fn more_strips_than_a_core_holds() {
    let mut simulator = Simulator::new(&configuration().encode(), Schedule::RoundRobin).unwrap();
    // 20 + 20 + 2 strips.
    check(&mut simulator, 42 * 1024 - 7, 640, 2, Mode::N16, 4);
}

#[test]
fn all_widths_at_one_block() {
    let mut simulator = Simulator::new(&configuration().encode(), Schedule::RoundRobin).unwrap();
    for k in [4096, 5120, 6144, 17408, 25600] {
        check(&mut simulator, 1024, k, 8, Mode::N16, k as u64);
    }
}

#[test]
fn bytes_moved_are_those_of_the_design() {
    // 5120 x 1024 has the strips of a down projection and 2 of its 34 slices.
    let mut simulator = Simulator::new(&configuration().encode(), Schedule::RoundRobin).unwrap();
    let (w, x) = operands(5120, 1024, 8, Mode::N16, 5);
    let (_, traffic) = run(&mut simulator, &w, &x);
    let job = Job::new(5120, 1024).unwrap();
    assert_eq!(traffic.read_bytes[0], job.weight_bytes() as u64);
    assert_eq!(traffic.read_bytes[1], job.streamed_activation_bytes() as u64);
    assert_eq!(traffic.written_bytes[2], job.result_bytes() as u64);
    assert_eq!((traffic.read_bytes[2], traffic.written_bytes[..2].to_vec()), (0, vec![0, 0]));

    // The table in docs/npu.md.
    for (rows, k, weights, activations, results) in [
        (5120, 17408, 23_674_880, 332_928, 163_840),
        (34816, 5120, 47_349_760, 195_840, 1_114_112),
        (5120, 25600, 34_816_000, 489_600, 163_840),
        (248_320, 5120, 338_411_520, 1_272_960, 7_962_624),
    ] {
        let job = Job::new(rows, k).unwrap();
        let found = (job.weight_bytes(), job.streamed_activation_bytes(), job.result_bytes());
        assert_eq!(found, (weights, activations, results), "{rows} x {k}");
    }
    let down = Job::new(5120, 17408).unwrap();
    assert_eq!((down.strips(), down.slices()), (5, 34));
    let head = Job::new(248_320, 5120).unwrap();
    assert_eq!(head.groups(), [vec![20; 12], vec![3]].concat());
}

#[test]
fn the_documents_passes_and_projection_are_the_codes() {
    let (target, draft) = (Totals::of(&TARGET).unwrap(), Totals::of(&DRAFT).unwrap());
    let gb = |bytes: usize| bytes as f64 / 1e9;
    let mut passes =
        "| pass | jobs | weights, GB | activations, GB | results, GB |\n|---|---|---|---|---|\n"
            .to_owned();
    for (name, t) in [("target", target), ("draft", draft)] {
        let (w, a, r) = (gb(t.weight_bytes), gb(t.activation_bytes), gb(t.result_bytes));
        passes += &format!("| {name} | {} | {w:.3} | {a:.3} | {r:.3} |\n", t.dispatches);
    }
    // Milliseconds of the CPU, measured.
    let (draft_cpu, verify_cpu, commit_cpu) = (43.0, 181.0, 21.0);
    let mut projection = "| ms | array, 0.07 | array, 0.2 | CPU | all, 0.07 | all, 0.2 |\n\
                          |---|---|---|---|---|---|\n"
        .to_owned();
    let array = |t: Totals| [t.array_ms(44.0, 0.07), t.array_ms(44.0, 0.2)];
    let (d, v) = (array(draft), array(target));
    for (name, [low, high], cpu) in [
        ("draft", d, draft_cpu),
        ("verify", v, verify_cpu),
        ("round, with commit", [d[0] + v[0], d[1] + v[1]], draft_cpu + verify_cpu + commit_cpu),
    ] {
        let (all_low, all_high) = (low + cpu, high + cpu);
        projection += &format!(
            "| {name} | {low:.1} | {high:.1} | {cpu:.0} | {all_low:.0} | {all_high:.0} |\n"
        );
    }
    let document = include_str!("../../docs/npu.md");
    assert!(document.contains(&passes), "{passes}");
    assert!(document.contains(&projection), "{projection}");
}

#[test]
fn the_simulator_sees_no_arithmetic_and_no_shape() {
    let text = include_str!("../src/simulator.rs");
    for module in ["arithmetic", "design", "job", "layout"] {
        assert!(!text.contains(&format!("crate::{module}")), "{module}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Neither a panic nor a run without end.
    #[test]
    fn damaged_configurations_are_run_or_refused(
        damage in proptest::collection::vec((any::<u32>(), 0u32..80, any::<bool>()), 1..4),
        schedule in prop_oneof![Just(Schedule::RoundRobin), Just(Schedule::Random(3))],
    ) {
        let mut blob = configuration().encode();
        for (at, value, whole) in damage {
            let at = at as usize % (blob.len() / 4) * 4;
            let value = if whole { value.wrapping_mul(0x0700_0001) } else { value };
            blob[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(mut simulator) = Simulator::new(&blob, schedule) {
            let job = Job::new(1024, 128).unwrap();
            let (w, x) = operands(1024, 128, 1, Mode::N16, 9);
            let mut objects = [
                job.pack_weights(&w).unwrap(),
                job.pack_activations(&x).unwrap(),
                vec![0; job.result_bytes()],
            ];
            let _ = simulator.run(&job.instructions(0).unwrap(), &mut objects);
        }
    }
}
