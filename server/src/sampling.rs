//! How tokens are drawn: the fields of a request over the defaults of model and server.

use std::hash::{BuildHasher, Hasher, RandomState};

use runtime::round::{Sampler, Sampling};
use runtime::text::SamplingDefaults;

use crate::error::ApiError;
use crate::fields::Fields;

/// Reads `temperature`, `top_k`, `top_p`, `min_p` and `seed`. Without a seed, one is drawn.
pub(crate) fn read(fields: &Fields<'_>, defaults: &SamplingDefaults) -> Result<Sampling, ApiError> {
    let number = |name, default: Option<f32>, neutral| {
        Ok::<f64, ApiError>(fields.number(name)?.or(default.map(decimal)).unwrap_or(neutral))
    };
    // Both 0 and -1 mean all.
    let top_k = fields.integer("top_k", -1..=i128::from(u32::MAX))?;
    let top_k = top_k.map_or(defaults.top_k.unwrap_or(0) as usize, |k| k.max(0) as usize);
    let seed = fields.integer("seed", i128::from(i64::MIN)..=i128::from(u64::MAX))?;
    let sampling = Sampling {
        temperature: number("temperature", defaults.temperature, 0.0)?,
        top_k,
        top_p: number("top_p", defaults.top_p, 1.0)?,
        min_p: number("min_p", defaults.min_p, 0.0)?,
        seed: seed.map_or_else(random, |seed| seed as u64),
    };
    for (name, value) in [
        ("frequency_penalty", 0.0),
        ("presence_penalty", 0.0),
        ("repetition_penalty", 1.0),
        ("repeat_penalty", 1.0),
    ] {
        fields.lacks(name, |found| found.as_f64() == Some(value))?;
    }
    fields.lacks("logit_bias", |value| value.as_object().is_some_and(serde_json::Map::is_empty))?;
    // Refused here rather than in the queue.
    Sampler::new(sampling)?;
    Ok(sampling)
}

/// The number as it was written: a file that says 0.95 means what a request with 0.95 means.
pub(crate) fn decimal(x: f32) -> f64 {
    x.to_string().parse().unwrap_or_else(|_| x.into())
}

/// A number that nobody knows beforehand.
pub(crate) fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
