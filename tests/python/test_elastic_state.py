"""hvd.elastic: states, the sampler, and the loop of `run` in a job whose members do not change."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import hora.torch as hvd
from hora import elastic
from hora.exceptions import HostsUpdatedInterrupt


@pytest.mark.parametrize("size", [1, 3])
def test_elastic(checked: Callable[..., list[Any]], check: Callable[[], Any], size: int) -> None:
    """Run every check of this file."""
    checked(check, size)


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a network and an optimizer with state, different on every rank."""
    torch.manual_seed(hvd.rank())
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1 * (1 + hvd.rank()))
    train(model, optimizer)
    return model, optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    model(torch.randn(4, 2)).pow(2).sum().backward()
    optimizer.step()


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    state = [value for entry in optimizer.state.values() for value in entry.values()]
    return [tensor.detach().clone().double() for tensor in [*model.state_dict().values(), *state]]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(map(torch.equal, one, other))


def same_everywhere(tensors: list[torch.Tensor]) -> bool:
    flat = torch.cat([tensor.flatten() for tensor in tensors])
    return all(torch.equal(row, flat) for row in hvd.allgather(flat.unsqueeze(0)))


def check_a_state_is_synced_saved_and_restored() -> None:
    hvd.init()
    model, optimizer = network()
    state = hvd.elastic.TorchState(model, optimizer, batch=20 + hvd.rank(), log=[hvd.rank()])
    state.batch += 1  # The current value counts, not the one that was saved.
    state.sync()
    assert (state.batch, state.log) == (21, [0])
    assert optimizer.param_groups[0]["lr"] == 0.1
    assert same_everywhere(tensors_of(model, optimizer))
    before = tensors_of(model, optimizer)
    for _ in range(2):  # A save is not spoilt by what happens after a restore.
        train(model, optimizer)
        state.batch, state.epoch = 30, 5
        state.log.append("later")
        assert not same(before, tensors_of(model, optimizer))
        state.restore()
        assert same(before, tensors_of(model, optimizer))
        assert (state.batch, state.log) == (21, [0])
    train(model, optimizer)
    state.log.append("kept")
    state.commit()
    kept = tensors_of(model, optimizer)
    train(model, optimizer)
    state.restore()
    assert same(kept, tensors_of(model, optimizer))
    assert state.log == [0, "kept"]
    assert state.model is model


def check_a_value_with_a_handler_can_be_replaced() -> None:
    model, optimizer = network()
    state = hvd.elastic.TorchState(model=model, optimizer=optimizer)
    other = network()[0]
    state.model = other
    before = copy.deepcopy(other.state_dict())
    other[0].weight.data.zero_()
    state.restore()
    assert torch.equal(other[0].weight, before["0.weight"])
    assert hvd.elastic.TorchState().model is None


class WithExtraState(nn.Module):
    """A module whose state_dict holds what is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2,), float(hvd.rank())))
        self.words = f"of rank {hvd.rank()}"

    def get_extra_state(self) -> str:
        return self.words

    def set_extra_state(self, state: str) -> None:
        self.words = state


def check_extra_state_of_modules_is_synced() -> None:
    module = WithExtraState()
    hvd.elastic.TorchState(model=module).sync()
    assert module.words == "of rank 0"
    assert torch.equal(module.weight, torch.zeros(2))


class Counter:
    """Something with a state_dict that the table does not know."""

    def __init__(self) -> None:
        self.count = hvd.rank() + 1

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


def check_the_table_of_handlers_can_be_extended() -> None:
    from hora.torch.elastic import state as module

    table = module.get_handler_registry()
    module.set_handler_registry([*table, (Counter, module.StateHandler)])
    try:
        counter = Counter()
        state = hvd.elastic.TorchState(counter=counter)
        state.sync()
        assert counter.count == 1
        counter.count = 7
        state.restore()
        assert counter.count == 1
    finally:
        module.set_handler_registry(table)


def order_of(length: int, seed: int, epoch: int) -> list[int]:
    order = list(range(length))
    random.Random(seed + epoch).shuffle(order)
    return order


def check_the_sampler_deals_out_in_horovods_order() -> None:
    size, rank = hvd.size(), hvd.rank()
    for length in (0, 1, 2, 7, 30):
        for processed in (0, 1, length // 2, length):
            sampler = hvd.elastic.ElasticSampler(range(length), seed=3)
            sampler.load_state_dict({"epoch": 2, "processed_num": processed})
            rest = order_of(length, 3, 2)[processed:]
            assert sampler.remaining_indices == rest
            each = -(-len(rest) // size)
            filled = (rest * (each * size + 1))[: each * size]
            assert list(sampler) == filled[rank::size]
            assert len(sampler) == each
            everybody = hvd.allgather_object(list(sampler))
            assert {index for share in everybody for index in share} == set(rest)
    plain = hvd.elastic.ElasticSampler(range(2 * size), shuffle=False)
    assert list(plain) == [rank, rank + size]


def check_the_sampler_goes_on_where_it_stood() -> None:
    sampler = hvd.elastic.ElasticSampler(list(range(60)), seed=1)
    state = hvd.elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    assert sampler.processed_num == 8 * hvd.size()
    state.restore()
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 4 * hvd.size()}
    assert sampler.remaining_indices == order_of(60, 1, 0)[4 * hvd.size() :]
    sampler.record_batch(1, 4)
    state.on_reset()
    assert sampler.remaining_indices == order_of(60, 1, 0)[8 * hvd.size() :]
    sampler.set_epoch(1)
    assert sampler.processed_num == 0
    assert sampler.remaining_indices == order_of(60, 1, 1)


def check_changed_hosts_interrupt_all_ranks() -> None:
    state = hvd.elastic.TorchState(value=1)
    for update, skips in ((1, True), (2, False), (3, False)):
        state.commit()
        if hvd.rank() == 0:
            state.on_hosts_updated(update, update)  # Later than the one before.
        state.value = update
        with pytest.raises(HostsUpdatedInterrupt) as caught:
            state.commit()
        assert caught.value.skip_sync == skips
        state.restore()
        assert state.value == update
    state.commit()


def check_run_joins_again_when_hosts_have_changed() -> None:
    state = hvd.elastic.TorchState(rounds=0, times=hvd.rank())
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any, argument: str) -> str:
        assert state.times == 0
        state.rounds += 1
        if state.rounds < 3:
            if hvd.rank() == 0:
                elastic.notification_manager.handle_hosts_updated(
                    state.rounds, elastic.HostUpdateResult.added
                )
            state.commit()
        return f"{argument} {state.rounds}"

    assert train(state, "after") == "after 3"
    assert resets == [hvd.size()] * 2
    assert hvd.is_initialized()


def check_run_restores_and_raises_when_a_collective_fails() -> None:
    if hvd.size() == 1:
        return
    state = hvd.elastic.TorchState(value=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        state.value = 1
        state.commit()
        state.value = 2
        hvd.allreduce(torch.ones(2 + hvd.rank()), name="mismatch")

    with pytest.raises(hvd.HorovodInternalError, match="Mismatched ALLREDUCE tensor shapes"):
        train(state)
    assert state.value == 1
    assert hvd.allreduce(torch.ones(1)) == 1


def lose_a_rank() -> tuple[int, str]:
    """Train until one rank ends; returns where the state of another stands, and the error."""
    hvd.init()
    state = hvd.elastic.TorchState(step=0)

    @hvd.elastic.run
    def train(state: Any) -> None:
        for _ in range(5):
            state.step += 1
            state.commit()
        if hvd.rank() == 1:
            raise KeyError("rank 1 has had enough")
        state.step += 1
        hvd.allreduce(torch.ones(1), name="never")

    try:
        train(state)
    except hvd.HorovodInternalError as error:
        return state.step, str(error)
    raise AssertionError("nothing was raised")


def test_a_lost_rank_is_named(run_ranks: Callable[..., Any]) -> None:
    job = run_ranks(2, lose_a_rank)
    step, error = job.outcomes["lose_a_rank"][0][1]
    assert step == 5
    assert "rank 1 has had enough" in error
