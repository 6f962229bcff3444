"""The trajectory viewer: self-contained, safe with any text, complete, small enough."""

import base64
import hashlib
import json
import re
import shutil
import subprocess
import zlib
from dataclasses import asdict, replace
from html.parser import HTMLParser

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_sample import ATTACKS, sample_batch

from vagen.envs.images import decode_png
from vagen.report import write_report
from vagen.report.frames import fit_frames
from vagen.report.payload import color_scales, script_safe_json, token_text, viewer_payload
from vagen.report.summary import config_rows, summary_cards
from vagen.rollout.batch import TrajectoryBatch
from vagen.storage import StorageError

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


class Page(HTMLParser):
    """Elements of a page, the text of its heading, and its data."""

    def __init__(self, html: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict]] = []
        self.text: dict[str, str] = {}
        self._open: list[tuple[str, dict]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self._open.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        while self._open and self._open.pop()[0] != tag:
            pass

    def handle_data(self, data):
        if self._open:
            tag, attrs = self._open[-1]
            key = attrs.get("id") or tag
            self.text[key] = self.text.get(key, "") + data

    def find(self, tag):
        return [attrs for name, attrs in self.elements if name == tag]

    @property
    def data(self):
        return json.loads(self.text["data"])


@pytest.fixture(scope="module")
def sample():
    return sample_batch(24)


@pytest.fixture(scope="module")
def html(sample, tmp_path_factory):
    batch, strings = sample
    path = tmp_path_factory.mktemp("report") / "report.html"
    return write_report(batch, path, title="Sample", tokenizer=strings).read_text("utf-8")


def decode_rows(trajectory: dict) -> list[dict]:
    """What the page's script makes of `blob`, written a second time."""
    planes = np.frombuffer(zlib.decompress(base64.b64decode(trajectory["blob"])), np.uint8)
    buffer = planes.reshape(4, -1).T.tobytes()
    rows, offset = [], 0
    for described in trajectory["rows"]:
        row, length = {"index": described["index"]}, described["length"]
        for name, dtype in [("words", "<i4"), ("turn", "<i4"), ("mask", "<i4")] + [
            (name, "<f4") for name in described["columns"]
        ]:
            row[name] = np.frombuffer(buffer, dtype, length, offset)
            offset += 4 * length
        rows.append(row)
    assert offset == len(buffer)
    return rows


def test_page_needs_nothing_else(html):
    page = Page(html)
    references = [
        value
        for _, attrs in page.elements
        for name, value in attrs.items()
        if name in ("src", "href", "srcset", "data", "action")
    ]
    assert references == []
    assert not page.find("link") and not page.find("iframe") and not page.find("base")
    style = page.text["style"]
    assert "url(" not in style and "@import" not in style
    urls = set(re.findall(r"https?://[^\s\"'`)]+", html))
    assert urls <= {"http://www.w3.org/2000/svg"}


def test_policy_admits_only_the_pages_own_script_and_style(html):
    policy = next(
        meta["content"]
        for meta in Page(html).find("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert "default-src 'none'" in policy and "unsafe" not in policy
    for tag, directive in [("script", "script-src"), ("style", "style-src")]:
        body = re.search(rf"<{tag}>(.*?)</{tag}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(body[1].encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy


def test_page_has_no_inline_handlers_or_styles(html):
    for _, attrs in Page(html).elements:
        assert not [name for name in attrs if name.startswith("on") or name == "style"]


def test_untrusted_text_cannot_leave_its_place(tmp_path):
    batch, strings = sample_batch(8, attacks=True)
    hostile = "</title><script>1</script>"
    batch.trajectories[0].trajectory_id = hostile
    batch.trajectories[0].error = hostile
    batch.trajectories[0].config_id = hostile
    batch.policy_version = hostile[:16]
    path = write_report(batch, tmp_path / "r.html", title=hostile, tokenizer=strings)
    html = path.read_text("utf-8")
    page = Page(html)
    assert [attrs.get("id") for attrs in page.find("script")] == ["data", None]
    assert page.text["h1"] == hostile
    assert not page.find("img") and not page.find("div style")
    texts = {turn["text"] for item in page.data["trajectories"] for turn in item["turns"]}
    assert texts == set(ATTACKS)
    block = re.search(r'id="data">(.*?)</script>', html, re.DOTALL)[1]
    assert not set("<>&") & set(block) and block.isascii()


@pytest.mark.slow
@given(
    st.recursive(
        st.text() | st.floats() | st.none(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_json_is_script_safe_and_faithful(value):
    text = script_safe_json(value)
    assert text.isascii() and not set("<>&") & set(text)
    decoded = json.loads(text)
    assert script_safe_json(decoded) == text
    if isinstance(value, str):
        assert decoded == value


def test_data_holds_the_whole_batch(sample, html):
    batch, strings = sample
    data = Page(html).data
    assert len(data["trajectories"]) == len(batch.trajectories)
    for shown, item in zip(data["trajectories"], batch.trajectories, strict=True):
        assert shown["id"] == item.trajectory_id and shown["success"] == item.success
        assert shown["score"] == pytest.approx(item.score)
        for turn, original in zip(shown["turns"], item.turns, strict=True):
            assert turn["text"] == original.response_text
            assert turn["rewards"] == asdict(original.rewards)
            assert turn["parsed"] == original.parsed.to_dict()
            assert turn["verdict"] == (original.verdict and original.verdict.to_dict())
            assert data["states"][turn["state"]] == original.state
            assert data["states"][turn["next"]] == original.next_state
            frames = [base64.b64decode(data["images"][i]) for i in turn["images"]]
            assert frames == [batch.images[digest] for digest in original.images]
        assert len(shown["last"]) == (1 if item.rows[0].turn_index[-1] == len(item.turns) else 0)
        for row, original in zip(decode_rows(shown), item.rows, strict=True):
            words = [data["vocab"][word] for word in row["words"]]
            assert words == [strings[token] for token in original.input_ids]
            assert [data["ids"][word] for word in row["words"]] == original.input_ids.tolist()
            np.testing.assert_array_equal(row["mask"], original.loss_mask)
            np.testing.assert_array_equal(row["turn"], original.turn_index)
            for name in ("advantages", "values", "old_logprobs"):
                np.testing.assert_allclose(row[name], original.columns[name], rtol=2.5e-4)
            np.testing.assert_allclose(
                row["rollout_logprobs"], original.rollout_logprobs, rtol=2.5e-4
            )


def test_frames_and_states_are_stored_once(sample):
    batch, strings = sample
    data = viewer_payload(batch, text_of=token_text(strings), max_frame_bytes=10**9)
    assert len(data["images"]) == len(set(data["images"])) == len(batch.images)
    turns = sum(len(item.turns) for item in batch.trajectories)
    assert len(data["states"]) < 2 * turns


def test_values_that_are_not_finite_stay_so(sample):
    batch, strings = sample_batch(1)
    row = batch.trajectories[0].rows[0]
    special = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 3.4028235e38], np.float32)
    row.columns["advantages"][: len(special)] = special
    data = viewer_payload(batch, text_of=token_text(strings), max_frame_bytes=10**9)
    shown = decode_rows(data["trajectories"][0])[0]["advantages"][: len(special)]
    np.testing.assert_array_equal(shown[:5], special[:5])
    assert np.isfinite(data["scales"]["advantage"]["scale"])


def test_scales_come_from_sampled_tokens_of_the_batch(sample):
    batch, _ = sample
    scales = color_scales(batch.trajectories)
    rows = [row for item in batch.trajectories for row in item.rows]
    values = np.concatenate([row.columns["values"][row.loss_mask] for row in rows])
    assert scales["value"]["center"] == pytest.approx(values.mean(), rel=1e-5)
    assert 0 < scales["advantage"]["scale"] <= max(abs(r.columns["advantages"]).max() for r in rows)
    for row in rows:
        row.columns["advantages"][~row.loss_mask] = 0
    assert color_scales(batch.trajectories)["advantage"] == scales["advantage"]


def test_rollout_batches_have_no_advantage_colouring():
    batch, _ = sample_batch(2, kind="rollout", judged=False)
    assert set(color_scales(batch.trajectories)) == {"logprob"}


def test_head_counts_what_the_batch_holds(sample):
    batch, _ = sample
    cards = {card.name: card for card in summary_cards(batch.trajectories)}
    successes = sum(item.success for item in batch.trajectories)
    first = summary_cards(batch.trajectories)[0]
    assert first.name == f"success ({successes} of 24)"
    assert first.value == f"{successes / 24:.1%}" and "95 % interval" in first.detail
    assert first.interval.low < first.interval.point < first.interval.low + first.interval.width
    assert cards["truncated"].value == str(sum(t.truncated for t in batch.trajectories))
    turns = [turn for item in batch.trajectories for turn in item.turns]
    judged = [t.verdict.observation for t in turns if t.verdict]
    judged = [score for score in judged if score is not None]
    assert cards["judged observation"].value == f"{np.mean(judged):.2f}"
    assert cards["judged observation"].detail == f"{len(judged)} of {len(turns)}"


def test_summaries_are_no_turns():
    """They have tokens, and neither layout nor verdict; nothing else changes with them."""
    batch, _ = sample_batch(4, kind="rollout")
    before = {card.name: card for card in summary_cards(batch.trajectories)}
    first = batch.trajectories[0]
    for turn in first.turns:
        turn.metrics = replace(turn.metrics, action_is_valid=True)
        turn.parsed = replace(turn.parsed, format_correct=True)
    blank = replace(first.turns[-1].parsed, format_correct=False)
    first.turns.append(replace(first.turns[-1], summary=True, parsed=blank, verdict=None))
    after = {card.name: card for card in summary_cards(batch.trajectories)}
    assert after["turns / episode"] == before["turns / episode"]
    assert after["tokens / turn"] != before["tokens / turn"]
    assert int(after["invalid turns"].value) <= int(before["invalid turns"].value)
    for name, card in before.items():
        if name.startswith("judged"):
            assert after[name] == card
    shown = viewer_payload(batch, text_of=token_text(None), max_frame_bytes=0)
    assert [t["summary"] for t in shown["trajectories"][0]["turns"]][-2:] == [False, True]


def test_unjudged_batch_has_no_judge_figures():
    batch, _ = sample_batch(3, judged=False)
    assert not [card for card in summary_cards(batch.trajectories) if "judge" in card.name]


def test_configs_are_told_apart(tmp_path):
    batch, strings = sample_batch(6)
    for item in batch.trajectories[:2]:
        item.config_id = "other"
    rows = config_rows(batch.trajectories)
    assert [(row.name, row.count) for row in rows] == [("frozenlake", 4), ("other", 2)]
    page = Page(write_report(batch, tmp_path / "r.html", title="t", tokenizer=strings).read_text())
    assert len(page.find("table")) == 2


def test_empty_batch_gives_a_page(tmp_path):
    batch = TrajectoryBatch([], {}, "p", "c", "evaluation", 0)
    page = Page(write_report(batch, tmp_path / "r.html", title="Nothing").read_text())
    assert page.data["trajectories"] == [] and page.data["scales"] == {}


def test_token_text_sources():
    class Tokenizer:
        def decode(self, ids, skip_special_tokens):
            assert not skip_special_tokens
            return f"<{ids[0]}>"

    assert token_text(Tokenizer())(7) == "<7>"
    assert token_text(None)(6) == "#6"


def test_missing_frame_is_none(sample):
    batch, strings = sample_batch(1)
    batch.images.clear()
    data = viewer_payload(batch, text_of=token_text(strings), max_frame_bytes=10**9)
    assert data["trajectories"][0]["turns"][0]["images"] == [None]


@pytest.mark.slow
def test_large_frames_are_made_to_fit():
    import io

    from PIL import Image

    rng = np.random.default_rng(0)
    frames = {}
    for index in range(4):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (300, 300, 3), dtype=np.uint8)).save(buffer, "PNG")
        frames[str(index)] = buffer.getvalue()
    total = sum(map(len, frames.values()))
    assert fit_frames(frames, total) == frames
    fitted = fit_frames(frames | {"broken": b"no png"}, total // 8)
    assert set(fitted) == set(frames)
    assert sum(map(len, fitted.values())) <= total // 8
    assert 96 <= max(decode_png(fitted["0"]).shape) < 300


def test_size_of_a_large_evaluation(tmp_path):
    batch, strings = sample_batch(256, max_turns=5)
    path = write_report(batch, tmp_path / "r.html", title="t", tokenizer=strings)
    assert path.stat().st_size < 8_000_000


def test_missing_folder_is_a_clear_error(sample, tmp_path):
    batch, _ = sample
    with pytest.raises(StorageError, match="nowhere"):
        write_report(batch, tmp_path / "nowhere" / "r.html", title="t")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
class TestInBrowser:
    """The page as Chromium draws it."""

    @pytest.fixture
    def dom(self, tmp_path):
        def dump(path, address):
            command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu"]
            command += ["--disable-dev-shm-usage", "--disable-background-networking"]
            command += [f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000"]
            command += ["--dump-dom", f"file://{path}#{address}"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            return done.stdout

        return dump

    def test_address_opens_a_view(self, sample, tmp_path, dom):
        batch, strings = sample
        path = write_report(batch, tmp_path / "r.html", title="t", tokenizer=strings)
        shown = dom(path, "t=3&color=advantage&theme=dark")
        body = shown[shown.index('<section id="detail"') : shown.index('id="tooltip"')]
        item = batch.trajectories[3]
        assert 'data-theme="dark"' in shown
        assert body.count('<article class="turn"') == len(item.turns)
        assert item.trajectory_id in body
        sampled = sum(int(row.loss_mask.sum()) for row in item.rows)
        assert len(re.findall(r'class="tok sampled[^"]*"', body)) == sampled
        signs = item.rows[0].columns["advantages"][item.rows[0].loss_mask]
        assert len(re.findall(r'class="tok sampled[^"]* pos"', body)) == (signs > 0).sum()
        assert len(re.findall(r'class="tok sampled[^"]* neg"', body)) == (signs < 0).sum()

    def test_each_turn_is_taken_from_the_row_that_trains_it(self, tmp_path, dom):
        batch, strings = sample_batch(12)
        index, item = next((i, t) for i, t in enumerate(batch.trajectories) if len(t.turns) > 2)
        whole = item.rows[0]
        item.rows = [
            replace(whole, row_index=k, loss_mask=whole.loss_mask & (whole.turn_index == k))
            for k in range(len(item.turns))
        ]
        path = write_report(batch, tmp_path / "r.html", title="t", tokenizer=strings)
        body = dom(path, f"t={index}&color=mask").split('<section id="detail"')[1]
        for k in range(len(item.turns)):
            sampled = int((whole.loss_mask & (whole.turn_index == k)).sum())
            total = int((whole.turn_index == k).sum())
            assert f"{sampled} sampled of {total} tokens, row {k}" in body

    @pytest.mark.slow
    def test_filter_and_search(self, sample, tmp_path, dom):
        batch, strings = sample
        path = write_report(batch, tmp_path / "r.html", title="t", tokenizer=strings)
        failed = sum(not item.success for item in batch.trajectories)
        assert f"{failed} of 24 trajectories" in dom(path, "filter=failed")
        wanted = batch.trajectories[7].trajectory_id
        assert "1 of 24 trajectories" in dom(path, f"q={wanted}")

    @pytest.mark.slow
    def test_attacks_do_nothing(self, tmp_path, dom):
        batch, strings = sample_batch(4, attacks=True)
        path = write_report(batch, tmp_path / "r.html", title="safe", tokenizer=strings)
        for index in range(4):
            shown = dom(path, f"t={index}&color=mask")
            assert "<title>safe</title>" in shown
            assert "onerror=" not in re.sub(r">[^<]*<", "><", shown.split('id="data"')[0])
            body = shown[shown.index('<section id="detail"') :]
            assert '<article class="turn"' in body and "position:fixed" not in re.sub(
                r">[^<]*<", "><", body.split('id="data"')[0]
            )
