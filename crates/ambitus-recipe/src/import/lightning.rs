//! PyTorch Lightning's Trainer, by flags, `config.yaml` or `hparams.yaml`, with a model that two optimizers train against each other.
//!
//! What a checkpoint brings is part of what its numbers mean: Lightning goes on at the checkpoint's own epoch, and restores its rates.

mod devices;

use super::given::Given;
use super::judge::Judge;
use super::lines::number;
use super::world::World;
use super::{Folders, Verdict};
use crate::recipe::tree::Node;
use crate::recipe::{MAX_RANKS, Per, Precision, RecipeError, Schedule, ScheduleKind, short};

/// The recipe's own bound on counts.
const MOST: u64 = 1 << 31;
/// Speakers of a model, at most.
const MOST_SPEAKERS: u64 = 1 << 16;
/// A norm that no gradient has.
const UNBOUNDED: &str = "1e9";

const RATE: &str = "lightning.rate";
const BETAS: &str = "lightning.betas";
const OTHER_RATE: &str = "lightning.rate.other";
const OTHER_BETAS: &str = "lightning.betas.other";
const GAMMA: &str = "lightning.gamma";
const EPOCHS: &str = "lightning.epochs";
const STEPS: &str = "lightning.steps";
const CONTINUED: &str = "lightning.continued";
const BEGUN: &str = "lightning.begun";
const PARTS: &str = "lightning.parts";
const SINGLE: &str = "lightning.single";
const SPEAKERS: &str = "lightning.speakers";

/// What such a trainer does where its keys are absent, and which of its keys say what.
#[derive(Clone, Copy, Debug)]
pub struct Lightning {
    /// The trainer steps its optimizers itself: Lightning then refuses to clip, and to sum the gradients of batches.
    pub manual: bool,
    /// Clips of a batch on one device. `None`: it has to be said.
    pub clips: Option<u64>,
    /// Epochs. `None`: until it is stopped.
    pub epochs: Option<u64>,
    /// Rate and betas of AdamW.
    pub adamw: (f64, [f64; 2]),
    /// Those of the second optimizer, where it has its own, and which player of the recipe it trains.
    pub other: Option<(&'static str, f64, [f64; 2])>,
    /// Factor of the rate after each epoch. `None`: the rate stays.
    pub gamma: Option<f64>,
    /// Share of the clips that is held out.
    pub validation: f64,
    /// In fp32, it lets GPUs multiply in TF32.
    pub tf32: bool,
    /// Its keys that the checkpoint's options say here, and what they are where nothing says them.
    pub stated: &'static [(&'static str, f64)],
    /// Its keys that, where they are on, do what is not done here, and why.
    pub lost: &'static [(&'static str, &'static str)],
    /// Its keys that count for a model without a checkpoint, and which key of the recipe each is.
    pub scratch: &'static [(&'static str, &'static str)],
    /// The recipe's key of the parts that are taken of a checkpoint, and what it is where a trainer takes a part.
    pub parts: Option<(&'static str, &'static str)>,
    /// The recipe's key of how many speakers a model has, where a checkpoint does not say it.
    pub speakers: Option<&'static str>,
    /// Its keys of which one word turns on a key of the recipe.
    pub words: &'static [(&'static str, &'static str, &'static str)],
}

impl Lightning {
    /// Returns under which name a key by its path is judged.
    pub(super) fn judged(&self, path: &str) -> Option<&'static str> {
        let stated = self.stated.iter().map(|(own, _)| *own);
        let pairs = self.lost.iter().chain(self.scratch).map(|(own, _)| *own);
        let mut all = stated.chain(pairs).chain(self.words.iter().map(|(own, ..)| *own));
        all.find(|own| *own == path)
    }
}

/// # Errors
/// Values that the recipe would refuse, at their place.
pub(super) fn lightning(
    j: &mut Judge,
    of: &Lightning,
    world: &mut World,
    folders: &Folders,
) -> Result<(), RecipeError> {
    devices::devices(j, world)?;
    if let (Some(clips), Some(n @ 2..), None) = (of.clips, world.ranks, j.get("per_device")) {
        let from = format!("its trainer's {clips} on each device, where the batch is absent");
        j.absent(&["per_device"], "batch", format!("{{clips: {}}}", clips * n), from);
    }
    let begun = begun(j, of, folders)?;
    length(j, of, &begun)?;
    rates(j, of, &begun)?;
    precision(j, of)?;
    clip(j, of)?;
    data(j, of, folders)?;
    if let Some(g) = j.get("lightning.seed") {
        match g.node {
            Node::Bool(_) => {
                j.default("lightning.seed", "seed", "it names no seed: the recipe's own is taken")
            }
            _ => j.used("lightning.seed", "seed", g.count(0, i64::MAX as u64)?),
        }
    }
    own(j, of, &begun)
}

/// What a run begins with.
struct Begun {
    /// A checkpoint whose run goes on, with its counters and optimizers.
    continued: bool,
    /// A checkpoint whose weights alone are taken.
    weights: bool,
    /// Epochs and steps of the checkpoint whose run goes on, as its name says them.
    epochs: Option<u64>,
    steps: Option<u64>,
}

/// Returns the number behind `key=` in a file's name.
fn named(file: &str, key: &str) -> Option<u64> {
    let name = file.rsplit(['/', '\\']).next()?;
    let (_, rest) = name.split_once(&format!("{key}="))?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..end].parse().ok().filter(|n| *n < MOST)
}

/// The checkpoints that it begins with, which are files of the model's folder here.
fn begun(j: &mut Judge, of: &Lightning, folders: &Folders) -> Result<Begun, RecipeError> {
    let has = |j: &Judge, id| j.get(id).is_some() || j.code(&[id]).is_some();
    let file = j.get(CONTINUED).map(Given::text).transpose()?.unwrap_or_default();
    let begun = Begun {
        continued: has(j, CONTINUED),
        weights: [BEGUN, PARTS, SINGLE].iter().any(|id| has(j, id)),
        // The number of an epoch counts from 0.
        epochs: named(&file, "epoch").map(|n| n + 1),
        steps: named(&file, "step"),
    };
    parts(j, of, &begun)?;
    for id in [CONTINUED, BEGUN, PARTS, SINGLE] {
        let Some(g) = j.get(id) else { continue };
        let file = short(&g.text()?);
        match folders.model {
            Some(_) => j.nothing(id, "--model names the folder"),
            None => {
                let question = format!(
                    "put {file} into a folder as model.ckpt, beside its config.json, and name the folder: --model DIR, or \
                     `model: {{dir: …}}`"
                );
                j.ask(id, Some("model.dir"), &question);
            }
        }
    }
    if !begun.continued && !begun.weights {
        let why = "no checkpoint is named: a new voice is trained there, from random weights. `model: {from_scratch: true}` does so; \
                   without it the folder's weights are trained on";
        j.note(Some("model.dir"), why.to_owned());
    }
    Ok(begun)
}

/// What of a checkpoint is taken, and how many speakers the model has.
///
/// # Errors
/// A number of speakers that no model has.
fn parts(j: &mut Judge, of: &Lightning, begun: &Begun) -> Result<(), RecipeError> {
    let both = [CONTINUED, BEGUN].iter().any(|id| j.get(id).is_some());
    match of.parts {
        Some(_) if both => {
            let question =
                "parts of two checkpoints are put together there; here a run begins with one of them: which?";
            j.ask(PARTS, Some("model.dir"), question);
        }
        Some((key, value)) => j.used(PARTS, key, value),
        None => {}
    }
    let Some(key) = of.speakers else { return Ok(()) };
    match j.get(SPEAKERS).map(|g| g.count(1, MOST_SPEAKERS)).transpose()? {
        _ if begun.continued => j.nothing(SPEAKERS, "the checkpoint says it"),
        Some(1) if !begun.weights => j.default(SPEAKERS, key, "one, where config.json says no other number"),
        Some(n) => j.used(SPEAKERS, key, n),
        None if j.get(SINGLE).is_some() => {
            let why = format!(
                "a checkpoint of one speaker begins a model of several there, as many as num_speakers in the dataset's config.json: write them \
                 as `{key}`"
            );
            j.note(Some(key), why);
        }
        None => {}
    }
    Ok(())
}

/// A run's length, which Lightning counts from the beginning of the checkpoint's own run.
fn length(j: &mut Judge, of: &Lightning, begun: &Begun) -> Result<(), RecipeError> {
    let steps = match j.get(STEPS) {
        Some(g) if g.whole()? > 0 => Some((g, g.count(1, MOST)?)),
        _ => None,
    };
    if let Some((g, all)) = steps {
        let done = if begun.continued { begun.steps } else { Some(0) };
        // Each of the two optimizers counts.
        let updates = all.saturating_sub(done.unwrap_or(0)).div_ceil(2);
        match (done, updates) {
            (Some(_), 0) => {
                j.ask(STEPS, Some("updates"), "the checkpoint has them already: write `updates:`")
            }
            (done, _) => {
                let less = match done {
                    Some(0) => String::new(),
                    Some(done) => format!(", less the checkpoint's {done}"),
                    None => {
                        ", the checkpoint's own among them, whose number its name does not say".to_owned()
                    }
                };
                let said =
                    format!("updates: {updates}; each is two steps there, one of each optimizer{less}");
                j.line("updates", updates, g.from());
                match done {
                    Some(_) => j.says(STEPS, "updates", said),
                    None => j.ask(STEPS, Some("updates"), &format!("{said}: write how many are to be added")),
                }
            }
        }
        j.lost(EPOCHS, "max_steps is taken; its trainer ends at whichever comes first");
        return Ok(());
    }
    j.default(STEPS, "updates", "the length is said in epochs");
    let Some(g) = j.get(EPOCHS) else {
        if j.code(&[EPOCHS, STEPS]).is_some() {
            return Ok(());
        }
        let done = begun.epochs.unwrap_or(0);
        match of.epochs {
            Some(n) if n > done => j.line("epochs", n - done, format!("of {n}, where max_epochs is absent")),
            Some(n) => {
                let why = format!(
                    "max_epochs is absent: {n} are meant there, and the checkpoint has {done}: write `epochs:`, how many are to be added"
                );
                j.note(Some("epochs"), why);
            }
            None => {
                let why = "max_epochs is absent: it trains there until it is stopped; write `epochs:`, without which 1000 updates are trained";
                j.note(Some("epochs"), why.to_owned());
            }
        }
        return Ok(());
    };
    if g.whole()? == -1 {
        let question =
            "it trains there until it is stopped: write `epochs:`, without which 1000 updates are trained";
        j.ask(EPOCHS, Some("epochs"), question);
        return Ok(());
    }
    let all = g.count(1, 1_000_000)?;
    match begun.epochs.filter(|_| begun.continued) {
        Some(done) if done >= all => {
            let question = format!(
                "the checkpoint has {done} epochs, so its trainer ends at once: write `epochs:`, how many are to be added"
            );
            j.ask(EPOCHS, Some("epochs"), &question);
        }
        Some(done) => {
            let left = all - done;
            j.says(
                EPOCHS,
                "epochs",
                format!("epochs: {left}, what is left of {all} after the checkpoint's {done}"),
            );
            j.line("epochs", left, g.from());
        }
        None if begun.continued => {
            let question = format!(
                "the checkpoint's own epochs are counted in there, and its name does not say how many they are: write how many are to be \
                 added; as it stands the recipe says `epochs: {all}`"
            );
            j.ask(EPOCHS, Some("epochs"), &question);
            j.line("epochs", all, g.from());
        }
        None => j.used(EPOCHS, "epochs", all),
    }
    Ok(())
}

/// Returns two betas, of a list or as a command line writes them.
fn pair(g: &Given) -> Result<[f64; 2], RecipeError> {
    let found = match &g.node {
        Node::Text(text) => {
            let inner = text.trim().trim_start_matches(['[', '(']).trim_end_matches([']', ')']);
            inner
                .split(',')
                .map(|x| x.trim().parse::<f64>().ok())
                .collect::<Option<Vec<_>>>()
                .unwrap_or_default()
        }
        _ => g.reals()?,
    };
    match found.as_slice() {
        [one, two] if [one, two].iter().all(|x| (0.0..1.0).contains(*x)) => Ok([*one, *two]),
        _ => Err(g.bad(format!("{} is not two numbers from 0 to below 1", g.shown()))),
    }
}

fn rate(g: &Given) -> Result<f64, RecipeError> {
    let x = g.real()?;
    if x > 0.0 && x <= 1.0 { Ok(x) } else { Err(g.bad(format!("{x} is not above 0 and at most 1"))) }
}

/// Rates and betas of both optimizers, and how the rates go on.
fn rates(j: &mut Judge, of: &Lightning, begun: &Begun) -> Result<(), RecipeError> {
    let shown = |[one, two]: [f64; 2]| format!("[{}, {}]", number(one), number(two));
    let base = j.get(RATE).map_or(Ok(of.adamw.0), rate)?;
    j.used(RATE, "learning_rate", number(base));
    j.absent(&[RATE], "learning_rate", number(base), "its trainer's, where learning_rate is absent");
    let betas = shown(j.get(BETAS).map_or(Ok(of.adamw.1), pair)?);
    j.used(BETAS, "betas", &betas);
    j.absent(&[BETAS], "betas", &betas, "its trainer's, where betas is absent");
    if let Some((player, own_rate, own_betas)) = of.other {
        let mut said = Vec::new();
        let own_rate = number(j.get(OTHER_RATE).map_or(Ok(own_rate), rate)?);
        let own_betas = shown(j.get(OTHER_BETAS).map_or(Ok(own_betas), pair)?);
        for (id, key, value) in [(OTHER_RATE, "learning_rate", own_rate), (OTHER_BETAS, "betas", own_betas)] {
            j.says(id, "players", format!("players: {{{player}: {{{key}: {value}}}}}"));
            if j.code(&[id]).is_none() {
                said.push(format!("{key}: {value}"));
            }
        }
        let from = [OTHER_RATE, OTHER_BETAS].iter().find_map(|id| j.get(id)).map(Given::from);
        let from = from.unwrap_or_else(|| "its trainer's, of the second optimizer".to_owned());
        if !said.is_empty() {
            j.line("players", format!("{{{player}: {{{}}}}}", said.join(", ")), from);
        }
    }
    j.line("warmup", 0, "its trainer has no warm-up");
    schedule(j, of, begun, base)?;
    if begun.continued && of.gamma.is_none() {
        let why = "Lightning takes rates, betas and eps out of the checkpoint that it goes on from, whatever is given beside it; the recipe \
                   says what is given, and its moments begin anew";
        j.note(Some("learning_rate"), why.to_owned());
    }
    Ok(())
}

fn schedule(j: &mut Judge, of: &Lightning, begun: &Begun, base: f64) -> Result<(), RecipeError> {
    let Some(usual) = of.gamma else {
        j.line("schedule", "constant", "its trainer never steps its schedules");
        return Ok(());
    };
    let gamma = match j.get(GAMMA) {
        Some(g) => {
            let x = g.real()?;
            if x <= 0.0 || x > 1.0 {
                return Err(g.bad(format!("{x} is not above 0 and at most 1")));
            }
            x
        }
        None => usual,
    };
    let falls = Schedule { gamma: Some(gamma), per: Per::Epoch, ..Schedule::of(ScheduleKind::Exponential) };
    j.used(GAMMA, "schedule", &falls);
    j.absent(&[GAMMA], "schedule", &falls, "its trainer's, where lr_decay is absent");
    if begun.continued {
        let reached = match begun.epochs {
            Some(n) => {
                let x = base * gamma.powf(n as f64);
                format!("after {n} epochs some {x:.3e}, if it began with {}", number(base))
            }
            None => "what is left of it after its epochs".to_owned(),
        };
        let why = format!(
            "a run that goes on has the checkpoint's own rate there, {reached}; here it begins with `learning_rate`, and its moments anew"
        );
        j.note(Some("learning_rate"), why);
    }
    Ok(())
}

fn precision(j: &mut Judge, of: &Lightning) -> Result<(), RecipeError> {
    const ID: &str = "lightning.precision";
    let mut chosen = Precision::Fp32;
    if let Some(g) = j.get(ID) {
        chosen = match &*g.text()?.to_ascii_lowercase() {
            "32" | "32-true" => Precision::Fp32,
            "16" | "16-mixed" => Precision::Fp16Mixed,
            "bf16" | "bf16-mixed" => Precision::Bf16Mixed,
            "bf16-true" => Precision::Bf16Pure,
            _ => {
                return Err(g.bad(format!("`{}` is not 32, 16-mixed, bf16-mixed or bf16-true", g.shown())));
            }
        };
        j.used(ID, "precision", chosen);
    }
    j.absent(&[ID], "precision", chosen, "its trainer's, where precision is absent");
    if of.tf32 && chosen == Precision::Fp32 && j.code(&[ID]).is_none() {
        let why = "its trainer lets GPUs from Ampere on multiply in TF32, which is faster: `precision: tf32-mixed` does so; the recipe's fp32 \
                   is exact";
        j.note(Some("precision"), why.to_owned());
    }
    Ok(())
}

/// Batches that are summed, and the norm of gradients.
fn clip(j: &mut Judge, of: &Lightning) -> Result<(), RecipeError> {
    let [summed, norm, how] = ["lightning.accumulated", "lightning.clip", "lightning.clip.how"];
    const REFUSED: &str = "Lightning refuses it, because this trainer steps its optimizers itself";
    match j.get(summed).map(|g| g.count(1, MOST)).transpose()? {
        None | Some(1) => j.always(summed, "an update is one batch"),
        Some(n) => {
            let question =
                format!("{REFUSED}: for updates of {n} batches write `batch:` as that many times more clips");
            j.ask(summed, Some("batch"), &question);
        }
    }
    let bound = match j.get(norm) {
        Some(g) => Some(g.real()?).filter(|x| *x > 0.0),
        None => None,
    };
    let by_value = j.get(how).map(Given::text).transpose()?.is_some_and(|word| word.ends_with("value"));
    match bound {
        None => j.always(norm, "nothing is clipped"),
        Some(x) if of.manual => {
            let question = format!("{REFUSED}: to have norms of at most {}, write `clip:`", number(x));
            j.ask(norm, Some("clip"), &question);
        }
        Some(_) if by_value => j.lost(norm, "single values are not clipped; `clip:` bounds the norm"),
        Some(x) => j.used(norm, "clip", number(x)),
    }
    j.nothing(how, "gradients are scaled by their norm, where they are clipped");
    j.absent(&[norm], "clip", UNBOUNDED, "its trainer clips nothing");
    Ok(())
}

/// Clips: where they lie, which are held out, and which are left out.
fn data(j: &mut Judge, of: &Lightning, folders: &Folders) -> Result<(), RecipeError> {
    let [folder, held_out, longest] = ["lightning.data", "lightning.validation", "lightning.longest"];
    if let Some(g) = j.get(folder) {
        let question =
            format!("clips are those of data.dir: --data {}, if that is where they lie", short(&g.text()?));
        match folders.data {
            Some(_) => j.nothing(folder, "--data says where clips lie"),
            None => j.ask(folder, Some("data.dir"), &question),
        }
    }
    let share = match j.get(held_out) {
        Some(g) => {
            let x = g.real()?;
            if !(0.0..1.0).contains(&x) {
                return Err(g.bad(format!("{x} is not from 0 to below 1")));
            }
            x
        }
        None => of.validation,
    };
    let held = format!("{{share: {}}}", number(share));
    j.used(held_out, "data.validation", &held);
    j.absent(&[held_out], "data.validation", &held, "its trainer's, where validation_split is absent");
    if let Some(g) = j.get(longest) {
        let n = g.count(1, MOST)?;
        let why = format!(
            "clips of more than {n} phoneme ids are left out there; here `data: {{max_seconds: …}}` bounds a clip's length"
        );
        j.lost(longest, &why);
    }
    Ok(())
}

/// Keys of its own.
fn own(j: &mut Judge, of: &Lightning, begun: &Begun) -> Result<(), RecipeError> {
    for (path, usual) in of.stated {
        let Some(g) = j.get(path) else { continue };
        if g.real()? == *usual {
            j.always(path, "so it is, unless the options in the checkpoint say otherwise");
        } else {
            let question = format!(
                "the options in the model's checkpoint say it here: do they say {} there?",
                g.shown()
            );
            j.ask(path, Some("model.dir"), &question);
        }
    }
    for (path, why) in of.lost {
        match j.get(path) {
            Some(g) if g.is_off() || g.real() == Ok(0.0) => j.always(path, "it is off"),
            _ => j.lost(path, why),
        }
    }
    for (path, key) in of.scratch {
        let Some(g) = j.get(path) else { continue };
        match begun.continued || begun.weights {
            true => j.nothing(path, "the checkpoint says it"),
            false => j.used(path, key, g.text()?),
        }
    }
    for (path, word, key) in of.words {
        match j.get(path).map(Given::text).transpose()? {
            Some(said) if said.eq_ignore_ascii_case(word) => j.used(path, key, true),
            _ => j.say_of(path, Some(key), Verdict::Default(format!("unless `{key}: true` says otherwise"))),
        }
    }
    Ok(())
}
