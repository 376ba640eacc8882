"""Neural Tangent Transfer: sparse networks that start and train like a dense one, found without labels."""

from nttzoo._util.hosts import is_first
from nttzoo.errors import Interrupted
from nttzoo.search.config import SearchConfig, Target
from nttzoo.search.devices import start_distributed
from nttzoo.search.loop import Found, Student, transfer
from nttzoo.search.run_folder import Journal
from nttzoo.search.runner import Summary, dry_run, load_student, run, save_student, student_folder

__all__ = [
    "Found",
    "Interrupted",
    "Journal",
    "SearchConfig",
    "Student",
    "Summary",
    "Target",
    "dry_run",
    "is_first",
    "load_student",
    "run",
    "save_student",
    "student_folder",
    "start_distributed",
    "transfer",
]
