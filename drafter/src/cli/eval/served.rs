//! The served loop beside the walk: the same ids and rounds, and the time it takes.

use std::ops::ControlFlow;
use std::time::Instant;

use runtime::Error;
use runtime::drafter::{Context, Drafter};
use runtime::round::{
    DrafterProposer, Finish, Generated, Greedy, Limits, Observer, Round, Session, Speculation,
};
use runtime::stats::{Identity, check_rounds};
use runtime::target::State;
use runtime::walk::{Decoding, KnownText};

/// What is served.
#[derive(Debug)]
pub(crate) struct Serving<'a> {
    pub(crate) decoding: &'a Decoding<'a>,
    pub(crate) drafters: &'a [&'a Drafter],
    pub(crate) lengths: &'a [usize],
}

/// Seconds from the first token to the last.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Seconds {
    /// Over all runs of the prompt.
    pub(crate) plain: f64,
    /// By drafter, then by draft length.
    pub(crate) drafting: Vec<Vec<f64>>,
    /// Runs of the prompt, the same for all.
    pub(crate) runs: usize,
}

/// How the served loop differed.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Difference {
    /// None: plain decoding.
    pub(crate) drafter: Option<usize>,
    pub(crate) draft_max: usize,
    /// The ids.
    pub(crate) identity: Identity,
    /// The first round that is another; none where all are the same.
    pub(crate) round: Option<usize>,
}

/// Over all prompts that were served.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Identities {
    pub(crate) prompts: usize,
    /// The first difference, and its prompt.
    pub(crate) difference: Option<(usize, Difference)>,
}

/// A prompt that was served.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) seconds: Seconds,
    pub(crate) difference: Option<Difference>,
}

/// How serving a prompt ended.
#[derive(Debug)]
pub(crate) enum Served {
    Compared(Found),
    Cancelled,
}

/// A run of the loop: the drafter and the place of its draft length, none for plain decoding.
type Leg = Option<(usize, usize)>;

impl Serving<'_> {
    /// Serves a prompt with every drafter and draft length and compares ids and rounds with those that
    /// were computed. For times, plain decoding too, and everything again in the reverse order (ABBA):
    /// what drifts evenly hits all alike.
    pub(crate) fn prompt(
        &self,
        prompt: &[u32],
        known: &KnownText,
        rounds: &[Vec<Vec<Round>>],
        speed: bool,
        names: &[&str],
        cancelled: &dyn Fn(&str) -> bool,
    ) -> Result<Served, Error> {
        let pairs = (0..self.drafters.len())
            .flat_map(|d| (0..self.lengths.len()).map(move |l| Some((d, l))));
        let mut legs: Vec<Leg> = speed.then_some(None).into_iter().chain(pairs).collect();
        if speed {
            legs.extend(legs.clone().into_iter().rev());
        }
        let mut found = Found {
            seconds: Seconds {
                plain: 0.0,
                drafting: vec![vec![0.0; self.lengths.len()]; self.drafters.len()],
                runs: if speed { 2 } else { 1 },
            },
            difference: None,
        };
        for leg in legs {
            let what = match leg {
                None => "plain".to_owned(),
                Some((d, l)) => format!("{}, {} drafts", names[d], self.lengths[l]),
            };
            let cancelled = || cancelled(&what);
            let (generated, seconds) = self.run(prompt, leg, &cancelled)?;
            if generated.finish == Finish::Cancelled {
                return Ok(Served::Cancelled);
            }
            match leg {
                None => found.seconds.plain += seconds,
                Some((d, l)) => found.seconds.drafting[d][l] += seconds,
            }
            if found.difference.is_none() {
                found.difference = self.compare(leg, &generated, known, rounds);
            }
        }
        Ok(Served::Compared(found))
    }

    fn compare(
        &self,
        leg: Leg,
        generated: &Generated,
        known: &KnownText,
        rounds: &[Vec<Vec<Round>>],
    ) -> Option<Difference> {
        let budget = self.decoding.budget;
        let draft_max = leg.map_or(0, |(_, place)| self.lengths[place]);
        let identity = Identity::of(known.ids(), &generated.ids, budget, draft_max);
        // Plain rounds deliver a token each; there is nothing to compare.
        let expected = leg.map_or(&generated.rounds, |(drafter, place)| &rounds[drafter][place]);
        let same = generated.rounds.iter().zip(expected).take_while(|(a, b)| a == b).count();
        let round = Some(same).filter(|same| *same < generated.rounds.len().max(expected.len()));
        let sound = check_rounds(generated, budget, draft_max).is_ok()
            && generated.finish == known.finish();
        let equal = identity == Identity::Identical && round.is_none() && sound;
        (!equal).then_some(Difference {
            drafter: leg.map(|(drafter, _)| drafter),
            draft_max,
            identity,
            round,
        })
    }

    fn run(
        &self,
        prompt: &[u32],
        leg: Leg,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<(Generated, f64), Error> {
        let Decoding { target, kv, budget, stop, prefill_chunk } = *self.decoding;
        let limits =
            Limits { max_tokens: Some(budget), stop: stop.clone(), context: None, prefill_chunk };
        let mut session = Session { state: State::new(target.config(), kv), pending: None };
        let mut clock = Clock { first: None, cancelled };
        let mut proposer;
        let speculation = match leg {
            None => Speculation::Off,
            Some((d, place)) => {
                let drafter = self.drafters[d];
                proposer = DrafterProposer::new(drafter, Context::new(drafter.config(), kv));
                Speculation::On { proposer: &mut proposer, max: self.lengths[place] }
            }
        };
        let generated =
            session.generate(target, prompt, &limits, &mut Greedy, speculation, &mut clock)?;
        let seconds = clock.first.map_or(0.0, |first| first.elapsed().as_secs_f64());
        Ok((generated, seconds))
    }
}

/// When the first token came.
struct Clock<'a> {
    first: Option<Instant>,
    cancelled: &'a dyn Fn() -> bool,
}

impl Observer for Clock<'_> {
    fn token(&mut self, _: u32, _: &[f32]) -> ControlFlow<()> {
        self.first.get_or_insert_with(Instant::now);
        if (self.cancelled)() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::path::Path;

    use hadamard::Isa;
    use runtime::backend::Cpu;
    use runtime::kv::KvType;
    use runtime::quant::ActQuant;
    use runtime::target::Target;

    #[test]
    fn what_the_loop_does_otherwise_is_found() {
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
        let (act, isa, cpu) = (ActQuant::A8, Isa::detect(), Cpu::default());
        let target = Target::open(&fixture.join("target.gguf"), act, isa, &cpu).unwrap();
        let path = fixture.join("drafter");
        let drafter = Drafter::open(&path, None, &target, act, isa, &cpu).unwrap();
        let (kv, stop) = (KvType::default(), BTreeSet::new());
        let decoding = Decoding { target: &target, kv, budget: 16, stop: &stop, prefill_chunk: 0 };
        let serving = Serving { decoding: &decoding, drafters: &[&drafter], lengths: &[3, 7] };
        let known = |prompt: &[u32]| decoding.run(&[&drafter], prompt, &|| false).unwrap().unwrap();
        let (prompt, other) = ([294, 258, 328, 283], [2, 0, 14, 1061]);
        let rounds = vec![known(&prompt).walk(&target, 0, &drafter, &[3, 7]).unwrap()];
        let found = |known: &KnownText, rounds: &[Vec<Vec<Round>>]| {
            let names = ["it"];
            match serving.prompt(&prompt, known, rounds, true, &names, &|_| false).unwrap() {
                Served::Compared(found) => found.difference,
                Served::Cancelled => panic!("nobody cancelled"),
            }
        };
        assert_eq!(found(&known(&prompt), &rounds), None);
        let different = |draft_max, round| {
            let (drafter, identity) = (Some(0), Identity::Identical);
            Some(Difference { drafter, draft_max, identity, round: Some(round) })
        };
        let mut otherwise = rounds.clone();
        otherwise[0][1][1].agreed += 1;
        assert_eq!(found(&known(&prompt), &otherwise), different(7, 1));
        let mut shorter = rounds.clone();
        shorter[0][0].pop();
        assert_eq!(found(&known(&prompt), &shorter), different(3, shorter[0][0].len()));
        // Another text: plain decoding gives other ids already.
        let difference = found(&known(&other), &rounds).unwrap();
        assert_eq!((difference.drafter, difference.round), (None, None));
        assert!(matches!(difference.identity, Identity::PrefixDivergence { .. }));
        let cancelled =
            serving.prompt(&prompt, &known(&prompt), &rounds, false, &["it"], &|_| true);
        assert!(matches!(cancelled.unwrap(), Served::Cancelled));
    }
}
