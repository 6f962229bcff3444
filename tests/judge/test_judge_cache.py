"""The cache of answers: shared by processes, bounded, and about content alone."""

import json
import sqlite3
import unicodedata
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vagen.judge.cache import FILE, AnswerCache, CacheError, content_key, normalized


def test_the_first_answer_stays(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.put("key", {"verdict": "YES"})
    cache.put("key", {"verdict": "NO"})
    assert cache.get("key") == {"verdict": "YES"}
    assert cache.get("other") is None
    cache.close()


def test_a_new_answer_takes_the_place_of_an_unreadable_one(tmp_path: Path) -> None:
    cache = AnswerCache(tmp_path)
    cache.put("a", 1)
    with closing(sqlite3.connect(cache.path)) as file, file:
        file.execute("UPDATE answers SET value = '{'")
    assert cache.get("a") is None
    cache.put("a", 2)
    assert cache.get("a") == 2


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
