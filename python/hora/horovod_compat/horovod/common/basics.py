"""The functions of a rank as methods of an object, as Horovod's frameworks use them."""

from __future__ import annotations

from typing import Any

import hora


class HorovodBasics:
    """Has every function of the package `hora` as a method: `init`, `rank`, `gloo_built`, ..."""

    def __init__(self, pkg_path: str = "", *args: str) -> None:
        """Take what Horovod needs to find its extension; it is not used."""

    def __getattr__(self, name: str) -> Any:
        if name not in hora.__all__:
            raise AttributeError(f"HorovodBasics has no attribute '{name}'")
        return getattr(hora, name)
