"""Where windows of convolutions and pooling go."""

from __future__ import annotations

from typing import Any

import onnx

from nttzoo.codegen.ir import Pair, Shape, sliding
from nttzoo.codegen.reader import called
from nttzoo.errors import ExportError

Pads = tuple[int, int, int, int]  # top, left, bottom, right


def places(node: onnx.NodeProto, *about: Any) -> Pair:
    """The height and width of what a window gives."""
    found = sliding(*about)
    if min(found) < 1:
        raise ExportError(f"{called(node)}: the window is larger than what it looks at.")
    return found


def pads(node: onnx.NodeProto, given: dict[str, Any], size: Shape, window: Pair, strides: Pair, dilations: Pair) -> Any:
    """A node's pads, which it may leave to be computed."""
    auto = given.get("auto_pad", b"NOTSET").decode()
    if auto in ("NOTSET", "VALID"):
        found = given.get("pads", [0, 0, 0, 0]) if auto == "NOTSET" else [0, 0, 0, 0]
        if min(found) < 0:
            raise ExportError(f"{called(node)}: negative pads are not supported.")
        return tuple(found)
    lows, highs = [], []
    for axis in range(2):
        reach = dilations[axis] * (window[axis] - 1) + 1
        total = max((-(-size[axis] // strides[axis]) - 1) * strides[axis] + reach - size[axis], 0)
        low = total // 2 if auto == "SAME_UPPER" else total - total // 2
        lows.append(low)
        highs.append(total - low)
    return (*lows, *highs)
