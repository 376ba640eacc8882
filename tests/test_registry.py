import pytest

from nttzoo import errors
from nttzoo.errors import NttzooError, UnknownName
from nttzoo.registry import Registry


@pytest.fixture
def fruit():
    registry = Registry("fruit")
    registry.register("apple")(1)
    registry.register("apricot")(2)
    registry.register("melon")(3)
    return registry


def test_a_registry_is_a_mapping(fruit):
    assert dict(fruit) == {"apple": 1, "apricot": 2, "melon": 3}
    assert (len(fruit), "apple" in fruit, "pear" in fruit, 7 in fruit, [] in fruit) == (3, True, False, False, False)
    assert fruit.get("pear") is None


def test_register_hands_the_object_back(fruit):
    @fruit.register("fig")
    class Fig: ...

    assert fruit["fig"] is Fig
    assert isinstance(Fig, type)


def test_a_name_can_be_taken_once(fruit):
    with pytest.raises(ValueError, match="fruit 'apple' is registered already"):
        fruit.register("apple")(9)
    assert fruit["apple"] == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aple", "no fruit 'aple'. Did you mean 'apple'? Known: apple, apricot, melon."),
        ("xyz", "no fruit 'xyz'. Known: apple, apricot, melon."),
        (7, "no fruit 7. Known: apple, apricot, melon."),
        (["apple"], "no fruit ['apple']. Did you mean 'apple'? Known: apple, apricot, melon."),
    ],
)
def test_an_unknown_name_lists_the_near_misses(fruit, name, message):
    with pytest.raises(UnknownName) as caught:
        fruit[name]
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        ("UnknownName", KeyError),
        ("DensityError", ValueError),
        ("ShapeError", ValueError),
        ("DataError", ValueError),
        ("ModelError", ValueError),
        ("OptionError", ValueError),
        ("TrainingError", ArithmeticError),
    ],
)
def test_each_error_is_of_the_family_and_of_a_builtin_kind(error, builtin):
    assert issubclass(getattr(errors, error), NttzooError)
    assert issubclass(getattr(errors, error), builtin)
