//! A run that does not fit: what it needs, which changes of its options fit, and the least that any combination needs. Every
//! named change was planned in full, as it would be with those options appended to the command.

mod dims;
mod space;

#[cfg(test)]
mod tests;

use crate::asked::Asked;
use crate::budget::{RunPlan, Shape, phase};
use crate::data::Data;
use crate::device::Device;
use crate::resolved::Resolved;
use crate::search::{Free, search};
use ambitus_compile::passes::Numerics;
use ambitus_families::error::RunError;
use ambitus_families::family::ModelDir;
use ambitus_ir::target::Target;
use ambitus_recipe::recipe::Origins;
use ambitus_recipe::size::ByteSize;
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use space::Space;
use std::fmt;

/// Changes that are named.
const MOST: usize = 6;

/// Options to be appended to a command, and the plan that they lead to.
#[derive(Clone, Debug, Serialize)]
pub struct Named {
    /// As they are typed.
    pub options: String,
    /// The peak with them.
    pub peak_bytes: u64,
    /// Bytes of the host's memory that offloaded tensors take, in addition to the peak; on a CPU too.
    pub host_bytes: u64,
    /// Predicted seconds of an update.
    pub seconds: f64,
    /// What they do to numbers.
    #[serde(serialize_with = "shown")]
    pub numerics: Numerics,
}

fn shown<S: Serializer>(numerics: &Numerics, s: S) -> Result<S::Ok, S::Error> {
    s.collect_str(numerics)
}

/// A run that does not fit.
#[derive(Clone, Debug)]
pub struct Refusal {
    /// What it needs, and has.
    head: String,
    /// Predicted seconds of an update as it is asked for.
    seconds: f64,
    /// Changes that fit, the smallest change of numbers first.
    pub changes: Vec<Named>,
    /// The combination of options that needs least.
    pub least: Named,
    /// What to do besides changing options.
    advice: &'static str,
    /// The plan that does not fit, as JSON.
    plan: Value,
}

impl Refusal {
    /// Returns the plan with what could be changed.
    pub fn json(&self) -> Value {
        let mut json = self.plan.clone();
        json["changes"] = json!(self.changes);
        json["least"] = json!(self.least);
        json
    }
}

impl From<Refusal> for RunError {
    fn from(refusal: Refusal) -> RunError {
        RunError::Refused { why: refusal.to_string(), json: Box::new(refusal.json()) }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.head)?;
        if self.changes.is_empty() {
            let least = ByteSize(self.least.peak_bytes);
            let with = match &*self.least.options {
                "" => "as it is".to_owned(),
                options => format!("with\n    {options}"),
            };
            return write!(
                f,
                "\n  no change of options fits: the least that any combination of them needs is {least}, {with}\n  {}",
                self.advice
            );
        }
        f.write_str("\n  changes that fit, the smallest change of numbers first:")?;
        let width = self.changes.iter().map(|c| c.options.chars().count()).max().unwrap_or(0);
        for c in &self.changes {
            let time = 100.0 * (c.seconds / self.seconds - 1.0);
            let peak = ByteSize(c.peak_bytes).to_string();
            write!(f, "\n    {:<width$}  {peak:>9}  {time:+.0} % time  {}", c.options, c.numerics)?;
            if c.host_bytes > 0 {
                write!(f, ", {} of the host's memory besides", ByteSize(c.host_bytes))?;
            }
        }
        Ok(())
    }
}

/// Refuses a run whose plan exceeds its budget, or the host's, or what the device has free. Call before any weight is read.
///
/// # Errors
/// [`RunError::Refused`] with changes that fit, or the least that any needs; [`RunError::DoesNotFit`].
pub fn require_fit(r: &Resolved) -> Result<(), RunError> {
    require(r)?;
    r.device.require_free(r.plan.peak_bytes)
}

fn require(r: &Resolved) -> Result<(), RunError> {
    let over = r.plan.peak_bytes > r.budget;
    let (mut head, advice) = match r.host_refusal().filter(|_| !over) {
        Some(head) => (head, "raise --host-memory"),
        None if over => (head(&r.plan, r.budget), "raise --memory"),
        None => return Ok(()),
    };
    // A default budget: what the machine has, or what a limit leaves.
    if let Some(budget) =
        r.choices.iter().find(|c| over && c.key == "memory" && r.asked.recipe.memory.is_none())
    {
        head.push_str(&format!("\n  the budget is {}", budget.from));
    }
    if let Some(samples) = r.samples.as_ref().filter(|s| over && s.without_bytes <= r.budget) {
        let bytes = ByteSize(samples.without_bytes);
        head.push_str(&format!("\n  without its samples (--no-samples) it fits, in {bytes}"));
    }
    if over && r.plan.highest_phase() == phase::HEAR {
        head.push_str("\n  a smaller model in samples.heard_by takes less");
    }
    let proposals =
        Proposals { model: &r.model, asked: &r.asked, data: &r.data, device: &r.device, budget: r.budget };
    // A resumed run has its states already.
    let dims = match r.resumed {
        true => Vec::new(),
        false => dims::dims(&r.asked, &r.data, &r.device, &r.origins),
    };
    let advice =
        if r.resumed { "raise memory in its recipe.yaml, where options are changed too" } else { advice };
    let as_it_is = of_plan(&r.plan);
    let (changes, least) = match r.asked.is_long_to_refuse(r.budget) {
        false => proposals.all(dims),
        true => {
            head.push_str("\n  the model has too many instructions to try options one by one: all that save memory are tried together, if there is room");
            let only = r.plan.has_room_for_another(r.budget).then(|| proposals.space(dims).only()).flatten();
            (only.clone().into_iter().filter(|only| proposals.fits(only)).collect(), only)
        }
    };
    let (least, seconds) = (least.unwrap_or(as_it_is), r.plan.step_seconds);
    Err(Refusal { head, seconds, changes, least, advice, plan: r.json() }.into())
}

/// Returns the first change with which a run fits a device, or what it needs at least.
pub fn first(
    model: &ModelDir,
    asked: &Asked,
    data: &Data,
    (device, budget): (&Device, u64),
) -> Result<Named, Option<Named>> {
    let proposals = Proposals { model, asked, data, device, budget };
    let space = proposals.space(dims::dims(asked, data, device, &Origins::new()));
    let is_long = asked.is_long_to_refuse(budget);
    let smallest = if is_long { Vec::new() } else { space.smallest(1) };
    let least = || if is_long { space.only() } else { space.least() };
    match smallest.into_iter().next().or_else(least) {
        Some(named) if proposals.fits(&named) => Ok(named),
        least => Err(least),
    }
}

/// Refuses one plan that exceeds its budget, with what is left open for it.
///
/// # Errors
/// [`RunError::Refused`], or failures of planning the alternatives.
pub fn require_plan(
    plan: &RunPlan,
    shape: &Shape,
    every: &Free,
    budget: u64,
    target: &dyn Target,
) -> Result<(), RunError> {
    if plan.peak_bytes <= budget {
        return Ok(());
    }
    let candidates = search(shape, every, budget, target)?.candidates;
    let named = |c: &crate::search::Candidate| Named {
        options: c.options.clone(),
        peak_bytes: c.peak_bytes,
        host_bytes: 0,
        seconds: c.seconds,
        numerics: c.numerics,
    };
    let fitting = candidates.iter().filter(|c| c.planned && c.verdict.fits()).take(MOST);
    let least = candidates.iter().min_by_key(|c| c.peak_bytes).map_or_else(|| of_plan(plan), named);
    let refusal = Refusal {
        head: head(plan, budget),
        seconds: plan.step_seconds,
        changes: fitting.map(named).collect(),
        least,
        advice: "raise --memory",
        plan: Value::Null,
    };
    Err(refusal.into())
}

/// Returns what a plan needs, and where.
fn head(plan: &RunPlan, budget: u64) -> String {
    let [needs, has] = ByteSize(plan.peak_bytes).apart(ByteSize(budget));
    format!(
        "does not fit: needs {needs}, budget {has} ({} short), in {}\n  {}",
        ByteSize(plan.peak_bytes - budget),
        plan.peak_place(),
        plan.categories.line()
    )
}

fn of_plan(plan: &RunPlan) -> Named {
    Named {
        options: String::new(),
        peak_bytes: plan.peak_bytes,
        host_bytes: plan.host_bytes(),
        seconds: plan.step_seconds,
        numerics: Numerics::Exact,
    }
}

/// What is asked for, and where.
#[derive(Clone, Copy)]
struct Proposals<'r> {
    model: &'r ModelDir,
    asked: &'r Asked,
    data: &'r Data,
    device: &'r Device,
    budget: u64,
}

impl<'r> Proposals<'r> {
    fn space(&self, dims: Vec<dims::Dim>) -> Space<'r> {
        Space::new(*self, dims)
    }

    /// Changes that fit, and the least.
    fn all(&self, dims: Vec<dims::Dim>) -> (Vec<Named>, Option<Named>) {
        let space = self.space(dims);
        let (mut changes, mut least) = (space.smallest(MOST), space.least());
        if changes.is_empty() {
            if !least.as_ref().is_some_and(|least| self.fits(least)) {
                least = space.at_the_edge().or(least);
            }
            changes.extend(least.clone().filter(|least| self.fits(least)));
        }
        (changes, least)
    }

    fn fits(&self, named: &Named) -> bool {
        named.peak_bytes <= self.budget
            && self.asked.host_room(self.device).holds(named.host_bytes, named.peak_bytes)
    }
}
