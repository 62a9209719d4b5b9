//! Freezing and LoRA: what is trained decides which gradients there are, and not what they are.

use ambitus_compile::CompileError;
use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::lora::{A, Adapt, B, Lora, adapted_module};
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options, Trained};
use ambitus_compile::plan::plan;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::{Instr, Op, Phase, Session, StateKind};
use ambitus_testkit::owners;
use ambitus_testkit::paper::{FULL, Paper};
use ambitus_testkit::toys::{Toy, states, toys};
use ambitus_testkit::{Interp, Rounding, Tensor, Tensors};
use std::collections::{BTreeMap, HashSet};

/// Products in another order, in double precision.
const EXACT: f64 = 1e-11;

fn patterns(texts: &[&str]) -> Vec<Pattern> {
    texts.iter().map(|t| Pattern::new(*t)).collect()
}

/// Attention and feed-forward of each toy.
fn targets(toy: &Toy) -> Vec<Pattern> {
    patterns(match toy.name {
        "llama" => &["*.q_proj", "*.v_proj", "*.down_proj"],
        "codebooks" => &["*.q_proj", "*.out_proj", "*.fc1"],
        _ => &["*.to_q", "*.to_v", "*.to_out.0", "*.ff.ff.2"],
    })
}

fn lora(toy: &Toy) -> Lora {
    Lora {
        rank: 3,
        alpha: 4.5,
        dropout: 0.0,
        rank_stabilised: false,
        targets: targets(toy),
        also_train: Vec::new(),
    }
}

/// The micro-batch program of a toy, alone in its session.
fn compiled(toy: &Toy, trained: &Trained, checkpoint: Blocks, target: Paper) -> Session {
    let mut session = Session::default();
    let forward = (toy.model)(&mut session);
    let options = Options { trained: trained.clone(), ..Options::new(checkpoint) };
    let micro = pipeline::micro(&mut session, forward, options, &target);
    session.programs.push(micro.unwrap_or_else(|e| panic!("{}: {e}", toy.name)));
    session
}

/// Loss and gradients by parameter of one micro-batch on given parameters; `states` holds at least the session's.
fn run(
    session: &Session,
    batch: &Tensors,
    given: &Tensors,
    rounding: Rounding,
) -> (f64, BTreeMap<String, Vec<f64>>) {
    let mut inputs = batch.clone();
    inputs.insert("beta".to_owned(), Tensor::scalar(0.0));
    let mut all = states(session);
    all.iter_mut().for_each(|(name, t)| *t = given.get(name).unwrap_or(t).clone());
    let out = Interp::new(rounding).run(session, &session.programs[0], &inputs, &mut all);
    let loss = out.unwrap_or_else(|e| panic!("{e}"))["loss"].data[0];
    let gradients = session.states.iter().filter(|s| s.kind == StateKind::Gradient);
    let of = |name: &str| name.strip_prefix("grad.").expect("named after its parameter").to_owned();
    (loss, gradients.map(|s| (of(&s.name), all[&s.name].data.clone())).collect())
}

/// a `[m, k]` times b `[k, n]`, times s.
fn product(a: &[f64], b: &[f64], k: usize, s: f64) -> Vec<f64> {
    let (m, n) = (a.len() / k, b.len() / k);
    let at = |i: usize| s * (0..k).map(|j| a[i / n * k + j] * b[j * n + i % n]).sum::<f64>();
    (0..m * n).map(at).collect()
}

fn transposed(a: &[f64], cols: usize) -> Vec<f64> {
    let rows = a.len() / cols;
    (0..a.len()).map(|i| a[i % rows * cols + i / rows]).collect()
}

fn assert_close(what: &str, got: &[f64], want: &[f64]) {
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let off = norm(&mut got.iter().zip(want).map(|(a, b)| a - b));
    let size = norm(&mut want.iter().copied());
    assert_eq!(got.len(), want.len(), "{what}");
    assert!(size > 0.0 && off <= EXACT * size, "{what}: off by {:e}", off / size);
}

/// The dense program at W + s B A has the same loss, and its gradient of W gives the adapters' by the chain rule:
/// dB = s dW A^T, dA = s B^T dW.
#[test]
fn adapters_have_the_gradients_of_the_dense_program() {
    for toy in toys() {
        for rank_stabilised in [false, true] {
            let lora = Lora { rank_stabilised, ..lora(&toy) };
            let s = lora.scale();
            assert_eq!(s, if rank_stabilised { 4.5 / 3f64.sqrt() } else { 1.5 });
            // The constant of the program is the nearest f32.
            let s = f64::from(s as f32);
            let adapted = compiled(&toy, &Trained::Adapters(lora), Blocks::All, FULL);
            let given = states(&adapted);
            let (loss, gradients) = run(&adapted, &toy.whole, &given, Rounding::Exact);
            let dense = compiled(&toy, &Trained::All, Blocks::None, FULL);
            let mut merged = given.clone();
            let modules: Vec<&str> = gradients.keys().filter_map(|n| n.strip_suffix(A)).collect();
            for module in &modules {
                let (a, b) = (&given[&format!("{module}{A}")], &given[&format!("{module}{B}")]);
                let added = product(&b.data, &a.data, 3, s);
                let w = merged.get_mut(&format!("{module}.weight")).expect("the adapted weight");
                w.data.iter_mut().zip(added).for_each(|(w, d)| *w += d);
            }
            let (dense_loss, dense_gradients) = run(&dense, &toy.whole, &merged, Rounding::Exact);
            assert!((loss - dense_loss).abs() <= EXACT * loss, "{}: {loss} or {dense_loss}", toy.name);
            assert_eq!(gradients.len(), 2 * modules.len());
            for module in modules {
                let (a, b) = (&given[&format!("{module}{A}")].data, &given[&format!("{module}{B}")].data);
                let dw = &dense_gradients[&format!("{module}.weight")];
                let inner = a.len() / 3;
                let db = product(dw, &transposed(a, inner), inner, s);
                let da = product(&transposed(b, 3), dw, dw.len() / inner, s);
                assert_close(
                    &format!("{}: dB of {module}", toy.name),
                    &gradients[&format!("{module}{B}")],
                    &db,
                );
                assert_close(
                    &format!("{}: dA of {module}", toy.name),
                    &gradients[&format!("{module}{A}")],
                    &da,
                );
            }
        }
    }
}

/// The shape of every weight that is adapted.
fn adapted_shapes(session: &Session) -> Vec<Vec<usize>> {
    let parameters = session.states.iter().filter(|s| s.kind == StateKind::Parameter);
    let modules = parameters.filter_map(|s| adapted_module(&s.name));
    let weights = modules.map(|m| session.state(&format!("{m}.weight")).expect("the adapted weight"));
    weights.map(|id| session.states[id.index()].ty.shape.to_vec()).collect()
}

#[test]
fn only_adapters_have_gradients_and_none_is_dense() {
    for toy in toys() {
        for target in [FULL, Paper { fused: false, shares: true }] {
            let mut session = compiled(&toy, &Trained::Adapters(lora(&toy)), Blocks::First(1), target);
            let micro = &session.programs[0];
            let (forward, backward): (Vec<_>, Vec<_>) =
                micro.instrs.iter().partition(|i| i.origin.phase == Phase::Forward);
            let types = |instrs: Vec<&Instr>| -> HashSet<Vec<usize>> {
                instrs.iter().flat_map(|i| &i.outputs).map(|v| micro.ty(*v).shape.to_vec()).collect()
            };
            // A weight's shape that activations have as well says nothing.
            let forward = types(forward);
            let dense: Vec<_> =
                adapted_shapes(&session).into_iter().filter(|s| !forward.contains(s)).collect();
            assert!(!dense.is_empty(), "{}", toy.name);
            let formed = types(backward);
            assert!(dense.iter().all(|s| !formed.contains(s)), "{}: {dense:?} in {formed:?}", toy.name);
            let adamw = Optimizer::from(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.0 });
            let update = optimizer::update(&mut session, &adamw);
            let ema = optimizer::ema(&mut session);
            session.programs.extend([update, ema]);
            for s in session.states.iter().filter(|s| s.kind != StateKind::Counter) {
                let adapter = adapted_module(&s.name).is_some();
                assert!(adapter || s.kind == StateKind::Parameter, "{}: {}", toy.name, s.name);
                assert_eq!(
                    adapter && s.kind == StateKind::Parameter,
                    s.trainable,
                    "{}: {}",
                    toy.name,
                    s.name
                );
            }
            owners::check(&plan(session, &target, 1), &target);
        }
    }
}

#[test]
fn an_adapter_of_zeros_changes_no_bit() {
    for toy in toys() {
        let adapted = compiled(&toy, &Trained::Adapters(lora(&toy)), Blocks::None, FULL);
        let base = compiled(&toy, &Trained::All, Blocks::None, FULL);
        let mut given = states(&adapted);
        given.iter_mut().filter(|(name, _)| name.ends_with(B)).for_each(|(_, t)| t.data.fill(0.0));
        let (with, gradients) = run(&adapted, &toy.whole, &given, Rounding::ToType);
        let (without, _) = run(&base, &toy.whole, &given, Rounding::ToType);
        assert_eq!(with.to_bits(), without.to_bits(), "{}", toy.name);
        // At the start only B moves: A has no gradient through a B of zeros.
        for (name, g) in gradients {
            assert_eq!(g.iter().all(|x| *x == 0.0), name.ends_with(A), "{}: {name}", toy.name);
        }
    }
}

#[test]
fn checkpointing_adapters_changes_no_bit() {
    for toy in toys() {
        for dropout in [0.0, 0.25] {
            if dropout > 0.0 && !toy.whole.contains_key("segments") {
                continue;
            }
            let trained = Trained::Adapters(Lora { dropout, ..lora(&toy) });
            let with = |blocks| {
                let session = compiled(&toy, &trained, blocks, FULL);
                let given = states(&session);
                let mut inputs = toy.whole.clone();
                let micro = &session.programs[0];
                if let Some(keys) = micro.input("keys") {
                    inputs.entry("keys".to_owned()).or_insert_with(|| Tensor::full(micro.ty(keys), 7.0));
                }
                run(&session, &inputs, &given, Rounding::ToType)
            };
            let none = with(Blocks::None);
            for blocks in [Blocks::First(1), Blocks::All] {
                assert_eq!(none, with(blocks.clone()), "{}: {blocks:?}, dropout {dropout}", toy.name);
            }
        }
    }
}

/// Clip 1 alone and beside clip 0 drops the same elements: its random keys and its place in it decide, not the batch.
#[test]
fn dropout_of_adapters_does_not_depend_on_packing() {
    let toy = &toys()[0];
    let with = |dropout| {
        let targets = patterns(&["*.to_q", "*.attn_norm.linear"]);
        Trained::Adapters(Lora { dropout, targets, ..lora(toy) })
    };
    let trained = with(0.5);
    let session = compiled(toy, &trained, Blocks::None, FULL);
    let given = states(&session);
    let (whole, of_whole) = run(&session, &toy.whole, &given, Rounding::Exact);
    let halves = toy.halves.each_ref().map(|half| run(&session, half, &given, Rounding::Exact));
    assert!((halves[0].0 + halves[1].0 - whole).abs() <= EXACT * whole);
    for (name, g) in &of_whole {
        let sum: Vec<f64> = halves[0].1[name].iter().zip(&halves[1].1[name]).map(|(a, b)| a + b).collect();
        assert_close(name, &sum, g);
    }
    // It drops at all, and only in training.
    let plain = compiled(toy, &with(0.0), Blocks::None, FULL);
    let (loss, _) = run(&plain, &toy.whole, &given, Rounding::Exact);
    assert!((loss - whole).abs() > 1e-6 * loss);
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let Trained::Adapters(lora) = &trained else { panic!("adapters") };
    let evaluated =
        pipeline::run(&mut s, forward, &Adapt { lora, training: false }).expect("the patterns fit");
    assert!(
        !evaluated.instrs.iter().any(|i| matches!(i.op, Op::Dropout(_)) && i.origin.path.contains(".lora."))
    );
}

#[test]
fn frozen_tensors_have_no_gradient_and_the_others_the_same() {
    for toy in toys() {
        let freeze: &[&str] = match toy.name {
            "llama" => &["*.mlp", "*norm*"],
            "codebooks" => &["*.fc1", "*norm*"],
            _ => &["*.text_embed", "*.attn_norm", "*.to_k"],
        };
        let frozen = patterns(freeze);
        let session = compiled(&toy, &Trained::Except(frozen.clone()), Blocks::All, FULL);
        let all = compiled(&toy, &Trained::All, Blocks::All, FULL);
        let given = states(&all);
        let (loss, some) = run(&session, &toy.whole, &given, Rounding::Exact);
        let (same, every) = run(&all, &toy.whole, &given, Rounding::Exact);
        assert_eq!(loss, same);
        let is_frozen = |name: &str| frozen.iter().any(|p| p.matches(name));
        let kept: Vec<&String> = every.keys().filter(|n| !is_frozen(n)).collect();
        assert_eq!(some.keys().collect::<Vec<_>>(), kept, "{}", toy.name);
        assert!(kept.len() < every.len(), "{}", toy.name);
        for (name, g) in &some {
            assert_close(&format!("{}: {name}", toy.name), g, &every[name]);
        }
        let bytes = |s: Session| {
            let planned = plan(s, &FULL, 1);
            (planned.state_bytes, planned.transient_bytes)
        };
        let (less, more) = (bytes(session), bytes(all));
        assert!(less.0 < more.0 && less.1 <= more.1, "{}: {less:?} of {more:?}", toy.name);
    }
}

/// A frozen head forms no gradient `[V, D]`, which no pass could take out of its op.
#[test]
fn a_frozen_head_forms_no_gradient() {
    let toy = toys().into_iter().find(|t| t.name == "llama").expect("a toy");
    let has = |trained: &Trained| {
        let session = compiled(&toy, trained, Blocks::None, FULL);
        let heads = session.programs[0].instrs.iter().filter_map(|i| match &i.op {
            Op::LinearCrossEntropyGrad(op) => Some((op.dw, i.outputs.len())),
            _ => None,
        });
        heads.collect::<Vec<_>>()
    };
    assert_eq!(has(&Trained::All), [(true, 3)]);
    assert_eq!(has(&Trained::Adapters(lora(&toy))), [(false, 2)]);
}

/// With attention and feed-forward adapted and everything else frozen, no block keeps its branches' results: only the
/// gradients of the frozen gates would read them.
#[test]
fn frozen_gates_keep_no_branch() {
    let toy = &toys()[0];
    let session = compiled(toy, &Trained::Adapters(lora(toy)), Blocks::None, FULL);
    let micro = &session.programs[0];
    assert!(micro.instrs.iter().all(|i| !matches!(i.op, Op::GatedResidualGrad(_))));
}

#[test]
fn what_cannot_be_trained_is_said() {
    let toy = &toys()[0];
    let choose = |trained: &Trained| {
        let mut session = Session::default();
        let forward = (toy.model)(&mut session);
        let options = Options { trained: trained.clone(), ..Options::new(Blocks::None) };
        pipeline::micro(&mut session, forward, options, &FULL).map(|_| ()).expect_err("refused")
    };
    let CompileError::NoMatch { pattern, names } = choose(&Trained::Except(patterns(&["*.to_q", "*.to_x"])))
    else {
        panic!("another error");
    };
    assert_eq!(pattern, "*.to_x");
    assert!(names.contains("transformer.transformer_blocks.*.attn.to_q,"), "{names}");
    assert_eq!(choose(&Trained::Except(patterns(&["*"]))), CompileError::NothingTrains);
    let with = |change: &dyn Fn(&mut Lora)| {
        let mut lora = lora(toy);
        change(&mut lora);
        choose(&Trained::Adapters(lora)).to_string()
    };
    // A norm is no linear layer.
    assert!(with(&|l| l.targets = patterns(&["*.q_norm"])).starts_with("`*.q_norm` matches no"));
    assert!(with(&|l| l.also_train = patterns(&["nothing"])).starts_with("`nothing` matches no"));
    let narrow = with(&|l| l.rank = 9);
    assert!(
        narrow.contains(
            "rank 9 does not suit transformer.transformer_blocks.0.attn.to_q.weight [8,16]: take 1 to 8"
        ),
        "{narrow}"
    );
    assert!(with(&|l| l.rank = 0).starts_with("rank 0 does not suit"));
    let both = with(&|l| l.also_train = patterns(&["*.to_q"]));
    assert!(both.contains("has an adapter, and `*.to_q` would train it as well"), "{both}");
}
