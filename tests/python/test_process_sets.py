"""Process sets: groups of ranks that run collectives of their own."""

from __future__ import annotations

import copy
import pickle
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import hora.numpy as hvd


@pytest.mark.parametrize("size", [1, 2, 4])
def test_process_sets(
    checked: Callable[..., list[Any]], check: Callable[[], Any], size: int
) -> None:
    """Run every check of this file."""
    checked(check, size)


def halves() -> tuple[hvd.ProcessSet, hvd.ProcessSet | None, hvd.ProcessSet]:
    """Add the sets of even and of odd ranks: both, and this rank's."""
    if hvd.size() == 1:
        return hvd.global_process_set, None, hvd.global_process_set
    even = hvd.add_process_set(range(0, hvd.size(), 2))
    odd = hvd.add_process_set(range(1, hvd.size(), 2))
    return even, odd, even if even.included() else odd


def end(*sets: hvd.ProcessSet | None) -> None:
    """Remove the sets."""
    for process_set in sets:
        if process_set not in (None, hvd.global_process_set):
            assert hvd.remove_process_set(process_set)
    assert hvd.get_process_set_ids_and_ranks() == {0: list(range(hvd.size()))}


def raises(kind: type[Exception], call: Callable[[], Any], text: str) -> Exception:
    """Return what the call raises, which is of this very type and says so."""
    with pytest.raises(kind, match=text) as caught:
        call()
    assert (caught.type is ValueError) == (kind is ValueError)
    return caught.value


def together() -> None:
    """All ranks still mean the same."""
    assert hvd.allreduce([hvd.rank()], op=hvd.Sum).tolist() == [sum(range(hvd.size()))]


def check_a_set_before_and_after_the_job_knows_it() -> None:
    everybody = hvd.ProcessSet(range(4))
    assert (everybody.process_set_id, everybody.ranks) == (None, [0, 1, 2, 3])
    assert hvd.global_process_set.process_set_id == 0
    assert hvd.global_process_set.ranks == []
    hvd.init()
    assert hvd.global_process_set.ranks == list(range(hvd.size()))
    assert hvd.global_process_set.rank() == hvd.rank()
    assert str(hvd.ProcessSet([2, 0])) == (
        "ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)"
    )
    mine = hvd.ProcessSet([0])
    assert mine.included() == (hvd.rank() == 0)
    assert mine.size() is None
    assert mine.rank() is None
    if hvd.size() == 1:
        return  # Its only set is the global one.
    assert hvd.add_process_set(mine) is mine
    assert (mine.process_set_id, mine.size()) == (1, 1)
    assert hvd.process_set_included(mine) == (hvd.rank() == 0)
    if hvd.rank() == 0:
        assert mine.rank() == 0
    else:
        raises(ValueError, mine.rank, "Process is not part of provided process set")
    assert copy.deepcopy(mine) is mine
    assert pickle.loads(pickle.dumps(mine)).ranks == [0]
    assert pickle.loads(pickle.dumps(hvd.global_process_set)) is hvd.global_process_set
    hvd.barrier()
    hvd.shutdown()
    assert mine.process_set_id is None
    hvd.init()
    assert mine.process_set_id is None
    raises(ValueError, lambda: hvd.barrier(mine), "does not exist, or has not been registered")
    assert hvd.add_process_set(mine).process_set_id == 1
    end(mine)
    assert mine.process_set_id is None


def check_what_is_no_set_of_ranks() -> None:
    hvd.init()
    for ranks in ([0, "1"], 3, None):
        raises(ValueError, lambda ranks=ranks: hvd.ProcessSet(ranks), "list of process ranks")
    raises(ValueError, lambda: hvd.ProcessSet([2**40]), "not ranks")
    raises(ValueError, lambda: hvd.barrier(1), "must be a ProcessSet")  # type: ignore[arg-type]
    assert hvd.ProcessSet(np.arange(3)).ranks == [0, 1, 2]


def check_static_sets() -> None:
    size = hvd.size()
    hvd.barrier()
    hvd.shutdown()
    if size == 1:
        return
    order = sorted if hvd_rank() % 2 == 0 else reversed
    impossible = [
        ([[0], range(size), [0]], "entry number 1.* duplicate"),
        ([[0], [0]], "entry number 1.* duplicate"),
        ([[0], [size]], f"rank {size} of a process set is not one of"),
        ([[0, 0]], "names rank 0 twice"),
        ([[]], "at least one rank"),
        ([[hvd_rank()]], "set them alike on all ranks"),
    ]
    for ranks, text in impossible:
        sets = [hvd.ProcessSet(some) for some in ranks]
        raises(ValueError, lambda sets=sets: hvd.init(process_sets=sets), text)
        assert not hvd.is_initialized()
    raises(ValueError, lambda: hvd.init(process_sets="static"), "dynamic")
    raises(ValueError, lambda: hvd.init(process_sets=[[0]]), "is none")  # type: ignore[list-item]

    first = hvd.ProcessSet([0])
    rest = hvd.ProcessSet(order(range(1, size)))
    hvd.init(process_sets=[first, rest])
    assert (first.process_set_id, rest.process_set_id) == (1, 2)
    assert hvd.get_process_set_ids_and_ranks() == {
        0: list(range(size)),
        1: [0],
        2: list(range(1, size)),
    }
    mine = first if first.included() else rest
    assert hvd.allreduce([1.0], op=hvd.Sum, process_set=mine).tolist() == [mine.size()]
    again = hvd.ProcessSet([0])
    hvd.init(process_sets=[again])
    assert again.process_set_id == 1
    unknown = hvd.ProcessSet(range(size))
    assert hvd.remove_process_set(rest)
    raises(ValueError, lambda: hvd.init(process_sets=[rest]), "initialized already")
    raises(ValueError, lambda: hvd.add_process_set(unknown), "duplicate process set")
    hvd.barrier()
    hvd.shutdown()
    hvd.init(process_sets="Dynamic")
    together()


def hvd_rank() -> int:
    """Return the rank of this process, also between jobs."""
    import os

    return int(os.environ["HORA_RANK"])


def check_every_collective_in_two_sets_at_once() -> None:
    hvd.init()
    even, odd, mine = halves()
    ranks = mine.ranks
    me = mine.rank()
    for count in (1, 17, 5000, 300_000):
        values = [np.arange(count) % 7 + rank for rank in ranks]
        own = values[me].astype(np.float64)
        total = np.sum(values, axis=0)
        for reduced in (
            hvd.allreduce(own, op=hvd.Sum, name="same", process_set=mine),
            hvd.allreduce_(own.copy(), op=hvd.Sum, name="same", process_set=mine),
            hvd.synchronize(hvd.allreduce_async(own, op=hvd.Sum, process_set=mine)),
            hvd.synchronize(hvd.allreduce_async_(own.copy(), op=hvd.Sum, process_set=mine)),
        ):
            np.testing.assert_array_equal(reduced, total)
        average = hvd.allreduce(own, process_set=mine)
        np.testing.assert_allclose(average, total / len(ranks))
        rows = [np.full((rank + 1, count // 10), rank) for rank in ranks]
        gathered = hvd.allgather(rows[me], name="same", process_set=mine)
        np.testing.assert_array_equal(gathered, np.concatenate(rows))
        own_rows = np.arange(2 * len(ranks) + 1)[:, None] + np.full((1, count // 10), hvd.rank())
        part = hvd.reducescatter(own_rows, op=hvd.Sum, name="same", process_set=mine)
        first = me * 2 + min(me, 1)
        everything = len(ranks) * np.arange(2 * len(ranks) + 1)[:, None] + sum(ranks)
        expected = np.repeat(everything, count // 10, axis=1)[first : first + 2 + (me == 0)]
        np.testing.assert_array_equal(part, expected)
        splits = [place + 1 for place in range(len(ranks))]
        got, rows_from = hvd.alltoall(
            np.full((sum(splits), count // 10), hvd.rank()), splits, name="same", process_set=mine
        )
        assert rows_from.tolist() == [me + 1] * len(ranks)
        givers = np.repeat(ranks, me + 1)[:, None]
        np.testing.assert_array_equal(got, np.repeat(givers, count // 10, axis=1))
        for root in ranks:
            sent = hvd.broadcast(own, root, name="same", process_set=mine)
            np.testing.assert_array_equal(sent, values[ranks.index(root)])
    hvd.barrier(mine)
    assert hvd.broadcast_object(hvd.rank(), ranks[-1], process_set=mine) == ranks[-1]
    assert hvd.allgather_object(hvd.rank(), process_set=mine) == ranks
    together()
    end(odd, even)


def check_overlapping_sets_in_any_order_on_every_rank() -> None:
    hvd.init()
    size = hvd.size()
    sets = [hvd.global_process_set]
    if size > 1:
        sets += [hvd.add_process_set([0]), hvd.add_process_set([size - 1])]
    if size > 2:
        sets += [hvd.add_process_set([rank, (rank + 1) % size]) for rank in range(size)]
    shuffle = random.Random(hvd.rank()).shuffle
    for step in range(20):
        calls = [(s, count) for s in sets if s.included() for count in (3, 2000, 100_000)]
        shuffle(calls)
        handles = [
            (
                hvd.allreduce_async(
                    np.full(count, float(hvd.rank())), op=hvd.Sum, name=str(count), process_set=s
                ),
                sum(s.ranks),
                count,
            )
            for s, count in calls
        ]
        shuffle(handles)
        for handle, total, count in handles:
            result = hvd.synchronize(handle)
            assert result.shape == (count,), step
            assert (result == total).all(), step
    end(*sets[1:])


def check_sets_do_not_wait_for_each_other() -> None:
    hvd.init()
    even, odd, mine = halves()
    late = hvd.allreduce_async([1.0], name="late") if hvd.rank() == 0 else None
    # Rank 0 alone has "late"; its set and the others go on.
    for i in range(200):
        assert hvd.allreduce([1.0], op=hvd.Sum, process_set=mine).tolist() == [mine.size()]
        if i % 50 == 0:
            hvd.barrier(mine)
    if late is None:
        late = hvd.allreduce_async([1.0], name="late")
    assert hvd.synchronize(late).tolist() == [1.0]
    end(even, odd)


def check_unnamed_collectives_are_counted_by_set() -> None:
    hvd.init()
    even, odd, mine = halves()
    for _ in range(5 if mine is even else 2):
        hvd.allreduce([1.0], process_set=mine)
    together()
    end(even, odd)


def check_mistakes_that_one_rank_makes() -> None:
    hvd.init()
    even, odd, mine = halves()
    other = odd if mine is even else even
    if other is not None:
        text = f"Rank {hvd.rank()} is not a member of the provided process set"
        raises(ValueError, lambda: hvd.allreduce([1.0], process_set=other), f"Allreduce: {text}")
        raises(ValueError, lambda: hvd.allreduce_async([1.0], process_set=other), text)
        raises(ValueError, lambda: hvd.allgather([1.0], process_set=other), f"Allgather: {text}")
        raises(ValueError, lambda: hvd.barrier(other), f"Barrier: {text}")
        root = other.ranks[0]
        raises(ValueError, lambda: hvd.broadcast([1.0], root, process_set=other), text)
        raises(
            ValueError,
            lambda: hvd.broadcast([1.0], root, process_set=mine),
            f"invalid root rank {root} for provided process set",
        )
    unknown = hvd.ProcessSet([0])
    for call in (
        lambda: hvd.allreduce([1.0], process_set=unknown),
        lambda: hvd.broadcast([1.0], 0, process_set=unknown),
        lambda: hvd.allgather_async([1.0], process_set=unknown),
        lambda: hvd.broadcast_object(1, 0, process_set=unknown),
    ):
        raises(ValueError, call, "Process set provided does not exist, or has not been registered")
    assert hvd.remove_process_set(unknown) is False
    assert hvd.remove_process_set(hvd.global_process_set) is False
    assert hvd.allreduce([1.0], op=hvd.Sum, process_set=mine).tolist() == [mine.size()]
    end(even, odd)


def check_mistakes_that_all_ranks_make() -> None:
    hvd.init()
    size = hvd.size()
    for ranks, text in (
        ([0, 99], "rank 99 of a process set is not one of"),
        ([-1], "rank -1 of a process set"),
        ([0, 0], "names rank 0 twice"),
        ([], "at least one rank"),
        (range(size), "Attempted to add a duplicate process set"),
        (hvd.global_process_set, "Attempted to add a duplicate process set"),
    ):
        raises(ValueError, lambda ranks=ranks: hvd.add_process_set(ranks), text)
        together()
    if size == 1:
        return
    first = hvd.add_process_set([0])
    raises(ValueError, lambda: hvd.add_process_set([0]), r"duplicate process set.*process set 1 ")
    raises(ValueError, lambda: hvd.add_process_set(first), "duplicate process set")
    assert first.process_set_id == 1
    end(first)


def check_ranks_that_disagree() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    error = raises(
        hvd.HoraInternalError,
        lambda: hvd.add_process_set([hvd.rank()]),
        "Mismatched process sets: One rank wants to add",
    )
    assert error.kind == "mismatch"  # type: ignore[attr-defined]
    assert "rank 1 submitted [1]" in str(error)
    first, second = hvd.add_process_set([0]), hvd.add_process_set([1])
    text = "Mismatched process sets: One rank wants to remove 1, but another rank wants to remove 2"
    mine = first if hvd.rank() == 0 else second
    raises(hvd.HoraInternalError, lambda: hvd.remove_process_set(mine), text)
    text = "Mismatched operations: One rank did an .*_PROCESS_SET, but another rank did an "
    if hvd.rank() == 0:
        raises(hvd.HoraInternalError, lambda: hvd.add_process_set(range(1, hvd.size())), text)
    else:
        raises(hvd.HoraInternalError, lambda: hvd.remove_process_set(first), text)
    # They are what they were.
    if mine.included():
        assert hvd.allreduce([1.0], op=hvd.Sum, process_set=mine).tolist() == [1.0]
    # Ranks that disagree within a set do not concern the others.
    everybody_else = hvd.add_process_set(range(1, hvd.size())) if hvd.size() > 2 else None
    if everybody_else is not None and everybody_else.included():
        shape = 3 if hvd.rank() == 1 else 4
        error = raises(
            hvd.HoraInternalError,
            lambda: hvd.allreduce(np.ones(shape), name="x", process_set=everybody_else),
            "Mismatched ALLREDUCE tensor shapes",
        )
        assert "process set 3: rank 1 submitted float64[3], ranks 2,3 submitted" in str(error)
    together()
    end(first, second, everybody_else)


def check_removing_a_set_that_is_waited_for() -> None:
    hvd.init()
    if hvd.size() == 1:
        return
    pair = hvd.add_process_set([0, 1]) if hvd.size() > 2 else None
    if pair is None:
        return
    for _ in range(3):
        handle = hvd.allreduce_async([1.0], name="alone", process_set=pair) if not hvd.rank() else 0
        together()
        number = pair.process_set_id
        assert hvd.remove_process_set(pair)
        assert pair.process_set_id is None
        if hvd.rank() == 0:
            raises(
                hvd.HoraInternalError,
                lambda handle=handle: hvd.synchronize(handle),
                f"process set {number} was removed while tensor 'allreduce.alone' waited for",
            )
        raises(ValueError, lambda pair=pair: hvd.barrier(pair), "does not exist")
        # The number is given away again, and names other ranks now.
        pair = hvd.add_process_set([0, 2])
        assert pair.process_set_id == number
        if pair.included():
            result = hvd.allreduce([1.0], op=hvd.Sum, name="alone", process_set=pair)
            assert result.tolist() == [2.0]
        assert hvd.remove_process_set(pair)
        pair = hvd.add_process_set([0, 1])
    end(pair)


def check_threads_of_a_rank_use_different_sets() -> None:
    hvd.init()
    even, odd, mine = halves()
    failures: list[BaseException] = []

    def work(process_set: hvd.ProcessSet, prefix: str) -> None:
        try:
            for i in range(50):
                values = np.full(1000 * (i % 3 + 1), 1.0)
                result = hvd.allreduce(
                    values, op=hvd.Sum, name=f"{prefix}{i}", process_set=process_set
                )
                assert (result == process_set.size()).all()
        except BaseException as error:
            failures.append(error)

    everybody = hvd.global_process_set
    threads = [
        threading.Thread(target=work, args=(mine, "x")),
        # The same names in another set; one rank alone has no other set.
        threading.Thread(target=work, args=(everybody, "z" if mine is everybody else "x")),
        threading.Thread(target=work, args=(mine, "y")),
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    end(even, odd)
