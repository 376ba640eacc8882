"""Files with a flipped bit, cut short or overwritten: refused by an error of ours, or read as they were written."""

from __future__ import annotations

import random
import shutil
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.soak.writers import KINDS
from nttzoo.errors import NttzooError

KINDS_WITH_HASHES = ("network", "zoo", "state", "training")  # results are plain JSON


def damage(kind: str, folder: Path, count: int, rng: random.Random) -> dict[str, int]:
    """Damages one file of what a writer writes, so many times, and reads it.

    It counts as refused too if an earlier whole state of a run is taken instead, or none.
    """
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "whole").mkdir(parents=True)
    for number in (1, 2):
        KINDS[kind].write(folder / "whole", number)
    written: Any = KINDS[kind].read(folder / "whole")
    seen: Counter[str] = Counter(tried=0, refused=0, same=0, wrong=0)
    for _ in range(count):
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(folder / "whole", folder / "copy")
        files = [path for path in sorted((folder / "copy").rglob("*")) if path.is_file() and path.suffix != ".lock"]
        how = _damage_file(rng.choice(files), rng)
        seen["tried"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = KINDS[kind].read(folder / "copy")
        except (NttzooError, UserWarning):
            seen["refused"] += 1
        except Exception as error:
            print(f"{kind}, {how}: {error!r}", file=sys.stderr)
            seen["wrong"] += 1
        else:
            earlier = found is None or (kind == "state" and found < written)
            seen["same" if found == written else "refused" if earlier else "wrong"] += 1
    return dict(seen)


def _damage_file(path: Path, rng: random.Random) -> str:
    content = bytearray(path.read_bytes())
    how = rng.choice(["flip", "flip", "flip", "cut", "overwrite", "delete", "grow"])
    if how == "delete":
        path.unlink()
        return f"{how} {path.name}"
    if how == "flip" and content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
    elif how == "cut":
        del content[rng.randrange(len(content) + 1) :]
    elif how == "overwrite" and content:
        place = rng.randrange(len(content))
        content[place : place + 16] = rng.randbytes(16)
    else:
        content += rng.randbytes(8)
    path.write_bytes(content)
    return f"{how} {path.name}"
