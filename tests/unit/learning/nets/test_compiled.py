"""Compiled kernels: for all shapes the results of NumPy and torch, up to rounding; and what happens without them."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from marless.core.compiling import COMPILED, NUMPY, VARIABLE
from marless.core.errors import SpecError
from marless.learning.algos.ppo import losses
from marless.learning.nets import adam, compiled, heads, kernels
from marless.learning.nets.gru import StackedGRU
from marless.learning.nets.kernels import Then
from marless.learning.nets.layout import GRULayout, Layout, generator
from marless.learning.nets.stacked import StackedMLP

needs_compiler = pytest.mark.skipif(compiled.library() is None, reason=compiled.described())
STACK = 3


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache directory of its own, and nothing chosen yet; yields the directory of the libraries."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    compiled._chosen.cache_clear()
    yield tmp_path / "marless" / "kernels"
    compiled._chosen.cache_clear()


def _both(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv(VARIABLE, choice)
    compiled._chosen.cache_clear()


@pytest.fixture
def numpy_only(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Kernels of NumPy and torch."""
    _both(monkeypatch, NUMPY)
    yield
    compiled._chosen.cache_clear()


@needs_compiler
@pytest.mark.parametrize("columns", [16, 63, 64, 65, 200])
@pytest.mark.parametrize("depth", [1, 5, 70, 1030])
@pytest.mark.parametrize("rows", [16, 17, 21, 70])
def test_products(rows: int, depth: int, columns: int) -> None:
    a, b = _random(STACK, rows, depth), _random(STACK, depth, columns, seed=1)
    out, expected = torch.full((STACK, rows, columns), torch.nan), (a.double() @ b.double()).float()
    turned_a, turned_b = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in (a, b))
    for left in (a, turned_a):
        for right in (b, turned_b, b[:1].expand(STACK, -1, -1)):
            assert kernels.fused_matmul(left, right, out)
            wanted = expected if right.stride(0) else (a.double() @ b[:1].double()).float()
            torch.testing.assert_close(out, wanted, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize(
    ("then", "expected"),
    [
        (Then.TANH, lambda x, y: x.tanh()),
        (Then.RELU, lambda x, y: x.relu()),
        (Then.TANH_SLOPE, lambda x, y: x * (1 - y * y)),
        (Then.RELU_SLOPE, lambda x, y: x * (y > 0)),
    ],
)
def test_what_follows_a_product(then: Then, expected: object) -> None:
    assert callable(expected)
    a, b, y = _random(STACK, 18, 40), 3 * _random(STACK, 40, 77, seed=1), _random(STACK, 19, 77, seed=2)[:, :-1]
    out = torch.empty(STACK, 19, 77)[:, :-1]
    assert kernels.fused_matmul(a, b, out, then, y)
    torch.testing.assert_close(out, expected(a @ b, y), rtol=1e-5, atol=2e-5)


@needs_compiler
def test_tanh_is_accurate_everywhere() -> None:
    x = torch.cat([torch.linspace(-12, 12, 50_000), torch.logspace(-30, 0, 5000), torch.tensor([0.0, 1e30, -1e30])])
    out = torch.empty(1, 16, len(x))
    assert kernels.fused_matmul(torch.ones(1, 16, 1), x.view(1, 1, -1), out, Then.TANH)
    exact = x.double().tanh()
    assert ((out[0, 0].double() - exact).abs() <= 8e-7 * exact.abs()).all()
    assert (out[0] == out[0, 0]).all()


@needs_compiler
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize(
    "layout", [Layout(18, (64, 64), 5), Layout(18, (64, 64), 1), Layout(3, (7, 100, 20), 30), Layout(150, (9,), 70)]
)
@pytest.mark.parametrize("samples", [1, 63, 64, 65, 1000])
def test_passes_of_perceptrons(monkeypatch: pytest.MonkeyPatch, layout: Layout, activation: str, samples: int) -> None:
    flat_PD = torch.from_numpy(np.stack([layout.initial(generator(i, "net"), 1.0) for i in range(STACK)]))
    wide = _random(STACK, layout.inputs + 4, samples + 5)
    x = wide[:, 2 : layout.inputs + 3, 3 : samples + 3]  # part of a larger array, as minibatches are
    x[:, -1] = 1.0
    d_output, rows = _random(STACK, layout.outputs, samples, seed=1), torch.tensor([[0], [2], [1]])
    found: list[tuple[Tensor, ...]] = []
    for choice in (COMPILED, NUMPY):
        _both(monkeypatch, choice)
        net = StackedMLP(layout, flat_PD, activation)
        assert bool(net._fused) == (choice == COMPILED)
        net.forward(_random(STACK, layout.inputs + 1, samples, seed=3))  # leaves other values behind
        output = net.forward(x).clone()
        net.backward(d_output)
        gradient = net.gradient_PD.clone()
        net.forward(x)
        found.append((output, gradient, net.input_gradient(d_output, rows), net.evaluate(x)))
        torch.testing.assert_close(net.gradient_PD, gradient, rtol=0, atol=0)
    compiled._chosen.cache_clear()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * float(theirs.abs().max()))
    assert torch.equal(found[0][0], found[0][3])


@needs_compiler
@pytest.mark.parametrize("remembering", [False, True])
@pytest.mark.parametrize(("steps", "copies"), [(1, 5), (7, 3), (4, 64), (3, 83)])
def test_passes_of_recurrent_nets(monkeypatch: pytest.MonkeyPatch, steps: int, copies: int, remembering: bool) -> None:
    layout = GRULayout(6, (20, 21), 4)
    flat_PD = torch.from_numpy(np.stack([layout.initial(generator(i, "net"), 1.0) for i in range(STACK)]))
    x, d_output = _random(STACK, 7, steps * copies), _random(STACK, 4, steps * copies, seed=1)
    resets = _random(STACK, steps, copies, seed=2) > 1 if remembering else _random(steps, copies, seed=2) > 1
    memory = _random(STACK, 21, copies, seed=3) if remembering else None
    found: list[tuple[Tensor, ...]] = []
    for choice in (COMPILED, NUMPY):
        _both(monkeypatch, choice)
        net = StackedGRU(layout, flat_PD, "tanh")
        net.forward(-x, resets)  # leaves other values behind
        output = net.forward(x, resets, memory).clone()
        net.backward(d_output)
        found.append((output, net.gradient_PD))
    compiled._chosen.cache_clear()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_nan_is_passed_on(activation: str) -> None:
    layout = Layout(5, (20, 20), 3)
    net = StackedMLP(layout, torch.from_numpy(layout.initial(generator(0, "net"), 1.0))[None], activation)
    x = _random(1, 6, 100)
    x[0, 2, 70] = torch.nan
    assert net.forward(x).isnan().sum().item() == 3
    head = heads.Categorical()
    log_prob, entropy = head.evaluate(net.forward(x), torch.zeros(1, 1, 100, dtype=torch.int64), None)
    assert log_prob.isnan().nonzero().tolist() == entropy.isnan().nonzero().tolist() == [[0, 70]]


@needs_compiler
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("samples", [1, 50, 64, 1000])
def test_categorical_distributions(monkeypatch: pytest.MonkeyPatch, samples: int, masked: bool) -> None:
    logit, action = 4 * _random(STACK, 7, samples + 3)[:, :5, :samples], torch.arange(STACK * samples) % 5
    legal = _random(STACK, 5, samples, seed=1) > -0.5 if masked else None
    if legal is not None:
        legal.scatter_(1, action.view(STACK, 1, samples), True)
    found = []
    for choice in (COMPILED, NUMPY):
        _both(monkeypatch, choice)
        head = heads.Categorical()
        log_prob, entropy = head.evaluate(logit, action.view(STACK, 1, samples), legal)
        values = log_prob.clone(), entropy.clone()
        found.append((*values, head.gradient(*_random(2, STACK, samples, seed=2).unbind(0))))
    compiled._chosen.cache_clear()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@needs_compiler
@pytest.mark.parametrize("samples", [1, 50, 64, 1000])
def test_normal_distributions(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    # parts of larger arrays, as minibatches and the last columns of parameters are
    mean, action = _random(2, STACK, 9, samples + 3)[:, :, :4, :samples].unbind(0)
    flat, gradient = 0.5 * _random(STACK, 20), torch.zeros(STACK, 20)
    found = []
    for choice in (COMPILED, NUMPY):
        _both(monkeypatch, choice)
        head = heads.Gaussian(flat[:, -4:], gradient[:, -4:])
        values = head.evaluate(mean, action, None)
        d_mean = head.gradient(*_random(2, STACK, samples, seed=2).unbind(0))
        assert gradient[:, -4:].all()
        found.append((*values, d_mean, gradient.clone()))
        gradient.zero_()
    compiled._chosen.cache_clear()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@needs_compiler
@pytest.mark.parametrize("samples", [1, 50, 64, 1000])
def test_slopes_of_the_clipped_surrogate(monkeypatch: pytest.MonkeyPatch, samples: int) -> None:
    log_prob, old, advantage, weight = (0.3 * _random(4, STACK, samples + 3)[:, :, :samples]).unbind(0)
    log_prob[0, 0], old[0, 0] = 200.0, 0.0  # a ratio beyond float32 is either clipped, or huge: not NaN
    advantage[0, 0] = abs(advantage[0, 0])
    log_prob[1, 0] = torch.nan  # is passed on
    found = []
    for choice in (COMPILED, NUMPY):
        _both(monkeypatch, choice)
        found.append(losses.surrogate_gradient(log_prob, old, advantage, abs(weight), 0.2))
    compiled._chosen.cache_clear()
    ours, theirs = found
    assert ours[0, 0] == 0
    assert ours[1, 0].isnan()
    assert samples == 1 or 0 < (ours == 0).sum() < ours.numel()
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, equal_nan=True)


@needs_compiler
def test_steps_of_adam_and_norms(monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for choice in (COMPILED, NUMPY):
        _both(monkeypatch, choice)
        flat, first, second = _random(STACK, 203), torch.zeros(STACK, 203), torch.zeros(STACK, 203)
        count = torch.tensor([0, 5, 1000])
        optimizer = adam.Adam(flat, first, second, count, steps=3, lr=1e-2, eps=1e-5)
        norms = []
        for step in range(3):
            gradient = _random(STACK, 203, seed=step) * torch.tensor([[1e-3], [1.0], [0.0]])
            norms.append(adam.clip_norm_(gradient, 0.5))
            optimizer.step(gradient)
        found.append((flat, first, second, count, torch.stack(norms)))
    compiled._chosen.cache_clear()
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@needs_compiler
def test_gathering() -> None:
    x, index = _random(2, 5, 100), torch.randperm(100, generator=torch.Generator().manual_seed(0))
    out = torch.empty(2, 5, 100)
    kernels.take_columns(x, index, out=out)
    assert torch.equal(out, x[:, :, index])


@pytest.mark.usefixtures("numpy_only")
def test_other_arrays_are_left_to_numpy_and_torch() -> None:
    assert not kernels.fused_matmul(_random(1, 20, 20), _random(1, 20, 20), torch.empty(1, 20, 20))
    assert compiled.described() == f"numpy, as {VARIABLE} says"


def test_what_no_kernel_fits() -> None:
    a, b, out = _random(1, 20, 20), _random(1, 20, 20), torch.empty(1, 20, 20)
    assert not kernels.fused_matmul(a.double(), b.double(), out.double())
    assert not kernels.fused_matmul(a[:, :3], b, out[:, :3])
    assert not kernels.fused_matmul(a, _random(1, 20, 40)[:, :, ::2], out)


def test_a_wrong_choice(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "fast")
    with pytest.raises(SpecError, match=f"{VARIABLE} is 'fast'; set it to one of auto, compiled, numpy, or unset it"):
        compiled.library()


@needs_compiler
def test_a_library_is_compiled_once(fresh: Path) -> None:
    assert compiled.library() is not None
    [kept] = fresh.iterdir()
    assert stat.S_IMODE(fresh.stat().st_mode) == 0o700
    os.utime(kept, (1, 1))
    compiled._chosen.cache_clear()
    assert compiled.described() == "compiled"
    assert [(file, file.stat().st_mtime) for file in fresh.iterdir()] == [(kept, 1.0)]


def test_without_a_compiler(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert compiled.library() is None
    assert compiled.described() == "numpy: no C compiler (cc, gcc, clang) is on the PATH"
    _both(monkeypatch, COMPILED)
    with pytest.raises(SpecError, match="MARLESS_KERNELS is compiled, but the kernels cannot be: no C compiler"):
        compiled.library()


def test_with_a_compiler_that_fails(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'kernels.c:1: error: an old compiler' >&2\nexit 1\n")
    broken.chmod(0o700)
    monkeypatch.setattr(shutil, "which", lambda name: str(broken))
    assert compiled.library() is None
    assert "cannot compile them: kernels.c:1: error: an old compiler" in compiled.described()
    assert not list(fresh.iterdir())


def test_in_a_directory_that_others_may_write_to(fresh: Path) -> None:
    fresh.mkdir(parents=True)
    fresh.chmod(0o777)
    assert compiled.library() is None
    assert "others may write to it" in compiled.described()


@needs_compiler
@pytest.mark.parametrize("kept", [0, 9000])
def test_a_library_that_was_cut_short_is_compiled_anew(fresh: Path, kept: int) -> None:
    """A page beyond the end of a mapped file would kill the process, so the test is one of its own."""
    assert compiled.library() is not None
    [cut] = fresh.iterdir()
    os.truncate(cut, kept)
    script = "from marless.learning.nets.compiled import described; print(described())"
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert (told.returncode, told.stdout) == (0, "compiled\n"), told.stderr
    [whole] = fresh.iterdir()
    assert whole.stat().st_size > 9000


def test_a_user_without_a_home(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", unknown)
    assert compiled.library() is None
    assert compiled.described() == "numpy: this user has no home directory; set XDG_CACHE_HOME"
