#!/usr/bin/env python3
"""Opens pages of runs in headless Chromium and says what is wrong with them.

    .ci/pages.py runs/NAME/report.html runs/runs.html my-voice/listen.html [--binary ambitus] [--pictures FOLDER]

Each must be there within two seconds, write nothing to the console, ask for nothing beyond itself (and the sounds of a data set's page), play
each sound that it holds, hold no markup from names (pages made by `AMBITUS_PAGES=FOLDER cargo test -p ambitus-train --lib` have hostile
ones), and answer to its language button and to keys. On the page of a data set a text is typed, a clip dropped and another kept, and what it
saves must be that; with --binary it must be what `prepare --page` of this binary then reads. --pictures keeps what pages look like: wide and
on a phone, light and dark, in both languages. Needs Chromium and Python's own library.
"""

import argparse
import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SLOW = 2.0
PATIENCE = 60
LOOKS = [("wide", 1280, "light", "en"), ("wide", 1280, "dark", "zh"), ("phone", 390, "light", "zh"), ("phone", 390, "dark", "en")]

FACTS = """(async () => {
  const sounds = [...document.querySelectorAll("audio")];
  const loaded = (sound) => new Promise((done) => {
    if (sound.readyState >= 1) return done();
    sound.addEventListener("loadedmetadata", done, { once: true });
    sound.addEventListener("error", done, { once: true });
    setTimeout(done, 5000);
  });
  await Promise.all(sounds.map(loaded));
  const first = sounds[0];
  let played = true;
  if (first) {
    first.muted = true;
    await first.play().catch(() => { played = false; });
    await new Promise((done) => setTimeout(done, 400));
    played = played && first.currentTime > 0;
    first.pause();
  }
  const plots = [...document.querySelectorAll(".plot")];
  const before = document.documentElement.lang;
  const button = document.querySelector(".language");
  button.click();
  const turned = document.documentElement.lang !== before;
  button.click();
  const silent = plots.filter((plot) => {
    plot.focus();
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: "End", bubbles: true, cancelable: true }));
    const said = plot.previousElementSibling.textContent;
    plot.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true, cancelable: true }));
    plot.blur();
    return said === "" || /NaN|Infinity|undefined/.test(said);
  });
  return {
    sounds: sounds.length,
    mute: sounds.filter((s) => !(s.readyState >= 1 && s.duration > 0)).length,
    played, turned, plots: plots.length, silent: silent.map((plot) => plot.id),
    hostile: document.querySelectorAll("img, iframe, object, embed, [onerror], [onload], script[src], link[rel=stylesheet]").length,
    scripts: document.querySelectorAll("script:not([type='application/json'])").length, hit: typeof window.hit,
    wide: document.documentElement.scrollWidth > document.documentElement.clientWidth,
  };
})()"""

# Decides on three clips of the page of a data set, by mouse and by keys, and saves.
CORRECT = """(async () => {
  const cards = [...document.querySelectorAll(".clip")].filter((card) => card.querySelector("textarea"));
  const names = cards.map((card) => card.querySelector("h3 span").textContent);
  const text = cards[0].querySelector("textarea");
  text.value = %s;
  text.dispatchEvent(new Event("input", { bubbles: true }));
  cards[1].querySelector(".drop").click();
  cards[2].focus();
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "k" }));
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "s" }));
  return names.slice(0, 3);
})()"""
CORRECTED = 'He said "no | never" </script> 说 — ö'


class Browser:
    """Chromium behind a pipe of messages that end with a zero byte."""

    def __init__(self, chromium: str, profile: str):
        command_out, command_in = os.pipe()
        answer_out, answer_in = os.pipe()
        for end in (command_out, answer_in):
            os.set_inheritable(end, True)

        def place():
            # Moved out of the way first: the ends may have the numbers 3 and 4 themselves.
            ends = [os.dup(command_out), os.dup(answer_in)]
            os.dup2(ends[0], 3)
            os.dup2(ends[1], 4)

        options = ["--headless=new", "--remote-debugging-pipe", f"--user-data-dir={profile}", "--disable-gpu", "--no-first-run",
                   "--autoplay-policy=no-user-gesture-required", "--disable-background-networking", "--hide-scrollbars"]
        # The sandbox refuses to run as root.
        options += ["--no-sandbox"] if os.geteuid() == 0 else []
        self.process = subprocess.Popen([chromium, *options], preexec_fn=place, close_fds=False,
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(command_out)
        os.close(answer_in)
        self.to, self.answers, self.text = command_in, answer_out, b""
        self.numbers, self.events, self.session = itertools.count(1), [], None

    def read(self, until: float):
        while b"\0" not in self.text:
            if not select.select([self.answers], [], [], max(0, until - time.monotonic()))[0]:
                raise TimeoutError("Chromium does not answer")
            more = os.read(self.answers, 1 << 20)
            if not more:
                raise EOFError("Chromium ended")
            self.text += more
        line, self.text = self.text.split(b"\0", 1)
        return json.loads(line)

    def ask(self, method: str, **params):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + PATIENCE
        while True:
            answer = self.read(until)
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                return answer["result"]
            self.events.append(answer)

    def wait(self, method: str):
        until = time.monotonic() + PATIENCE
        while not any(e.get("method") == method for e in self.events):
            self.events.append(self.read(until))

    def open(self, url: str) -> float:
        """Opens a page in a tab of its own; returns the seconds until everything in it is there."""
        self.session = None
        tab = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=tab, flatten=True)["sessionId"]
        for part in ("Runtime", "Log", "Network", "Page"):
            self.ask(f"{part}.enable")
        self.events = []
        start = time.monotonic()
        self.ask("Page.navigate", url=url)
        self.wait("Page.loadEventFired")
        return time.monotonic() - start

    def value(self, text: str):
        answer = self.ask("Runtime.evaluate", expression=text, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["exception"]["description"])
        return answer["result"].get("value")

    def look(self, width: int, colors: str, language: str, path: Path):
        self.ask("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colors}])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        self.value(f"if (document.documentElement.lang !== '{language}') document.querySelector('.language').click()")
        height = min(6000, self.value("document.documentElement.scrollHeight"))
        picture = self.ask("Page.captureScreenshot", captureBeyondViewport=True,
                           clip={"x": 0, "y": 0, "width": width, "height": height, "scale": 1})
        path.write_bytes(base64.b64decode(picture["data"]))

    def end(self):
        self.process.terminate()
        self.process.wait()


def corrections(browser: Browser, page: Path, binary: str | None) -> list[str]:
    """Corrects clips on the page of a data set; returns what is wrong with what it saves."""
    saved = page.parent / "corrections.csv"
    with tempfile.TemporaryDirectory() as folder:
        browser.ask("Browser.setDownloadBehavior", behavior="allow", downloadPath=folder)
        changed, dropped, kept = browser.value(CORRECT % json.dumps(CORRECTED))
        download = Path(folder) / saved.name
        until = time.monotonic() + PATIENCE
        while not download.exists() and time.monotonic() < until:
            time.sleep(0.05)
        if not download.exists():
            return ["saves nothing"]
        shutil.copyfile(download, saved)
    quoted = [f'"{text}"' for text in (name.replace('"', '""') for name in (changed, dropped, kept))]
    text = '"' + CORRECTED.replace('"', '""') + '"'
    expected = ["audio_file|text|verdict", f"{quoted[0]}|{text}|", f"{quoted[1]}||drop", f"{quoted[2]}||keep", ""]
    lines = saved.read_text(encoding="utf-8").split("\n")
    wrong = [] if lines == expected else [f"saves {lines}, not {expected}"]
    if binary:
        again = page.with_name("again.html")
        subprocess.run([binary, "prepare", "--data", page.parent, "--page", again], check=True, capture_output=True)
        rows = again.read_text(encoding="utf-8").split('id="data">')[1].split("</script>")[0]
        rows = {row["name"]: (row["corrected"], row["keep"]) for row in json.loads(rows)}
        found = [rows[name] for name in (changed, dropped, kept)]
        if found != [(CORRECTED, None), (None, False), (None, True)]:
            wrong.append(f"is read as {found}")
        again.unlink()
    saved.unlink()
    return wrong


def wrong_with(browser: Browser, page: Path, pictures: Path | None, binary: str | None) -> list[str]:
    url = page.resolve().as_uri()
    listens = page.name == "listen.html"
    beside = (page.resolve().parent.as_uri() + "/") if listens else url
    seconds = browser.open(url)
    facts = browser.value(FACTS)
    wrong = [f"was there after {seconds:.2f} s"] if seconds > SLOW else []
    for event in browser.events:
        params = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                wrong.append(f"exception: {params['exceptionDetails'].get('exception', {}).get('description')}")
            case "Runtime.consoleAPICalled":
                wrong.append(f"console: {params['type']} {[a.get('value') for a in params['args']]}")
            case "Log.entryAdded":
                wrong.append(f"log: {params['entry']['text']}")
            case "Network.requestWillBeSent":
                asked = params["request"]["url"]
                if not asked.startswith((beside, "data:", "blob:")):
                    wrong.append(f"asked for {asked[:200]}")
    if facts["mute"] or not facts["played"]:
        wrong.append(f"{facts['mute']} of {facts['sounds']} sounds do not load, or the first does not play")
    if not facts["turned"]:
        wrong.append("the language button does nothing")
    if facts["silent"]:
        wrong.append(f"no readout by keys: {facts['silent']}")
    if facts["hostile"] or facts["scripts"] != 1 or facts["hit"] != "undefined":
        wrong.append(f"markup that is not the page's own: {facts}")
    if listens and facts["sounds"] >= 3:
        wrong.extend(corrections(browser, page, binary))
    for name, width, colors, language in LOOKS:
        browser.ask("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        if browser.value("document.documentElement.scrollWidth > innerWidth"):
            wrong.append(f"is wider than {width} pixels")
        if pictures:
            browser.look(width, colors, language, pictures / f"{page.parent.name}-{page.stem}-{name}-{colors}.png")
    size = page.stat().st_size / (1 << 20)
    print(f"{page}: {size:.1f} MiB, there in {seconds:.2f} s, {facts['sounds']} sounds, {facts['plots']} charts")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--binary")
    parser.add_argument("--pictures", type=Path)
    args = parser.parse_args()
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        print("NOT CHECKED: no Chromium here")
        return 0
    if args.pictures:
        args.pictures.mkdir(parents=True, exist_ok=True)
    bad = 0
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        browser = Browser(chromium, profile)
        try:
            for page in args.pages:
                for why in wrong_with(browser, page, args.pictures, args.binary):
                    bad += 1
                    print(f"{page}: {why}", file=sys.stderr)
        finally:
            browser.end()
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
