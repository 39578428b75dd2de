"""Test values of schedules, tables in recipes, and the attributes that are set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dml_core import (
    Constant,
    Cosine,
    DmlError,
    InvalidOption,
    Linear,
    Schedules,
    Step,
    schedule_from_table,
)

numbers = st.floats(-1e6, 1e6)


def from_table(**table: object):
    return schedule_from_table(table, num_steps=100, steps_per_epoch=10)


@given(numbers, st.floats(0, 1e6))
def test_a_constant_stays(value, position):
    assert Constant(value)(position) == value


@pytest.mark.parametrize("kind", [Linear, Cosine])
@given(numbers, numbers, st.floats(1e-3, 1e5), st.floats(0, 1e5), st.floats(0, 1))
def test_a_line_or_cosine_starts_and_ends_exactly_and_stays_between(
    kind, start, end, length, begin, fraction
):
    schedule = kind(start, end, length, begin)
    assert schedule(begin) == schedule(begin - 1) == start
    assert schedule(begin + 2 * length) == end
    # Due to rounding, a value can exceed the interval by an ulp of the larger end.
    slack = 1e-9 * max(abs(start), abs(end))
    assert min(start, end) - slack <= schedule(begin + fraction * length) <= max(start, end) + slack


def test_the_middle_of_a_line_and_of_a_cosine_is_the_mean():
    assert Linear(2.0, 4.0, 10)(5) == 3.0
    assert Cosine(2.0, 4.0, 10)(5) == pytest.approx(3.0, rel=1e-15)
    assert Cosine(1.0, 0.0, 4)(1) == pytest.approx((1 + math.cos(math.pi / 4)) / 2, rel=1e-15)


def test_a_milestone_belongs_to_the_value_after_it():
    heating = Step(values=(16.0, 4.0), milestones=(60,))
    assert [heating(p) for p in (0, 59, 59.9, 60, 80)] == [16, 16, 16, 4, 4]


def test_units_are_steps_epochs_or_runs():
    assert from_table(kind="step", values=[1, 2], milestones=[5])(5) == 2
    assert from_table(kind="step", values=[1, 2], milestones=[5], unit="epoch")(49) == 1
    assert from_table(kind="step", values=[1, 2], milestones=[5], unit="epoch")(50) == 2
    assert from_table(kind="step", values=[1, 2], milestones=[0.25], unit="run")(25) == 2


@pytest.mark.parametrize("unit", ["step", "epoch", "run"])
def test_a_length_defaults_to_the_rest_of_the_run(unit):
    schedule = from_table(kind="linear", start=0, end=1, unit=unit)
    assert schedule(50) == 0.5
    assert schedule(100) == 1
    begun = from_table(kind="linear", start=0, end=1, begin=0.5, unit="run")
    assert begun(75) == 0.5


def test_warmup_rises_to_the_schedule_and_never_starts_at_zero():
    schedule = from_table(kind="constant", value=2.0, warmup=4)
    assert [schedule(p) for p in range(6)] == [0.5, 1.0, 1.5, 2.0, 2.0, 2.0]
    # The warm-up is counted in steps, even if the unit is epochs.
    of_epochs = from_table(kind="constant", value=2.0, warmup=4, unit="epoch")
    assert [of_epochs(p) for p in range(6)] == [schedule(p) for p in range(6)]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "schedule kind is ''; kinds: constant"),
        ({"kind": "cosin"}, "did you mean 'cosine'"),
        ({"kind": "linear", "start": 0}, "a linear schedule needs 'end'"),
        ({"kind": "linear", "start": 0, "end": 1, "lenght": 3}, "did you mean 'length'"),
        (
            {"kind": "linear", "start": "0", "end": 1},
            "start of a linear schedule is '0'; expected a number",
        ),
        (
            {"kind": "linear", "start": 0, "end": 1, "length": 0},
            "length is 0; expected a number above 0",
        ),
        ({"kind": "linear", "start": 0, "end": 1, "unit": "epochs"}, "did you mean 'epoch'"),
        ({"kind": "step", "values": [1], "milestones": [3]}, "1 values for 1 milestones"),
        ({"kind": "step", "values": [1, 2, 3], "milestones": [3]}, "3 values for 1 milestones"),
        (
            {"kind": "step", "values": [1, 2, 3], "milestones": [3, 3]},
            "expected increasing numbers",
        ),
        ({"kind": "step", "values": 1, "milestones": [3]}, "expected a list of numbers"),
        ({"kind": "constant", "value": True}, "value of a constant schedule is True"),
        ({"kind": "constant", "value": 1, "warmup": -1}, "warmup of a schedule is -1"),
    ],
)
def test_a_wrong_table_raises(table, message):
    with pytest.raises(InvalidOption) as caught:
        from_table(**table)
    assert message in str(caught.value)


class Loss(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.queue_size, self.name = 16.0, 5, "loss"
        self._own = 3.0
        self.inner = torch.nn.ModuleList([torch.nn.Dropout(0.5)])


def test_schedules_set_attributes_by_path_and_keep_ints_ints():
    loss = Loss()
    schedules = Schedules(
        {
            "loss.alpha": Step((16, 4), (2,)),
            "loss.inner.0.p": Linear(0.5, 0.0, 4),
            "loss.queue_size": Linear(0, 3, 2),
        },
        {"loss": loss},
    )
    assert schedules.apply(0) == {"loss.alpha": 16, "loss.inner.0.p": 0.5, "loss.queue_size": 0}
    assert (loss.alpha, loss.inner[0].p, loss.queue_size) == (16, 0.5, 0)
    assert schedules.apply(1)["loss.queue_size"] == 2  # 1.5 rounds to the even neighbour
    schedules.apply(3)
    assert (loss.alpha, loss.inner[0].p, loss.queue_size) == (4, 0.125, 3)
    assert isinstance(loss.queue_size, int)


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("los.alpha", "did you mean 'loss'"),
        ("loss", "expected ROOT.ATTRIBUTE"),
        ("loss.alhpa", "Loss has no number 'alhpa'; did you mean 'alpha'"),
        ("loss.name", "Loss has no number 'name'"),
        ("loss.training", "Loss has no number 'training'"),
        ("loss._own", "Loss has no number '_own'"),
        ("loss.iner.0.p", "Loss has no 'iner'; did you mean 'inner'"),
    ],
)
def test_a_path_without_a_number_raises_before_the_run(path, message):
    with pytest.raises(DmlError) as caught:
        Schedules({path: Constant(1.0)}, {"loss": Loss()})
    assert message in str(caught.value)


def test_an_int_from_a_schedule_leaves_a_float_attribute_a_float():
    loss = Loss()
    schedules = Schedules({"loss.alpha": Step([1, 0.4], [3])}, {"loss": loss})
    assert schedules.apply(0) == {"loss.alpha": 1.0}
    assert schedules.apply(3) == {"loss.alpha": 0.4}
