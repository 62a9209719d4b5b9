//! `ambitus tokens`: what a model reads of texts.

use crate::own::folders;
use crate::terminal::{self, json};
use ambitus_families::ALL;
use ambitus_families::error::RunError;
use ambitus_families::family::{ModelDir, OpenOptions};
use ambitus_families::tokens::{Reading, Tokens};
use ambitus_families::weights::read_text;
use clap::Args;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The most bytes of text.
const MOST: u64 = 64 << 20;

#[derive(Args)]
pub struct TokensArgs {
    #[arg(long, help = folders())]
    pub model: PathBuf,
    /// Text, a line each; - is stdin
    #[arg(long, value_name = "FILE")]
    pub text: PathBuf,
    /// Language of the text, where the model asks for it
    #[arg(long)]
    pub language: Option<String>,
    /// The text is as the project's cleaners leave it, for models that clean texts
    #[arg(long)]
    pub cleaned: bool,
    /// Who speaks, of models with named voices: "tara" puts "tara: " before each line
    #[arg(long)]
    pub voice: Option<String>,
    /// JSON on stdout: [{"text": ..., "ids": [...], "pieces": [...]}]
    #[arg(long)]
    pub json: bool,
}

#[derive(serde::Serialize)]
struct Line<'a> {
    text: &'a str,
    #[serde(flatten)]
    tokens: Tokens,
}

pub fn run(a: &TokensArgs) -> Result<(), RunError> {
    let model = ModelDir::open(ALL, &a.model, OpenOptions { from_scratch: true, ..OpenOptions::default() })?;
    let reading = Reading { language: a.language.clone(), cleaned: a.cleaned, voice: a.voice.clone() };
    let reader = model.opened.reader(&reading)?;
    let texts = read(&a.text)?;
    let lines = texts.lines().map(|text| Ok(Line { text, tokens: reader(text)? }));
    if a.json {
        json(&lines.collect::<Result<Vec<_>, RunError>>()?);
        return Ok(());
    }
    for line in lines {
        let Tokens { ids, pieces } = line?.tokens;
        let pairs: Vec<String> =
            ids.iter().zip(&pieces).map(|(id, piece)| format!("{id} {piece:?}")).collect();
        terminal::result(&pairs.join(", "));
    }
    Ok(())
}

fn read(path: &Path) -> Result<String, RunError> {
    if path != Path::new("-") {
        // The same failure of a file that is no part of the model.
        return read_text(path, MOST, "name a file of text, or - for stdin").map_err(|e| match e {
            RunError::Model(why) => RunError::Usage(why),
            e => e,
        });
    }
    let mut bytes = Vec::new();
    let read = std::io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes);
    read.map_err(|e| RunError::io(path, "cannot read stdin", e))?;
    if bytes.len() as u64 > MOST {
        return Err(RunError::Usage(format!("--text -: more than {MOST} bytes: give the text in parts")));
    }
    String::from_utf8(bytes).map_err(|_| RunError::Usage("--text -: is not UTF-8 text".to_owned()))
}
