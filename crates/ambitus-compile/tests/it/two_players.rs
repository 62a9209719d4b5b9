//! A session with two losses and two optimizers, as a generator and its discriminator need: each program trains its own
//! part, and hands its result to the other in the slot.

use ambitus_compile::CompileError;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::pipeline::{Options, Pipeline, Player};
use ambitus_compile::plan::plan;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::{Builder, Program, Session, StateKind, TensorType, ValueId};
use ambitus_testkit::paper::FULL;
use ambitus_testkit::{Interp, Rng, Rounding, Tensor, Tensors};

const ROWS: usize = 6;
const WIDTH: usize = 4;

fn frames() -> TensorType {
    TensorType::f32(&[ROWS, WIDTH])
}

/// A linear layer with the parameter `<scope>.weight`.
fn layer(b: &mut Builder<'_>, scope: &str, x: ValueId) -> ValueId {
    b.scope(scope, |b| {
        let w = b.parameter("weight", &[WIDTH, WIDTH]);
        b.linear(x, w, None)
    })
}

/// The mean square of score - goal: least-squares GAN losses (arXiv 1611.04076).
fn square_loss(b: &mut Builder<'_>, score: ValueId, goal: f32) -> ValueId {
    let goal = b.fill_like(score, goal);
    let mask = b.fill(TensorType::f32(&[ROWS]), 1.0);
    let norm = b.input("norm", TensorType::f32(&[1]));
    b.masked_mse(score, goal, mask, norm)
}

fn generator(session: &mut Session) -> Program {
    let mut b = Builder::new(session, "micro_g");
    let z = b.input("z", frames());
    let made = layer(&mut b, "g", z);
    let score = layer(&mut b, "d", made);
    let loss = square_loss(&mut b, score, 1.0);
    b.output("made", made);
    b.output("loss", loss);
    b.finish()
}

fn discriminator(session: &mut Session) -> Program {
    let mut b = Builder::new(session, "micro_d");
    // What the generator made, as a constant: no gradient flows back through an input.
    let made = b.input("made", frames());
    let real = b.input("real", frames());
    let fooled = layer(&mut b, "d", made);
    let fooled = square_loss(&mut b, fooled, 0.0);
    let seen = layer(&mut b, "d", real);
    let seen = square_loss(&mut b, seen, 1.0);
    let loss = b.add(fooled, seen);
    b.output("loss", loss);
    b.finish()
}

fn options() -> Options {
    let player = |name: &str| Player { name: name.to_owned(), trains: vec![Pattern::new(name)] };
    let adamw = AdamW { beta1: 0.8, beta2: 0.99, eps: 1e-9, weight_decay: 0.01 };
    let players = vec![player("g"), player("d")];
    Options { players, optimizer: Some(adamw.into()), ..Options::new(Blocks::None) }
}

fn compiled(options: &Options) -> Result<Session, CompileError> {
    let mut s = Session::default();
    let forwards = vec![generator(&mut s), discriminator(&mut s)];
    Pipeline::new(options, &FULL).session(s, forwards, Vec::new())
}

fn session() -> Session {
    compiled(&options()).expect("both players can be trained")
}

fn used(s: &Session, program: &str, kind: StateKind) -> Vec<String> {
    let p = s.program(program).expect("the program is there");
    let states = p.states.iter().map(|u| &s.states[u.state.index()]).filter(|d| d.kind == kind);
    states.map(|d| d.name.clone()).collect()
}

#[test]
fn each_program_trains_its_own_part() {
    let s = session();
    assert_eq!(used(&s, "micro_g", StateKind::Parameter), ["g.weight", "d.weight"]);
    assert_eq!(used(&s, "micro_g", StateKind::Gradient), ["grad.g.weight"]);
    assert_eq!(used(&s, "micro_d", StateKind::Gradient), ["grad.d.weight"]);
    assert_eq!(used(&s, "update_g", StateKind::Parameter), ["g.weight"]);
    assert_eq!(used(&s, "update_d", StateKind::Counter), ["step.d"]);
}

#[test]
fn what_one_program_makes_is_the_others_input_on_the_same_bytes() {
    let planned = plan(session(), &FULL, 2);
    let [g, d] = ["micro_g", "micro_d"].map(|name| planned.program(name).expect("the program is planned"));
    let out = g.place(g.program.output("made").expect("the output is there"));
    let input = d.place(d.program.input("made").expect("the input is there"));
    assert_eq!(out, input);
}

#[test]
fn one_step_moves_both_players() {
    let s = session();
    let mut rng = Rng::new(3);
    let mut states: Tensors = s
        .states
        .iter()
        .map(|d| {
            let zero = d.kind != StateKind::Parameter;
            let t = if zero { Tensor::full(d.ty, 0.0) } else { rng.tensor(d.ty, -0.5, 0.5) };
            (d.name.clone(), t)
        })
        .collect();
    let before = states.clone();
    let scalar = Tensor::scalar;
    let mut slot: Tensors = [
        ("z", rng.tensor(frames(), -1.0, 1.0)),
        ("real", rng.tensor(frames(), -1.0, 1.0)),
        ("norm", scalar(1.0 / (ROWS * WIDTH) as f32)),
        ("beta", scalar(0.0)),
        ("lr", scalar(1e-2)),
        ("clip", scalar(f32::INFINITY)),
    ]
    .into_iter()
    .map(|(name, t)| (name.to_owned(), t))
    .collect();
    let mut interp = Interp::new(Rounding::ToType);
    for name in ["micro_g", "micro_d", "update_g", "update_d"] {
        let p = s.program(name).expect("the program is there");
        let out = interp.run(&s, p, &slot, &mut states).expect("the program runs");
        slot.extend(out);
    }
    for name in ["g.weight", "d.weight"] {
        assert_ne!(before[name], states[name], "{name}");
    }
    for name in ["step.g", "step.d"] {
        assert_eq!(states[name].data, [1.0]);
    }
}

#[test]
fn what_several_players_cannot_share_yet_is_said() {
    let scaled = Options { precision: Precision::Fp16Mixed, ..options() };
    let placed = Options { placed: true, ..options() };
    for (options, words) in [(scaled, "no loss scale"), (placed, "by one rank")] {
        let why = compiled(&options).expect_err("refused").to_string();
        assert!(why.contains(words), "{why}");
    }
}

#[test]
fn what_is_recomputed_may_be_one_players_alone() {
    let with = |pattern: &str| {
        let checkpoint = Blocks::Matching(vec![Pattern::new(pattern)]);
        compiled(&Options { checkpoint, ..options() })
    };
    // The generator's layer is in its own step alone.
    with("g.*").expect("a module of the generator");
    with("d.*").expect("modules of both");
    let why = with("e.*").expect_err("nobody's").to_string();
    assert!(why.contains("`e.*`") && why.ends_with("there are g, d"), "{why}");
}
