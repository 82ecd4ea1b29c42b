"""The names under which gradients are reduced, and who reduces them.

Two optimizers may have parameters of the same name - the two networks of a GAN do - and reduce them
at the same time. The second parameter of a name is therefore numbered: `weight@2`. Numbers are
given in the order in which optimizers are made, which is the same on all ranks, and forgotten when
the job ends. A copy of an optimizer has the names of the original.

One parameter may have two optimizers, too. Its gradient is reduced by the one that was made last;
the other is told whose results it has to wait for.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

    from hora._context import Context


class Claims:
    """The parameters of one name, and the reducer of each; nothing is kept alive."""

    def __init__(self) -> None:
        self._owners: list[tuple[weakref.ref[Any], weakref.ref[Any]]] = []

    def claim(self, parameter: torch.Tensor, reducer: Any) -> int:
        """Enter `reducer` as the one of the parameter; returns the parameter's number, from 1."""
        entry = (weakref.ref(parameter), weakref.ref(reducer))
        for i, (owned, owner) in enumerate(self._owners):
            if owned() is parameter:
                previous = owner()
                if previous is not None and previous is not reducer:
                    previous.lend(parameter, reducer)
                self._owners[i] = entry
                return i + 1
        self._owners.append(entry)
        return len(self._owners)


def claim_name(context: Context, name: str, parameter: torch.Tensor, reducer: Any) -> str:
    """Return the name under which `reducer` will reduce the gradient of a parameter."""
    claims = context.parameter_names.setdefault(name, Claims())
    number = claims.claim(parameter, reducer)
    return name if number == 1 else f"{name}@{number}"
