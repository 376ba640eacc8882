"""The windows of convolutions and pooling, and their positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx

from nttzoo.codegen.ir import Pair, Shape, sliding
from nttzoo.codegen.reader import Reader, called
from nttzoo.errors import ExportError

Pads = tuple[int, int, int, int]  # top, left, bottom, right


@dataclass(frozen=True)
class Window:
    """A window over height and width with its strides, pads and dilations."""

    size: Pair
    strides: Pair
    dilations: Pair
    pads: Pads

    def places(self, node: onnx.NodeProto, size: Shape, ceil: bool = False) -> Pair:
        """The height and width of the result; with `ceil`, the last window may extend past the end."""
        found = sliding(size, self.size, self.strides, self.pads, self.dilations)
        if ceil:
            longer = []
            for axis, places in enumerate(found):
                reach = self.dilations[axis] * (self.size[axis] - 1) + 1
                rest = (size[axis] + self.pads[axis] + self.pads[axis + 2] - reach) % self.strides[axis]
                # One more, if it starts before the end of the input.
                more = rest > 0 and places * self.strides[axis] < size[axis] + self.pads[axis]
                longer.append(places + int(more))
            found = longer[0], longer[1]
        if min(found) < 1:
            raise ExportError(f"{called(node)}: the window is larger than its input.")
        return found


def planes(reader: Reader, node: onnx.NodeProto) -> tuple[str, int]:
    """(a value [c, h, w], how many axes it had besides the channels): a line is a plane of height 1."""
    shape = reader.shape(node)
    name = reader.value(node)
    if len(shape) == 2:
        return reader.view(node, name, lambda value: value[:, None, :]), 1
    if len(shape) != 3:
        raise ExportError(f"{called(node)}: only one or two axes besides the channels are supported.")
    return name, 2


def window(node: onnx.NodeProto, given: dict[str, Any], size: Shape, kernel: Shape, axes: int) -> Window:
    """A node's window over planes of some size."""

    def pair(key: str) -> Pair:
        values = list(given.get(key, [1] * axes))
        if len(values) != axes or min(values) < 1:
            raise ExportError(f"{called(node)}: {key} {values} are not {axes} positive numbers.")
        values = [1] * (2 - axes) + values
        return values[0], values[1]

    strides, dilations = pair("strides"), pair("dilations")
    kernel = (1,) * (2 - axes) + tuple(kernel)
    reach = [dilations[axis] * (kernel[axis] - 1) + 1 for axis in range(2)]
    auto = given.get("auto_pad", b"NOTSET").decode()
    pads = [0, 0, 0, 0]
    if auto == "NOTSET":
        own = list(given.get("pads", [0] * 2 * axes))
        if len(own) != 2 * axes:
            raise ExportError(f"{called(node)}: pads {own} are not {2 * axes} numbers.")
        pads = own if axes == 2 else [0, own[0], 0, own[1]]
        if min(pads) < 0:
            raise ExportError(f"{called(node)}: negative pads are not supported.")
    elif auto in ("SAME_UPPER", "SAME_LOWER"):
        for axis in range(2):
            total = max((-(-size[axis] // strides[axis]) - 1) * strides[axis] + reach[axis] - size[axis], 0)
            low = total // 2 if auto == "SAME_UPPER" else total - total // 2
            pads[axis], pads[axis + 2] = low, total - low
    elif auto != "VALID":
        raise ExportError(f"{called(node)}: auto_pad {auto!r} is not supported.")
    return Window((kernel[0], kernel[1]), strides, dilations, (pads[0], pads[1], pads[2], pads[3]))


def back(reader: Reader, node: onnx.NodeProto, name: str, axes: int) -> None:
    """Restores the axes of a node's result [c, h, w]."""
    shape = reader.shapes[name]
    target = shape if axes == 2 else (shape[0], shape[2])
    reader.view(node, name, lambda value: value.reshape(target), node.output[0])
