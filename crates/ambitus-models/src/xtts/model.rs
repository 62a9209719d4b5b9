//! The decoder as a program, in the project's tensor names. T rows of packed clips, S clips, D width, F frames of a conditioning mel.
//!
//! A clip's rows are its prompt (latents of its conditioning mel), its text, and its codes, each of these two behind its start.

use super::config::{BANDS, Config, ENCODER_BLOCKS, LATENTS, RESAMPLER_HEADS, RESAMPLER_LAYERS};
use crate::batch::Capacity;
use crate::common::{group_norm, layer_norm, linear, pointwise, project};
use crate::decode::{self, Room, Table};
use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::ops::attention::Attention;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};

const EPS: f32 = 1e-5;
/// Of the perceiver's last norm: the square of what torch's `normalize` bounds lengths by.
const LENGTH_EPS: f32 = 1e-24;
/// What the loss of texts counts; that of codes counts 1.
const TEXT_WEIGHT: f32 = 0.01;
/// Logits that exist at once (elements).
const HEAD_TILE: usize = 1 << 24;

/// Builds the training step's forward (see `batch` for the inputs): outputs `loss.text` and `loss.mel` `[1]`, each its norm times the
/// sum of cross-entropies of what follows the rows, and `loss` `[1]`, 0.01 of the first and the second. With `train`, dropout is
/// applied where the configuration has it.
pub fn loss(session: &mut Session, cfg: &Config, cap: Capacity, name: &str, train: bool) -> Program {
    let mut builder = Builder::new(session, name);
    let b = &mut builder;
    let rows = TensorType::i32(&[cap.rows]);
    let [text, text_places, codes, code_places, prompt, text_labels, code_labels] =
        super::batch::ROWS.map(|name| b.input(name, rows));
    let segs = b.input("segments", TensorType::i32(&[cap.clips + 1]));
    let norms = ["norm.text", "norm.mel"].map(|name| b.input(name, TensorType::f32(&[1])));
    let drops = train && cfg.dropout > 0.0;
    let dropout = drops.then(|| (cfg.dropout, b.input("keys", TensorType::i32(&[cap.clips, 2]))));
    let (loss, parts) = b.scope("gpt", |b| {
        let latents = conditioning(b, cfg, cap.clips);
        let prompt = b.gather(latents, prompt);
        let said = [
            embedded(
                b,
                ["text_embedding", "text_pos_embedding"],
                [cfg.text_vocab, cfg.text_positions],
                cfg,
                text,
                text_places,
            ),
            embedded(
                b,
                ["mel_embedding", "mel_pos_embedding"],
                [cfg.codes, cfg.code_positions],
                cfg,
                codes,
                code_places,
            ),
        ];
        let x = said.into_iter().fold(prompt, |x, y| b.add(x, y));
        let x = decoder(b, cfg, &Seen::Clip { segs, dropout }, x);
        let parts = [
            head_loss(b, "text_head", cfg.text_vocab, x, text_labels, norms[0]),
            head_loss(b, "mel_head", cfg.codes, x, code_labels, norms[1]),
        ];
        let weight = b.fill(TensorType::f32(&[1]), TEXT_WEIGHT);
        let text = b.scale(parts[0], weight);
        (b.add(text, parts[1]), parts)
    });
    b.output("loss", loss);
    for (name, part) in super::REPORTED.iter().zip(parts) {
        b.output(name, part);
    }
    builder.finish()
}

/// Returns the name of the program that computes the latents of a conditioning mel of so many frames.
pub fn condition(frames: usize) -> String {
    format!("condition.{frames}")
}

/// Builds the programs of generation. [`condition`], one for each number of frames: inputs of one clip's mel as in training; output `latents`
/// f32 `[32, D]`. Prefill and decode, on tables of [`decode`]: inputs `codes`, `code_places` and, of prefill, `text`, `text_places`,
/// `prompt` i32 `[T]` as in training, and `latents` f32 `[S * 32, D]`. Outputs `logits` f32 `[S, codes]` of what follows each sequence's
/// last row, and `states` f32 `[S, D]`, that row.
pub fn generate(session: &mut Session, cfg: &Config, room: Room, frames: &[usize]) -> Vec<Program> {
    let mut programs = Vec::new();
    for &frames in frames {
        let cfg = Config { frames, ..cfg.clone() };
        let mut b = Builder::new(session, &condition(frames));
        let latents = b.scope("gpt", |b| conditioning(b, &cfg, 1));
        b.output("latents", latents);
        programs.push(b.finish());
    }
    programs.extend([true, false].map(|prompts| generation(session, cfg, room, prompts)));
    programs
}

fn generation(session: &mut Session, cfg: &Config, room: Room, prompts: bool) -> Program {
    let mut builder = Builder::new(session, if prompts { decode::PREFILL } else { decode::STEP });
    let b = &mut builder;
    let rows = TensorType::i32(&[room.rows(prompts)]);
    let [codes, code_places] = ["codes", "code_places"].map(|name| b.input(name, rows));
    let before = prompts.then(|| {
        let latents = b.input("latents", TensorType::f32(&[room.sequences * LATENTS, cfg.dim]));
        (latents, ["text", "text_places", "prompt"].map(|name| b.input(name, rows)))
    });
    let table = Table::input(b, room, prompts);
    let [states, logits] = b.scope("gpt", |b| {
        let mut x = embedded(
            b,
            ["mel_embedding", "mel_pos_embedding"],
            [cfg.codes, cfg.code_positions],
            cfg,
            codes,
            code_places,
        );
        if let Some((latents, [text, places, prompt])) = before {
            let of_text = embedded(
                b,
                ["text_embedding", "text_pos_embedding"],
                [cfg.text_vocab, cfg.text_positions],
                cfg,
                text,
                places,
            );
            let prompt = b.gather(latents, prompt);
            x = b.add(x, of_text);
            x = b.add(x, prompt);
        }
        let x = decoder(b, cfg, &Seen::Cached(table), x);
        let x = table.last(b, x);
        [x, linear(b, "mel_head", x, cfg.codes)]
    });
    b.output("states", states);
    b.output("logits", logits);
    builder.finish()
}

/// Returns the rows of ids and of their places, `[T, D]`; zero where there is no id.
fn embedded(
    b: &mut Builder<'_>,
    [ids_in, places_in]: [&str; 2],
    [ids_of, places_of]: [usize; 2],
    cfg: &Config,
    ids: ValueId,
    places: ValueId,
) -> ValueId {
    let table = b.scope(ids_in, |b| b.parameter("weight", &[ids_of, cfg.dim]));
    let x = b.gather(table, ids);
    let table = b.scope(&format!("{places_in}.emb"), |b| b.parameter("weight", &[places_of, cfg.dim]));
    let y = b.gather(table, places);
    b.add(x, y)
}

/// Returns the latents of each clip's conditioning mel, `[S * 32, D]`, from the inputs `mel` f32 `[S * F, 80]` and tables i32 `[S+1]`
/// of frames, of latents, and of both.
fn conditioning(b: &mut Builder<'_>, cfg: &Config, clips: usize) -> ValueId {
    let mel = b.input("mel", TensorType::f32(&[clips * cfg.frames, BANDS]));
    let tables = ["frames", "latent_segments", "seen_segments"];
    let [frames, latents, seen] = tables.map(|name| b.input(name, TensorType::i32(&[clips + 1])));
    let x = b.scope("conditioning_encoder", |b| {
        let mut x = pointwise(b, "init", mel, cfg.dim);
        for i in 0..ENCODER_BLOCKS {
            x = b.block("attn", i, |b| encoder_block(b, cfg, clips, frames, x));
        }
        x
    });
    b.scope("conditioning_perceiver", |b| resampler(b, cfg, clips, [latents, seen], x))
}

/// Applies an attention block of the conditioning encoder, `[S * F, D]`. What is added to is the normed value, as in the project; q, k and
/// v stand side by side head by head.
fn encoder_block(b: &mut Builder<'_>, cfg: &Config, clips: usize, segs: ValueId, x: ValueId) -> ValueId {
    let (rows, d, heads) = (clips * cfg.frames, cfg.dim, cfg.heads);
    let x = group_norm(b, "norm", x, clips, cfg.groups(), EPS);
    let qkv = pointwise(b, "qkv", x, 3 * d);
    let qkv = b.reshape(qkv, &[rows, heads, 3, d / heads]);
    let [q, k, v] = [0, 1, 2].map(|i| {
        let part = b.slice(qkv, 2, i, 1);
        b.reshape(part, &[rows, d])
    });
    let op = attention(cfg, false);
    let h = b.self_attention(op, q, k, v, segs);
    let h = pointwise(b, "proj_out", h, d);
    b.add(x, h)
}

/// Returns the latents `[S * 32, D]` of encoded frames `[S * F, D]`.
fn resampler(b: &mut Builder<'_>, cfg: &Config, clips: usize, tables: [ValueId; 2], x: ValueId) -> ValueId {
    let d = cfg.dim;
    let latents = b.parameter("latents", &[LATENTS, d]);
    let one = b.reshape(latents, &[1, LATENTS, d]);
    let all = b.broadcast(one, &[clips, LATENTS, d]);
    let mut x_latents = b.reshape(all, &[clips * LATENTS, d]);
    for i in 0..RESAMPLER_LAYERS {
        x_latents = b.block("layers", i, |b| {
            let h = b.scope("0", |b| resampler_attention(b, cfg, clips, tables, x_latents, x));
            let y = b.add(h, x_latents);
            let h = b.scope("1", |b| {
                let inner = cfg.resampler_ffn();
                let h = linear(b, "0", y, 2 * inner);
                let (value, gate) = (b.slice(h, 1, 0, inner), b.slice(h, 1, inner, inner));
                let gate = b.activation(ActivationKind::GeluErf, gate);
                let h = b.mul(value, gate);
                linear(b, "2", h, d)
            });
            b.add(h, y)
        });
    }
    b.scope("norm", |b| {
        let gamma = b.parameter("gamma", &[d]);
        b.rms_norm(x_latents, gamma, LENGTH_EPS)
    })
}

/// Latents see themselves and the frames of their clip.
fn resampler_attention(
    b: &mut Builder<'_>,
    cfg: &Config,
    clips: usize,
    [latent_segs, seen_segs]: [ValueId; 2],
    latents: ValueId,
    x: ValueId,
) -> ValueId {
    let [heads, head_dim] = RESAMPLER_HEADS;
    let (inner, d) = (heads * head_dim, cfg.dim);
    let q = project(b, "to_q", latents, inner);
    let parts = [(latents, LATENTS), (x, cfg.frames)].map(|(rows, each)| {
        let kv = project(b, "to_kv", rows, 2 * inner);
        b.reshape(kv, &[clips, each, 2 * inner])
    });
    let kv = b.concat(&parts, 1);
    let kv = b.reshape(kv, &[clips * (LATENTS + cfg.frames), 2 * inner]);
    let (k, v) = (b.slice(kv, 1, 0, inner), b.slice(kv, 1, inner, inner));
    let scale = 1.0 / (head_dim as f32).sqrt();
    let op = Attention { heads, kv_heads: heads, head_dim, causal: false, scale };
    let o = b.push(op, &[q, k, v, latent_segs, seen_segs])[0];
    project(b, "to_out", o, d)
}

/// What the decoder's rows see.
enum Seen {
    /// Rows of their own clip, by the table i32 `[S+1]`. Random keys are i32 `[S, 2]`.
    Clip { segs: ValueId, dropout: Option<(f32, ValueId)> },
    /// Rows of their own sequence, earlier steps' among them.
    Cached(Table),
}

impl Seen {
    fn dropped(&self, b: &mut Builder<'_>, x: ValueId) -> ValueId {
        match *self {
            Seen::Clip { segs, dropout: Some((p, keys)) } => b.dropout(x, p, keys, segs),
            _ => x,
        }
    }
}

/// Returns the last hidden states, normed twice, `[T, D]`.
fn decoder(b: &mut Builder<'_>, cfg: &Config, seen: &Seen, x: ValueId) -> ValueId {
    let x = b.scope("gpt", |b| {
        let mut x = seen.dropped(b, x);
        for i in 0..cfg.layers {
            x = b.block("h", i, |b| layer(b, cfg, seen, x));
        }
        layer_norm(b, "ln_f", x, EPS)
    });
    layer_norm(b, "final_norm", x, EPS)
}

/// Applies one layer of GPT-2, `[T, D]` to `[T, D]`.
fn layer(b: &mut Builder<'_>, cfg: &Config, seen: &Seen, x: ValueId) -> ValueId {
    let d = cfg.dim;
    let h = layer_norm(b, "ln_1", x, EPS);
    let h = b.scope("attn", |b| {
        let qkv = by_columns(b, "c_attn", h, 3 * d);
        let [q, k, v] = [0, 1, 2].map(|i| b.slice(qkv, 1, i * d, d));
        let op = attention(cfg, true);
        let o = match seen {
            Seen::Clip { segs, .. } => b.self_attention(op, q, k, v, *segs),
            Seen::Cached(table) => table.attention(b, op, q, k, v),
        };
        let o = by_columns(b, "c_proj", o, d);
        seen.dropped(b, o)
    });
    let x = b.add(x, h);
    let h = layer_norm(b, "ln_2", x, EPS);
    let h = b.scope("mlp", |b| {
        let h = by_columns(b, "c_fc", h, 4 * d);
        let h = b.activation(ActivationKind::GeluTanh, h);
        let h = by_columns(b, "c_proj", h, d);
        seen.dropped(b, h)
    });
    b.add(x, h)
}

fn attention(cfg: &Config, causal: bool) -> Attention {
    let head_dim = cfg.head_dim();
    let scale = 1.0 / (head_dim as f32).sqrt();
    Attention { heads: cfg.heads, kv_heads: cfg.heads, head_dim, causal, scale }
}

/// Computes x w + b, `[T, In]` to `[T, out]`, with `<scope>.weight` `[In, out]`, as GPT-2 stores it, and `<scope>.bias`.
fn by_columns(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[inner, out]);
        let bias = b.parameter("bias", &[out]);
        b.linear_in(x, w, Some(bias))
    })
}

/// Returns the loss of a head over V classes, `[1]`. Its bias is one more column of the weight, of which every row has a one.
fn head_loss(
    b: &mut Builder<'_>,
    scope: &str,
    classes: usize,
    x: ValueId,
    labels: ValueId,
    norm: ValueId,
) -> ValueId {
    b.scope(scope, |b| {
        let (rows, d) = (b.dim(x, 0), b.dim(x, 1));
        let w = b.parameter("weight", &[classes, d]);
        let bias = b.parameter("bias", &[classes]);
        let bias = b.reshape(bias, &[classes, 1]);
        let w = b.concat(&[w, bias], 1);
        let ones = b.fill(TensorType::f32(&[rows, 1]), 1.0);
        let x = b.concat(&[x, ones], 1);
        let tile = (HEAD_TILE / classes).clamp(1, rows);
        b.linear_cross_entropy(x, w, labels, norm, tile)
    })
}
