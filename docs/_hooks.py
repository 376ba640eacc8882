"""For mkdocs: links from a page to files of the repository are checked, and shown as the files' names."""

import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(!?)\[([^\]]*)\]\(\.\./([^)#]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Replaces links to files outside of docs/, which are not part of the site, by their names."""

    def name(link: re.Match[str]) -> str:
        if not (ROOT / link[3]).exists():
            raise FileNotFoundError(f"a page links to {link[3]}, which does not exist")
        return f"{link[2]} (`{link[3]}`)" if link[2] != link[3] else f"`{link[3]}`"

    return LINK.sub(name, markdown)
