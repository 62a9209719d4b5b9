//! The verdict on each given key, while the recipe's lines are made of them.

use super::Verdict;
use super::given::Given;
use super::keys::{self, Known};
use super::lines::Line;
use crate::recipe::RecipeError;

/// The size of a unit.
const MIN_PARAMS: &str = "fsdp.min_num_params";

/// The key of the recipe that something is said of: where that key says otherwise, it does not hold.
pub(super) type Of = Option<&'static str>;

/// Things that are said, and of what.
pub(super) type Said<T> = Vec<(T, Of)>;

/// The given keys, what was said of each so far, and the recipe so far.
pub(super) struct Judge<'a> {
    given: &'a [Given],
    verdicts: Vec<Option<(Verdict, Of)>>,
    pub lines: Vec<Line>,
    /// What the reader must know or answer.
    pub notes: Said<String>,
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
            let said = match (&g.known, &g.node) {
                _ if let Some(why) = &g.hushed => Some(Verdict::NoEffect(why.clone())),
                (Some(Known::Judged(_)), node) if node.has_code() => Some(Verdict::Ask(
                    "it is code, not a literal, and nothing is run: write its value here".to_owned(),
                )),
                (Some(Known::Nothing(why)), _) => Some(Verdict::NoEffect((*why).to_owned())),
                _ => None,
            };
            *verdict = said.map(|said| (said, None));
        }
        Ok(judge)
    }

    /// Returns what says a key, if it says anything.
    pub fn get(&self, id: &str) -> Option<&'a Given> {
        self.given.iter().find(|g| is(g, id) && speaks(g))
    }

    /// Returns whether a key, by its own name, is given, be it as code or as none.
    pub fn is_given(&self, path: &str) -> bool {
        self.given.iter().any(|g| g.path == path)
    }

    /// Returns all places that say a key.
    pub fn all(&self, id: &'static str) -> impl Iterator<Item = &'a Given> + use<'a> {
        let given = self.given;
        given.iter().filter(move |g| is(g, id) && speaks(g))
    }

    /// Returns whether a file of this name is among those that are read.
    pub fn reads(&self, path: &str) -> bool {
        let last = |path: &str| path.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
        self.given.iter().any(|g| last(&g.file) == last(path))
    }

    /// Returns whether any key whose name starts with `beginning` is given.
    pub fn any(&self, beginning: &str) -> bool {
        let begins = |g: &Given| matches!(g.known, Some(Known::Judged(id)) if id.starts_with(beginning));
        self.given.iter().any(|g| begins(g) && !g.is_off())
    }

    /// Returns what says one of these keys as code. Such a key is not absent: what its own trainer would take for an absent one
    /// is not what it means.
    pub fn code(&self, ids: &[&str]) -> Option<&'a Given> {
        self.given.iter().find(|g| g.node.has_code() && g.hushed.is_none() && ids.iter().any(|id| is(g, id)))
    }

    /// Says something of a key, which is true as long as key `of` of the recipe does not say otherwise. The first word stands.
    pub fn say_of(&mut self, id: &str, of: Of, verdict: Verdict) {
        for (slot, g) in self.verdicts.iter_mut().zip(self.given) {
            if is(g, id) && speaks(g) && slot.is_none() {
                *slot = Some((verdict.clone(), of));
            }
        }
    }

    /// Says something of a key that is true of every recipe. The first word stands.
    pub fn say(&mut self, id: &str, verdict: Verdict) {
        self.say_of(id, None, verdict);
    }

    /// Judges a key as what Ambitus does in any case.
    pub fn always(&mut self, id: &str, text: &str) {
        self.say(id, Verdict::Default(text.to_owned()));
    }

    /// Judges a key as what Ambitus does if the recipe does not set `key`.
    pub fn default(&mut self, id: &str, key: &'static str, text: &str) {
        self.say_of(id, Some(key), Verdict::Default(text.to_owned()));
    }

    /// Judges that a key changes nothing, because …
    pub fn nothing(&mut self, id: &str, why: &str) {
        self.say(id, Verdict::NoEffect(why.to_owned()));
    }

    /// Judges that a key changes nothing here but did something there, which the reader must know.
    pub fn lost(&mut self, id: &str, why: &str) {
        if let Some(g) = self.get(id) {
            self.note(None, format!("{}: not taken over: {why}", g.full()));
        }
        self.nothing(id, why);
    }

    /// Asks what the recipe's key `of` should be.
    pub fn ask(&mut self, id: &str, of: Of, question: &str) {
        if let Some(g) = self.get(id) {
            self.note(of, format!("{}: {question}", g.full()));
        }
        self.say_of(id, of, Verdict::Ask(question.to_owned()));
    }

    /// Notes what the reader must know or answer, unless a recipe sets `of` otherwise.
    pub fn note(&mut self, of: Of, text: String) {
        self.notes.push((text, of));
    }

    /// Judges that a key sets a key of the recipe. Does nothing if it is not given.
    pub fn used(&mut self, id: &str, key: &'static str, value: impl ToString) {
        let Some(g) = self.get(id) else { return };
        let value = value.to_string();
        self.says(id, key, format!("{key}: {value}"));
        self.line(key, value, g.from());
    }

    /// Judges that a key has a part in a key of the recipe.
    pub fn says(&mut self, id: &str, key: &'static str, text: String) {
        self.say_of(id, Some(key), Verdict::Used(text));
    }

    /// Sets a key of the recipe to the trainer's default, if none of the keys `ids` is given.
    pub fn absent(&mut self, ids: &[&str], key: &'static str, value: impl ToString, from: impl ToString) {
        if self.code(ids).is_none() {
            self.line(key, value, from);
        }
    }

    /// Sets a key of the recipe. The first line of a key stands.
    pub fn line(&mut self, key: &'static str, value: impl ToString, from: impl ToString) {
        if !self.lines.iter().any(|l| l.key == key) {
            self.lines.push(Line { key, value: value.to_string(), from: from.to_string() });
        }
    }

    /// Returns what was said of every key, in the order given; the lines of the recipe; what the reader must know.
    pub fn done(self) -> (Said<Verdict>, Vec<Line>, Said<String>) {
        let Judge { given, verdicts, lines, notes } = self;
        let last = |(verdict, g): (Option<(Verdict, Of)>, &Given)| match verdict {
            // Two keys for one thing: what one leaves off the other may have turned on.
            Some((Verdict::Default(_), Some(of))) if let Some(line) = line_of(&lines, of) => {
                let why = format!("{} says `{}: {}`", line.from, line.key, line.value);
                (Verdict::NoEffect(why), None)
            }
            Some(verdict) => verdict,
            None if g.known.is_some() || (g.is_null() && keys::is_section(&g.path)) => {
                (Verdict::Default("it is off or empty, as if it were not there".to_owned()), None)
            }
            None => {
                let (section, key) = g.path.rsplit_once('.').unwrap_or(("", &g.path));
                (Verdict::Unknown(keys::nearest(super::section_of(section), key)), None)
            }
        };
        let verdicts = verdicts.into_iter().zip(given).map(last).collect();
        (verdicts, lines, notes)
    }
}

/// Returns the line that says a key of the recipe, itself or in a map.
fn line_of<'a>(lines: &'a [Line], of: &str) -> Option<&'a Line> {
    let inner = |l: &&Line| of.rsplit_once('.').is_some_and(|(s, k)| s == l.key && l.value.contains(k));
    lines.iter().find(|l| l.key == of).or_else(|| lines.iter().find(inner))
}

fn is(g: &Given, id: &str) -> bool {
    matches!(g.known, Some(Known::Judged(known)) if known == id)
}

/// Returns whether it has a value that is known.
fn speaks(g: &Given) -> bool {
    !g.is_null() && !g.node.has_code() && g.hushed.is_none()
}

/// Drops a size of 0, which saved arguments write for none, if another place gives one.
pub(super) fn hush(given: &mut [Given]) {
    let zero = |g: &Given| is(g, MIN_PARAMS) && g.real() == Ok(0.0);
    if given.iter().any(|g| is(g, MIN_PARAMS) && speaks(g) && !zero(g)) {
        let why = || Some("0 is none given, and another place gives one".to_owned());
        given.iter_mut().filter(|g| zero(g)).for_each(|g| g.hushed = why());
    }
}

/// Returns the error of two places that contradict each other.
pub(super) fn conflict(first: &Given, second: &Given) -> RecipeError {
    second.bad(format!(
        "is {}, and {} says otherwise: remove or change one of the two",
        second.shown(),
        first.full()
    ))
}
