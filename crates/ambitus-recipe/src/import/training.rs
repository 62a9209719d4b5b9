//! Length, rate, optimizer, rhythm and the run's folder, as TrainingArguments and the other trainers name them.

use super::Origin;
use super::judge::Judge;
use super::lines::{number, quoted};
use crate::recipe::{OptimizerChoice, RecipeError};

/// The recipe's own bound on counts.
const MOST: u64 = 1 << 31;

/// # Errors
/// Values that the recipe would refuse, at their place.
pub(super) fn training(j: &mut Judge, origin: &Origin) -> Result<(), RecipeError> {
    let updates = length(j, origin)?;
    rate(j, updates)?;
    super::torch::schedule(j)?;
    optimizer(j)?;
    super::torch::optimizer(j)?;
    rhythm(j)?;
    match j.get("gradient_checkpointing").map(|g| g.flag()).transpose()? {
        Some(true) => j.used("gradient_checkpointing", "checkpoint", "all"),
        _ => j.default(
            "gradient_checkpointing",
            "checkpoint",
            "recomputes only what the budget needs; `checkpoint: none` forbids it",
        ),
    }
    for (id, what) in
        [("label_smoothing_factor", "label smoothing"), ("neftune_noise_alpha", "NEFTune's noise")]
    {
        match j.get(id).map(|g| g.real()).transpose()? {
            Some(0.0) => j.always(id, "there is none"),
            _ => j.lost(id, &format!("{what} is not there")),
        }
    }
    if let Some(g) = j.get("seed") {
        j.used("seed", "seed", g.count(0, i64::MAX as u64)?);
    }
    run_dir(j)
}

/// Updates, where the files say them.
fn length(j: &mut Judge, origin: &Origin) -> Result<Option<u64>, RecipeError> {
    let steps = match j.get("max_steps") {
        Some(g) if g.whole()? > 0 => Some(g.count(1, MOST)?),
        _ => None,
    };
    if let Some(n) = steps {
        j.used("max_steps", "updates", n);
        j.nothing("epochs", "max_steps goes before it");
        return Ok(steps);
    }
    j.default("max_steps", "updates", "the length is said in epochs");
    match j.get("epochs") {
        Some(g) => {
            let x = g.real()?;
            if x <= 0.0 || x > 1e6 {
                return Err(g.bad(format!("{x} is not a number of epochs above 0")));
            }
            j.used("epochs", "epochs", number(x));
        }
        None if origin.arguments && !origin.has_length => {
            j.absent(&["epochs", "max_steps"], "epochs", 3, "num_train_epochs, transformers' default");
        }
        None => {}
    }
    Ok(None)
}

fn rate(j: &mut Judge, updates: Option<u64>) -> Result<(), RecipeError> {
    if let Some(g) = j.get("learning_rate") {
        let x = g.real()?;
        if x <= 0.0 || x > 1.0 {
            return Err(g.bad(format!("{x} is not above 0 and at most 1")));
        }
        j.used("learning_rate", "learning_rate", number(x));
    }
    if super::schedule::schedule(j)? {
        return warmup(j, updates);
    }
    for id in ["warmup_steps", "warmup_ratio"] {
        j.nothing(id, "transformers' constant schedule has no warm-up");
    }
    j.line("warmup", 0, "transformers' constant schedule has none");
    Ok(())
}

/// Updates of warm-up that runs on a folder of clips are longer than.
const LONG_WARMUP: u64 = 1000;

/// A number above 0 in `warmup_steps` goes before `warmup_ratio`; 0 leaves it to the other.
fn warmup(j: &mut Judge, updates: Option<u64>) -> Result<(), RecipeError> {
    let real = |id| j.get(id).map(|g| g.real().map(|x| (g, x))).transpose();
    let (steps, ratio) = (real("warmup_steps")?, real("warmup_ratio")?);
    if let Some((g, x)) = ratio.filter(|(_, x)| !(0.0..=1.0).contains(x)) {
        return Err(g.bad(format!("{x} is not from 0 to 1")));
    }
    if let Some((g, x)) = steps.filter(|(_, x)| *x < 0.0) {
        return Err(g.bad(format!("{x} is below 0")));
    }
    // transformers 5 reads a fraction in warmup_steps as a ratio.
    let (share, id) = match (steps, ratio) {
        (Some((_, x)), _) if x > 0.0 && x < 1.0 => (x, "warmup_steps"),
        (Some((g, x)), _) if x > 0.0 => {
            let steps = g.count(0, MOST)?;
            j.used("warmup_steps", "warmup", steps);
            let most = updates.map_or(LONG_WARMUP, |n| n.saturating_sub(1));
            if steps > most {
                let run = updates.map_or("this run may have fewer, `ambitus plan` says".to_owned(), |n| {
                    format!("this run has {n}")
                });
                let text = format!(
                    "{}: {steps} updates of warm-up, and {run}; its rate is reached only after them: is `warmup: {steps}` meant? \
                     (left out: 5 % of the updates, at most 100)",
                    g.full()
                );
                j.note(Some("warmup"), text);
            }
            j.nothing("warmup_ratio", "warmup_steps goes before it");
            return Ok(());
        }
        (_, Some((_, x))) => (x, "warmup_ratio"),
        (Some((_, x)), None) => (x, "warmup_steps"),
        (None, None) => return Ok(()),
    };
    if let Some(g) =
        j.code(&["warmup_steps", "warmup_ratio"]).filter(|_| id == "warmup_ratio" || share == 0.0)
    {
        let question = format!("{} is code, and the two say it together: write `warmup:`", g.full());
        j.ask(id, Some("warmup"), &question);
        return Ok(());
    }
    match updates {
        _ if share == 0.0 => {
            j.used("warmup_steps", "warmup", 0);
            j.used("warmup_ratio", "warmup", 0);
        }
        Some(n) => j.used(id, "warmup", (share * n as f64).ceil() as u64),
        None => j.ask(
            id,
            Some("warmup"),
            &format!(
                "{} of the updates, whose number follows from the data: `ambitus plan` says it; write `warmup:` as a number",
                number(share)
            ),
        ),
    }
    j.nothing("warmup_steps", "0 leaves it to warmup_ratio");
    j.nothing("warmup_ratio", "warmup_steps goes before it");
    Ok(())
}

/// Lion, whose constants are not AdamW's here: transformers takes the same for both.
fn lion(j: &mut Judge, form: OptimizerChoice) {
    j.used("optim", "optimizer", form);
    for (ids, key, usual) in [
        (&["learning_rate"][..], "learning_rate", "5e-5"),
        (&["weight_decay"], "weight_decay", "0"),
        (&["adam_beta1", "adam_beta2"], "betas", "[0.9, 0.999]"),
    ] {
        if ids.iter().all(|id| j.get(id).is_none()) {
            j.absent(ids, key, usual, "transformers' default, of Lion too");
        }
    }
}

fn optimizer(j: &mut Judge) -> Result<(), RecipeError> {
    if let Some(g) = j.get("optim") {
        let name = g.text()?.to_ascii_lowercase();
        match name.rsplit('.').next().unwrap_or_default() {
            "adamw_torch" | "adamw_torch_fused" | "adamw_hf" | "adamw_apex_fused" | "adamw" => {
                j.default("optim", "optimizer", "AdamW with moments in fp32");
            }
            "adamw_bnb_8bit" | "adamw_8bit" | "adamw_torch_8bit" | "adamw_bnb" | "paged_adamw_8bit" => {
                j.used("optim", "optimizer", "adamw-8bit");
            }
            "paged_adamw_32bit" | "paged_adamw" => {
                j.default(
                    "optim",
                    "optimizer",
                    "AdamW with moments in fp32; they wait in the host's memory where the budget needs it",
                );
            }
            "lion_32bit" | "lion" | "paged_lion_32bit" | "paged_lion" => lion(j, OptimizerChoice::Lion),
            "lion_8bit" | "paged_lion_8bit" => lion(j, OptimizerChoice::Lion8bit),
            _ => j.lost("optim", &OptimizerChoice::known()),
        }
    }
    if let Some(g) = j.get("bnb_optimizer") {
        if g.flag()? {
            j.used("bnb_optimizer", "optimizer", "adamw-8bit");
        }
        j.default("bnb_optimizer", "optimizer", "AdamW with moments in fp32");
    }
    match j.get("adafactor").map(|g| g.flag()).transpose()? {
        Some(true) => j.lost("adafactor", &OptimizerChoice::known()),
        _ => j.always("adafactor", "AdamW"),
    }
    let share = |j: &Judge, id: &str| -> Result<Option<f64>, RecipeError> {
        let Some(g) = j.get(id) else { return Ok(None) };
        let x = g.real()?;
        if (0.0..1.0).contains(&x) {
            Ok(Some(x))
        } else {
            Err(g.bad(format!("{x} is not from 0 to below 1")))
        }
    };
    if let Some(x) = share(j, "weight_decay")? {
        j.used("weight_decay", "weight_decay", number(x));
    }
    let (b1, b2) = (share(j, "adam_beta1")?, share(j, "adam_beta2")?);
    if let Some(g) = j.code(&["adam_beta1", "adam_beta2"]) {
        let question = format!("{} is code, and the two are one key: write `betas:`", g.full());
        ["adam_beta1", "adam_beta2"].into_iter().for_each(|id| j.ask(id, Some("betas"), &question));
    } else if b1.is_some() || b2.is_some() {
        let value = format!("[{}, {}]", number(b1.unwrap_or(0.9)), number(b2.unwrap_or(0.999)));
        j.used("adam_beta1", "betas", &value);
        j.used("adam_beta2", "betas", &value);
    }
    if let Some(g) = j.get("adam_epsilon") {
        let x = g.real()?;
        if x <= 0.0 || x > 1.0 {
            return Err(g.bad(format!("{x} is not above 0 and at most 1")));
        }
        j.used("adam_epsilon", "eps", number(x));
    }
    if let Some(g) = j.get("max_grad_norm") {
        let x = g.real()?;
        if x < 0.0 {
            return Err(g.bad(format!("{x} is below 0")));
        }
        // 0 turns clipping off there.
        j.used("max_grad_norm", "clip", if x == 0.0 { "1e9".to_owned() } else { number(x) });
    }
    Ok(())
}

/// When it saves and validates.
fn rhythm(j: &mut Judge) -> Result<(), RecipeError> {
    let strategy = |j: &Judge, id: &str| -> Result<String, RecipeError> {
        let word = j.get(id).map(|g| if g.is_off() { Ok("no".to_owned()) } else { g.text() }).transpose()?;
        let word = word.unwrap_or_default().to_ascii_lowercase();
        Ok(word.rsplit('.').next().unwrap_or_default().to_owned())
    };
    let every = |j: &Judge, id: &str| -> Result<Option<u64>, RecipeError> {
        let Some(g) = j.get(id) else { return Ok(None) };
        // Below 1 it is a share of the run there.
        if g.real()? > 0.0 && g.real()? < 1.0 { Ok(None) } else { g.count(0, MOST).map(Some) }
    };
    for (when, steps, key) in
        [("save_strategy", "save_steps", "save_every"), ("eval_strategy", "eval_steps", "validate_every")]
    {
        let n = every(j, steps)?;
        if let Some(g) = j.code(&[when]) {
            j.ask(steps, Some(key), &format!("{} is code, and goes before it: write `{key}:`", g.full()));
            continue;
        }
        match strategy(j, when)?.as_str() {
            "no" => {
                j.used(when, key, 0);
                j.nothing(steps, &format!("{when}: no goes before it"));
            }
            "epoch" | "best" => {
                j.nothing(when, &format!("it is a number of updates here: write `{key}:`"));
                j.nothing(steps, &format!("{when} goes before it"));
            }
            // Evaluation is off there unless its strategy says otherwise.
            "" if when == "eval_strategy" && n.is_some() => j.used(steps, key, n.unwrap_or(0)),
            _ => {
                if let Some(n) = n {
                    j.used(steps, key, n);
                    j.says(when, key, format!("{key}: {n}"));
                }
                j.default(when, key, &format!("every `{key}` updates"));
                j.nothing(steps, &format!("a share of the run: write `{key}:` as a number of updates"));
            }
        }
    }
    if let Some(g) = j.get("save_total_limit") {
        match g.whole()? {
            // In some trainers -1 keeps all, 0 only the last.
            n if n < 0 => j.lost(
                "save_total_limit",
                "the newest `keep` checkpoints and the best are kept, 2 unless said",
            ),
            0 => j.used("save_total_limit", "keep", 1),
            _ => j.used("save_total_limit", "keep", g.count(1, u64::from(u32::MAX >> 1))?),
        }
    }
    Ok(())
}

fn run_dir(j: &mut Judge) -> Result<(), RecipeError> {
    if let Some(g) = j.get("output_dir") {
        let dir = g.text()?;
        if !dir.trim().is_empty() {
            j.used("output_dir", "run_dir", quoted(&dir));
        }
    }
    Ok(())
}
