//! Orpheus' configuration as transformers writes it, and its program against transformers' formulas.

use ambitus_ir::verify::verify;
use ambitus_ir::{Session, TensorType};
use ambitus_models::orpheus::config::{Config, File, Stretch};
use ambitus_models::orpheus::{model, weights};
use ambitus_models::{Capacity, ConfigError, Model};
use ambitus_testkit::{Interp, Rounding, Tensor, Tensors};

/// A tiny file in the spelling of transformers 4, with further keys.
fn file(more: &str) -> Result<Config, ConfigError> {
    let text = format!(
        r#"{{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128, "hidden_size": 48,
             "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6, "use_cache": true{more}}}"#
    );
    serde_json::from_str::<File>(&text).expect("JSON").config()
}

fn why(more: &str) -> String {
    file(more).expect_err(more).to_string()
}

const OLD: &str = r#", "rope_theta": 500000.0, "rope_scaling": {"rope_type": "llama3", "factor": 32.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#;
const NEW: &str = r#", "rope_parameters": {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 32.0,
    "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}"#;

#[test]
fn both_spellings_of_rotary_settings_mean_the_same() {
    let stretch = Stretch { factor: 32.0, low: 1.0, high: 4.0, original: 8192.0 };
    for text in [OLD.to_owned(), NEW.to_owned(), format!("{OLD}{NEW}"), OLD.replace("rope_type", "type")] {
        let cfg = file(&text).expect("a configuration");
        assert_eq!((cfg.rope_base, cfg.stretch), (500_000.0, Some(stretch)), "{text}");
    }
    let plain = [
        "",
        r#", "rope_scaling": null"#,
        r#", "rope_scaling": {"rope_type": "default"}"#,
        r#", "rope_parameters": {"rope_theta": 10000.0}"#,
    ];
    for text in plain {
        let cfg = file(text).expect("a configuration");
        assert_eq!((cfg.rope_base, cfg.stretch), (10_000.0, None), "{text}");
    }
}

#[test]
fn absent_keys_are_transformers_defaults() {
    let cfg = file("").expect("a configuration");
    assert_eq!((cfg.kv_heads, cfg.head_dim, cfg.tied), (6, 8, false));
    assert_eq!((cfg.eps, cfg.spread), (1e-6, 0.02));
    let cfg =
        file(r#", "num_key_value_heads": 2, "head_dim": 10, "tie_word_embeddings": true"#).expect("good");
    assert_eq!((cfg.kv_heads, cfg.head_dim, cfg.tied), (2, 10, true));
    assert_eq!(file(r#", "head_dim": null, "num_key_value_heads": null"#).expect("good").head_dim, 8);
}

#[test]
fn what_would_change_numbers_is_refused_by_key() {
    for (more, key) in [
        (r#", "attention_bias": true"#, "attention_bias: "),
        (r#", "mlp_bias": true"#, "mlp_bias: "),
        (r#", "hidden_act": "gelu""#, "hidden_act: `gelu`"),
        (r#", "attention_dropout": 0.1"#, "attention_dropout: "),
        (r#", "partial_rotary_factor": 0.5"#, "partial_rotary_factor: "),
        (r#", "quantization_config": {"bits": 4}"#, "quantization_config: "),
        (r#", "rope_scaling": {"rope_type": "yarn", "factor": 2.0}"#, "rope_scaling: rope_type `yarn`"),
        (r#", "rope_parameters": {"rope_type": "linear"}"#, "rope_parameters: rope_type `linear`"),
        (r#", "rope_scaling": {"rope_type": "llama3", "factor": 2.0}"#, "low_freq_factor is missing"),
        (r#", "rope_theta": 7.0, "rope_parameters": {"rope_theta": 8.0}"#, "rope_theta: 7, but"),
        (r#", "num_key_value_heads": 4"#, "num_key_value_heads: 4 does not divide"),
        (r#", "head_dim": 7"#, "head_dim: 7 is odd"),
        (r#", "rms_norm_eps": 0"#, "rms_norm_eps: 0 is not"),
    ] {
        assert!(why(more).contains(key), "{more}: {}", why(more));
    }
    assert!(why(&format!("{NEW}{}", OLD.replace("32.0", "8.0"))).contains("keep one spelling"));
    let other = |from: &str, to: &str| {
        let text = r#"{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 128, "hidden_size": 48,
            "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 6}"#;
        serde_json::from_str::<File>(&text.replace(from, to))
            .expect("JSON")
            .config()
            .expect_err(to)
            .to_string()
    };
    assert!(other("LlamaForCausalLM", "MistralForCausalLM").starts_with("architectures: MistralForCausalLM"));
    assert!(other(r#""llama""#, r#""qwen2""#).starts_with("model_type: `qwen2`"));
    assert!(other(": 48", ": 0").starts_with("hidden_size: 0"));
    assert!(other(": 48", ": 47").contains("say head_dim"));
    // Each possible, together no model.
    let large =
        r#""hidden_size": 65536, "head_dim": 64, "intermediate_size": 1048576, "num_hidden_layers": 1024"#;
    let text = format!(r#"{{"vocab_size": 128, "num_attention_heads": 6, {large}}}"#);
    let e = serde_json::from_str::<File>(&text).expect("JSON").config().expect_err("no model");
    assert!(e.key == "hidden_size" && e.why.contains("2.1e14 parameters"), "{e}");
}

/// transformers' `_compute_llama3_parameters` in f32, for head_dim 8 and Orpheus' settings; and line by line elsewhere.
#[test]
fn frequencies_are_transformers() {
    let published = frequencies(&file(OLD).expect("good"));
    for (got, want) in published.iter().zip([1.0, 0.03760603070, 0.000429556705, 1.66196737e-6]) {
        assert!((got / want - 1.0).abs() < 1e-6, "{published:?}");
    }
    let by = Stretch { factor: 8.0, low: 1.0, high: 4.0, original: 128.0 };
    let cfg = Config { head_dim: 32, rope_base: 1000.0, stretch: Some(by), ..file(OLD).expect("good") };
    let mut bands = [0; 3];
    for (i, got) in frequencies(&cfg).into_iter().enumerate() {
        let f = 1000f64.powf(-(i as f64) / 16.0);
        let wave = std::f64::consts::TAU / f;
        let (band, want) = if wave < by.original / by.high {
            (0, f)
        } else if wave > by.original / by.low {
            (2, f / by.factor)
        } else {
            let s = (by.original / wave - by.low) / (by.high - by.low);
            (1, (1.0 - s) * f / by.factor + s * f)
        };
        bands[band] += 1;
        assert!((got / want - 1.0).abs() < 1e-6, "{i}: {got} {want}");
    }
    assert!(bands.iter().all(|n| *n > 0), "{bands:?}");
}

/// What the program feeds to its rotations.
fn frequencies(cfg: &Config) -> Vec<f64> {
    let mut session = Session::default();
    let mut p = model::loss(&mut session, cfg, Capacity { rows: 4, clips: 1 }, "micro");
    let rotary = p.instrs.iter().position(|i| i.op.name() == "rotary").expect("a rotation");
    let freqs = p.instrs[rotary].inputs[1];
    p.instrs.truncate(rotary);
    p.outputs = vec![ambitus_ir::Output { name: "freqs".to_owned(), value: freqs }];
    let mut states = Tensors::new();
    for s in &session.states {
        states.insert(s.name.clone(), Tensor::full(s.ty, 0.1));
    }
    let mut inputs = Tensors::new();
    inputs.insert("input_ids".to_owned(), Tensor::i32(&[0; 4]));
    inputs.insert("labels".to_owned(), Tensor::i32(&[-100; 4]));
    inputs.insert("segments".to_owned(), Tensor::i32(&[0, 4]));
    inputs.insert("norm".to_owned(), Tensor::full(TensorType::f32(&[1]), 1.0));
    let out = Interp::new(Rounding::ToType).run(&session, &p, &inputs, &mut states).expect("it runs");
    out["freqs"].data.clone()
}

fn tiny(tied: bool) -> Config {
    Config { kv_heads: 2, tied, ..file(OLD).expect("good") }
}

#[test]
fn states_have_the_checkpoints_names_and_shapes() {
    let mut session = Session::default();
    let p = model::loss(&mut session, &tiny(false), Capacity { rows: 40, clips: 3 }, "micro");
    verify(&session, &p).expect("a built program is well formed");
    let shape = |name: &str| {
        let id = session.state(name).unwrap_or_else(|| panic!("{name} is missing"));
        session.states[id.index()].ty.shape.to_vec()
    };
    assert_eq!(shape("model.embed_tokens.weight"), [128, 48]);
    assert_eq!(shape("model.layers.1.self_attn.q_proj.weight"), [48, 48]);
    assert_eq!(shape("model.layers.1.self_attn.k_proj.weight"), [16, 48]);
    assert_eq!(shape("model.layers.1.self_attn.v_proj.weight"), [16, 48]);
    assert_eq!(shape("model.layers.1.self_attn.o_proj.weight"), [48, 48]);
    assert_eq!(shape("model.layers.0.mlp.gate_proj.weight"), [96, 48]);
    assert_eq!(shape("model.layers.0.mlp.up_proj.weight"), [96, 48]);
    assert_eq!(shape("model.layers.0.mlp.down_proj.weight"), [48, 96]);
    assert_eq!(shape("model.layers.0.input_layernorm.weight"), [48]);
    assert_eq!(shape("model.layers.0.post_attention_layernorm.weight"), [48]);
    assert_eq!(shape("model.norm.weight"), [48]);
    assert_eq!(shape("lm_head.weight"), [128, 48]);
    assert_eq!(session.states.len(), 2 * 9 + 3);
    assert_eq!(p.blocks, ["model.layers.0", "model.layers.1"]);
}

#[test]
fn a_tied_head_is_the_embedding() {
    let mut session = Session::default();
    model::loss(&mut session, &tiny(true), Capacity { rows: 40, clips: 3 }, "micro");
    assert!(session.state("lm_head.weight").is_none());
    assert_eq!(session.states.len(), 2 * 9 + 2);
}

/// The published counts (vocabularies 156,939 and 156,940), and the arithmetic of the official script's step: 52.8 GB of
/// states, 2.2 MB of logits a token.
#[test]
fn the_published_shape_has_the_published_size() {
    let count = |cfg: &Config| {
        let mut session = Session::default();
        model::loss(&mut session, cfg, Capacity { rows: 8, clips: 1 }, "micro");
        session.states.iter().map(|s| s.ty.shape.elements() as u64).sum::<u64>()
    };
    let tuned = Config::orpheus_3b();
    let pretrained = Config { vocab: 156_939, ..tuned.clone() };
    assert_eq!((count(&pretrained), count(&tuned)), (3_300_864_000, 3_300_867_072));
    assert_eq!(count(&Config { tied: false, ..pretrained.clone() }), 3_782_980_608);

    let n = count(&tuned);
    let bytes = |tokens, mixed| weights::original_bytes(&tuned, n, tokens, mixed);
    assert_eq!(bytes(0, false), 16 * n);
    assert_eq!(bytes(0, true), 18 * n);
    // q, k, v and so on of a block: 162 KB a token.
    let block = 30 * 3072 + 4 * 1024 + 8 * 8192 + 4 * 24;
    assert_eq!(bytes(1, true) - bytes(0, true), 28 * block + 10 * 3072 + 14 * 156_940);
    assert!(bytes(8192, true) > 80_000_000_000);
    let rows = tuned.rows();
    assert!((rows.per_second - 82.03125).abs() < 1e-9);
}
