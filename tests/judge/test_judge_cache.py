"""The cache of answers: shared by processes, bounded, and about content alone."""

import json
import multiprocessing
import os
import signal
import sqlite3
import time
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.judge.cache import FILE, AnswerCache, CacheError, content_key, normalized

WRITERS, ANSWERS = 3, 150


def write_many(folder: Path, writer: int) -> None:
    cache = AnswerCache(folder)
    for number in range(ANSWERS):
        key = content_key(number=number)
        kept = cache.get(key)
        assert kept is None or kept["number"] == number
        cache.put(key, {"number": number, "writer": writer})
    cache.close()


def write_until_killed(folder: Path) -> None:
    cache = AnswerCache(folder)
    told = os.open(folder / "kept", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for number in range(10_000):
        cache.put(content_key(number=number), number)
        os.write(told, b".")


@pytest.mark.slow
def test_several_processes_share_a_cache(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write_many, args=(tmp_path, i)) for i in range(WRITERS)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0] * WRITERS
    cache = AnswerCache(tmp_path)
    assert len(cache) == ANSWERS
    found = [cache.get(content_key(number=number)) for number in range(ANSWERS)]
    assert [answer["number"] for answer in found] == list(range(ANSWERS))
    cache.close()


@pytest.mark.slow
def test_what_was_kept_survives_a_kill(tmp_path: Path) -> None:
    process = multiprocessing.get_context("spawn").Process(
        target=write_until_killed, args=(tmp_path,)
    )
    process.start()
    kept = tmp_path / "kept"
    while not (kept.exists() and kept.stat().st_size > 50):
        assert process.is_alive()
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    cache = AnswerCache(tmp_path)
    assert all(cache.get(content_key(number=n)) == n for n in range(kept.stat().st_size))
    cache.close()


def test_the_first_answer_stays(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.put("key", {"verdict": "YES"})
    cache.put("key", {"verdict": "NO"})
    assert cache.get("key") == {"verdict": "YES"}
    assert cache.get("other") is None
    cache.close()


def test_the_oldest_answers_go_when_it_is_full(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path, max_mib=1)
    for number in range(2048):
        cache.put(content_key(number=number), "x" * 1000)
    assert cache.get(content_key(number=0)) is None
    assert cache.get(content_key(number=2047)) == "x" * 1000
    assert 600 < len(cache) < 1150
    cache.close()
    assert (tmp_path / FILE).stat().st_size < 3 << 20


def test_a_file_that_is_no_cache_is_refused(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text("not a database, whatever its name says" * 100)
    with pytest.raises(CacheError, match=r"infra\.judge_cache"):
        AnswerCache(tmp_path)
    (tmp_path / FILE).unlink()
    database = sqlite3.connect(tmp_path / FILE)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(CacheError, match="version 99"):
        AnswerCache(tmp_path)
    with pytest.raises(CacheError):
        AnswerCache(tmp_path / FILE / "below a file")


def test_an_answer_that_is_no_json_is_none(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.put("key", 1)
    cache._database.execute("UPDATE answers SET value = '{'")
    assert cache.get("key") is None
    cache.close()


def test_keys_depend_on_every_part_and_on_nothing_else() -> None:
    one = content_key(role="a", text="b", state=[1, 2])
    assert one == content_key(state=[1, 2], text="b", role="a")
    others = [
        content_key(role="a", text="b", state=[2, 1]),
        content_key(role="a", text="b"),
        content_key(role="ab", text="", state=[1, 2]),
        content_key(role="a", text="c", state=[1, 2]),
    ]
    assert len({one, *others}) == 5


def test_texts_that_mean_the_same_share_an_answer() -> None:
    text = "the target is above"
    assert normalized("  The\u200b target\tis \x00 ＡＢＯＶＥ ") == text
    assert normalized("P _ _\n\n _ G _ ") == "P _ _\n_ G _", "a grid keeps its case and rows"
    assert normalized("above\u202e") != normalized("below")


@given(st.text())
def test_what_is_judged_can_be_sent_and_hides_nothing(text: str) -> None:
    sent = normalized(text)
    json.dumps(sent, ensure_ascii=False).encode()
    assert all(c == "\n" or unicodedata.category(c)[0] != "C" for c in sent)
    assert normalized(f" \u200b{text}\x00 ") == sent
