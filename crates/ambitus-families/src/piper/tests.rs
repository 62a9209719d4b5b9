//! Speech of recorded voices, with texts that name their ids.

use super::Piper;
use super::folder::Folder;
use super::inference::Scales;
use super::speak::Sentences;
use super::voice::{Said, Voice};
use crate::error::RunError;
use crate::family::{Family, OpenOptions};
use crate::generate::Settings;
use crate::speech::{Asked, Line, Listener, Reference, Speech, Spoken};
use ambitus_compile::passes::precision::Precision;
use ambitus_compile::{pipeline, plan};
use ambitus_exec::cpu::{CpuExecutor, CpuTarget};
use ambitus_exec::executor::Executor;
use ambitus_ir::{DType, Program, Session, StateId};
use ambitus_models::piper::speak::Noise;
use ambitus_store::TensorFile;
use ambitus_testkit::tolerances::VOICE_AUDIO;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../parity/piper/fixtures").join(name)
}

fn folder(name: &str) -> Folder {
    let dir = fixture(name);
    let opened = Piper.open(&dir, OpenOptions::default()).unwrap();
    let config = super::hyper::config(&opened.weights.unwrap(), None).unwrap();
    let speakers = (0..config.speakers as u32).map(|i| (format!("speaker {i}"), i)).collect();
    Folder { dir, speakers, ..Folder::shaped(config) }
}

/// Reads a text as the ids that it lists, one list a sentence: `1 2 3. 4 5`.
fn listed() -> Result<Box<Sentences>, RunError> {
    Ok(Box::new(|text| {
        let ids = |sentence: &str| -> Result<Vec<u32>, String> {
            sentence.split_whitespace().map(|id| id.parse().map_err(|_| format!("{id} is no id"))).collect()
        };
        text.split('.').map(ids).collect()
    }))
}

struct Lines(Vec<(Vec<f32>, Option<Spoken>)>);

impl Listener for Lines {
    fn samples(&mut self, line: usize, samples: &[f32]) -> Result<(), RunError> {
        self.0[line].0.extend_from_slice(samples);
        Ok(())
    }

    fn ended(&mut self, line: usize, spoken: Spoken) -> Result<(), RunError> {
        assert!(self.0[line].1.replace(spoken).is_none());
        Ok(())
    }
}

/// Opens programs on the processor, with the voice's weights.
fn opened(dir: &Path, programs: &dyn Fn(&mut Session) -> Vec<Program>) -> CpuExecutor {
    let (target, mut session) = (CpuTarget::new(1), Session::default());
    let programs = programs(&mut session);
    let session = pipeline::inference(session, programs, Precision::Fp32, &target).unwrap();
    let planned = Arc::new(plan::plan(session, &target, 1));
    let mut exec = CpuExecutor::open(planned.clone(), 1).unwrap();
    let file = TensorFile::open(dir.join("model.ckpt")).unwrap();
    for (i, state) in planned.session.states.iter().enumerate() {
        let mut values = vec![0.0; state.ty.shape.elements()];
        file.read_into(&format!("state_dict.{}", state.name), &mut values, &mut vec![0; 1 << 16]).unwrap();
        exec.write_state(StateId(i as u32), &values).unwrap();
    }
    exec
}

/// Speaks lines.
fn heard(dir: &Path, speech: &mut dyn Speech) -> Lines {
    let programs = speech.programs();
    let mut exec = opened(dir, &|session| programs(session, DType::F32));
    let mut lines = Lines(vec![(Vec::new(), None); speech.pieces().len()]);
    speech.speak(&mut exec, &str::to_owned, &mut lines).unwrap();
    lines
}

/// Asks for lines in a voice, with noise times that.
fn asked<'a>(lines: &'a [Line], voice: Option<&'a str>, settings: &'a Settings) -> Asked<'a> {
    Asked {
        lines,
        reference: None,
        voice,
        language: None,
        cleaned: false,
        decoder: None,
        settings,
        speed: 1.0,
        seconds: None,
        most_seconds: f64::INFINITY,
        threads: 1,
        room: u64::MAX,
    }
}

fn text(ids: &[i64]) -> String {
    ids.iter().map(i64::to_string).collect::<Vec<_>>().join(" ")
}

/// Returns the ids, speaker and samples of the first recorded text: one without noise.
fn recorded(name: &str) -> (Vec<i64>, i64, Vec<f32>) {
    let file = TensorFile::open(fixture(name).join("generate.safetensors")).unwrap();
    let mut scratch = vec![0; 1 << 16];
    let mut ints = |leaf: &str| {
        let name = format!("clips.0.{leaf}");
        let mut values = vec![0; file.get(&name).map_or(1, |t| t.elements())];
        if file.contains(&name) {
            file.read_i64(&name, &mut values, &mut scratch).unwrap();
        }
        values
    };
    let (ids, speaker) = (ints("phoneme_ids"), ints("speaker")[0]);
    let mut wave = vec![0.0; file.get("clips.0.wave").unwrap().elements()];
    file.read_into("clips.0.wave", &mut wave, &mut scratch).unwrap();
    (ids, speaker, wave)
}

#[test]
fn without_noise_a_voice_says_what_the_reference_does() {
    for name in ["base", "speakers", "plain"] {
        let (folder, (ids, speaker, want)) = (folder(name), recorded(name));
        let settings = Settings { noise: Some(0.0), ..Settings::SPEECH };
        let voice = (name == "speakers").then(|| format!("speaker {speaker}"));
        let lines = [Line::Text(text(&ids)), Line::Text(format!("{0}. {0}", text(&ids)))];
        let asked = asked(&lines, voice.as_deref(), &settings);
        let mut speech = folder.speech_by(&asked, &listed).unwrap();
        assert_eq!((speech.pieces(), speech.rate()), (vec![1, 2], folder.config.spectra.rate));
        assert!(speech.notes().is_empty() && speech.bytes() > speech.resting_bytes());
        let Lines(heard) = heard(&folder.dir, &mut *speech);
        let off = heard[0].0.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        assert!(heard[0].0.len() == want.len() && off <= VOICE_AUDIO, "{name}: {off:.1e}");
        assert!(heard[1].0 == [&heard[0].0[..]; 2].concat());
        assert!(heard.iter().all(|(_, spoken)| spoken.as_ref().is_some_and(|s| !s.reached_limit)));
    }
}

#[test]
fn noise_is_of_its_seed_and_line() {
    let (folder, (ids, ..)) = (folder("base"), recorded("base"));
    let lines = [Line::Text(text(&ids)), Line::Text(text(&ids))];
    let spoken = |seed: u64, speed: f64| {
        let mut settings = Settings::SPEECH;
        settings.sampling.seed = seed;
        let asked = Asked { speed, ..asked(&lines, None, &settings) };
        heard(&folder.dir, &mut *folder.speech_by(&asked, &listed).unwrap()).0
    };
    let (first, again, other, slow) = (spoken(1, 1.0), spoken(1, 1.0), spoken(2, 1.0), spoken(1, 0.4));
    assert!(first[0].0 == again[0].0 && first[1].0 == again[1].0);
    assert!(first[0].0 != first[1].0 && first[0].0 != other[0].0);
    assert!(slow[0].0.len() > first[0].0.len() * 3 / 2);
}

/// An option of `asked` changed, and what the refusal says of it.
type Refused<'a> = (&'a str, &'a dyn Fn(&mut Asked<'_>), &'a str);

#[test]
fn what_a_voice_has_no_use_for_is_refused() {
    let sound = Reference::Sound("clip.wav".into(), "words".to_owned());
    let all: [Refused<'_>; 6] = [
        ("base", &|asked| asked.voice = Some("tara"), "one speaker"),
        (
            "speakers",
            &|asked| asked.voice = Some("tara"),
            "give speaker 0, speaker 1, speaker 2, or a number from 0 to 2",
        ),
        ("speakers", &|asked| asked.voice = Some("3"), "a number from 0 to 2"),
        ("base", &|asked| asked.decoder = Some(Path::new("codec")), "makes sound itself"),
        ("base", &|asked| asked.language = Some("en"), "--language"),
        ("base", &|asked| asked.lines = &[], ""),
    ];
    let lines = [Line::Text("1 2 3".to_owned())];
    for (name, change, words) in all {
        let mut asked = asked(&lines, None, &Settings::SPEECH);
        change(&mut asked);
        match folder(name).speech_by(&asked, &listed) {
            Ok(_) => assert!(words.is_empty(), "{words}"),
            Err(e) => assert!(!words.is_empty() && e.to_string().contains(words), "{words}: {e}"),
        }
    }
    let speech = |name: &str, asked: &Asked<'_>| folder(name).speech_by(asked, &listed);
    let plain = asked(&lines, None, &Settings::SPEECH);
    let with_clip = Asked { reference: Some(&sound), ..plain.clone() };
    for name in ["base", "speakers"] {
        let why = speech(name, &with_clip).err().unwrap().to_string();
        assert!(why.contains("--ref"), "{why}");
    }
    assert!(speech("speakers", &plain).unwrap().notes()[0].contains("--voice"));
    assert!(speech("speakers", &Asked { voice: Some("2"), ..plain.clone() }).unwrap().notes().is_empty());
    let unknown = [Line::Text("1 2 99".to_owned())];
    let why = speech("base", &Asked { lines: &unknown, ..plain.clone() }).err().unwrap().to_string();
    assert!(why.contains("99 is not among the"), "{why}");
    let odd = [Line::Text("1 x".to_owned())];
    let why = speech("base", &Asked { lines: &odd, ..plain }).err().unwrap().to_string();
    assert!(why.contains("x is no id"), "{why}");
}

#[test]
fn windows_give_what_the_whole_gives() {
    for name in ["base", "speakers", "plain"] {
        let folder = folder(name);
        let scales = Scales { length: 8.0, ..Scales::default() };
        let ids: Vec<u32> = (0..48).map(|i| i * 7 % folder.config.symbols as u32).collect();
        let said = Said {
            ids: &ids,
            speaker: 0,
            scales,
            noise: Noise::Drawn([1, 2]),
            duration_noise: Noise::Drawn([3, 4]),
            most: usize::MAX,
        };
        let reach = folder.config.reach();
        let spoken = |window: usize| {
            let mut voice = Voice::new(&folder.config, 50, scales);
            voice.window = window;
            let mut exec = opened(&folder.dir, &|session| voice.programs(session));
            let mut all = Vec::new();
            let lasting = voice.speak(&mut exec, &str::to_owned, &said, &mut |samples| {
                all.extend_from_slice(samples);
                Ok(())
            });
            (lasting.unwrap().frames(), all)
        };
        // No multiple of any dilation.
        let (frames, some) = spoken(2 * reach + 17);
        assert!(frames > 5 * reach, "{name}: {frames} frames, {reach}");
        let (_, whole) = spoken(frames + 5);
        assert_eq!(some.len(), frames * folder.config.spectra.hop);
        assert!(some == whole, "{name}");
    }
}

/// Shorter pieces take less memory for the text, and no other sound.
#[test]
fn plans_grow_with_the_longest_sentence() {
    use crate::speech::Speaker;
    let folder = folder("base");
    let bytes = |seconds: f64| folder.of_length(seconds, 1).unwrap().bytes();
    assert!(bytes(1.0) < bytes(20.0) && bytes(20.0) < bytes(40.0));
    let runs = folder.of_length(20.0, 1).unwrap().runs();
    assert!(runs[0].1 == 1.0 && runs[1].1 > 10.0, "{runs:?}");
}
