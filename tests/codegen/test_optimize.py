"""Optimized programs and their addresses, checked by hand."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from onnx_graphs import Graph

from nttzoo import codegen
from nttzoo.codegen import addresses, frontend, lower, optimize

# Optimizing, by hand.


def test_dead_and_constant_units_vanish():
    # x0 -> h0 -> y; h1 = relu(2), a constant, goes into y's bias; h2 reaches nothing; x1 reaches only h2.
    first = np.array([[3, 0, 0], [0, 0, 5]], np.float32)
    graph = Graph((2,))
    graph.add("Gemm", graph.constant(first), graph.constant(np.array([0, 2, 0], np.float32))).add("Relu")
    graph.add("Gemm", graph.constant(np.array([[1], [10], [0]], np.float32)), graph.constant(np.float32([0.5])))
    program = frontend.read(graph.proto())
    needed = optimize.optimize(program, codegen.Choices())
    hidden, answer = program.ops
    assert needed["x"].tolist() == [True, False]
    assert needed[hidden.output].tolist() == [True, False, False]
    assert answer.bias.tolist() == [20.5]
    assert np.count_nonzero(hidden.weight) + np.count_nonzero(answer.weight) == 2
    assert hidden.after == [("relu",)]  # fused


def test_pooling_and_functions_are_fused():
    graph = Graph((1, 8, 8))
    graph.add("Conv", graph.weight(2, 1, 3, 3)).add("Relu").add("MaxPool", kernel_shape=[2, 2], strides=[2, 2])
    graph.add("Transpose", perm=[0, 2, 3, 1]).add("Relu").add("Flatten")
    program = frontend.read(graph.proto())
    optimize.optimize(program, codegen.Choices())
    assert [type(op).__name__ for op in program.ops] == ["Conv", "View"]
    assert program.ops[0].pool is not None
    assert program.ops[0].after == [("relu",), ("relu",)]


def test_the_arena_is_shared():
    graph = Graph((4, 12, 12))
    for _ in range(6):
        graph.add("Conv", graph.weight(4, 4, 3, 3), pads=[1, 1, 1, 1])
    program = frontend.read(graph.proto())
    plan = lower.lower(program, optimize.optimize(program, codegen.Choices()), codegen.Choices())
    assert plan.arena < 0.4 * sum(buffer.size for buffer in plan.buffers.values())
    for a in plan.buffers.values():
        for b in plan.buffers.values():
            if a is not b and a.first <= b.last and b.first <= a.last:
                assert a.offset + a.size <= b.offset or b.offset + b.size <= a.offset


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=30))
def test_runs_are_the_addresses(pairs):
    lists = np.array(pairs, int).reshape(-1, 2).T
    rebuilt = [(a + i * da, b + i * db) for a, da, b, db, n in addresses.find_runs(list(lists)) for i in range(n)]
    assert rebuilt == pairs
