//! How often drafts are right, learnt from the rounds.

/// Evidence that an assumption is worth.
const PRIOR: f64 = 3.0;

/// Drafts after which old evidence has lost most of its weight.
const MEMORY: f64 = 64.0;

/// What is assumed of the first draft.
const ASSUMED: f64 = 0.65;

/// Upper ends of the classes of confidence; the last one ends at 1.
const CLASSES: [f64; 10] = [0.05, 0.15, 0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98];

#[derive(Debug, Clone, Copy, Default)]
struct Share {
    seen: f64,
    right: f64,
}

impl Share {
    fn add(&mut self, right: bool) {
        let keep = 1.0 - 1.0 / MEMORY;
        self.seen = self.seen * keep + 1.0;
        self.right = self.right * keep + f64::from(u8::from(right));
    }

    /// The share, and `assumed` as far as evidence lacks.
    fn estimate(&self, assumed: f64) -> f64 {
        (self.right + PRIOR * assumed) / (self.seen + PRIOR)
    }
}

/// Probabilities that a draft is right if those before it are.
#[derive(Debug, Clone)]
pub(super) struct Acceptance {
    by_place: Vec<Share>,
    /// Of first drafts, whatever was forgotten of places.
    first: Share,
    by_class: [Share; CLASSES.len() + 1],
}

fn class(confidence: f64) -> usize {
    CLASSES.iter().position(|end| confidence < *end).unwrap_or(CLASSES.len())
}

impl Acceptance {
    pub(super) fn new(most: usize) -> Self {
        Self {
            by_place: vec![Share::default(); most],
            first: Share::default(),
            by_class: Default::default(),
        }
    }

    /// Of draft `i`, on average or with the proposer's confidence in it.
    pub(super) fn of(&self, i: usize, confidence: Option<f64>) -> f64 {
        match confidence {
            Some(p) => self.by_class[class(p)].estimate(p.clamp(0.0, 1.0)),
            // What is not known of a place is assumed to be as at the one before it.
            None => self.by_place.iter().take(i + 1).fold(ASSUMED, |p, share| share.estimate(p)),
        }
    }

    /// Of first drafts, with all that was ever seen of them.
    pub(super) fn of_first(&self) -> f64 {
        self.first.estimate(ASSUMED)
    }

    /// `verified` drafts, of which the first `agreed` were right.
    pub(super) fn add(&mut self, verified: usize, agreed: usize, confidence: &[f64]) {
        if verified > 0 {
            self.first.add(agreed > 0);
        }
        // Nothing is learnt from those behind the first that was wrong.
        for i in 0..verified.min(agreed + 1) {
            if let Some(share) = self.by_place.get_mut(i) {
                share.add(i < agreed);
            }
            if let Some(p) = confidence.get(i) {
                self.by_class[class(*p)].add(i < agreed);
            }
        }
    }

    /// Nothing is known of places.
    pub(super) fn forget_places(&mut self) {
        self.by_place.fill(Share::default());
        self.first = Share::default();
    }

    /// Other text may come: what places say counts less.
    pub(super) fn doubt(&mut self) {
        for share in &mut self.by_place {
            let keep = (PRIOR / share.seen).min(1.0);
            (share.seen, share.right) = (share.seen * keep, share.right * keep);
        }
    }
}
