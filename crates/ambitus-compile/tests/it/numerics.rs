//! What a pass declares to do to numbers is the most that it does: sessions of toy models with each pass and without it, over two
//! updates in the reference interpreter, on one rank and on two.

use ambitus_compile::optimizer::{Optimizer, SEED};
use ambitus_compile::passes::Numerics;
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::offload::{Kept, Offload};
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::place::Cut;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::{LOSS_SCALE, Precision};
use ambitus_compile::passes::shard::{Backward, Layout, Prefetch, Sharding, Strategy};
use ambitus_compile::passes::unroll;
use ambitus_compile::pipeline::{self, Decided, Options, Pipeline, SEVERAL, Trained};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::target::Target;
use ambitus_ir::{DType, Op, Session, StateKind, TensorType};
use ambitus_testkit::paper::{FULL, Paper};
use ambitus_testkit::toys::{Toy, states, toys};
use ambitus_testkit::{Interp, Rounding, Tensor, Tensors, World};
use expect_test::expect;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Sums in another order, in fp32: the loss and all gradients together, relative, and each gradient.
const REORDERED: f64 = 1e-6;
const REORDERED_EACH: f64 = 5e-6;
/// What gradients of 16-bit activations are multiplied by.
const SCALE: f64 = 1024.0;
const UPDATES: usize = 2;
/// The loss of the first update.
const LOSS: &str = "micro loss 0";
/// The norm of its gradients, by which it is clipped.
const NORM: &str = "update grad_norm 0";

const BARE: Paper = Paper { fused: false, shares: true };

/// A target whose kernels take f32 only.
struct Wide;

impl Target for Wide {
    fn name(&self) -> &str {
        "wide"
    }
    fn has_kernel(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> bool {
        let wide = x.iter().chain(y).all(|t| !t.dtype.is_float() || t.dtype == DType::F32);
        wide || matches!(op, Op::Cast(_)) || !op.def().donates().is_empty()
    }
    fn workspace(&self, _: &Op, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }
    fn shares(&self, _: &Op, _: usize, _: usize) -> bool {
        true
    }
    fn seconds(&self, op: &Op, x: &[TensorType], y: &[TensorType]) -> f64 {
        FULL.seconds(op, x, y)
    }
}

/// What a session is made from.
#[derive(Clone)]
struct Form {
    name: &'static str,
    options: Options,
    target: &'static dyn Target,
    /// Where it is cut, and micro-batches at a time.
    placed: Option<(Cut, usize)>,
}

fn forms(toy: &Toy) -> Vec<Form> {
    let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 };
    let optimizer = Some(Optimizer::from(adamw));
    let base = || Options { optimizer: optimizer.clone(), ema: true, ..Options::new(Blocks::First(1)) };
    let form = |name, options| Form { name, options, target: &FULL, placed: None };
    let sharded = |strategy, prefetch| {
        let sharding = Sharding::new(strategy, 2).expect("whole groups");
        Options { sharding: Some(Sharding { prefetch, ..sharding }), ..base() }
    };
    let ahead = Prefetch { forward: true, backward: Backward::Pre };
    let some: &[&str] = match toy.name {
        "llama" => &["*.mlp", "*.q_proj"],
        "codebooks" => &["*.fc1", "*.q_proj"],
        _ => &["*.ff", "*.to_q"],
    };
    let some: Vec<Pattern> = some.iter().map(|name| Pattern::new(*name)).collect();
    let lora = Lora {
        rank: 2,
        alpha: 3.0,
        dropout: 0.0,
        rank_stabilised: false,
        targets: some[1..].to_vec(),
        also_train: Vec::new(),
    };
    let waits = |activations| Offload { least: 0, near: 4, activations, ..Offload::all() };
    let per_tensor = Options { clip_per_tensor: true, update_in_backward: true, ..base() };
    let placed = |name, offload, in_flight| Form {
        placed: Some((Cut { starts: vec![1] }, in_flight)),
        ..form(name, Options { placed: true, offload, ..base() })
    };
    vec![
        form("fp32", base()),
        Form { target: &BARE, ..form("a target without fused kernels", base()) },
        form("bf16-mixed", Options { precision: Precision::Bf16Mixed, ..base() }),
        Form { target: &Wide, ..form("f32 kernels", Options { precision: Precision::Bf16Mixed, ..base() }) },
        form("fp16-mixed", Options { precision: Precision::Fp16Mixed, ..base() }),
        form("bf16-pure", Options { precision: Precision::Bf16Pure, ..base() }),
        form("freeze", Options { trained: Trained::Except(some), ..base() }),
        form("lora", Options { trained: Trained::Adapters(lora), ..base() }),
        form("update in backward", per_tensor),
        form("offload", Options { offload: waits(Kept::All), ..base() }),
        form("full shards", sharded(Strategy::Full, ahead)),
        form("replicas", sharded(Strategy::None, Prefetch::default())),
        placed("parts", waits(Kept::Blocks), 1),
        placed("pipeline", Offload::default(), 2),
    ]
}

/// Every pass of a form's list, with what it declares.
fn passes(toy: &Toy, form: &Form) -> BTreeMap<&'static str, Numerics> {
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let layout = pipeline::layout(&mut s, forward, &form.options).expect("patterns match");
    let cut = form.placed.as_ref().map(|(cut, n)| (cut, *n));
    let pipeline = Pipeline::new(&form.options, form.target);
    let list = pipeline.list(Decided { layout: layout.as_ref(), cut, ..Decided::default() });
    list.steps().map(|step| (step.name(), step.numerics())).collect()
}

/// A form with a pass, where that is another, and without it.
fn with_and_without(form: &Form, pass: &'static str) -> (Option<Form>, Form, Option<&'static str>) {
    let changed = |change: &dyn Fn(&mut Options)| {
        let mut form = form.clone();
        change(&mut form.options);
        form
    };
    match pass {
        // One rank, which has everything.
        "shard" => (None, changed(&|o| o.sharding = None), None),
        // Gradients are applied by an update of their own.
        "in_backward" => (None, changed(&|o| o.update_in_backward = false), None),
        // Without gradients in states there is nothing to update.
        "autodiff" | "accumulate" => {
            let form = changed(&|o| (o.optimizer, o.update_in_backward) = (None, false));
            (Some(form.clone()), form, Some(pass))
        }
        _ => (None, form.clone(), Some(pass)),
    }
}

/// Values by name: losses and norms, gradients of the first update, weights, moments and averages at the end.
type Outcome = BTreeMap<String, Vec<f64>>;

/// The sessions of the ranks.
fn sessions(toy: &Toy, form: &Form, without: Option<&str>) -> (Vec<Session>, Option<Layout>) {
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let mut evaluate = forward.clone();
    "evaluate".clone_into(&mut evaluate.name);
    let layout = pipeline::layout(&mut s.clone(), forward.clone(), &form.options).expect("patterns match");
    let pipeline = Pipeline::new(&form.options, form.target);
    let pipeline = without.map_or(pipeline, |pass| pipeline.without(pass));
    let s = pipeline.session(s, vec![forward], vec![(evaluate, "evaluate_ema".to_owned())]);
    let s = s.unwrap_or_else(|e| panic!("{}, {}: {e}", toy.name, form.name));
    let ranks = layout.as_ref().map_or(1, |l| l.mesh().ranks);
    let sessions = match &form.placed {
        Some((cut, n)) => pipeline.parts(&s, cut, *n).expect("the session is whole").sessions,
        None => vec![s; ranks],
    };
    (sessions, layout)
}

/// The weights that every form starts from, by tensor.
fn weights(toy: &Toy, form: &Form) -> Tensors {
    let mut s = Session::default();
    let forward = (toy.model)(&mut s);
    let options = Options { trained: form.options.trained.clone(), ..Options::new(Blocks::None) };
    pipeline::layout(&mut s, forward, &options).expect("patterns match");
    states(&s)
}

/// What a rank begins with.
fn start(s: &Session, layout: Option<&Layout>, rank: usize, weights: &Tensors) -> Tensors {
    let one = |d: &ambitus_ir::StateDecl| {
        let flat = layout.and_then(|l| Some((l, l.flat(&d.name)?)));
        let mut t = match (d.kind, flat) {
            (StateKind::Parameter, Some((layout, flat))) => {
                let mut whole = vec![0.0; flat.elements];
                flat.tensors.iter().for_each(|t| whole[t.range()].copy_from_slice(&weights[&t.name].data));
                Tensor::new(d.ty, whole[flat.held(layout.mesh(), rank)].to_vec())
            }
            (StateKind::Parameter, None) => Tensor::new(d.ty, weights[&d.name].data.clone()),
            (StateKind::Gradient, _) => Tensor::full(d.ty, f64::NAN),
            _ => Tensor::full(d.ty, if d.name == LOSS_SCALE { SCALE } else { 0.0 }),
        };
        t.round();
        (d.name.clone(), t)
    };
    s.states.iter().map(one).collect()
}

/// One rank of a run.
struct Rank<'a> {
    session: &'a Session,
    interp: Interp,
    states: Tensors,
    out: Outcome,
}

impl Rank<'_> {
    /// Runs a program, if there is one; what it gives out is added to what is there under the name.
    fn step(&mut self, program: &str, inputs: &Tensors, update: usize) {
        let Some(p) = self.session.program(program) else { return };
        let out = self.interp.run(self.session, p, inputs, &mut self.states);
        let program = if program == SEVERAL { "micro" } else { program };
        for (name, t) in out.unwrap_or_else(|e| panic!("{program}: {e}")) {
            let name = name.split('@').next().unwrap_or_default();
            let name = match name.starts_with("grad.") {
                true if update > 0 => continue,
                true => name.to_owned(),
                false => format!("{program} {name} {update}"),
            };
            let sum = self.out.entry(name).or_insert_with(|| vec![0.0; t.data.len()]);
            sum.iter_mut().zip(&t.data).for_each(|(sum, x)| *sum = f64::from((*sum + x) as f32));
        }
    }

    fn keep(&mut self, kind: impl Fn(StateKind) -> bool) {
        for d in self.session.states.iter().filter(|d| kind(d.kind)) {
            self.out.insert(d.name.clone(), self.states[&d.name].data.clone());
        }
    }

    /// Updates of these micro-batches, in one program of all where there is one.
    fn updates(mut self, batches: &[Tensors], shard: Option<usize>) -> Outcome {
        for update in 0..UPDATES {
            if self.session.program(SEVERAL).is_some() {
                let named = |(k, batch): (usize, &Tensors)| {
                    let one = |(name, t): (&String, &Tensor)| (unroll::of(name, k), t.clone());
                    batch.iter().map(one).collect::<Vec<_>>()
                };
                let mut inputs: Tensors = batches.iter().enumerate().flat_map(named).collect();
                inputs.insert("beta".to_owned(), Tensor::scalar(0.0));
                self.step(SEVERAL, &inputs, update);
            } else {
                for (k, batch) in batches.iter().enumerate() {
                    let beta = if k == 0 { 0.0 } else { 1.0 };
                    self.step("micro", &with_scalars(batch, beta, update, shard), update);
                }
            }
            if update == 0 {
                self.keep(|kind| kind == StateKind::Gradient);
            }
            for program in ["update", "ema"] {
                self.step(program, &with_scalars(&batches[0], 0.0, update, shard), update);
            }
            for program in ["evaluate", "evaluate_ema"] {
                self.step(program, &batches[0], update);
            }
        }
        self.keep(|kind| kind != StateKind::Gradient);
        self.out
    }
}

fn with_scalars(batch: &Tensors, beta: f32, update: usize, shard: Option<usize>) -> Tensors {
    let mut inputs = batch.clone();
    for (name, x) in [("beta", beta), ("lr", 1e-2), ("clip", 0.05), ("decay", 0.25)] {
        inputs.insert(name.to_owned(), Tensor::scalar(x));
    }
    let mut seed = vec![7, update as i32];
    seed.extend(shard.map(|shard| shard as i32));
    inputs.insert(SEED.to_owned(), Tensor::i32(&seed));
    inputs
}

/// Two updates of a form, on its ranks.
fn outcome(toy: &Toy, form: &Form, without: Option<&str>, whole: bool) -> Outcome {
    let (sessions, layout) = sessions(toy, form, without);
    let (weights, layout) = (weights(toy, form), layout.as_ref());
    let all: Vec<Tensors> = if whole { vec![toy.whole.clone()] } else { toy.halves.to_vec() };
    let world = Arc::new(World::default());
    let one = |rank: usize| {
        let session = &sessions[rank];
        let interp = Interp::of_rank(Rounding::Results, world.clone(), rank);
        let states = start(session, layout, rank, &weights);
        // Ranks that share parameters take micro-batches in turns, those with parts all.
        let mine = |k: usize| layout.is_none_or(|l| k % l.mesh().ranks == rank);
        let batches: Vec<Tensors> = (0..all.len()).filter(|k| mine(*k)).map(|k| all[k].clone()).collect();
        let shard = layout.map(|l| l.mesh().shard_of(rank));
        Rank { session, interp, states, out: Outcome::new() }.updates(&batches, shard)
    };
    let ranks: Vec<Outcome> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..sessions.len()).map(|rank| scope.spawn(move || one(rank))).collect();
        threads.into_iter().map(|t| t.join().expect("a rank")).collect()
    });
    match layout {
        Some(layout) => shared(layout, &ranks),
        // Outputs are every rank's, states are one's.
        None => ranks.into_iter().flatten().collect(),
    }
}

/// What ranks that share parameters have together, by tensor.
fn shared(layout: &Layout, ranks: &[Outcome]) -> Outcome {
    let mut out = Outcome::new();
    for (name, first) in &ranks[0] {
        let of = |prefix: &str| Some((prefix.to_owned(), layout.flat(name.strip_prefix(prefix)?)?));
        if name.contains(" loss ") {
            let sum = ranks.iter().map(|r| r[name][0]).sum::<f64>();
            out.insert(name.clone(), vec![f64::from(sum as f32)]);
        } else if let Some((prefix, flat)) =
            ["", "grad.", "exp_avg.", "exp_avg_sq.", "ema."].iter().find_map(|p| of(p))
        {
            let shards = &ranks[..layout.mesh().shard];
            let whole: Vec<f64> = shards.iter().flat_map(|r| r[name].iter().copied()).collect();
            for t in &flat.tensors {
                out.insert(format!("{prefix}{}", t.name), whole[t.range()].to_vec());
            }
        } else if layout.find(name).is_none() {
            out.insert(name.clone(), first.clone());
        }
    }
    out
}

/// The least that a pass must declare which makes one of two outcomes of the other.
fn least(a: &Outcome, b: &Outcome) -> Numerics {
    let both = || a.iter().filter_map(|(name, x)| Some((name, x, b.get(name)?)));
    assert!(both().any(|(name, ..)| name == LOSS), "both compute a loss");
    let same = |x: &[f64], y: &[f64]| x.iter().zip(y).all(|(x, y)| x.to_bits() == y.to_bits());
    if both().all(|(_, x, y)| x.len() == y.len() && same(x, y)) {
        return Numerics::Exact;
    }
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
    let grads = || both().filter(|(name, ..)| name.starts_with("grad."));
    let count = grads().map(|(_, x, _)| x.len()).sum::<usize>().max(1) as f64;
    let all = norm(&mut grads().flat_map(|(_, x, _)| x.iter().copied()));
    let off = |x: &[f64], y: &[f64]| norm(&mut x.iter().zip(y).map(|(x, y)| x - y));
    let each = |(_, x, y): (&String, &Vec<f64>, &Vec<f64>)| {
        // A gradient that is nothing but rounding has no digits to agree in.
        let floor = 1e-3 * (x.len() as f64 / count).sqrt() * all;
        off(x, y) <= REORDERED_EACH * norm(&mut x.iter().copied()).max(floor)
    };
    let together = norm(&mut grads().map(|(_, x, y)| off(x, y)));
    let close = |name: &str| match (a.get(name), b.get(name)) {
        (Some(x), Some(y)) => (x[0] - y[0]).abs() <= REORDERED * x[0].abs(),
        _ => true,
    };
    let near = close(LOSS) && close(NORM) && together <= REORDERED * all && grads().all(each);
    if near { Numerics::Reordered } else { Numerics::Changed }
}

/// By pass: what it declares, and the most that is seen.
type Table = BTreeMap<&'static str, (Numerics, Numerics)>;

/// Takes every pass of these forms off and on.
fn seen(toy: &Toy, forms: &[Form]) -> Table {
    let mut all = Table::new();
    for form in forms {
        // An update in backward is one of one micro-batch.
        let whole = form.options.update_in_backward;
        let usual = outcome(toy, form, None, whole);
        for (pass, declared) in passes(toy, form) {
            let (with, off, without) = with_and_without(form, pass);
            let with = with.map(|form| outcome(toy, &form, None, whole));
            let seen = least(with.as_ref().unwrap_or(&usual), &outcome(toy, &off, without, whole));
            assert!(
                seen <= declared,
                "{pass} declares {declared}, but with and without it there are {seen}: {}, {}",
                toy.name,
                form.name
            );
            let (_, most) = all.entry(pass).or_insert((declared, seen));
            *most = seen.max(*most);
        }
    }
    all
}

#[test]
fn passes_do_to_numbers_what_they_declare() {
    let toys = toys();
    let mut all = Table::new();
    std::thread::scope(|scope| {
        let one = |toy| {
            let mut forms = forms(toy);
            // Of the other two models, what their layers make of the passes that every session has.
            forms.truncate(if ["frames v1", "llama"].contains(&toy.name) { forms.len() } else { 1 });
            scope.spawn(move || seen(toy, &forms))
        };
        let threads: Vec<_> = toys.iter().map(one).collect();
        for (pass, (declared, most)) in threads.into_iter().flat_map(|t| t.join().expect("a toy")) {
            let of_all = all.entry(pass).or_insert((declared, most));
            assert_eq!(of_all.0, declared, "{pass} declares one thing");
            of_all.1 = of_all.1.max(most);
        }
    });
    for (pass, (declared, most)) in &all {
        assert_eq!(
            declared, most,
            "{pass} does less than it declares, or needs a form in which it does more"
        );
    }
    let line = |(pass, (declared, _)): (&&str, &(Numerics, Numerics))| format!("{pass:<12}{declared}\n");
    expect![[r#"
        accumulate  reordered sums
        autodiff    same numbers
        checkpoint  same numbers
        dead        same numbers
        flats       same numbers
        freeze      changed numerics
        fuse        reordered sums
        in_backward same numbers
        lora        changed numerics
        lower       reordered sums
        offload     same numbers
        place       same numbers
        precision   changed numerics
        prefetch    same numbers
        pure        changed numerics
        schedule    same numbers
        shard       reordered sums
        simplify    same numbers
        unroll      same numbers
    "#]]
    .assert_eq(&all.iter().map(line).collect::<String>());
}
