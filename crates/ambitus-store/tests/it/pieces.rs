//! Tensors in pieces: read as one, whoever wrote what, in any range; and refused where the pieces do not make them up.

use ambitus_store::{DType, PiecedFiles, SafetensorsWriter, TensorSpec, piece_spec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn value(i: usize) -> f32 {
    (i * i % 251) as f32 - 100.0
}

/// Elements of a tensor of these extents and type.
type Cut<'a> = ((usize, usize), &'a [usize], DType);

/// Writes a piece of `w`, and in the first file another tensor.
fn write(dir: &Path, k: usize, ((lo, hi), shape, dtype): Cut<'_>) -> PathBuf {
    let path = dir.join(format!("model.{k}.safetensors"));
    let mut metadata = BTreeMap::new();
    let piece = piece_spec(TensorSpec::new("w", dtype, shape), lo..hi, &mut metadata);
    let key = piece.name.clone();
    let mut specs = vec![piece];
    if k == 0 {
        specs.push(TensorSpec::new("a.whole[1:2]", DType::F32, &[1]));
    }
    let mut writer = SafetensorsWriter::create(&path, specs, &metadata).unwrap();
    let order: Vec<String> = writer.specs().iter().map(|s| s.name.clone()).collect();
    for name in order {
        let values: Vec<f32> = if name == key { (lo..hi).map(value).collect() } else { vec![7.0] };
        writer.write_f32(&name, &values).unwrap();
    }
    writer.finish().unwrap();
    path
}

fn files(dir: &Path, cuts: &[Cut<'_>]) -> Vec<PathBuf> {
    cuts.iter().enumerate().map(|(k, cut)| write(dir, k, *cut)).collect()
}

#[test]
fn any_cut_reads_as_the_whole() {
    for cuts in [&[(0, 35)][..], &[(0, 1), (1, 35)], &[(0, 12), (12, 24), (24, 35)]] {
        let dir = tempfile::tempdir().unwrap();
        let cuts: Vec<Cut<'_>> = cuts.iter().map(|r| (*r, &[5, 7][..], DType::F32)).collect();
        let paths = files(dir.path(), &cuts);
        // In any order.
        let files = PiecedFiles::open(paths.iter().rev()).unwrap();
        let w = files.get("w").unwrap();
        assert_eq!((w.shape(), w.dtype(), w.elements()), (&[5, 7][..], DType::F32, 35));
        // A name that looks like a piece's, and is none: nothing says of what.
        assert_eq!(files.get("a.whole[1:2]").unwrap().shape(), [1]);
        assert_eq!(files.tensors().count(), 2);
        for (from, to) in (0..=35).flat_map(|from| (from..=35).map(move |to| (from, to))) {
            let mut have = vec![f32::NAN; to - from];
            let mut next = from;
            files
                .read_range("w", from..to, &mut [0; 20], |first, x| {
                    assert_eq!(first, next, "in order");
                    next += x.len();
                    have[first - from..][..x.len()].copy_from_slice(x);
                })
                .unwrap();
            assert_eq!(have, (from..to).map(value).collect::<Vec<_>>(), "{from}..{to} of {cuts:?}");
        }
        assert!(files.read_range("w", 30..36, &mut [0; 20], |_, _| ()).is_err());
        assert!(files.read_range("v", 0..1, &mut [0; 20], |_, _| ()).is_err());
    }
}

#[test]
fn pieces_that_do_not_make_up_a_tensor_are_refused() {
    let refused = |cuts: &[Cut<'_>], words: &str| {
        let dir = tempfile::tempdir().unwrap();
        let paths = files(dir.path(), cuts);
        let error = PiecedFiles::open(&paths).err().expect("it is refused").to_string();
        assert!(error.contains(words) && error.contains('w'), "{error}");
    };
    let f = DType::F32;
    refused(&[((1, 35), &[5, 7], f)], "has the pieces 1:35 of a tensor of [5, 7]");
    refused(&[((0, 12), &[5, 7], f), ((13, 35), &[5, 7], f)], "pieces 0:12, 13:35");
    refused(&[((0, 12), &[5, 7], f), ((11, 35), &[5, 7], f)], "pieces 0:12, 11:35");
    refused(&[((0, 12), &[5, 7], f), ((0, 12), &[5, 7], f)], "pieces 0:12, 0:12");
    refused(&[((0, 12), &[5, 7], f), ((12, 36), &[5, 7], f)], "pieces 0:12, 12:36");
    refused(&[((0, 12), &[5, 7], f), ((12, 35), &[7, 5], f)], "other pieces are of F32[5, 7]");
    refused(&[((0, 12), &[5, 7], f), ((12, 35), &[5, 7], DType::Bf16)], "other pieces are of F32[5, 7]");
    refused(&[((0, 12), &[usize::MAX, 7], f), ((12, 35), &[usize::MAX, 7], f)], "pieces 0:12, 12:35");
}
