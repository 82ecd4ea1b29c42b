"""AMP's GradScaler and gradients that are still under way.

`scaler.step(optimizer)` and `scaler.unscale_(optimizer)` look for infinities in the gradients and
divide them, in place, before the optimizer's step is called. With a distributed optimizer they
would meet gradients that are being reduced; and each rank would judge its own, so that one might
skip a step that the others make. So they wait first: the gradients are the same on all ranks then,
and so is the verdict.

torch offers no place to wait in, so the method of GradScaler that touches the gradients is wrapped,
once, when the first distributed optimizer is made. For other optimizers it does what it did.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

_METHOD = "_unscale_grads_"


def let_grad_scaler_wait() -> None:
    """Make GradScaler call `optimizer.synchronize_for_scaler()` where there is such a method."""
    scaler: Any = getattr(torch.amp, "GradScaler", None) or torch.cuda.amp.GradScaler
    unscale = getattr(scaler, _METHOD, None)
    if unscale is None or hasattr(unscale, "waits_for_hora"):
        return

    @functools.wraps(unscale)
    def waiting(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        wait = getattr(optimizer, "synchronize_for_scaler", None)
        if wait is not None:
            wait()
        return unscale(self, optimizer, *args, **kwargs)

    waiting.waits_for_hora = True  # type: ignore[attr-defined]
    setattr(scaler, _METHOD, waiting)
