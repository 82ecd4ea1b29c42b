"""What is random in the chaos tests: whom to kill, when, and over which transport.

It comes from a seed that is printed with a failure: HORA_CHAOS_SEED repeats a run,
HORA_CHAOS_KILLS makes it shorter or longer.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from dataclasses import dataclass

from support.faults import SIZE

SEED = int(os.environ.get("HORA_CHAOS_SEED", "0")) or random.randrange(1, 2**32)
KILLS = int(os.environ.get("HORA_CHAOS_KILLS", "200"))
#: Into how many tests the kills of one kind are divided.
PARTS = 10


@dataclass(frozen=True)
class Kill:
    """One rank to kill, `delay` seconds after all are ready; `about` names it in a failure."""

    victim: int
    delay: float
    transport: str
    about: str


def kills_of(part: int, stream: str) -> Iterator[Kill]:
    """Throw the kills of a part; tests with different streams have different ones."""
    dice = random.Random(f"{SEED}.{stream}{part}")
    for kill in range(-(-KILLS // PARTS)):
        victim, delay = dice.randrange(SIZE), dice.random() * 0.3
        transport = dice.choice(["shm", "tcp", ""])
        about = f"HORA_CHAOS_SEED={SEED} part {part} kill {kill}: rank {victim}, {delay:.3f} s"
        yield Kill(victim, delay, transport, about)
