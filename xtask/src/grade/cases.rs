//! What is run: random shapes, options, data and budgets, the fixed set of CI, and what is scaled by a thousand.

use super::folders::{Folders, Random};
use ambitus_models::piper::config as piper;
use std::fmt;
use std::path::{Path, PathBuf};

/// Updates of a case's run; it saves after every other.
pub const UPDATES: u64 = 6;

/// Model families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Family {
    F5,
    Orpheus,
    Parler,
    Xtts,
    MusicGen,
    Piper,
}

/// The size of a model.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Its family.
    pub family: Family,
    blocks: usize,
    heads: usize,
    head: usize,
    /// Inner over outer width of the feed-forward.
    inner: usize,
    tokenizer: &'static str,
}

impl Shape {
    fn draw(random: &mut Random) -> Shape {
        let family = random.pick(&[
            Family::F5,
            Family::F5,
            Family::Orpheus,
            Family::Parler,
            Family::Xtts,
            Family::MusicGen,
            Family::Piper,
        ]);
        let blocks = if random.once_in(8) { random.within(13, 40) } else { random.within(2, 12) };
        // What lies outside an arena does not depend on its size. A vocabulary of 157,000 rows is most of a narrow Llama.
        let widest = match random.once_in(8) {
            true => 12,
            false => 5,
        };
        let widest = if family == Family::Orpheus { 4 } else { widest };
        Shape {
            family,
            blocks,
            heads: random.within(1, widest),
            head: random.pick(&[32, 64]),
            inner: random.within(1, 4),
            tokenizer: random.pick(&["char", "char", "pinyin"]),
        }
    }

    /// Returns a shape that trains in a moment.
    pub fn small(family: Family, blocks: usize) -> Shape {
        Shape { family, blocks, heads: 1, head: 64, inner: 2, tokenizer: "char" }
    }

    fn width(&self) -> usize {
        self.heads * self.head
    }

    /// Names its folder.
    pub fn name(&self) -> String {
        let Shape { family, blocks, heads, head, inner, tokenizer } = self;
        format!("{family:?}-{blocks}x{heads}x{head}x{inner}-{tokenizer}").to_lowercase()
    }

    /// Returns F5-TTS's configuration.
    pub fn f5_yaml(&self) -> String {
        format!(
            "model:\n  name: F5TTS_v1_Graded\n  tokenizer: {}\n  tokenizer_path: null\n  backbone: DiT\n  arch:\n    dim: {}\n    \
             depth: {}\n    heads: {}\n    dim_head: {}\n    ff_mult: {}\n    text_dim: 64\n    conv_layers: 2\n    dropout: 0.1\n    \
             text_mask_padding: true\n    qk_norm: null\n    pe_attn_head: null\n  mel_spec:\n    target_sample_rate: 24000\n    \
             n_mel_channels: 100\n    hop_length: 256\n    win_length: 1024\n    n_fft: 1024\n    mel_spec_type: vocos\n",
            self.tokenizer,
            self.width(),
            self.blocks,
            self.heads,
            self.head,
            self.inner
        )
    }

    /// Returns a Llama's configuration.
    pub fn llama_json(&self, vocabulary: usize) -> String {
        serde_json::json!({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": vocabulary,
            "hidden_size": self.width(), "intermediate_size": self.inner * self.width(),
            "num_hidden_layers": self.blocks, "num_attention_heads": self.heads, "num_key_value_heads": 1,
            "hidden_act": "silu", "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0,
            "tie_word_embeddings": true, "attention_bias": false, "mlp_bias": false, "head_dim": self.head,
        })
        .to_string()
    }

    /// Returns a Parler-TTS's configuration with these encoders, of `ids` ids of text.
    pub fn parler_json(&self, text: &serde_json::Value, audio: &serde_json::Value, ids: usize) -> String {
        serde_json::json!({
            "architectures": ["ParlerTTSForConditionalGeneration"], "model_type": "parler_tts", "vocab_size": ids,
            "transformers_version": "4.46.1", "text_encoder": text, "audio_encoder": audio,
            "decoder": {
                "vocab_size": 128, "hidden_size": self.width(), "num_hidden_layers": self.blocks,
                "num_attention_heads": self.heads, "ffn_dim": self.inner * self.width(), "num_codebooks": 9,
                "max_position_embeddings": 4096, "dropout": 0.1, "pad_token_id": 64, "eos_token_id": 64,
                "bos_token_id": 65,
            },
        })
        .to_string()
    }

    /// Returns a MusicGen's configuration with these encoders.
    pub fn musicgen_json(&self, text: &serde_json::Value, audio: &serde_json::Value) -> String {
        let (codes, books) = (&audio["codebook_size"], 2);
        serde_json::json!({
            "architectures": ["MusicgenForConditionalGeneration"], "model_type": "musicgen",
            "transformers_version": "4.57.6", "text_encoder": text, "audio_encoder": audio,
            "decoder": {
                "vocab_size": codes, "hidden_size": self.width(), "num_hidden_layers": self.blocks,
                "num_attention_heads": self.heads, "ffn_dim": self.inner * self.width(), "num_codebooks": books,
                "audio_channels": 1, "activation_function": "gelu", "dropout": 0.0, "pad_token_id": codes,
                "bos_token_id": codes,
            },
        })
        .to_string()
    }

    /// Returns the shape of a Piper voice of so many symbols, and of few channels in generator and discriminators.
    pub fn piper(&self, symbols: usize) -> piper::Config {
        let mut config = piper::Config::medium();
        (config.symbols, config.hidden, config.inter) = (symbols, self.width(), self.width());
        (config.filter, config.heads, config.layers) = (self.inner * self.width(), self.heads, self.blocks);
        (config.posterior.layers, config.width) = (4, 32);
        for conv in config.judges.iter_mut().flatten() {
            (conv.out, conv.groups) = (conv.out.div_ceil(16), 1);
        }
        config
    }

    /// Returns an XTTS's configuration; its feed-forwards are four times as wide as it is.
    pub fn xtts_json(&self) -> String {
        serde_json::json!({
            "model": "xtts",
            "model_args": {
                "gpt_layers": self.blocks, "gpt_n_model_channels": self.width(), "gpt_n_heads": self.heads,
                "gpt_num_audio_tokens": 66, "gpt_start_audio_token": 64, "gpt_stop_audio_token": 65,
            },
        })
        .to_string()
    }
}

/// What a model is trained on.
#[derive(Clone, Debug)]
pub enum Data {
    /// Clips of 0.6 to 3 s.
    Usual {
        /// How many.
        clips: usize,
        /// Which.
        seed: u64,
    },
    /// One long clip among short ones.
    OneLong {
        /// Its length.
        seconds: usize,
    },
    /// Clips of 0.6 s.
    Many {
        /// How many.
        clips: usize,
    },
    /// Transcripts of a megabyte among others.
    LongTexts {
        /// How many.
        texts: usize,
    },
    /// Lines of metadata without sound among others.
    Metadata {
        /// How many.
        lines: usize,
    },
    /// A file of hours among short ones.
    Hours {
        /// How many hours.
        hours: usize,
    },
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Data::Usual { clips, seed } => write!(f, "{clips}-clips-{seed}"),
            Data::OneLong { seconds } => write!(f, "one-of-{seconds}-s"),
            Data::Many { clips } => write!(f, "{clips}-short-clips"),
            Data::LongTexts { texts } => write!(f, "{texts}-texts-of-1-MB"),
            Data::Metadata { lines } => write!(f, "{lines}-lines"),
            Data::Hours { hours } => write!(f, "{hours}-hours"),
        }
    }
}

impl Data {
    fn draw(random: &mut Random) -> Data {
        match random.within(1, 16) {
            1 => Data::OneLong { seconds: random.within(20, 60) },
            2 => Data::Many { clips: random.within(500, 5000) },
            3 => Data::LongTexts { texts: random.within(1, 20) },
            4 => Data::Metadata { lines: random.within(1000, 100_000) },
            5 => Data::Hours { hours: 1 },
            _ => Data::Usual { clips: random.within(6, 30), seed: random.within(0, 9) as u64 },
        }
    }

    /// Returns the seed of its draws.
    pub fn seed(&self) -> u64 {
        if let Data::Usual { seed, .. } = self { *seed } else { 0 }
    }
}

/// One run.
#[derive(Clone, Debug)]
pub struct Case {
    shape: Shape,
    data: Data,
    /// Lines of the recipe.
    recipe: Vec<String>,
    updates: u64,
    /// Options of the command line.
    pub options: Vec<String>,
    /// The budget over the smallest that is accepted.
    pub budget: f64,
    /// Ranks.
    pub ranks: usize,
    /// No option excludes another: a refusal of the command line is a fault.
    pub goes_together: bool,
}

impl Case {
    /// Returns number `i` of those of a seed.
    pub fn draw(seed: u64, i: u64) -> Case {
        let mut random = Random(seed.wrapping_mul(1_000_003).wrapping_add(i));
        let random = &mut random;
        let (shape, data) = (Shape::draw(random), Data::draw(random));
        let mut options: Vec<String> = Vec::new();
        let mut add = |words: &[&str]| options.extend(words.iter().map(|w| (*w).to_owned()));
        let precision = random.pick(&["fp32", "fp32", "bf16-mixed", "fp16-mixed", "bf16-pure"]);
        add(&["--precision", precision]);
        add(&["--threads", &random.within(1, 2).to_string()]);
        if random.once_in(3) {
            add(&["--optimizer", random.pick(&["adamw-bf16", "adamw-8bit", "lion", "lion-8bit"])]);
        }
        match random.within(1, 6) {
            1 => add(&["--checkpoint", "none"]),
            2 => add(&["--checkpoint", "all"]),
            3 => add(&["--checkpoint", &format!("values:{}", random.within(1, 5))]),
            4 => add(&["--checkpoint", &random.within(1, shape.blocks).to_string()]),
            _ => {}
        }
        if random.once_in(5) {
            add(&["--lora", random.pick(&["4", "8", "16"])]);
        }
        if random.once_in(5) {
            let what = [
                "all",
                "optimizer",
                "optimizer=0.5",
                "parameters,gradients",
                "activations",
                "activations=blocks",
            ];
            add(&["--offload", random.pick(&what), "--host-memory", "16GiB"]);
        }
        if random.once_in(6) {
            add(&["--clip-per-tensor"]);
        }
        let ranks = if random.once_in(4) { random.within(2, 4) } else { 1 };
        if ranks > 1 {
            add(&["--ranks", &ranks.to_string()]);
            match random.within(1, 5) {
                1 => add(&["--placement", "model"]),
                2 => add(&["--placement", "pipeline"]),
                3 => add(&["--sharding", "grad_op"]),
                4 => add(&["--sharding", "none"]),
                _ => {}
            }
        }
        let mut recipe = vec![format!("batch: {{clips: {}}}", random.within(1, 8))];
        if random.once_in(4) {
            recipe.push("sample: false".to_owned());
        }
        if random.once_in(3) {
            recipe.push(format!("ema: {}", random.pick(&["true", "false"])));
        }
        if random.once_in(4) {
            recipe.push(format!("data_validation: {}", random.pick(&["0", "0.3"])));
        }
        let budget = random.pick(&[1.0, 1.0, 1.0, 1.3, 3.0]);
        // Drawn last: cases of a seed are otherwise those of before there were samples.
        let held_out = matches!(data, Data::Usual { .. }) && !recipe.iter().any(|l| l.ends_with(" 0"));
        // A cloned voice needs a vocoder of real size.
        let speaks = shape.family != Family::Xtts;
        if ranks == 1 && held_out && speaks && random.once_in(3) {
            recipe.push(format!("samples: {}", random.pick(&["true", "{texts: [one two three four]}"])));
        }
        Case { shape, data, recipe, updates: UPDATES, options, budget, ranks, goes_together: false }
    }

    /// Returns number `i` of those of a seed that one rank runs, on data that is prepared in a moment.
    pub fn draw_alone(seed: u64, i: u64) -> Case {
        let quick = |data: &Data| matches!(data, Data::Usual { .. } | Data::OneLong { .. });
        let mut drawn = (0..).map(|n: u64| Case::draw(seed.wrapping_add(n << 32), i));
        drawn.find(|case| case.ranks == 1 && quick(&case.data)).expect("three of four have one rank")
    }

    fn plain(shape: Shape, data: Data, options: &[&str]) -> Case {
        let options: Vec<String> = options.iter().map(|o| (*o).to_owned()).collect();
        let ranks =
            options.iter().position(|o| o == "--ranks").map_or(1, |i| options[i + 1].parse().unwrap_or(1));
        let recipe = vec!["batch: {clips: 3}".to_owned()];
        Case { shape, data, recipe, updates: UPDATES, options, budget: 1.0, ranks, goes_together: true }
    }

    /// Returns its name for people.
    pub fn name(&self) -> String {
        let lines = self.recipe.join(", ");
        format!("{} {} [{lines}] {} x {}", self.shape.name(), self.data, self.options.join(" "), self.budget)
    }

    /// Writes the recipe into a folder of the case.
    ///
    /// # Errors
    /// From the disk.
    pub fn write(&self, folders: &Folders, root: &Path) -> Result<PathBuf, String> {
        std::fs::create_dir_all(root).map_err(|e| format!("{}: {e}", root.display()))?;
        let (model, data) = (folders.model(&self.shape)?, folders.data(&self.data)?);
        let longest = if let Data::OneLong { seconds } = self.data { seconds + 1 } else { 10 };
        let mut of_data =
            format!("dir: {}, cache: {}, max_seconds: {longest}", data.display(), cache(root).display());
        if self.shape.family == Family::Orpheus {
            of_data += &format!(", codec: {}", folders.codec()?.display());
        }
        let mut lines = self.recipe.clone();
        if self.shape.family == Family::Parler {
            lines.push("parler: {description: a calm voice and a quiet room}".to_owned());
        }
        if self.shape.family == Family::Xtts {
            lines.push("xtts: {language: en}".to_owned());
        }
        if let Some(at) = lines.iter().position(|l| l.starts_with("data_validation")) {
            let share = lines.remove(at).rsplit(' ').next().unwrap_or("0").to_owned();
            of_data += &format!(", validation: {{share: {share}}}");
        }
        let text = format!(
            "model: {{dir: {}, from_scratch: true}}\ndata: {{{of_data}}}\nupdates: {}\nsave_every: {}\nvalidate_every: 0\n{}\n",
            model.display(),
            self.updates,
            2.max(self.updates / 2),
            lines.join("\n")
        );
        let path = root.join("recipe.yaml");
        std::fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        Ok(path)
    }

    /// Writes the recipe and returns the command that plans it.
    ///
    /// # Errors
    /// From the disk.
    pub fn planned(&self, folders: &Folders, root: &Path) -> Result<Vec<String>, String> {
        let recipe = self.write(folders, root)?.display().to_string();
        Ok(["plan".to_owned(), recipe].into_iter().chain(self.options.iter().cloned()).collect())
    }

    /// Removes what a run prepared, so that the next prepares it again.
    pub fn forget(root: &Path) {
        let _ = std::fs::remove_dir_all(cache(root));
    }
}

fn cache(root: &Path) -> PathBuf {
    root.join("cache")
}

/// Returns a case that speaks before its first update and after its last.
fn spoken(mut case: Case) -> Case {
    case.recipe.push("samples: {texts: [one two]}".to_owned());
    case
}

/// Returns one small case of each kind: what CI runs.
pub fn fixed() -> Vec<Case> {
    let usual = || Data::Usual { clips: 8, seed: 0 };
    let f5 = |blocks, data, options: &[&str]| Case::plain(Shape::small(Family::F5, blocks), data, options);
    vec![
        spoken(f5(2, usual(), &["--threads", "2"])),
        f5(12, usual(), &["--threads", "1", "--lora", "8", "--precision", "bf16-mixed"]),
        // A search has less room within its smallest budget than within a large one.
        f5(24, usual(), &["--threads", "1", "--precision", "bf16-mixed"]),
        // Nor does what speaks leave a smaller budget fewer choices than the run has.
        spoken(f5(31, usual(), &["--threads", "1", "--checkpoint", "6"])),
        f5(3, Data::OneLong { seconds: 60 }, &["--threads", "2"]),
        f5(2, Data::Many { clips: 1000 }, &["--threads", "2"]),
        f5(2, Data::LongTexts { texts: 5 }, &["--threads", "2"]),
        f5(2, Data::Metadata { lines: 20_000 }, &["--threads", "2"]),
        f5(3, usual(), &["--threads", "2", "--ranks", "2"]),
        f5(
            3,
            usual(),
            &["--threads", "2", "--offload", "all", "--host-memory", "1GiB", "--optimizer", "adamw-8bit"],
        ),
        spoken(Case::plain(
            Shape::small(Family::Orpheus, 2),
            usual(),
            &["--threads", "2", "--checkpoint", "all"],
        )),
        spoken(Case::plain(Shape::small(Family::Parler, 2), usual(), &["--threads", "2"])),
        Case::plain(Shape::small(Family::Xtts, 2), usual(), &["--threads", "2"]),
        Case::plain(Shape::small(Family::MusicGen, 2), usual(), &["--threads", "2"]),
        spoken(Case::plain(Shape::small(Family::Piper, 2), usual(), &["--threads", "2"])),
    ]
}

/// Returns what was measured to grow outside plans, each a thousand times what is usual.
pub fn scaled() -> Vec<Case> {
    let f5 = |blocks, data, options: &[&str]| Case::plain(Shape::small(Family::F5, blocks), data, options);
    let mut updates = f5(2, Data::Usual { clips: 8, seed: 0 }, &["--threads", "2", "--micro-batch", "max"]);
    updates.updates = 500_000;
    updates.recipe = vec!["batch: {clips: 1}".to_owned(), "sample: false".to_owned()];
    vec![
        // As long as the model has text positions.
        f5(2, Data::OneLong { seconds: 86 }, &["--threads", "2"]),
        f5(2, Data::LongTexts { texts: 54 }, &["--threads", "2"]),
        f5(2, Data::Metadata { lines: 400_000 }, &["--threads", "2"]),
        f5(
            60,
            Data::Usual { clips: 8, seed: 0 },
            &["--threads", "2", "--lora", "8", "--precision", "bf16-mixed"],
        ),
        updates,
        f5(2, Data::Many { clips: 5000 }, &["--threads", "2"]),
        f5(2, Data::Hours { hours: 12 }, &["--threads", "2"]),
    ]
}
