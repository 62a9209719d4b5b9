//! A toy's programs: an autoencoder of mel frames, `x + up(gelu(down(x)))` block by block; with a critic, a game of two players.

use ambitus_ir::ops::activation::ActivationKind;
use ambitus_ir::{Builder, Program, Session, TensorType, ValueId};
use ambitus_models::init::Init;
use ambitus_models::{Capacity, Layout, Model, Player, Rows};
use serde::Deserialize;

/// Mel channels.
pub const MELS: usize = 100;

/// `toy.json`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Blocks.
    pub layers: usize,
    /// Width between `down` and `up`.
    pub width: usize,
    /// A second player learns to tell what the first makes.
    #[serde(default)]
    pub critic: bool,
}

/// Who makes frames, and who tells them from those that there were.
static GAME: [Player; 2] =
    [Player { name: "g", trains: &["first", "layers"] }, Player { name: "c", trains: &["critic"] }];

/// How far the critic's scores of frames are from a goal: least-squares losses (arXiv 1611.04076).
fn scored(b: &mut Builder<'_>, x: ValueId, goal: f32, [there, norm]: [ValueId; 2]) -> ValueId {
    let score = linear(b, "critic", x, MELS);
    let goal = b.fill_like(score, goal);
    b.masked_mse(score, goal, there, norm)
}

fn linear(b: &mut Builder<'_>, scope: &str, x: ValueId, out: usize) -> ValueId {
    b.scope(scope, |b| {
        let inner = b.dim(x, 1);
        let w = b.parameter("weight", &[out, inner]);
        b.linear(x, w, None)
    })
}

impl Model for Config {
    fn players(&self) -> &'static [Player] {
        if self.critic { &GAME } else { &[Player::ONLY] }
    }

    fn reported(&self) -> &'static [&'static str] {
        if self.critic { &["mse", "fooled"] } else { &[] }
    }

    fn loss(&self, s: &mut Session, player: usize, cap: Capacity, name: &str, _train: bool) -> Program {
        let mut b = Builder::new(s, name);
        let mel = b.input("mel", TensorType::f32(&[cap.rows, MELS]));
        let there = b.input("there", TensorType::f32(&[cap.rows]));
        let norm = b.input("norm", TensorType::f32(&[1]));
        if player == 1 {
            // What the first player made of the same micro-batch.
            let made = b.input("made", TensorType::f32(&[cap.rows, MELS]));
            let fake = scored(&mut b, made, 0.0, [there, norm]);
            let real = scored(&mut b, mel, 1.0, [there, norm]);
            let loss = b.add(fake, real);
            b.output("loss", loss);
            return b.finish();
        }
        let mut x = linear(&mut b, "first", mel, MELS);
        for i in 0..self.layers {
            x = b.block("layers", i, |b| {
                let h = linear(b, "down", x, self.width);
                let h = b.activation(ActivationKind::GeluTanh, h);
                let h = linear(b, "up", h, MELS);
                b.add(x, h)
            });
        }
        let mut loss = b.masked_mse(x, mel, there, norm);
        if self.critic {
            let fooled = scored(&mut b, x, 1.0, [there, norm]);
            b.output("made", x);
            b.output("mse", loss);
            b.output("fooled", fooled);
            loss = b.add(loss, fooled);
        }
        b.output("loss", loss);
        b.finish()
    }

    fn layout(&self, cap: Capacity) -> Layout {
        Layout::new(&[("mel", cap.rows * MELS), ("there", cap.rows)], &[])
    }

    fn clip_bytes(&self, rows: usize) -> u64 {
        (4 * MELS * rows) as u64
    }

    fn rows(&self) -> Rows {
        Rows { unit: "frames", per_second: 24_000.0 / 256.0, most: None }
    }

    fn init(&self, _name: &str, dims: &[usize]) -> Init {
        Init::Uniform(1.0 / (dims[1] as f32).sqrt())
    }

    fn adapted(&self) -> &'static [&'static str] {
        &["*.down", "*.up"]
    }

    fn original_bytes(&self, parameters: u64, _rows: usize, _mixed: bool) -> u64 {
        16 * parameters
    }

    fn project(&self) -> &'static str {
        "the toy's own project"
    }
}
