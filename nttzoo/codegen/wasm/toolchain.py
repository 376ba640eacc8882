"""C to WebAssembly: clang with wasm-ld, or zig from PyPI."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from nttzoo.errors import ExportError

# -ffp-contract: WebAssembly has no fused multiply-add, so nothing may depend on one.
FLAGS = ("-std=c11", "-O3", "-msimd128", "-mbulk-memory", "-ffreestanding", "-fno-math-errno", "-ffp-contract=off")
LINK = ("-nostdlib", "-Wl,--no-entry", "-Wl,--strip-all", "-Wl,-z,stack-size=65536")
PACKAGE = "ziglang"
HELP = (
    "no compiler for WebAssembly was found. Two ways to get one: (1) install clang and wasm-ld (Debian: `apt install "
    "clang lld`); (2) `pip install nttzoo[wasm]`, which brings zig from PyPI (`ziglang`)."
)


@cache
def find() -> tuple[str, ...]:
    """The command of a C compiler that makes WebAssembly modules.

    Raises:
      ExportError: if there is neither clang with wasm-ld nor zig.
    """
    for clang in ("clang", *_versioned()):
        if not shutil.which(clang):
            continue
        suffix = clang.removeprefix("clang")
        linker = next((name for name in (f"wasm-ld{suffix}", "wasm-ld") if shutil.which(name)), None)
        if linker:
            return clang, "--target=wasm32", f"-fuse-ld={shutil.which(linker)}"
    if importlib.util.find_spec(PACKAGE):
        return sys.executable, "-m", PACKAGE, "cc", "--target=wasm32-freestanding"
    raise ExportError(HELP)


def _versioned() -> list[str]:
    """clang-19 and the like, the newest first: distributions install them beside or instead of clang."""
    folders = (shutil.which(f"clang-{version}") and version for version in range(40, 10, -1))
    return [f"clang-{version}" for version in folders if version]


def build(texts: Mapping[str, str]) -> bytes:
    """Compiles {file name: text} to one WebAssembly module; files that end in .h are for including."""
    command = find()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for file, text in texts.items():
            (folder / file).write_text(text)
        sources = [file for file in texts if file.endswith(".c")]
        asked = [*command, *FLAGS, *LINK, "-I.", *sources, "-o", "module.wasm"]
        done = subprocess.run(asked, cwd=folder, capture_output=True, text=True, check=False)
        if done.returncode or not (folder / "module.wasm").exists():
            raise ExportError(f"{command[0]} cannot build the WebAssembly module: {done.stderr.strip()[-800:]}")
        return (folder / "module.wasm").read_bytes()


def with_section(module: bytes, name: str, content: bytes) -> bytes:
    """A module with a custom section at its end, which hosts can read and engines ignore."""
    named = _counted(name.encode()) + content
    return module + b"\0" + _counted(named)


def _counted(content: bytes) -> bytes:
    """Bytes, preceded by their number in LEB128."""
    count, number = len(content), b""
    while count >= 128:
        number += bytes([count % 128 + 128])
        count //= 128
    return number + bytes([count]) + content
