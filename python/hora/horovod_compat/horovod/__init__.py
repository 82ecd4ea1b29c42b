"""The package `horovod` for scripts that were written for Horovod: aliases of what Hora has.

It is found in two ways: the distribution hora-horovod-compat puts it into an environment; the
folder above on PYTHONPATH, with HORA_HOROVOD_COMPAT=1, makes it found for one run, which is what
``horarun --horovod-compat`` sets. Nothing is implemented here that is not needed to look like
Horovod.

Beside an installed Horovod the first way would mix two packages of one name, so it refuses.
"""

import importlib.metadata as _metadata
import os as _os


def _refuse_beside_horovod() -> None:
    """Raise ImportError if the real Horovod is installed and this package was not asked for."""
    if _os.environ.get("HORA_HOROVOD_COMPAT") == "1":
        return
    try:
        version = _metadata.version("horovod")
    except _metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"Horovod {version} is installed, and so is hora-horovod-compat, which stands in its "
        "place: uninstall one of them. To run a script with Hora once, leave Horovod installed, "
        f"put {_os.path.dirname(_os.path.dirname(__file__))} on PYTHONPATH and set "
        "HORA_HOROVOD_COMPAT=1."
    )


_refuse_beside_horovod()

from horovod.runner import run  # noqa: E402

# The version whose interface this is.
__version__ = "0.28.1"

__all__ = ["__version__", "run"]
