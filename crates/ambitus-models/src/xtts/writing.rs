//! Inputs of the programs that write codes ([`super::model::generate`]).
//!
//! A sequence begins with its prompt of 32 latents, the start of its text, the text and its stop, and the start of its codes. Unlike in
//! training, the stop of the text is seen (coqui-tts 0.28, `GPTInferenceModel`).

use super::batch::fill_frames;
use super::config::{BANDS, Config, LATENTS};
use crate::batch::{Batch, Layout};
use crate::decode::{Room, place_prompts, place_step};

/// Returns the rows of a sequence before its first code.
pub fn prompt_rows(text: usize) -> usize {
    LATENTS + text + 2 + 1
}

/// Returns the inputs of the program that conditions on a mel of `cfg.frames` frames, with this mel.
pub fn conditioned(cfg: &Config, mel: &[f32]) -> Batch {
    let tables = ["frames", "latent_segments", "seen_segments"].map(|name| (name, 2));
    let mut batch = Batch::new(&Layout::new(&[("mel", cfg.frames * BANDS)], &tables));
    fill_frames(cfg, &mut batch);
    batch.float("mel").copy_from_slice(mel);
    batch
}

/// Returns the inputs of prefill or decode.
pub fn layout(cfg: &Config, room: Room, prompts: bool) -> Layout {
    let rows = room.rows(prompts);
    let mut layout = Layout::new(&[], &room.tables(prompts));
    let names: &[&str] = match prompts {
        true => &["codes", "code_places", "text", "text_places", "prompt"],
        false => &["codes", "code_places"],
    };
    layout.ints.extend(names.iter().map(|name| ((*name).to_owned(), rows)));
    if prompts {
        layout.floats.push(("latents".to_owned(), room.sequences * LATENTS * cfg.dim));
    }
    layout
}

/// Fills the inputs of prefill with texts, and the latents `[32, D]` of each.
///
/// # Panics
/// When they exceed the room.
pub fn fill_prompts(cfg: &Config, batch: &mut Batch, room: Room, all: &[(&[u32], &[f32])]) {
    let lengths: Vec<usize> = all.iter().map(|(text, _)| prompt_rows(text.len())).collect();
    place_prompts(batch, room, &lengths);
    for name in ["codes", "code_places", "text", "text_places", "prompt"] {
        batch.int(name).fill(-1);
    }
    let mut at = 0;
    for (s, ((text, latents), rows)) in all.iter().zip(&lengths).enumerate() {
        batch.float("latents")[s * latents.len()..][..latents.len()].copy_from_slice(latents);
        for i in 0..LATENTS {
            batch.int("prompt")[at + i] = (s * LATENTS + i) as i32;
        }
        let ids = [&[cfg.text_start], *text, &[cfg.text_stop]].concat();
        for (i, id) in ids.into_iter().enumerate() {
            batch.int("text")[at + LATENTS + i] = id as i32;
            batch.int("text_places")[at + LATENTS + i] = i as i32;
        }
        at += rows;
        batch.int("codes")[at - 1] = cfg.start as i32;
        batch.int("code_places")[at - 1] = 0;
    }
}

/// Fills the inputs of decode: of every sequence the length of its text and its codes so far, or none where it has ended.
pub fn fill_step(batch: &mut Batch, room: Room, all: &[Option<(usize, &[u32])>]) {
    let of = |s: usize| all.get(s).copied().flatten();
    let place = |s: usize| of(s).map(|(text, codes)| prompt_rows(text) + codes.len() - 1);
    let places: Vec<Option<usize>> = (0..room.sequences).map(place).collect();
    place_step(batch, room, &places);
    for (s, to) in batch.int("codes").iter_mut().enumerate() {
        *to = of(s).and_then(|(_, codes)| codes.last()).map_or(-1, |code| *code as i32);
    }
    for (s, to) in batch.int("code_places").iter_mut().enumerate() {
        *to = of(s).map_or(-1, |(_, codes)| codes.len() as i32);
    }
}
