//! GPUs that can be planned for on any machine: the table `cards.toml` of the repository, and the user's own.

use ambitus_families::error::RunError;
use ambitus_recipe::near::distance;
use ambitus_recipe::recipe::read_text;
use ambitus_recipe::size::ByteSize;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::ops::{Range, RangeInclusive};
use std::path::Path;
use toml::Spanned;

/// The table built into the program.
const OWN: &str = include_str!("../../../cards.toml");
/// The user's table, looked for in the working directory.
pub const FILE: &str = "cards.toml";
/// Oldest compute capability that the kernels are compiled for.
const OLDEST: (u32, u32) = (7, 5);
/// Oldest compute capability whose tensor cores take bfloat16, and TF32.
pub const OLDEST_BF16: (u32, u32) = (8, 0);
/// Plausible rates, in TFLOPS and GB/s alike; others are slips of the unit.
const RATES: RangeInclusive<f64> = 0.01..=1e6;
/// Plausible memory, bytes; other sizes are slips of the unit.
const MEMORY: RangeInclusive<u64> = 1 << 30..=1 << 44;
/// Plausible counts of multiprocessors.
const MULTIPROCESSORS: RangeInclusive<u32> = 1..=1 << 12;
/// Plausible memory as cards are sold, GB; other sizes are slips of the unit.
const SOLD: RangeInclusive<u64> = 1..=1 << 14;

/// A GPU: what it holds and what it does per second.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Card {
    /// What `--card` takes, as the table writes it.
    pub id: String,
    /// As its maker names it.
    pub name: String,
    /// Bytes that the driver offers to programs.
    #[serde(rename = "usable_bytes", serialize_with = "bytes")]
    pub usable: ByteSize,
    /// GB of memory as the card is sold.
    pub sold_gb: u64,
    /// Compute capability: major, minor.
    pub capability: (u32, u32),
    /// How many multiprocessors it has, where the table says.
    pub multiprocessors: Option<u32>,
    /// Sustained 1e12 operations per second of large fp32 products.
    pub fp32_tflops: f64,
    /// Sustained 1e12 operations per second of large products of fp32 operands in TF32, where it has that.
    pub tf32_tflops: Option<f64>,
    /// Sustained 1e12 operations per second of large products of 16-bit operands with fp32 sums.
    pub half_tflops: f64,
    /// Sustained 1e9 bytes per second of its memory.
    pub memory_gb_per_s: f64,
    /// Sustained 1e9 bytes per second of copies from and to the host, one way.
    pub link_gb_per_s: f64,
    /// Sustained 1e9 bytes per second that a card sends to another of its host while it receives as much.
    pub peer_gb_per_s: f64,
    /// Its tensor cores take bfloat16.
    pub bf16: bool,
    /// It has tensor cores.
    pub tensor_cores: bool,
}

fn bytes<S: serde::Serializer>(size: &ByteSize, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(size.0)
}

/// A card as it is written. Where they are left out, `peer_gb_per_s` is the rate of the host's link, and `tensor_cores` follows
/// from the rates; what a prediction rests on is required.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a card, as [NAME] and its figures")]
struct Entry {
    name: Spanned<String>,
    usable: Spanned<ByteSize>,
    sold_gb: Option<Spanned<u64>>,
    capability: Spanned<String>,
    multiprocessors: Option<Spanned<u32>>,
    fp32_tflops: Spanned<f64>,
    tf32_tflops: Option<Spanned<f64>>,
    half_tflops: Spanned<f64>,
    memory_gb_per_s: Spanned<f64>,
    link_gb_per_s: Spanned<f64>,
    peer_gb_per_s: Option<Spanned<f64>>,
    bf16: Spanned<bool>,
    tensor_cores: Option<bool>,
}

/// What is wrong, and where in the text.
type Fault = (Option<Range<usize>>, String);

impl Entry {
    fn card(self, id: &str) -> Result<Card, Fault> {
        if self.name.get_ref().trim().is_empty() {
            return Err((Some(self.name.span()), "name is empty".to_owned()));
        }
        let usable = *self.usable.get_ref();
        if !MEMORY.contains(&usable.0) {
            return Err((Some(self.usable.span()), format!("usable: no GPU has {usable}: 1GiB to 16TiB")));
        }
        // Drivers take less than one GB of most cards.
        let sold =
            self.sold_gb.as_ref().map(|x| within(x, SOLD, |gb| format!("sold_gb: no GPU has {gb} GB")));
        let sold_gb = sold.transpose()?.unwrap_or(usable.0.div_ceil(1 << 30));
        let count = |n| format!("multiprocessors: no GPU has {n}");
        let multiprocessors = self.multiprocessors.as_ref().map(|x| within(x, MULTIPROCESSORS, count));
        let rate = |key: &str, x: &Spanned<f64>| within(x, RATES, |x| format!("{key}: {x} is not a rate"));
        let link = rate("link_gb_per_s", &self.link_gb_per_s)?;
        let peer = self.peer_gb_per_s.as_ref().map(|x| rate("peer_gb_per_s", x)).transpose()?;
        let fp32_tflops = rate("fp32_tflops", &self.fp32_tflops)?;
        let half_tflops = rate("half_tflops", &self.half_tflops)?;
        Ok(Card {
            id: id.to_owned(),
            usable,
            sold_gb,
            capability: self.capability()?,
            multiprocessors: multiprocessors.transpose()?,
            fp32_tflops,
            tf32_tflops: self.tf32_tflops.as_ref().map(|x| rate("tf32_tflops", x)).transpose()?,
            half_tflops,
            memory_gb_per_s: rate("memory_gb_per_s", &self.memory_gb_per_s)?,
            link_gb_per_s: link,
            peer_gb_per_s: peer.unwrap_or(link),
            bf16: self.bf16.into_inner(),
            tensor_cores: self.tensor_cores.unwrap_or(half_tflops > fp32_tflops),
            name: self.name.into_inner(),
        })
    }

    /// Returns the compute capability, if there are kernels for it, and it has what the card is said to have.
    fn capability(&self) -> Result<(u32, u32), Fault> {
        let at = |span: Range<usize>, why: String| Err((Some(span), why));
        let parsed = self.capability.get_ref().split_once('.');
        let parsed = parsed.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        let Some(capability) = parsed else {
            let why = format!("capability: `{}` is not one: write \"8.6\"", self.capability.get_ref());
            return at(self.capability.span(), why);
        };
        if capability < OLDEST {
            let why = "capability: there are kernels from 7.5 (Turing) on".to_owned();
            return at(self.capability.span(), why);
        }
        if *self.bf16.get_ref() && capability < OLDEST_BF16 {
            return at(self.bf16.span(), "bf16: tensor cores take it from capability 8.0 on".to_owned());
        }
        match &self.tf32_tflops {
            Some(tf32) if capability < OLDEST_BF16 => {
                at(tf32.span(), "tf32_tflops: tensor cores have TF32 from capability 8.0 on".to_owned())
            }
            _ => Ok(capability),
        }
    }
}

/// Returns a figure, if it is a plausible one; `what` says which it is.
fn within<T: Copy + PartialOrd + fmt::Display>(
    x: &Spanned<T>,
    plausible: RangeInclusive<T>,
    what: impl Fn(T) -> String,
) -> Result<T, Fault> {
    let value = *x.get_ref();
    // NaN is in no range.
    if plausible.contains(&value) {
        return Ok(value);
    }
    let why = format!("{}: {} to {}", what(value), plausible.start(), plausible.end());
    Err((Some(x.span()), why))
}

/// The cards that are known.
#[derive(Clone, Debug, PartialEq)]
pub struct Cards(Vec<Card>);

impl Cards {
    /// Returns the program's table with the user's on top: the file that is given, else `cards.toml` of the working directory
    /// where there is one.
    ///
    /// # Errors
    /// [`RunError::Usage`] with file and line.
    pub fn load(file: Option<&Path>) -> Result<Cards, RunError> {
        let mut cards = Cards(parse(OWN, "cards.toml of this program")?);
        let here = Path::new(FILE);
        if let Some(path) = file.or_else(|| here.exists().then_some(here)) {
            cards.add(parse(&read(path)?, &path.display().to_string())?);
        }
        Ok(cards)
    }

    /// Adds cards; those of a name that is known replace it.
    fn add(&mut self, cards: Vec<Card>) {
        for card in cards {
            match self.0.iter_mut().find(|c| plain(&c.id) == plain(&card.id)) {
                Some(known) => *known = card,
                None => self.0.push(card),
            }
        }
    }

    /// Returns every card, by memory and then by name.
    pub fn by_memory(&self) -> Vec<&Card> {
        let mut all: Vec<&Card> = self.0.iter().collect();
        all.sort_by(|a, b| (a.usable, &a.id).cmp(&(b.usable, &b.id)));
        all
    }

    /// Returns the card of a name, either the table's or its maker's; upper case, spaces and hyphens do not matter.
    ///
    /// # Errors
    /// [`RunError::Usage`] with what was probably meant.
    pub fn find(&self, name: &str) -> Result<&Card, RunError> {
        let wanted = plain(name);
        if let Some(card) = self.0.iter().find(|c| [plain(&c.id), plain(&c.name)].contains(&wanted)) {
            return Ok(card);
        }
        // A part of the name, or the name with the fewest typing errors.
        let slips = |c: &Card| match plain(&c.id) {
            id if !wanted.is_empty() && (id.contains(&wanted) || wanted.contains(&id)) => 0,
            id => distance(&id, &wanted),
        };
        let all = self.by_memory();
        // Of a name as short as `l4`, every other is a few errors away.
        let few = |n: &usize| *n <= 2 && *n < wanted.chars().count();
        let fewest = all.iter().map(|c| slips(c)).min().filter(few);
        let meant: Vec<&str> =
            all.iter().filter(|c| Some(slips(c)) == fewest).map(|c| c.id.as_str()).collect();
        let meant =
            if meant.is_empty() { String::new() } else { format!(": did you mean {}?", meant.join(" or ")) };
        let shown: String = name.chars().take(40).collect();
        let known: Vec<&str> = all.iter().map(|c| c.id.as_str()).collect();
        Err(RunError::Usage(format!(
            "no card `{shown}`{meant}\n  known: {}\n  others: describe yours in {FILE}, or in the file of --cards-file",
            known.join(", ")
        )))
    }
}

/// Returns a name without the characters that people write in different ways.
fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

fn read(path: &Path) -> Result<String, RunError> {
    read_text(path, "a table of cards is a TOML file").map_err(|e| RunError::Usage(e.to_string()))
}

/// Returns the cards of a text; `file` is for messages.
fn parse(text: &str, file: &str) -> Result<Vec<Card>, RunError> {
    let fail = |(span, why): Fault| {
        let line = span.map(|s| text[..s.start.min(text.len())].matches('\n').count() + 1);
        RunError::Usage(format!("{file}:{} {why}", line.map_or(String::new(), |n| format!("{n}:"))))
    };
    let entries: BTreeMap<String, Entry> =
        toml::from_str(text).map_err(|e| fail((e.span(), e.message().trim_end().replace('\n', ", "))))?;
    let mut entries: Vec<_> = entries.into_iter().collect();
    entries.sort_by_key(|(_, entry)| entry.name.span().start);
    let mut cards: Vec<Card> = Vec::new();
    for (id, entry) in entries {
        let whole = entry.name.span();
        if plain(&id).is_empty() || cards.iter().any(|c| plain(&c.id) == plain(&id)) {
            let why = format!("[{id}]: every card needs a name of its own");
            return Err(fail((Some(whole), why)));
        }
        cards.push(entry.card(&id).map_err(|(span, why)| fail((span, format!("[{id}] {why}"))))?);
    }
    Ok(cards)
}

#[cfg(test)]
#[path = "cards/tests.rs"]
mod tests;
