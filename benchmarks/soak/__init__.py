"""Real kills, random damage and a long search: counts how often what was read afterwards was wrong.

Unlike tests/faults, which interrupt single file-system events, this kills processes with SIGKILL at random moments. A
run lasts as long as it is given, and its figures are added to those of earlier runs.
"""

from benchmarks.soak.report import write_report as write_report
from benchmarks.soak.run import run as run
from benchmarks.soak.run import watch_search as watch_search
