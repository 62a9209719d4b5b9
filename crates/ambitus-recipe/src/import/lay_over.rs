//! Other trainers' files laid over a recipe: `plan --accelerate`.

use super::{Folders, Imported, Row, Source, Trainer, Verdict, judged};
use crate::recipe::{Recipe, RecipeError, Strategy, short};
use ambitus_compile::passes::shard;
use serde_json::Value;

/// Keys of a recipe that are laid over.
const LAID_OVER: [&str; 5] = ["ranks", "sharding", "precision", "offload", "checkpoint"];

/// Lays what other trainers' files say of ranks, sharding, precision, offload and recomputing over a recipe file, and the
/// command line's `options` over both. What is said of the files' keys is true of the recipe that results.
///
/// # Errors
/// As [`super::import`], and where the recipe with them contradicts itself.
pub fn lay_over(
    file: &Recipe,
    sources: &[Source],
    trainers: &[&Trainer],
    options: impl FnOnce(&mut Recipe),
) -> Result<(Recipe, Imported), RecipeError> {
    let (mut imported, of_notes, said) = judged(sources, &Folders::default(), trainers)?;
    imported.effective_batch = None;
    let mut whole = file.clone();
    whole.ranks = said.ranks.or(whole.ranks);
    whole.sharding = said.sharding.or(whole.sharding);
    whole.precision = said.precision.or(whole.precision);
    whole.offload = said.offload.clone().or(whole.offload);
    whole.checkpoint = said.checkpoint.clone().or(whole.checkpoint);
    options(&mut whole);
    if replicated(&whole) && !replicated(&said) {
        // What the files say of gathering goes with it.
        whole.sharding = file.sharding;
        whole.share_by(shard::Strategy::None);
    }
    whole.validate().map_err(|bad| RecipeError {
        file: sources.iter().map(|s| short(&s.name)).collect::<Vec<_>>().join(", "),
        place: None,
        key: Some(bad.key),
        why: format!("over this recipe: {}", bad.why),
    })?;
    let outcome = Outcome { file, said: &said, whole: &whole };
    imported.rows.iter_mut().for_each(|row| outcome.tell(row));
    // A question that the recipe answers is none.
    let mut of_notes = of_notes.into_iter();
    imported.notes.retain(|_| of_notes.next().flatten().is_none_or(|key| outcome.stands(key)));
    Ok((whole, imported))
}

/// The recipe as it was read, what the files say, and what became of both and of the command line.
struct Outcome<'a> {
    file: &'a Recipe,
    said: &'a Recipe,
    whole: &'a Recipe,
}

impl Outcome<'_> {
    /// Tells what becomes of a key of the files.
    fn tell(&self, row: &mut Row) {
        let Some(key) = row.of.filter(|_| !matches!(row.verdict, Verdict::NoEffect(_) | Verdict::Unknown(_)))
        else {
            return;
        };
        let takes = !matches!(row.verdict, Verdict::Default(_));
        let section = key.split('.').next().unwrap_or(key);
        if takes && !LAID_OVER.contains(&section) {
            row.verdict = Verdict::NoEffect(format!(
                "only {} are laid over a recipe, which keeps its own {section}",
                LAID_OVER.join(", ")
            ));
            return;
        }
        let others = self.others(key);
        match (&mut row.verdict, others.iter().flatten().next()) {
            // Some stages take it.
            (Verdict::Used(what), Some(other)) if others.contains(&None) => {
                *what = format!("{what}; but {other}");
            }
            (verdict, Some(other)) => *verdict = Verdict::NoEffect(other.clone()),
            (_, None) => {}
        }
    }

    /// Returns whether no other place says this key.
    fn stands(&self, key: &str) -> bool {
        let section = key.split('.').next().unwrap_or(key);
        LAID_OVER.contains(&section) && self.others(key).iter().all(Option::is_none)
    }

    /// Returns who sets a key otherwise than the files, and how; for the recipe, or for each of its stages.
    fn others(&self, key: &str) -> Vec<Option<String>> {
        // Where nothing is gathered, how it is gathered says nothing.
        let key = match key.starts_with("sharding.") && replicated(self.whole) && !replicated(self.said) {
            true => "sharding.strategy",
            false => key,
        };
        let says = |who: &str, value: String| format!("{who} says `{key}: {value}`");
        let said = value(self.said, key);
        let whole = value(self.whole, key).filter(|now| Some(now) != said.as_ref()).map(|now| {
            let read = value(self.file, key).as_ref() == Some(&now);
            says(if read { "the recipe" } else { "the command line" }, now)
        });
        let stage = |i| {
            let now = value(&self.whole.stage(i), key)?;
            if value(self.whole, key).as_ref() == Some(&now) {
                return whole.clone();
            }
            let who = format!("stage `{}` of the recipe", self.whole.stage_name(i));
            (Some(&now) != said.as_ref()).then(|| says(&who, now))
        };
        match self.whole.stages.len() {
            0 => vec![whole],
            n => (0..n).map(stage).collect(),
        }
    }
}

/// Returns whether every rank is said to hold the whole model.
fn replicated(recipe: &Recipe) -> bool {
    recipe.sharding.is_some_and(|s| s.strategy == Strategy::None)
}

/// Returns what a recipe says of a key, where that is not what an absent one means.
pub(super) fn value(recipe: &Recipe, key: &str) -> Option<String> {
    if key == "offload" {
        return recipe.offload.as_ref().map(ToString::to_string);
    }
    let find = |recipe: &Recipe| {
        let mut found = serde_json::to_value(recipe).ok()?;
        for part in key.split('.') {
            found = found.get_mut(part)?.take();
        }
        Some(found)
    };
    let found = find(recipe).filter(|v| *v != Value::Bool(false))?;
    let shown = match &found {
        Value::String(text) => text.clone(),
        other => other.to_string().replace('"', "").replace(':', ": ").replace(',', ", "),
    };
    (find(&Recipe::without_data("")) != Some(found)).then_some(shown)
}
