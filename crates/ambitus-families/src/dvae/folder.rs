//! A DVAE's folder, which may be a speech model's: `dvae.pth` and `mel_stats.pth`, checked before a weight is read.

use crate::codec::tensors::Tensors;
use crate::error::RunError;
use crate::weights::{STAGING_BYTES, Weights, finite};
use ambitus_models::dvae::config::Config;
use ambitus_models::dvae::weights::{is_unused, tensors};
use ambitus_store::TensorFile;
use std::path::Path;

/// The autoencoder's state dict.
pub const WEIGHTS: &str = "dvae.pth";
/// A tensor: what each band of a mel frame is divided by.
pub const STATISTICS: &str = "mel_stats.pth";

/// An opened folder.
pub struct Folder {
    /// The shape.
    pub config: Config,
    /// The weights.
    pub tensors: Tensors,
    /// What each band is divided by, `[M]`.
    pub scale: Vec<f32>,
}

impl Folder {
    /// Reads the shape off the index of the weights, and the statistics.
    ///
    /// # Errors
    /// Names the file that is missing, or every missing, extra and misshapen tensor.
    pub fn open(dir: &Path) -> Result<Folder, RunError> {
        let path = dir.join(WEIGHTS);
        let weights = Weights { files: vec![TensorFile::open(&path)?], prefix: String::new(), path };
        let source = weights.path.display().to_string();
        let config = Config::of_tensors(|name| weights.shape_of(name))
            .map_err(|why| RunError::Model(format!("{source}: is not a DVAE that is known here: {why}")))?;
        let found =
            Tensors::find_among(weights, tensors(&config), str::to_owned, is_unused, "the architecture");
        let tensors = found.map_err(|problems| {
            RunError::Model(format!(
                "{source}: is not whole:\n  {}\nfetch the model's files again",
                problems.join("\n  ")
            ))
        })?;
        let scale = statistics(&dir.join(STATISTICS), config.mels)?;
        Ok(Folder { config, tensors, scale })
    }

    /// Returns a hash of the weights and the statistics.
    ///
    /// # Errors
    /// A file that cannot be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], RunError> {
        let mut hash = blake3::Hasher::new();
        hash.update(format!("{:?}", self.config).as_bytes());
        for x in &self.scale {
            hash.update(&x.to_le_bytes());
        }
        self.tensors.hash(&mut hash)?;
        Ok(*hash.finalize().as_bytes())
    }
}

/// Reads the numbers that the bands of a mel frame are divided by: the only tensor of a file.
///
/// # Errors
/// Names the file: another tensor, and numbers that cannot be divided by.
pub fn statistics(path: &Path, bands: usize) -> Result<Vec<f32>, RunError> {
    let bad = |why: String| {
        RunError::Model(format!("{}: {why}; copy it from the model's own folder", path.display()))
    };
    let file = TensorFile::open(path)?;
    let [tensor] = file.tensors() else {
        return Err(bad(format!("holds {} tensors, must be one of {bands} numbers", file.tensors().len())));
    };
    if tensor.shape() != [bands] || !tensor.dtype().is_float() {
        return Err(bad(format!("holds {} {:?}, must be [{bands}]", tensor.dtype().name(), tensor.shape())));
    }
    let (name, mut scale) = (tensor.name().to_owned(), vec![0.0; bands]);
    file.read_into(&name, &mut scale, &mut vec![0; STAGING_BYTES])?;
    finite(&file, &name, &scale)?;
    match scale.iter().position(|x| *x == 0.0) {
        Some(at) => Err(bad(format!("number {at} is 0, by which a band would be divided"))),
        None => Ok(scale),
    }
}
