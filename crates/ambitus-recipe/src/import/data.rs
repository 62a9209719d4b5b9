//! Data sets and what is read of them: names, columns, limits, tokenizers, and what is frozen beside the model.

use super::given::Given;
use super::judge::Judge;
use super::lines::{number, quoted};
use super::{Folders, Origin, Verdict};
use crate::recipe::tree::{Node, Tree};
use crate::recipe::{RecipeError, short};
use ambitus_data::sources::{DESCRIPTION_KEYS, ID_KEYS, TEXT_KEYS};

/// The longest clip, seconds: the recipe's own bound.
const MOST: f64 = 600.0;
/// Of the samples that bound a clip's length, where the files do not say it: Coqui's, Hz.
const SAMPLE_RATE: u64 = 22_050;
/// The column of audio in a table.
const AUDIO: [&str; 1] = ["audio"];

/// # Errors
/// Values that the recipe would refuse, at their place.
pub(super) fn data(j: &mut Judge, origin: &Origin, folders: &Folders) -> Result<(), RecipeError> {
    limits(j)?;
    listed(j, folders);
    sets(j, folders)?;
    descriptions(j, origin)?;
    columns(j)?;
    tokenizers(j)?;
    beside(j)
}

fn limits(j: &mut Judge) -> Result<(), RecipeError> {
    let seconds = |g: &Given| {
        let x = g.real()?;
        if (0.0..=MOST).contains(&x) { Ok(x) } else { Err(g.bad(format!("{x} is not from 0 to {MOST}"))) }
    };
    let least = j.get("min_seconds").map(seconds).transpose()?;
    let most = j.get("max_seconds").map(seconds).transpose()?;
    if let (Some(g), Some(most), least) = (j.get("max_seconds"), most, least.unwrap_or(0.0))
        && most <= least
    {
        return Err(g.bad(format!("{most} is not above the shortest clip's {least}")));
    }
    if let Some(x) = least {
        j.used("min_seconds", "data.min_seconds", number(x));
    }
    if let Some(x) = most {
        j.used("max_seconds", "data.max_seconds", number(x));
    }
    if let Some(g) = j.get("most_samples") {
        let rate = j.get("sample_rate").map_or(Ok(SAMPLE_RATE), |rate| rate.count(1, 1 << 20))?;
        let n = g.count(1, u64::MAX >> 1)?;
        let x = n as f64 / rate as f64;
        if x > MOST {
            return Err(g.bad(format!("{n} samples at {rate} Hz are more than {MOST} seconds")));
        }
        j.used("most_samples", "data.max_seconds", number(x));
    }
    j.always("sample_rate", "every clip is brought to the model's own");
    if let Some(g) = j.get("most_clips") {
        let n = g.count(1, u64::MAX >> 1)?;
        let question =
            format!("the first {n} clips are trained on there, here all that lie there: leave only these");
        j.ask("most_clips", Some("data.dir"), &question);
    }
    for (id, unit) in [
        ("most_characters", "characters of description"),
        ("most_prompt", "tokens of text"),
        ("most_description", "tokens of description"),
    ] {
        if let Some(g) = j.get(id) {
            let n = g.count(1, u64::MAX >> 1)?;
            let why =
                format!("clips with {n} {unit} and more are left out there; here leave them out of the data");
            j.lost(id, &why);
        }
    }
    Ok(())
}

/// Model and data set, which are never downloaded.
fn sets(j: &mut Judge, folders: &Folders) -> Result<(), RecipeError> {
    for (id, flag, key, dir) in [
        ("model_name", "model", "model.dir", &folders.model),
        ("dataset_name", "data", "data.dir", &folders.data),
    ] {
        let Some(g) = j.get(id) else { continue };
        if dir.is_some() {
            j.say(id, Verdict::NoEffect(format!("--{flag} names the folder")));
            continue;
        }
        let name = g.text()?;
        let several = id == "dataset_name" && name.contains('+');
        let it = if several {
            "are several, and none is downloaded: bring them into one folder and"
        } else {
            "is not downloaded:"
        };
        let question = format!(
            "`{}` {it} say where it lies on this disk (--{flag} DIR, or `{flag}: {{dir: …}}`)",
            short(&name)
        );
        j.ask(id, Some(key), &question);
    }
    Ok(())
}

/// Data sets as Coqui's trainers list them: each a folder with its metadata files.
fn listed(j: &mut Judge, folders: &Folders) {
    let Some(g) = j.get("dataset_list") else { return };
    let Node::List(sets) = &g.node else {
        j.ask("dataset_list", Some("data.dir"), "it is no list of data sets: name the folder, --data DIR");
        return;
    };
    let text = |key: &str| match sets.as_slice() {
        [Tree { node: Node::Map(items), .. }] => items.iter().find_map(|(found, tree)| match &tree.node {
            Node::Text(text) if found.name == key && !text.is_empty() => Some(text.as_str()),
            _ => None,
        }),
        _ => None,
    };
    if let Some(file) = text("meta_file_val") {
        let name = file.rsplit(['/', '\\']).next().unwrap_or(file);
        j.line("data.validation", format!("{{file: {}}}", quoted(name)), g.from());
    }
    if folders.data.is_some() {
        j.nothing("dataset_list", "--data names the folder");
        return;
    }
    let question = match (sets.len(), text("path")) {
        (1, Some(path)) => {
            format!("`{}` is meant: say `--data {}`, or where it lies now", short(path), short(path))
        }
        (1, None) => "say where the clips lie: --data DIR".to_owned(),
        (n, _) => format!("{n} data sets: bring them into one folder, and say where it lies (--data DIR)"),
    };
    j.ask("dataset_list", Some("data.dir"), &question);
}

/// A second data set, of descriptions.
fn descriptions(j: &mut Judge, origin: &Origin) -> Result<(), RecipeError> {
    let Some(g) = j.get("metadata_name") else { return Ok(()) };
    let Some(key) = origin.descriptions else {
        j.nothing("metadata_name", "no family whose files these are reads descriptions");
        return Ok(());
    };
    if j.get("dataset_name").is_some_and(|data| data.same(g)) {
        j.default("metadata_name", key, "descriptions are read where the clips are");
        return Ok(());
    }
    let (section, inner) = key.split_once('.').unwrap_or(("", key));
    let question = format!(
        "`{}` is not downloaded: say where it lies on this disk, `{section}: {{{inner}: …}}`, with its rows in the order of the clips",
        short(&g.text()?)
    );
    j.ask("metadata_name", Some(key), &question);
    Ok(())
}

/// Columns, which are known by their names.
fn columns(j: &mut Judge) -> Result<(), RecipeError> {
    for (id, what, names) in [
        ("audio_column", "audio", &AUDIO[..]),
        ("text_column", "texts", &TEXT_KEYS),
        ("description_column", "descriptions", &DESCRIPTION_KEYS),
        ("id_column", "ids", &ID_KEYS),
    ] {
        let Some(g) = j.get(id) else { continue };
        let (name, verb) = (g.text()?, if id == "audio_column" { "is" } else { "are" });
        match names.iter().position(|known| *known == name) {
            Some(0) => j.always(id, &format!("{what} {verb} read from a column of this name")),
            Some(i) => {
                let others = names[..i].join("` and no `");
                j.always(id, &format!("{what} {verb} read from it where there is no `{others}`"));
            }
            None => {
                let question = format!(
                    "a column of {what} is known by its name, {}: rename `{}` to `{}` in the data",
                    names.join(" or "),
                    short(&name),
                    names[0]
                );
                j.ask(id, Some("data.dir"), &question);
            }
        }
    }
    Ok(())
}

/// One tokenizer reads texts and descriptions. A trainer whose texts have no tokenizer of their own takes that of descriptions, and
/// without that the model's.
fn tokenizers(j: &mut Judge) -> Result<(), RecipeError> {
    const IDS: [&str; 2] = ["prompt_tokenizer", "description_tokenizer"];
    if let Some(g) = j.code(&IDS) {
        let question = format!(
            "{} is code: one tokenizer, in the model's folder, reads texts and descriptions",
            g.full()
        );
        IDS.into_iter().for_each(|id| j.ask(id, Some("model.dir"), &question));
        return Ok(());
    }
    let [prompt, description] = IDS.map(|id| j.get(id));
    let model = j.get("model_name");
    let of_descriptions = description.or(model);
    let same = match (prompt.or(of_descriptions), of_descriptions) {
        (Some(one), Some(other)) => one.same(other),
        // Of a model that is not named, nothing else is known.
        _ => true,
    };
    for id in IDS {
        let Some(g) = j.get(id) else { continue };
        g.text()?;
        if same {
            j.nothing(
                id,
                "texts and descriptions are read with the tokenizer in the model's folder (model.dir)",
            );
        } else {
            let question = "texts and descriptions have two tokenizers there, and are read with one here, the model's own \
                            (model.dir): does that one read both?";
            j.ask(id, Some("model.dir"), question);
        }
    }
    Ok(())
}

/// The frozen encoder, and what the model's own file says.
fn beside(j: &mut Judge) -> Result<(), RecipeError> {
    if let Some(g) = j.get("freeze_text_encoder") {
        if g.flag()? {
            j.always(
                "freeze_text_encoder",
                "it is frozen in any case, and each description's states are computed once",
            );
        } else {
            let question =
                "it is trained there, and frozen here in any case: is that meant? If so, write true";
            j.ask("freeze_text_encoder", None, question);
        }
    }
    for (id, key) in [
        ("codebook_weights", "decoder.codebook_weights"),
        ("fills", "decoder.eos_token_id"),
        ("begins", "decoder.bos_token_id"),
    ] {
        if let Some(g) = j.get(id) {
            let question = format!(
                "{key} is read from config.json in the model's folder: does it say {} there?",
                g.shown()
            );
            j.ask(id, Some("model.dir"), &question);
        }
    }
    Ok(())
}
