//! SNAC codes to seven ids a frame and back, as the language model over them orders them (`parity/README.md` has the source).
//!
//! The 24 kHz codec gives three layers of codes: n coarse, 2n middle, 4n fine. A frame is 2,048 samples and has one, two
//! and four of them, in depth-first order; each of the seven slots has a range of 4,096 ids of its own.

use super::sequence::FIRST_AUDIO;
use std::ops::Range;

/// Codes of a codebook.
pub const CODEBOOK: u32 = 4096;
/// Ids of a frame.
pub const SLOTS: usize = 7;
/// Samples of a frame at 24 kHz.
pub const FRAME_SAMPLES: usize = 2048;

/// For each slot its layer and its place among the layer's codes of the frame.
const ORDER: [(usize, usize); SLOTS] = [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (2, 2), (2, 3)];
/// Codes of a frame in each layer.
const PER_FRAME: [usize; 3] = [1, 2, 4];

/// Codes of one clip: n coarse, 2n middle and 4n fine ones, each under [`CODEBOOK`].
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Codes {
    layers: [Vec<u32>; 3],
}

impl Codes {
    /// Checks lengths and ranges; `Err` says what is wrong.
    pub fn new(layers: [Vec<u32>; 3]) -> Result<Self, String> {
        let n = layers[0].len();
        for (i, (layer, per)) in layers.iter().zip(PER_FRAME).enumerate() {
            if layer.len() != n * per {
                return Err(format!(
                    "{} codes in layer {i} for {n} frames; {} expected",
                    layer.len(),
                    n * per
                ));
            }
            if let Some(code) = layer.iter().find(|&&c| c >= CODEBOOK) {
                return Err(format!("code {code} in layer {i}; a codebook has {CODEBOOK}"));
            }
        }
        Ok(Self { layers })
    }

    /// Returns the number of frames.
    pub fn frames(&self) -> usize {
        self.layers[0].len()
    }

    /// Returns coarse `[n]`, middle `[2n]` and fine `[4n]` codes.
    pub fn layers(&self) -> &[Vec<u32>; 3] {
        &self.layers
    }
}

/// Returns the ids `[7n]` of the codes: slot k with code c is [`FIRST_AUDIO`] + 4096·k + c.
pub fn interleave(codes: &Codes) -> Vec<u32> {
    let mut ids = Vec::with_capacity(SLOTS * codes.frames());
    for frame in 0..codes.frames() {
        for (slot, (layer, place)) in (0u32..).zip(ORDER) {
            ids.push(FIRST_AUDIO + CODEBOOK * slot + codes.layers[layer][PER_FRAME[layer] * frame + place]);
        }
    }
    ids
}

/// Returns the codes of ids `[7n]`: the inverse of [`interleave`].
///
/// # Errors
/// Names the first id that cannot stand where it does, or an incomplete frame.
pub fn deinterleave(ids: &[u32]) -> Result<Codes, String> {
    let (frames, rest) = ids.as_chunks::<SLOTS>();
    if !rest.is_empty() {
        return Err(format!("{} audio ids, not a multiple of {SLOTS}", ids.len()));
    }
    let mut layers = PER_FRAME.map(|per| vec![0; per * frames.len()]);
    for (f, frame) in frames.iter().enumerate() {
        for (slot, (&id, (layer, place))) in frame.iter().zip(ORDER).enumerate() {
            let first = FIRST_AUDIO + CODEBOOK * slot as u32;
            let code = id.checked_sub(first).filter(|&c| c < CODEBOOK).ok_or_else(|| {
                let last = first + CODEBOOK - 1;
                format!("id {id} at {} of the audio; slot {slot} takes {first} to {last}", SLOTS * f + slot)
            })?;
            layers[layer][PER_FRAME[layer] * f + place] = code;
        }
    }
    Ok(Codes { layers })
}

/// Makes codes of ids as a model writes them. Ids of no slot are passed over; an id of another slot than the next ends a frame that
/// is not whole, which is dropped, and frames go on with the next id of the first slot.
#[derive(Debug, Clone, Default)]
pub struct Frames {
    layers: [Vec<u32>; 3],
    partial: Vec<u32>,
    /// Since something was dropped no id of the first slot has come.
    lost: bool,
    dropped: usize,
}

impl Frames {
    /// Takes the next id.
    pub fn push(&mut self, id: u32) {
        let Some(place) = id.checked_sub(FIRST_AUDIO).filter(|p| *p < CODEBOOK * SLOTS as u32) else {
            return;
        };
        let slot = (place / CODEBOOK) as usize;
        if slot != self.partial.len() {
            self.dropped += usize::from(!self.lost);
            self.lost = true;
            self.partial.clear();
            if slot != 0 {
                return;
            }
        }
        self.lost = false;
        self.partial.push(place % CODEBOOK);
        if self.partial.len() == SLOTS {
            for (code, (layer, _)) in self.partial.drain(..).zip(ORDER) {
                self.layers[layer].push(code);
            }
        }
    }

    /// Returns the number of whole frames.
    pub fn len(&self) -> usize {
        self.layers[0].len()
    }

    /// Returns whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of places where ids of a frame were missing or too many.
    pub fn dropped(&self) -> usize {
        self.dropped
    }

    /// Returns the codes `[n]`, `[2n]`, `[4n]` of a range of frames.
    pub fn codes(&self, range: Range<usize>) -> [Vec<u32>; 3] {
        let layers = self.layers.iter().zip(PER_FRAME);
        let mut parts = layers.map(|(layer, per)| layer[range.start * per..range.end * per].to_vec());
        std::array::from_fn(|_| parts.next().unwrap_or_default())
    }
}

/// Drops each frame whose first id equals that of the last frame kept, as the official preprocessing does: it shortens
/// silence. Only the coarse code is compared. `ids` are whole frames.
pub fn drop_repeated_frames(ids: &[u32]) -> Vec<u32> {
    let mut kept: Vec<u32> = Vec::with_capacity(ids.len());
    for frame in ids.chunks(SLOTS) {
        let last = kept.len().checked_sub(SLOTS).map(|at| kept[at]);
        if last != Some(frame[0]) {
            kept.extend_from_slice(frame);
        }
    }
    kept
}
