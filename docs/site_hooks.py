"""Hooks of mkdocs: what in the pages leads out of `docs/` is shown as what it is, a file's path."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
_LINK = re.compile(r"\[([^\]]*)\]\((\.\./[^)\s#]+)(#[^)\s]*)?\)")


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """A link to a file of the checkout becomes its path, for the site has pages alone.

    Raises:
        FileNotFoundError: There is no such file.
    """
    folder = Path(page.file.abs_src_path).parent

    def path(link: re.Match[str]) -> str:
        target = (folder / link[2]).resolve()
        if target.is_relative_to(ROOT / "docs"):
            return link[0]
        if not target.exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {link[2]}, which is not there")
        name = target.relative_to(ROOT).as_posix()
        return link[1] if link[1].strip("`") == name else f"{link[1]} (`{name}`)"

    return _LINK.sub(path, markdown)
