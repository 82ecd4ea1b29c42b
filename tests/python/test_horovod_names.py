"""Horovod's name answered by Hora: the package `horovod`, `horarun --horovod-compat`, `horovodrun`.

The names are those which scripts, Horovod's own tests among them, import. Each check is a process
of its own, since it is about what an interpreter finds on its path. `horovodrun` is run from this
repository's `python/horovod_compat`, as the distribution would install it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import run_command
from support.launching import LIMIT_S, find_horarun

import hora

ALIASES = Path(hora.__file__).parent / "horovod_compat"
DISTRIBUTION = Path(__file__).parents[2] / "python" / "horovod_compat"

NAMES = {
    "horovod": "run __version__",
    "horovod.torch": (
        "Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet "
        "Product Sum SyncBatchNorm add_process_set allgather allgather_async allgather_object "
        "allreduce allreduce_ allreduce_async allreduce_async_ alltoall alltoall_async barrier "
        "broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object "
        "broadcast_optimizer_state broadcast_parameters ccl_built check_extension cross_rank "
        "cross_size cuda_built ddl_built elastic global_process_set gloo_built gloo_enabled "
        "grouped_allgather grouped_allgather_async grouped_allreduce grouped_allreduce_ "
        "grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter "
        "grouped_reducescatter_async init "
        "is_initialized join local_rank local_size mpi_built mpi_enabled mpi_threads_supported "
        "nccl_built poll rank reducescatter reducescatter_async remove_process_set rocm_built "
        "shutdown size sparse_allreduce_async start_timeline stop_timeline synchronize "
        "_check_has_gpu"
    ),
    "horovod.torch.mpi_ops": "allreduce_async_ synchronize poll size rank is_homogeneous join",
    "horovod.torch.compression": "Compression",
    "horovod.torch.functions": (
        "allgather_object broadcast_object broadcast_optimizer_state broadcast_parameters"
    ),
    "horovod.torch.optimizer": "DistributedOptimizer",
    "horovod.torch.sync_batch_norm": "SyncBatchNorm",
    "horovod.torch.elastic": "TorchState ElasticSampler run",
    "horovod.torch.elastic.state": "TorchState",
    "horovod.torch.elastic.sampler": "ElasticSampler",
    "horovod.common.exceptions": (
        "HorovodInternalError HostsUpdatedInterrupt HorovodVersionMismatchError"
    ),
    "horovod.common.util": (
        "env gloo_built mpi_built nccl_built ddl_built ccl_built extension_available gpu_available "
        "_cache split_list check_installed_version num_rank_is_power_2"
    ),
    "horovod.common.elastic": "State ObjectState run_fn notification_manager",
    "horovod.common.process_sets": "ProcessSet global_process_set add_process_set",
    "horovod.common.basics": "HorovodBasics",
    "horovod.runner": "run _HorovodArgs",
    "horovod.runner.util.threads": "in_thread on_event execute_function_multithreaded",
    "horovod.runner.common.util.env": "get_env_rank_and_size",
    "horovod.runner.launch": (
        "parse_args _run_elastic _run run_commandline run_controller gloo_built mpi_built"
    ),
    "horovod.runner.common.util.config_parser": (
        "set_env_from_args set_args_from_config validate_config_args HOROVOD_FUSION_THRESHOLD "
        "HOROVOD_TIMELINE"
    ),
    "horovod.runner.elastic.constants": "RESET_LIMIT_EXCEEDED_MESSAGE",
    "horovod.runner.elastic.driver": "DISCOVER_HOSTS_FREQUENCY_SECS ELASTIC_TIMEOUT_SECS",
    "horovod.runner.gloo_run": "_get_min_start_hosts gloo_run launch_gloo",
    "horovod.runner.common.util.hosts": (
        "HostInfo SlotInfo INVALID_SLOT_INFO get_host_assignments parse_host_files parse_hosts "
        "parse_hosts_and_slots"
    ),
    "horovod.runner.common.util.safe_shell_exec": (
        "execute prefix_connection GRACEFUL_TERMINATION_TIME_S"
    ),
    "horovod.runner.common.util.secret": "make_secret_key compute_digest check_digest",
    "horovod.runner.common.util.settings": "Settings",
    "horovod.runner.common.util.timeout": "Timeout TimeoutException",
    "horovod.runner.common.util.host_hash": "host_hash",
}

FIND = """
import importlib, sys
names = eval(sys.argv[1])
missing = []
for module, wanted in names.items():
    found = importlib.import_module(module)
    missing += [f'{module}.{name}' for name in wanted.split() if not hasattr(found, name)]
import hora.torch, horovod.torch
assert horovod.torch.DistributedOptimizer is hora.torch.DistributedOptimizer
print('missing:', missing)
"""

# As its users have written it: nothing here knows of Hora.
SCRIPT = """
import torch
import horovod.torch as hvd

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size())
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
weights = hvd.allgather(model.weight.detach())
assert all(torch.equal(row, weights[0]) for row in weights)
print(f'trained {hvd.rank()} of {hvd.size()}')
"""


@pytest.fixture
def horovod_installed(tmp_path: Path) -> str:
    """A folder in which a distribution of the name horovod is installed, for PYTHONPATH."""
    site = tmp_path / "site"
    info = site / "horovod-0.28.1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: horovod\nVersion: 0.28.1\n")
    package = site / "horovod"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('this is the real horovod')\n")
    return str(site)


def path_with(*folders: Path | str) -> dict[str, str]:
    """Return PYTHONPATH with these folders first."""
    rest = filter(None, [os.environ.get("PYTHONPATH")])
    return {"PYTHONPATH": os.pathsep.join([*map(str, folders), *rest])}


@pytest.mark.parametrize("folder", [ALIASES, DISTRIBUTION], ids=["aliases", "distribution"])
def test_every_name_is_found(folder: Path) -> None:
    status, output = run_command([sys.executable, "-c", FIND, repr(NAMES)], 60, path_with(folder))
    assert status == 0, output
    assert "missing: []" in output


def test_a_script_of_horovods_runs_unchanged(tmp_path: Path, horovod_installed: str) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    command = [find_horarun(), "--horovod-compat", "-np", "2", sys.executable, str(script)]
    status, output = run_command(command, 90, path_with(horovod_installed))
    assert status == 0, output
    assert "[0]<stdout>:trained 0 of 2" in output
    assert "[1]<stdout>:trained 1 of 2" in output


def test_without_the_option_the_name_is_not_ours(horovod_installed: str) -> None:
    command = [find_horarun(), "-np", "1", sys.executable, "-c", "import horovod"]
    status, output = run_command(command, 60, path_with(horovod_installed))
    assert status == 1
    assert "this is the real horovod" in output


def test_the_command_horovodrun_starts_ranks_and_ends_as_they_do() -> None:
    start = "from horovod.runner.launch import run_commandline; run_commandline()"
    check = "import sys, horovod.torch as hvd; hvd.init(); sys.exit(3 * (hvd.size() == 2))"
    command = [sys.executable, "-c", start, "-np", "2", "--gloo", sys.executable, "-c", check]
    status, output = run_command(command, 60, path_with(DISTRIBUTION))
    assert status == 3, output


def test_beside_horovod_the_distribution_refuses(horovod_installed: str) -> None:
    command = [sys.executable, "-c", "import horovod"]
    status, output = run_command(command, 60, path_with(DISTRIBUTION, horovod_installed))
    assert status == 1
    assert "ImportError: Horovod 0.28.1 is installed, and so is hora-horovod-compat" in output
    assert "uninstall one of them" in output


def test_horovod_run_returns_what_ranks_return_and_names_who_failed() -> None:
    program = """
import horovod, pytest

def place(base):
    import horovod.torch as hvd
    hvd.init()
    return base + hvd.rank()

def fail():
    raise KeyError('lost')

assert horovod.run(place, (10,), num_proc=2) == [10, 11]
with pytest.raises(RuntimeError, match='one or more processes exited with non-zero') as caught:
    horovod.run(fail, np=1)
assert isinstance(caught.value.__cause__, KeyError)
print('as expected')
"""
    pytest.importorskip("cloudpickle")
    status, output = run_command([sys.executable, "-c", program], 90, path_with(ALIASES))
    assert status == 0, output
    assert "as expected" in output


def test_gloo_run_runs_a_command() -> None:
    program = """
from types import SimpleNamespace as Settings
from horovod.runner.gloo_run import gloo_run
gloo_run(Settings(num_proc=2, hosts='localhost:2'), None, None, None, 'echo here')
try:
    gloo_run(Settings(num_proc=1, hosts=None), None, None, None, ['sh', '-c', 'exit 3'])
except RuntimeError as error:
    assert 'Exit code: 3' in str(error)
    print('as expected')
"""
    status, output = run_command([sys.executable, "-c", program], 60, path_with(ALIASES))
    assert status == 0, output
    assert "[1]<stdout>:here" in output
    assert "as expected" in output


def ends_as_expected(program: str) -> str:
    """Run a program that sees Horovod's name, and return its output."""
    status, output = run_command([sys.executable, "-c", program], 60, path_with(ALIASES))
    assert status == 0, output
    assert "as expected" in output
    return output


def test_launch_gloo_and_the_choice_of_a_controller() -> None:
    output = ends_as_expected("""
import pytest
from types import SimpleNamespace as Settings
from horovod.runner.gloo_run import launch_gloo
from horovod.runner.launch import run_controller
job = Settings(num_proc=2, hosts='localhost:2')
launch_gloo('echo here', None, job, None, None, None)
with pytest.raises(NotImplementedError, match='exec_command must be None'):
    launch_gloo('echo here', print, job, None, None, None)
chosen = []
for gloo, mpi in ((True, False), (None, None), (True, True)):
    run_controller(gloo, lambda: chosen.append('gloo'), mpi, None, None, None, 0)
with pytest.raises(ValueError, match='MPI support has not been built'):
    run_controller(False, None, True, print, None, None, 0)
assert chosen == ['gloo'] * 3
print('as expected')
""")
    assert "[1]<stdout>:here" in output


def test_hosts_get_ranks_as_horarun_deals_them(tmp_path: Path) -> None:
    file = tmp_path / "hosts"
    file.write_text("a slots=2\n\n# a comment\nb:1  # another\n")
    ends_as_expected(f"""
import pytest
from horovod.runner.common.util.hosts import *
text = parse_host_files({str(file)!r})
assert text == 'a:2,b:1'
assert parse_hosts_and_slots(text) == (['a', 'b'], {{'a': 2, 'b': 1}})
places = [slot.to_response_string() for slot in get_host_assignments(parse_hosts(text), 3)]
assert places == ['0,3,0,2,0,2', '1,3,1,2,0,1', '2,3,0,1,1,2']
assert [slot.size for slot in get_host_assignments(parse_hosts(text), 1, 2)] == [2, 2]
with pytest.raises(ValueError, match='Requested more processes .4. than there are available slots'):
    get_host_assignments(parse_hosts(text), 4)
with pytest.raises(ValueError, match='Invalid host input'):
    parse_hosts_and_slots('a')
print('as expected')
""")


def test_commands_are_run_to_their_end_or_ended() -> None:
    ends_as_expected("""
import io, threading
from horovod.runner.common.util import safe_shell_exec as shell
def run(command, **options):
    out, err = io.StringIO(), io.StringIO()
    return shell.execute(command, stdout=out, stderr=err, **options), out.getvalue(), err.getvalue()
assert run('echo a; echo b >&2; exit 3') == (3, 'a\\n', 'b\\n')
assert run('printf "x\\ry\\nz"', index=5)[1] == '[5]<stdout>:x\\r[5]<stdout>:y\\n[5]<stdout>:z'
assert run(['kill', '-9', '$$']) == (137, '', '')
assert run('echo $A', env={'A': 'mine', 'PATH': '/bin:/usr/bin'})[1] == 'mine\\n'
event = threading.Event()
event.set()
assert run('sleep 1000; exit 7', events=[event])[0] == 143
print('as expected')
""")


def test_a_command_ends_with_who_runs_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    program = f"""
from horovod.runner.common.util.safe_shell_exec import execute
execute("exec > {pipe}; echo up; sleep 1000; true")
"""
    job = subprocess.Popen(
        [sys.executable, "-c", program], env={**os.environ, **path_with(ALIASES)}
    )
    with pipe.open() as output:
        assert output.readline() == "up\n"
        job.kill()
        assert select.select([output], [], [], LIMIT_S)[0]
        assert output.read() == ""  # Nobody holds the other end any more.
    job.wait()


def test_limits_secrets_and_names_of_hosts() -> None:
    ends_as_expected("""
import pytest
from horovod.runner.common.util import secret, timeout
from horovod.runner.common.util.host_hash import host_hash
from horovod.runner.common.util.settings import Settings
key = secret.make_secret_key()
assert secret.check_digest(key, b'text', secret.compute_digest(key, b'text'))
assert not secret.check_digest(key, b'text', secret.compute_digest(b'other', b'text'))
with pytest.raises(timeout.TimeoutException, match='after 0 seconds of waiting'):
    timeout.Timeout(0, 'after {timeout} seconds of {activity}').check_time_out_for('waiting')
timeout.Timeout(1000, '').check_time_out_for('anything')
assert host_hash() == host_hash('') != host_hash('salt')
settings = Settings(hosts='a:1', num_proc=1, run_func_mode=True)
assert (settings.hosts, settings.run_func_mode, settings.nics) == ('a:1', True, None)
print('as expected')
""")
