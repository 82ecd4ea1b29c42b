"""Codecs from Python: every rank ends with the same bits near the exact result, and says so if not.

What a codec computes is tested in C++; here are its words, its ways into the core, and what happens
to tensors and scripts that have nothing to do with codecs.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import hora
import hora.numpy as hnp
import hora.torch as hvd
from hora import _context

CODECS = ["fp16", "bf16", "int8", "fp16+ef", "bf16+ef", "int8+ef", "topk(ratio=0.25)+ef"]
COUNTS = [0, 1, 2, 5, 257, 1001, 70_000]


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_compression(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


def made(rank: int, count: int, step: int = 0) -> torch.Tensor:
    """Return what a rank sends: numbers between -4 and 4."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * count + rank)
    return torch.rand(count, generator=generator) * 8 - 4


def exact_sum(count: int, step: int = 0) -> torch.Tensor:
    """Return the sum over all ranks, in float64."""
    parts = [made(rank, count, step).double() for rank in range(hvd.size())]
    return torch.stack(parts).sum(0)


def same_everywhere(tensor: torch.Tensor) -> None:
    """Assert that all ranks have the same bits."""
    rows = hvd.allgather(tensor.unsqueeze(0))
    assert all(torch.equal(row, rows[0]) for row in rows)


def payload_bytes() -> int:
    """Return what this rank has sent of tensors so far."""
    stats: dict[str, int] = _context.current().runtime.stats()
    return stats["payload_bytes"]


def check_words_of_a_codec() -> None:
    hvd.init()
    assert hora.codec("topk( ratio = .01 )+ef") == hora.codec("topk(ratio=0.01)+ef")
    assert hora.codec("int8") != hora.codec("int8+ef")
    assert repr(hora.codec("none")) == "hora.codec('none')"
    assert repr(hvd.Compression.int8) == "hora.codec('int8+ef')"
    with pytest.raises(ValueError, match="there is no codec of this name; there are: none, fp16"):
        hora.codec("zip")
    with pytest.raises(ValueError, match="ratio must be a number above 0"):
        hora.codec("topk(ratio=2)")
    with pytest.raises(TypeError, match="made from a str, not int"):
        hora.codec(8)  # type: ignore[arg-type]


def check_sums_and_averages_are_near_and_the_same_everywhere() -> None:
    hvd.init()
    for words in CODECS:
        # topk sends a quarter of the numbers; 4 bytes of int8 hold 127 steps of up to 4 * size.
        tolerance = 4.1 * hvd.size() if words.startswith("topk") else 0.06 * hvd.size() ** 2
        for count in COUNTS:
            for op, divisor in ((hvd.Sum, 1), (hvd.Average, hvd.size())):
                name = f"near.{words}.{count}.{op}"
                tensor = made(hvd.rank(), count)
                result = hvd.allreduce(tensor, name=name, op=op, compression=hora.codec(words))
                same_everywhere(result)
                limit = 0 if hvd.size() == 1 else tolerance / divisor
                difference = (result.double() - exact_sum(count) / divisor).abs()
                assert bool((difference <= limit + 1e-6).all()), (words, count, op)
                assert torch.equal(tensor, made(hvd.rank(), count))


def check_every_floating_type_comes_back_as_it_was() -> None:
    hvd.init()
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = made(hvd.rank(), 999).to(dtype)
        result = hvd.allreduce(tensor, compression=hvd.Compression.bf16)
        assert result.dtype == dtype
        same_everywhere(result)
        exact = exact_sum(999) / hvd.size()
        assert float((result.double() - exact).abs().max()) < 0.1
    array = made(hvd.rank(), 999).numpy()
    outcome = hnp.allreduce(array, name="array", compression=hnp.Compression.int8)
    assert outcome.dtype == np.float32
    assert np.abs(outcome - (exact_sum(999) / hvd.size()).numpy()).max() < 0.2


def check_what_no_codec_is_for_goes_as_it_is() -> None:
    hvd.init()
    whole = torch.arange(100) + hvd.rank()
    assert torch.equal(
        hvd.allreduce(whole, op=hvd.Sum, compression=hora.codec("int8")),
        torch.arange(100) * hvd.size() + hvd.size() * (hvd.size() - 1) // 2,
    )
    largest = hvd.allreduce(made(hvd.rank(), 50), op=hvd.Max, compression=hora.codec("int8"))
    parts = torch.stack([made(rank, 50) for rank in range(hvd.size())])
    assert torch.equal(largest, parts.amax(0))


def check_error_feedback_needs_a_name() -> None:
    hvd.init()
    with pytest.raises(ValueError, match="keeps an error under the tensor's name"):
        hvd.allreduce(torch.ones(3), compression=hvd.Compression.int8)
    with pytest.raises(ValueError, match="needs a postscale factor that is finite and not 0"):
        hvd.allreduce(
            torch.ones(3), name="x", compression=hvd.Compression.int8, postscale_factor=0.0
        )
    with pytest.raises(TypeError, match="compression must be"):
        hvd.allreduce(torch.ones(3), compression="int8")
    hvd.barrier()


def check_what_is_kept_comes_another_time() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    # Beside 127 a code of int8 is 1: 0.1 is rounded away, unless the errors are added up.
    for words, expected in (("int8", 0.0), ("int8+ef", 10.0)):
        total = 0.0
        for _ in range(100):
            tensor = torch.tensor([127.0, 0.1])
            result = hvd.allreduce(tensor, name=f"kept.{words}", compression=hora.codec(words))
            total += float(result[1])
        assert abs(total - expected) < 1.5, (words, total)


def check_a_number_that_is_not_finite_is_seen_by_all_and_forgotten() -> None:
    hvd.init()
    for words in CODECS:
        for step, bad in enumerate((float("inf"), float("nan"))):
            tensor = made(hvd.rank(), 500, step)
            if hvd.rank() == hvd.size() - 1:
                tensor[123] = bad
            name = f"bad.{words}"
            result = hvd.allreduce(tensor, name=name, compression=hora.codec(words))
            assert not bool(torch.isfinite(result[123]))
            sound = hvd.allreduce(
                made(hvd.rank(), 500, 7), name=name, compression=hora.codec(words)
            )
            assert bool(torch.isfinite(sound).all())


def check_ranks_that_disagree_get_the_same_error() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    words = "bf16" if hvd.rank() == 0 else "int8"
    with pytest.raises(hvd.HoraInternalError, match=r"Mismatched compression.*rank 0 submitted"):
        hvd.allreduce(torch.ones(5), name="differs", compression=hora.codec(words))
    assert torch.equal(hvd.allreduce(torch.ones(5), name="differs"), torch.ones(5))


def check_bytes_sent_are_what_the_codec_promises_and_none_is_the_default() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    tensor = made(hvd.rank(), 1 << 18)

    def sent(**arguments: Any) -> int:
        before = payload_bytes()
        hvd.allreduce(tensor, name="counted", **arguments)
        return payload_bytes() - before

    dense = sent()
    # A chunk for every owner, and the own one for all: every number at full width.
    assert abs(dense / (2 * (hvd.size() - 1) * tensor.numel() * 4 / hvd.size()) - 1) < 0.02
    assert sent(compression=hora.codec("none")) == dense
    assert abs(sent(compression=hora.codec("bf16")) / dense - 1 / 2) < 0.02
    assert abs(sent(compression=hora.codec("int8")) / dense - 260 / 1024) < 0.02
    assert sent(compression=hora.codec("topk(ratio=0.01)")) / dense < 0.05


class Halving(hvd.Compression.fp16):  # type: ignore[misc, valid-type]
    """A user's compressor: sends half of the numbers' values, as float16."""

    @staticmethod
    def compress(tensor: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return half of the tensor."""
        return (tensor / 2).half(), tensor.dtype

    @staticmethod
    def decompress(tensor: torch.Tensor, ctx: Any) -> torch.Tensor:
        """Return it doubled."""
        return tensor.to(ctx) * 2


def check_compressors_of_users_work_as_ever() -> None:
    hvd.init()
    result = hvd.allreduce(torch.full((10,), 3.0), compression=Halving)
    assert torch.equal(result, torch.full((10,), 3.0))
    compressed, context = hvd.Compression.fp16.compress(torch.ones(3))
    assert compressed.dtype == torch.float16
    assert torch.equal(hvd.Compression.fp16.decompress(compressed, context), torch.ones(3))


def check_gradients_of_a_compressed_allreduce() -> None:
    hvd.init()
    tensor = made(hvd.rank(), 20).requires_grad_()
    hvd.allreduce(tensor, compression=hvd.Compression.bf16).sum().backward()
    assert tensor.grad is not None
    assert torch.equal(tensor.grad, torch.ones(20))


def check_groups_carry_the_codec() -> None:
    hvd.init()
    tensors = [made(hvd.rank(), count) for count in (1000, 70_000)]
    exact = [exact_sum(len(tensor)) / hvd.size() for tensor in tensors]
    wanting = [tensor.clone().requires_grad_() for tensor in tensors]
    arrays = [tensor.numpy() for tensor in tensors]
    outcomes = [
        hvd.grouped_allreduce(tensors, name="plain", compression=hvd.Compression.int8),
        hvd.grouped_allreduce(wanting, name="wanting", compression=hvd.Compression.int8),
        [
            torch.from_numpy(result)
            for result in hnp.grouped_allreduce(arrays, compression=hnp.Compression.bf16)
        ],
    ]
    for results in outcomes:
        for expected, result in zip(exact, results):
            same_everywhere(result.detach())
            limit = 1e-6 if hvd.size() == 1 else 0.06 * hvd.size()
            assert float((result.detach().double() - expected).abs().max()) < limit
    sum(result.sum() for result in outcomes[1]).backward()
    for tensor in wanting:
        assert torch.equal(tensor.grad, torch.ones_like(tensor))
    if hvd.size() > 1:
        sent = []
        for words in ("none", "bf16"):
            before = payload_bytes()
            hvd.grouped_allreduce(tensors, name="counted", compression=hora.codec(words))
            sent.append(payload_bytes() - before)
        assert abs(sent[1] / sent[0] - 1 / 2) < 0.05
    with pytest.raises(ValueError, match="keeps an error under the tensor's name"):
        hvd.grouped_allreduce(tensors, compression=hvd.Compression.int8)


def check_a_process_set_has_codecs_and_errors_of_its_own() -> None:
    hvd.init()
    if hvd.size() < 3:
        return
    evens = hvd.add_process_set(list(range(0, hvd.size(), 2)))
    everybody = little = 0.0
    for _ in range(50):
        # 0.1 beside 127 is kept for later; in the set there is nothing to keep.
        compression = hvd.Compression.int8
        result = hvd.allreduce(torch.tensor([127.0, 0.1]), name="same", compression=compression)
        everybody += float(result[1])
        if evens.included():
            alone = hvd.allreduce(
                torch.tensor([127.0, 0.0]),
                name="same",
                compression=compression,
                process_set=evens,
            )
            little += float(alone[1].abs())
    assert abs(everybody - 5) < 1.5
    assert little == 0
    hvd.remove_process_set(evens)


def check_joined_ranks_give_zeros_to_compressed_sums() -> None:
    hvd.init()
    for words in ("int8+ef", "bf16"):
        for step in range(hvd.rank() + 1):
            result = hvd.allreduce(
                made(hvd.rank(), 5000, step),
                name=f"uneven.{words}",
                op=hvd.Sum,
                compression=hora.codec(words),
            )
            there = range(step, hvd.size())
            exact = torch.stack([made(rank, 5000, step).double() for rank in there]).sum(0)
            assert float((result.double() - exact).abs().max()) < 0.06 * hvd.size() ** 2
        assert hvd.join() >= 0


def check_optimizers_train_alike_with_codecs() -> None:
    hvd.init()
    for compression in (hvd.Compression.bf16, hvd.Compression.int8, hora.codec("topk+ef"), Halving):
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
        optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.05),
            named_parameters=model.named_parameters(),
            compression=compression,
        )
        losses = []
        for step in range(60):
            x = made(hvd.rank(), 256, step).view(32, 8)
            loss = (model(x).squeeze(1) - x.sum(1)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        same_everywhere(torch.cat([p.detach().flatten() for p in model.parameters()]))
        assert sum(losses[-10:]) < 0.5 * sum(losses[:10]), compression


def check_the_timeline_shows_encoding_beside_transfer() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    made_here = tempfile.mkdtemp() if hvd.rank() == 0 else None
    trace = Path(hvd.broadcast_object(made_here, 0)) / "trace.json"
    hvd.start_timeline(trace)
    for step in range(5):
        hvd.allreduce(made(hvd.rank(), 1 << 19, step), compression=hora.codec("int8"))
    hvd.stop_timeline()
    hvd.barrier()
    if hvd.rank() != 0:
        return
    rows: dict[int, list[tuple[str, float, float]]] = {}
    open_spans: dict[int, tuple[str, float]] = {}
    for event in json.loads(trace.read_text()):
        if event["ph"] == "B" and event["name"] in ("ENCODE", "TRANSFER", "DECODE"):
            open_spans[event["pid"]] = (event["name"], event["ts"])
        elif event["ph"] == "E" and event["pid"] in open_spans:
            name, began = open_spans.pop(event["pid"])
            rows.setdefault(event["pid"], []).append((name, began, event["ts"]))
    names = {name for spans in rows.values() for name, _, _ in spans}
    assert names == {"ENCODE", "TRANSFER", "DECODE"}
    # While the payloads of one segment are under way another one is encoded.
    overlaps = sum(
        began < end_of_encode and began_encode < end
        for row, spans in rows.items()
        for name, began, end in spans
        if name == "TRANSFER"
        for other, others in rows.items()
        if other != row
        for other_name, began_encode, end_of_encode in others
        if other_name == "ENCODE"
    )
    assert overlaps > 0
