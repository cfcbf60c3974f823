//! The rule in simulated rounds, against every fixed length and plain decoding.

use proptest::prelude::*;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::{Adaptive, DraftLength, Outcome};

const BLOCK: usize = 8;

/// A machine and a text. Seconds of a plain step are 1.
#[derive(Debug, Clone, Copy)]
struct World {
    /// Cost of each row after the first.
    row: f64,
    /// Rows that a pass is rounded up to, once there are more than one: kernels work on tiles.
    tile: usize,
    draft: f64,
    /// A round's probability that a draft is right is drawn from a Beta distribution around `mean`.
    mean: f64,
    /// Whether the proposer knows the probability, more or less.
    confident: bool,
}

impl World {
    fn verify(&self, rows: usize) -> f64 {
        let rows = if rows == 1 { 1 } else { rows.next_multiple_of(self.tile) };
        1.0 + self.row * (rows as f64 - 1.0)
    }
}

/// Beta(a, b) with a + b = 2.53, by rejection (Jöhnk 1964).
fn beta(rng: &mut ChaCha8Rng, mean: f64) -> f64 {
    let (a, b) = (2.53 * mean, 2.53 * (1.0 - mean));
    loop {
        let (x, y): (f64, f64) =
            (rng.random::<f64>().powf(1.0 / a), rng.random::<f64>().powf(1.0 / b));
        if x + y <= 1.0 && x + y > 0.0 {
            return x / (x + y);
        }
    }
}

/// Seconds per token over `rounds` rounds, and how many of them drafted.
fn run(world: &World, rule: &mut dyn DraftLength, rounds: usize, seed: u64) -> (f64, usize) {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let (mut seconds, mut tokens, mut drafted) = (0.0, 0, 0);
    rule.begin();
    for _ in 0..rounds {
        let p = beta(&mut rng, world.mean);
        let right = (0..BLOCK - 1).take_while(|_| rng.random_bool(p)).count();
        let told = (p + rng.random_range(-0.15..0.15)).clamp(0.01, 0.99);
        // Two in a hundred passes are interrupted by something else.
        let mut noise = || {
            let slow = if rng.random_bool(0.02) { 4.0 } else { 1.0 };
            slow * rng.random_range(0.95..1.05)
        };
        let most = rule.most(BLOCK - 1);
        assert!(most < BLOCK);
        let mut verified = 0;
        let mut draft = None;
        if most > 0 {
            let confidence = if world.confident { vec![told; BLOCK - 1] } else { Vec::new() };
            verified = rule.cut(most, &confidence);
            assert!(verified <= most);
            draft = Some(world.draft);
            drafted += 1;
        }
        let agreed = right.min(verified);
        let verify = world.verify(verified + 1);
        // The account is kept without noise.
        seconds += draft.unwrap_or(0.0) + verify;
        tokens += agreed + 1;
        let draft = draft.map(|draft| draft * noise());
        rule.observe(&Outcome { draft, verified, agreed, verify: verify * noise() });
    }
    (seconds / tokens as f64, drafted)
}

#[derive(Debug)]
struct Fixed(usize);

impl DraftLength for Fixed {
    fn most(&mut self, room: usize) -> usize {
        self.0.min(room)
    }

    fn cut(&mut self, drafts: usize, _: &[f64]) -> usize {
        drafts
    }

    fn observe(&mut self, _: &Outcome) {}
}

/// The best of all fixed lengths, plain decoding included.
fn best_fixed(world: &World, rounds: usize, seed: u64) -> (usize, f64) {
    (0..BLOCK)
        .map(|k| (k, run(world, &mut Fixed(k), rounds, seed).0))
        .min_by(|a, b| a.1.total_cmp(&b.1))
        .unwrap()
}

fn worlds() -> impl Iterator<Item = World> {
    let machines =
        [(0.0, 1), (0.03, 1), (0.07, 1), (0.15, 1), (0.15, 4), (0.3, 1), (0.3, 4), (0.9, 1)];
    machines.into_iter().flat_map(|(row, tile)| {
        // Means that give 1.5, 2.8 and 3.8 tokens per round of seven drafts.
        [0.3, 0.59, 0.74].into_iter().flat_map(move |mean| {
            [0.1, 0.4].into_iter().flat_map(move |draft| {
                [false, true].map(move |confident| World { row, tile, draft, mean, confident })
            })
        })
    })
}

/// Seconds per token, on average over a few answers.
fn average(world: &World, rounds: usize, answers: u64) -> f64 {
    let one = |seed| run(world, &mut Adaptive::new(BLOCK - 1), rounds, seed).0;
    (0..answers).map(one).sum::<f64>() / answers as f64
}

#[test]
fn a_long_answer_is_about_as_fast_as_with_the_best_fixed_length() {
    let mut sum = 0.0;
    for world in worlds() {
        let (k, best) = best_fixed(&world, 6000, 5);
        let found = average(&world, 1500, 8) / best;
        // Without confidence it may not find out that many drafts pay where few do not.
        let most = if world.confident { 1.05 } else { 1.12 };
        assert!(found < most, "{world:?}: {found} of the time with {k} drafts");
        sum += found;
    }
    // It is the faster one, as far as the proposer knows when it is right.
    assert!(sum / (worlds().count() as f64) < 0.985);
}

#[test]
fn a_short_answer_is_never_much_slower_than_plain_decoding() {
    for world in worlds() {
        // Nothing is known in the beginning, and on some of these machines a row costs a whole step.
        let found = average(&world, 200, 40);
        assert!(found < 1.06, "{world:?}: {found}");
        let warm = |seed| {
            let mut rule = Adaptive::new(BLOCK - 1);
            run(&world, &mut rule, 200, seed);
            run(&world, &mut rule, 200, seed + 1000).0
        };
        let found = (0..40).map(warm).sum::<f64>() / 40.0;
        assert!(found < 1.035, "{world:?}: {found} in the second answer");
    }
}

#[test]
fn confidence_is_used() {
    let world = World { row: 0.15, tile: 1, draft: 0.1, mean: 0.59, confident: true };
    let knowing = run(&world, &mut Adaptive::new(7), 3000, 1).0;
    let blind = run(&World { confident: false, ..world }, &mut Adaptive::new(7), 3000, 1).0;
    assert!(knowing < 0.95 * blind, "{knowing} {blind}");
}

#[test]
fn a_drafter_that_is_never_right_is_left_alone_and_found_again_when_it_is() {
    let never = World { row: 0.15, tile: 1, draft: 0.2, mean: 0.02, confident: false };
    let mut rule = Adaptive::new(7);
    let (_, drafted) = run(&never, &mut rule, 2000, 1);
    assert!((10..100).contains(&drafted), "{drafted}");
    let good = World { mean: 0.8, ..never };
    // Within the same request: after a pause that such drafts are worth.
    let mut same = rule.clone();
    let mut rounds = 0;
    while same.most(7) == 0 {
        same.observe(&Outcome { draft: None, verified: 0, agreed: 0, verify: 1.0 });
        rounds += 1;
        assert!(rounds <= 1000);
    }
    // With the next request: at once.
    let (seconds, drafted) = run(&good, &mut rule, 300, 1);
    let (_, best) = best_fixed(&good, 300, 1);
    assert!(seconds < 1.15 * best && drafted > 280, "{seconds} {best} {drafted}");
}

#[test]
fn a_machine_that_changes_its_pace_keeps_its_ratios() {
    let world = World { row: 0.07, tile: 1, draft: 0.1, mean: 0.74, confident: true };
    let mut rule = Adaptive::new(7);
    run(&world, &mut rule, 200, 1);
    // Everything takes twice as long, without a word.
    let mut slow = rule.clone();
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut drafted = 0;
    for _ in 0..200 {
        let p = beta(&mut rng, world.mean);
        let right = (0..7).take_while(|_| rng.random_bool(p)).count();
        let most = slow.most(7);
        let verified = if most > 0 { slow.cut(most, &[p; 7]) } else { 0 };
        drafted += usize::from(most > 0);
        let draft = (most > 0).then_some(2.0 * world.draft);
        let agreed = right.min(verified);
        slow.observe(&Outcome {
            draft,
            verified,
            agreed,
            verify: 2.0 * world.verify(verified + 1),
        });
    }
    assert!(drafted > 190, "{drafted}");
}

#[test]
fn passes_grow_step_by_step() {
    let mut rule = Adaptive::new(7);
    let mut lengths = Vec::new();
    for _ in 0..5 {
        let most = rule.most(7);
        let verified = if most > 0 { rule.cut(most, &[0.99; 7]) } else { 0 };
        lengths.push(verified);
        let draft = (most > 0).then_some(0.1);
        rule.observe(&Outcome { draft, verified, agreed: verified, verify: 1.0 });
    }
    assert_eq!(lengths, [0, 1, 3, 7, 7]);
    // A proposer that has no more, a budget that ends.
    assert_eq!(rule.cut(2, &[0.99; 2]), 2);
    assert_eq!(rule.most(3), 3);
    assert_eq!(rule.most(0), 0);
}

proptest! {
    /// Whatever it is told, it asks for no more than there is.
    #[test]
    fn nothing_upsets_it(
        most in 0usize..16,
        rounds in prop::collection::vec((0usize..20, 0usize..20, prop::collection::vec(any::<f64>(), 0..20), any::<f64>(), any::<f64>(), 0usize..20), 0..60),
    ) {
        let mut rule = Adaptive::new(most);
        for (room, drafts, confidence, draft, verify, agreed) in rounds {
            let asked = rule.most(room);
            prop_assert!(asked <= room.min(most));
            let drafts = drafts.min(asked);
            let verified = if asked > 0 { rule.cut(drafts, &confidence) } else { 0 };
            prop_assert!(verified <= drafts);
            let draft = (asked > 0).then_some(draft);
            rule.observe(&Outcome { draft, verified, agreed: agreed.min(verified), verify });
        }
    }
}
