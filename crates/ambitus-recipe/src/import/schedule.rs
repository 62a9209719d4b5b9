//! transformers' `lr_scheduler_type` and `lr_scheduler_kwargs`.

use super::given::Given;
use super::judge::Judge;
use crate::recipe::tree::Node;
use crate::recipe::{RecipeError, Schedule, ScheduleKind};
use std::collections::BTreeMap;

/// transformers' rate where none is given, and what `polynomial` falls to.
const RATE: f64 = 5e-5;
const POLYNOMIAL_END: f64 = 1e-7;

/// Says the schedule. `false`: it has no warm-up, whatever else is given.
pub(super) fn schedule(j: &mut Judge) -> Result<bool, RecipeError> {
    let Some(given) = j.get("lr_scheduler_type") else {
        j.nothing("lr_scheduler_kwargs", "without lr_scheduler_type the schedule has no such numbers");
        return Ok(true);
    };
    let name = given.text()?.to_ascii_lowercase();
    let name = name.rsplit('.').next().unwrap_or_default();
    let mut left = j.get("lr_scheduler_kwargs").map_or(Ok(BTreeMap::new()), numbers)?;
    let rate = j.get("learning_rate").map_or(Ok(RATE), Given::real)?;
    let of = Schedule::of;
    let taken = match name {
        "linear" => Some(of(ScheduleKind::Linear)),
        "constant" | "constant_with_warmup" => Some(of(ScheduleKind::Constant)),
        "cosine" => Some(Schedule { cycles: left.remove("num_cycles"), ..of(ScheduleKind::Cosine) }),
        "cosine_with_restarts" => {
            Some(Schedule { cycles: left.remove("num_cycles"), ..of(ScheduleKind::CosineRestarts) })
        }
        "cosine_with_min_lr" => {
            let (share, least) = (left.remove("min_lr_rate"), left.remove("min_lr").map(|min| min / rate));
            let floor = share.or(least).unwrap_or(0.0);
            Some(Schedule { floor, cycles: left.remove("num_cycles"), ..of(ScheduleKind::Cosine) })
        }
        "polynomial" if left.get("power").is_none_or(|power| *power == 1.0) => {
            left.remove("power");
            let floor = left.remove("lr_end").unwrap_or(POLYNOMIAL_END) / rate;
            Some(Schedule { floor, ..of(ScheduleKind::Linear) })
        }
        "inverse_sqrt" => {
            Some(Schedule { timescale: left.remove("timescale"), ..of(ScheduleKind::InverseSqrt) })
        }
        _ => None,
    };
    match &taken {
        Some(schedule) => j.used("lr_scheduler_type", "schedule", schedule),
        None => {
            let why = "there is no such schedule; the rate falls linearly to zero after warm-up";
            j.lost("lr_scheduler_type", why);
            j.line("schedule", of(ScheduleKind::Linear), given.from());
        }
    }
    match left.is_empty() && taken.is_some() {
        true => j.says("lr_scheduler_kwargs", "schedule", "the schedule's numbers".to_owned()),
        false => {
            let names: Vec<&str> = left.keys().map(String::as_str).collect();
            let why = format!("the schedule that is taken has no {}", names.join(", "));
            j.lost("lr_scheduler_kwargs", &why);
        }
    }
    Ok(name != "constant")
}

/// Returns a map of names and numbers, or JSON of one.
fn numbers(given: &Given) -> Result<BTreeMap<String, f64>, RecipeError> {
    let bad = || given.bad(format!("{} is not a map of names and numbers", given.shown()));
    match &given.node {
        Node::Map(items) => {
            let number = |node: &Node| match node {
                Node::Whole(n) => Some(*n as f64),
                Node::Real(x) => Some(*x),
                Node::Text(text) => text.parse().ok(),
                _ => None,
            };
            let one = |(key, tree): &(_, crate::recipe::tree::Tree)| {
                let key: &crate::recipe::tree::Key = key;
                Some((key.name.clone(), number(&tree.node).filter(|x| x.is_finite())?))
            };
            items.iter().map(one).collect::<Option<_>>().ok_or_else(bad)
        }
        Node::Text(text) => serde_json::from_str(text).map_err(|_| bad()),
        _ if given.is_null() => Ok(BTreeMap::new()),
        _ => Err(bad()),
    }
}
