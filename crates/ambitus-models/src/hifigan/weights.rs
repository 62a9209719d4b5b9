//! Names of a generator's tensors, which are the states': those of `HifiganGenerator` of coqui-tts 0.28.

use super::config::{Config, TAPS, Unit};
use crate::common::codec::weights::{Layout, Tensor, Tensors};

/// Returns every tensor, in the order of modules.
pub fn tensors(cfg: &Config) -> Vec<Tensor> {
    let mut all = Tensors::default();
    all.conv("conv_pre", [cfg.width, cfg.input, TAPS], Layout::Same);
    if let Some(voice) = cfg.voice {
        all.conv("cond_layer", [cfg.width, voice, 1], Layout::Matrix);
    }
    for (i, up) in cfg.ups.iter().enumerate() {
        let (from, to) = (cfg.width_of(i), cfg.width_of(i + 1));
        all.transposed_of(&format!("ups.{i}"), [from, to, up.taps], up.rate, up.pad());
        if let Some(voice) = cfg.voice.filter(|_| cfg.voice_each) {
            all.conv(&format!("conds.{i}"), [to, voice, 1], Layout::Matrix);
        }
        for (j, block) in cfg.blocks.iter().enumerate() {
            let at = format!("resblocks.{}", i * cfg.blocks.len() + j);
            for k in 0..block.dilations.len() {
                for convs in convs(cfg.unit) {
                    all.conv(&format!("{at}.{convs}.{k}"), [to, to, block.taps], Layout::Same);
                }
            }
        }
    }
    let last = [1, cfg.width_of(cfg.ups.len()), TAPS];
    match cfg.last_bias {
        true => all.conv("conv_post", last, Layout::Same),
        false => all.weight("conv_post", last, Layout::Same),
    }
    all.all()
}

/// Returns the names of a block's lists of convolutions: dilated ones, and those behind them.
pub(super) fn convs(unit: Unit) -> &'static [&'static str] {
    match unit {
        Unit::Double => &["convs1", "convs2"],
        Unit::Single => &["convs"],
    }
}

#[cfg(test)]
mod tests {
    use super::super::config::{Block, Up};
    use super::super::model;
    use super::*;
    use crate::common::codec::rows;
    use ambitus_ir::Session;
    use std::collections::BTreeSet;

    fn shape(unit: Unit) -> Config {
        let up = |rate| Up { rate, taps: 2 * rate };
        let block = |taps| Block { taps, dilations: vec![1, 3, 5] };
        Config {
            input: 1024,
            width: 512,
            ups: [8, 8, 2, 2].map(up).to_vec(),
            blocks: [3, 7, 11].map(block).to_vec(),
            unit,
            voice: Some(512),
            voice_each: true,
            last_slope: 0.01,
            last_bias: false,
        }
    }

    /// Every state is a tensor, of both kinds of blocks, with a voice and without; sizes of a published one.
    #[test]
    fn states_are_the_tensors() {
        for unit in [Unit::Double, Unit::Single] {
            for voice in [None, Some(512)] {
                let cfg = Config { voice, last_bias: voice.is_none(), ..shape(unit) };
                cfg.check().unwrap();
                let mut s = Session::default();
                let p = model::decode(&mut s, &cfg, cfg.phases());
                ambitus_ir::verify::verify(&s, &p).unwrap();
                let samples = cfg.phases() * cfg.hop();
                assert!(rows::tables(&p).iter().all(|t| samples.is_multiple_of(t.stride * t.dilation)));
                let have: BTreeSet<_> =
                    s.states.iter().map(|s| (s.name.clone(), s.ty.shape.to_vec())).collect();
                let all = tensors(&cfg);
                let want: BTreeSet<_> = all.iter().map(|t| (t.name.clone(), t.state_dims())).collect();
                assert_eq!(have, want);
            }
        }
        let cfg = shape(Unit::Double);
        assert_eq!((cfg.hop(), cfg.phases()), (256, 15));
        // The package's parameters, less one length of each row that weight norm keeps apart.
        let all: usize = tensors(&cfg).iter().map(|t| t.dims.iter().product::<usize>()).sum();
        let lengths = 512 + 256 + 128 + 64 + (256 + 128 + 64 + 32) * 18;
        assert_eq!(all + lengths, 17_827_808);
    }

    #[test]
    fn sizes_that_do_not_go_together_are_named() {
        let bad = |change: &dyn Fn(&mut Config)| {
            let mut cfg = shape(Unit::Double);
            change(&mut cfg);
            cfg.check().unwrap_err().key
        };
        assert_eq!(bad(&|c| c.width = 8), "width");
        assert_eq!(bad(&|c| c.ups[1].taps = 15), "ups");
        assert_eq!(bad(&|c| c.ups[1].rate = usize::MAX), "ups");
        assert_eq!(bad(&|c| c.blocks[0].taps = 4), "blocks");
        assert_eq!(bad(&|c| c.blocks[0].dilations = vec![]), "blocks");
        assert_eq!(bad(&|c| c.input = 0), "input");
    }
}
