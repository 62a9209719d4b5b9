"""Recordings whose pauses are known: sentences of espeak-ng with silence drawn between them, then noise, and music under parts."""

import subprocess
import wave
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

RATE = 22050

WORDS = {
    "en": "the a river house under morning light window never seven stories quiet people found their way across old bridge"
    " she said that winter would come early this year because birds left first small children play outside until dark"
    " yesterday perhaps thousand questions fish stop taste kept six fresh half safe chess east west asked first best".split(),
    "de": "der die das Haus am Fluss Morgen Licht Fenster niemals sieben Geschichten ruhige Leute fanden ihren Weg über alte"
    " Brücke sagte dass Winter früh kommt weil Vögel zuerst ziehen kleine Kinder spielen draußen bis dunkel vielleicht"
    " tausend Fragen Fisch stets Kraft sechs frisch halb sanft Schach Herbst".split(),
    "fr": "la maison sous le pont matin lumière fenêtre jamais sept histoires calmes gens trouvent leur chemin elle dit que"
    " hiver viendra tôt cette année parce oiseaux partent petits enfants jouent dehors nuit peut-être mille questions"
    " poisson fraise six chaque".split(),
    "es": "la casa bajo el puente mañana luz ventana nunca siete historias tranquila gente encuentra su camino ella dice que"
    " invierno vendrá temprano este año porque pájaros salen pequeños niños juegan fuera noche quizás mil preguntas pez"
    " fresco seis siempre hasta".split(),
    "it": "la casa sotto il ponte mattina luce finestra mai sette storie tranquilla gente trova la strada dice che inverno"
    " arriva presto questo anno perché uccelli partono piccoli bambini giocano fuori notte forse mille domande".split(),
    "pl": "dom nad rzeką rano światło okno nigdy siedem historii spokojni ludzie znaleźli drogę przez stary most zima"
    " przyjdzie wcześnie ponieważ ptaki małe dzieci bawią się szczęście sześć często".split(),
}


def said(text, voice, speed, pitch, folder, name):
    """Samples of a sentence without the silence around it."""
    path = Path(folder) / f"{name}.wav"
    subprocess.run(["espeak-ng", "-v", voice, "-s", str(speed), "-p", str(pitch), "-w", path, text], check=True)
    with wave.open(str(path)) as file:
        assert file.getframerate() == RATE and file.getnchannels() == 1
        x = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
    path.unlink()
    loud = np.flatnonzero(np.abs(x) > 1e-3)
    return x[loud[0] : loud[-1] + 1]


def noise(rng, n, colour):
    """Noise of unit power: its density falls with f^exponent."""
    exponent = {"white": 0.0, "pink": 1.0, "brown": 2.0}[colour]
    out = np.empty(0, np.float32)
    while len(out) < n:
        piece = min(n, 1 << 22)
        spectrum = np.fft.rfft(rng.standard_normal(piece))
        f = np.maximum(np.fft.rfftfreq(piece, 1 / RATE), 20.0)
        out = np.append(out, np.fft.irfft(spectrum * f ** (-exponent / 2), piece).astype(np.float32))
    out = out[:n]
    return out / np.sqrt(np.mean(out**2))


def music(rng, n, kind):
    """Chords of tones with harmonics, or plucked notes, of unit power."""
    out = np.zeros(n, np.float32)
    at = 0
    while at < n:
        length = int(RATE * (rng.uniform(1.0, 3.0) if kind == "chords" else rng.uniform(0.15, 0.5)))
        root = 110 * 2 ** (rng.integers(0, 24) / 12)
        notes = root * 2 ** (np.array([0, 4, 7, 12] if kind == "chords" else [rng.choice([0, 3, 7])]) / 12)
        ring = length if kind == "chords" else int(1.2 * RATE)
        t = np.arange(min(ring, n - at)) / RATE
        sound = sum(np.sin(2 * np.pi * f * h * t) / h**1.5 for f in notes for h in range(1, 6))
        if kind == "chords":
            shape = np.minimum(1, np.minimum(t / 0.05, (ring / RATE - t) / 0.05))
        else:
            shape = np.exp(-t / 0.25) * np.minimum(1, t / 0.005)
        out[at : at + len(t)] += (sound * shape).astype(np.float32)
        at += length
    return out / np.sqrt(np.mean(out**2))


def recording(seed, seconds, voices, folder, snr, colour, music_db=15.0, music_share=0.3, words=(3, 14), commas=0.15):
    """Samples and the spans (first, end) of its sentences, in samples. `music_db`: how far below speech the music is."""
    rng = np.random.default_rng(seed)
    jobs, parts, total = [], [], 0
    while len(jobs) < seconds / 1.5 + 4:
        voice, speed, pitch = voices[rng.integers(len(voices))]
        drawn = [str(w) for w in rng.choice(WORDS[voice[:2]], rng.integers(*words, endpoint=True))]
        drawn = [w + ("," if rng.random() < commas and 2 < i < len(drawn) - 2 else "") for i, w in enumerate(drawn)]
        jobs.append((" ".join(drawn) + ".", voice, speed, pitch, folder, f"{seed}-{len(jobs)}"))
    with ThreadPoolExecutor(2) as pool:
        sentences = pool.map(lambda job: said(*job), jobs)
        pause = int(RATE * rng.uniform(0.3, 1.5))
        parts, spans, total = [np.zeros(pause, np.float32)], [], pause
        for x in sentences:
            if total >= seconds * RATE:
                continue
            x = x * 10 ** (rng.uniform(-2, 2) / 20)
            pause = int(RATE * rng.uniform(0.3, 1.5))
            parts += [x, np.zeros(pause, np.float32)]
            spans.append((total, total + len(x)))
            total += len(x) + pause
    clean = np.concatenate(parts)
    power = sum(float(np.sum(clean[a:b] ** 2)) for a, b in spans) / sum(b - a for a, b in spans)
    out = clean + noise(rng, total, colour) * np.sqrt(power) * 10 ** (-snr / 20)
    # Music under stretches of 20 to 60 s.
    at = int(RATE * rng.uniform(5, 30))
    while at < total and music_share > 0:
        n = min(int(RATE * rng.uniform(20, 60)), total - at)
        sound = music(rng, n, ["chords", "plucked"][rng.integers(2)]) * np.sqrt(power) * 10 ** (-music_db / 20)
        fade = np.minimum(1, np.minimum(np.arange(n), np.arange(n)[::-1]) / RATE)
        out[at : at + n] += (sound * fade).astype(np.float32)
        at += int(n / music_share * rng.uniform(0.7, 1.3))
    return out * (0.7 / np.abs(out).max()), spans


def write(path, samples):
    with wave.open(str(path), "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
