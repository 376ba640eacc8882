"""Files between runs: states of a run, and sparse networks. The only package that uses Orbax."""

from nttzoo.checkpoint.arrays import load_arrays, save_arrays
from nttzoo.checkpoint.networks import abstract_network, load_network, recover_networks, save_network
from nttzoo.checkpoint.packed import layout, pack, unpack
from nttzoo.checkpoint.states import Checkpoints, check_free_space

__all__ = [
    "Checkpoints",
    "abstract_network",
    "check_free_space",
    "layout",
    "load_arrays",
    "load_network",
    "pack",
    "recover_networks",
    "save_arrays",
    "save_network",
    "unpack",
]
