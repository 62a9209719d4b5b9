//! What is said of each given key, while the recipe's lines are made of them.

use super::Verdict;
use super::given::Given;
use super::keys::{self, Known};
use super::lines::Line;
use crate::recipe::RecipeError;

/// The size of a unit.
const MIN_PARAMS: &str = "fsdp.min_num_params";

/// The given keys, what was said of each so far, and the recipe so far.
pub(super) struct Judge<'a> {
    given: &'a [Given],
    verdicts: Vec<Option<Verdict>>,
    pub lines: Vec<Line>,
    /// What the reader must know or answer.
    pub notes: Vec<String>,
}

impl<'a> Judge<'a> {
    /// # Errors
    /// Two places that say different things of one key.
    pub fn new(given: &'a [Given]) -> Result<Judge<'a>, RecipeError> {
        // A unit's size counts where units go by size: `fsdp::units` compares it there.
        let said = |g: &&Given| matches!(g.known, Some(Known::Judged(id)) if id != MIN_PARAMS) && speaks(g);
        let all: Vec<&Given> = given.iter().filter(said).collect();
        for (i, second) in all.iter().enumerate() {
            if let Some(first) = all[..i].iter().find(|first| first.known == second.known)
                && !first.same(second)
            {
                return Err(conflict(first, second));
            }
        }
        let mut judge =
            Judge { given, verdicts: vec![None; given.len()], lines: Vec::new(), notes: Vec::new() };
        for (verdict, g) in judge.verdicts.iter_mut().zip(given) {
            if matches!(g.known, Some(Known::Nothing(_))) && keys::is_switch(&g.path) && speaks(g) {
                g.flag()?;
            }
            *verdict = match (&g.known, &g.node) {
                _ if g.hushed => {
                    Some(Verdict::NoEffect("0 is none given, and another place gives one".to_owned()))
                }
                (Some(Known::Judged(_)), node) if node.has_code() => Some(Verdict::Ask(
                    "it is code, not a literal, and nothing is run: write its value here".to_owned(),
                )),
                (Some(Known::Nothing(why)), _) => Some(Verdict::NoEffect((*why).to_owned())),
                _ => None,
            };
        }
        Ok(judge)
    }

    /// What says a key, if it says anything.
    pub fn get(&self, id: &str) -> Option<&'a Given> {
        self.given.iter().find(|g| is(g, id) && speaks(g))
    }

    /// All places that say a key.
    pub fn all(&self, id: &'static str) -> impl Iterator<Item = &'a Given> + use<'a> {
        let given = self.given;
        given.iter().filter(move |g| is(g, id) && speaks(g))
    }

    /// A file of this name is among those that are read.
    pub fn reads(&self, path: &str) -> bool {
        let last = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        self.given.iter().any(|g| last(&g.file) == last(path))
    }

    /// Any key whose name begins so says something.
    pub fn any(&self, beginning: &str) -> bool {
        let begins = |g: &Given| matches!(g.known, Some(Known::Judged(id)) if id.starts_with(beginning));
        self.given.iter().any(|g| begins(g) && !g.is_off())
    }

    /// Says something of a key. The first word on it stands.
    pub fn say(&mut self, id: &str, verdict: Verdict) {
        for (slot, g) in self.verdicts.iter_mut().zip(self.given) {
            if is(g, id) && speaks(g) && slot.is_none() {
                *slot = Some(verdict.clone());
            }
        }
    }

    /// It is what Ambitus does anyway.
    pub fn default(&mut self, id: &str, text: &str) {
        self.say(id, Verdict::Default(text.to_owned()));
    }

    /// It changes nothing, because …
    pub fn nothing(&mut self, id: &str, why: &str) {
        self.say(id, Verdict::NoEffect(why.to_owned()));
    }

    /// It changes nothing here, and it did something there: the reader must know.
    pub fn lost(&mut self, id: &str, why: &str) {
        if let Some(g) = self.get(id) {
            self.notes.push(format!("{}: not taken over: {why}", g.full()));
        }
        self.nothing(id, why);
    }

    /// It asks something back.
    pub fn ask(&mut self, id: &str, question: &str) {
        if let Some(g) = self.get(id) {
            self.notes.push(format!("{}: {question}", g.full()));
        }
        self.say(id, Verdict::Ask(question.to_owned()));
    }

    /// It says a key of the recipe. Nothing happens where it is not given.
    pub fn used(&mut self, id: &str, key: &'static str, value: impl ToString) {
        let Some(g) = self.get(id) else { return };
        let value = value.to_string();
        self.say(id, Verdict::Used(format!("{key}: {value}")));
        self.line(key, value, g.from());
    }

    /// A key of the recipe. The first line of a key stands.
    pub fn line(&mut self, key: &'static str, value: impl ToString, from: impl ToString) {
        if !self.lines.iter().any(|l| l.key == key) {
            self.lines.push(Line { key, value: value.to_string(), from: from.to_string() });
        }
    }

    /// What was said of every key, in the order given.
    pub fn verdicts(self) -> (Vec<Verdict>, Vec<Line>, Vec<String>) {
        let last = |(verdict, g): (Option<Verdict>, &Given)| match verdict {
            Some(verdict) => verdict,
            None if g.known.is_some() || (g.is_null() && keys::is_section(&g.path)) => {
                Verdict::Default("it is off or empty, as if it were not there".to_owned())
            }
            None => {
                let (section, key) = g.path.rsplit_once('.').unwrap_or(("", &g.path));
                Verdict::Unknown(keys::nearest(super::section_of(section), key))
            }
        };
        let verdicts = self.verdicts.into_iter().zip(self.given).map(last).collect();
        (verdicts, self.lines, self.notes)
    }
}

fn is(g: &Given, id: &str) -> bool {
    matches!(g.known, Some(Known::Judged(known)) if known == id)
}

/// It has a value that is known.
fn speaks(g: &Given) -> bool {
    !g.is_null() && !g.node.has_code() && !g.hushed
}

/// A size of 0, which saved arguments write for none, says nothing beside a place that gives one.
pub(super) fn hush(given: &mut [Given]) {
    let zero = |g: &Given| is(g, MIN_PARAMS) && g.real() == Ok(0.0);
    if given.iter().any(|g| is(g, MIN_PARAMS) && speaks(g) && !zero(g)) {
        given.iter_mut().filter(|g| zero(g)).for_each(|g| g.hushed = true);
    }
}

/// Two places that cannot both be meant.
pub(super) fn conflict(first: &Given, second: &Given) -> RecipeError {
    second.bad(format!(
        "is {}, and {} says otherwise: remove or change one of the two",
        second.shown(),
        first.full()
    ))
}
