//! What a voice begins with: all of its checkpoint, some of its modules, or all but who speaks. The rest is drawn as from scratch.
//!
//! The trainer's warm starts copy what has the same name and shape in a model that its arguments make. Here the checkpoint's shape is the
//! model's, so what is not copied is named: parts, and what depends on who speaks.

use super::folder::MODEL_FILE;
use super::keys::{Keys, Parts};
use crate::error::RunError;
use crate::weights::Weights;
use ambitus_ir::{Session, StateKind};
use ambitus_models::Model;
use ambitus_models::batch::Capacity;
use ambitus_models::piper::config::Config;
use ambitus_models::piper::weights::made;
use std::collections::{BTreeMap, BTreeSet};

/// The table of symbols, without which a text encoder is not the checkpoint's.
pub(super) const SYMBOLS: &str = "model_g.enc_p.emb.weight";
/// The table of speakers.
const SPEAKERS: &str = "model_g.emb_g.weight";

/// What is taken of a checkpoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Start {
    /// All where it is none.
    parts: Option<Parts>,
    /// Speakers of the checkpoint and of the voice, where these are others.
    speakers: Option<[usize; 2]>,
}

/// Returns whether a tensor is there because there are several speakers.
fn of_speakers(name: &str) -> bool {
    name.split('.').any(|part| matches!(part, "emb_g" | "cond" | "cond_layer"))
}

/// Returns the module of a tensor, as `warm_start` names it.
fn module(name: &str) -> &str {
    let of_generator = name.strip_prefix("model_g.").and_then(|name| name.split('.').next());
    of_generator.unwrap_or(if name.starts_with("model_d.") { "d" } else { name })
}

fn begins(name: &str, part: &str) -> bool {
    part.is_empty() || name.strip_prefix(part).is_some_and(|rest| rest.starts_with('.'))
}

impl Start {
    /// Returns what the keys take of a checkpoint for a voice of this shape.
    ///
    /// # Errors
    /// A part that the checkpoint does not have, with those that it has.
    pub fn of(keys: &Keys, weights: &Weights, config: &Config) -> Result<Start, RunError> {
        let had = weights.shape_of(SPEAKERS).and_then(|shape| shape.first().copied()).unwrap_or(1);
        let speakers = keys.speakers.map(|_| [had, config.speakers]).filter(|[had, has]| had != has);
        let parts = keys.warm_start.clone();
        let absent =
            parts.iter().flat_map(|parts| &parts.0).find(|part| !weights.names().any(|n| begins(n, part)));
        if let Some(part) = absent {
            let known: BTreeSet<&str> = weights.names().map(module).collect();
            let known: Vec<&str> = known.into_iter().collect();
            return Err(RunError::Usage(format!(
                "piper.warm_start: {} has no `{}`; its parts are {}",
                weights.path.display(),
                part.trim_start_matches("model_g."),
                known.join(", ")
            )));
        }
        Ok(Start { parts, speakers })
    }

    /// Returns whether a tensor of the checkpoint is taken.
    pub fn takes(&self, name: &str) -> bool {
        let among = |parts: &Parts| parts.0.iter().any(|part| begins(name, part));
        let other = self.speakers.is_some_and(|[_, has]| name == SPEAKERS || has == 1 && of_speakers(name));
        self.parts.as_ref().is_none_or(among) && !other
    }

    /// Returns whether the checkpoint need not hold a tensor of the voice.
    pub fn draws(&self, name: &str) -> bool {
        !self.takes(name) || self.speakers.is_some() && of_speakers(name)
    }

    /// Returns the checkpoint as if it held only what is taken.
    pub fn taken(&self, mut weights: Weights) -> Weights {
        let keep = |prefix: &str, name: &str| name.strip_prefix(prefix).is_none_or(|name| self.takes(name));
        let files = weights.files.into_iter();
        weights.files = files.map(|file| file.keeping(|name| keep(&weights.prefix, name))).collect();
        weights
    }

    /// Returns what people should know: what is drawn and what is left out. `weights`: what is [`taken`](Start::taken).
    pub fn notes(&self, weights: &Weights, config: &Config) -> Vec<String> {
        if self.parts.is_none() && self.speakers.is_none() {
            return Vec::new();
        }
        let mut session = Session::default();
        let cap = Capacity { rows: config.segment, clips: 1 };
        (0..config.players().len()).for_each(|player| {
            config.loss(&mut session, player, cap, "loss", false);
        });
        let own = |name: &&str| made(name, config).is_none();
        let states = session.states.iter().filter(|s| s.kind == StateKind::Parameter);
        let all: Vec<&str> = states.map(|s| &*s.name).filter(own).collect();
        let mut drawn: BTreeMap<&str, usize> = BTreeMap::new();
        for name in all.iter().filter(|name| weights.find(name).is_none()) {
            *drawn.entry(module(name)).or_default() += 1;
        }
        let mut notes = Vec::new();
        if !drawn.is_empty() {
            let each: Vec<String> = drawn.iter().map(|(module, n)| format!("{n} of {module}")).collect();
            notes.push(format!(
                "{} of the voice's {} tensors are not those of {MODEL_FILE}, but drawn by the seed: {}",
                drawn.values().sum::<usize>(),
                all.len(),
                each.join(", ")
            ));
        }
        if let Some([had, 1]) = self.speakers {
            notes.push(format!(
                "{MODEL_FILE} has {had} speakers: what it has of them is left out, and the voice has one"
            ));
        }
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::VOCODER;
    use super::*;
    use crate::family::{Family, KeptFile, ModelDir, OpenOptions};
    use ambitus_ir::StateDecl;
    use ambitus_recipe::recipe::Own;
    use serde_json::{Value, json};
    use std::path::{Path, PathBuf};

    fn fixture(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures").join(name)
    }

    fn opened(dir: &Path, keys: &Value) -> Result<ModelDir, RunError> {
        let own = Own::from([("piper".to_owned(), keys.as_object().cloned().unwrap_or_default())]);
        super::super::Piper.open(dir, OpenOptions { own, ..OpenOptions::default() })
    }

    fn states(model: &ModelDir) -> Vec<StateDecl> {
        let mut session = Session::default();
        for player in 0..2 {
            model.model.loss(&mut session, player, Capacity { rows: 64, clips: 2 }, "loss", true);
        }
        session.states
    }

    /// Returns the voice's tensors that are drawn, and how many are the checkpoint's. All others have their shapes.
    fn drawn(model: &ModelDir) -> (Vec<String>, usize) {
        let states = states(model);
        model.check(&states).unwrap();
        let weights = model.weights.as_ref().unwrap();
        let own = states.iter().filter(|s| model.model.made(&s.name).is_none());
        let (taken, drawn): (Vec<_>, Vec<_>) = own.partition(|s| weights.find(&s.name).is_some());
        (drawn.iter().map(|s| s.name.clone()).collect(), taken.len())
    }

    fn doubts(model: &ModelDir) -> String {
        model.doubts().unwrap().join("\n")
    }

    #[test]
    fn without_its_keys_a_voice_is_the_checkpoints() {
        for (name, keys) in [
            ("base", json!({})),
            ("base", json!({"warm_start": "all", "speakers": 1})),
            ("speakers", json!({"speakers": "3", "warm_start": ["all"]})),
        ] {
            let model = opened(&fixture(name), &keys).unwrap();
            let (drawn, taken) = drawn(&model);
            assert!(drawn.is_empty() && taken > 500 && doubts(&model).is_empty(), "{name}, {keys}");
        }
    }

    #[test]
    fn parts_are_taken_and_the_rest_is_drawn() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::copy(fixture("base").join(MODEL_FILE), dir.path().join(MODEL_FILE)).unwrap();
        let text = std::fs::read_to_string(fixture("base").join("config.json")).unwrap();
        let mut config: Value = serde_json::from_str(&text).unwrap();
        config["num_symbols"] = json!(40);
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        let rows = |keys: Value| {
            let model = opened(dir.path(), &keys).unwrap();
            let rows = states(&model).iter().find(|s| s.name == SYMBOLS).unwrap().ty.shape[0];
            (rows, drawn(&model).0, doubts(&model))
        };
        let whole = rows(json!({}));
        assert_eq!((whole.0, whole.1.len()), (24, 0));
        let (symbols, new, said) = rows(json!({"warm_start": "vocoder"}));
        let of_vocoder = |name: &str| VOCODER.iter().any(|part| begins(name, part));
        assert!(symbols == 40 && new.iter().all(|name| !of_vocoder(name)));
        let count = |under: &str| new.iter().filter(|name| begins(name, under)).count();
        let [d, dp, text] = ["model_d", "model_g.dp", "model_g.enc_p"].map(count);
        assert_eq!(d + dp + text, new.len());
        let of = format!("drawn by the seed: {d} of d, {dp} of dp, {text} of enc_p");
        assert!(said.starts_with(&format!("{} of the voice's ", new.len())) && said.ends_with(&of), "{said}");
        // As the command line says them; a text encoder whose table is taken has the checkpoint's symbols.
        let (symbols, new, _) = rows(json!({"warm_start": "vocoder, d,enc_p"}));
        assert!(symbols == 24 && new.iter().all(|name| begins(name, "model_g.dp")) && new.len() == dp);
        let (symbols, new, _) =
            rows(json!({"warm_start": ["vocoder", "d", "dp", "enc_p.encoder", "enc_p.proj"]}));
        assert_eq!((symbols, new), (40, vec![SYMBOLS.to_owned()]));
    }

    #[test]
    fn a_voice_of_one_speaker_begins_one_of_several() {
        let model = opened(&fixture("base"), &json!({"speakers": 3})).unwrap();
        let (new, _) = drawn(&model);
        assert!(new.len() == 20 && new.iter().all(|name| of_speakers(name)), "{new:?}");
        let said = doubts(&model);
        assert!(
            said.contains("20 of the voice's")
                && said.contains("2 of dec, 2 of dp, 1 of emb_g, 3 of enc_q, 12 of flow"),
            "{said}"
        );
        let kept: std::collections::BTreeMap<_, _> = model.opened.kept().unwrap().into_iter().collect();
        for (name, rest) in
            [("options.json", ("gin_channels", json!(512))), ("config.json", ("num_symbols", json!(24)))]
        {
            let KeptFile::Text(text) = &kept[name] else { panic!("{name}") };
            let json: Value = serde_json::from_str(text).unwrap();
            assert_eq!((&json["num_speakers"], &json[rest.0]), (&json!(3), &rest.1));
        }
        assert!(model.kept.is_empty());
        // Everything else has to be there.
        let mut states = states(&model);
        let mut other = states[0].clone();
        other.name = "model_g.enc_p.other".to_owned();
        states.push(other);
        let why = model.check(&states).unwrap_err().to_string();
        assert!(why.contains("1 tensors missing: model_g.enc_p.other"), "{why}");
    }

    #[test]
    fn other_speakers_have_a_table_of_their_own() {
        let model = opened(&fixture("speakers"), &json!({"speakers": 5})).unwrap();
        assert_eq!(drawn(&model).0, [SPEAKERS]);
        let model = opened(&fixture("speakers"), &json!({"speakers": 1})).unwrap();
        assert!(drawn(&model).0.is_empty() && doubts(&model).contains("3 speakers"), "{}", doubts(&model));
        // Nobody may be named whom a voice of several does not have.
        let why = opened(&fixture("speakers"), &json!({"speakers": 2})).err().unwrap().to_string();
        assert!(
            why.contains("config.json: speaker_id_map")
                && why.contains("has 2 speakers: give each an id from 0 to 1"),
            "{why}"
        );
    }

    #[test]
    fn what_no_voice_begins_with_is_refused() {
        for (keys, words) in [
            (json!({"warm_start": "vocodr"}), "no `vocodr`; its parts are d, dec, dp, enc_p, enc_q, flow"),
            (json!({"warm_start": ["dec", "emb_g"]}), "no `emb_g`"),
            (json!({"warm_start": ["de"]}), "no `de`"),
            (json!({"warm_start": []}), "piper.warm_start: [] names no parts: say all, vocoder"),
            (json!({"warm_start": "dec,,flow"}), "names no parts"),
            (json!({"warm_start": [1]}), "names no parts"),
            (json!({"warm_start": true}), "names no parts"),
            (json!({"speakers": 0}), "piper.speakers: 0 is no number of speakers from 1 to 65536"),
            (json!({"speakers": "two"}), "\"two\" is no number of speakers"),
            (json!({"speakers": 70_000}), "70000 is no number"),
            (json!({"speakers": -1}), "-1 is no number"),
            (json!({"speakers": 1.5}), "1.5 is no number"),
        ] {
            let why = opened(&fixture("base"), &keys).err().unwrap_or_else(|| panic!("{keys}"));
            assert!(why.exit_code() == 2 && why.to_string().contains(words), "{keys}: {why}");
        }
    }

    /// What a run keeps is whole: neither key changes its shape, and a voice without files has the speakers that are asked for.
    #[test]
    fn the_shape_of_a_run_is_its_own() {
        let dir = tempfile::tempdir().unwrap();
        let keys = json!({"speakers": 3, "warm_start": "vocoder"});
        let model = opened(&fixture("base"), &keys).unwrap();
        for (name, file) in model.opened.kept().unwrap() {
            let KeptFile::Text(text) = file else { panic!("{name}") };
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        let own = Own::from([("piper".to_owned(), keys.as_object().cloned().unwrap())]);
        let scratch = |own| OpenOptions { from_scratch: true, own, ..OpenOptions::default() };
        let run = super::super::Piper.open(dir.path(), scratch(own)).unwrap();
        let shapes = |model: &ModelDir| states(model).into_iter().map(|s| (s.name, s.ty)).collect::<Vec<_>>();
        assert!(shapes(&run) == shapes(&model) && run.kept == ["config.json"]);
        let own = Own::from([("piper".to_owned(), json!({"speakers": 2}).as_object().cloned().unwrap())]);
        let other = super::super::Piper.open(dir.path(), scratch(own)).unwrap();
        let table = states(&other).into_iter().find(|s| s.name == SPEAKERS).unwrap();
        assert_eq!(table.ty.shape[..], [2, 512]);
    }
}
