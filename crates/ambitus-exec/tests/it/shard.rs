//! Ranks that share parameters, in one process: one rank's losses and gradients but for the order of sums, and the same bits
//! with every strategy at one number of ranks; also of the weights after updates clipped by the global norm.

use crate::ranks::{self, ADAMW, Form, LION, Outcome, alone, assert_reordered, assert_same, together};
use crate::steps::step;
use ambitus_comm::Communicator;
use ambitus_comm::local::{self, Failed};
use ambitus_compile::optimizer::{Optimizer, States};
use ambitus_compile::passes::lora::Lora;
use ambitus_compile::passes::offload::Offload;
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::policy::Blocks;
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::passes::shard::{Backward, Prefetch, Sharding, Strategy, Units};
use ambitus_compile::pipeline::Trained;
use ambitus_exec::cpu::{AsyncMode, CpuExecutor, CpuOptions};
use ambitus_testkit::Tensor;
use ambitus_testkit::toys::toys;
use std::sync::{Arc, Mutex};

/// Returns every strategy that `ranks` ranks allow.
fn strategies(ranks: usize) -> Vec<Strategy> {
    let mut all = vec![Strategy::Full, Strategy::GradOp, Strategy::None];
    for shard in (2..ranks).filter(|s| ranks.is_multiple_of(*s)) {
        all.extend([Strategy::Hybrid(shard), Strategy::HybridGradOp(shard)]);
    }
    all
}

fn sharded(form: &Form, strategy: Strategy, ranks: usize) -> Form {
    Form { sharding: Some(Sharding::new(strategy, ranks).expect("whole groups")), ..form.clone() }
}

/// Checks that every strategy on `ranks` ranks agrees with one rank, and bit for bit with the others.
fn check(ranks: usize) {
    for toy in toys() {
        for checkpoint in [Blocks::None, Blocks::All] {
            let form = Form { checkpoint: checkpoint.clone(), ..Form::default() };
            let want = alone(&toy, &form);
            let mut first = None;
            for strategy in strategies(ranks) {
                let what = format!("{} on {ranks} ranks, {strategy}, checkpoint {checkpoint}", toy.name);
                let mut form = sharded(&form, strategy, ranks);
                let have = together(&toy, &form);
                assert_reordered(&what, &have, &want);
                assert_same(&what, &have, first.get_or_insert_with(|| have.clone()));
                form.copies = AsyncMode::Late;
                if ranks == 2 {
                    assert_same(&what, &together(&toy, &form), &have);
                }
            }
        }
    }
}

#[test]
fn one_rank() {
    check(1);
}

#[test]
fn two_ranks() {
    check(2);
}

#[test]
fn three_ranks() {
    check(3);
}

#[test]
fn four_ranks() {
    check(4);
}

#[test]
fn eight_ranks() {
    check(8);
}

/// Every strategy at four ranks agrees with one rank, and bit for bit with the others; `Late` copies as `Early` ones.
fn composes(what: &str, form: &Form) {
    for toy in toys().iter().filter(|t| ["frames v1", "llama"].contains(&t.name)) {
        let want = alone(toy, form);
        let mut first = None;
        for strategy in strategies(4) {
            let what = format!("{} with {what}, {strategy}", toy.name);
            let mut form = sharded(form, strategy, 4);
            let have = together(toy, &form);
            assert_reordered(&what, &have, &want);
            assert_same(&what, &have, first.get_or_insert_with(|| have.clone()));
            if strategy == Strategy::Full {
                form.copies = AsyncMode::Late;
                assert_same(&what, &together(toy, &form), &have);
            }
        }
    }
}

#[test]
fn sixteen_bits_compose() {
    for precision in [Precision::Bf16Mixed, Precision::Fp16Mixed] {
        composes(
            &format!("{precision:?}"),
            &Form { precision, checkpoint: Blocks::First(1), ..Form::default() },
        );
    }
}

/// What is rounded at random is so by its place in the flat, whoever holds it.
#[test]
fn small_states_compose() {
    for states in [States::Bf16, States::EightBit] {
        let optimizer = Optimizer { states, ..ADAMW };
        composes(&format!("{states:?} moments"), &Form { optimizer, ..Form::default() });
    }
    composes("Lion", &Form { optimizer: LION, ..Form::default() });
    let narrow = Form { optimizer: Optimizer { states: States::EightBit, ..LION }, ..Form::default() };
    composes("Lion in 8 bits", &narrow);
    composes("bf16 weights", &Form { precision: Precision::Bf16Pure, ..Form::default() });
    composes("Lion on bf16 weights", &Form { precision: Precision::Bf16Pure, ..narrow });
}

#[test]
fn what_is_frozen_composes() {
    let frozen = [Pattern::new("*_blocks.0"), Pattern::new("*.layers.0")];
    for toy in toys().iter().filter(|t| ["frames v1", "llama"].contains(&t.name)) {
        let patterns = if toy.name == "llama" { &frozen[1..] } else { &frozen[..1] };
        let form = Form { trained: Trained::Except(patterns.to_vec()), ..Form::default() };
        let want = alone(toy, &form);
        for strategy in strategies(2) {
            let have = together(toy, &sharded(&form, strategy, 2));
            assert_reordered(&format!("{} frozen in part, {strategy}", toy.name), &have, &want);
        }
    }
}

#[test]
fn adapters_compose() {
    let lora = Lora {
        rank: 3,
        alpha: 6.0,
        dropout: 0.1,
        rank_stabilised: false,
        targets: vec![Pattern::new("*.to_q"), Pattern::new("*.q_proj")],
        also_train: Vec::new(),
    };
    for toy in toys().iter().filter(|t| ["frames v1", "llama"].contains(&t.name)) {
        let targets = vec![lora.targets[usize::from(toy.name == "llama")].clone()];
        let dropout = if toy.name == "llama" { 0.0 } else { lora.dropout };
        let trained = Trained::Adapters(Lora { targets, dropout, ..lora.clone() });
        let form = Form { trained, checkpoint: Blocks::All, ..Form::default() };
        let want = alone(toy, &form);
        let mut first = None;
        for strategy in strategies(4) {
            let what = format!("{} with adapters, {strategy}", toy.name);
            let have = together(toy, &sharded(&form, strategy, 4));
            assert_reordered(&what, &have, &want);
            assert_same(&what, &have, first.get_or_insert_with(|| have.clone()));
        }
    }
}

#[test]
fn offload_composes() {
    let offload = Offload { least: 0, near: 3, ..Offload::all() };
    composes("offload", &Form { offload, checkpoint: Blocks::All, ..Form::default() });
}

#[test]
fn units_and_prefetch_change_no_bits() {
    for toy in toys() {
        for checkpoint in [Blocks::None, Blocks::All] {
            let form = Form { checkpoint, ..Form::default() };
            for strategy in [Strategy::Full, Strategy::HybridGradOp(2), Strategy::Hybrid(2)] {
                let form = sharded(&form, strategy, 4);
                let want = together(&toy, &form);
                for (forward, backward) in
                    [(true, Backward::None), (false, Backward::Pre), (true, Backward::Post)]
                {
                    for copies in [AsyncMode::Early, AsyncMode::Late] {
                        let prefetch = Prefetch { forward, backward };
                        let sharding = form.sharding.map(|s| Sharding { prefetch, ..s });
                        let have = together(&toy, &Form { sharding, copies, ..form.clone() });
                        assert_same(&format!("{} {strategy}, {prefetch:?}", toy.name), &have, &want);
                    }
                }
            }
            let alone = alone(&toy, &form);
            let gradients = |ran: &Outcome| -> Outcome {
                ran.clone().into_iter().filter(|(name, _)| name.starts_with("grad.")).collect()
            };
            let of_replicas = gradients(&together(&toy, &sharded(&form, Strategy::None, 2)));
            assert!(!of_replicas.is_empty());
            for units in [Units::Parameters(1), Units::Parameters(1500), Units::Parameters(1 << 40)] {
                let form = sharded(&form, Strategy::Full, 2);
                let sharding = form.sharding.map(|s| Sharding { units, ..s });
                let have = together(&toy, &Form { sharding, ..form });
                let what = format!("{} in units of {units}", toy.name);
                assert_reordered(&what, &have, &alone);
                assert_same(&what, &gradients(&have), &of_replicas);
            }
        }
    }
}

#[test]
fn a_session_is_of_so_many_ranks() {
    let [toy, ..] = toys();
    let (planned, _) = ranks::planned(&toy, &sharded(&Form::default(), Strategy::Full, 2));
    let why = CpuExecutor::open(planned, 1).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(why.contains("the session is for 2 ranks, there are 1"), "{why}");
}

#[test]
fn a_rank_that_fails_is_named_by_the_others() {
    let [toy, ..] = toys();
    let form = sharded(&Form::default(), Strategy::Full, 3);
    let (planned, layout) = ranks::planned(&toy, &form);
    let (planned, weights) = (Arc::new(planned), ranks::weights(&toy, &form));
    let heard = Mutex::new(Vec::new());
    let done = local::run(3, |end| {
        let rank = end.rank();
        let options = CpuOptions { comm: Some(end), ..CpuOptions::from(1) };
        let mut exec = CpuExecutor::open(planned.clone(), options).map_err(|e| e.to_string())?;
        if rank == 1 {
            return Err("its disk is full".to_owned());
        }
        ranks::fill(&mut exec, layout.as_ref(), rank, &weights);
        let mut given = toy.whole.clone();
        given.insert("beta".to_owned(), Tensor::scalar(0.0));
        let mut step = || step(&mut exec, "micro", &given).map_err(|e| e.to_string());
        // Once failed, it stays so.
        let said = [step(), step()].map(|r| r.err().unwrap_or_default());
        heard.lock().expect("no panic").extend(said.clone());
        Err::<(), _>(said[0].clone())
    });
    let failed: Failed<String> = match done {
        Ok(done) => panic!("{done:?}: a rank failed"),
        Err(failed) => failed,
    };
    assert_eq!((failed.rank, failed.why), (1, Ok("its disk is full".to_owned())));
    let heard = heard.into_inner().expect("no panic");
    assert_eq!(heard.len(), 4);
    for said in heard {
        let collective = said.contains("all_gather_start cannot continue without it");
        assert!(said.starts_with("rank 1 failed (its disk is full), and ") && collective, "{said}");
    }
}
