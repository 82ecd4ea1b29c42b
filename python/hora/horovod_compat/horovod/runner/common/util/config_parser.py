"""Config files and variables of the workers, where Horovod keeps them.

For each variable there is a constant of its name: HOROVOD_FUSION_THRESHOLD and so on.
"""

from __future__ import annotations

from typing import Any

from horovod.runner.options import ROWS, environment_of

globals().update({row.variable: row.variable for row in ROWS if row.variable})


def set_args_from_config(args: Any, config: dict[str, Any], override_args: set[str]) -> None:
    """Set arguments from the sections of a config file, except those in `override_args`."""
    controller = config.get("controller")
    if controller is not None:
        args.use_gloo, args.use_mpi = controller == "gloo", controller == "mpi"
    for row in ROWS:
        section, _, name = row.key.partition(".")
        value = (config.get(section) or {}).get(name)
        if value is not None and row.dest not in override_args:
            setattr(args, row.dest, not value if row.inverted else value)


def validate_config_args(args: Any) -> None:
    """Raise ValueError for a number that cannot be."""
    for row in ROWS:
        value = getattr(args, row.dest, None)
        if row.variable and row.kind in (int, float) and value is not None and value < 0:
            raise ValueError(f"{row.dest}={value} must be >= 0")
    noise = getattr(args, "autotune_gaussian_process_noise", None)
    if noise is not None and noise > 1:
        raise ValueError(f"autotune_gaussian_process_noise={noise} must be in [0, 1]")


def set_env_from_args(env: dict[str, str], args: Any) -> dict[str, str]:
    """Add the variables that say what the arguments say."""
    env.update(environment_of(args))
    return env
