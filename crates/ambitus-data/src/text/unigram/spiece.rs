//! `spiece.model`, SentencePiece's own file: a protocol buffer (`sentencepiece_model.proto`). Fields that do not matter to ids are
//! passed over.

use super::charsmap::MAX_CHARSMAP;
use super::pieces::Pieces;
use super::settings::extra;

/// What `type` says of a piece, where it matters.
const UNKNOWN: u64 = 2;
const CONTROL: u64 = 3;
const USER_DEFINED: u64 = 4;
/// `model_type` of Unigram.
const UNIGRAM: u64 = 1;

/// A field's value.
enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
    Four([u8; 4]),
    Eight,
}

/// The fields of a message, in their order.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    /// Returns the next field's number and value.
    fn next(&mut self) -> Result<Option<(u64, Value<'a>)>, String> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Value::Number(self.varint()?),
            1 => {
                self.take::<8>()?;
                Value::Eight
            }
            2 => {
                let length = usize::try_from(self.varint()?).map_err(|_| cut())?;
                let (bytes, rest) = self.0.split_at_checked(length).ok_or_else(cut)?;
                self.0 = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Four(self.take()?),
            other => return Err(format!("a field of kind {other}, which SentencePiece does not write")),
        };
        Ok(Some((key >> 3, value)))
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let (bytes, rest) = self.0.split_first_chunk::<N>().ok_or_else(cut)?;
        self.0 = rest;
        Ok(*bytes)
    }

    fn varint(&mut self) -> Result<u64, String> {
        let mut n = 0u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.take()?;
            n |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(n);
            }
        }
        Err("a number of more than 64 bits".to_owned())
    }
}

fn cut() -> String {
    "it ends in the middle of a field".to_owned()
}

/// A piece.
struct Piece<'a> {
    text: &'a str,
    score: f32,
    kind: u64,
}

fn piece(bytes: &[u8]) -> Result<Piece<'_>, String> {
    let mut piece = Piece { text: "", score: 0.0, kind: 1 };
    let mut fields = Fields(bytes);
    while let Some(field) = fields.next()? {
        match field {
            (1, Value::Bytes(text)) => {
                piece.text = std::str::from_utf8(text).map_err(|_| "a piece that is no text".to_owned())?;
            }
            (2, Value::Four(score)) => piece.score = f32::from_le_bytes(score),
            (3, Value::Number(kind)) => piece.kind = kind,
            _ => {}
        }
    }
    Ok(piece)
}

/// What a file says and how much there is of it, before anything is built.
pub(super) struct Spiece<'a> {
    bytes: &'a [u8],
    pub(super) pieces: u64,
    /// Bytes of all spellings.
    pub(super) spellings: u64,
    /// Pieces that are found in a text as they are, before it is cut, and bytes of their spellings.
    pub(super) added: (u64, u64),
    pub(super) charsmap: &'a [u8],
    unknown: u64,
}

impl<'a> Spiece<'a> {
    /// Returns the length of the file.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Checks a file, and counts what is in it.
    pub(super) fn read(bytes: &'a [u8]) -> Result<Self, String> {
        let mut all = Self { bytes, pieces: 0, spellings: 0, added: (0, 0), charsmap: &[], unknown: 0 };
        let (mut model, mut fallback) = (UNIGRAM, 0);
        let mut fields = Fields(bytes);
        while let Some(field) = fields.next()? {
            match field {
                (1, Value::Bytes(bytes)) => {
                    let piece = piece(bytes)?;
                    all.pieces += 1;
                    all.spellings += piece.text.len() as u64;
                    if [CONTROL, USER_DEFINED].contains(&piece.kind) {
                        all.added.0 += 1;
                        all.added.1 += piece.text.len() as u64;
                    }
                }
                (2, Value::Bytes(trainer)) => {
                    let mut fields = Fields(trainer);
                    while let Some(field) = fields.next()? {
                        match field {
                            (3, Value::Number(kind)) => model = kind,
                            (35, Value::Number(yes)) => fallback = yes,
                            (40, Value::Number(id)) => all.unknown = id,
                            _ => {}
                        }
                    }
                }
                (3, Value::Bytes(normalizer)) => {
                    let mut fields = Fields(normalizer);
                    while let Some(field) = fields.next()? {
                        if let (2, Value::Bytes(charsmap)) = field {
                            all.charsmap = charsmap;
                        }
                    }
                }
                _ => {}
            }
        }
        if all.pieces == 0 {
            return Err("it has no pieces; it is no SentencePiece model".to_owned());
        }
        if model != UNIGRAM {
            return Err(format!("its model is of type {model}; T5's are Unigram, 1"));
        }
        if fallback != 0 {
            return Err("it falls back to bytes, which no T5's does".to_owned());
        }
        if all.charsmap.len() > MAX_CHARSMAP {
            return Err(format!("a table of replacements of {} bytes", all.charsmap.len()));
        }
        Ok(all)
    }

    /// Returns the pieces with the extra ids after them, and those that are found in a text as they are: spelling, and whether it is a
    /// control token.
    pub(super) fn build(&self, extra_ids: usize) -> Result<(Pieces, Vec<(String, bool)>), String> {
        let room = self.pieces as usize + extra_ids;
        let mut pieces = Pieces::with_capacity(room, self.spellings as usize + 20 * extra_ids);
        let mut added = Vec::with_capacity(self.added.0 as usize);
        let mut unknown_kind = 0;
        let mut fields = Fields(self.bytes);
        let mut id = 0;
        while let Some(field) = fields.next()? {
            let (1, Value::Bytes(bytes)) = field else { continue };
            let piece = piece(bytes)?;
            pieces.push(piece.text, f64::from(piece.score))?;
            if [CONTROL, USER_DEFINED].contains(&piece.kind) {
                added.push((piece.text.to_owned(), piece.kind == CONTROL));
            }
            if id == self.unknown {
                unknown_kind = piece.kind;
            }
            id += 1;
        }
        if unknown_kind != UNKNOWN {
            return Err(format!("its unknown token {} is not marked as one", self.unknown));
        }
        for i in (0..extra_ids).rev() {
            pieces.push(&extra(i), 0.0)?;
        }
        Ok((pieces.finish(self.unknown as usize)?, added))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_bounded_by_the_bytes() {
        let read = |bytes: &[u8]| Spiece::read(bytes).err().expect("refused");
        for (bytes, said) in [
            (&[][..], "no pieces"),
            (&[0x0a], "ends in the middle"),
            (&[0x0a, 5, 1], "ends in the middle"),
            (&[0x0a, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1], "ends in the middle"),
            (&[0x80; 30], "more than 64 bits"),
            (&[0x0b], "kind 3"),
            (&[0x0a, 3, 0x0a, 1, 0xff], "no text"),
            (&[0x0a, 0, 0x12, 2, 0x18, 2], "type 2"),
            (&[0x0a, 0, 0x12, 3, 0x98, 0x02, 1], "falls back to bytes"),
        ] {
            let why = read(bytes);
            assert!(why.contains(said), "{said}: {why}");
        }
        let none = Spiece::read(&[0x0a, 0]).expect("one piece").build(0).err().expect("refused");
        assert!(none.contains("not marked"), "{none}");
    }
}
