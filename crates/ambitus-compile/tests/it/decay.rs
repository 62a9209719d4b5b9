//! Parameters without weight decay: every update of theirs has a decay of exactly 0, and every other one the optimizer's, however
//! a session is made.

use ambitus_compile::CompileError;
use ambitus_compile::optimizer::{self, Optimizer, Rule, States};
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::place::Cut;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Layout, Sharding, Strategy};
use ambitus_compile::pipeline::{self, Options, Pipeline, Trained};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::text::parse;
use ambitus_ir::{Op, Session};
use ambitus_testkit::paper::FULL;
use ambitus_testkit::toys::{Toy, toys};
use std::collections::BTreeMap;

const DECAY: f64 = 0.01;

fn optimizer(states: States, no_decay: &[&str]) -> Optimizer {
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: DECAY };
    Optimizer { states, no_decay: no_decay.iter().map(|p| Pattern::new(*p)).collect(), ..adamw.into() }
}

fn no_decay(toy: &Toy) -> &'static [&'static str] {
    match toy.name {
        "llama" => &["*norm", "model.embed_tokens"],
        "codebooks" => &["*.bias", "*.fc2"],
        _ => &["*.bias", "*.text_embed"],
    }
}

/// The sessions of all ranks, and where these share parameters.
fn sessions(
    toy: &Toy,
    options: &Options,
    cut: Option<usize>,
) -> Result<(Vec<Session>, Option<Layout>), CompileError> {
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let layout = pipeline::layout(&mut s.clone(), forward.clone(), options)?;
    let pipeline = Pipeline::new(options, &FULL);
    let whole = pipeline.session(s, vec![forward], Vec::new())?;
    let sessions = match cut {
        Some(in_flight) => pipeline.parts(&whole, &Cut { starts: vec![1] }, in_flight)?.sessions,
        None => vec![whole],
    };
    Ok((sessions, layout))
}

/// The weight decay of each tensor that is updated, of every instruction that updates it.
fn decays(sessions: &[Session], layout: Option<&Layout>) -> BTreeMap<String, Vec<f64>> {
    let mut out = BTreeMap::<String, Vec<f64>>::new();
    for p in sessions.iter().flat_map(|s| &s.programs) {
        for instr in &p.instrs {
            let decay = match &instr.op {
                Op::AdamW(op) => op.weight_decay,
                Op::AdamWBf16(op) => op.weight_decay,
                Op::AdamW8bit(op) => op.weight_decay,
                _ => continue,
            };
            // An update stands in the scope of its parameter.
            let path = &*instr.origin.path;
            let state = &path[..path.rfind(".adamw").expect("the op's name")];
            let flat = layout.and_then(|l| l.flat(state));
            let names: Vec<&str> = match flat {
                Some(flat) => flat.tensors.iter().map(|t| &*t.name).collect(),
                None => vec![state],
            };
            names.into_iter().for_each(|name| out.entry(name.to_owned()).or_default().push(decay));
        }
    }
    out
}

#[test]
fn every_update_has_the_decay_of_its_parameter() {
    let base = |states| Options {
        optimizer: Some(optimizer(states, &[])),
        ema: true,
        ..Options::new(Blocks::First(1))
    };
    let shared = |strategy| Some(Sharding::new(strategy, 4).expect("whole groups"));
    let fp32 = || base(States::Fp32);
    let per_tensor = || Options { clip_per_tensor: true, ..fp32() };
    let waits = Offload { least: 0, near: 4, ..Offload::all() };
    let adapters = |toy: &Toy| Lora {
        rank: 2,
        alpha: 2.0,
        dropout: 0.0,
        rank_stabilised: false,
        targets: vec![Pattern::new(if toy.name.starts_with("frames") { "*.to_q" } else { "*.q_proj" })],
        also_train: vec![Pattern::new(if toy.name == "llama" { "*norm" } else { "*.bias" })],
    };
    for toy in toys() {
        let forms: [(&str, Options, Option<usize>); 14] = [
            ("fp32", fp32(), None),
            ("bf16 moments", base(States::Bf16), None),
            ("8-bit moments", base(States::EightBit), None),
            ("bf16 weights", Options { precision: Precision::Bf16Pure, ..fp32() }, None),
            ("bf16", Options { precision: Precision::Bf16Mixed, ..fp32() }, None),
            ("per tensor", per_tensor(), None),
            ("in backward", Options { update_in_backward: true, ..per_tensor() }, None),
            ("offload", Options { offload: waits, ..fp32() }, None),
            ("offload of 8 bits", Options { offload: waits, ..base(States::EightBit) }, None),
            ("adapters", Options { trained: Trained::Adapters(adapters(&toy)), ..fp32() }, None),
            ("full", Options { sharding: shared(Strategy::Full), ..fp32() }, None),
            ("hybrid", Options { sharding: shared(Strategy::Hybrid(2)), ..base(States::EightBit) }, None),
            ("model parallel", Options { placed: true, ..fp32() }, Some(1)),
            ("pipeline", Options { placed: true, offload: waits, ..fp32() }, Some(3)),
        ];
        for (name, options, cut) in forms {
            let what = format!("{}, {name}", toy.name);
            let states = options.optimizer.as_ref().expect("there is one").states;
            let optimizer = optimizer(states, no_decay(&toy));
            let without = sessions(&toy, &options, cut).expect("it compiles");
            let with = Options { optimizer: Some(optimizer.clone()), ..options };
            let with = sessions(&toy, &with, cut).expect("it compiles");
            let [without, with] = [without, with].map(|(s, layout)| decays(&s, layout.as_ref()));
            assert!(without.keys().eq(with.keys()) && !with.is_empty(), "{what}");
            assert!(without.values().flatten().all(|d| *d == DECAY), "{what}");
            for (parameter, decays) in &with {
                let want = if optimizer.no_decay.iter().any(|p| p.matches(parameter)) { 0.0 } else { DECAY };
                assert!(decays.iter().all(|d| *d == want), "{what}: {parameter} has {decays:?}");
            }
            assert!([0.0, DECAY].iter().all(|d| with.values().flatten().any(|x| x == d)), "{what}");
        }
    }
}

/// A large tensor on the host is updated part by part.
#[test]
fn every_part_of_an_update_has_the_decay_of_its_parameter() {
    let text = "
    state w.weight = parameter f32[200,256] trainable host
    state w.bias = parameter f32[50000] trainable host
    state grad.w.weight = gradient f32[200,256] host
    state grad.w.bias = gradient f32[50000] host";
    for states in [States::Fp32, States::Bf16, States::EightBit] {
        let mut s = parse(text).expect("the text parses");
        let p = optimizer::update(&mut s, &optimizer(states, &["*.bias"]));
        let p = pipeline::run(&mut s, p, &Offload { part: 1, ..Offload::default() }).expect("copies");
        s.programs = vec![p];
        let decays = decays(&[s], None);
        assert!(decays["w.weight"].len() > 1 && decays["w.weight"].iter().all(|d| *d == DECAY), "{decays:?}");
        assert!(decays["w.bias"].len() > 1 && decays["w.bias"].iter().all(|d| *d == 0.0), "{decays:?}");
    }
}

/// Where nothing decays, there is nothing to keep apart.
#[test]
fn flats_are_apart_only_where_decays_differ() {
    let [toy, ..] = toys();
    let flats = |no_decay: &[&str], weight_decay: f64| {
        let mut optimizer = optimizer(States::EightBit, no_decay);
        optimizer.rule = Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay });
        let sharding = Some(Sharding::new(Strategy::Full, 2).expect("two ranks"));
        let options = Options { sharding, optimizer: Some(optimizer), ..Options::new(Blocks::None) };
        let (_, layout) = sessions(&toy, &options, None).expect("it compiles");
        layout.expect("ranks share").flats
    };
    let plain = flats(&[], DECAY);
    assert_eq!(flats(no_decay(&toy), 0.0), plain);
    let apart = flats(no_decay(&toy), DECAY);
    assert!(apart.len() > plain.len());
    for flat in &apart {
        let undecayed = flat.name.contains(".undecayed_");
        let named = |name: &str| no_decay(&toy).iter().any(|p| Pattern::new(*p).matches(name));
        assert!(flat.tensors.iter().all(|t| named(&t.name) == undecayed), "{flat:?}");
        // What a flat says of its tensors holds for each.
        assert!(flat.tensors.iter().all(|t| (t.shape.len() > 1) == flat.matrices), "{flat:?}");
        assert!(flat.tensors.iter().all(|t| flat.small == (flat.matrices && t.shape.elements() < 4096)));
    }
}

#[test]
fn a_pattern_that_matches_nothing_is_refused() {
    let [toy, ..] = toys();
    let options = |pattern| Options {
        optimizer: Some(optimizer(States::Fp32, &["*.bias", pattern])),
        ..Options::new(Blocks::None)
    };
    let why = sessions(&toy, &options("*.biases"), None).expect_err("a typing error");
    assert!(matches!(&why, CompileError::NoMatch { pattern, .. } if pattern == "*.biases"), "{why}");
}
