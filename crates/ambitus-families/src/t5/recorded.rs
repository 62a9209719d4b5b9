//! States of texts that a batch file gives as ids.

use super::Encoder;
use crate::error::RunError;
use crate::recorded::{BatchFile, Spare};
use ambitus_models::t5::config::Config;
use ambitus_recipe::size::ByteSize;
use std::path::Path;

/// Returns the states `[U, E]` of each of n clips' texts, whose ids are `clips.i.<leaf>`, by the encoder of a folder, E being `width`; of no
/// ids there are none. And the bytes that the encoder took, which is gone: none where no text has ids.
///
/// # Errors
/// By file and tensor; an encoder that cannot be used, or does not fit into `spare`.
pub fn recorded_states(
    dir: &Path,
    file: &mut BatchFile<'_>,
    (leaf, n, width): (&str, usize, usize),
    spare: Spare,
) -> Result<(Vec<Vec<f32>>, u64), RunError> {
    let of_clip = |i| Ok(file.ids::<u32>(i, leaf, &["tokens"])?.0);
    let texts = (0..n).map(of_clip).collect::<Result<Vec<_>, RunError>>()?;
    let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
    if longest == 0 {
        return Ok((vec![Vec::new(); n], 0));
    }
    let mut encoder = Encoder::open(dir, longest, spare.threads)?;
    let Config { vocab, dim, .. } = *encoder.config();
    if dim != width {
        return Err(RunError::Model(format!(
            "{}: its text encoder gives {dim} numbers a token, the model reads {width}: put the model's own encoder there",
            dir.display()
        )));
    }
    for (i, ids) in texts.iter().enumerate() {
        if let Some(at) = ids.iter().position(|id| *id as usize >= vocab) {
            let why = format!("element {at} is {}; the text encoder has {vocab} tokens", ids[at]);
            return Err(file.bad(&format!("clips.{i}.{leaf}"), why));
        }
    }
    let bytes = encoder.bytes();
    if bytes > spare.bytes {
        let [needs, has] = ByteSize(bytes).apart(ByteSize(spare.bytes));
        let why =
            format!("the text encoder of {} needs {needs}, {has} are left: raise --memory", dir.display());
        return Err(RunError::does_not_fit(bytes, why));
    }
    let states = texts.iter().map(|ids| encoder.states(ids)).collect::<Result<_, RunError>>()?;
    Ok((states, bytes))
}
