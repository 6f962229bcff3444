"""The trajectory viewer: one HTML file that needs nothing else, neither files nor network.

Everything a model or an environment wrote is untrusted: it reaches the page as JSON that cannot
close its `<script>` element, the page's script sets it as text only, and the page's content
security policy admits no script or style but its own, by hash, and no request at all.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from vagen.report.payload import script_safe_json, token_text, viewer_payload
from vagen.report.summary import config_rows, summary_cards
from vagen.rollout.batch import TrajectoryBatch
from vagen.storage import write_text

MAX_FRAME_BYTES = 7_000_000
"""PNG bytes of all frames together; beyond it they are re-encoded smaller."""
SCRIPTS = ("data.js", "tokens.js", "turns.js", "app.js")


def write_report(
    batch: TrajectoryBatch,
    path: Path,
    *,
    title: str,
    tokenizer: Any | None = None,
    facts: Mapping[str, str] | None = None,
    max_frame_bytes: int = MAX_FRAME_BYTES,
    moments: Sequence[str] = (),
    back: str = "",
) -> Path:
    """Writes a batch as one self-contained HTML page and returns its path.

    The address of a view can be shared: `#t=3&color=advantage&filter=failed` opens the fourth
    trajectory with its tokens coloured by advantage.

    Args:
        batch: Batch of any kind; missing columns are greyed out.
        path: The file to write; it appears whole.
        title: Heading of the page.
        tokenizer: Gives the text of token ids by `decode`; without one, ids are shown.
        facts: Names and values that the heading shows beside the batch's own.
        max_frame_bytes: Size of all frames beyond which they are re-encoded smaller.
        moments: Names of policies, in order of their training, if the batch holds as many equal
            parts, the same levels played by each: a slider goes from one to the next.
        back: Address of a page that the heading links to.
    """
    text_of = token_text(tokenizer)
    payload = viewer_payload(batch, text_of=text_of, max_frame_bytes=max_frame_bytes)
    if moments:
        payload["moments"] = list(moments)
        for number, item in enumerate(payload["trajectories"]):
            item["moment"] = number * len(moments) // len(payload["trajectories"])
    page = render(
        "report.html.j2",
        ("report.css",),
        SCRIPTS,
        title=title,
        moments=moments,
        back=back,
        provenance=[
            ("batch", batch.kind),
            ("iteration", batch.iteration),
            ("policy", batch.policy_version[:16]),
            ("config", batch.config_digest[:16]),
            *((name.replace("_", " "), value) for name, value in (facts or {}).items()),
        ],
        cards=summary_cards(batch.trajectories)[1 if moments else 0 :],  # no rate of a selection
        configs=config_rows(batch.trajectories),
        data=Markup(script_safe_json(payload)),
    )
    return write_text(path, page)


def render(name: str, styles: tuple[str, ...], scripts: tuple[str, ...] = (), **values: Any) -> str:
    """A page from a template of this room, which admits its own styles and scripts only.

    Args:
        name: Name of the template.
        styles: Names of its style sheets.
        scripts: Names of its scripts, which share one strict scope of their own.
        values: Variables of the template.
    """
    style, script = _text_of(styles), _text_of(scripts)
    if scripts:
        script = f'(() => {{\n"use strict";\n{script}}})();\n'
    page = _templates().get_template(name)
    return page.render(
        style=Markup(style),
        style_hash=_csp_hash(style),
        script=Markup(script),
        script_hash=_csp_hash(script),
        **values,
    )


@cache
def _templates() -> Environment:
    return Environment(
        loader=PackageLoader("vagen.report"), autoescape=True, undefined=StrictUndefined
    )


@cache
def _text_of(names: tuple[str, ...]) -> str:
    folder = files("vagen.report") / "templates"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _csp_hash(text: str) -> str:
    """What a page's content security policy calls a style or script of its own."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
