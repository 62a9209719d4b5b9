//! What a batch holds of prepared clips, and what their losses are divided by.

use super::clips::CodeClips;
use super::keys::{Keys, Normaliser};
use crate::clips::{Clips, Use, When};
use ambitus_data::codes::{self, CodesOptions, Counts, Frames, Rows, Texts, load_code_clip, load_states};
use ambitus_data::{Limits, Policy, PrepareOptions, Prepared, Source, wav};
use ambitus_models::parler::batch::{self, Clip};
use ambitus_models::parler::config::Config;
use ambitus_models::{Batch, Capacity, Model};
use std::num::NonZeroUsize;
use std::path::Path;

const FRAME: usize = 512;

fn config() -> Config {
    Config { codebooks: 3, vocab: 20, eos: 16, bos: 17, prompts: 60, text_dim: 2, ..Config::mini_v1() }
}

/// Numbers that follow from lengths and places.
struct Toy;

impl Texts for Toy {
    fn prompt(&self, text: &str) -> Result<Vec<u32>, String> {
        Ok(text.split(' ').map(|word| 2 + word.len() as u32).chain([1]).collect())
    }

    fn description(&self, text: &str) -> Result<Vec<u32>, String> {
        self.prompt(text)
    }

    fn fingerprint(&self) -> [u8; 32] {
        [1; 32]
    }
}

impl codes::Encoder for Toy {
    fn states(&mut self, ids: &[u32]) -> Result<Vec<f32>, String> {
        Ok(ids.iter().flat_map(|id| [*id as f32, 0.5]).collect())
    }

    /// Each draw is one more.
    fn drawn(&mut self, ids: &[u32], number: usize) -> Result<Vec<f32>, String> {
        let states = codes::Encoder::states(self, ids)?;
        Ok(states.iter().map(|x| x + 1.0 + number as f32).collect())
    }

    fn width(&self) -> usize {
        2
    }
}

impl codes::Codec for Toy {
    fn encode(&mut self, samples: &[f32]) -> Result<Vec<Vec<u32>>, String> {
        let frames = (samples.len() / FRAME) as u32;
        Ok((0..3).map(|k| (0..frames).map(|t| (t * 5 + k + frames) % 16).collect()).collect())
    }

    fn fingerprint(&self) -> [u8; 32] {
        [2; 32]
    }
}

/// Prepares two clips with descriptions of different lengths.
fn prepared(dir: &Path, cfg: &Config) -> Prepared {
    for (name, samples) in [("a", 15_000), ("b", 20_000)] {
        let tone: Vec<f32> = (0..samples).map(|t| 0.3 * (t as f32 * 0.1).sin()).collect();
        wav::write_wav(&dir.join(format!("{name}.wav")), &tone, 44_100).unwrap();
    }
    let lines = "audio_file|text|description\na.wav|One.|She speaks.\nb.wav|One and two.|He speaks slowly.\n";
    std::fs::write(dir.join("metadata.csv"), lines).unwrap();
    let rows = |counts: Counts| {
        let own = batch::rows(cfg, counts.prompt, counts.frames)?;
        Ok(Rows { own, context: cfg.context_of(counts.prompt, counts.description) })
    };
    let codes = CodesOptions {
        description: None,
        most_description: 9,
        draws: 3,
        frames: Frames { codebooks: 3, samples: FRAME },
        rows: &rows,
        spec: "toy-v1",
    };
    let cache = dir.join("cache");
    let options = PrepareOptions {
        limits: Limits::default(),
        policy: Policy::Skip,
        cache,
        threads: 1,
        rate: 44_100,
        edits: Default::default(),
    };
    let source = Source::read_described(dir, None, &options.cache, u64::MAX).unwrap();
    codes::prepare_states(&source, &Toy, (&mut Toy, &[3; 32]), &codes, &options, &|_| true).unwrap();
    codes::prepare_codes(&source, &Toy, (&mut Toy, [3; 32]), &codes, &options, &|_| true).unwrap()
}

fn used(clip: usize, when: When) -> Use {
    Use { clip, when }
}

#[test]
fn a_batch_holds_what_was_prepared() {
    for prompts_in_context in [false, true] {
        let dir = tempfile::tempdir().unwrap();
        let mut cfg = Config { prompts_in_context, ..config() };
        let index = prepared(dir.path(), &cfg).index;
        let clips = CodeClips::new(index.clone(), &[1, 0], 7, (cfg.clone(), &Keys::default()));
        // The longer: three words and an end, and if prompts stand there too, as many again.
        assert_eq!(clips.context(), if prompts_in_context { 8 } else { 4 });
        let (frames, delays) = ([39, 29], 3);
        let prompts = if prompts_in_context { [0, 0] } else { [4, 2] };
        assert_eq!(clips.rows(), [frames[0] + prompts[0] + delays, frames[1] + prompts[1] + delays]);

        cfg.context = clips.context() as usize;
        let cap = Capacity { rows: 100, clips: 3 };
        let (mut batch, mut expected) = ((&cfg as &dyn Model).batch(cap), (&cfg as &dyn Model).batch(cap));
        let uses = [used(1, When::Epoch(0)), used(0, When::Epoch(0))];
        clips.fill(&uses, &mut batch).unwrap();
        let loaded = [0, 1].map(|i| load_code_clip(&index.path(i)).unwrap());
        let states = loaded.each_ref().map(|clip| load_states(index.folder(), clip, None, 2).unwrap());
        let ints = |batch: &Batch, name: &str| {
            let found = batch.ints().find(|(input, _)| *input == name);
            found.unwrap().1.to_vec()
        };
        let keys = ints(&batch, "keys");
        let key = |i: usize| [keys[2 * i] as u32, keys[2 * i + 1] as u32];
        let of = |i: usize| Clip {
            prompt: &loaded[i].prompt,
            codes: &loaded[i].codes,
            described: states[i].len() / 2,
            key: key(i),
        };
        batch::fill(&cfg, &mut expected, &[of(0), of(1)]);
        (0..2).for_each(|i| batch::put_states(&cfg, &mut expected, i, &states[i]));
        assert!(batch.ints().eq(expected.ints()) && batch.floats().eq(expected.floats()));
        assert!((0..2).all(|i| of(i).check(&cfg).is_ok()));

        // Keys are those of clip and epoch, wherever in a batch; a validation drops nothing.
        assert_ne!(key(0), key(1));
        clips.fill(&[used(0, When::Epoch(0)), used(0, When::Epoch(1))], &mut batch).unwrap();
        let again = ints(&batch, "keys");
        assert_eq!(again[..2], keys[2..4]);
        assert_ne!(again[..2], again[2..4]);
        clips.fill(&[used(0, When::Round(0))], &mut batch).unwrap();
        assert_eq!(ints(&batch, "keys"), [0; 6]);
    }
}

/// A use has one of the draws of its description's states, the same every time; a validation has none.
#[test]
fn a_use_has_a_draw_of_its_descriptions_states() {
    let (dir, mut cfg) = (tempfile::tempdir().unwrap(), config());
    let index = prepared(dir.path(), &cfg).index;
    let keys = Keys { encoder_draws: 3, ..Keys::default() };
    cfg.context = 4;
    let clips = CodeClips::new(index.clone(), &[0], 7, (cfg.clone(), &keys));
    let mut batch = (&cfg as &dyn Model).batch(Capacity { rows: 50, clips: 1 });
    let mut first = |when| {
        clips.fill(&[used(0, when)], &mut batch).unwrap();
        batch.floats().find(|(name, _)| *name == "states").unwrap().1[0]
    };
    let plain = first(When::Round(0));
    let mut counts = [0; 3];
    for epoch in 0..300 {
        let drawn = first(When::Epoch(epoch));
        assert_eq!(first(When::Epoch(epoch)), drawn);
        counts[(drawn - plain) as usize - 1] += 1;
    }
    assert!(counts.iter().all(|n| (70..130).contains(n)), "{counts:?}");
    let why = Keys { encoder_draws: 65, ..Keys::default() }.checked().unwrap_err();
    assert!(why.contains("parler.encoder_draws: 65 is more than 64"), "{why}");
}

#[test]
fn a_loss_is_divided_by_what_is_scored_or_as_by_the_script() {
    let (dir, cfg) = (tempfile::tempdir().unwrap(), config());
    let index = prepared(dir.path(), &cfg).index;
    let norm = |normaliser, script_clips: usize, when: When| {
        let keys = Keys { normaliser, script_clips: NonZeroUsize::new(script_clips), ..Keys::default() };
        let clips = CodeClips::new(index.clone(), &[0, 1, 0], 7, (cfg.clone(), &keys));
        let norms = clips.norms(&[used(0, when), used(1, when), used(2, when)]).unwrap();
        (1.0 / norms[0].1).round()
    };
    let scored = 2.0 * (29.0 + 1.0) + 39.0 + 1.0;
    assert_eq!(norm(Normaliser::Valid, 2, When::Epoch(3)), scored);
    assert_eq!(norm(Normaliser::Script, 0, When::Round(0)), scored);
    // Padded to the longest with its delays: all three, the two longest and the one that is left, each alone.
    let cells = [(0, 3.0 * 42.0), (2, 2.0 * 42.0 + 32.0), (1, 42.0 + 2.0 * 32.0)];
    assert_eq!(cells.map(|(n, _)| norm(Normaliser::Script, n, When::Epoch(3))), cells.map(|(_, all)| all));
}
