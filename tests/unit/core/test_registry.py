"""Entry points as each version of Python gives them."""

from importlib.metadata import EntryPoint

from marless.core import registry


class _ByName(tuple[EntryPoint, ...]):
    """What `entry_points` returns from Python 3.12 on: a tuple whose positions are names."""

    def __getitem__(self, name):
        return next(each for each in self if each.name == name)


def test_of_two_packages_with_one_name_the_first_on_the_path_counts(monkeypatch):
    found = _ByName(EntryPoint("warm", f"{module}:KIND", "marless.schedules") for module in ("first", "second"))
    monkeypatch.setattr(registry, "entry_points", lambda group: found)
    assert registry.declared("marless.schedules")["warm"].value == "first:KIND"
    assert registry.declaration("marless.schedules", "cold") is None
