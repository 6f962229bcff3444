"""Parses, checks and rewrites SVG documents from a model before they are rendered.

Only elements and attributes on the lists below are rendered, within limits on size, depth and work.
Content that does not affect the image is dropped: editors' attributes and elements, metadata, text
properties. Content that could refer to external data, execute, or render unlisted elements is
rejected. The renderer gets the rewritten tree instead of the original text, so that differences
between the parsers cannot be exploited. Expat rejects document types, entities and processing
instructions.
"""

import re
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat
from xml.sax.saxutils import quoteattr

SVG_NAMESPACE = "http://www.w3.org/2000/svg"
XLINK_NAMESPACE = "http://www.w3.org/1999/xlink"

MAX_BYTES = 32_768
"""Maximum bytes of a document."""
MAX_ELEMENTS = 400
MAX_DEPTH = 24
MAX_ATTRIBUTES = 30
"""Maximum attributes of one element."""
MAX_NUMBERS = 6_000
"""Maximum numbers in all coordinates, paths and transforms of a document."""
MAX_MAGNITUDE = 100_000.0
"""Maximum absolute value of a number."""
MAX_WORK = 1_500
"""Maximum rendered elements after following every reference."""
MIN_DASH = 1.0
"""Minimum sum of a dash pattern, since finer ones make millions of strokes."""

SHAPES = ("path", "rect", "circle", "ellipse", "line", "polyline", "polygon")
ELEMENTS = frozenset(
    {
        *SHAPES,
        *("svg", "g", "defs", "symbol", "use", "title", "desc"),
        *("linearGradient", "radialGradient", "stop", "clipPath"),
    }
)
"""Allowed elements."""

_TEXT = ("id", "class", "color", "fill", "stroke", "stop-color", "style", "clip-path")
_WORDS = (
    *("fill-rule", "clip-rule", "stroke-linecap", "stroke-linejoin", "display", "visibility"),
    *("gradientUnits", "clipPathUnits", "spreadMethod", "preserveAspectRatio", "overflow"),
    *("shape-rendering", "vector-effect", "paint-order", "version", "role"),
)
_NUMBERS = (
    *("x", "y", "width", "height", "rx", "ry", "cx", "cy", "r", "fx", "fy", "fr"),
    *("x1", "y1", "x2", "y2", "points", "d", "viewBox", "offset", "pathLength"),
    *("opacity", "fill-opacity", "stroke-opacity", "stop-opacity", "stroke-width"),
    *("stroke-miterlimit", "stroke-dasharray", "stroke-dashoffset"),
    *("transform", "gradientTransform"),
)
ATTRIBUTES = frozenset({*_TEXT, *_WORDS, *_NUMBERS, "href"})
"""Allowed attributes."""
_MEASURED = frozenset(_NUMBERS)
_DRAWING = re.compile(
    r"filter|mask.*|marker.*|clip|mix-blend-mode|isolation|transform-(?:origin|box)|backdrop-filter"
    r"|required.*|systemLanguage|all"
)
"""Attributes and properties that affect the image and are not supported."""
_NEUTRAL = frozenset({"", "none", "normal", "auto", "inherit", "initial", "unset"})
"""Values with which they have no effect."""
_LIVELY = re.compile(r"url|import|script|expression|//|[\\@<>]", re.IGNORECASE)
"""Substrings that are never allowed in dropped values."""
_EDITORS = re.compile(
    r"http://(?:www\.)?(?:inkscape\.org|sodipodi\.sourceforge\.net|creativecommons\.org|purl\.org/dc"
    r"|web\.resource\.org/cc|ns\.adobe\.com|www\.w3\.org/1999/02/22-rdf)"
    r"|https?://(?:www\.)?(?:bohemiancoding\.com|sketch\.com|figma\.com|serif\.com|vectornator\.io)"
)
"""Namespaces of elements without effect on the image."""
_XML_NAMESPACE = "http://www.w3.org/XML/1998/namespace"

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
_REFERENCE = re.compile(r"#([A-Za-z_][A-Za-z0-9_.-]{0,63})")
_URL = re.compile(r"""url\(\s*(['"]?)#([A-Za-z_][A-Za-z0-9_.-]{0,63})\1\s*\)""")
_PAINT = re.compile(r"[\w\s#%.,()+/-]{0,200}")
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")
_LIST = re.compile(r"(?:[\s,]|px)*|none|inherit")
_AROUND_NUMBERS = {
    "d": re.compile(r"[\s,MmZzLlHhVvCcSsQqTtAa]*"),
    "points": _LIST,
    "viewBox": _LIST,
    "stroke-dasharray": _LIST,
    "transform": re.compile(r"(?:[\s,()]|matrix|translate|scale|rotate|skew[XY])*|none"),
}
_AROUND_NUMBERS["gradientTransform"] = _AROUND_NUMBERS["transform"]
_AROUND_LENGTH = re.compile(r"\s*(?:%|px|pt|pc|mm|cm|in|em|ex|auto|inherit)?\s*")
_BARE_SIZE = re.compile(r"\s*(\d+\.?\d*|\.\d+)(?:px)?\s*")


_NAMING = {"id": _NAME, "class": _PAINT, "role": _PAINT, "version": _PAINT}
"""Attributes whose other values disable rendering of an element, which is dropped."""


class UnsafeSVG(ValueError):
    """A document that must not be rendered; the message has the reason."""


@dataclass(slots=True)
class Element:
    """A checked element."""

    name: str
    attributes: dict[str, str]
    children: list["Element"] = field(default_factory=list)

    def walk(self) -> "list[Element]":
        """The element and its descendants, in document order."""
        found: list[Element] = []
        open_elements: list[Element] = [self]
        while open_elements:
            element = open_elements.pop()
            found.append(element)
            open_elements.extend(reversed(element.children))
        return found


def read_document(text: str) -> Element:
    """Parses and checks an SVG document.

    Raises:
        UnsafeSVG: It is malformed, has unlisted content, or exceeds a limit.
    """
    try:
        data = text.strip().encode()
    except UnicodeEncodeError:
        raise UnsafeSVG("the text is not Unicode") from None
    if len(data) > MAX_BYTES:
        raise UnsafeSVG(f"the document has {len(data)} bytes; at most {MAX_BYTES} are read")
    root = _Reader().read(data)
    box = root.attributes.get("viewBox")
    if box is not None:
        numbers = [float(number) for number in _NUMBER.findall(box)]
        if len(numbers) != 4 or min(numbers[2:]) <= 0:
            _refuse("viewBox is four numbers, the last two above 0")
    _check_work(root)
    return root


def safe_document(text: str, side: int) -> str:
    """The checked document, resized to `side` x `side` pixels.

    Raises:
        UnsafeSVG: See `read_document`.
    """
    root, own = read_document(text), ("viewBox", "width", "height", "x", "y")
    attributes = {
        "xmlns": SVG_NAMESPACE,
        "width": str(side),
        "height": str(side),
        "viewBox": root.attributes.get("viewBox") or _sheet(root.attributes, side),
        **{name: value for name, value in root.attributes.items() if name not in own},
    }
    parts: list[str] = []
    _write(Element("svg", attributes, root.children), parts)
    return "".join(parts)


def colours_and_shapes(root: Element) -> list[list[str]]:
    """Colour (fill, otherwise outline; `gradient` for a reference) and name of each shape."""
    found: list[list[str]] = []

    def visit(element: Element, fill: str, stroke: str) -> None:
        fill = element.attributes.get("fill", fill)
        stroke = element.attributes.get("stroke", stroke)
        if element.name in SHAPES:
            colour = stroke if fill == "none" else fill
            found.append(["gradient" if "url" in colour else colour, element.name])
        if element.name not in ("defs", "symbol", "clipPath"):
            for child in element.children:
                visit(child, fill, stroke)

    visit(root, "black", "none")
    return found


class _Reader:
    """Builds the tree during parsing, and stops at the first forbidden content."""

    def __init__(self) -> None:
        parser = expat.ParserCreate(encoding="UTF-8", namespace_separator=" ")
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.StartDoctypeDeclHandler = lambda *_: _refuse("a document type is not allowed")
        parser.EntityDeclHandler = lambda *_: _refuse("an entity is not allowed")
        parser.ExternalEntityRefHandler = lambda *_: _refuse("an external entity is not allowed")
        parser.ProcessingInstructionHandler = lambda *_: _refuse(
            "a processing instruction is not allowed"
        )
        self._parser = parser
        self._open: list[Element] = []
        self._root: Element | None = None
        self._left_out = 0
        """Depth inside a dropped element."""
        self._elements = 0
        self._numbers = 0

    def read(self, data: bytes) -> Element:
        try:
            self._parser.Parse(data, True)
        except expat.ExpatError as error:
            raise UnsafeSVG(f"not well-formed XML: {error}") from None
        if self._root is None:
            raise UnsafeSVG("the document is empty")
        return self._root

    def _start(self, qualified: str, attributes: dict[str, str]) -> None:
        namespace, _, name = qualified.rpartition(" ")
        self._elements += 1
        if self._elements > MAX_ELEMENTS:
            _refuse(f"more than {MAX_ELEMENTS} elements")
        if len(self._open) + self._left_out >= MAX_DEPTH:
            _refuse(f"elements nested more than {MAX_DEPTH} deep")
        of_editor = _EDITORS.match(namespace) or (
            name == "metadata" and namespace in ("", SVG_NAMESPACE)
        )
        if self._left_out or (self._open and of_editor):
            self._left_out += 1
            return
        if namespace not in ("", SVG_NAMESPACE) or name not in ELEMENTS:
            _refuse(f"the element <{name[:40]}> is not allowed")
        if (name == "svg") != (not self._open):
            _refuse("<svg> is the outermost element and only that")
        if len(attributes) > MAX_ATTRIBUTES:
            _refuse(f"more than {MAX_ATTRIBUTES} attributes on <{name}>")
        element = Element(name, {})
        for key, value in attributes.items():
            self._attribute(element, key, value)
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, _: str) -> None:
        if self._left_out:
            self._left_out -= 1
        else:
            self._open.pop()

    def _attribute(self, element: Element, qualified: str, value: str) -> None:
        namespace, _, name = qualified.rpartition(" ")
        if namespace and (namespace, name) != (XLINK_NAMESPACE, "href"):
            if (namespace, name) == (_XML_NAMESPACE, "base"):
                _refuse("the attribute 'xml:base' is not allowed")
            return
        if name == "style":
            for key, part in _declarations(value):
                self._check(element, key, part)
                element.attributes[key] = part
            return
        value = " ".join(value.split())  # keeps pattern matching fast
        if name.startswith(("data-", "aria-")):
            return
        if name not in ATTRIBUTES:
            if name.startswith("on") or _changes(name, value):
                _refuse(f"the attribute {name[:40]!r} of <{element.name}> is not allowed")
            return
        if name in _NAMING and not _NAMING[name].fullmatch(value):
            if '"' in value or _LIVELY.search(value):
                _refuse(f"the value of {name!r} is not allowed")
            return
        self._check(element, name, value)
        element.attributes.setdefault(name, value)

    def _check(self, element: Element, name: str, value: str) -> None:
        if name == "href":
            if element.name not in ("use", "linearGradient", "radialGradient"):
                _refuse(f"a reference from <{element.name}> is not allowed")
            if not _REFERENCE.fullmatch(value):
                _refuse("a reference to anything but an element of this document is not allowed")
        elif name == "id":
            if not _NAME.fullmatch(value):
                _refuse("an id is a letter, then letters, digits, '_', '.' or '-'")
        elif name in _MEASURED:
            self._measure(name, value)
        elif not (
            _URL.fullmatch(value) or (_PAINT.fullmatch(value) and "url" not in value.lower())
        ):
            _refuse(f"the value of {name!r} is not allowed")

    def _measure(self, name: str, value: str) -> None:
        numbers = _NUMBER.findall(value)
        self._numbers += len(numbers)
        if self._numbers > MAX_NUMBERS:
            _refuse(f"more than {MAX_NUMBERS} numbers")
        around = _AROUND_NUMBERS.get(name, _AROUND_LENGTH)
        if not around.fullmatch(_NUMBER.sub(" ", value)):
            _refuse(f"the value of {name!r} is not allowed")
        if any(not abs(float(number)) <= MAX_MAGNITUDE for number in numbers):
            _refuse(f"a number of {name!r} is beyond {MAX_MAGNITUDE:g}")
        if name == "stroke-dasharray" and numbers and sum(map(float, numbers)) < MIN_DASH:
            _refuse(f"a dash pattern shorter than {MIN_DASH:g} is not allowed")


def _refuse(reason: str) -> NoReturn:
    raise UnsafeSVG(reason)


def _declarations(style: str) -> list[tuple[str, str]]:
    """Allowed properties of a `style` attribute, as attributes."""
    found = []
    for part in style.split(";"):
        name, _, value = (" ".join(piece.split()) for piece in part.partition(":"))
        value = re.sub(r" ?! ?important$", "", value)
        if name in ATTRIBUTES and name not in ("style", "href", "id", "class"):
            found.append((name, value))
        elif _changes(name, value):
            _refuse(f"the style {part.strip()[:40]!r} is not allowed")
    return found


def _changes(name: str, value: str) -> bool:
    """Whether unlisted content must be rejected, since it is rendered or refers to something."""
    drawn = _DRAWING.fullmatch(name) and value.lower() not in _NEUTRAL
    return bool(drawn or _LIVELY.search(name) or _LIVELY.search(value))


def _check_work(root: Element) -> None:
    """Rejects circular references, and documents whose references multiply their size."""
    by_id = {}
    for element in root.walk():
        by_id.setdefault(element.attributes.get("id"), element)
    known: dict[int, int] = {}
    under_way: set[int] = set()

    def work(element: Element, depth: int) -> int:
        key = id(element)
        if key in known:
            return known[key]
        if key in under_way:
            _refuse("references in a circle")
        if depth > 4 * MAX_DEPTH:
            _refuse("references nested too deep")
        under_way.add(key)
        total = 1
        for target in _targets(element):
            if target in by_id:
                total += work(by_id[target], depth + 1)
        for child in element.children:
            total += work(child, depth + 1)
        under_way.discard(key)
        known[key] = total
        if total > MAX_WORK:
            _refuse(f"references make more than {MAX_WORK} elements of it")
        return total

    work(root, 0)


def _targets(element: Element) -> list[str]:
    """Ids that an element refers to."""
    targets = []
    for name, value in element.attributes.items():
        match = _REFERENCE.fullmatch(value) if name == "href" else None
        if match:
            targets.append(match.group(1))
        targets += [found.group(2) for found in _URL.finditer(value)]
    return targets


def _sheet(attributes: dict[str, str], side: int) -> str:
    """The view box of a document without one: its width and height, or pixels."""
    sizes = []
    for name in ("width", "height"):
        match = _BARE_SIZE.fullmatch(attributes.get(name, ""))
        sizes.append(float(match.group(1)) if match else 0.0)
    width, height = (size if size > 0 else float(side) for size in sizes)
    return f"0 0 {width:g} {height:g}"


def _write(element: Element, parts: list[str]) -> None:
    parts.append(f"<{element.name}")
    parts += [f" {name}={quoteattr(value)}" for name, value in element.attributes.items()]
    parts.append(">")
    for child in element.children:
        _write(child, parts)
    parts.append(f"</{element.name}>")
