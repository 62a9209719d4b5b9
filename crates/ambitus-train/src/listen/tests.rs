use super::*;
use ambitus_data::check::{Options, check};
use ambitus_data::wav;
use std::fmt::Write as _;
use std::fs;

const ROOM: u64 = 64 << 20;

/// What a name and a text must never do; a file may be called so.
const HOSTILE: [&str; 3] = [
    "<script>window.hit = 1<\u{2215}script>",
    "\"><img src=x onerror=\"window.hit = 1\">",
    "'); window.hit = 1; \u{202e} 声音 100% #1?",
];

/// Returns a folder for a data set: one that is kept, for a browser, where `AMBITUS_PAGES` names one.
fn folder(name: &str) -> (Option<tempfile::TempDir>, PathBuf) {
    let kept = std::env::var_os("AMBITUS_PAGES").map(PathBuf::from);
    let temporary = kept.is_none().then(|| tempfile::tempdir().unwrap());
    let root = kept.unwrap_or_else(|| temporary.as_ref().unwrap().path().to_owned()).join(name);
    let _ = fs::remove_dir_all(&root);
    fs::create_dir_all(root.join("wavs")).unwrap();
    (temporary, root)
}

/// Writes half a second of a tone that grows.
fn tone(path: &Path) {
    let samples: Vec<f32> = (0..4000).map(|i| i as f32 / 8e3 * (i as f32 * 0.1).sin()).collect();
    wav::write_wav(path, &samples, 8000).unwrap();
}

fn checked(data: &Path) -> Checked {
    let options = Options { threads: 2, room: ROOM, advised: None, progress: &|_, _| true };
    check::<DataError>(data, &std::env::temp_dir(), &options, None).unwrap()
}

fn written(data: &Path) -> (String, Vec<serde_json::Value>) {
    let page = Page::open(&data.into(), None, ROOM).unwrap();
    let path = page.write(&checked(data)).unwrap();
    assert_eq!(path, data.join(PAGE_FILE));
    let page = fs::read_to_string(path).unwrap();
    let rows = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let rows: Vec<serde_json::Value> = serde_json::from_str(rows).unwrap();
    (page, rows)
}

/// Returns the path that a link means.
fn decoded(link: &str) -> String {
    assert!(link.bytes().all(|b| b.is_ascii_alphanumeric() || b"%-_.~/".contains(&b)), "{link}");
    let (first, rest) = link.split_once('%').unwrap_or((link, ""));
    let mut bytes = first.as_bytes().to_vec();
    for part in rest.split('%').filter(|part| !part.is_empty()) {
        bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
        bytes.extend(part[2..].bytes());
    }
    String::from_utf8(bytes).unwrap()
}

#[test]
fn what_is_hostile_is_text_and_what_was_decided_is_there_again() {
    let (_held, root) = folder("listen <b>声音");
    let mut csv = "audio_file|text|speaker_id\n".to_owned();
    let text = |i: usize| format!("</script><script>window.hit = 1</script> {{{{ hit }}}} &lt; line {i}");
    for (i, name) in HOSTILE.into_iter().chain(["plain.wav", "a:b.wav"]).enumerate() {
        let name = if name.ends_with(".wav") { name.to_owned() } else { format!("{name}.wav") };
        tone(&root.join("wavs").join(&name));
        let quoted = name.replace('"', "\"\"");
        writeln!(csv, "\"wavs/{quoted}\"|{}|<i>", text(i)).unwrap();
    }
    csv += "missing.wav|nothing to play|<i>\n";
    fs::write(root.join("metadata.csv"), csv).unwrap();
    let (page, rows) = written(&root);
    // The list, and what draws it.
    assert_eq!((page.matches("<script").count(), page.matches("</script>").count()), (2, 2));
    assert!(!page.contains("<img") && !page.contains("<b>") && !page.contains("<i>"));
    assert_eq!(rows.len(), HOSTILE.len() + 3);
    let row = |name: &str| rows.iter().find(|row| row["name"].as_str().unwrap().contains(name)).unwrap();
    let plain = row("plain.wav");
    assert_eq!(plain["link"], "./wavs/plain.wav");
    assert_eq!((&plain["text"], &plain["voice"]), (&text(3).into(), &"<i>".into()));
    assert_eq!((&plain["place"], plain["seconds"].as_f64()), (&"metadata.csv:5".into(), Some(0.5)));
    let outline = STANDARD.decode(plain["outline"].as_str().unwrap()).unwrap();
    assert!(outline.len() > 20 && outline.last() > outline.first(), "{outline:?}");
    for row in &rows {
        let (name, link) = (row["name"].as_str().unwrap(), row["link"].as_str());
        assert_eq!(link.map(decoded), root.join(name).exists().then(|| format!("./{name}")));
    }
    assert_eq!(row("missing.wav")["link"], serde_json::Value::Null);
    assert!(rows.windows(2).all(|two| two[0]["doubt"].as_f64() >= two[1]["doubt"].as_f64()));

    let csv = "audio_file|text|verdict\nwavs/plain.wav|other words|keep\nwavs/a:b.wav||drop\n";
    fs::write(root.join("corrections.csv"), csv).unwrap();
    let (_, rows) = written(&root);
    let row = |name: &str| rows.iter().find(|row| row["name"] == name).unwrap();
    let plain = row("wavs/plain.wav");
    assert_eq!((&plain["text"], &plain["corrected"]), (&text(3).into(), &"other words".into()));
    assert_eq!((&plain["keep"], &plain["place"]), (&true.into(), &"metadata.csv:5".into()));
    let dropped = rows.last().unwrap();
    assert_eq!((&dropped["name"], &dropped["keep"]), (&"wavs/a:b.wav".into(), &false.into()));
    assert!(dropped["issues"].as_array().unwrap().is_empty() && dropped["link"] == "./wavs/a%3Ab.wav");
    fs::remove_file(root.join("corrections.csv")).unwrap();
    written(&root);
}

#[test]
fn a_page_elsewhere_names_whole_paths_and_what_has_none_is_refused() {
    let (_held, root) = folder("elsewhere");
    tone(&root.join("wavs/a.wav"));
    fs::write(root.join("metadata.csv"), "wavs/a.wav|a text\n").unwrap();
    let sets: Sets = (&root.join("metadata.csv")).into();
    let to = root.join("pages/of me.html");
    assert!(Page::open(&sets, Some(&to), ROOM).unwrap_err().to_string().contains("no folder"));
    fs::create_dir(root.join("pages")).unwrap();
    let path = Page::open(&sets, Some(&to), ROOM).unwrap().write(&checked(&root)).unwrap();
    let page = fs::read_to_string(&path).unwrap();
    assert_eq!(path, to);
    assert!(page.contains("\"link\":\"file:///") && page.contains("/wavs/a.wav\""), "{page}");
    let refused = |sets: &Sets, to: Option<&Path>| Page::open(sets, to, ROOM).unwrap_err().to_string();
    let csv = root.join("metadata.csv");
    assert!(refused(&sets, Some(&csv)).contains("must end with .html"));
    let [one] = &sets.iter().collect::<Vec<_>>()[..] else { panic!() };
    assert!(refused(&Sets::new(vec![(*one).clone(), (*one).clone()]), None).contains("one data set"));
}

/// With `AMBITUS_PAGES`, as many clips as a browser must open at once.
#[test]
fn a_long_list_is_whole() {
    let (held, root) = folder("long");
    let n = if held.is_none() { 5000 } else { 60 };
    let first = root.join("wavs/0.wav");
    tone(&first);
    let mut csv = String::new();
    for i in 0..n {
        if i > 0 {
            fs::hard_link(&first, root.join(format!("wavs/{i}.wav"))).unwrap();
        }
        writeln!(csv, "{i}|The {i}th of very many clips, with as many words as a sentence has, and a comma.")
            .unwrap();
    }
    fs::write(root.join("metadata.csv"), csv).unwrap();
    let (page, rows) = written(&root);
    assert_eq!(rows.len(), n);
    assert!(page.len() < 60_000 + 2_000 * n, "{} bytes", page.len());
}
