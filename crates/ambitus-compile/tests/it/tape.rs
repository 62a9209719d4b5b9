//! Lifetimes of training steps of transformer-like models, for the solver's tests and benches.

use ambitus_compile::plan::problem::{Buffer, Problem};

/// A straight line of operations: values live from the operation that makes them to their last use.
#[derive(Default)]
pub struct Tape {
    now: u32,
    buffers: Vec<Buffer>,
}

type Value = usize;

impl Tape {
    /// One operation: reads `inputs`, writes one value per size in `outputs` (bytes), and uses
    /// `scratch` bytes while it runs.
    fn op<const N: usize>(&mut self, inputs: &[Value], outputs: [u64; N], scratch: u64) -> [Value; N] {
        let now = self.now;
        self.now += 1;
        for &input in inputs {
            self.buffers[input].last = now;
        }
        if scratch > 0 {
            self.value(now, scratch);
        }
        outputs.map(|size| self.value(now, size))
    }

    fn value(&mut self, now: u32, size: u64) -> Value {
        self.buffers.push(Buffer { first: now, last: now, size, align: 256 });
        self.buffers.len() - 1
    }

    fn keep_to_the_end(&mut self, value: Value) {
        self.buffers[value].last = u32::MAX;
    }

    fn problem(mut self) -> Problem {
        for b in &mut self.buffers {
            b.last = b.last.min(self.now);
        }
        Problem::new(self.buffers).expect("lifetimes are ordered")
    }
}

/// What of the forward pass is kept for the backward pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Everything the backward pass reads.
    All,
    /// Attention and matmul results; norms, rotary embeddings and activations are redone.
    Products,
    /// The input of each block; the block's forward pass is redone.
    Inputs,
}

/// A transformer's training step. Sizes are in elements; activations have 4 bytes each.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub blocks: usize,
    /// Frames or tokens of a micro-batch.
    pub tokens: u64,
    pub width: u64,
    pub hidden: u64,
    pub heads: u64,
    /// Outputs per token of the head, computed in tiles of 256 tokens.
    pub classes: u64,
    pub keep: Keep,
    /// Weight gradients live until the end of the step (else each is added to a state at once).
    pub hold_gradients: bool,
}

/// What a block's forward pass leaves for its backward pass.
#[derive(Clone, Copy)]
struct Saved {
    x: Value,
    norm: Option<[Value; 2]>,
    qkv: [Value; 3],
    rotated: Option<[Value; 2]>,
    attention: [Value; 2],
    middle: Value,
    norm2: Option<[Value; 2]>,
    up: Value,
    active: Option<Value>,
}

impl Step {
    fn act(&self) -> u64 {
        4 * self.tokens * self.width
    }

    fn wide(&self) -> u64 {
        4 * self.tokens * self.hidden
    }

    fn stats(&self) -> u64 {
        8 * self.tokens
    }

    fn norm(&self, t: &mut Tape, x: Value) -> [Value; 2] {
        t.op(&[x], [self.act(), self.stats()], 0)
    }

    fn rotate(&self, t: &mut Tape, qkv: [Value; 3]) -> [Value; 2] {
        let [q] = t.op(&[qkv[0]], [self.act()], 0);
        let [k] = t.op(&[qkv[1]], [self.act()], 0);
        [q, k]
    }

    fn forward(&self, t: &mut Tape, x: Value) -> (Value, Saved) {
        let act = self.act();
        let norm = self.norm(t, x);
        let [q] = t.op(&norm[..1], [act], 0);
        let [k] = t.op(&norm[..1], [act], 0);
        let [v] = t.op(&norm[..1], [act], 0);
        let rotated = self.rotate(t, [q, k, v]);
        let lse = 4 * self.tokens * self.heads;
        let attention = t.op(&[rotated[0], rotated[1], v], [act, lse], 1 << 20);
        let [proj] = t.op(&attention[..1], [act], 0);
        let [middle] = t.op(&[x, proj], [act], 0);
        let norm2 = self.norm(t, middle);
        let [up] = t.op(&norm2[..1], [self.wide()], 0);
        let [active] = t.op(&[up], [self.wide()], 0);
        let [down] = t.op(&[active], [act], 0);
        let [y] = t.op(&[middle, down], [act], 0);
        let all = self.keep != Keep::Products;
        let saved = Saved {
            x,
            norm: all.then_some(norm),
            qkv: [q, k, v],
            rotated: all.then_some(rotated),
            attention,
            middle,
            norm2: all.then_some(norm2),
            up,
            active: all.then_some(active),
        };
        (y, saved)
    }

    fn weight_gradient(&self, t: &mut Tape, x: Value, dy: Value, elements: u64) {
        let [g] = t.op(&[x, dy], [4 * elements], 0);
        if self.hold_gradients {
            t.keep_to_the_end(g);
        } else {
            t.op::<0>(&[g], [], 0);
        }
    }

    fn backward(&self, t: &mut Tape, s: Saved, dy: Value) -> Value {
        let (act, d) = (self.act(), self.width);
        let active = s.active.unwrap_or_else(|| t.op(&[s.up], [self.wide()], 0)[0]);
        self.weight_gradient(t, active, dy, d * self.hidden);
        let [dactive] = t.op(&[dy], [self.wide()], 0);
        let [dup] = t.op(&[dactive, s.up], [self.wide()], 0);
        let norm2 = s.norm2.unwrap_or_else(|| self.norm(t, s.middle));
        self.weight_gradient(t, norm2[0], dup, d * self.hidden);
        let [dnorm2] = t.op(&[dup], [act], 0);
        let [dmid] = t.op(&[dnorm2, s.middle, norm2[1]], [act], 64 * d);
        let [dmiddle] = t.op(&[dmid, dy], [act], 0);
        self.weight_gradient(t, s.attention[0], dmiddle, d * d);
        let [dattention] = t.op(&[dmiddle], [act], 0);
        let [q, k] = s.rotated.unwrap_or_else(|| self.rotate(t, s.qkv));
        let [o, lse] = s.attention;
        let [dq, dk, dv] =
            t.op(&[q, k, s.qkv[2], o, lse, dattention], [act; 3], 2 * self.stats() + (1 << 20));
        let [dq] = t.op(&[dq], [act], 0);
        let [dk] = t.op(&[dk], [act], 0);
        let norm = s.norm.unwrap_or_else(|| self.norm(t, s.x));
        let mut sum = None;
        for g in [dq, dk, dv] {
            self.weight_gradient(t, norm[0], g, d * d);
            let [part] = t.op(&[g], [act], 0);
            sum = Some(match sum {
                None => part,
                Some(sum) => t.op(&[sum, part], [act], 0)[0],
            });
        }
        let [dx] = t.op(&[sum.expect("three parts"), s.x, norm[1]], [act], 64 * d);
        t.op(&[dx, dmiddle], [act], 0)[0]
    }

    /// The lifetimes of the whole step.
    pub fn problem(&self) -> Problem {
        let mut t = Tape::default();
        let t = &mut t;
        let [mut x] = t.op(&[], [self.act()], 0);
        let mut inputs = Vec::new();
        for _ in 0..self.blocks {
            let (y, saved) = self.forward(t, x);
            inputs.push((x, (self.keep != Keep::Inputs).then_some(saved)));
            x = y;
        }
        let [normed, stats] = self.norm(t, x);
        let [dnormed] = t.op(&[], [self.act()], 0);
        for _ in 0..self.tokens.div_ceil(256) {
            let [logits] = t.op(&[normed], [4 * 256 * self.classes], 0);
            let [dlogits] = t.op(&[logits], [4 * 256 * self.classes], 0);
            self.weight_gradient_tile(t, normed, dlogits);
            t.op::<0>(&[dlogits, dnormed], [], 0);
        }
        let [mut dy] = t.op(&[dnormed, x, stats], [self.act()], 0);
        for (x, saved) in inputs.into_iter().rev() {
            // When the block is redone its output is not wanted again: it dies where it is made.
            let saved = saved.unwrap_or_else(|| self.forward(t, x).1);
            dy = self.backward(t, saved, dy);
        }
        t.op::<0>(&[dy], [], 0);
        std::mem::take(t).problem()
    }

    fn weight_gradient_tile(&self, t: &mut Tape, x: Value, dy: Value) {
        t.op::<0>(&[x, dy], [], 4 * self.classes * 64);
    }
}
