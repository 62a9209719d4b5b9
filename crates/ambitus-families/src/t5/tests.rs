//! On small random encoders: states beside transformers' (`parity/t5`, `parity/parler`), that neither rows beside a text nor other texts change its states, and what is refused.

use super::folder::Folder;
use super::{Encoder, MOST_TOKENS};
use crate::error::RunError;
use ambitus_exec::executor::Executor;
use ambitus_ir::Session;
use ambitus_models::t5::config::Config;
use ambitus_models::t5::weights::{EMBEDDINGS, PREFIX};
use ambitus_models::t5::{model, pairs};
use ambitus_store::{DType, SafetensorsWriter, TensorFile, TensorSpec};
use ambitus_testkit::tolerances::{TEXT_STATES, relative};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const SMALL: Config = Config {
    dim: 24,
    heads: 3,
    head_dim: 8,
    ffn: 40,
    layers: 2,
    vocab: 50,
    eps: 1e-6,
    gated: true,
    dropout: 0.1,
};

fn keys(cfg: &Config) -> Value {
    json!({
        "model_type": "t5", "vocab_size": cfg.vocab, "d_model": cfg.dim, "d_kv": cfg.head_dim, "d_ff": cfg.ffn,
        "num_layers": cfg.layers, "num_heads": cfg.heads, "feed_forward_proj": if cfg.gated { "gated-gelu" } else { "relu" },
    })
}

/// Numbers in -0.5..0.5 that do not repeat.
fn numbers(seed: usize, n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919 + seed * 104_729 + i / 97) % 1009) as f32 / 1009.0 - 0.5).collect()
}

/// Writes a folder, with each tensor's name and values changed; without those that `change` gives no name.
fn write(dir: &Path, config: &Value, cfg: &Config, change: impl Fn(&str, &mut Vec<f32>) -> Option<String>) {
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let mut session = Session::default();
    model::encode(&mut session, cfg, EMBEDDINGS[0], 1, false);
    let mut tensors = Vec::new();
    for (i, state) in session.states.iter().enumerate() {
        let mut values = numbers(i, state.ty.shape.elements());
        if let Some(name) = change(&state.name, &mut values) {
            tensors.push((TensorSpec::new(name, DType::F32, &state.ty.shape), values));
        }
    }
    let specs = tensors.iter().map(|t| t.0.clone()).collect();
    let file = dir.join("model.safetensors");
    let mut writer = SafetensorsWriter::create(file, specs, &Default::default()).unwrap();
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    for name in order {
        let values = &tensors.iter().find(|t| t.0.name == name).unwrap().1;
        writer.write_f32(&name, values).unwrap();
    }
    writer.finish().unwrap();
}

fn as_it_is(name: &str, _: &mut Vec<f32>) -> Option<String> {
    Some(name.to_owned())
}

fn text(seed: u32, n: u32) -> Vec<u32> {
    (0..n).map(|i| (i * 17 + seed) % 50).collect()
}

fn parity(folder: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity").join(folder)
}

/// Compares the states of every text of a file with those that another holds.
fn compare(folder: &str, (ids_in, ids): (&str, &str), (states_in, states): (&str, &str)) {
    let dir = parity(folder);
    let [given, expected] = [ids_in, states_in].map(|name| TensorFile::open(dir.join(name)).unwrap());
    let (mut encoder, mut scratch) = (Encoder::open(&dir, 140, 2).unwrap(), vec![0; 1 << 16]);
    let texts: Vec<_> = given.tensors().iter().filter_map(|t| t.name().strip_suffix(ids)).collect();
    assert!(texts.len() >= 2, "{folder}");
    for text in texts {
        let name = format!("{text}{ids}");
        let mut of_text = vec![0; given.get(&name).unwrap().elements()];
        given.read_i64(&name, &mut of_text, &mut scratch).unwrap();
        let name = format!("{text}{states}");
        let mut want = vec![0.0; expected.get(&name).unwrap().elements()];
        expected.read_into(&name, &mut want, &mut scratch).unwrap();
        let of_text: Vec<u32> = of_text.into_iter().map(|id| id as u32).collect();
        let wide = |x: Vec<f32>| x.into_iter().map(f64::from).collect::<Vec<_>>();
        let far = relative(&wide(encoder.states(&of_text).unwrap()), &wide(want));
        assert!(far <= TEXT_STATES, "{folder} {text}: {far:e}");
    }
}

#[test]
fn states_are_the_packages() {
    for folder in ["t5/fixtures/relu", "t5/fixtures/gated"] {
        let file = "expected.safetensors";
        compare(folder, (file, ".ids"), (file, ".states"));
    }
    for name in ["base", "projected", "fused", "crossed", "rope"] {
        let of = |name| ("batch.safetensors", name);
        compare(
            &format!("parler/fixtures/{name}"),
            of(".description_ids"),
            ("states.safetensors", ".states"),
        );
    }
}

#[test]
fn what_lies_beside_a_text_changes_nothing() {
    for gated in [true, false] {
        let cfg = Config { gated, ..SMALL };
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &keys(&cfg), &cfg, as_it_is);
        let of = |sizes: &[usize], threads| {
            Encoder::of_sizes(Folder::open(dir.path()).unwrap(), sizes.to_vec(), threads, false)
        };
        for n in [1, 2, 9, 40, 150] {
            let ids = text(n, n);
            let want = of(&[n as usize], 1).states(&ids).unwrap();
            assert_eq!(want.len(), n as usize * cfg.dim);
            for size in [n as usize + 1, 151, 256] {
                let got = of(&[size], 2).states(&ids).unwrap();
                let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(far <= 1e-5, "{n} tokens in {size}: {far:e}");
            }
        }
        // Whatever the longest text is, a text runs at one length: equal to the bit.
        let mut small = Encoder::open(dir.path(), 1, 1).unwrap();
        let mut large = Encoder::open(dir.path(), 300, 2).unwrap();
        assert_eq!((small.tokens(), large.tokens()), (32, 384));
        assert!(small.bytes() < large.bytes());
        let ids = text(3, 20);
        assert_eq!(small.states(&ids).unwrap(), large.states(&ids).unwrap());
        let long = text(3, 300);
        let first = large.states(&long).unwrap();
        large.close();
        assert_eq!(large.states(&long).unwrap(), first);
        assert_eq!(small.states(&[]).unwrap(), Vec::<f32>::new());
    }
}

#[test]
fn texts_side_by_side_are_those_alone() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &keys(&SMALL), &SMALL, as_it_is);
    let mut encoder = Encoder::open(dir.path(), 1, 1).unwrap();
    let texts = [text(1, 7), text(2, 12)];
    let alone = texts.each_ref().map(|ids| encoder.states(ids).unwrap()).concat();
    let (mut ids, mut buckets) = (vec![-1; 32], vec![0; 32 * 32]);
    ids.iter_mut().zip(texts.concat()).for_each(|(to, id)| *to = id as i32);
    pairs::fill(32, &[0..7, 7..19], &mut buckets);
    let exec = encoder.ready().unwrap();
    let program = model::name(32, false);
    exec.write_i32(&program, "ids", 0, &ids).unwrap();
    exec.write_i32(&program, "pairs", 0, &buckets).unwrap();
    exec.run(&program, 0).unwrap();
    let mut states = vec![1.0; 32 * SMALL.dim];
    exec.read_f32(&program, "states", 0, &mut states).unwrap();
    let (both, none) = states.split_at(alone.len());
    let far = both.iter().zip(&alone).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(far <= 1e-5, "{far:e}");
    assert!(none.iter().all(|x| *x == 0.0));
}

#[test]
fn the_arena_is_the_plans() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), &keys(&SMALL), &SMALL, as_it_is);
    let mut encoder = Encoder::open(dir.path(), 100, 1).unwrap();
    let bytes = encoder.bytes();
    encoder.states(&text(1, 100)).unwrap();
    let arena = encoder.ready().unwrap().arena_bytes();
    assert_eq!(arena, encoder.planned.arena_bytes());
    assert_eq!(bytes, arena + 4 * 128 * (128 + 1 + 24));
}

#[test]
fn an_encoder_is_the_same_in_a_larger_model() {
    let dir = tempfile::tempdir().unwrap();
    let mut states = Vec::new();
    let composite = json!({ "model_type": "speech", "d_model": 7, "text_encoder": keys(&SMALL) });
    type Named<'a> = (&'a Value, &'a dyn Fn(&str) -> String);
    let names: [Named<'_>; 4] = [
        (&keys(&SMALL), &str::to_owned),
        (&composite, &|name| format!("{PREFIX}{name}")),
        (&keys(&SMALL), &|name| name.replace(EMBEDDINGS[0], EMBEDDINGS[1])),
        (&composite, &|name| format!("{PREFIX}{}", name.replace(EMBEDDINGS[0], EMBEDDINGS[1]))),
    ];
    for (config, name) in names {
        write(dir.path(), config, &SMALL, |of, _| Some(name(of)));
        let mut encoder = Encoder::open(dir.path(), 10, 1).unwrap();
        states.push((encoder.states(&text(1, 10)).unwrap(), encoder.fingerprint().unwrap()));
    }
    // The last of them as the one shard of an index.
    let shard = "model-00001-of-00001.safetensors";
    let of_shard = TensorFile::open(dir.path().join("model.safetensors")).unwrap();
    let places: Vec<_> = of_shard.tensors().iter().map(|t| (t.name().to_owned(), json!(shard))).collect();
    let index = json!({ "weight_map": Value::Object(places.into_iter().collect()) });
    std::fs::write(dir.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    std::fs::rename(dir.path().join("model.safetensors"), dir.path().join(shard)).unwrap();
    let mut encoder = Encoder::open(dir.path(), 10, 1).unwrap();
    states.push((encoder.states(&text(1, 10)).unwrap(), encoder.fingerprint().unwrap()));
    assert!(states.iter().all(|s| *s == states[0]));
    write(dir.path(), &keys(&SMALL), &SMALL, |name, values| {
        if name == "encoder.final_layer_norm.weight" {
            values[0] += 0.125;
        }
        Some(name.to_owned())
    });
    let other = Encoder::open(dir.path(), 10, 1).unwrap();
    assert_ne!(other.fingerprint().unwrap(), states[0].1);
}

#[test]
fn what_does_not_fit_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path();
    let said = |e: RunError, exit| {
        assert_eq!(e.exit_code(), exit, "{e}");
        e.to_string()
    };
    let opened = || said(Encoder::open(dir, 10, 1).err().unwrap(), 4);
    assert!(opened().contains("config.json: is missing"));
    std::fs::write(dir.join("config.json"), json!({ "text_encoder": keys(&SMALL) }).to_string()).unwrap();
    assert!(opened().contains("no model.safetensors, model.safetensors.index.json or pytorch_model.bin"));
    let wide = Config { ffn: 41, ..SMALL };
    let composite = json!({ "text_encoder": keys(&wide) });
    write(dir, &composite, &SMALL, |name, _| match name {
        "encoder.block.1.layer.1.layer_norm.weight" => Some(format!("{PREFIX}encoder.extra")),
        name => Some(format!("{PREFIX}{name}")),
    });
    let why = opened();
    for part in [
        "does not fit config.json (tensors `text_encoder.*`)",
        "1 tensors missing: encoder.block.1.layer.1.layer_norm.weight",
        "1 tensors that the configuration does not have: encoder.extra",
        "6 tensors of another shape: encoder.block.0.layer.1.DenseReluDense.wi_0.weight is [40, 24], the configuration says [41, 24]",
    ] {
        assert!(why.contains(part), "{part}: {why}");
    }
    let mut refused = json!({ "text_encoder": keys(&SMALL) });
    refused["text_encoder"]["model_type"] = "umt5".into();
    write(dir, &refused, &SMALL, as_it_is);
    assert!(opened().contains("config.json: text_encoder.model_type: `umt5` is not supported"));
    write(dir, &json!({ "d_model": "x" }), &SMALL, as_it_is);
    assert!(opened().contains("give the folder of a T5 encoder"));

    write(dir, &keys(&SMALL), &SMALL, as_it_is);
    let mut encoder = Encoder::open(dir, 10, 1).unwrap();
    assert!(said(encoder.states(&[3, 50]).unwrap_err(), 5).contains("ids[1]: 50 is not below"));
    assert!(said(encoder.states(&[3; 33]).unwrap_err(), 5).contains("33 tokens"));
    assert!(said(Encoder::open(dir, MOST_TOKENS + 1, 1).err().unwrap(), 5).contains("4097 tokens"));
    write(dir, &keys(&SMALL), &SMALL, |name, values| {
        if name.ends_with("wo.weight") {
            values[5] = f32::INFINITY;
        }
        Some(name.to_owned())
    });
    let why = Encoder::open(dir, 10, 1).unwrap().states(&[1]).unwrap_err();
    assert!(said(why, 4).contains("DenseReluDense.wo.weight holds or gives inf"));
}

/// With dropout states are draws around those without: the same for a number, others for another, and of nothing dropped the same.
#[test]
fn dropout_is_drawn_by_number() {
    let folder = |dropout: f64| {
        let (cfg, dir) = (Config { gated: false, ..SMALL }, tempfile::tempdir().unwrap());
        let mut config = keys(&cfg);
        config["dropout_rate"] = dropout.into();
        write(dir.path(), &config, &cfg, as_it_is);
        dir
    };
    let open = |dir: &Path| Encoder::open_with(dir, 40, 2, true).unwrap();
    let (none, some) = (folder(0.0), folder(0.1));
    let (mut none, mut some) = (open(none.path()), open(some.path()));
    let ids = text(3, 20);
    let plain = some.states(&ids).unwrap();
    assert_eq!(none.states(&ids).unwrap(), plain);
    assert_eq!(none.drawn(&ids, 5).unwrap(), plain);
    let first = some.drawn(&ids, 0).unwrap();
    assert_eq!(some.drawn(&ids, 0).unwrap(), first);
    assert_ne!(some.drawn(&ids, 1).unwrap(), first);
    assert_ne!(some.drawn(&text(4, 20), 0).unwrap(), first);
    // Of the last dropout alone a tenth is zero.
    let zeros = (0..50).flat_map(|number| some.drawn(&ids, number).unwrap()).filter(|x| *x == 0.0).count();
    let share = zeros as f64 / (50 * plain.len()) as f64;
    assert!((share - 0.1).abs() < 0.01, "{share}");
    assert_eq!(some.states(&ids).unwrap(), plain, "and nothing is left of them");
    let why = folder(1.5);
    assert!(Encoder::open(why.path(), 40, 1).err().unwrap().to_string().contains("dropout_rate: 1.5"));
}
