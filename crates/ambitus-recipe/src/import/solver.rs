//! Configurations that hydra composes for a solver: sections of optimizer, schedule, average, data and conditions. Which section of
//! the schedule counts, and in what it computes, other keys say.

use super::given::Given;
use super::judge::Judge;
use super::lines::number;
use super::{Folders, Verdict};
use crate::recipe::{OptimizerChoice, Precision, RecipeError, Schedule, ScheduleKind, Strategy, short};

/// The recipe's own bound on counts.
const MOST: u64 = 1 << 31;

/// What a solver's keys say, and what it does where they are absent.
#[derive(Clone, Copy, Debug)]
pub struct Solver {
    /// Names that are judged here or elsewhere, and its keys.
    pub keys: &'static [(&'static str, &'static [&'static str])],
    /// Its keys whose values are shares of one, and the key of the recipe that each is.
    pub shares: &'static [(&'static str, &'static str)],
    /// Its keys that are on or off, and the key of the recipe that each is.
    pub switches: &'static [(&'static str, &'static str)],
    /// Its keys that, where they are on, do what is not done here, and why.
    pub lost: &'static [(&'static str, &'static str)],
    /// Epochs of a run, and updates of an epoch.
    pub length: (u64, u64),
    /// Decay of the average, which moves once an epoch.
    pub decay: f64,
}

/// Sections of the schedule, of which one counts, by their keys.
const SCHEDULES: &[&str] = &[
    "schedule.cosine.warmup",
    "schedule.cosine.lr_min_ratio",
    "schedule.cosine.cycle_length",
    "schedule.polynomial_decay.warmup",
    "schedule.polynomial_decay.zero_lr_warmup_steps",
    "schedule.polynomial_decay.end_lr",
    "schedule.polynomial_decay.power",
    "schedule.inverse_sqrt.warmup",
    "schedule.inverse_sqrt.warmup_init_lr",
    "schedule.linear_warmup.warmup",
    "schedule.linear_warmup.warmup_init_lr",
    "schedule.step.step_size",
    "schedule.step.gamma",
    "schedule.exponential.lr_decay",
];

/// Returns what says a key of a section of the schedule.
fn within<'a>(j: &Judge<'a>, section: &str, key: &str) -> Option<&'a Given> {
    let path = format!("schedule.{section}.{key}");
    SCHEDULES.iter().find(|id| **id == path).and_then(|id| j.get(id))
}

impl Solver {
    /// Returns under which name a key by its path is judged.
    pub(super) fn judged(&self, path: &str) -> Option<&'static str> {
        let named = self.keys.iter().find(|(_, paths)| paths.contains(&path)).map(|(id, _)| *id);
        let own = || {
            let pairs = self.shares.iter().chain(self.switches).chain(self.lost).map(|(own, _)| *own);
            pairs.chain(SCHEDULES.iter().copied())
        };
        named.or_else(|| own().find(|own| *own == path))
    }
}

/// Returns the batch in words, where the files say it.
///
/// # Errors
/// Values that the recipe would refuse, at their place.
pub(super) fn solver(j: &mut Judge, of: &Solver, folders: &Folders) -> Result<Option<String>, RecipeError> {
    composed(j, folders)?;
    let epoch = length(j, of)?;
    optimizer(j)?;
    average(j, of, epoch)?;
    schedule(j)?;
    precision(j)?;
    sharding(j)?;
    for (path, key) in of.shares {
        if let Some(g) = j.get(path) {
            j.used(path, key, number(share(g)?));
        }
    }
    for (path, key) in of.switches {
        if let Some(g) = j.get(path) {
            j.used(path, key, g.flag()?);
        }
    }
    for (path, why) in of.lost {
        match j.get(path) {
            Some(g) if g.is_off() => j.always(path, "it is off"),
            _ => j.lost(path, why),
        }
    }
    match j.get("solver.recompute").map(Given::text).transpose()?.as_deref() {
        Some("torch") => j.used("solver.recompute", "checkpoint", "all"),
        _ => j.default(
            "solver.recompute",
            "checkpoint",
            "recomputes only what the budget needs; `checkpoint: none` forbids it",
        ),
    }
    let Some(g) = j.get("solver.batch") else { return Ok(None) };
    let n = g.count(1, MOST)?;
    j.used("solver.batch", "batch", format!("{{clips: {n}}}"));
    Ok(Some(format!("{n} clips (of all ranks together)")))
}

/// Files that others name, and what is taken up where it was left.
fn composed(j: &mut Judge, folders: &Folders) -> Result<(), RecipeError> {
    if let Some(g) = j.get("solver.file") {
        let name = g.text()?;
        match name.contains('/') {
            true if j.reads(&format!("{name}.yaml")) => {
                j.say("solver.file", Verdict::Used(format!("`{}` is read beside it", short(&name))));
            }
            true => {
                let name = short(&name);
                j.ask(
                    "solver.file",
                    None,
                    &format!("it names a file: give config/solver/{name}.yaml as well"),
                );
            }
            false => j.nothing("solver.file", "what is trained, the model's folder says (model.dir)"),
        }
    }
    if let Some(g) = j.get("solver.continued") {
        match folders.model {
            Some(_) => j.nothing("solver.continued", "--model names the folder"),
            None => {
                let question = format!(
                    "`{}` is not downloaded: say where its folder lies on this disk (--model DIR, or `model: {{dir: …}}`)",
                    short(&g.text()?)
                );
                j.ask("solver.continued", Some("model.dir"), &question);
            }
        }
    }
    Ok(())
}

/// A run's length, and what happens once an epoch. Returns its updates, where they are known.
fn length(j: &mut Judge, of: &Solver) -> Result<Option<u64>, RecipeError> {
    const IDS: [&str; 2] = ["solver.epochs", "solver.updates"];
    if let Some(g) = j.code(&IDS) {
        let question = format!("{} is code, and updates are the product: write `updates:`", g.full());
        IDS.into_iter().for_each(|id| j.ask(id, Some("updates"), &question));
        return Ok(None);
    }
    if j.is_given("optim.updates_per_epoch") && j.get(IDS[1]).is_none() {
        let why = "optim.updates_per_epoch is none: an epoch is as long as the data there; write `updates:`";
        j.note(Some("updates"), why.to_owned());
        j.ask(
            IDS[0],
            Some("updates"),
            "how many updates an epoch has follows from the data: write `updates:`",
        );
        return Ok(None);
    }
    let count = |id| j.get(id).map(|g| g.count(1, MOST).map(|n| (g, n))).transpose();
    let (epochs, updates) = (count(IDS[0])?, count(IDS[1])?);
    let (n, each) = (epochs.map_or(of.length.0, |(_, n)| n), updates.map_or(of.length.1, |(_, n)| n));
    let all = n.checked_mul(each).filter(|all| *all <= MOST);
    let Some(all) = all else {
        let why = format!("{n} epochs of {each} updates are more than {MOST}");
        return match epochs.or(updates) {
            Some((g, _)) => Err(g.bad(why)),
            None => Ok(None),
        };
    };
    let from = match epochs.or(updates) {
        Some((g, _)) => g.from(),
        None => "its trainer's".to_owned(),
    };
    let from = format!("{n} epochs of {each} updates; {from}");
    j.line("updates", all, &from);
    j.line("save_every", each, "after each epoch");
    j.line("validate_every", each, "after each epoch");
    let said =
        format!("updates: {all}, {n} epochs of {each}, after each of which the run is saved and validated");
    IDS.into_iter().for_each(|id| j.says(id, "updates", said.clone()));
    if let Some(g) = j.get("solver.keep") {
        j.used("solver.keep", "keep", g.count(1, u64::from(u32::MAX >> 1))?);
    }
    Ok(Some(each))
}

fn optimizer(j: &mut Judge) -> Result<(), RecipeError> {
    const RATE: &str = "solver.rate";
    let name = j.get("solver.optimizer").map(Given::text).transpose()?.unwrap_or_default();
    let decays = j.get("weight_decay").map(Given::real).transpose()?.is_some_and(|x| x > 0.0);
    match &*name.to_ascii_lowercase() {
        "dadam" => {
            j.lost(
                "solver.optimizer",
                "D-Adaptation, which finds the rate itself, is not there: AdamW is taken",
            );
            let question = "it is a factor of the rate that D-Adaptation finds, and AdamW's here is the family's: write \
                            `learning_rate:` if you know a better one";
            j.ask(RATE, Some("learning_rate"), question);
        }
        "adam" if decays => {
            let why = "Adam adds weight decay to the gradient; AdamW, which is taken, to the weight";
            j.lost("solver.optimizer", why);
        }
        "" | "adam" | "adamw" => {
            j.default("solver.optimizer", "optimizer", "AdamW with moments in fp32");
        }
        _ => j.lost("solver.optimizer", &OptimizerChoice::known()),
    }
    if let Some(g) = j.get(RATE) {
        let x = g.real()?;
        if x <= 0.0 || x > 1.0 {
            return Err(g.bad(format!("{x} is not above 0 and at most 1")));
        }
        if name != "dadam" {
            j.used(RATE, "learning_rate", number(x));
        }
    }
    if let Some(g) = j.get("solver.betas") {
        let betas = match g.reals()?.as_slice() {
            [one, two] if [one, two].iter().all(|x| (0.0..1.0).contains(*x)) => [*one, *two],
            _ => return Err(g.bad(format!("{} is not two numbers from 0 to below 1", g.shown()))),
        };
        j.used("solver.betas", "betas", format!("[{}, {}]", number(betas[0]), number(betas[1])));
    }
    // None is no bound there, and 1 here.
    if j.is_given("optim.max_norm") && j.get("max_grad_norm").is_none() {
        j.absent(&["max_grad_norm"], "clip", "1e9", "optim.max_norm is none, so nothing is clipped");
    }
    Ok(())
}

fn average(j: &mut Judge, of: &Solver, epoch: Option<u64>) -> Result<(), RecipeError> {
    const IDS: [&str; 3] = ["solver.average", "solver.average.decay", "solver.average.every"];
    if let Some(g) = j.code(&IDS) {
        let question = format!("{} is code, and the three are one key: write `ema:`", g.full());
        IDS.into_iter().for_each(|id| j.ask(id, Some("ema"), &question));
        return Ok(());
    }
    let Some(g) = j.get(IDS[0]) else {
        IDS.into_iter().for_each(|id| j.nothing(id, "no average is kept unless optim.ema.use is true"));
        return Ok(());
    };
    if !g.flag()? {
        j.used(IDS[0], "ema", false);
        IDS.into_iter().for_each(|id| j.nothing(id, "no average is kept"));
        return Ok(());
    }
    let decay = j.get(IDS[1]).map_or(Ok(of.decay), share)?;
    if decay >= 1.0
        && let Some(g) = j.get(IDS[1])
    {
        return Err(g.bad("an average of decay 1 never moves: write less"));
    }
    let Some(every) = j.get(IDS[2]).map(|g| g.count(1, MOST)).transpose()?.or(epoch) else {
        let question =
            "it moves once an epoch, whose updates follow from the data: write `ema: {decay: …, every: …}`";
        IDS.into_iter().for_each(|id| j.ask(id, Some("ema"), question));
        return Ok(());
    };
    let value = format!("{{decay: {}, every: {every}}}", number(decay));
    IDS.into_iter().for_each(|id| j.used(id, "ema", &value));
    Ok(())
}

/// The schedule, of whose sections one counts.
fn schedule(j: &mut Judge) -> Result<(), RecipeError> {
    const NAME: &str = "solver.schedule";
    let Some(g) = j.get(NAME) else {
        if j.code(&[NAME]).is_none() {
            j.line("schedule", "constant", "its trainer's, where schedule.lr_scheduler is absent or none");
            j.line("warmup", 0, "its trainer's, where schedule.lr_scheduler is absent or none");
        }
        SCHEDULES.iter().for_each(|id| j.nothing(id, "schedule.lr_scheduler names none"));
        return Ok(());
    };
    let name = g.text()?;
    let real = |j: &Judge, key: &str, or: f64| {
        within(j, &name, key).map(Given::real).transpose().map(|x| x.unwrap_or(or))
    };
    let rate = j.get("solver.rate").map(Given::real).transpose()?.unwrap_or(1.0);
    let of = Schedule::of;
    let taken = match &*name {
        "cosine" => {
            let floor = within(j, &name, "lr_min_ratio").map_or(Ok(0.0), share)?;
            let length = real(j, "cycle_length", 1.0)?;
            if let Some(g) = within(j, &name, "cycle_length").filter(|_| length <= 0.0) {
                return Err(g.bad(format!("{length} is not above 0")));
            }
            // Its wave is cos(π s / length), ours cos(2 π s cycles).
            Ok(Schedule { floor, cycles: (length != 1.0).then(|| 0.5 / length), ..of(ScheduleKind::Cosine) })
        }
        "polynomial_decay"
            if real(j, "power", 1.0)? == 1.0 && real(j, "zero_lr_warmup_steps", 0.0)? == 0.0 =>
        {
            let (least, most) = (real(j, "end_lr", 0.0)?, rate);
            match within(j, &name, "end_lr").filter(|_| !(0.0..=most).contains(&least)) {
                Some(g) => return Err(g.bad(format!("{least} is not from 0 to the rate, {most}"))),
                None => Ok(Schedule { floor: least / most, ..of(ScheduleKind::Linear) }),
            }
        }
        // Theirs is an update ahead: it counts from 1.
        "inverse_sqrt" if real(j, "warmup_init_lr", 0.0)? == 0.0 => Ok(of(ScheduleKind::InverseSqrt)),
        "linear_warmup" if real(j, "warmup_init_lr", 0.0)? == 0.0 => Ok(of(ScheduleKind::Constant)),
        "polynomial_decay" => Err("its power is 1 and it begins at once"),
        "inverse_sqrt" | "linear_warmup" => Err("warm-up begins at 0"),
        "step" | "exponential" => Err("a rate that falls by a factor is `milestones` or `exponential`"),
        _ => Err("there is no such schedule"),
    };
    match taken {
        Ok(schedule) => {
            j.used(NAME, "schedule", &schedule);
            match within(j, &name, "warmup") {
                Some(g) => j.line("warmup", g.count(0, MOST)?, g.from()),
                None => j.line("warmup", 0, format!("schedule.{name}.warmup is none")),
            }
            let chosen = format!("schedule.{name}.");
            for id in SCHEDULES.iter().filter(|id| id.starts_with(&chosen)) {
                let (key, said) = match id.ends_with(".warmup") {
                    true => ("warmup", "warm-up, in updates".to_owned()),
                    false => ("schedule", format!("schedule: {schedule}")),
                };
                j.says(id, key, said);
            }
        }
        Err(why) => {
            j.ask(NAME, Some("schedule"), &format!("{why}: write `schedule:`; here the rate stays"));
            j.line("schedule", "constant", g.from());
        }
    }
    SCHEDULES.iter().for_each(|id| j.nothing(id, &format!("schedule.lr_scheduler is {}", short(&name))));
    Ok(())
}

/// What it computes in: the shards' type, or autocast's.
fn precision(j: &mut Judge) -> Result<(), RecipeError> {
    const SHARDED: &str = "solver.sharded.type";
    let on = |j: &Judge, id, or| j.get(id).map(Given::flag).transpose().map(|on| on.unwrap_or(or));
    let sharded = on(j, "solver.sharded", false)?;
    let cast = on(j, "solver.cast", true)?;
    let (id, nothing) = match (sharded, cast) {
        (true, _) => (SHARDED, "fsdp.param_dtype says it where FSDP is used"),
        (false, true) => ("solver.cast.type", "autocast says in which type, where FSDP is not used"),
        (false, false) => ("solver.cast", "nothing is cast, unless autocast or FSDP is used"),
    };
    if j.code(&["solver.sharded", "solver.cast", id]).is_some() {
        return Ok(());
    }
    let word = match j.get(id) {
        Some(_) if id == "solver.cast" => Some("float32".to_owned()),
        found => found.map(Given::text).transpose()?,
    };
    let (chosen, from) = match (word.as_deref(), j.get(id)) {
        (None, _) => (Precision::Fp16Mixed, "float16, its trainer's".to_owned()),
        (Some("float16"), Some(g)) => (Precision::Fp16Mixed, g.from()),
        (Some("bfloat16"), Some(g)) => (Precision::Bf16Mixed, g.from()),
        (Some("float32"), Some(g)) => (Precision::Fp32, g.from()),
        (_, Some(g)) => return Err(g.bad(format!("`{}` is not float32, float16 or bfloat16", g.shown()))),
        (_, None) => return Ok(()),
    };
    j.line("precision", chosen, from);
    for said in [id, if sharded { SHARDED } else { "solver.cast" }] {
        j.says(said, "precision", format!("precision: {chosen}"));
    }
    for other in ["solver.cast", "solver.cast.type", SHARDED, "solver.type"] {
        j.nothing(other, nothing);
    }
    Ok(())
}

fn sharding(j: &mut Judge) -> Result<(), RecipeError> {
    const USE: &str = "solver.sharded";
    const STRATEGY: &str = "solver.sharded.strategy";
    let word = j.get(STRATEGY).map(Given::text).transpose()?;
    let strategy = match word.as_deref() {
        None | Some("shard_grad_op") => Strategy::GradOp,
        Some("full_shard") => Strategy::Full,
        Some("no_shard") => Strategy::None,
        Some(_) => {
            j.ask(
                STRATEGY,
                Some("sharding.strategy"),
                "write `sharding: {strategy: …}`: full, grad_op or none",
            );
            Strategy::GradOp
        }
    };
    if !j.get(USE).map(Given::flag).transpose()?.unwrap_or(false) {
        j.nothing(USE, "every rank holds the whole model there");
        j.nothing(STRATEGY, "fsdp.use is off");
        return Ok(());
    }
    let from = j.get(STRATEGY).or(j.get(USE)).map_or_else(String::new, Given::from);
    j.line("sharding.strategy", strategy, from);
    j.line("sharding.units", "block", "a block at a time is gathered, as with fsdp.per_block");
    for id in [USE, STRATEGY] {
        j.says(id, "sharding.strategy", format!("sharding.strategy: {strategy}"));
    }
    j.note(
        Some("ranks"),
        "its files do not say over how many ranks: write `ranks:` in the recipe".to_owned(),
    );
    Ok(())
}

/// Returns a share of one.
fn share(g: &Given) -> Result<f64, RecipeError> {
    let x = g.real()?;
    if (0.0..=1.0).contains(&x) { Ok(x) } else { Err(g.bad(format!("{x} is not from 0 to 1"))) }
}
