"""Files and folders on disk: written atomically, and verified when they are read.

A folder is written like this:

    with files.new_folder(target) as part:   # an empty folder beside `target`
        ...                                  # write anything below `part`

Leaving the block adds `manifest.json` with the size and SHA-256 of every file, flushes everything to the disk and puts
the folder in place of `target` in one atomic step. If the block raises, or the process is killed at any point, `target`
is what it was before. It is read like this:

    files.recover(target)   # only if `target` itself may be missing after a crash
    files.verify(target)    # raises FileError with the name of the first file that was changed, lost or added

A folder inside a folder may have a manifest of its own (`student/trained`): the outer manifest leaves it out. Folders
of earlier versions have no manifest; `verify` warns once and accepts them, and `seal` adds one.
"""

from nttzoo._util.files.folders import check_folder, check_replaceable, new_folder, private_folder, recover, switch
from nttzoo._util.files.manifests import (
    CURE,
    FORMAT,
    MANIFEST,
    OLD,
    check_listed,
    copied,
    describe,
    is_temporary,
    own_files,
    read_manifest,
    seal,
    verified_copy,
    verify,
    walk,
    warn_of_no_manifest,
)
from nttzoo._util.files.reading import TEXT_LIMIT, check_regular, check_size, parse_json, read_bytes, read_json, sha256
from nttzoo._util.files.writing import PART, flush_folder, to_json, write_bytes, write_file, write_text

__all__ = [
    "CURE",
    "FORMAT",
    "MANIFEST",
    "OLD",
    "PART",
    "TEXT_LIMIT",
    "check_folder",
    "check_listed",
    "check_regular",
    "check_replaceable",
    "check_size",
    "copied",
    "describe",
    "flush_folder",
    "is_temporary",
    "new_folder",
    "own_files",
    "parse_json",
    "private_folder",
    "read_bytes",
    "read_json",
    "read_manifest",
    "recover",
    "seal",
    "sha256",
    "switch",
    "to_json",
    "verified_copy",
    "verify",
    "walk",
    "warn_of_no_manifest",
    "write_bytes",
    "write_file",
    "write_text",
]
