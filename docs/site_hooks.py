"""Hooks of mkdocs: links out of `docs/` become paths; pages are published as Markdown, too."""

import re
import shutil
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


def on_post_build(config: Any, **_: Any) -> None:
    """Copies the Markdown of every page to the site, where `llms.txt` links to it."""
    docs, site = Path(config["docs_dir"]), Path(config["site_dir"])
    for page in docs.rglob("*.md"):
        shutil.copyfile(page, site / page.relative_to(docs))
