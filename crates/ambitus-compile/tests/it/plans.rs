//! Plans of whole models at real sizes: near the bound, and no more kept for backward than the gradients need.

use crate::common::{compiled, llama_3b};
use ambitus_compile::optimizer::{self, Optimizer};
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::{self, Blocks};
use ambitus_compile::pipeline::{self, Options};
use ambitus_compile::plan::{plan, report};
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::plan::{PlannedProgram, PlannedSession, Region};
use ambitus_ir::{Phase, Session};
use ambitus_models::{Capacity, f5, orpheus};
use ambitus_testkit::owners;
use ambitus_testkit::paper::FULL;

/// Transient arena over live bytes, per program: the rest is what stacking costs.
const SLACK: f64 = 1.02;
const SETTINGS: [Blocks; 3] = [Blocks::None, Blocks::First(9), Blocks::All];
const FRAMES: u64 = 3200;
const TOKENS: u64 = 8192;

fn f5_forward(s: &mut Session) -> ambitus_ir::Program {
    let cap = Capacity { rows: FRAMES as usize, clips: 64 };
    f5::model::loss(s, &f5::config::Config::v1_base(), cap, "micro", true)
}

fn llama_forward(s: &mut Session) -> ambitus_ir::Program {
    orpheus::model::loss(s, &llama_3b(), Capacity { rows: TOKENS as usize, clips: 64 }, "micro")
}

fn f5_micro(checkpoint: Blocks) -> PlannedSession {
    plan(compiled(&f5_forward, Options::new(checkpoint), &FULL), &FULL, 1)
}

fn llama_micro(checkpoint: Blocks) -> PlannedSession {
    plan(compiled(&llama_forward, Options::new(checkpoint), &FULL), &FULL, 1)
}

/// Bytes that live from forward into backward, made inside the block.
fn kept(p: &PlannedProgram, block: usize) -> u64 {
    let instrs = &p.program.instrs;
    let turn =
        instrs.iter().position(|i| i.origin.phase != Phase::Forward).expect("there is a backward") as u32;
    let lives = p.lives.iter().filter(|l| l.first < turn && l.last >= turn);
    let inside = lives.filter(|l| p.program.block_of(&instrs[l.first as usize]) == Some(block));
    inside.map(|l| l.place.bytes).sum()
}

#[test]
fn plans_are_near_their_bound() {
    for checkpoint in SETTINGS {
        for (name, planned) in
            [("f5", f5_micro(checkpoint.clone())), ("llama", llama_micro(checkpoint.clone()))]
        {
            owners::check(&planned, &FULL);
            for p in &planned.programs {
                let ratio = p.transient_bytes as f64 / p.live_bound_bytes as f64;
                assert!(ratio <= SLACK, "{name} {checkpoint:?}: {ratio:.4}");
            }
        }
    }
}

#[test]
fn blocks_keep_what_their_gradients_need_and_no_more() {
    // q, k, v, o, out-projection, feed-forward in (2) and out, residual; log-sum-exp and modulation are small. PyTorch
    // keeps 18.
    let unit = FRAMES * 1024 * 4;
    let f5 = f5_micro(Blocks::None);
    assert!(kept(&f5.programs[0], 12) * 100 <= unit * 920, "{}", kept(&f5.programs[0], 12));
    // q, o, two residuals, k and v of a third, gate and up of 8/3.
    let unit = TOKENS * 3072 * 4;
    let llama = llama_micro(Blocks::None);
    assert!(kept(&llama.programs[0], 12) * 100 <= unit * 1005, "{}", kept(&llama.programs[0], 12));
}

#[test]
fn recomputed_blocks_keep_their_input() {
    // The residual, and F5's modulation of 64 clips: 6 x 64 / 3200 of it.
    let f5 = f5_micro(Blocks::All);
    assert!(kept(&f5.programs[0], 12) * 1000 <= FRAMES * 1024 * 4 * 1125);
    let llama = llama_micro(Blocks::All);
    assert!(kept(&llama.programs[0], 12) <= TOKENS * 3072 * 4);
}

#[test]
fn checkpointing_more_blocks_never_needs_more() {
    let mut last = u64::MAX;
    for n in [0, 5, 11, 17, 22] {
        let planned = f5_micro(Blocks::First(n));
        assert!(planned.transient_bytes < last, "{n} blocks: {} after {last}", planned.transient_bytes);
        last = planned.transient_bytes;
    }
}

#[test]
fn every_value_made_again_frees_its_bytes() {
    for (name, micro) in [("f5", f5_micro as fn(Blocks) -> PlannedSession), ("llama", llama_micro)] {
        let none = micro(Blocks::None);
        let values = policy::cheapest(&none.programs[0].program, &FULL);
        let rates: Vec<f64> = values.iter().map(|v| v.seconds / v.bytes as f64).collect();
        assert!(values.len() >= 6 && rates.is_sorted(), "{name}: {values:?}");
        let mut left = none.transient_bytes;
        for (i, value) in values.iter().enumerate() {
            let planned = micro(Blocks::Cheapest { values: i + 1, blocks: 0 });
            // A block's own share is alive while its backward runs, with what that makes.
            let freed = value.bytes * 3 / 4;
            assert!(planned.transient_bytes + freed <= left, "{name}: {value:?}, {left} before");
            left = planned.transient_bytes;
        }
        assert_eq!(left, micro(Blocks::All).transient_bytes, "{name}: all values are the whole block");
    }
}

#[test]
fn patterns_choose_what_is_made_again() {
    let matching = |pattern: &str| {
        let pattern = Blocks::Matching(vec![Pattern::new(pattern)]);
        let mut s = Session::default();
        let forward = f5_forward(&mut s);
        pipeline::micro(&mut s, forward, Options::new(pattern), &FULL)
    };
    let again = |p: &ambitus_ir::Program, path: &str| {
        let clones = p.instrs.iter().filter(|i| i.origin.phase == Phase::Recompute);
        clones.filter(|i| i.origin.path.contains(path)).count()
    };
    let p = matching("*blocks.1*.attn.to_q").expect("there are such products");
    assert_eq!((again(&p, "attn.to_q.linear"), again(&p, "attn.to_k.linear")), (11, 0));
    let wrong = matching("*.to_z").expect_err("there are none").to_string();
    assert!(wrong.contains("`*.to_z`") && wrong.contains("attn.to_q"), "{wrong}");
}

#[test]
fn no_gradient_of_a_weight_is_a_temporary() {
    // The tied embedding has two contributions, 1.8 GiB each: both are added in place.
    let planned = llama_micro(Blocks::All);
    let weight = 156_939 * 3072 * 4;
    assert!(planned.programs[0].lives.iter().all(|l| l.place.bytes < weight));
}

#[test]
fn a_session_shares_one_arena() {
    let mut session = compiled(&f5_forward, Options::new(Blocks::First(3)), &FULL);
    let adamw = Optimizer::from(AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.01 });
    let update = optimizer::update(&mut session, &adamw);
    let ema = optimizer::ema(&mut session);
    let evaluate = {
        let cap = Capacity { rows: 3200, clips: 64 };
        let forward = f5::model::loss(&mut session, &f5::config::Config::v1_base(), cap, "evaluate", false);
        optimizer::on_averages(&mut session, &forward, "evaluate")
    };
    for p in [update, ema, evaluate] {
        let p = pipeline::plain(&mut session, p, &FULL);
        session.programs.push(p);
    }
    let planned = plan(session, &FULL, 2);
    owners::check(&planned, &FULL);
    assert_eq!(planned.transient_bytes, planned.programs[0].transient_bytes, "the micro-batch needs most");
    for p in &planned.programs {
        // Inputs of one name are one place in every program: a batch is written once.
        for input in &p.program.inputs {
            let there = planned.programs[0].program.input(&input.name);
            if let Some(v) = there {
                assert_eq!(planned.programs[0].place(v), p.place(input.value), "{}", input.name);
            }
        }
        for used in &p.program.states {
            assert_eq!(p.place(used.enters), p.place(used.leaves));
            assert_eq!(p.place(used.enters).region, Region::State);
        }
        let usage = report::timeline(p);
        let most = usage.iter().map(|u| u.activations + u.gradients + u.workspace).max().unwrap_or(0);
        assert!(most <= p.live_bound_bytes, "{}: the timeline exceeds the bound", p.program.name);
    }
    let parameters = report::state_bytes(&planned, ambitus_ir::StateKind::Parameter);
    // 337,096,804 numbers, each tensor rounded up to 256 bytes; and the rotary frequencies.
    assert!((337_096_804 * 4..337_096_804 * 4 + (1 << 18)).contains(&parameters), "{parameters}");
}
