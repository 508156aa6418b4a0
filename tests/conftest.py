"""What every test stands on: unwritten memory reads as NaN, and no test leaves a setting behind."""

import functools
import os
import random

# Read by the native library when it loads: its new outputs and scratch then start as NaN.
os.environ["RNNPACK_FILL_NAN"] = "1"

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, settings

# "check" draws the same examples every time, so a verdict repeats; HYPOTHESIS_PROFILE=explore draws
# new ones. No deadline: the first call of a size may load or compile something.
settings.register_profile(
    "check",
    derandomize=True,
    deadline=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.register_profile("explore", settings.get_profile("check"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "check"))


def pytest_runtest_setup(item):
    if item.get_closest_marker("cuda") is None or torch.cuda.is_available():
        return
    if os.environ.get("FAIL_WITHOUT_CUDA") == "1":
        pytest.fail("FAIL_WITHOUT_CUDA=1 is set, but torch sees no CUDA device", pytrace=False)
    pytest.skip("needs a CUDA device")


def _nan_filled(allocate):
    """Wrap an allocating function so that what nobody writes is NaN, where the dtype has one."""

    @functools.wraps(allocate)
    def allocate_nan(*args, **kwargs):
        tensor = allocate(*args, **kwargs)
        # Traced code must stay what its author wrote; wrapped tensors have no memory of their own.
        if torch.compiler.is_compiling() or type(tensor) is not torch.Tensor:
            return tensor
        if tensor.is_floating_point() and not tensor.is_meta:
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return allocate_nan


@pytest.fixture(autouse=True)
def unwritten_memory_is_nan(monkeypatch):
    """Let the allocations that Python code makes read as NaN until they are written."""
    monkeypatch.setattr(torch, "empty", _nan_filled(torch.empty))
    monkeypatch.setattr(torch, "empty_like", _nan_filled(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", _nan_filled(torch.Tensor.new_empty))


@pytest.fixture(autouse=True)
def settings_restored():
    """Start from fixed seeds and give back generators, thread count, default dtype, grad mode."""
    threads, dtype = torch.get_num_threads(), torch.get_default_dtype()
    grad = torch.is_grad_enabled()
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    yield
    torch.set_rng_state(states[0])
    random.setstate(states[1])
    np.random.set_state(states[2])
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
