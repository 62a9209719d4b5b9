//! Tensor files, read without executing or trusting them, and written atomically.
//!
//! * [`TensorFile`] indexes a `.safetensors` file or a PyTorch zip checkpoint (`.pt`, `.pth`, `.bin`, `.ckpt`) and
//!   reads tensors by bounded positional reads. Nothing in the file is executed, nothing is memory-mapped (a mapped
//!   file that shrinks kills the process), and no allocation exceeds what the real length of the file justifies.
//! * [`TensorWriter`] streams a safetensors file or a PyTorch zip checkpoint: temporary file, fsync, rename, fsync of the directory, with a
//!   BLAKE3 hash on the way. [`write_atomic`] does the same for small files.
//! * [`CheckpointDir`] keeps `step-N/` directories of shards and a manifest that is written last; a checkpoint is
//!   whole and verifiable, or it is not listed.
//! * [`PiecedFiles`] reads tensors that lie piece by piece in several files, as the ranks of a run write them.
//! * [`open_file`] and [`read_file`] are how files that somebody else named are opened: regular ones, bounded.
//! * [`Disk`] is every operation of the save path, so that tests fail each of them in turn ([`FaultDisk`]).

mod budget;
mod checkpoint;
mod disk;
mod dtype;
mod error;
mod fault;
mod files;
mod manifest;
mod pickle;
mod pieces;
mod plain;
mod safetensors;
mod strides;
mod tensor_file;
mod torch;
mod torch_writer;
mod writer;
mod zip;
mod zip_writer;

pub use checkpoint::{Checkpoint, CheckpointDir, Latest, Part, Pending, ShardWriter, Skipped};
pub use disk::{Disk, DiskFile, Entry, RealDisk, write_atomic, write_atomic_on, write_atomic_with};
pub use dtype::DType;
pub use error::{Result, StoreError};
pub use fault::{Fault, FaultDisk};
pub use files::{copy_file, open_file, open_own_file, read_file, takes_a_file};
pub use manifest::{Manifest, Shard};
pub use pieces::{Pieced, PiecedFiles, piece_spec};
pub use tensor_file::{DEFAULT_SCRATCH_BYTES, Format, Scalar, TensorFile, TensorInfo};
pub use torch_writer::Item;
pub use writer::{SafetensorsWriter, TensorSpec, TensorWriter, Written};
