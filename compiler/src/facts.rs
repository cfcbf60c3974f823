//! What decides the results of a drafter, by the names of `config.json`: shown by
//! `inspect`, compared by `verify`.

use formats::dflash2::config::{Config, LayerType};
use serde_json::{Map, Value, json};

/// The one fact that a GGUF need not hold.
const NOT_IN_GGUF: &str = "num_target_layers";

/// Every fact of a configuration, defaults filled in.
pub(crate) fn of_config(c: &Config) -> Map<String, Value> {
    let number = |v: Option<f64>| v.map(shortest);
    let causal: Vec<bool> = (0..c.num_hidden_layers).map(|n| c.is_layer_causal(n)).collect();
    let causal = match causal.first() {
        Some(first) if causal.iter().all(|layer| layer == first) => json!(first),
        _ => json!(causal),
    };
    let layer_types: Vec<&str> = c.layer_types.iter().map(|t| t.name()).collect();
    // A window that no layer has decides nothing, and a GGUF without one says nothing.
    let window = c.sliding_window.filter(|_| c.layer_types.contains(&LayerType::Sliding));
    let facts = json!({
        "hidden_size": c.hidden_size,
        "intermediate_size": c.intermediate_size,
        "num_hidden_layers": c.num_hidden_layers,
        "num_attention_heads": c.num_attention_heads,
        "num_key_value_heads": c.num_key_value_heads,
        "head_dim": c.head_dim,
        "vocab_size": c.vocab_size,
        "max_position_embeddings": c.max_position_embeddings,
        NOT_IN_GGUF: c.num_target_layers,
        "target_layer_ids": c.target_layer_ids,
        "block_size": c.block_size,
        "layer_types": layer_types,
        "sliding_window": window,
        "is_causal": causal,
        "conv_group_size": c.conv_group_size,
        "conv_kernel_size": c.conv_kernel_size,
        "selector_rank": c.selector_rank,
        "selector_top_k": c.selector_top_k,
        "mask_token_id": c.mask_token_id,
        "rms_norm_eps": shortest(c.rms_norm_eps),
        "rope_theta": shortest(c.rope_theta),
        "input_embedding_scale": shortest(c.input_embedding_scale.unwrap_or(1.0)),
        "output_multiplier": shortest(c.output_multiplier.unwrap_or(1.0)),
        "final_logit_softcapping": number(c.final_logit_softcapping),
    });
    match facts {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

/// The first fact in which two drafters differ: its name, and both values.
pub(crate) fn first_difference(a: &Config, b: &Config) -> Option<(String, Value, Value)> {
    let (a, b) = (of_config(a), of_config(b));
    a.into_iter().zip(b).find_map(|((name, a), (_, b))| {
        let unstated = name == NOT_IN_GGUF && (a.is_null() || b.is_null());
        (!unstated && !equal(&a, &b)).then_some((name, a, b))
    })
}

/// Engines hold constants in single precision, and so does a GGUF.
fn equal(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) if a.is_f64() && b.is_f64() => {
            a.as_f64().map(|v| v as f32) == b.as_f64().map(|v| v as f32)
        }
        _ => a == b,
    }
}

/// A number that came from an f32 with the digits of the f32: 1e-6 rather than
/// 9.999999974752427e-7.
pub(crate) fn shortest(v: f64) -> f64 {
    let narrow = v as f32;
    if f64::from(narrow) == v { narrow.to_string().parse().unwrap_or(v) } else { v }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn the_first_differing_fact_is_named() {
        let a = testing::config(|_| {});
        assert_eq!(first_difference(&a, &a), None);
        let b = testing::config(|json| json["dflash_config"]["selector_top_k"] = 8.into());
        let (name, a_value, b_value) = first_difference(&a, &b).unwrap();
        assert_eq!((name.as_str(), a_value, b_value), ("selector_top_k", json!(16), json!(8)));
        let b = testing::config(|json| json["rope_parameters"]["rope_theta"] = 1e6.into());
        assert_eq!(first_difference(&a, &b).unwrap().0, "rope_theta");
        let b = testing::config(|json| {
            json.as_object_mut().unwrap().remove(NOT_IN_GGUF);
            json["rms_norm_eps"] = f64::from(1e-6f32).into();
        });
        assert_eq!(first_difference(&a, &b), None);
    }

    #[test]
    fn numbers_of_single_precision_keep_their_digits() {
        assert_eq!(shortest(f64::from(1e-6f32)), 1e-6);
        assert_eq!(shortest(0.196_116_135_138_184_04), 0.196_116_135_138_184_04);
        assert_eq!(shortest(1e7), 1e7);
    }
}
