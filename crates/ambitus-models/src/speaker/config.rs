//! An encoder's shape, which only its tensors say.

/// Bands of a mel row at the last stage: three strides halve them.
const HALVINGS: usize = 3;
/// Blocks of a stage, at most.
const MOST: usize = 256;
/// The longest axis of a tensor.
const LONGEST: usize = 1 << 16;

/// One stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stage {
    /// Channels.
    pub width: usize,
    /// Blocks.
    pub blocks: usize,
    /// Channels of the squeeze.
    pub squeeze: usize,
}

/// A checked shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// M: bands of a mel row, a multiple of 8.
    pub bands: usize,
    /// The stages; all but the first halve rows and bands.
    pub stages: [Stage; 4],
    /// Channels of the attention over time.
    pub hidden: usize,
    /// D: numbers of the result.
    pub width: usize,
}

impl Config {
    /// Reads the shape off the tensors: `axes` gives those of a state.
    ///
    /// # Errors
    /// Says which tensor is missing or of no shape that is known here.
    pub fn of_tensors(axes: impl Fn(&str) -> Option<Vec<usize>>) -> Result<Config, String> {
        let first = |name: &str| match axes(name).as_deref() {
            Some(&[first, ..]) if (1..=LONGEST).contains(&first) => Ok(first),
            Some(other) => Err(format!("tensor {name} is {other:?}")),
            None => Err(format!("tensor {name} is missing")),
        };
        let mut stages = [Stage { width: 0, blocks: 0, squeeze: 0 }; 4];
        for (i, stage) in stages.iter_mut().enumerate() {
            let of = |block: usize, name: &str| format!("layer{}.{block}.{name}.weight", i + 1);
            stage.width = first(&of(0, "conv2"))?;
            stage.squeeze = first(&of(0, "se.fc.0"))?;
            stage.blocks = (0..MOST).take_while(|k| axes(&of(*k, "conv2")).is_some()).count();
        }
        let (hidden, width) = (first("attention.0.weight")?, first("fc.weight")?);
        let (pooled, last) = (first("attention.3.weight")?, stages[3].width);
        if !pooled.is_multiple_of(last) {
            return Err(format!(
                "tensor attention.3.weight has {pooled} rows, no multiple of {last} channels"
            ));
        }
        Ok(Config { bands: (pooled / last) << HALVINGS, stages, hidden, width })
    }
}
