"""Lowers a program to an execution plan: an address for every element, and steps in order.

A value is an array of addresses into a buffer, so transposing and reshaping are free. The planes of a convolution keep
the row length of its input: an output plane is then one long sum of shifted input planes, for any window. The surplus
columns at the end of each row are never read.
"""

from __future__ import annotations

import numpy as np

from nttzoo.codegen.addresses import find_runs, plane_addresses, pooling_of, row_length, tile_rows
from nttzoo.codegen.choices import Choices
from nttzoo.codegen.ir import (
    Binary,
    Conv,
    GroupNorm,
    Join,
    Linear,
    Map,
    Op,
    Pool,
    Product,
    Program,
    Softmax,
    View,
    conv_planes,
)
from nttzoo.codegen.plan import (
    INPUT,
    OUTPUT,
    SLACK,
    Buffer,
    DenseLinearStep,
    ElementwiseStep,
    FillStep,
    GroupNormStep,
    MatmulStep,
    Plan,
    PoolStep,
    SoftmaxStep,
    SparseConvStep,
    SparseLinearStep,
    Step,
    Tensor,
    place,
)


def lower(program: Program, needed: dict[str, np.ndarray], choices: Choices) -> Plan:
    """The plan of an optimized program; `needed` says which elements of each value matter."""
    return _Lowering(program, needed, choices).plan()


class _Lowering:
    def __init__(self, program: Program, needed: dict[str, np.ndarray], choices: Choices):
        self.choices = choices
        self.program = program
        self.needed = needed
        self.steps: list[Step] = []
        self.buffers: dict[str, Buffer] = {}
        shape = program.shapes[program.source]
        self.tensors = {program.source: Tensor(INPUT, np.arange(int(np.prod(shape))).reshape(shape))}

    def plan(self) -> Plan:
        for op in self.program.ops:
            self.tensors[op.output] = self.lower(op)
        target = self.tensors[self.program.target]
        size = target.address.size
        runs = find_runs([target.address.ravel(), np.arange(size)])
        self.steps.append(ElementwiseStep("finish", [target.buffer], OUTPUT, [], runs, False))
        return Plan(self.steps, self.buffers, self.place())

    def lower(self, op: Op) -> Tensor:
        sources = [self.tensors[name] for name in op.inputs]
        if isinstance(op, View):
            return Tensor(sources[0].buffer, op.move(sources[0].address))
        if isinstance(op, Conv):
            return self.conv(op, sources[0])
        if isinstance(op, Linear):
            return self.linear(op, sources[0])
        if isinstance(op, Pool):
            return self.pool(op, sources[0])
        if isinstance(op, Softmax):
            return self.softmax(op, sources[0])
        if isinstance(op, GroupNorm):
            return self.group_norm(op, sources[0])
        if isinstance(op, Join):
            return self.join(op, sources)
        if isinstance(op, Product):
            return self.product(op, sources)
        assert isinstance(op, Map | Binary)
        return self.map(op, sources)

    def new_buffer(self, name: str, size: int) -> str:
        while name in self.buffers:
            name += "_"
        self.buffers[name] = Buffer(size + SLACK)
        return name

    def kept(self, value: str) -> np.ndarray:
        """The channels of a value [c, h, w] that are needed."""
        return np.flatnonzero(self.needed[value].any((1, 2)))

    # Convolutions and pooling.

    def conv(self, op: Conv, source: Tensor) -> Tensor:
        size = self.program.shapes[op.inputs[0]]
        place, starts, row = self.planes_for(op, source, size)
        height, width = conv_planes(op, size)
        kept = self.kept(op.output)
        per_group, outputs_per_group = op.weight.shape[1], len(op.weight) // op.groups
        planes = []
        for o in kept:
            c, i, j = np.nonzero(op.weight[o])
            channel = o // outputs_per_group * per_group + c
            dy, dx = i * op.dilations[0], j * op.dilations[1]
            (sy, sx) = op.strides
            offsets = starts[channel, dy % sy, dx % sx] + dy // sy * row + dx // sx
            order = np.argsort(offsets, kind="stable")
            planes.append((float(op.bias[o]), offsets[order], op.weight[o][c, i, j][order]))
        # Vector stores past the end of a tile must not reach the next plane, whose first tile is complete.
        out, out_row, stride = (height, width), row, height * row + SLACK
        pooling, scratch = None, None
        if op.pool:
            pooling = pooling_of(op.pool, (height, width), row, self.program.shapes[op.output][1:])
            out, out_row, stride = pooling.out, pooling.out[1], pooling.out[0] * pooling.out[1]
        work = sum(len(offsets) for _, offsets, _ in planes) / max(len(planes), 1)
        tile = height
        if self.choices.tile:
            tile = tile_rows((height, width), row, self.buffers[place].size, work, pooling)
        if pooling:
            scratch = self.new_buffer(f"{op.name}.plane", tile * row)
        buffer = self.new_buffer(op.output, len(kept) * stride)
        step = SparseConvStep(
            op.name, [place], buffer, op.after, planes, (height, width), row, tile, stride, pooling, scratch=scratch
        )
        self.steps.append(step)
        return Tensor(buffer, plane_addresses(len(op.weight), kept, stride, out_row, out))

    def planes_for(self, op: Conv, source: Tensor, size: tuple[int, ...]) -> tuple[str, np.ndarray, int]:
        """(buffer, start of the plane of each channel and stride phase [c, sy, sx], row length).

        This is the source itself if it has whole planes in the arena; otherwise a padded copy, in which the rows and
        columns that a strided window visits are adjacent.
        """
        if not any(op.pads) and op.strides == (1, 1) and source.buffer != INPUT:
            row = row_length(source.address)
            if row is not None:
                return source.buffer, source.address[:, :1, :1], row
        (sy, sx), (top, left, bottom, right) = op.strides, op.pads
        channels, height, width = size
        rows, row = -(-(height + top + bottom) // sy), -(-(width + left + right) // sx)
        used = np.flatnonzero(op.weight.reshape(op.groups, -1, *op.weight.shape[1:]).any((1, 3, 4)))
        position = np.full(channels, -1)
        position[used] = np.arange(len(used))
        c, phase_y, phase_x = np.meshgrid(position, np.arange(sy), np.arange(sx), indexing="ij")
        starts = ((c * sy + phase_y) * sx + phase_x) * rows * row
        y, x = np.arange(height) + top, np.arange(width) + left
        target = starts[:, y % sy][:, :, x % sx] + (y // sy * row)[:, None] + x // sx
        buffer = self.new_buffer(f"{op.inputs[0]}.planes", len(used) * sy * sx * rows * row)
        runs = find_runs([source.address[used].ravel(), target[used].ravel()])
        self.steps.append(ElementwiseStep(f"{op.name}.planes", [source.buffer], buffer, [], runs, any(op.pads)))
        return buffer, starts, row

    def pool(self, op: Pool, source: Tensor) -> Tensor:
        row = row_length(source.address)
        address, buffer = source.address, source.buffer
        channels, height, width = address.shape
        kept = self.kept(op.output)
        if row is None:
            row = width
            buffer = self.new_buffer(f"{op.inputs[0]}.planes", len(kept) * height * width)
            planes = plane_addresses(channels, kept, height * width, width, (height, width))
            runs = find_runs([address[kept].ravel(), planes[kept].ravel()])
            self.steps.append(ElementwiseStep(f"{op.name}.planes", [source.buffer], buffer, [], runs, False))
            address = planes
        pooling = pooling_of(op, (height, width), row, self.program.shapes[op.output][1:])
        stride = pooling.out[0] * pooling.out[1]
        out = self.new_buffer(op.output, len(kept) * stride)
        self.steps.append(PoolStep(op.name, [buffer], out, op.after, address[kept, 0, 0], pooling))
        return Tensor(out, plane_addresses(channels, kept, stride, pooling.out[1], pooling.out))

    # Everything else.

    def linear(self, op: Linear, source: Tensor) -> Tensor:
        kept = np.flatnonzero(self.needed[op.output])
        used = np.flatnonzero(op.weight[:, kept].any(1))
        weight, addresses = op.weight[np.ix_(used, kept)], source.address[used]
        buffer = self.new_buffer(op.output, len(kept))
        step: Step
        if weight.size and np.count_nonzero(weight) > weight.size / 2:
            step = DenseLinearStep(op.name, [source.buffer], buffer, op.after, addresses, weight, op.bias[kept])
        else:
            units = [
                (float(op.bias[unit]), addresses[column != 0], column[column != 0])
                for unit, column in zip(kept, weight.T, strict=True)
            ]
            step = SparseLinearStep(op.name, [source.buffer], buffer, op.after, units)
        self.steps.append(step)
        address = np.full(len(op.bias), -1)
        address[kept] = np.arange(len(kept))
        return Tensor(buffer, address)

    def map(self, op: Map | Binary, sources: list[Tensor]) -> Tensor:
        places = np.flatnonzero(self.needed[op.output])
        # The order of the first input's memory gives the fewest runs.
        places = places[np.argsort(sources[0].address.ravel()[places], kind="stable")]
        address = np.full(self.needed[op.output].size, -1)
        address[places] = np.arange(len(places))
        buffer = self.new_buffer(op.output, len(places))
        runs = find_runs([*(source.address.ravel()[places] for source in sources), address[places]])
        step = ElementwiseStep(op.name, [source.buffer for source in sources], buffer, op.after, runs, False)
        if isinstance(op, Binary):
            step.kind = op.kind
        else:
            if (op.scale != 1).any():
                step.scale = op.scale.ravel()[places]
            if (op.shift != 0).any():
                step.shift = op.shift.ravel()[places]
        self.steps.append(step)
        return Tensor(buffer, address.reshape(self.needed[op.output].shape))

    def join(self, op: Join, sources: list[Tensor]) -> Tensor:
        shape = self.needed[op.output].shape
        needed = self.needed[op.output].ravel()
        address = np.full(needed.size, -1)
        address[needed] = np.arange(np.count_nonzero(needed))
        buffer = self.new_buffer(op.output, int(np.count_nonzero(needed)))
        constant = needed.copy()
        for filled in op.places:
            constant[filled] = False
        if constant.any():
            values = op.fill.ravel()[constant]
            self.steps.append(FillStep(f"{op.name}.constants", [], buffer, [], address[constant], values))
        for source, filled in zip(sources, op.places, strict=True):
            wanted = needed[filled]
            runs = find_runs([source.address.ravel()[wanted], address[filled[wanted]]])
            self.steps.append(ElementwiseStep(op.name, [source.buffer], buffer, [], runs, False))
        return Tensor(buffer, address.reshape(shape))

    def ordered(self, op: Op, source: Tensor) -> str:
        """The buffer of a value in C order, copied if necessary."""
        size = source.address.size
        runs = find_runs([source.address.ravel(), np.arange(size)])
        if source.buffer != INPUT and np.array_equal(runs, [[0, 1, 0, 1, size]]):
            return source.buffer
        place = self.new_buffer(f"{op.output}.ordered", size)
        self.steps.append(ElementwiseStep(f"{op.name}.ordered", [source.buffer], place, [], runs, False))
        return place

    def product(self, op: Product, sources: list[Tensor]) -> Tensor:
        (count, m, k), n = sources[0].address.shape, sources[1].address.shape[-1]
        address = np.arange(count * m * n).reshape(count, m, n)
        if not self.needed[op.output].any():
            return Tensor(sources[0].buffer, np.full(address.shape, -1))
        reads = [self.ordered(op, source) for source in sources]
        buffer = self.new_buffer(op.output, address.size)
        self.steps.append(MatmulStep(op.name, reads, buffer, op.after, count, m, k, n))
        return Tensor(buffer, address)

    def softmax(self, op: Softmax, source: Tensor) -> Tensor:
        shape = self.program.shapes[op.output]
        address = np.arange(int(np.prod(shape))).reshape(shape)
        lines = [np.moveaxis(value, op.axis, -1).reshape(-1, shape[op.axis]) for value in (source.address, address)]
        keep = (lines[0] >= 0).all(1)
        buffer = self.new_buffer(op.output, address.size)
        # A line whose addresses have no constant step is copied into order first.
        if any(len(find_runs([line])) > 1 for line in lines[0][keep]):
            ordered = self.new_buffer(f"{op.output}.lines", address.size)
            runs = find_runs([lines[0][keep].ravel(), lines[1][keep].ravel()])
            self.steps.append(ElementwiseStep(f"{op.name}.lines", [source.buffer], ordered, [], runs, False))
            source, lines = Tensor(ordered, address), [lines[1], lines[1]]
        pairs = zip(lines[0][keep], lines[1][keep], strict=True)
        runs = np.array([find_runs([line, out])[0] for line, out in pairs], int).reshape(-1, 5)
        self.steps.append(SoftmaxStep(op.name, [source.buffer], buffer, op.after, runs, op.log))
        return Tensor(buffer, address)

    def group_norm(self, op: GroupNorm, source: Tensor) -> Tensor:
        address = np.arange(source.address.size).reshape(source.address.shape)
        if not self.needed[op.output].any():
            return Tensor(source.buffer, np.full(address.shape, -1))
        place = self.ordered(op, source)
        buffer = self.new_buffer(op.output, address.size)
        size = address.size // len(op.scale)
        self.steps.append(
            GroupNormStep(op.name, [place], buffer, op.after, op.groups, op.epsilon, op.scale, op.bias, size)
        )
        return Tensor(buffer, address)

    # The arena.

    def place(self) -> int:
        """Computes each buffer's lifetime and offset; returns the arena's size."""
        for index, step in enumerate(self.steps):
            for name in [*step.reads, step.writes, *([step.scratch] if step.scratch else [])]:
                if name in self.buffers:
                    buffer = self.buffers[name]
                    buffer.first, buffer.last = min(buffer.first, index), max(buffer.last, index)
        return place(list(self.buffers.values()))
