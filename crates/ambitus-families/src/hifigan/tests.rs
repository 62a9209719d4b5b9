//! On the small generator of `parity/hifigan/fixtures`, whose sound the package recorded.

use super::Generator;
use crate::codec::Decoding as _;
use crate::weights::Weights;
use ambitus_models::hifigan::config::{Block, Config, Unit, Up};
use ambitus_store::TensorFile;
use ambitus_testkit::tolerances::VOCODER_AUDIO;
use std::path::{Path, PathBuf};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/hifigan/fixtures").join(name)
}

fn floats(name: &str) -> Vec<f32> {
    let file = TensorFile::open(fixture("single.safetensors")).unwrap();
    let mut out = vec![0.0; file.get(name).unwrap().elements()];
    file.read_into(name, &mut out, &mut vec![0; 1 << 16]).unwrap();
    out
}

/// The shape of the fixture: a small VITS decoder's, but for its channels.
fn shape() -> Config {
    let block = |taps, dilations: [usize; 2]| Block { taps, dilations: dilations.to_vec() };
    Config {
        input: 6,
        width: 16,
        ups: [8, 8, 4].map(|rate| Up { rate, taps: 2 * rate }).to_vec(),
        blocks: vec![block(3, [1, 2]), block(5, [2, 6]), block(7, [3, 12])],
        unit: Unit::Single,
        voice: Some(5),
        voice_each: false,
        last_slope: 0.01,
        last_bias: true,
    }
}

fn open(frames: usize, threads: usize) -> Generator {
    let path = fixture("single.pth");
    let weights = Weights { files: vec![TensorFile::open(&path).unwrap()], prefix: String::new(), path };
    Generator::open_with(shape(), weights, str::to_owned, |_| false, threads, frames).unwrap()
}

fn sound(generator: &mut Generator, frames: &[f32], voice: &[f32]) -> Vec<f32> {
    let fill = |first: usize, to: &mut [f32]| to.copy_from_slice(&frames[first * 6..][..to.len()]);
    let mut sound = generator.sound(Box::new(fill), frames.len() / 6, voice).unwrap();
    let mut all = Vec::new();
    while let Some(piece) = sound.next_piece().unwrap() {
        all.extend_from_slice(piece);
    }
    all
}

#[test]
fn sound_is_the_packages() {
    let want = floats("audio");
    let got = sound(&mut open(0, 1), &floats("frames"), &floats("voice"));
    assert_eq!(got.len(), want.len());
    let largest = want.iter().fold(0.0f32, |m, x| m.max(x.abs()));
    let off = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(off <= VOCODER_AUDIO * largest, "{off:e} of {largest:e}");
}

#[test]
fn windows_give_what_the_whole_gives() {
    let (mut whole, mut windows) = (open(300, 2), open(0, 1));
    assert!(windows.window < 60 && windows.bytes() < whole.bytes(), "{}", windows.window);
    let voice = floats("voice");
    for n in [0, 1, windows.window, windows.window + 1, 131, 300] {
        let frames: Vec<f32> = (0..n * 6).map(|i| ((i * 7919 + i / 97) % 601) as f32 / 200.0 - 1.5).collect();
        let want = sound(&mut whole, &frames, &voice);
        assert_eq!(want.len(), n * 256);
        assert_eq!(sound(&mut windows, &frames, &voice), want, "{n} frames");
    }
    let arena = windows.open.as_ref().unwrap();
    use ambitus_exec::executor::Executor as _;
    assert_eq!(arena.arena_bytes(), windows.planned.arena_bytes());
    let wrong = windows.sound(Box::new(|_, _| ()), 1, &[0.0; 4]).err().unwrap();
    assert!(wrong.to_string().contains("4 numbers"), "{wrong}");
}

#[test]
fn other_shapes_are_named() {
    let path = fixture("single.pth");
    let refused = |cfg: Config| {
        let files = vec![TensorFile::open(&path).unwrap()];
        let weights = Weights { files, prefix: String::new(), path: path.clone() };
        Generator::open(cfg, weights, str::to_owned, |_| false, 1).err().unwrap().to_string()
    };
    let said = refused(Config { width: 32, ..shape() });
    assert!(said.contains("conv_pre.bias is [16], the architecture says [32]"), "{said}");
    let said = refused(Config { unit: Unit::Double, ..shape() });
    assert!(said.contains("resblocks.0.convs1.0.weight") && said.contains("resblocks.0.convs.0"), "{said}");
    assert!(refused(Config { width: 4, ..shape() }).contains("width: 4 channels"));
}
