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

#: The same with compressed all-reduces that keep what they do not send. Rank r gives r + 1 times a
#: number of at least 1; what a codec may lose of a sum is less, so a sum still tells who is in it.
#: However long the loop runs, sums and inputs drift apart by no more than what is kept.
CODEC_LOOP = """
    import hashlib, json, os, sys
    import numpy as np
    import hora.numpy as hvd
    from hora import _calls, _core

    deaths, codec = int(sys.argv[1]), sys.argv[2]
    hvd.init()
    start, first_rank = hvd.size(), hvd.rank()
    base = {n: (1 + np.arange(n) % 5).astype(np.float32) for n in (1000, 70_000, 300_000)}
    given = {n: base[n] * np.float32(1 + first_rank) for n in base}
    drift = {n: np.zeros(n) for n in base}
    digest = hashlib.sha256()
    least, seen, last_step = set(range(start)), set(), 10**9
    lost = 0.9  # A step of int8 is 50/127: half of one by each rank, and one of the sum.

    def start_encoded(n):  # Horovod's calls with a handle take no compression.
        output = np.empty(n, np.float32)
        addresses = (_core.address(given[n]), _core.address(output))
        finish = lambda *_: output
        kind, dtype = _core.ALLREDUCE, _core.DTYPES["float32"]
        return _calls.start(
            kind, f"kept{n}", dtype, (n,), *addresses, finish, hvd.Sum, codec=codec
        )

    for step in range(10**9):
        if step > last_step:
            break
        handles = {n: start_encoded(n) for n in base}
        for n, handle in handles.items():
            ranges = hvd.contributors(handle)
            result, expected, at = hvd.synchronize(handle), np.empty(n), 0
            for end, ranks in ranges:
                end = n if end is None else end
                expected[at:end] = base[n][at:end] * sum(1 + r for r in ranks)
                at = end
                least &= set(ranks)
            off = np.abs(result - expected).max()
            assert off < 2 * lost, f"step {step}: {ranges} {off}"
            drift[n] += result - expected
            assert np.abs(drift[n]).max() < 2 * lost, f"step {step}: {np.abs(drift[n]).max()}"
            assert (given[n] == base[n] * np.float32(1 + first_rank)).all(), "input"
            digest.update(result.tobytes())
            digest.update(repr(ranges).encode())
            seen.add(tuple(len(ranks) for _, ranks in ranges))
        if step == 0:
            print("ready", flush=True)
        if len(least) <= start - deaths:
            last_step = min(last_step, step + 20)
    facts = dict(digest=digest.hexdigest(), size=hvd.size(), rank=hvd.rank(), step=step)
    facts.update(first=first_rank, seen=sorted(seen), contributors=sorted(least), failed=0)
    print("survived " + json.dumps(facts), flush=True)
"""

#: Training with a wrapped optimizer, a codec, and a data loader whose workers are forked. All ranks
#: see in the same sum that somebody is lost; some steps later they stop and say what they have.
TRAINING_LOOP = """
    import hashlib, json, sys
    import torch
    import hora.torch as hvd
    from torch.utils.data import DataLoader, TensorDataset

    deaths = int(sys.argv[1])
    hvd.init()
    start, first_rank = hvd.size(), hvd.rank()
    torch.manual_seed(first_rank)
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8)
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05),
        named_parameters=model.named_parameters(),
        compression=getattr(hvd.Compression, sys.argv[2]),
    )
    torch.manual_seed(1)
    rule = torch.randn(64, 8)
    torch.manual_seed(10 + first_rank)
    inputs = torch.randn(512, 64)
    data = TensorDataset(inputs, (inputs @ rule).argmax(1))
    loader = DataLoader(data, batch_size=16, num_workers=1, multiprocessing_context="fork")
    losses, step, last_step = [], 0, 10**9
    while step <= last_step:
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(model(inputs), labels)
            loss.backward()
            optimizer.step()
            # One sum of what is to be one: 1 from everybody, and the loss.
            told = hvd.allreduce(torch.stack([torch.tensor(1.0), loss.detach()]), op=hvd.Sum)
            losses.append(float(told[1] / told[0]))
            if step == 0:
                print("ready", flush=True)
            if round(float(told[0])) <= start - deaths:
                last_step = min(last_step, step + 40)
            step += 1
            if step > last_step:
                break
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    digest.update(repr(losses).encode())
    facts = dict(digest=digest.hexdigest(), size=hvd.size(), rank=hvd.rank(), step=step)
    facts.update(first=first_rank, losses=[losses[0], sum(losses[-10:]) / 10])
    print("survived " + json.dumps(facts), flush=True)
"""


def survivors_of(
    job: HurtJob, victims: set[int], about: str, left_out: frozenset[int] = frozenset()
) -> list[dict[str, Any]]:
    """Wait for the end of a job that has lost `victims`; check and return what the others say.

    Those of `left_out` live, but the others have gone on without them.
    """
    status = job.finish()
    where = f"{about}\n{job.text()}"
    assert status == 0, where
    for victim in victims:
        assert job.matching(rf"^horarun: rank {victim} \(pid \d+\) was killed by signal 9"), where
    lines = job.matching(r"survived \{")
    told = [json.loads(line[line.index("{") :]) for line in lines]
    alive = sorted(set(range(SIZE)) - victims - left_out)
    assert sorted(facts["first"] for facts in told) == alive, where
    told.sort(key=lambda facts: facts["first"])
    assert len({facts["digest"] for facts in told}) == 1, where
    assert [facts["rank"] for facts in told] == list(range(len(alive))), where
    for facts in told:
        assert facts["size"] == len(alive), where
        assert facts.get("contributors", alive) == alive, where
        assert facts["step"] == told[0]["step"], where
    return told


def survive_kill(
    directory: Path,
    victim: int,
    delay_s: float,
    about: str,
    code: str = SURVIVAL_LOOP,
    arguments: tuple[str, ...] = (),
    **env: str,
) -> list[dict[str, Any]]:
    """Kill one rank `delay_s` after all are in their loop; the others must go on."""
    options = ("--min-np", str(SIZE - 1))
    job = HurtJob.start(directory, code, "1", *arguments, env=env, options=options)
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
