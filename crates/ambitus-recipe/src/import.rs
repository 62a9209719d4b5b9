//! Other trainers' configurations, read into a recipe: accelerate's YAML, TrainingArguments (JSON, YAML, flags, pasted Python),
//! and the files of families' official trainers ([`Trainer`]).
//!
//! Nothing of them is run. Each key is *used*, *default* (what happens here anyway), has *no effect, because …*, *asks*
//! something, or is *unknown* with the nearest known name; none is dropped silently. Files are merged, and two places that
//! cannot both be meant are an error that names both. Meaning and defaults of the keys are those of accelerate 1.x and
//! transformers 4 and 5.

mod batch;
mod data;
mod flags;
mod form;
mod fsdp;
mod given;
mod hydra;
mod judge;
mod keys;
mod lay_over;
mod lightning;
mod lines;
mod pointers;
mod precision;
mod python;
mod schedule;
mod solver;
mod table;
#[cfg(test)]
mod tests;
mod torch;
mod training;
mod world;

use crate::recipe::tree::{Key, Node, Tree};
use crate::recipe::{
    MAX_RECIPE_BYTES, Place, Precision, Recipe, RecipeError, Section, read_text, read_tree, short,
};
use ambitus_store::StoreError;
use form::Form;
use given::Given;
use judge::{Judge, Of};
use keys::Known;
pub use keys::LOGS;
pub use lay_over::lay_over;
pub use lightning::Lightning;
use serde::Serialize;
pub use solver::Solver;
use std::path::{Path, PathBuf};

/// The most keys of one import.
const MAX_KEYS: usize = 2000;

/// What is read: a file's text, or flags of our own command line.
#[derive(Clone, Debug)]
pub struct Source {
    name: String,
    text: Text,
}

#[derive(Clone, Debug)]
enum Text {
    File(String),
    Words(Vec<String>),
}

/// Keys with their values.
type Entries = Vec<(Key, Tree)>;

/// Folders that the recipe is to name.
#[derive(Clone, Debug, Default)]
pub struct Folders {
    /// `model.dir`.
    pub model: Option<PathBuf>,
    /// `data.dir`.
    pub data: Option<PathBuf>,
}

/// What became of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It says this of the recipe.
    Used(String),
    /// It is what happens here anyway.
    Default(String),
    /// It changes nothing here, because of this.
    NoEffect(String),
    /// It asks this back.
    Ask(String),
    /// Nobody knows it; the nearest known name.
    Unknown(Option<String>),
}

/// A key that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The file, as it was named.
    pub file: String,
    /// Line of the value, from 1.
    pub line: u64,
    /// The key with its sections.
    pub key: String,
    /// The value on one short line.
    pub value: String,
    /// What became of it.
    pub verdict: Verdict,
    of: Of,
}

/// A recipe of other trainers' files, and what became of each of their keys.
#[derive(Clone, Debug, Serialize)]
pub struct Imported {
    /// Every key in the order given.
    pub rows: Vec<Row>,
    /// What one update sees, in words; `None` if the files do not say.
    pub effective_batch: Option<String>,
    /// What the reader must know or answer.
    pub notes: Vec<String>,
    /// The recipe as YAML with comments; [`Recipe::parse`] has read it.
    pub recipe: String,
}

/// Whose files they are: what an absent key means depends on it.
#[derive(Clone, Default)]
struct Origin {
    /// accelerate's file or launcher.
    accelerate: bool,
    /// TrainingArguments, or what has its names.
    arguments: bool,
    /// See [`Trainer`].
    counts_frames: bool,
    precision: Option<(Precision, &'static str)>,
    has_length: bool,
    descriptions: Option<&'static str>,
}

/// Files of a family's original trainer: how they are known, and what is particular to them.
#[derive(Clone, Copy, Debug)]
pub struct Trainer {
    /// Keys by which its files are known; sections end in a dot.
    pub signs: &'static [&'static str],
    /// Batches are counted in frames.
    pub counts_frames: bool,
    /// What it computes in, and where that is written.
    pub precision: Option<(Precision, &'static str)>,
    /// It has a length of its own: the epochs of TrainingArguments are not meant.
    pub has_length: bool,
    /// Names that are judged, and its keys.
    pub keys: &'static [(&'static str, &'static [&'static str])],
    /// Keys that change nothing here, those too that are known of other trainers, and why. One that ends in a dot stands for all below it.
    pub nothing: &'static [(&'static str, &'static [&'static str])],
    /// What it does where keys are absent.
    pub absent: &'static [Absent],
    /// What its files do not say and the reader must know, each of a key of the recipe.
    pub notes: &'static [(&'static str, &'static str)],
    /// The recipe's key of a second data set, with descriptions.
    pub descriptions: Option<&'static str>,
    /// The section of keys of its own that a recipe may have.
    pub section: Option<&'static Section>,
    /// Its files are those of a solver, which hydra composes.
    pub solver: Option<Solver>,
    /// It is PyTorch Lightning's, with two optimizers.
    pub lightning: Option<Lightning>,
}

/// What a trainer does if its files have none of these keys.
#[derive(Clone, Copy, Debug)]
pub struct Absent {
    /// Its keys at the outermost level.
    pub keys: &'static [&'static str],
    /// What it does.
    pub means: Means,
}

/// What an absent key means.
#[derive(Clone, Copy, Debug)]
pub enum Means {
    /// A key of the recipe has this value.
    Line(&'static str, &'static str),
    /// What the reader must know, unless a key of the recipe says otherwise.
    Note(&'static str, &'static str),
}

impl Trainer {
    /// One about which there is nothing particular.
    pub const PLAIN: Trainer = Trainer {
        signs: &[],
        counts_frames: false,
        precision: None,
        has_length: false,
        keys: &[],
        nothing: &[],
        absent: &[],
        notes: &[],
        descriptions: None,
        section: None,
        solver: None,
        lightning: None,
    };

    /// Returns whether keys are of its files.
    fn wrote(&self, given: &[Given]) -> bool {
        let has = |sign: &&str| match sign.ends_with('.') {
            true => given.iter().any(|g| g.path.starts_with(sign)),
            false => given.iter().any(|g| g.path == *sign),
        };
        self.signs.iter().any(has)
    }

    /// Returns what a key of its own is, by its path.
    fn known(&self, path: &str) -> Option<Known> {
        let below = |name: &&str| name.ends_with('.') && path.starts_with(*name);
        let has = |names: &[&str]| names.contains(&path) || names.iter().any(below);
        if let Some((why, _)) = self.nothing.iter().find(|(_, names)| has(names)) {
            return Some(Known::Nothing(why));
        }
        let named = self.keys.iter().find(|(_, paths)| paths.contains(&path)).map(|(id, _)| *id);
        let of_lightning = || self.lightning.and_then(|l| l.judged(path));
        let of_solver = || self.solver.and_then(|s| s.judged(path));
        named.or_else(of_lightning).or_else(of_solver).map(Known::Judged)
    }

    /// Says what is meant by what the files do not say.
    fn absences(&self, j: &mut Judge) {
        for Absent { keys, means } in self.absent {
            if keys.iter().any(|key| j.is_given(key)) {
                continue;
            }
            match *means {
                Means::Line(key, value) => {
                    j.line(key, value, format!("its trainer's, where {} is absent", keys.join(" or ")));
                }
                Means::Note(key, text) => {
                    j.note(Some(key), format!("{} is absent: {text}", keys.join(" or ")));
                }
            }
        }
        for (key, text) in self.notes {
            j.note(Some(key), (*text).to_owned());
        }
    }
}

impl Source {
    /// Returns a file of at most [`MAX_RECIPE_BYTES`].
    ///
    /// # Errors
    /// What cannot be read, or is no text.
    pub fn read(path: &Path) -> Result<Source, RecipeError> {
        let text = read_text(path, "give the file itself (YAML, JSON, flags or Python)")?;
        Ok(Source::text(path.display().to_string(), text))
    }

    /// Returns a file's text.
    pub fn text(name: impl Into<String>, text: impl Into<String>) -> Source {
        Source { name: name.into(), text: Text::File(text.into()) }
    }

    /// Returns a source of words after `--` on the command line.
    pub fn words(words: &[String]) -> Source {
        Source { name: "command line".to_owned(), text: Text::Words(words.to_vec()) }
    }

    /// Returns the keys at the outermost level, and those of hydra's overrides.
    fn entries(&self) -> Result<(Entries, Entries), RecipeError> {
        let fail = |place, why| RecipeError { file: short(&self.name), place, key: None, why };
        let wrong = |(place, why)| fail(Some(place), why);
        let words = |tokens: &[flags::Token]| match hydra::composes(tokens) {
            true => (flags::parse(&hydra::others(tokens)), hydra::overrides(tokens)),
            false => (flags::parse(tokens), Vec::new()),
        };
        let alone = |entries| (entries, Vec::new());
        let (entries, overrides) = match &self.text {
            Text::Words(all) => {
                let at = |i| Place { line: 1, column: i as u64 + 1 };
                let word = |(i, w): (usize, &String)| flags::Token::Word(flags::Word::plain(w, at(i)));
                words(&all.iter().enumerate().map(word).collect::<Vec<_>>())
            }
            Text::File(text) if text.len() as u64 > MAX_RECIPE_BYTES => {
                return Err(fail(None, "is larger than 1 MiB: this is no configuration".to_owned()));
            }
            Text::File(text) => match form::form(&self.name, text) {
                Form::Yaml => match read_tree(text, &short(&self.name))?.node {
                    Node::Map(entries) => alone(entries),
                    _ => return Err(fail(None, "holds no keys: a map of key: value is expected".to_owned())),
                },
                Form::Python => alone(python::parse(text).map_err(wrong)?),
                Form::Flags => words(&form::pieces(text, false).map_err(wrong)?),
                Form::Batch => words(&form::pieces(text, true).map_err(wrong)?),
            },
        };
        if entries.is_empty() && overrides.is_empty() {
            return Err(fail(None, "holds no keys".to_owned()));
        }
        Ok((entries, overrides))
    }
}

/// Reads files and flags together into a recipe.
///
/// # Errors
/// What cannot be read, is not a value of its key, contradicts another place, or has no counterpart that could be run; with
/// file, line and key.
pub fn import(sources: &[Source], folders: &Folders, trainers: &[&Trainer]) -> Result<Imported, RecipeError> {
    judged(sources, folders, trainers).map(|(imported, ..)| imported)
}

/// Returns an import, of which key of the recipe each of its notes is, and the recipe.
fn judged(
    sources: &[Source],
    folders: &Folders,
    trainers: &[&Trainer],
) -> Result<(Imported, Vec<Of>, Recipe), RecipeError> {
    let (mut given, mut overrides) = (Vec::new(), Vec::new());
    for source in sources {
        let (entries, over) = source.entries()?;
        entries.into_iter().for_each(|(key, tree)| spread(&source.name, "", key, tree, &mut given));
        over.into_iter().for_each(|(key, tree)| spread(&source.name, "", key, tree, &mut overrides));
        if given.len() + overrides.len() > MAX_KEYS {
            let why = format!("has more than {MAX_KEYS} keys: this is no configuration");
            return Err(RecipeError { file: short(&source.name), place: None, key: None, why });
        }
    }
    hydra::compose(&mut given, overrides);
    let own: Vec<&Trainer> = trainers.iter().copied().filter(|t| t.wrote(&given)).collect();
    let solver = own.iter().find_map(|t| t.solver);
    let lightning = own.iter().find_map(|t| t.lightning);
    for g in &mut given {
        g.known = own.iter().find_map(|t| t.known(&g.path)).or(g.known);
    }
    let origin = &origin(&given, &own);
    judge::hush(&mut given);
    let mut j = Judge::new(&given)?;
    let mut world = world::world(&mut j)?;
    pointers::pointers(&mut j, &world)?;
    lightning.map(|l| lightning::lightning(&mut j, &l, &mut world, folders)).transpose()?;
    let of_solver = solver.map(|s| solver::solver(&mut j, &s, folders)).transpose()?.flatten();
    fsdp::sharding(&mut j, &world, origin)?;
    precision::precision(&mut j, origin)?;
    let effective_batch = batch::batch(&mut j, &world, origin)?.or(of_solver);
    training::training(&mut j, origin)?;
    data::data(&mut j, origin, folders)?;
    own.iter().for_each(|t| t.absences(&mut j));
    if world.ranks.is_none() && matches!(world.kind, world::Kind::Sharded | world::Kind::Replicated) {
        let why = "these files do not say over how many ranks: give accelerate's file too, or write `ranks:` in the recipe";
        j.note(Some("ranks"), why.to_owned());
    }
    let (verdicts, lines, notes) = j.done();
    let (notes, of_notes): (Vec<String>, Vec<Of>) = notes.into_iter().unzip();
    let row = |(g, (verdict, of)): (&Given, (Verdict, Of))| Row {
        file: g.file.clone(),
        line: g.place.line,
        key: g.path.clone(),
        value: g.shown(),
        verdict,
        of,
    };
    let rows: Vec<Row> = given.iter().zip(verdicts).map(row).collect();
    // What the notes do not ask already.
    let open = |(r, g): &(&Row, &Given)| match r.verdict {
        Verdict::Ask(_) => g.node.has_code(),
        _ => matches!(r.verdict, Verdict::Unknown(_)),
    };
    let open = rows.iter().zip(&given).filter(open);
    let open = open.map(|(r, _)| {
        format!("{}: {} ({}:{}): {}", short(&r.key), r.value, short(&r.file), r.line, r.verdict)
    });
    let remarks: Vec<String> = notes.iter().cloned().chain(open).collect();
    let files: Vec<String> = sources.iter().map(|s| s.name.clone()).collect();
    let recipe = lines::recipe(&lines, folders, &files, &remarks);
    let sections: Vec<&Section> = own.iter().filter_map(|t| t.section).collect();
    let (said, _) = Recipe::parse_with(&recipe, "the recipe", &sections)?;
    Ok((Imported { rows, effective_batch, notes, recipe }, of_notes, said))
}

/// Why a recipe was not written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// Something has that name.
    #[error("{0}: is there already: choose another name, or remove it first")]
    Exists(String),
    /// A folder that cannot be written to.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Writes an import's recipe where nothing is yet: whole, or not at all.
///
/// # Errors
/// A file that is there, or a folder that cannot be written to.
pub fn write(path: &Path, recipe: &str) -> Result<(), WriteError> {
    if path.symlink_metadata().is_ok() {
        return Err(WriteError::Exists(path.display().to_string()));
    }
    Ok(ambitus_store::write_atomic(path, recipe.as_bytes())?)
}

/// Adds a key, or the keys of a section.
fn spread(file: &str, section: &str, key: Key, tree: Tree, out: &mut Vec<Given>) {
    let path = if section.is_empty() { key.name.clone() } else { format!("{section}.{}", key.name) };
    match tree.node {
        Node::Map(entries) if !entries.is_empty() && keys::SECTIONS.iter().any(|(name, _)| *name == path) => {
            for (key, tree) in entries {
                spread(file, &path, key, tree, out);
            }
        }
        node => {
            // Flags come as text: `--fsdp_config '{"version": 2}'`.
            let nested = match &node {
                Node::Text(t) if t.trim_start().starts_with('{') => read_tree(t, file).ok(),
                _ => None,
            };
            let node = match nested {
                Some(Tree { node: Node::Map(entries), .. })
                    if keys::SECTIONS.iter().any(|(name, _)| *name == path) =>
                {
                    if !entries.is_empty() {
                        for (key, inner) in entries {
                            spread(file, &path, key, Tree { place: tree.place, node: inner.node }, out);
                        }
                        return;
                    }
                    Node::Map(entries)
                }
                _ => node,
            };
            let known = keys::find(section_of(section), &key.name);
            let mut given = Given::new(file, path, Tree { place: tree.place, node });
            given.known = known;
            out.push(given);
        }
    }
}

/// Returns the name of a section by its path.
fn section_of(path: &str) -> &'static str {
    keys::SECTIONS.iter().find(|(name, _)| *name == path).map_or("", |(_, section)| *section)
}

fn origin(given: &[Given], own: &[&Trainer]) -> Origin {
    let has = |names: &[&str]| given.iter().any(|g| names.contains(&g.path.as_str()));
    let judged =
        |ids: &[&str]| given.iter().any(|g| matches!(g.known, Some(Known::Judged(id)) if ids.contains(&id)));
    Origin {
        accelerate: has(&[
            "distributed_type",
            "compute_environment",
            "use_fsdp",
            "num_processes",
            "machine_rank",
        ]),
        arguments: judged(&[
            "per_device",
            "accumulation",
            "epochs",
            "max_steps",
            "learning_rate",
            "output_dir",
            "fsdp",
        ]),
        counts_frames: own.iter().any(|t| t.counts_frames),
        precision: own.iter().find_map(|t| t.precision),
        has_length: own.iter().any(|t| t.has_length),
        descriptions: own.iter().find_map(|t| t.descriptions),
    }
}
