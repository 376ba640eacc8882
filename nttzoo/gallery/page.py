"""One HTML page of many sources: scripts and styles inline, binary data as compressed base64."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from importlib import resources
from typing import Any

from nttzoo.codegen import wasm
from nttzoo.errors import ExportError

MAIN, WORKER = "main.js", "worker.js"
NETWORK = "net.js"  # comes from codegen: the same file that `nttzoo export` writes
_IMPORT = re.compile(r"^import\s+(?:\{([^}]*)\}\s+from\s+)?\"\./([\w.]+)\";\n", re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let)\b)", re.MULTILINE)
_DEFINED = re.compile(r"^(?:async )?(?:function\*?|class|const|let) +(\w+)", re.MULTILINE)


def page(facts: dict[str, Any], binary: dict[str, bytes]) -> str:
    """The page. `facts` becomes JSON; `binary` is {id: bytes}, unpacked by the page when it needs them."""
    content = {"facts": encoded(facts), **binary}
    blocks = [_data(f"bytes-{key}", "text/plain", packed(value)) for key, value in content.items()]
    blocks.append(_data("worker", "text/plain", bundle(WORKER)))
    parts = {
        "<!-- style -->": f"<style>\n{source('style.css')}</style>",
        "<!-- data -->": "\n".join(blocks),
        "<!-- script -->": f'<script type="module">\n{bundle(MAIN)}</script>',
    }
    text = source("index.html")
    for mark, part in parts.items():
        if mark not in text:
            raise ExportError(f"index.html of the gallery has no {mark}.")
        text = text.replace(mark, part)
    return text


def packed(content: bytes) -> str:
    """Bytes as text: compressed, then base64. The same bytes each time."""
    return base64.b64encode(gzip.compress(content, 9, mtime=0)).decode()


def encoded(facts: dict[str, Any]) -> bytes:
    """Facts as JSON."""
    return json.dumps(facts, separators=(",", ":")).encode()


def bundle(main: str) -> str:
    """A module and all that it imports as one script: imports come first, and every top-level name is there once."""
    order: list[str] = []
    _collect(main, order, [])
    owner: dict[str, str] = {}
    parts = []
    for file in order:
        # A worker from a page on disk cannot be a module: replace the syntax that only modules may use.
        text = _EXPORT.sub("", _IMPORT.sub("", source(file))).replace("import.meta.url", "self.location.href")
        for name in _DEFINED.findall(text):
            if name in owner:
                raise ExportError(f"{file} and {owner[name]} of the gallery both define {name!r}: rename one of them.")
            owner[name] = file
        if "</script" in text:
            raise ExportError(f"{file} of the gallery contains '</script', which would end the page's script.")
        parts.append(f"// {file}\n{text}")
    return "\n".join(parts)


def source(file: str) -> str:
    """The text of a source of the page."""
    if file == NETWORK:
        return wasm.javascript("net.wasm")
    return (resources.files("nttzoo.gallery") / "site" / file).read_text()


def _collect(file: str, order: list[str], path: list[str]) -> None:
    if file in path:
        raise ExportError(f"modules of the gallery import each other: {' -> '.join([*path, file])}.")
    for _, imported in _IMPORT.findall(source(file)):
        _collect(imported, order, [*path, file])
    if file not in order:
        order.append(file)


def _data(identifier: str, kind: str, text: str) -> str:
    return f'<script type="{kind}" id="{html.escape(identifier)}">{text}</script>'
