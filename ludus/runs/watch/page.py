"""The page's files for a server, and the same page as a single file with its data.

Knows: the files that `make web` builds.  Knows not: runs, HTTP.
Invariant: the single file makes no network requests, and no text in its data can close the element that holds them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"
_CSP = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'"


def one_file(data: Mapping[str, Any]) -> str:
    """The page as self-contained HTML.

    data: the server's answers by route (`/api/runs`), including the query if the answer depends on it.
    """
    style, script = ((STATIC / name).read_text("utf-8") for name in ("app.css", "app.js"))
    # "<" is written as an escape of JSON, so that no text of an episode can close the element.
    inside = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    replaced = {
        '<link rel="icon" href="/static/icon.svg" type="image/svg+xml">': "",
        '<link rel="stylesheet" href="/static/app.css">': f"<style>{style}</style>",
        '<script src="/static/app.js" defer></script>': f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">',
        "</body>": f'<script type="application/json" id="ludus-data">{inside}</script><script>{script}</script></body>',
    }
    html = (STATIC / "index.html").read_text("utf-8")
    for tag, text in replaced.items():
        before, _, after = html.partition(tag)
        html = f"{before}{text}{after}"
    return html
