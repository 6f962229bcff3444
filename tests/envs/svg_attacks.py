"""Documents that attack the reader or the renderer, by name."""

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" '
BOX = 'viewBox="0 0 256 256">'


def svg(body: str, attributes: str = "") -> str:
    return f"{HEAD}{attributes}{BOX}{body}</svg>"


def _laughs(depth: int) -> str:
    entities = "".join(f'<!ENTITY e{i} "{f"&e{i - 1};" * 10}">' for i in range(1, depth))
    return f'<!DOCTYPE svg [<!ENTITY e0 "ha">{entities}]>' + svg(f"<title>&e{depth - 1};</title>")


def _doubling(depth: int, reference: str = "href") -> str:
    groups = '<g id="a0"><rect width="9" height="9"/></g>' + "".join(
        f'<g id="a{i}">' + f'<use {reference}="#a{i - 1}"/>' * 2 + "</g>" for i in range(1, depth)
    )
    return svg(f'<defs>{groups}</defs><use {reference}="#a{depth - 1}"/>')


def _clips(depth: int) -> str:
    inner = '<rect width="9" height="9" clip-path="url(#c{0})"/>'
    paths = "".join(
        f'<clipPath id="c{i}">{inner.format(i - 1) * 4}</clipPath>' for i in range(1, depth)
    )
    return svg(
        f'<clipPath id="c0"><rect width="9" height="9"/></clipPath>{paths}'
        f'<rect width="9" height="9" clip-path="url(#c{depth - 1})"/>'
    )


RECT = '<rect width="9" height="9"/>'
REFUSED: dict[str, str] = {
    # Entities and document types.
    "billion laughs": _laughs(10),
    "quadratic blow-up": f'<!DOCTYPE svg [<!ENTITY a "{"x" * 9000}">]>'
    + svg(f"<title>{'&a;' * 3000}</title>"),
    "external entity": '<!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>'
    + svg("<title>&x;</title>"),
    "parameter entity": '<!DOCTYPE svg [<!ENTITY % x SYSTEM "http://127.0.0.1/x"> %x;]>'
    + svg(RECT),
    "external DTD": '<!DOCTYPE svg SYSTEM "http://127.0.0.1/x.dtd">' + svg(RECT),
    "public DTD": '<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" '
    '"http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">' + svg(RECT),
    "empty document type": "<!DOCTYPE svg>" + svg(RECT),
    "undeclared entity": svg("<title>&nbsp;</title>"),
    "stylesheet instruction": '<?xml-stylesheet href="http://127.0.0.1/x.css"?>' + svg(RECT),
    "php instruction": svg("<?php system('id'); ?>"),
    # References to the outside.
    "image by http": svg('<image href="http://127.0.0.1/x.png" width="9" height="9"/>'),
    "image by file": svg('<image xlink:href="file:///etc/passwd" width="9" height="9"/>'),
    "image by data": svg('<image href="data:image/png;base64,AAAA" width="9" height="9"/>'),
    "image of svg": svg('<image href="data:image/svg+xml,&lt;svg/&gt;" width="9" height="9"/>'),
    "use by http": svg('<use href="http://127.0.0.1/x.svg#a"/>'),
    "use by file": svg('<use href="/etc/passwd#a"/>'),
    "use by relative path": svg('<use xlink:href="other.svg#a"/>'),
    "use by data": svg('<use href="data:image/svg+xml;base64,AAAA#a"/>'),
    "gradient by http": svg('<linearGradient id="g" href="http://127.0.0.1/x#g"/>'),
    "fill by http": svg('<rect width="9" height="9" fill="url(http://127.0.0.1/x#g)"/>'),
    "fill by file": svg('<rect width="9" height="9" fill="url(file:///etc/passwd)"/>'),
    "fill by quoted file": svg("<rect width='9' height='9' fill='url(\"/etc/passwd\")'/>"),
    "fill by upper case": svg('<rect width="9" height="9" fill="URL(//127.0.0.1/x)"/>'),
    "fill with a second source": svg('<rect width="9" fill="url(#a) url(//127.0.0.1/x)"/>'),
    "stroke in style by http": svg('<path d="M0 0 L9 9" style="stroke:url(//127.0.0.1/x#g)"/>'),
    "filter by http": svg('<rect width="9" height="9" filter="url(http://127.0.0.1/f#f)"/>'),
    "css import": svg("<style>@import url(http://127.0.0.1/x.css);</style>" + RECT),
    "css font": svg("<style>@font-face{font-family:x;src:url(file:///x)}</style>" + RECT),
    "css background": svg(
        '<rect width="9" height="9" style="background:url(http://127.0.0.1/x)"/>'
    ),
    "css escape": svg(r'<rect width="9" height="9" style="fill:u\72l(http://127.0.0.1/x)"/>'),
    "css comment": svg('<rect width="9" height="9" style="fill:url(/**/http://127.0.0.1)"/>'),
    "cursor": svg('<rect width="9" height="9" cursor="url(http://127.0.0.1/x)"/>'),
    "base": svg(RECT, 'xml:base="http://127.0.0.1/" '),
    "link": svg('<a href="javascript:alert(1)"><rect width="9" height="9"/></a>'),
    "include": svg('<xi:include xmlns:xi="http://www.w3.org/2001/XInclude" href="/etc/passwd"/>'),
    # Scripts and foreign content.
    "script": svg("<script>alert(1)</script>"),
    "script in cdata": svg("<script><![CDATA[while(1){}]]></script>"),
    "script by reference": svg('<script href="http://127.0.0.1/x.js"/>'),
    "event handler": svg(RECT, 'onload="alert(1)" '),
    "event handler inside": svg('<rect width="9" height="9" onclick="alert(1)"/>'),
    "foreign object": svg("<foreignObject><body/></foreignObject>"),
    "html inside": svg('<iframe xmlns="http://www.w3.org/1999/xhtml" src="file:///etc/passwd"/>'),
    "animation": svg('<rect width="9" height="9"><animate attributeName="x" to="9"/></rect>'),
    "set": svg('<rect width="9" height="9"><set attributeName="fill" to="red"/></rect>'),
    "text": svg("<text x='9' y='9' font-size='1e9'>hello</text>"),
    # Bombs of size, depth and work.
    "huge view box": f'{HEAD}viewBox="0 0 1e30 1e30">{RECT}</svg>',
    "view box without extent": f'{HEAD}viewBox="0 0 0 256">{RECT}</svg>',
    "negative view box": f'{HEAD}viewBox="0 0 -256 256">{RECT}</svg>',
    "infinite view box": f'{HEAD}viewBox="0 0 1e999 1e999">{RECT}</svg>',
    "nan view box": f'{HEAD}viewBox="nan nan nan nan">{RECT}</svg>',
    "huge size": f'{HEAD}width="1000000000" height="1000000000">{RECT}</svg>',
    "deep nesting": svg("<g>" * 1500 + "</g>" * 1500),
    "many elements": svg("<g/>" * 5000),
    "nested svg": svg(svg(RECT)),
    "doubling by use": _doubling(30),
    "doubling by xlink": _doubling(30, "xlink:href"),
    "use of itself": svg('<g id="a"><use href="#a"/></g>'),
    "use in a circle": svg('<g id="a"><use href="#b"/></g><g id="b"><use href="#a"/></g>'),
    "symbols in a circle": svg('<symbol id="a"><use href="#a"/></symbol><use href="#a"/>'),
    "clips by clips": _clips(20),
    "clip of itself": svg('<clipPath id="c" clip-path="url(#c)"><rect width="9"/></clipPath>'),
    "gradients in a circle": svg(
        '<linearGradient id="a" href="#b"/><linearGradient id="b" href="#a"/>'
    ),
    "pattern of itself": svg(
        '<pattern id="p" width="1" height="1"><rect width="9" height="9" fill="url(#p)"/></pattern>'
    ),
    "mask": svg('<mask id="m"><rect width="9" height="9" mask="url(#m)"/></mask>'),
    "marker": svg('<marker id="m"><path d="M0 0 L9 9" marker-end="url(#m)"/></marker>'),
    "blur": svg('<filter id="f"><feGaussianBlur stdDeviation="9999"/></filter>'),
    "turbulence": svg('<filter id="f"><feTurbulence numOctaves="999999"/></filter>'),
    "filter image": svg('<filter id="f"><feImage href="file:///etc/passwd"/></filter>'),
    "endless path": svg(f'<path d="M0 0{" L9 9" * 9000}"/>'),
    "many points": svg(f'<polyline points="{"1,2 " * 7000}"/>'),
    "huge coordinate": svg('<path d="M0 0 L1e38 1e38"/>'),
    "huge stroke": svg('<path d="M0 0 L9 9" stroke="red" stroke-width="1e300"/>'),
    "fine dashes": svg('<path d="M0 0 L99999 9" stroke="red" stroke-dasharray="1e-9 1e-9"/>'),
    "fine dashes in style": svg(
        '<path d="M0 0 L99999 9" stroke="red" style="stroke-dasharray:0.0001"/>'
    ),
    "much space": svg(f'<rect width="1{" " * 30_000}!" height="9"/>'),
    "much space in style": svg(f'<rect style="width:1{" " * 30_000}!" height="9"/>'),
    "long number": svg(f'<rect width="{"9" * 30_000}" height="9"/>'),
    "many attributes": svg(
        "<rect " + " ".join(f'data-a{i}="1"' for i in range(200)) + ' width="9"/>'
    ),
    "long document": svg(f"<!--{'x' * 60_000}-->"),
    "long value": svg(f'<rect width="9" height="9" fill="{"red " * 999}"/>'),
    # Not what it says it is.
    "no markup": "a red square",
    "empty": "",
    "another root": "<html/>",
    "another namespace": '<svg xmlns="http://example.org/"><rect/></svg>',
    "two roots": svg(RECT) * 2,
    "cut off": svg(RECT)[:-9],
    "text around": "here it is: " + svg(RECT),
    "null byte": svg("\0" + RECT),
    "lone surrogate": svg("<title>\ud800</title>"),
    "utf-16 declared": '<?xml version="1.0" encoding="utf-16"?>\0' + svg(RECT),
    "duplicate attribute": svg('<rect width="9" width="9"/>'),
    "quote escape": svg('<rect id="a&quot; onload=&quot;x" width="9"/>'),
    "path with a script": svg('<path d="M0 0 L9 9 javascript:alert(1)"/>'),
    "expression": svg('<rect width="expression(alert(1))" height="9"/>'),
    "unknown unit maths": svg('<rect width="calc(9px * 9)" height="9"/>'),
}

HEAVY: dict[str, str] = {
    # Allowed by the lists; whatever they cost is bounded by the limits.
    "long strokes": svg(
        '<path fill="none" stroke="red" stroke-width="3" stroke-dasharray="1 1" d="M0 0'
        + " L99999 0 L0 99999" * 800
        + '"/>'
    ),
    "large curves": svg(
        '<path fill="none" stroke="red" d="M0 0'
        + " C99999 99999 -99999 99999 99999 0" * 900
        + '"/>'
    ),
    "many arcs": svg('<path d="M0 0' + " A99999 1 45 1 0 -99999 99999" * 800 + '"/>'),
    "work at the limit": _doubling(7),
    "multiplied scales": svg('<g transform="scale(90000)">' * 10 + RECT + "</g>" * 10),
    "vanishing scales": svg('<g transform="scale(0.00001)">' * 10 + RECT + "</g>" * 10),
    "singular transform": svg('<g transform="matrix(0 0 0 0 0 0)">' + RECT + "</g>"),
    "many large shapes": svg('<rect x="-9999" width="99999" height="99999" opacity=".1"/>' * 390),
    "gradients": svg(
        "".join(
            f'<radialGradient id="g{i}" r="99999"><stop offset="{i}"/></radialGradient>'
            f'<circle r="99999" fill="url(#g{i})"/>'
            for i in range(130)
        )
    ),
    "tiny view box": f'{HEAD}viewBox="0 0 1e-300 1e-300">{RECT}</svg>',
    "tiny number": svg(f'<rect width="0.{"0" * 30_000}1" height="9"/>'),
    "missing references": svg('<use href="#none"/><rect width="9" height="9" fill="url(#no)"/>'),
}
