//! `check`: what is planted in a data set is named, of the clips that it was planted in, and nothing else.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use ambitus_data::check::{Advised, Amount, Checked, Kind, Options, check};
use ambitus_data::{DataError, wav};

/// Hz.
const RATE: u32 = 22_050;

/// Samples of a pause.
fn pause(pace: f64) -> usize {
    (6000.0 / pace) as usize
}

/// The voice of a fixture, spoken `pace` times as fast, six times, between pauses and two moments of silence with a little noise.
fn spoken(pace: f64) -> Vec<f32> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/speech_22k_mono.wav");
    let voice = ambitus_data::audio::load(&path, RATE, 60.0).expect("a fixture");
    let at = |i: usize| {
        let x = i as f64 * pace;
        let (low, share) = (x as usize, x.fract() as f32);
        voice[low] * (1.0 - share) + voice[low + 1] * share
    };
    let once: Vec<f32> = (0..((voice.len() - 2) as f64 / pace) as usize).map(at).collect();
    let pause = vec![0.0; pause(pace)];
    let mut all = pause.clone();
    for i in 0..6 {
        all.extend(once.iter().map(|x| x * (0.8 - 0.03 * i as f32)));
        if i % 2 == 1 {
            all.extend(&pause);
        }
    }
    noise(&mut all, 2e-4);
    all
}

fn noise(samples: &mut [f32], by: f32) {
    let mut state = 1u64;
    for x in samples {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        *x += by * ((state >> 40) as f32 / f32::from(1u16 << 15) / 256.0 - 1.0);
    }
}

/// A text of about so many letters that no other clip has.
fn text(letters: usize, salt: usize) -> String {
    const WORDS: [&str; 10] =
        ["stone", "river", "quick", "brown", "jumps", "fixed", "vowel", "zebra", "might", "happy"];
    (0..letters / 5).map(|i| WORDS[(i * (salt + 1) + salt * salt / 10) % 10]).collect::<Vec<_>>().join(" ")
        + "."
}

fn write(path: &Path, samples: &[f32]) {
    wav::write_wav(path, samples, RATE).expect("a file");
}

fn checked(dir: &Path, threads: usize) -> Result<Checked, DataError> {
    let scratch = tempfile::tempdir().expect("a folder");
    let progress = |_: usize, _: usize| true;
    check::<DataError>(
        dir,
        scratch.path(),
        &Options { threads, room: 1 << 20, advised: None, progress: &progress },
        None,
    )
}

fn pace(i: usize) -> f64 {
    0.7 + 0.04 * i as f64
}

type Planted = (&'static str, Vec<f32>, String, Vec<Kind>);

fn planted() -> Vec<Planted> {
    // Lengths differ by more than those of doubled sounds may.
    let plain = |i: usize| {
        let sound = spoken(pace(i));
        let letters = sound.len() / 1900;
        (sound, letters)
    };
    let mut all: Vec<Planted> = Vec::new();
    for (i, name) in ["a0", "a1", "a2", "a3", "a4", "a5", "a6", "a7", "a8", "a9"].into_iter().enumerate() {
        let (sound, letters) = plain(i);
        all.push((name, sound, text(letters, i), vec![]));
    }
    let mut add = |name, i: usize, kinds: &[Kind], change: &dyn Fn(&mut Vec<f32>, &mut String)| {
        let (mut sound, letters) = plain(i);
        let mut text = text(letters, i);
        change(&mut sound, &mut text);
        all.push((name, sound, text, kinds.to_vec()));
    };
    let scale = |by: f32| {
        move |sound: &mut Vec<f32>, _: &mut String| {
            sound.iter_mut().for_each(|x| *x = (*x * by).clamp(-0.99, 0.99))
        }
    };
    add("digits", 10, &[Kind::Digits], &|_, text| *text += " 5 of them");
    add("symbols", 11, &[Kind::Symbols], &|_, text| *text = text.replacen(' ', " & ", 1));
    add("quiet", 12, &[Kind::Quiet], &scale(0.03));
    add("clipped", 13, &[Kind::Clipped, Kind::Loud], &scale(60.0));
    add("fast", 14, &[Kind::Fast], &|_, text| *text = [&**text, "and", text, "but", text].join(" "));
    add("slow", 15, &[Kind::Slow], &|_, text| *text = "stones of happy zebras".into());
    add("noisy", 16, &[Kind::Noisy], &|sound, _| noise(sound, 0.06));
    add("dc", 17, &[Kind::Dc], &|sound, _| sound.iter_mut().for_each(|x| *x += 0.03));
    add("cut-start", 18, &[Kind::CutStart], &|sound, _| drop(sound.drain(..pause(pace(18)) + 2500)));
    add("cut-end", 19, &[Kind::CutEnd], &|sound, _| sound.truncate(sound.len() - pause(pace(19)) - 9000));
    add("silence", 20, &[Kind::Silence], &|sound, _| sound.extend([0.0; 30_000]));
    add("script", 21, &[Kind::Script], &|_, text| {
        *text = "Камень и река, быстро и снова камень, гора и река.".into()
    });
    add("same-sound", 0, &[Kind::DoubledSound], &|_, text| *text = text.replace("stone", "rivet"));
    add("near-sound", 3, &[Kind::DoubledSound, Kind::DoubledText], &scale(0.7));
    let of_a5 = all[5].2.to_uppercase().to_lowercase();
    all.push(("same-text", spoken(0.5 * (pace(5) + pace(6))), of_a5, vec![Kind::DoubledText]));
    all
}

fn folder(planted: &[Planted]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a folder");
    let mut lines = "audio_file|text\n".to_owned();
    for (name, sound, text, _) in planted {
        write(&dir.path().join(format!("{name}.wav")), sound);
        lines += &format!("{name}.wav|{text}\n");
    }
    fs::write(dir.path().join("no.wav"), "RIFF").expect("a file");
    fs::write(dir.path().join("none.wav"), "").expect("a file");
    lines += "no.wav|Some words.\nabsent.wav|Some more words.\nnone.wav|  \n";
    fs::write(dir.path().join("metadata.csv"), lines).expect("a file");
    dir
}

fn contents(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let all = fs::read_dir(dir).expect("a folder").map(|item| item.expect("a file").path());
    all.map(|path| (path.clone(), fs::read(path).expect("a file"))).collect()
}

#[test]
fn what_is_planted_is_named_and_nothing_else() {
    let planted = planted();
    let dir = folder(&planted);
    let before = contents(dir.path());
    let found = checked(dir.path(), 2).expect("a report");
    assert_eq!(contents(dir.path()), before);
    let kinds = |name: &str| -> Vec<Kind> {
        let clip = found.clips.iter().find(|clip| clip.name == name);
        let mut kinds: Vec<_> =
            clip.unwrap_or_else(|| panic!("{name}")).issues.iter().map(|i| i.kind).collect();
        kinds.sort();
        kinds
    };
    let mut wrong = Vec::new();
    for (name, _, _, want) in &planted {
        let mut want = want.clone();
        want.sort();
        // Of two sounds with two texts, either text is wrong.
        if *name == "a0" {
            want = vec![Kind::DoubledSound];
        }
        let name = format!("{name}.wav");
        if kinds(&name) != want {
            wrong.push((want, found.clips.iter().find(|clip| clip.name == name)));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(kinds("no.wav"), [Kind::Unreadable]);
    assert_eq!(kinds("absent.wav"), [Kind::Unreadable]);
    assert_eq!(kinds("none.wav"), [Kind::Empty]);
    // Most doubtful first; each with its place.
    assert!(found.clips.windows(2).all(|pair| pair[0].doubt >= pair[1].doubt));
    assert!(found.clips[..3].iter().all(|clip| clip.doubt == 1.0));
    let digits = found.clips.iter().find(|clip| clip.name == "digits.wav").expect("it is there");
    assert!(digits.file.ends_with("metadata.csv") && digits.line == Some(12), "{digits:?}");
    assert!(digits.issues[0].says.contains("\"5\""));
    assert_eq!(found.set.clips, planted.len() + 3);
    assert!(found.verdict[0].contains("should be looked at") && found.describe().len() > found.verdict.len());
    assert_eq!(checked(dir.path(), 1).expect("a report"), found, "threads change nothing");
}

/// A voice that is played faster is higher by as much. Anna's clips are of two people, Leo's of one.
#[test]
fn voices_have_a_pitch_and_two_people_under_one_name_are_noticed() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut lines = "audio_file|text|source\n".to_owned();
    let anna = (0..12).map(|i| ("anna", if i < 8 { 0.7 } else { 1.4 } + 0.004 * f64::from(i)));
    let leo = (0..8).map(|i| ("leo", 1.0 + 0.004 * f64::from(i)));
    for (i, (name, pace)) in anna.chain(leo).enumerate() {
        let sound = spoken(pace);
        write(&dir.path().join(format!("{i}.wav")), &sound[..sound.len() / 2]);
        lines += &format!("{i}.wav|{}|{name}\n", text(30, i));
    }
    fs::write(dir.path().join("metadata.csv"), lines).expect("a file");
    let advised = Advised { by: "X", least: Some(Amount::Minutes(2.0)), better: Amount::Minutes(5.0) };
    let scratch = tempfile::tempdir().expect("a folder");
    let options = Options { threads: 2, room: 1 << 20, advised: Some(advised), progress: &|_, _| true };
    let found = check::<DataError>(dir.path(), scratch.path(), &options, None).expect("a report");
    let [anna, leo] = &*found.set.voices else { panic!("{:?}", found.set.voices) };
    let of_leo = leo.pitch.expect("a pitch");
    let groups = anna.groups.expect("two");
    assert_eq!((groups.clips, leo.groups), ([8, 4], None));
    for (hertz, pace) in groups.hertz.into_iter().zip([0.714, 1.438]) {
        let off = 12.0 * (hertz / of_leo.hertz / (pace / 1.014)).log2();
        assert!(off.abs() < 0.5, "{hertz} Hz at {pace}: {off} semitones from {}", of_leo.hertz);
    }
    assert!((100.0..300.0).contains(&of_leo.hertz) && of_leo.semitones > 0.5, "{of_leo:?}");
    let said = |words: &str| found.verdict.iter().any(|line| line.contains(words));
    for words in [
        "clips of anna have two pitches, 8 around ",
        "5 min, are advised (X): of leo there are 0.",
        "too little",
        // The fixture is one word, said again and again.
        "pitch hardly varies within clips: anna by 1.",
    ] {
        assert!(said(words), "{words}: {:#?}", found.verdict);
    }
    assert!(!said("clips of leo") && !said("are better"), "{:#?}", found.verdict);
}

#[test]
fn what_cannot_be_checked_is_an_error_and_a_stop_ends_it() {
    let dir = tempfile::tempdir().expect("a folder");
    assert!(matches!(checked(dir.path(), 1), Err(DataError::NoClips { .. })));
    assert!(matches!(checked(&dir.path().join("no"), 1), Err(DataError::Io { .. })));
    write(&dir.path().join("a.wav"), &spoken(1.0));
    fs::write(dir.path().join("a.txt"), "Words.").expect("a file");
    let options = Options { threads: 1, room: 1 << 20, advised: None, progress: &|_, _| false };
    assert!(matches!(check::<DataError>(dir.path(), dir.path(), &options, None), Err(DataError::Stopped)));
    let options = Options { room: 16, ..options };
    assert!(matches!(
        check::<DataError>(dir.path(), dir.path(), &options, None),
        Err(DataError::DoesNotFit { .. })
    ));
}
