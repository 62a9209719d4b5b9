//! What every family's packed batches share: planned sizes, the host's copies of a program's inputs, and keys of what is drawn.

use ambitus_ir::ops::random::philox4x32_10;

/// Planned sizes of one packed batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// T: rows of all clips together, in the family's own unit (mel frames, tokens).
    pub rows: usize,
    /// S: clips.
    pub clips: usize,
}

/// The inputs of a family's programs by name, with their numbers of elements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// f32 inputs.
    pub floats: Vec<(String, usize)>,
    /// i32 inputs.
    pub ints: Vec<(String, usize)>,
}

impl Layout {
    /// Returns a layout of names and numbers of elements: f32 inputs, then i32 inputs.
    pub fn new(floats: &[(&str, usize)], ints: &[(&str, usize)]) -> Layout {
        let owned =
            |inputs: &[(&str, usize)]| inputs.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        Layout { floats: owned(floats), ints: owned(ints) }
    }

    /// Returns the bytes of one batch on the host.
    pub fn bytes(&self) -> u64 {
        let elements = |inputs: &[(String, usize)]| inputs.iter().map(|(_, n)| *n as u64).sum::<u64>();
        4 * (elements(&self.floats) + elements(&self.ints))
    }
}

/// Host copies of inputs, at capacity. Reused from batch to batch.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    floats: Vec<(String, Vec<f32>)>,
    ints: Vec<(String, Vec<i32>)>,
    norms: Norms,
}

/// What a loss is divided by, over all micro-batches of an update: inputs of one number each, by name.
pub type Norms = Vec<(String, f32)>;

/// Returns the one normaliser of a model that has one.
pub fn one_norm(value: f32) -> Norms {
    vec![("norm".to_owned(), value)]
}

/// Returns the key of all that is drawn for a use of a clip: a hash of seed, epoch and the clip's identity.
pub fn clip_key(seed: u64, epoch: u64, sample: u64) -> [u32; 2] {
    let a = philox4x32_10(
        [epoch as u32, (epoch >> 32) as u32, sample as u32, (sample >> 32) as u32],
        [seed as u32, (seed >> 32) as u32],
    );
    [a[0], a[1]]
}

/// Returns where each of several clips starts that lie end to end, by their rows, and where the last one ends.
pub(crate) fn starts(rows: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut starts = vec![0];
    for (s, rows) in rows.enumerate() {
        starts.push(starts[s] + rows);
    }
    starts
}

impl Batch {
    /// Returns a batch of zeros.
    pub fn new(layout: &Layout) -> Batch {
        Batch {
            floats: layout.floats.iter().map(|(name, n)| (name.clone(), vec![0.0; *n])).collect(),
            ints: layout.ints.iter().map(|(name, n)| (name.clone(), vec![0; *n])).collect(),
            norms: Norms::new(),
        }
    }

    /// Sets the normalisers to those of an update.
    pub fn set_norms(&mut self, norms: &Norms) {
        self.norms.clone_from(norms);
    }

    /// Returns the float inputs by name, normalisers among them. Callers skip those that a program does not take.
    pub fn floats(&self) -> impl Iterator<Item = (&str, &[f32])> {
        let norms = self.norms.iter().map(|(name, value)| (name.as_str(), std::slice::from_ref(value)));
        self.floats.iter().map(|(name, data)| (name.as_str(), data.as_slice())).chain(norms)
    }

    /// Returns the integer inputs by name.
    pub fn ints(&self) -> impl Iterator<Item = (&str, &[i32])> {
        self.ints.iter().map(|(name, data)| (name.as_str(), data.as_slice()))
    }

    /// Returns a float input, to be filled.
    ///
    /// # Panics
    /// When there is none: a family fills the batches of its own layout.
    pub fn float(&mut self, name: &str) -> &mut [f32] {
        let found = self.floats.iter_mut().find(|(input, _)| input == name);
        found.expect("an input of the layout").1.as_mut_slice()
    }

    /// Returns an integer input, to be filled.
    ///
    /// # Panics
    /// As [`Batch::float`].
    pub fn int(&mut self, name: &str) -> &mut [i32] {
        let found = self.ints.iter_mut().find(|(input, _)| input == name);
        found.expect("an input of the layout").1.as_mut_slice()
    }

    /// Returns all inputs in the order of the layout, to be filled.
    ///
    /// # Panics
    /// When there are fewer: a family fills the batches of its own layout.
    pub fn tables<const F: usize, const I: usize>(&mut self) -> ([&mut [f32]; F], [&mut [i32]; I]) {
        let (mut floats, mut ints) = (self.floats.iter_mut(), self.ints.iter_mut());
        let floats = std::array::from_fn(|_| floats.next().expect("an input of the layout").1.as_mut_slice());
        let ints = std::array::from_fn(|_| ints.next().expect("an input of the layout").1.as_mut_slice());
        (floats, ints)
    }
}
