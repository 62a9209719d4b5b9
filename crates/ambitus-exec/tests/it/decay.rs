//! Weight decay of some parameters alone: torch's updates with parameter groups, lion-pytorch's, and ranks that share what decays and
//! what does not.

use crate::ranks::{ADAMW, Form, alone, together};
use crate::steps::step;
use ambitus_compile::optimizer::{self, Optimizer, Rule, States};
use ambitus_compile::passes::pattern::Pattern;
use ambitus_compile::passes::shard::{Sharding, Strategy};
use ambitus_compile::pipeline;
use ambitus_compile::plan::plan;
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::ops::copy::Space;
use ambitus_ir::ops::lion::Lion;
use ambitus_ir::ops::optim::AdamW;
use ambitus_ir::{Session, StateDecl, StateKind, TensorType};
use ambitus_testkit::toys::toys;
use ambitus_testkit::{Tensor, Tensors, tolerances};
use serde_json::Value;
use std::collections::BTreeMap;

fn read(file: &str) -> Value {
    let path = format!("{}/../../parity/{file}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_str(&std::fs::read_to_string(path).expect("the fixture")).expect("JSON")
}

fn numbers(x: &Value) -> Vec<f32> {
    x.as_array().expect("a list").iter().map(|x| x.as_f64().expect("a number") as f32).collect()
}

/// Runs the updates that were recorded, on the tensors that were recorded, and holds every one of them to what was recorded.
#[track_caller]
fn are_recorded(record: &Value, optimizer: &Optimizer) {
    let mut s = Session::default();
    let named = record["initial"].as_object().expect("tensors");
    let state = |name: String, ty, kind| StateDecl {
        name,
        ty,
        kind,
        trainable: kind == StateKind::Parameter,
        home: Space::Device,
    };
    for (name, values) in named {
        let dims = match &record["shapes"][name] {
            Value::Array(dims) => dims.iter().map(|n| n.as_u64().expect("an extent") as usize).collect(),
            _ => vec![numbers(values).len()],
        };
        let ty = TensorType::f32(&dims);
        s.declare(state(name.clone(), ty, StateKind::Parameter));
        s.declare(state(format!("grad.{name}"), ty, StateKind::Gradient));
    }
    let update = optimizer::update(&mut s, optimizer);
    let target = CpuTarget::new(2);
    let update = pipeline::plain(&mut s, update, &target);
    s.programs = vec![update];
    let mut exec = CpuExecutor::open(plan(s.clone(), &target, 1), 2).expect("a small arena");
    for d in &s.states {
        let zeros = vec![0.0; d.ty.shape.elements()];
        let first = named.get(&d.name).map_or(zeros, numbers);
        exec.write_state(s.state(&d.name).expect("declared"), &first).expect("a state");
    }
    let scalar = |key: &str| Tensor::scalar(record[key].as_f64().expect("a number") as f32);
    let given: Tensors =
        [("lr".to_owned(), scalar("lr")), ("clip".to_owned(), scalar("max_grad_norm"))].into();
    let updates = record["updates"].as_array().expect("updates");
    let op = if matches!(optimizer.rule, Rule::Lion(_)) { "lion" } else { "adamw" };
    let one = tolerances::F32_AGAINST_F64.iter().find(|row| row.op == op).expect("a row").abs as f32;
    for (k, update) in updates.iter().enumerate() {
        for (name, g) in update["gradients"].as_object().expect("tensors") {
            let id = s.state(&format!("grad.{name}")).expect("declared");
            exec.write_state(id, &numbers(g)).expect("a state");
        }
        step(&mut exec, "update", &given).expect("an update");
        for (name, want) in update["parameters"].as_object().expect("tensors") {
            let want = numbers(want);
            let mut have = vec![0.0; want.len()];
            exec.read_state(s.state(name).expect("declared"), &mut have).expect("a state");
            for (have, want) in have.iter().zip(&want) {
                assert!((have - want).abs() <= one * want.abs().max(1.0), "{name} after {k}: {have}, {want}");
            }
        }
    }
    assert_eq!(updates.len(), 6);
}

/// The optimizer that was recorded: AdamW, or Lion, which has no ε.
fn recorded(record: &Value) -> Optimizer {
    let of = |x: &Value| x.as_f64().expect("a number");
    let [beta1, beta2] = [0, 1].map(|i| of(&record["betas"][i]));
    let weight_decay = of(&record["weight_decay"]);
    let rule = match record["eps"].as_f64() {
        Some(eps) => Rule::AdamW(AdamW { beta1, beta2, eps, weight_decay }),
        None => Rule::Lion(Lion { beta1, beta2, weight_decay }),
    };
    let names = record["no_decay"].as_array().expect("names");
    let no_decay = names.iter().map(|name| Pattern::new(name.as_str().expect("a name"))).collect();
    Optimizer { rule, no_decay, ..ADAMW }
}

#[test]
fn updates_of_lion_are_lion_pytorchs() {
    let record = read("lion/fixtures/lion.json");
    are_recorded(&record, &recorded(&record));
}

#[test]
fn updates_with_two_groups_are_recorded() {
    let record = read("schedules/fixtures/groups.json");
    are_recorded(&record, &recorded(&record));
}

#[test]
#[should_panic(expected = "after 0")]
fn updates_that_decay_everything_are_not() {
    let record = read("schedules/fixtures/groups.json");
    are_recorded(&record, &Optimizer { no_decay: Vec::new(), ..recorded(&record) });
}

/// What F5-TTS's trainer does: every parameter decays.
#[test]
fn updates_with_one_group_are_recorded() {
    let mut record = read("schedules/fixtures/trainer.json")["adamw"].take();
    let by_name = |tensors: &mut Value| {
        let tensors = tensors.as_array().expect("tensors").iter().enumerate();
        tensors.map(|(i, t)| (format!("tensor{i}"), t.clone())).collect::<serde_json::Map<_, _>>()
    };
    record["initial"] = by_name(&mut record["initial"]).into();
    for update in record["updates"].as_array_mut().expect("updates") {
        for key in ["gradients", "parameters"] {
            update[key] = by_name(&mut update[key]).into();
        }
    }
    are_recorded(&record, &ADAMW);
}

/// Where ranks share parameters, what decays and what does not lie in flats of their own: weights after updates with much decay are
/// those of one rank but for rounding, with moments of every kind.
#[test]
fn ranks_decay_what_one_rank_does() {
    for toy in toys().iter().filter(|t| ["frames v1", "llama"].contains(&t.name)) {
        let no_decay: Vec<Pattern> = match toy.name {
            "llama" => vec![Pattern::new("*norm"), Pattern::new("model.embed_tokens")],
            _ => vec![Pattern::new("*.bias"), Pattern::new("*.text_embed")],
        };
        let adamw = AdamW { beta1: 0.9, beta2: 0.999, eps: 1e-8, weight_decay: 0.9 };
        for states in [States::Fp32, States::EightBit] {
            let optimizer = Optimizer { no_decay: no_decay.clone(), states, ..adamw.clone().into() };
            let form = Form { optimizer, ..Form::default() };
            let want = alone(toy, &form);
            let off = |form: &Form| -> BTreeMap<String, f64> {
                let have = if form.sharding.is_some() { together(toy, form) } else { alone(toy, form) };
                let names = want.keys().filter(|name| want.contains_key(&format!("exp_avg.{name}")));
                let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|x| x * x).sum::<f64>().sqrt();
                let share = |name: &String| {
                    let (x, y) = (&have[name], &want[name]);
                    let moved = norm(&mut x.iter().zip(y).map(|(x, y)| f64::from(x - y)));
                    moved / norm(&mut y.iter().map(|y| f64::from(*y)))
                };
                names.map(|name| (name.clone(), share(name))).collect()
            };
            // Two updates at a rate of 1e-2 with a decay of 0.9 take 1.8 % of a weight.
            let all = Optimizer { no_decay: Vec::new(), ..form.optimizer.clone() };
            let shifts = off(&Form { optimizer: all, ..form.clone() });
            let decays = |name: &str| !no_decay.iter().any(|p| p.matches(name));
            assert!(shifts.iter().any(|(name, _)| !decays(name)), "{}", toy.name);
            for (name, shift) in shifts {
                assert!(decays(&name) || shift > 1e-2, "{}: {name} moves by {shift:.1e}", toy.name);
            }
            for strategy in [Strategy::Full, Strategy::GradOp, Strategy::None, Strategy::Hybrid(2)] {
                let sharding = Some(Sharding::new(strategy, 4).expect("whole groups"));
                for (name, off) in off(&Form { sharding, ..form.clone() }) {
                    assert!(off < 2e-3, "{} {states:?} {strategy}: {name} is off by {off:.1e}", toy.name);
                }
            }
        }
    }
}
