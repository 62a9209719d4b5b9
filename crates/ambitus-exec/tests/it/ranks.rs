//! Updates of toy models on several ranks in one process, and on one without sharding.

use crate::steps::step;
use ambitus_comm::local::{self, LocalRank};
use ambitus_compile::optimizer::{Optimizer, Rule, SEED, States};
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Layout, Sharding};
use ambitus_compile::passes::unroll;
use ambitus_compile::pipeline::{self, Options, Pipeline, Trained};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{AsyncMode, CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::{ExecError, Executor};
use ambitus_ir::ops::collective::Mesh;
use ambitus_ir::ops::lion::Lion;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::PlannedSession;
use ambitus_ir::{Session, StateId, StateKind};
use ambitus_testkit::toys::{Toy, states};
use ambitus_testkit::{Tensor, Tensors};
use std::collections::BTreeMap;
use std::sync::Arc;

pub const ADAMW: Optimizer = Optimizer {
    rule: Rule::AdamW(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};

pub const LION: Optimizer = Optimizer {
    rule: Rule::Lion(Lion { beta1: 0.9, beta2: 0.99, weight_decay: 0.05 }),
    own_betas: Vec::new(),
    no_decay: Vec::new(),
    states: States::Fp32,
};

/// What decides a session.
#[derive(Clone)]
pub struct Form {
    pub sharding: Option<Sharding>,
    pub checkpoint: Blocks,
    pub precision: Precision,
    pub trained: Trained,
    pub optimizer: Optimizer,
    pub offload: Offload,
    pub copies: AsyncMode,
}

impl Default for Form {
    fn default() -> Form {
        Form {
            sharding: None,
            checkpoint: Blocks::None,
            precision: Precision::Fp32,
            trained: Trained::All,
            optimizer: ADAMW,
            offload: Offload::default(),
            copies: AsyncMode::Early,
        }
    }
}

/// Bits by name: losses (`loss.0`, ..), gradients of the first update, weights and moments after two, norms.
pub type Outcome = BTreeMap<String, Vec<f32>>;

/// The session of a form, planned.
pub fn planned(toy: &Toy, form: &Form) -> (PlannedSession, Option<Layout>) {
    let (s, layout) = session(toy, form);
    (plan(s, &CpuTarget::new(1), 1), layout)
}

/// The session of a form.
pub fn session(toy: &Toy, form: &Form) -> (Session, Option<Layout>) {
    let target = CpuTarget::new(1);
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let mut evaluate = forward.clone();
    "evaluate".clone_into(&mut evaluate.name);
    let options = Options {
        trained: form.trained.clone(),
        precision: form.precision,
        sharding: form.sharding,
        optimizer: Some(form.optimizer.clone()),
        offload: form.offload,
        ..Options::new(form.checkpoint.clone())
    };
    let layout = pipeline::layout(&mut s.clone(), forward.clone(), &options).expect("patterns match");
    let s = Pipeline::new(&options, &target).session(
        s,
        vec![forward],
        vec![(evaluate, "evaluate_ema".to_owned())],
    );
    (s.expect("the model is differentiable"), layout)
}

/// The weights that every form starts from, by tensor.
pub fn weights(toy: &Toy, form: &Form) -> BTreeMap<String, Vec<f32>> {
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let options = Options { trained: form.trained.clone(), ..Options::new(Blocks::None) };
    pipeline::layout(&mut s, forward, &options).expect("patterns match");
    states(&s).into_iter().map(|(name, t)| (name, t.to_f32())).collect()
}

/// One update's micro-batches: more than most worlds have ranks, fewer than one has.
pub fn batches(toy: &Toy) -> Vec<Tensors> {
    let [a, b] = &toy.halves;
    vec![a.clone(), b.clone(), a.clone(), b.clone(), b.clone()]
}

/// A batch without clips: computes exactly zero.
pub fn empty(toy: &Toy) -> Tensors {
    let mut batch = toy.halves[0].clone();
    for (name, t) in &mut batch {
        match name.split('.').next() {
            Some("norm") => {}
            Some("labels") => t.data.fill(-1.0),
            _ => t.data.fill(0.0),
        }
    }
    batch
}

fn scalar(exec: &CpuExecutor, program: &str, output: &str) -> f32 {
    let mut x = [0.0];
    exec.read_f32(program, output, 0, &mut x).expect("an output");
    x[0]
}

/// What a rank holds of each state, by name.
pub type Held = BTreeMap<String, Vec<f32>>;

fn read(exec: &CpuExecutor, kind: impl Fn(StateKind) -> bool) -> Held {
    let states = exec.planned().session.states.clone();
    let picked = states.iter().enumerate().filter(|(_, s)| kind(s.kind));
    let one = |(i, s): (usize, &ambitus_ir::StateDecl)| {
        let mut data = vec![0.0; s.ty.shape.elements()];
        exec.read_state(StateId(i as u32), &mut data).expect("a state");
        (s.name.clone(), data)
    };
    picked.map(one).collect()
}

/// Fills the states of a rank.
pub fn fill(
    exec: &mut CpuExecutor,
    layout: Option<&Layout>,
    rank: usize,
    weights: &BTreeMap<String, Vec<f32>>,
) {
    for (i, s) in exec.planned().session.states.clone().iter().enumerate() {
        let n = s.ty.shape.elements();
        let flat = layout.and_then(|l| Some((l, l.flat(&s.name)?)));
        let data = match (s.kind, flat) {
            (StateKind::Gradient, _) => vec![f32::NAN; n],
            (StateKind::Parameter, Some((layout, flat))) => {
                let mut whole = vec![0.0; flat.elements];
                flat.tensors.iter().for_each(|t| whole[t.range()].copy_from_slice(&weights[&t.name]));
                whole[flat.held(layout.mesh(), rank)].to_vec()
            }
            (StateKind::Parameter, None) => weights[&s.name].clone(),
            _ if s.name == "loss_scale" => vec![1024.0; n],
            _ => vec![0.0; n],
        };
        exec.write_state(StateId(i as u32), &data).expect("a state");
    }
}

/// What two updates came to: losses with norms and flags, gradients of the first, weights and moments.
pub type Ran = (Vec<f32>, Held, Held);

/// Runs two updates on one rank; `rank` of `ranks` takes every `ranks`-th micro-batch.
pub fn updates(
    exec: &mut CpuExecutor,
    toy: &Toy,
    (rank, ranks): (usize, usize),
    mesh: Option<Mesh>,
) -> Result<Ran, ExecError> {
    let batches = batches(toy);
    let empty = empty(toy);
    let (ranked, shard) = (mesh.is_some(), mesh.map_or(0, |m| m.shard_of(rank)));
    let (mut losses, mut grads) = (Vec::new(), Held::new());
    for update in 0..2 {
        let mut loss = 0.0;
        let unrolled = exec.planned().program("micro").is_some_and(|p| p.program.output("loss@0").is_some());
        if unrolled {
            let named = |k: usize, t: &Tensors| {
                let one = |(name, t): (&String, &Tensor)| (unroll::of(name, k), t.clone());
                t.iter().map(one).collect::<Vec<_>>()
            };
            let mut given: Tensors = batches.iter().enumerate().flat_map(|(k, t)| named(k, t)).collect();
            given.insert("beta".to_owned(), Tensor::scalar(0.0));
            step(exec, "micro", &given)?;
            loss = (0..batches.len()).fold(0.0, |sum, k| sum + scalar(exec, "micro", &unroll::of("loss", k)));
        }
        for k in 0..if unrolled { 0 } else { batches.len().div_ceil(ranks) } {
            let mut given = batches.get(k * ranks + rank).unwrap_or(&empty).clone();
            given.insert("beta".to_owned(), Tensor::scalar(if k == 0 { 0.0 } else { 1.0 }));
            step(exec, "micro", &given)?;
            loss += scalar(exec, "micro", "loss");
        }
        losses.push(loss);
        if update == 0 {
            grads = read(exec, |k| k == StateKind::Gradient);
        }
        let mut given = Tensors::new();
        given.insert("lr".to_owned(), Tensor::scalar(1e-2));
        given.insert("clip".to_owned(), Tensor::scalar(0.5));
        let key = [7, update, shard as i32];
        let words = if ranked { 3 } else { 2 };
        given.insert(SEED.to_owned(), Tensor::i32(&key[..words]));
        step(exec, "update", &given)?;
        losses.push(scalar(exec, "update", "grad_norm"));
        losses.push(scalar(exec, "update", "apply"));
    }
    step(exec, "evaluate", batches.get(rank).unwrap_or(&empty))?;
    losses.push(scalar(exec, "evaluate", "loss"));
    Ok((losses, grads, read(exec, |k| matches!(k, StateKind::Parameter | StateKind::Optimizer))))
}

/// Two updates without ranks.
pub fn alone(toy: &Toy, form: &Form) -> Outcome {
    let (planned, _) = planned(toy, form);
    let options = CpuOptions { copies: form.copies, ..CpuOptions::from(1) };
    let mut exec = CpuExecutor::open(planned, options).expect("a small arena");
    fill(&mut exec, None, 0, &weights(toy, form));
    named(updates(&mut exec, toy, (0, 1), None).expect("the updates run"))
}

/// By name.
pub fn named((losses, grads, rest): Ran) -> Outcome {
    let one = |(i, x): (usize, f32)| (format!("loss.{i}"), vec![x]);
    losses.into_iter().enumerate().map(one).chain(grads).chain(rest).collect()
}

/// Runs the updates on the ranks of the form's mesh, each with its own arena.
pub fn together(toy: &Toy, form: &Form) -> Outcome {
    let (planned, layout) = planned(toy, form);
    let (planned, layout) = (Arc::new(planned), layout.expect("a sharded form"));
    let mesh = layout.mesh();
    let weights = weights(toy, form);
    let one = |end: Arc<LocalRank>| {
        let rank = ambitus_comm::Communicator::rank(&*end);
        let options = CpuOptions { copies: form.copies, comm: Some(end), ..CpuOptions::from(1) };
        let mut exec = CpuExecutor::open(planned.clone(), options)?;
        assert_eq!(exec.arena_bytes(), planned.arena_bytes(), "used is planned");
        fill(&mut exec, Some(&layout), rank, &weights);
        updates(&mut exec, toy, (rank, mesh.ranks), Some(mesh))
    };
    let ranks = local::run(mesh.ranks, one).unwrap_or_else(|e| panic!("{}: {e:?}", toy.name));
    let mut out = Outcome::new();
    let (losses, grads, rest) = (
        ranks.iter().map(|r| &r.0).collect::<Vec<_>>(),
        ranks.iter().map(|r| &r.1).collect::<Vec<_>>(),
        ranks.iter().map(|r| &r.2).collect::<Vec<_>>(),
    );
    for (i, of_rank) in losses[0].iter().enumerate() {
        // Losses add up; norms and flags are every rank's.
        let adds = i % 3 == 0;
        let sum = losses.iter().map(|l| l[i]).reduce(|a, b| a + b).expect("a rank");
        assert!(adds || losses.iter().all(|l| l[i].to_bits() == of_rank.to_bits()), "{i}: {losses:?}");
        out.insert(format!("loss.{i}"), vec![if adds { sum } else { *of_rank }]);
    }
    for held in [grads, rest] {
        whole(&layout, &held, &mut out);
    }
    out
}

/// Puts what the ranks hold together, by tensor; replicas must agree.
fn whole(layout: &Layout, ranks: &[&Held], out: &mut Outcome) {
    let mesh = layout.mesh();
    for (name, held) in ranks[0] {
        for (rank, other) in ranks.iter().enumerate() {
            let first = &ranks[mesh.shard_of(rank)][name];
            assert_eq!(bits(&other[name]), bits(first), "{name} of rank {rank} is not its replica's");
        }
        let of = |prefix: &str| Some((prefix.to_owned(), layout.flat(name.strip_prefix(prefix)?)?));
        let all: Vec<f32> = ranks[..mesh.shard].iter().flat_map(|r| r[name].clone()).collect();
        if name.contains("_scale.") {
            out.insert(name.clone(), all);
            continue;
        }
        let known = ["", "grad.", "exp_avg.", "exp_avg_sq."].iter().find_map(|p| of(p));
        let Some((prefix, flat)) = known else {
            out.insert(name.clone(), held.clone());
            continue;
        };
        let mut pad = all.clone();
        for t in &flat.tensors {
            out.insert(format!("{prefix}{}", t.name), all[t.range()].to_vec());
            pad[t.range()].fill(0.0);
        }
        // Codes of moments have another zero.
        let moments = prefix.starts_with("exp_avg");
        assert!(moments || pad.iter().all(|x| *x == 0.0), "{name}: pads stay zero");
    }
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

/// Asserts the same names and bits.
#[track_caller]
pub fn assert_same(what: &str, have: &Outcome, want: &Outcome) {
    assert_eq!(have.keys().collect::<Vec<_>>(), want.keys().collect::<Vec<_>>(), "{what}");
    for (name, want) in want {
        assert!(bits(&have[name]) == bits(want), "{what}: {name} has other bits");
    }
}

/// Asserts that losses and first gradients are those of another order of sums.
#[track_caller]
pub fn assert_reordered(what: &str, have: &Outcome, want: &Outcome) {
    const ALL: f64 = 1e-6;
    const EACH: f64 = 5e-6;
    let length = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let loss = |o: &Outcome| f64::from(o["loss.0"][0]);
    assert!((loss(have) - loss(want)).abs() <= ALL * loss(want).abs(), "{what}: loss");
    let grads = || want.iter().filter(|(name, _)| name.starts_with("grad."));
    let off = |name: &str| {
        have[name].iter().zip(&want[name]).map(|(x, y)| f64::from(*x) - f64::from(*y)).collect::<Vec<f64>>()
    };
    let all = length(&mut grads().flat_map(|(_, g)| g.iter().map(|x| f64::from(*x))));
    let count: usize = grads().map(|(_, g)| g.len()).sum();
    let mut every = Vec::new();
    for (name, g) in grads() {
        let own = length(&mut g.iter().map(|x| f64::from(*x)));
        // Some gradients are mathematically zero.
        let floor = 1e-3 * (g.len() as f64 / count as f64).sqrt() * all;
        let d = off(name);
        let share = length(&mut d.iter().copied()) / own.max(floor);
        assert!(share <= EACH, "{what}: {name} is off by {share:.1e}");
        every.extend(d);
    }
    let share = length(&mut every.into_iter()) / all;
    assert!(share <= ALL, "{what}: all gradients are off by {share:.1e}");
}
