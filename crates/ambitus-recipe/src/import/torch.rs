//! Optimizers and schedules by the names of PyTorch's classes, with their arguments, as Coqui's trainers take them.

use super::given::Given;
use super::judge::Judge;
use super::lines::number;
use crate::recipe::tree::{Node, Tree};
use crate::recipe::{OptimizerChoice, Per, RecipeError, Schedule, ScheduleKind};
use std::collections::BTreeMap;

const OPTIMIZER: &str = "torch_optimizer";
const OPTIMIZER_ARGUMENTS: &str = "torch_optimizer_params";
const SCHEDULE: &str = "torch_scheduler";
const SCHEDULE_ARGUMENTS: &str = "torch_scheduler_params";

/// Arguments of a class: numbers, and lists of them.
type Arguments = BTreeMap<String, Vec<f64>>;

/// # Errors
/// Arguments that are no numbers, or out of their range.
pub(super) fn optimizer(j: &mut Judge) -> Result<(), RecipeError> {
    const DECAYS: &str = "decays_weights_only";
    match j.get(DECAYS).map(Given::flag).transpose()? {
        Some(false) => j.used(DECAYS, "no_decay", "[]"),
        _ => j.default(DECAYS, "no_decay", "weight decay leaves out what the model's family leaves out"),
    }
    let Some(g) = j.get(OPTIMIZER) else {
        j.nothing(OPTIMIZER_ARGUMENTS, "no optimizer is named beside it");
        return Ok(());
    };
    if !g.text()?.eq_ignore_ascii_case("adamw") {
        j.lost(OPTIMIZER, &OptimizerChoice::known());
        j.nothing(OPTIMIZER_ARGUMENTS, "they belong to another optimizer");
        return Ok(());
    }
    j.default(OPTIMIZER, "optimizer", "AdamW with moments in fp32");
    let Some(g) = j.get(OPTIMIZER_ARGUMENTS) else { return Ok(()) };
    let mut left = arguments(g)?;
    let share = |x: &f64| (0.0..1.0).contains(x);
    let mut said = Vec::new();
    for key in ["betas", "eps", "weight_decay"] {
        let Some(values) = left.remove(key) else { continue };
        let value = match (key, &*values) {
            ("betas", [one, two]) if share(one) && share(two) => {
                format!("[{}, {}]", number(*one), number(*two))
            }
            ("eps", [x]) if *x > 0.0 && *x <= 1.0 => number(*x),
            ("weight_decay", [x]) if share(x) => number(*x),
            _ => return Err(g.bad(format!("{key} is none that AdamW takes"))),
        };
        said.push(format!("{key}: {value}"));
        j.line(key, value, g.from());
    }
    match left.is_empty() {
        true => j.says(OPTIMIZER_ARGUMENTS, "betas", said.join(", ")),
        false => {
            let names: Vec<&str> = left.keys().map(String::as_str).collect();
            j.lost(OPTIMIZER_ARGUMENTS, &format!("AdamW here has no {}", names.join(", ")));
        }
    }
    Ok(())
}

/// # Errors
/// Arguments that are no numbers, or out of their range.
pub(super) fn schedule(j: &mut Judge) -> Result<(), RecipeError> {
    warm_up(j)?;
    let Some(g) = j.get(SCHEDULE) else {
        for id in [SCHEDULE_ARGUMENTS, "scheduler_per_epoch"] {
            j.nothing(id, "no schedule is named beside it");
        }
        if j.is_given("lr_scheduler") || j.is_given("learning_rate_scheduler") {
            j.line("schedule", "constant", "lr_scheduler is none");
        }
        return Ok(());
    };
    let name = g.text()?;
    let mut left = j.get(SCHEDULE_ARGUMENTS).map_or(Ok(Arguments::new()), arguments)?;
    left.remove("last_epoch");
    let per = match j.get("scheduler_per_epoch").map(Given::flag).transpose()? {
        Some(false) => Per::Update,
        // Theirs where nothing is said.
        _ => Per::Epoch,
    };
    let word = if per == Per::Epoch { "counted in epochs" } else { "counted in updates" };
    j.says("scheduler_per_epoch", "schedule", format!("the schedule is {word}"));
    let rate = j.get("learning_rate").map(Given::real).transpose()?;
    let epochs = j.get("epochs").map(Given::real).transpose()?.filter(|_| per == Per::Epoch);
    match taken(&name, &mut left, (per, rate, epochs)) {
        Ok(schedule) if left.is_empty() => {
            j.used(SCHEDULE, "schedule", &schedule);
            j.says(SCHEDULE_ARGUMENTS, "schedule", "the schedule's numbers".to_owned());
        }
        taken => {
            let why = match taken {
                Ok(_) => {
                    let names: Vec<&str> = left.keys().map(String::as_str).collect();
                    format!("the schedule that is like it has no {}", names.join(", "))
                }
                Err(why) => why,
            };
            j.ask(SCHEDULE, Some("schedule"), &format!("{why}: write `schedule:`; here the rate stays"));
            j.nothing(SCHEDULE_ARGUMENTS, &format!("{name} is not taken over"));
            j.line("schedule", "constant", g.from());
        }
    }
    Ok(())
}

/// Returns the schedule of a class, and takes the arguments that it says; or why there is none.
fn taken(
    name: &str,
    left: &mut Arguments,
    (per, rate, epochs): (Per, Option<f64>, Option<f64>),
) -> Result<Schedule, String> {
    let mut one = |key: &str| match left.remove(key).as_deref() {
        Some([x]) => Some(*x),
        _ => None,
    };
    let of = |kind| Schedule { per, ..Schedule::of(kind) };
    let floor = |least: Option<f64>| least.map_or(Some(0.0), |least| Some(least / rate?));
    let no_rate = || "the least rate is a share of lr, which is not there".to_owned();
    match name {
        "MultiStepLR" => {
            let gamma = Some(one("gamma").unwrap_or(0.1));
            let at = left.remove("milestones").unwrap_or_default();
            match at.is_empty() {
                true => Ok(Schedule::of(ScheduleKind::Constant)),
                false => Ok(Schedule { at, gamma, ..of(ScheduleKind::Milestones) }),
            }
        }
        "StepLR" => {
            let (step, gamma) = (one("step_size"), Some(one("gamma").unwrap_or(0.1)));
            let (Some(step), Some(epochs)) = (step.filter(|s| *s >= 1.0), epochs) else {
                return Err("how often the rate falls follows from the run's length".to_owned());
            };
            let at: Vec<f64> =
                (1..=1000).map(|i| step * f64::from(i)).take_while(|at| *at < epochs).collect();
            match at.is_empty() {
                true => Ok(Schedule::of(ScheduleKind::Constant)),
                false => Ok(Schedule { at, gamma, ..of(ScheduleKind::Milestones) }),
            }
        }
        "ExponentialLR" => match one("gamma") {
            Some(gamma) => Ok(Schedule { gamma: Some(gamma), ..of(ScheduleKind::Exponential) }),
            None => Err("gamma is not there".to_owned()),
        },
        "CosineAnnealingWarmRestarts" => {
            let (period, growth, least) = (one("T_0"), one("T_mult"), one("eta_min"));
            let Some(period) = period else {
                return Err("T_0, the length of a fall, is not there".to_owned());
            };
            let growth = growth.filter(|growth| *growth != 1.0);
            let floor = floor(least).ok_or_else(no_rate)?;
            Ok(Schedule { period: Some(period), growth, floor, ..of(ScheduleKind::WarmRestarts) })
        }
        "CosineAnnealingLR" => {
            let (period, least) = (one("T_max"), one("eta_min"));
            match (period, epochs) {
                // Until its end, one fall of those with restarts.
                (Some(period), Some(epochs)) if epochs <= period => {
                    let floor = floor(least).ok_or_else(no_rate)?;
                    Ok(Schedule { period: Some(period), floor, ..of(ScheduleKind::WarmRestarts) })
                }
                _ => Err("it rises again after T_max, which no schedule here does".to_owned()),
            }
        }
        other => Err(format!("there is no {other}")),
    }
}

/// A switch for a warm-up whose length the trainer chooses.
fn warm_up(j: &mut Judge) -> Result<(), RecipeError> {
    match j.get("warm_up").map(Given::flag).transpose()? {
        Some(true) => {
            let question = "the trainer climbs from 1e-7 in the first 5 % of its epochs, at least one: write `warmup:` as a number of \
                            updates, `ambitus plan` says how many an epoch has";
            j.ask("warm_up", Some("warmup"), question);
        }
        _ => j.default("warm_up", "warmup", "there is no warm-up"),
    }
    Ok(())
}

/// Returns the arguments of a class.
fn arguments(g: &Given) -> Result<Arguments, RecipeError> {
    let bad = |name: &str| g.bad(format!("{name} is no number, nor a list of numbers"));
    let number = |tree: &Tree| match &tree.node {
        Node::Whole(n) => Some(*n as f64),
        Node::Real(x) => Some(*x),
        Node::Text(text) => text.parse().ok(),
        _ => None,
    };
    let Node::Map(items) = &g.node else { return Err(g.bad("is not a map of names and numbers")) };
    let mut all = Arguments::new();
    for (key, tree) in items {
        let values = match &tree.node {
            Node::Null => continue,
            Node::List(items) => items.iter().map(number).collect(),
            _ => number(tree).map(|x| vec![x]),
        };
        // Words (`mode`) are kept as names without numbers: the schedules that have them are not here.
        all.insert(
            key.name.clone(),
            match (values, &tree.node) {
                (Some(values), _) if values.iter().all(|x: &f64| x.is_finite()) => values,
                (None, Node::Text(_) | Node::Bool(_)) => Vec::new(),
                _ => return Err(bad(&key.name)),
            },
        );
    }
    Ok(all)
}
