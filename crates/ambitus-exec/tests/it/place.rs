//! A model cut over ranks of one process, one micro-batch after another or as a pipeline: the bits of one device, of losses,
//! gradients, norms, and weights and moments after clipped updates.

use crate::ranks::{self, ADAMW, Form, LION, Outcome, alone, assert_same, named, updates};
use ambitus_comm::Communicator;
use ambitus_comm::local::{self, LocalRank};
use ambitus_compile::optimizer::{Optimizer, States};
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::place::{Bound, Cut, cut, pieces, pipeline as pipelined, place};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::unroll::unroll;
use ambitus_compile::pipeline::{self, Trained};
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{AsyncMode, CpuExecutor, CpuOptions, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::StateKind;
use ambitus_ir::plan::PlannedSession;
use ambitus_testkit::toys::{Toy, deep_toys, toys};
use std::sync::Arc;

/// One micro-batch after another; or all of an update in one program, all forwards first or backwards as soon as they can.
#[derive(Clone, Copy, Debug, PartialEq)]
enum How {
    Model,
    Gpipe,
    Interleaved,
}

/// The session of each rank.
fn parts(toy: &Toy, form: &Form, how: How, cut: &Cut) -> Vec<PlannedSession> {
    let whole = Form { offload: Offload::default(), ..form.clone() };
    let (mut s, _) = ranks::session(toy, &whole);
    let count = ranks::batches(toy).len();
    match how {
        How::Model => {}
        How::Gpipe => {
            let micro = std::mem::take(&mut s.programs[0]);
            s.programs[0] = unroll(&mut s, &micro, count).0;
        }
        // What adds into a tied weight at both ends stays as it is.
        How::Interleaved => assert_eq!(pipelined(&mut s, 0, count, cut), !tied(toy), "{}", toy.name),
    }
    let mut parts = place(&s, cut);
    parts.iter_mut().for_each(|part| pipeline::run_all(part, &form.offload).expect("copies"));
    parts.into_iter().map(|part| plan(part, &CpuTarget::new(1), 1)).collect()
}

fn tied(toy: &Toy) -> bool {
    toy.name.starts_with("llama") && !toy.name.contains("untied")
}

/// Two updates on the ranks; what they have together.
fn together(toy: &Toy, form: &Form, how: How, cut: &Cut) -> Outcome {
    let parts: Vec<_> = parts(toy, form, how, cut).into_iter().map(Arc::new).collect();
    let weights = ranks::weights(toy, form);
    let one = |end: Arc<LocalRank>| {
        let rank = end.rank();
        let planned = parts[rank].clone();
        let options = CpuOptions { copies: form.copies, comm: Some(end), ..CpuOptions::from(1) };
        let mut exec = CpuExecutor::open(planned.clone(), options)?;
        assert_eq!(exec.arena_bytes(), planned.arena_bytes(), "used is planned");
        ranks::fill(&mut exec, None, rank, &weights);
        updates(&mut exec, toy, (0, 1), None)
    };
    let done = local::run(cut.ranks(), one).unwrap_or_else(|e| panic!("{}: {e:?}", toy.name));
    let mut all = Outcome::new();
    for ran in done {
        for (name, data) in named(ran) {
            let before = all.insert(name.clone(), data.clone());
            // Outputs are every rank's, states are one's.
            assert!(
                before.is_none_or(|b| name.starts_with("loss.") && ranks::bits(&b) == ranks::bits(&data)),
                "{name}"
            );
        }
    }
    all
}

/// Returns cuts of `blocks` blocks for `ranks` ranks: an even one, and one with as few as possible on the first.
fn cuts(blocks: usize, ranks: usize) -> Vec<Cut> {
    let mut all = vec![Cut::even(blocks, ranks), Cut { starts: (1..ranks).collect() }];
    all.dedup();
    all
}

fn blocks(toy: &Toy) -> usize {
    ranks::session(toy, &Form::default()).0.programs[0].blocks.len()
}

/// Checks that all ways, on `ranks` ranks, agree with one device bit for bit.
fn check(what: &str, toy: &Toy, form: &Form, ranks: usize) {
    let want = alone(toy, form);
    for cut in cuts(blocks(toy), ranks) {
        for how in [How::Model, How::Gpipe, How::Interleaved] {
            let what = format!("{} {what}, {how:?} cut at {:?}", toy.name, cut.starts);
            assert_same(&what, &together(toy, form, how, &cut), &want);
        }
    }
}

#[test]
fn two_ranks() {
    for toy in toys().iter().chain(&deep_toys()) {
        for checkpoint in [Blocks::None, Blocks::All] {
            let form = Form { checkpoint, ..Form::default() };
            check("on 2 ranks", toy, &form, 2);
        }
        let form = Form { checkpoint: Blocks::First(1), copies: AsyncMode::Late, ..Form::default() };
        check("with late transfers", toy, &form, 2);
    }
}

#[test]
fn three_ranks() {
    for toy in &deep_toys() {
        for checkpoint in [Blocks::None, Blocks::All] {
            check("on 3 ranks", toy, &Form { checkpoint, ..Form::default() }, 3);
        }
    }
}

#[test]
fn sixteen_bits_compose() {
    for toy in &deep_toys() {
        for precision in [Precision::Bf16Mixed, Precision::Fp16Mixed, Precision::Bf16Pure] {
            let form = Form { precision, checkpoint: Blocks::First(1), ..Form::default() };
            check(&format!("{precision:?}"), toy, &form, 3);
        }
    }
}

#[test]
fn small_states_and_adapters_compose() {
    let [f5, llama, _] = deep_toys();
    for states in [States::Bf16, States::EightBit] {
        let form = Form { optimizer: Optimizer { states, ..ADAMW }, ..Form::default() };
        check(&format!("{states:?} moments"), &llama, &form, 2);
    }
    let lion = Optimizer { states: States::EightBit, ..LION };
    check("Lion in 8 bits", &llama, &Form { optimizer: lion, ..Form::default() }, 2);
    let lora = Lora {
        rank: 3,
        alpha: 6.0,
        dropout: 0.1,
        rank_stabilised: false,
        targets: vec![Pattern::new("*.to_q")],
        also_train: Vec::new(),
    };
    let form = Form { trained: Trained::Adapters(lora), checkpoint: Blocks::All, ..Form::default() };
    check("with adapters", &f5, &form, 3);
}

#[test]
fn offload_composes() {
    let offload = Offload { least: 0, near: 3, ..Offload::all() };
    let form = Form { offload, checkpoint: Blocks::All, ..Form::default() };
    for toy in &deep_toys() {
        check("with offload", toy, &form, 2);
    }
}

/// Each state is on one rank, with what belongs to it; none has the whole model.
#[test]
fn ranks_have_their_part_alone() {
    for toy in &deep_toys() {
        let (whole, _) = ranks::session(toy, &Form::default());
        let found = cut(&pieces(&whole, &CpuTarget::new(1)), &[Bound { waiting: 1, room: u64::MAX }; 3])
            .expect("three blocks");
        let parts = place(&whole, &found);
        let mut names: Vec<&str> = parts.iter().flat_map(|p| &p.states).map(|s| s.name.as_str()).collect();
        names.sort_unstable();
        let mut all: Vec<&str> = whole.states.iter().map(|s| s.name.as_str()).collect();
        all.sort_unstable();
        assert_eq!(names, all, "{}", toy.name);
        for part in &parts {
            for s in part.states.iter().filter(|s| s.kind == StateKind::Optimizer) {
                let (_, parameter) = s.name.split_once('.').expect("a prefix");
                assert!(part.state(parameter).is_some(), "{} is beside its parameter", s.name);
            }
        }
    }
}

/// What waits for backward is that of as many micro-batches as there are ranks, not of all.
#[test]
fn interleaved_pipelines_keep_less() {
    let [f5, _, llama] = deep_toys();
    for toy in [f5, llama] {
        let cut = Cut::even(blocks(&toy), 2);
        let peak = |how| {
            let parts = parts(&toy, &Form::default(), how, &cut);
            parts.iter().map(|p| p.programs[0].live_bound_bytes).collect::<Vec<_>>()
        };
        let (all, few) = (peak(How::Gpipe), peak(How::Interleaved));
        // The llama's is a peak of logits.
        let tenths = if toy.name.starts_with("f5") { 8 } else { 10 };
        assert!(all.iter().zip(&few).all(|(a, f)| 10 * f < tenths * a), "{}: {few:?} of {all:?}", toy.name);
    }
}

#[test]
fn a_rank_opens_its_own_session() {
    let [toy, ..] = toys();
    let parts = parts(&toy, &Form::default(), How::Model, &Cut::even(2, 2));
    let why = local::run(2, |end| {
        let planned = parts[1 - end.rank()].clone();
        let options = CpuOptions { comm: Some(end), ..CpuOptions::default() };
        CpuExecutor::open(planned, options).map(drop).map_err(|e| e.to_string())
    });
    let failed = why.expect_err("they are exchanged");
    let said = failed.why.unwrap_or_default();
    assert!(said.contains("the session is rank"), "{said}");
}
