//! Updates of one micro-batch: gradients are states of the transient region, from where they are made to where they are applied.

use crate::common::{compiled, llama_3b};
use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::{Gradients, Needs, report};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::{PlannedSession, Region};
use ambitus_ir::{Program, Session, StateKind};
use ambitus_models::{Capacity, f5, orpheus};
use ambitus_testkit::owners;
use ambitus_testkit::paper::FULL;
use ambitus_testkit::toys::toys;

/// See `plans.rs`.
const SLACK: f64 = 1.02;

type Forward<'a> = &'a dyn Fn(&mut Session) -> Program;

fn planned(forward: Forward<'_>, checkpoint: Blocks, gradients: Gradients) -> PlannedSession {
    let mut session = compiled(forward, Options::new(checkpoint), &FULL);
    let adamw = Optimizer::from(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 });
    let others = [optimizer::update(&mut session, &adamw), optimizer::ema(&mut session)];
    for p in others {
        let p = pipeline::plain(&mut session, p, &FULL);
        session.programs.push(p);
    }
    Needs::of(session, &FULL, 1, gradients).plan()
}

#[test]
fn gradients_pass_from_micro_to_update_and_keep_no_bytes() {
    let f5 = |s: &mut Session| {
        let cap = Capacity { rows: 3200, clips: 64 };
        f5::model::loss(s, &f5::config::Config::v1_base(), cap, "micro", true)
    };
    let llama =
        |s: &mut Session| orpheus::model::loss(s, &llama_3b(), Capacity { rows: 2461, clips: 4 }, "micro");
    let cases: [(&str, Forward<'_>); 2] = [("f5", &f5), ("llama", &llama)];
    for (name, forward) in cases {
        for checkpoint in [Blocks::None, Blocks::First(9), Blocks::All] {
            let [kept, passing] =
                [Gradients::Kept, Gradients::Passing].map(|g| planned(forward, checkpoint.clone(), g));
            owners::check(&passing, &FULL);
            let gradients = report::state_bytes(&kept, StateKind::Gradient);
            assert_eq!(kept.state_bytes - passing.state_bytes, gradients, "{name}");
            let [micro, update, ema] = &passing.programs[..] else { panic!("three programs") };
            for p in [micro, update] {
                let ratio = p.transient_bytes as f64 / p.live_bound_bytes as f64;
                assert!(ratio <= SLACK, "{name} {checkpoint:?}: {ratio:.4} in {}", p.program.name);
                let usage = report::timeline(p);
                let most = usage.iter().map(|u| u.activations + u.gradients + u.workspace).max().unwrap_or(0);
                assert!(most <= p.live_bound_bytes, "{name}: the timeline exceeds the bound");
            }
            let states = passing.session.states.iter().filter(|s| s.kind == StateKind::Gradient);
            let all: u64 = states.map(|s| s.ty.bytes()).sum();
            assert!(
                report::timeline(update)[0].gradients == all,
                "{name}: an update begins with all of them"
            );
            assert_eq!(report::live_gradients(ema), 0, "{name}");
            // What the smaller of the two takes, gradients or what forward keeps, is not taken twice.
            let saved = kept.arena_bytes() - passing.arena_bytes();
            let activations = kept.programs[0].live_bound_bytes;
            let least = gradients.min(activations) / 2;
            assert!(saved >= least, "{name} {checkpoint:?}: {saved} of {gradients} and {activations}");
        }
    }
}

#[test]
fn small_models_too() {
    let mut passing = 0;
    for toy in toys() {
        let planned = planned(&toy.model, Blocks::First(1), Gradients::Passing);
        owners::check(&planned, &FULL);
        // All of them, or none: those of the smallest toys are few bytes beside their batches'.
        let some = report::passing_gradients(&planned) > 0;
        assert!(!some || report::state_bytes(&planned, StateKind::Gradient) == 0, "{}", toy.name);
        passing += usize::from(some);
        let states = planned.session.states.iter().zip(&planned.states);
        for (s, place) in states.filter(|(s, _)| s.kind != StateKind::Gradient) {
            assert_eq!(place.region, Region::State, "{}: {}", toy.name, s.name);
        }
    }
    assert!(passing > 1, "{passing} toys");
}
