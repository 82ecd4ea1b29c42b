"""The package `horovod`, for scripts that were written for Horovod: it is in Hora's own package.

This distribution holds nothing but the name; the aliases come with Hora, which also finds them for
one run by PYTHONPATH. Not to be installed beside Horovod: see the aliases' essay.
"""

from pathlib import Path as _Path

import hora as _hora

_aliases = _Path(_hora.__file__).parent / "horovod_compat" / "horovod"
__path__ = [str(_aliases)]
exec(compile((_aliases / "__init__.py").read_text(), str(_aliases / "__init__.py"), "exec"))
