//! Every key that is known: which of ours it says ([`Known::Judged`], in [`super::judge`]), or why it changes nothing here.
//!
//! The names are accelerate's (top level, `fsdp_config`, `parallelism_config` and the flags of `accelerate launch`),
//! transformers' TrainingArguments of 4.x and 5.x, and those of official trainers of
//! families and of Coqui. What only one trainer has, and changes nothing, is said where that trainer is ([`super::Trainer`]). Keys of
//! a section stand as `section.key`, those of `fsdp_config` without their prefix.

mod judged;
mod nothing;

use judged::JUDGED;
pub use nothing::LOGS;
use nothing::{NOTHING, SWITCHES};

/// What a known key is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Known {
    /// It may say something: the name under which it is judged.
    Judged(&'static str),
    /// It changes nothing here, because of this.
    Nothing(&'static str),
}

/// Maps whose keys are read one by one, and the name of the section; others are one key.
pub(super) const SECTIONS: &[(&str, &str)] = &[
    ("fsdp_config", "fsdp"),
    ("parallelism_config", "parallel"),
    ("accelerator_config", "accelerator"),
    ("datasets", "datasets"),
    ("optim", "optim"),
    ("ckpts", "ckpts"),
    ("model", "model"),
    ("model.arch", "arch"),
    ("model_args", "model_args"),
    ("audio", "audio"),
    // Of Lightning's configurations.
    ("data", "data"),
    ("trainer", "trainer"),
    // Of hydra's configurations.
    ("optim.adam", "optim.adam"),
    ("optim.ema", "optim.ema"),
    ("schedule", "schedule"),
    ("schedule.cosine", "schedule.cosine"),
    ("schedule.polynomial_decay", "schedule.polynomial_decay"),
    ("schedule.inverse_sqrt", "schedule.inverse_sqrt"),
    ("schedule.linear_warmup", "schedule.linear_warmup"),
    ("schedule.step", "schedule.step"),
    ("schedule.exponential", "schedule.exponential"),
    ("fsdp", "sharded"),
    ("dataset", "dataset"),
    ("dataset.train", "dataset.train"),
    ("datasource", "datasource"),
    ("checkpoint", "checkpoint"),
    ("classifier_free_guidance", "classifier_free_guidance"),
    ("conditioners", "conditioners"),
    ("conditioners.description", "conditioners.description"),
    ("conditioners.description.t5", "conditioners.description.t5"),
    ("transformer_lm", "transformer_lm"),
];

/// Returns whether a key by its path is one of the switches that change nothing.
pub(super) fn is_switch(path: &str) -> bool {
    let name = path.rsplit('.').next().unwrap_or_default();
    SWITCHES.contains(&name.strip_prefix("fsdp_").unwrap_or(name))
}

/// Keys of access to a hub, whose values are nobody's to read.
const SECRETS: [&str; 4] = ["token", "use_auth_token", "hub_token", "push_to_hub_token"];

/// Returns whether the value of a key by its path is a secret.
pub(super) fn is_secret(path: &str) -> bool {
    SECRETS.contains(&path)
}

/// Returns whether a key by its path is a section.
pub(super) fn is_section(path: &str) -> bool {
    SECTIONS.iter().any(|(name, _)| *name == path)
}

/// Returns a key by its sections and name, as far as it is known.
pub(super) fn find(section: &str, key: &str) -> Option<Known> {
    let unprefixed = |key: &str, prefix: &str| key.strip_prefix(prefix).unwrap_or(key).to_owned();
    let tries = match section {
        // A launcher's flags carry the section in their name.
        "" => match key.strip_prefix("parallelism_config_") {
            Some(size) => vec![format!("parallel.{size}")],
            None => vec![key.to_owned(), format!("fsdp.{}", unprefixed(key, "fsdp_"))],
        },
        "fsdp" => vec![format!("fsdp.{}", unprefixed(key, "fsdp_"))],
        "parallel" => vec![format!("parallel.{}", unprefixed(key, "parallelism_config_"))],
        "accelerator" => vec![format!("accelerator.{key}")],
        _ => vec![format!("{section}.{key}"), key.to_owned()],
    };
    let known = |name: &String| {
        let has = |(_, names): &&(&str, &[&str])| names.contains(&name.as_str());
        let judged = JUDGED.iter().find(has).map(|(id, _)| Known::Judged(id));
        judged.or_else(|| NOTHING.iter().find(has).map(|(why, _)| Known::Nothing(why)))
    };
    tries.iter().find_map(known)
}

/// Returns the known key that is nearest to one of a section, as that section writes it.
pub(super) fn nearest(section: &str, key: &str) -> Option<String> {
    let names = JUDGED.iter().chain(NOTHING).flat_map(|(_, names)| names.iter().copied());
    match section {
        "fsdp" => {
            let inner = names.filter_map(|n| n.strip_prefix("fsdp."));
            crate::near::nearest(key.strip_prefix("fsdp_").unwrap_or(key), inner).map(|n| format!("fsdp_{n}"))
        }
        _ => {
            let flat: Vec<String> = names
                .map(|n| match n.split_once('.') {
                    Some(("fsdp", rest)) => format!("fsdp_{rest}"),
                    Some((_, rest)) => rest.to_owned(),
                    None => n.to_owned(),
                })
                .collect();
            crate::near::nearest(key, flat.iter().map(String::as_str)).map(str::to_owned)
        }
    }
}

/// Returns every name, for tests.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static str> {
    JUDGED.iter().chain(NOTHING).flat_map(|(_, names)| names.iter().copied())
}
