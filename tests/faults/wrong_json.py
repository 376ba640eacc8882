"""Copies of a JSON value with one thing wrong each."""

WRONG = (None, [], {}, "x", "x\n", -1, 2**63, 1e300, True, "../../x", [[]])


def mutations(value):
    """Another type or an impossible value at every key, and every key left out; of lists, the first item."""
    for wrong in WRONG:
        if type(wrong) is not type(value) or wrong != value:
            yield wrong
    if isinstance(value, dict):
        for key in value:
            yield {k: v for k, v in value.items() if k != key}
            for wrong in mutations(value[key]):
                yield {**value, key: wrong}
    elif isinstance(value, list) and value:
        yield value[:-1]
        for wrong in mutations(value[0]):
            yield [wrong, *value[1:]]


def nested(depth):
    """JSON text of lists in lists."""
    return "[" * depth + "]" * depth
