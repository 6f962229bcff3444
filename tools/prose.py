"""Finds phrases in docstrings, comments and Markdown that plain English has simpler words for.

`python tools/prose.py [FILE ...]` checks the given files, or the repository's own prose.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("vagen/**/", "components/**/", "pipelines/**/", "tools/", "docs/", "")
PHRASES = {
    r"what (has |had )?(came|comes?) of": "the result of",
    r"\bhow (it|a|an|the|this) (\w+ )?stands\b": "the status of",
    r"\b(is|are|was|were) told (of|that|apart|about)\b": "gets, is distinguished",
    r"\btells? (\w+ )?apart\b": "distinguishes",
    r"\b(what|which) (is|are|was|were) to be\b": "a noun",
    r"\b(whoever|nobody|somebody|anybody)\b": "name the person or process",
    r"\b(heed\w*|hush\w*|lest|amid|anew|thereof|therein|whence|thence|whither)\b": "a modern word",
    r"\bfor ever\b|\bbeside itself\b|\ba word (of|on)\b|\bof no avail\b": "a plain phrase",
    r"\b(let|lets|letting) (\w+ ){1,4}go\b|\blets? go of\b": "frees, deletes",
    r"\balarm sounds\b|\bsounds the alarm\b": "warns",
    r"\b(as|where|how) it stands\b": "unchanged, its place",
    r"\b(takes?|took) up what\b": "restores",
    r"\b(goes?|going|gone|went) on with\b": "continues",
    r"\b(cannot|can|could) (not )?be had\b|\bto be had\b|\bthere is none to\b": "is not available",
    r"\bbut for\b|\bsave for\b|\bexcepted\b": "except for",
    r"\bJSON-able\b": "JSON-serialisable",
    r"\brefuses? (a|an|the|what|to|two|such)\b": "rejects",
    r"\bpresent (weights|policy|state|one|iteration|coefficient)\b": "current",
    r"\bno more than\b(?= it| they)|\bany more\b(?=[.,;:])": "at most, any longer",
    r"\bas far as (it|they|that|these|this) (is|are|was|were|goes?|tells?)\b": "if, a condition",
    r"(?m)(?<=^    )\s*\w+: (Of|Whose|As|That|Is|Who)\b": "start with a noun",
    r"\A(Of|Whose|Than|That) ": "start with a noun or verb",
}


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yields pieces of prose of a file, each with its first line."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        code = r"(?ms)^ *```.*?^ *```|`[^`\n]*`"
        yield 1, re.sub(code, lambda found: re.sub(r"[^\n]", " ", found[0]), text)
        return
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        for item in body if isinstance(body, list) else []:
            if isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant):
                yield item.lineno, str(item.value.value)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def problems(path: Path) -> Iterator[str]:
    """Yields a line for each phrase that has a plainer one."""
    for line, text in prose(path):
        for phrase, better in PHRASES.items():
            for found in re.finditer(phrase, text, re.IGNORECASE):
                number = line + text[: found.start()].count("\n")
                yield f"{path}:{number}: `{found[0]}`: better {better}\n"


def main() -> int:
    """Prints all problems; the exit code is 1 if there are any."""
    own = sorted(
        f for place in FOLDERS for end in ("py", "md") for f in ROOT.glob(f"{place}*.{end}")
    )
    files = [Path(name) for name in sys.argv[1:]] or own
    found = [problem for file in files for problem in problems(file)]
    sys.stdout.writelines(found)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
