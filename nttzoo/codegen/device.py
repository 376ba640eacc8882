"""The generated C on a microcontroller: built for a bare-metal Cortex-M4 and run in QEMU.

QEMU runs the same instructions as a real board, but does not model its timing. The program contains a few images,
prints the network's outputs as raw float bits, and exits.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from flax import nnx
from jaxtyping import Float

from nttzoo import codegen, data, export, nn, zoo
from nttzoo.codegen import build
from nttzoo.codegen.source import Source
from nttzoo.errors import ExportError, ShapeError

COMPILER, SIZE, EMULATOR = "arm-none-eabi-gcc", "arm-none-eabi-size", "qemu-system-arm"
TOOLS = (COMPILER, SIZE, EMULATOR)
FLAGS = ("-std=c99", "-O2", "-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard", "-ffreestanding")
BOARD = "mps2-an386"

# The board's code memory starts at 0, its data memory at 0x20000000, 4 MB each.
LINKER = """\
MEMORY { FLASH (rx) : ORIGIN = 0x00000000, LENGTH = 4M  RAM (rwx) : ORIGIN = 0x20000000, LENGTH = 4M }
SECTIONS {
  .text : { KEEP(*(.vectors)) *(.text*) *(.rodata*) } > FLASH
  .bss (NOLOAD) : { *(.bss*) *(COMMON) *(.data*) } > RAM
  /DISCARD/ : { *(.ARM.exidx*) *(.comment) }
}
"""

MAIN = """\
#include <stdint.h>
#include "@NAME@.h"

static const float images[@COUNT@][@UPPER@_INPUTS] = {
@IMAGES@
};
static float arena[@UPPER@_ARENA];
@MEMORY@

/* A semihosting call: handled by the emulator here, by a debugger on a real board. */
static int semihost(int what, const void *about) {
    register int r0 __asm__("r0") = what;
    register const void *r1 __asm__("r1") = about;
    __asm__ volatile("bkpt 0xAB" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static void print_bits(float value) {
    union { float f; uint32_t u; } bits;
    char text[10];
    int i;
    bits.f = value;
    for (i = 0; i < 8; i++) text[i] = "0123456789abcdef"[(bits.u >> (28 - 4 * i)) & 15];
    text[8] = ' ';
    text[9] = 0;
    semihost(4, text);
}

/* Not inlined: `start` must not use the floating-point unit before it is enabled. */
__attribute__((noinline)) static void work(void) {
    int i, k;
@BODY@}

void start(void) {
    *(volatile uint32_t *)0xE000ED88 |= 0xFu << 20; /* enable the floating-point unit */
    __asm__ volatile("dsb\\n isb");
    work();
    semihost(0x18, (const void *)0x20026);
    for (;;) { }
}

__attribute__((section(".vectors"), used)) static void (*const vectors[])(void) = {(void (*)(void))0x20400000, start};
"""


ANSWER = """\
    for (i = 0; i < @COUNT@; i++) {
        @NAME@_run(images[i], output, arena);
        for (k = 0; k < @UPPER@_OUTPUTS; k++) print_bits(output[k]);
        semihost(4, "\\n");
    }
"""

TRAIN = """\
    (void)k;
    @NAME@_init(&state);
    for (i = 0; i < @STEPS@; i++) print_bits(@NAME@_train(&state, arena, images[0], labels, @COUNT@, @RATE@));
"""


@dataclass(frozen=True)
class LearnedOnDevice:
    """The loss before each step on the device, and the memory used in bytes: flash (code and tables) and RAM."""

    losses: Float[np.ndarray, " steps"]
    flash: int
    ram: int


@dataclass(frozen=True)
class OnDevice:
    """Outputs on the device, and the memory used in bytes: flash (code and tables) and RAM."""

    outputs: Float[np.ndarray, "n outputs"]
    flash: int
    ram: int


def check(name: str, *, images: int, dataset: data.Dataset | None = None) -> dict[str, Any]:
    """Runs a network on the device and compares with JAX; returns figures for JSON, raises if the outputs differ.

    `name` is a published network, or the folder of a trained student; `dataset` provides the test images.
    """
    if not 1 <= images <= 1000:
        raise ExportError(f"images is {images}; it must be the number of images to classify, 1 to 1000.")
    which = Path(name) if zoo.is_folder(name) else name
    model: Any = zoo.load(which, weights="trained")
    spec = model.input_spec
    if dataset is not None:
        if tuple(dataset.input_shape) != tuple(spec.shape):
            raise ShapeError(f"{name} takes images of shape {spec.shape}, {dataset.name!r} has {dataset.input_shape}.")
        inputs, what = np.asarray(spec.standardize(dataset.test.images[:images])), f"test images of {dataset.name}"
    elif spec.shape == (28, 28, 1):
        inputs, what = np.asarray(spec.standardize(data.load("mnist5k").test.images[:images])), "embedded digits"
    else:
        what = "random numbers"  # no images of this shape are embedded
        inputs = np.random.default_rng(0).normal(size=(images, *spec.shape)).astype(np.float32)
    source, _ = codegen.to_source(which)
    seen = run(source, inputs)
    oracle = partial(export.outputs_of, model)
    expected = oracle(inputs)
    difference = export.difference(seen.outputs, expected)
    if not export.is_rounding(difference, oracle, [inputs]) or (seen.outputs.argmax(1) != expected.argmax(1)).any():
        raise ExportError(f"{name!r} gives different outputs on the device: by {difference:.1e} of the largest output.")
    dense_source, _ = codegen.to_source(nn.unpruned(model))
    return {
        "name": name,
        "board": f"{BOARD} (Cortex-M4F) in QEMU",
        "images": len(inputs),
        "inputs": what,
        "predictions": [spec.classes[k] for k in seen.outputs.argmax(1)],
        "difference": difference,
        "flash_bytes": seen.flash,
        "ram_bytes": seen.ram,
        "dense": {
            "network": type(model).__name__,
            "flash_bytes": dense_source.table_bytes,
            "ram_bytes": 4 * dense_source.arena,
        },
    }


def missing_tools() -> list[str]:
    """The required programs that are not installed."""
    return [tool for tool in TOOLS if not shutil.which(tool)]


def run(source: Source, inputs: Float[np.ndarray, "n ..."]) -> OnDevice:
    """Builds a network for the microcontroller and runs it on a few inputs."""
    printed, flash = _emulate(source, _main(source, inputs, ANSWER, "static float output[@UPPER@_OUTPUTS];"))
    words = np.array([int(word, 16) for word in printed.split()], np.uint32)
    outputs = words.view(np.float32).reshape(len(inputs), source.outputs)
    return OnDevice(outputs, flash, 4 * source.arena)


def train(
    model: nnx.Module, images: Float[np.ndarray, "n ..."], labels: np.ndarray, *, steps: int, learning_rate: float
) -> LearnedOnDevice:
    """Trains a network on the microcontroller: `steps` steps of Adam on the same few images."""
    from nttzoo.codegen.training import freestanding

    source, state = freestanding.training_source(model, "network")
    numbers = ", ".join(str(int(label)) for label in labels)
    memory = f"static struct {source.name}_state state;\nstatic const uint8_t labels[] = {{{numbers}}};"
    body = TRAIN.replace("@STEPS@", str(steps)).replace("@RATE@", f"{learning_rate:.9e}f")
    printed, flash = _emulate(source, _main(source, np.asarray(images, np.float32), body, memory))
    words = np.array([int(word, 16) for word in printed.split()], np.uint32)
    return LearnedOnDevice(words.view(np.float32), flash, 4 * source.arena + state)


def _emulate(source: Source, program: str) -> tuple[str, int]:
    """(the program's output on the emulated board, bytes of the network's code and tables)."""
    if missing := missing_tools():
        raise ExportError(
            f"{', '.join(missing)} not found. On Debian: apt install gcc-arm-none-eabi libnewlib-arm-none-eabi "
            "qemu-system-arm."
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        build.write(source, folder)
        (folder / "main.c").write_text(program)
        (folder / "board.ld").write_text(LINKER)
        _do([COMPILER, *FLAGS, "-c", f"{source.name}.c", "-o", "network.o"], folder)
        libraries = ["-nostartfiles", "-T", "board.ld", "-lc", "-lm", "-lgcc"]
        _do([COMPILER, *FLAGS, "main.c", "network.o", *libraries, "-o", "program.elf"], folder)
        text, data, _ = _do([SIZE, "network.o"], folder).splitlines()[1].split()[:3]
        emulate = [EMULATOR, "-M", BOARD, "-nographic", "-semihosting-config", "enable=on,target=native"]
        printed = _do([*emulate, "-monitor", "none", "-serial", "none", "-kernel", "program.elf"], folder)
    return printed, int(text) + int(data)


def _main(source: Source, inputs: np.ndarray, body: str, memory: str) -> str:
    """The program around a network: `body` is what it does with its images, `memory` the variables that this needs."""
    rows = [", ".join(f"{float(value):.9e}f" for value in image.ravel()) for image in inputs]
    parts = {"@NAME@": source.name, "@UPPER@": source.name.upper(), "@COUNT@": str(len(inputs))}
    text = (
        MAIN.replace("@BODY@", body)
        .replace("@MEMORY@", memory)
        .replace("@IMAGES@", ",\n".join(f"{{{row}}}" for row in rows))
    )
    for mark, part in parts.items():
        text = text.replace(mark, part)
    return text


def _do(command: list[str], folder: Path) -> str:
    """Runs a command in a folder and returns its output (QEMU prints the board's output to stderr)."""
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    except subprocess.TimeoutExpired as error:
        raise ExportError(f"{command[0]} did not end within {error.timeout:.0f} s.") from error
    if done.returncode:
        raise ExportError(f"{command[0]} failed: {done.stderr.strip()[:300]} ... {done.stderr.strip()[-300:]}")
    return done.stdout or done.stderr
