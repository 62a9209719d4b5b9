//! PyTorch's side of a comparison: a Python process that runs a round of steps whenever it is told to. The scripts of
//! `benches/peers` are part of this program, so that it can be carried alone.

use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

const SCRIPTS: [(&str, &str); 4] = [
    ("torch_rounds.py", include_str!("../../benches/peers/torch_rounds.py")),
    ("attention_torch.py", include_str!("../../benches/peers/attention_torch.py")),
    ("f5_plain_torch.py", include_str!("../../benches/peers/f5_plain_torch.py")),
    ("llama_plain_torch.py", include_str!("../../benches/peers/llama_plain_torch.py")),
];

/// A peer that is ready to run rounds; it ends when this is dropped.
pub struct Peer {
    child: Child,
    go: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    /// Starts a script and waits until it is warm.
    ///
    /// # Errors
    /// What the script said.
    pub fn start(python: &str, script: &str, args: &[String], folder: &Path) -> Result<Peer, String> {
        for (name, text) in SCRIPTS {
            std::fs::write(folder.join(name), text).map_err(|e| format!("{name}: {e}"))?;
        }
        let said = folder.join("peer.log");
        let log = std::fs::File::create(&said).map_err(|e| format!("{}: {e}", said.display()))?;
        let mut child = Command::new(python)
            .arg(folder.join(script))
            .args(args)
            .arg("--serve")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .map_err(|e| format!("{python}: {e}"))?;
        let go = child.stdin.take();
        let answers = BufReader::new(child.stdout.take().ok_or("the peer has no output")?);
        let mut peer = Peer { child, go, answers };
        match peer.line() {
            Ok(line) if line == "ready" => Ok(peer),
            Ok(line) => Err(format!("{script} said `{line}`")),
            Err(_) => {
                let said = std::fs::read_to_string(&said).unwrap_or_default();
                Err(format!("{script}: {}", said.lines().last().unwrap_or("ended without a word")))
            }
        }
    }

    /// Runs one round of steps and returns what the script measured.
    ///
    /// # Errors
    /// When the script ended.
    pub fn round(&mut self) -> Result<Value, String> {
        let go = self.go.as_mut().ok_or("the peer has no input")?;
        writeln!(go, "go").and_then(|()| go.flush()).map_err(|e| format!("the peer ended: {e}"))?;
        let line = self.line()?;
        serde_json::from_str(&line).map_err(|e| format!("the peer said `{line}`: {e}"))
    }

    fn line(&mut self) -> Result<String, String> {
        let mut line = String::new();
        match self.answers.read_line(&mut line) {
            Ok(0) => Err("the peer ended".to_owned()),
            Ok(_) => Ok(line.trim().to_owned()),
            Err(e) => Err(format!("the peer ended: {e}")),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // Its input's end ends it; what does not end is killed.
        self.go = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
