"""Settings: what a section takes, how it refuses, and that pydantic models have them as fields."""

import copy
from typing import Annotated, Literal

import numpy as np
import pydantic
import pytest

from marless.core.settings import CurvatureSpec, Field, InvalidSettingsError, Section, constraint
from marless.core.validation import Strict


class Ramp(Section):
    start: Annotated[float, Field(ge=0)]
    end: Annotated[float, Field(ge=0)] = 0.0

    @constraint
    def _falls(self):
        if self.end > self.start:
            raise ValueError("end is above start")


class Settings(Section):
    lr: Annotated[float, Field(ge=0)] | Ramp = 0.1
    epochs: int | None = Field(None, ge=1)
    units: tuple[Annotated[int, Field(gt=0)], ...] = Field((8,), min_length=1)
    net: Literal["mlp", "gru", "cnn"] = "mlp"
    fast: bool = False


class Longer(Settings):
    epochs: int | None = Field(4, le=9)

    @constraint
    def _is_slow(self):
        if self.fast:
            raise ValueError("fast is for others")


@pytest.mark.parametrize(
    ("given", "held"),
    [
        ({}, {}),
        (
            {"lr": 1, "epochs": 3.0, "units": [4, "5"], "fast": "yes"},
            {"lr": 1.0, "epochs": 3, "units": (4, 5), "fast": True},
        ),
        ({"lr": np.float32(0.5), "epochs": np.int64(3)}, {"lr": 0.5, "epochs": 3}),
        ({"lr": "1e-3", "epochs": None, "net": "gru"}, {"lr": 0.001, "net": "gru"}),
        ({"lr": {"start": 2}}, {"lr": {"start": 2.0, "end": 0.0}}),
    ],
)
def test_what_is_given_is_held_as_the_types_say(given, held):
    made = Settings.model_validate(given)
    everything = {"lr": 0.1, "epochs": None, "units": (8,), "net": "mlp", "fast": False} | held
    assert made.model_dump() == everything
    assert {name: type(value) for name, value in made.model_dump().items()} == {
        name: type(value) for name, value in everything.items()
    }
    assert made == Settings(**given) == Settings.model_validate(made) == copy.deepcopy(made)
    assert hash(made) == hash(Settings(**given)) and Settings.model_validate(made) is made


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"lr": -1}, "lr: got -1; allowed: at least 0.0 or a section with fields"),
        ({"lr": {"start": -1}}, "lr.start: got -1; allowed: at least 0.0"),
        ({"lr": {}}, "lr.start: is missing; it has no default"),
        ({"lr": {"start": 1, "end": 2}}, "lr: end is above start"),
        ({"lr": float("nan")}, "lr: got nan; allowed: a finite number or a section with fields"),
        ({"lr": None}, "lr: is empty; give it a value or leave it out"),
        ({"epochs": 2.5}, "epochs: got 2.5; allowed: a whole number"),
        ({"epochs": True}, "epochs: got True; allowed: a whole number"),
        ({"epochs": 0}, "epochs: got 0; allowed: at least 1"),
        ({"units": []}, "units: got []; allowed: at least 1 of them"),
        ({"units": 8}, "units: got 8; allowed: a list"),
        ({"units": [8, 0, "x"]}, "units.1: got 0; allowed: more than 0\nunits.2: got 'x'; allowed: a whole number"),
        ({"net": "lstm"}, "net: got 'lstm'; allowed: 'mlp', 'gru' or 'cnn'"),
        ({"fast": "maybe"}, "fast: got 'maybe'; allowed: true or false"),
        ({"epoch": 3}, "epoch: unknown field 'epoch'; did you mean 'epochs'? known: epochs, fast, lr, net, units"),
        (
            {"epoch": 3, "unit": 1, "zzz": 1},
            "epoch: unknown field 'epoch'; did you mean 'epochs'? known: epochs, fast, lr, net, units\n"
            "unit: unknown field 'unit'; did you mean 'units'?\nzzz: unknown field 'zzz'",
        ),
    ],
)
def test_what_is_refused_has_a_sentence_that_a_job_file_has_too(given, said):
    with pytest.raises(InvalidSettingsError) as refused:
        Settings(**given)
    assert str(refused.value) == said


def test_a_subclass_has_its_own_bounds_and_all_constraints():
    assert (Longer().epochs, Longer(epochs=0).epochs) == (4, 0)
    with pytest.raises(InvalidSettingsError, match="epochs: got 10; allowed: at most 9"):
        Longer(epochs=10)
    with pytest.raises(InvalidSettingsError, match="fast is for others"):
        Longer().model_copy(update={"fast": True})
    assert Longer().model_copy(update={"epochs": "5"}) == Longer(epochs=5) != Settings(epochs=5)


def test_settings_do_not_change():
    with pytest.raises(AttributeError):
        Settings().lr = 1.0


def test_a_pydantic_model_has_sections_as_fields():
    class Job(Strict):
        settings: Settings = Settings()

    job = Job.model_validate({"settings": {"units": [3]}})
    assert job.settings == Settings(units=(3,)) and Job().settings == Settings()
    assert job.model_dump(mode="json")["settings"]["units"] == [3]
    assert Job.model_validate_json(job.model_dump_json()) == job


def test_what_would_not_be_read_is_refused():
    with pytest.raises(TypeError, match=r"Typical\.lr is pydantic's, which would not be read"):

        class Typical(Section):
            lr: float = pydantic.Field(0.1, ge=0)

    with pytest.raises(TypeError, match=r"Checked\._fits is pydantic's"):

        class Checked(Section):
            @pydantic.model_validator(mode="after")
            def _fits(self):
                return self

    with pytest.raises(TypeError, match=r"Untyped\.fast has no type"):

        class Untyped(Settings):
            fast = True

    class Named(Section):
        lr: pydantic.NonNegativeFloat = 0.1

    with pytest.raises(TypeError, match="no type of a setting"):
        Named()


def test_curvature_is_measured_as_for_the_printed_results_unless_a_job_says_otherwise():
    assert (CurvatureSpec().samples, CurvatureSpec().steps, CurvatureSpec().probes) == (128, 8, 1)
