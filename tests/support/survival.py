"""Jobs that go on when ranks die (horarun --min-np), and what is checked of them.

Every rank runs the same endless row of collectives. Rank r gives 4**r times a small number, so a
sum tells who is in it. A rank checks each result against the contributors that its handle names,
and keeps a digest of all bytes and names. Some steps after a result lacks somebody for the first
time - all ranks see that in the same result - the loop ends, and the rank prints what it has seen.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
from pathlib import Path
from typing import Any

from support.faults import SIZE, HurtJob

SURVIVAL_LOOP = """
    import hashlib, json, os, sys
    import numpy as np
    first_rank = int(os.environ["HORA_RANK"])
    if len(sys.argv) > 2 and first_rank == int(sys.argv[2]):
        os.environ["HORA_FAULT"] = sys.argv[3]
    import hora.numpy as hvd

    deaths = int(sys.argv[1])
    hvd.init()
    start = hvd.size()
    assert hvd.rank() == first_rank
    sizes = (1, 1000, 70_000, 600_000)
    base = {n: (1 + np.arange(n) % 5).astype(np.float32) for n in sizes}
    given = {n: base[n] * np.float32(4**first_rank) for n in sizes}
    digest = hashlib.sha256()
    least, seen, last_step, failed = set(range(start)), set(), 10**9, 0

    def expected(count, ranges, average):
        result, at = np.empty(count, np.float32), 0
        for end, ranks in ranges:
            end = count if end is None else end
            result[at:end] = base[count][at:end] * np.float32(sum(4.0**r for r in ranks))
            if average:
                result[at:end] /= np.float32(len(ranks))
            at = end
        return result

    for step in range(10**9):
        if step > last_step:
            break
        handles = []
        for k in range(3):
            count, op = sizes[(step + k) % 4], (hvd.Sum, hvd.Average)[k % 2]
            handles.append((count, op, hvd.allreduce_async(given[count], op=op, name=f"r{k}")))
        for count, op, handle in handles:
            ranges = hvd.contributors(handle)
            result = hvd.synchronize(handle)
            right = expected(count, ranges, op == hvd.Average)
            same = np.allclose(result, right) if op == hvd.Average else (result == right).all()
            assert same, f"step {step}: {ranges} {np.flatnonzero(result != right)[:5]}"
            assert (given[count] == base[count] * np.float32(4**first_rank)).all(), "input"
            digest.update(result.tobytes())
            digest.update(repr(ranges).encode())
            for _, ranks in ranges:
                least &= set(ranks)
            seen.add(tuple(len(ranks) for _, ranks in ranges))
        rows = hvd.allgather(np.full((first_rank + 1, 3), first_rank), name="rows")
        digest.update(rows.tobytes())
        try:
            heard = hvd.broadcast(np.full(2000, first_rank), root_rank=0, name="heard")
            assert (heard == heard[0]).all()
            digest.update(heard.tobytes())
        except hvd.HoraInternalError as error:  # The root has died in it.
            digest.update(b"failed")
            failed += 1
        hvd.barrier()
        if step == 0:
            print("ready", flush=True)
        if len(least) <= start - deaths:
            last_step = min(last_step, step + 20)
    facts = dict(digest=digest.hexdigest(), size=hvd.size(), rank=hvd.rank(), step=step)
    facts.update(first=first_rank, seen=sorted(seen), contributors=sorted(least), failed=failed)
    print("survived " + json.dumps(facts), flush=True)
"""


def survivors_of(job: HurtJob, victims: set[int], about: str) -> list[dict[str, Any]]:
    """Wait for the end of a job that has lost `victims`; check and return what the others say."""
    status = job.finish()
    where = f"{about}\n{job.text()}"
    assert status == 0, where
    for victim in victims:
        assert job.matching(rf"^horarun: rank {victim} \(pid \d+\) was killed by signal 9"), where
    lines = job.matching(r"survived \{")
    told = [json.loads(line[line.index("{") :]) for line in lines]
    alive = sorted(set(range(SIZE)) - victims)
    assert sorted(facts["first"] for facts in told) == alive, where
    told.sort(key=lambda facts: facts["first"])
    assert len({facts["digest"] for facts in told}) == 1, where
    assert [facts["rank"] for facts in told] == list(range(len(alive))), where
    for facts in told:
        assert facts["size"] == len(alive), where
        assert facts["contributors"] == alive, where
        assert facts["step"] == told[0]["step"], where
    return told


def survive_kill(
    directory: Path, victim: int, delay_s: float, about: str, **env: str
) -> list[dict[str, Any]]:
    """Kill one rank `delay_s` after all are in their loop; the others must go on."""
    options = ("--min-np", str(SIZE - 1))
    job = HurtJob.start(directory, SURVIVAL_LOOP, "1", env=env, options=options)
    try:
        job.wait_for(r"ready$", SIZE)
        pid = job.pids()[victim]
        time.sleep(delay_s)  # The moment of the kill, not a wait for anything.
        os.kill(pid, signal.SIGKILL)
        return survivors_of(job, {victim}, about)
    finally:
        job.end()


def survive_fault(directory: Path, victim: int, fault: str, **env: str) -> list[dict[str, Any]]:
    """Let one rank kill itself at a fault point; the others must go on."""
    options = ("--min-np", str(SIZE - 1))
    arguments = ("1", str(victim), fault)
    job = HurtJob.start(directory, SURVIVAL_LOOP, *arguments, env=env, options=options)
    try:
        return survivors_of(job, {victim}, f"{fault} in rank {victim}, {env}")
    finally:
        job.end()


def lines_of(job: HurtJob, pattern: str) -> list[str]:
    """Return the lines of horarun itself that match."""
    return [line for line in job.lines if line.startswith("horarun") and re.search(pattern, line)]
