//! `ambitus codec`: audio to codes and back, mel frames to audio.

use crate::args::CodecCommand;
use crate::terminal;
use ambitus_families::codec;
use ambitus_families::error::RunError;
use ambitus_recipe::size::ByteSize;

pub fn run(command: &CodecCommand) -> Result<(), RunError> {
    match command {
        CodecCommand::Encode(a) => {
            let mut codec = a.codec.open()?;
            let file = match a.stereo {
                true => codec::encode_stereo_file(&mut *codec, &a.audio)?,
                false => codec::encode_file(&mut *codec, &a.audio)?,
            };
            file.write(&a.out)?;
            let count: usize = file.codes.iter().map(Vec::len).sum();
            said(count as u64, "codes", &a.out, codec.encode_bytes());
        }
        CodecCommand::Decode(a) => {
            let (samples, bytes) = match (&a.codes, &a.mel) {
                (Some(codes), _) if a.stereo => {
                    let mut both = [a.codec.open()?, a.codec.open()?];
                    let [left, right] = both.each_mut().map(|codec| &mut **codec);
                    (codec::decode_stereo_file([left, right], codes, &a.out)?, 2 * both[0].bytes())
                }
                (Some(codes), _) => {
                    let mut codec = a.codec.open()?;
                    (codec::decode_file(&mut *codec, codes, &a.out, a.noise)?, codec.bytes())
                }
                (None, Some(mel)) => codec::decode_mel_file(&mut *a.codec.open_vocoder()?, mel, &a.out)?,
                (None, None) => return Err(RunError::Usage("give --codes or --mel".to_owned())),
            };
            said(samples, "samples", &a.out, bytes);
        }
    }
    Ok(())
}

fn said(count: u64, what: &str, out: &std::path::Path, bytes: u64) {
    terminal::message(&format!("{count} {what} in {}; the codec took {}", out.display(), ByteSize(bytes)));
}
