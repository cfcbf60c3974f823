//! States to begin from: what a request can reuse of earlier ones.
//!
//! A recurrent state cannot be cut back, so it is kept where a later request is likely to branch off.
//! A snapshot holds the target's state and the drafter's context after the same tokens; together they
//! make a request continue exactly as if it had taken those tokens in itself, with the same proposals.
//! Which tokens is all that counts: a snapshot is used where its ids begin the prompt.
//!
//! Keys and values are kept once. A snapshot that was reached from another one holds only those that
//! follow it; the earlier ones are its parent's. Using a snapshot counts as using its ancestors, so the
//! least recently used one never has descendants.

use std::sync::Arc;

use crate::drafter::Context;
use crate::target::State;

/// A state after some tokens.
#[derive(Debug)]
pub(super) struct Snapshot {
    /// All tokens from the beginning.
    ids: Vec<u32>,
    /// The recurrent state, and keys and values from the end of `parent` on.
    tail: State,
    parent: Option<Arc<Snapshot>>,
    /// The drafter's context, if the request had one.
    context: Option<Context>,
    bytes: usize,
}

impl Snapshot {
    /// Tokens taken in.
    pub(super) fn len(&self) -> usize {
        self.ids.len()
    }

    /// The state and the context, as they were.
    pub(super) fn restore(&self) -> (State, Option<Context>) {
        let mut parts = vec![&self.tail];
        let mut next = &self.parent;
        while let Some(parent) = next {
            parts.push(&parent.tail);
            next = &parent.parent;
        }
        parts.reverse();
        let state = State::join(&parts).expect("there is one part at least");
        (state, self.context.clone())
    }
}

/// Snapshots up to a number of bytes, least recently used out.
#[derive(Debug)]
pub(super) struct Snapshots {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    snapshot: Arc<Snapshot>,
    used: u64,
}

impl Snapshots {
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, bytes: 0, clock: 0, entries: Vec::new() }
    }

    /// What all of them take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many there are.
    pub(super) fn count(&self) -> usize {
        self.entries.len()
    }

    /// The longest one that begins `prompt` and leaves a token of it. `drafting`: it must have a
    /// drafter's context.
    pub(super) fn find(&mut self, prompt: &[u32], drafting: bool) -> Option<Arc<Snapshot>> {
        let fits = |s: &Snapshot| {
            s.len() < prompt.len()
                && (!drafting || s.context.is_some())
                && prompt.starts_with(&s.ids)
        };
        let found = self.entries.iter().map(|e| &e.snapshot).filter(|s| fits(s));
        let found = Arc::clone(found.max_by_key(|s| s.len())?);
        self.touch(&found);
        Some(found)
    }

    /// Keeps the state after `ids`; `parent` is the snapshot that the request came from or made last.
    /// Gives the one that is held now, if it is: one larger than the limit is not.
    pub(super) fn keep(
        &mut self,
        ids: &[u32],
        state: &State,
        context: Option<&Context>,
        parent: Option<&Arc<Snapshot>>,
    ) -> Option<Arc<Snapshot>> {
        assert_eq!(ids.len(), state.len(), "a state after these tokens");
        let equal = |e: &&Entry| {
            e.snapshot.ids == ids && (e.snapshot.context.is_some() || context.is_none())
        };
        if let Some(entry) = self.entries.iter().find(equal) {
            let found = Arc::clone(&entry.snapshot);
            self.touch(&found);
            return Some(found);
        }
        // A parent that was dropped meanwhile would be memory that nobody counts.
        let held = |p: &&Arc<Snapshot>| self.entries.iter().any(|e| Arc::ptr_eq(&e.snapshot, p));
        let parent = parent.filter(held).cloned();
        let first = parent.as_ref().map_or(0, |p| p.len());
        let tail = state.tail(first);
        let bytes =
            tail.bytes() + context.map_or(0, Context::held_bytes) + std::mem::size_of_val(ids);
        if bytes > self.limit {
            return None;
        }
        let context = context.cloned();
        let snapshot = Arc::new(Snapshot { ids: ids.to_vec(), tail, parent, context, bytes });
        self.entries.push(Entry { snapshot: Arc::clone(&snapshot), used: 0 });
        self.bytes += bytes;
        self.touch(&snapshot);
        while self.bytes > self.limit {
            self.drop_oldest();
        }
        let held = self.entries.iter().any(|e| Arc::ptr_eq(&e.snapshot, &snapshot));
        held.then_some(snapshot)
    }

    /// Counts as a use of `snapshot` and of what it stands on.
    fn touch(&mut self, snapshot: &Arc<Snapshot>) {
        self.clock += 1;
        let mut next = Some(snapshot);
        while let Some(snapshot) = next {
            if let Some(e) = self.entries.iter_mut().find(|e| Arc::ptr_eq(&e.snapshot, snapshot)) {
                e.used = self.clock;
            }
            next = snapshot.parent.as_ref();
        }
    }

    /// The longest among equals: a descendant goes before what it stands on.
    fn drop_oldest(&mut self) {
        let oldest = self.entries.iter().enumerate();
        let oldest =
            oldest.min_by_key(|(_, e)| (e.used, std::cmp::Reverse(e.snapshot.len()))).map(|o| o.0);
        if let Some(oldest) = oldest {
            self.bytes -= self.entries.swap_remove(oldest).snapshot.bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use hadamard::Isa;

    use super::*;
    use crate::backend::Cpu;
    use crate::drafter::Drafter;
    use crate::kv::KvType;
    use crate::quant::ActQuant;
    use crate::target::{Digest, LogitRows, Target};

    struct Taken<'a> {
        target: &'a Target,
        drafter: &'a Drafter,
        state: State,
        context: Context,
    }

    impl<'a> Taken<'a> {
        fn nothing(target: &'a Target, drafter: &'a Drafter) -> Self {
            let state = State::new(target.config(), KvType::F16);
            Self { target, drafter, state, context: Context::new(drafter.config(), KvType::F16) }
        }

        fn take_in(&mut self, ids: &[u32]) {
            let taps = &self.drafter.config().target_layer_ids;
            let pass = self.target.advance(&mut self.state, ids, taps, LogitRows::None).unwrap();
            self.drafter.extend(&mut self.context, &pass.taps.unwrap()).unwrap();
        }

        fn digests(&self) -> (Digest, Digest) {
            (self.state.digest(None), self.context.digest())
        }
    }

    /// Chains of snapshots, with any of their ancestors dropped, give back the states they were made
    /// of: the target's and the drafter's, past the drafter's window of 128 too.
    #[test]
    fn what_comes_back_is_what_was_kept() {
        let pair = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/pair");
        let path = pair.join("target.gguf");
        let target = Target::open(&path, ActQuant::A8, Isa::detect(), &Cpu::default()).unwrap();
        let path = pair.join("drafter/model.safetensors");
        let drafter =
            Drafter::open(&path, None, &target, ActQuant::A8, Isa::detect(), &Cpu::default())
                .unwrap();
        let ids: Vec<u32> = (0..300).map(|i| i * i % 1500).collect();
        let ends = [10, 11, 90, 200, 300];
        let (mut taken, mut expected) = (Taken::nothing(&target, &drafter), Vec::new());
        let (mut parent, mut sizes) = (None, Vec::new());
        let mut snapshots = Snapshots::new(usize::MAX);
        let mut at = 0;
        for end in ends {
            taken.take_in(&ids[at..end]);
            at = end;
            expected.push(taken.digests());
            let before = snapshots.bytes();
            let (state, context) = (&taken.state, Some(&taken.context));
            parent = snapshots.keep(&ids[..end], state, context, parent.as_ref());
            sizes.push(snapshots.bytes() - before);
        }
        assert_eq!(snapshots.count(), ends.len());
        assert!(sizes[1] < sizes[0], "keys are kept once: {sizes:?}");
        for (end, expected) in ends.iter().zip(&expected) {
            let found = snapshots.find(&[&ids[..*end], &[3]].concat(), true).unwrap();
            let (state, context) = found.restore();
            assert_eq!((found.len(), state.len()), (*end, *end));
            assert_eq!((state.digest(None), context.unwrap().digest()), *expected);
        }
        // Not the whole prompt, and nothing that it does not begin with.
        assert_eq!(snapshots.find(&ids[..90], true).unwrap().len(), 11);
        assert!(snapshots.find(&[&[7], &ids[..]].concat(), true).is_none());
        // Smaller and smaller: a descendant never outlives what it stands on.
        while snapshots.count() > 0 {
            snapshots.drop_oldest();
            for entry in &snapshots.entries {
                let parent = entry.snapshot.parent.as_ref();
                let held = |p: &Arc<Snapshot>| {
                    snapshots.entries.iter().any(|e| Arc::ptr_eq(&e.snapshot, p))
                };
                assert!(parent.is_none_or(held));
            }
        }
        assert_eq!(snapshots.bytes(), 0);
        // A snapshot whose parent is gone holds everything itself.
        let (state, context) = (&taken.state, Some(&taken.context));
        let whole = snapshots.keep(&ids, state, context, parent.as_ref()).unwrap();
        let (state, context) = whole.restore();
        assert_eq!((state.digest(None), context.unwrap().digest()), expected[4]);
        // Without the drafter's context, it is no help to a request that drafts.
        let mut plain = Snapshots::new(usize::MAX);
        plain.keep(&ids, &taken.state, None, None).unwrap();
        let prompt = [&ids[..], &[3]].concat();
        assert!(plain.find(&prompt, true).is_none() && plain.find(&prompt, false).is_some());
        assert!(Snapshots::new(1000).keep(&ids, &taken.state, None, None).is_none());
    }
}
