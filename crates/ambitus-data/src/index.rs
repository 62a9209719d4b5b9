//! The list of prepared clips, and its split into training and validation.

use std::fmt::Write as _;
use std::io::BufReader;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};

use crate::error::DataError;
use crate::files;
use crate::measured::Measured;
use crate::scratch::Scratch;

/// Name of the index in the cache folder.
pub const INDEX_FILE: &str = "index.json";

/// One usable clip, as the index file has it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClipMeta {
    /// Name, unique in the index: the audio's path as the metadata gives it.
    pub name: String,
    /// Length in the model's sequence, which is what packing counts: frames N of the mel, or of a token clip all its ids.
    pub frames: u32,
    /// Tokens Nt of the text.
    pub tokens: u32,
    /// Rows of context, which those attend to; 0 without.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub context: u32,
    /// How often it is trained on, in relation to others.
    #[serde(default = "once", skip_serializing_if = "is_once")]
    pub weight: f32,
    /// Measured of the audio.
    pub measured: Measured,
    /// Clip file, relative to the index's folder: the key's first half and an extension.
    pub file: String,
    /// Content key (hex): changes with audio, text, tokenizer or mel.
    pub key: String,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

fn once() -> f32 {
    1.0
}

fn is_once(weight: &f32) -> bool {
    *weight == once()
}

impl ClipMeta {
    /// Returns the name of the file of a clip with this key.
    pub(crate) fn file_name(key: &[u8; 32], extension: &str) -> String {
        let [half, _] = halves(key);
        file_name(half, extension)
    }
}

fn halves(key: &[u8; 32]) -> [[u8; 16]; 2] {
    [0, 16].map(|from| std::array::from_fn(|i| key[from + i]))
}

fn file_name(half: [u8; 16], extension: &str) -> String {
    let mut name = String::with_capacity(2 * half.len() + 1 + extension.len());
    for byte in half {
        // Writing to a string cannot fail.
        let _ = write!(name, "{byte:02x}");
    }
    name + "." + extension
}

/// What a run holds of the usable clips, in the order of their names: fixed bytes for each, and its name. All else is in the
/// index file, and can be read without the audio.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ClipIndex {
    /// Where the clip files lie.
    folder: PathBuf,
    /// Of the clip files.
    extension: String,
    slots: Vec<Slot>,
    frames: Vec<u32>,
    /// How often each is trained on, in relation to others; none while all are alike.
    weights: Vec<f32>,
    /// Most rows of context of a clip.
    context: u32,
    /// All names, one after another.
    names: String,
    /// [`ClipIndex::digest`] so far.
    hash: Hash,
}

/// A hash that two indices may be compared with.
#[derive(Debug, Clone, Default)]
struct Hash(blake3::Hasher);

impl PartialEq for Hash {
    fn eq(&self, other: &Self) -> bool {
        self.0.finalize() == other.0.finalize()
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Slot {
    /// The first half of the key, which names the file.
    file: [u8; 16],
    /// Where its name ends, in bytes of all names.
    name_end: usize,
}

impl ClipIndex {
    /// Returns an empty index of clip files in a folder.
    pub fn new(folder: &Path, extension: &str) -> Self {
        Self { folder: folder.to_owned(), extension: extension.to_owned(), ..Self::default() }
    }

    /// Returns the most bytes of an index of `clips` clips with `names` bytes of names.
    pub const fn bytes_of(clips: usize, names: usize) -> u64 {
        // Vectors grow by doubling.
        2 * (clips * (size_of::<Slot>() + size_of::<u32>() + size_of::<f32>()) + names) as u64
    }

    /// Returns the bytes that it takes at most.
    pub fn bytes(&self) -> u64 {
        Self::bytes_of(self.len(), self.names.len())
    }

    /// Adds a clip whose name comes after all others.
    ///
    /// # Errors
    /// Says what is wrong with it.
    pub fn push(&mut self, clip: &ClipMeta) -> Result<(), String> {
        let mut half = [0; 16];
        let hex = clip.file.strip_suffix(self.extension.as_str()).and_then(|file| file.strip_suffix('.'));
        let sound = hex.filter(|hex| hex.len() == 32 && hex.is_ascii()).is_some_and(|hex| {
            let byte = |i: usize| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16);
            (0..16).all(|i| byte(i).map(|b| half[i] = b).is_ok())
        });
        if !sound || clip.frames == 0 || !(clip.weight.is_finite() && clip.weight > 0.0) {
            return Err(format!("damaged index: clip {}", self.len()));
        }
        if !self.is_empty() && self.name(self.len() - 1) >= clip.name.as_str() {
            return Err(format!("damaged index: order at clip {}", self.len()));
        }
        self.names.push_str(&clip.name);
        self.slots.push(Slot { file: half, name_end: self.names.len() });
        self.frames.push(clip.frames);
        if !self.weights.is_empty() || !is_once(&clip.weight) {
            self.weights.resize(self.frames.len() - 1, once());
            self.weights.push(clip.weight);
            self.hash.0.update(&clip.weight.to_le_bytes());
        }
        self.context = self.context.max(clip.context);
        self.hash.0.update(&(clip.name.len() as u64).to_le_bytes());
        self.hash.0.update(clip.name.as_bytes());
        self.hash.0.update(clip.key.as_bytes());
        Ok(())
    }

    /// Returns the number of clips.
    pub fn len(&self) -> usize {
        self.slots.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the name of clip `i`.
    pub fn name(&self, i: usize) -> &str {
        let start = if i == 0 { 0 } else { self.slots[i - 1].name_end };
        &self.names[start..self.slots[i].name_end]
    }

    /// Returns the folder of the clip files, and of what else was prepared for them.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the path of clip `i`'s file, for [`load_clip`](crate::load_clip),
    /// [`load_token_clip`](crate::speech::load_token_clip), [`load_code_clip`](crate::codes::load_code_clip) or
    /// [`load_piece_clip`](crate::pieces::load_piece_clip).
    pub fn path(&self, i: usize) -> PathBuf {
        self.folder.join(file_name(self.slots[i].file, &self.extension))
    }

    /// Returns the length of every clip in the model's sequence: frames, or ids of token clips.
    pub fn frames(&self) -> &[u32] {
        &self.frames
    }

    /// Returns how often every clip is trained on, in relation to others; nothing where all are alike.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Returns the most rows of context of a clip; 0 without.
    pub fn context(&self) -> u32 {
        self.context
    }

    /// Returns some of the clips, to plan for: their digest is not that of prepared data.
    pub(crate) fn keep(&self, of: impl Fn(usize) -> bool) -> Self {
        let mut kept = Self { context: self.context, ..Self::new(&self.folder, &self.extension) };
        for i in (0..self.len()).filter(|i| of(*i)) {
            kept.names.push_str(self.name(i));
            kept.slots.push(Slot { name_end: kept.names.len(), ..self.slots[i] });
            kept.frames.push(self.frames[i]);
            kept.weights.extend(self.weights.get(i));
        }
        kept
    }

    /// Changes with any clip's content or name: two runs with the same digest train on the same data.
    pub fn digest(&self) -> String {
        self.hash.0.finalize().to_hex().to_string()
    }

    /// Reads an index; its clip files lie in the same folder.
    ///
    /// # Errors
    /// Damage, by line.
    pub fn load(path: &Path) -> Result<Self, DataError> {
        let mut index: Option<Self> = None;
        let folder = path.parent().unwrap_or(Path::new(""));
        read_index(path, |clip| {
            let extension = clip.file.rsplit_once('.').map_or("", |(_, extension)| extension);
            index.get_or_insert_with(|| Self::new(folder, extension)).push(&clip)
        })?;
        Ok(index.unwrap_or_else(|| Self::new(folder, "")))
    }

    /// Holds out the clips that `list` names: a clip's name, or its last part with or without extension. An entry that
    /// fits no clip is an error.
    pub fn split(&self, list: &[String]) -> Result<Split, DataError> {
        let mut held_out = vec![false; self.len()];
        for wanted in list {
            let mut found = false;
            for (i, held) in held_out.iter_mut().enumerate() {
                // What fits only clips that are held out already fits none.
                if !*held && matches_name(self.name(i), wanted) {
                    (*held, found) = (true, true);
                }
            }
            if !found {
                return Err(DataError::Packing(format!(
                    "the validation list names {wanted:?}, which is not a usable clip of this data"
                )));
            }
        }
        Split::new(&held_out)
    }

    /// Returns the clips of a data set of several, whose names begin with its own.
    pub fn of_set(&self, name: &str) -> Range<usize> {
        let prefix = format!("{name}/");
        let first = |is: &dyn Fn(&str) -> bool| {
            let (mut low, mut high) = (0, self.len());
            while low < high {
                let middle = low.midpoint(high);
                if is(self.name(middle)) { high = middle } else { low = middle + 1 }
            }
            low
        };
        let start = first(&|clip| clip >= &*prefix);
        start..first(&|clip| clip >= &*prefix && !clip.starts_with(&*prefix))
    }

    /// Returns the clip of this name.
    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        let (mut low, mut high) = (0, self.len());
        while low < high {
            let middle = low.midpoint(high);
            match self.name(middle).cmp(name) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Some(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Holds out a share of the clips by a seeded hash of the name, so that adding clips moves few others: at least one
    /// of two, unless the share is 0.
    pub fn split_share(&self, share: f64, seed: u64) -> Result<Split, DataError> {
        let n = self.len();
        let mut held_out = vec![false; n];
        if n >= 2 && share > 0.0 {
            let mut order: Vec<usize> = (0..n).collect();
            order.sort_by_cached_key(|&i| {
                let mut hash = blake3::Hasher::new();
                hash.update(&seed.to_le_bytes());
                hash.update(self.name(i).as_bytes());
                *hash.finalize().as_bytes()
            });
            let count = ((n as f64 * share).round() as usize).max(1);
            order.iter().take(count).for_each(|&i| held_out[i] = true);
        }
        Split::new(&held_out)
    }
}

/// Reads the clips of an index file, one in memory at a time; `each` may say what is wrong with one.
///
/// # Errors
/// Damage, by line.
pub fn read_index(
    path: &Path,
    mut each: impl FnMut(ClipMeta) -> Result<(), String>,
) -> Result<(), DataError> {
    let (file, _) = files::open(path)?;
    let mut json = serde_json::Deserializer::from_reader(BufReader::new(file));
    let read = json.deserialize_map(Index(&mut each)).and_then(|()| json.end());
    read.map_err(|e| DataError::line(path, e.line() as u64, format!("damaged index: {e}")))
}

/// `{"clips": [..]}`.
struct Index<'f>(&'f mut dyn FnMut(ClipMeta) -> Result<(), String>);

impl<'de> Visitor<'de> for Index<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object with `clips`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        match map.next_key::<String>()?.as_deref() {
            Some("clips") => map.next_value_seed(Clips(self.0))?,
            _ => return Err(A::Error::missing_field("clips")),
        }
        match map.next_key::<String>()? {
            Some(other) => Err(A::Error::unknown_field(&other, &["clips"])),
            None => Ok(()),
        }
    }
}

struct Clips<'f>(&'f mut dyn FnMut(ClipMeta) -> Result<(), String>);

impl<'de> DeserializeSeed<'de> for Clips<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Clips<'_> {
    type Value = ();

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a list of clips")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while let Some(clip) = list.next_element()? {
            (self.0)(clip).map_err(A::Error::custom)?;
        }
        Ok(())
    }
}

/// Writes an index file while its clips become known, and makes the index.
pub(crate) struct IndexWriter {
    index: ClipIndex,
    json: Scratch,
}

impl IndexWriter {
    pub(crate) fn new(folder: &Path, extension: &str) -> Result<Self, DataError> {
        let mut json = Scratch::new(folder)?;
        json.append(b"{\"clips\":[")?;
        Ok(Self { index: ClipIndex::new(folder, extension), json })
    }

    /// Adds a clip whose name comes after all others.
    pub(crate) fn push(&mut self, clip: &ClipMeta) -> Result<(), DataError> {
        let path = || self.index.folder.join(INDEX_FILE);
        let json = serde_json::to_vec(clip).map_err(|e| DataError::io(&path(), e.into()))?;
        if !self.index.is_empty() {
            self.json.append(b",")?;
        }
        self.json.append(&json)?;
        let added = self.index.push(clip);
        added.map_err(|reason| DataError::file(&self.index.folder.join(INDEX_FILE), reason))
    }

    pub(crate) fn index(&self) -> &ClipIndex {
        &self.index
    }

    /// Writes the file, whole or not at all.
    pub(crate) fn finish(mut self) -> Result<ClipIndex, DataError> {
        self.json.append(b"]}\n")?;
        self.json.publish(&self.index.folder.join(INDEX_FILE))?;
        Ok(self.index)
    }
}

impl Split {
    pub(crate) fn new(held_out: &[bool]) -> Result<Split, DataError> {
        let (validation, train): (Vec<usize>, Vec<usize>) = (0..held_out.len()).partition(|&i| held_out[i]);
        if train.is_empty() {
            return Err(DataError::Packing(format!(
                "no clip is left for training: {} usable, {} held out for validation",
                held_out.len(),
                validation.len()
            )));
        }
        Ok(Split { train, validation })
    }

    /// Changes with which clips are held out.
    pub fn digest(&self) -> String {
        let mut hash = blake3::Hasher::new();
        for &i in &self.validation {
            hash.update(&(i as u64).to_le_bytes());
        }
        hash.finalize().to_hex().to_string()
    }
}

fn matches_name(name: &str, wanted: &str) -> bool {
    let last = name.rsplit('/').next().unwrap_or(name);
    let stem = last.rsplit_once('.').map_or(last, |(stem, _)| stem);
    wanted == name || wanted == last || wanted == stem
}

/// Indices into a [`ClipIndex`], each ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Split {
    /// Clips to train on.
    pub train: Vec<usize>,
    /// Clips only for the validation loss; empty for a single clip.
    pub validation: Vec<usize>,
}
