"""Types of the extension module; see python/bindings."""

__version__: str
ALLREDUCE: int
ALLGATHER: int
BROADCAST: int
BARRIER: int
REDUCESCATTER: int
ALLTOALL: int
DTYPES: dict[str, int]

def address(buffer: object) -> int: ...
def codec(words: str) -> str: ...

class Output:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class Handle:
    def done(self) -> bool: ...
    def take_output(self, element_bytes: int) -> Output: ...
    @property
    def output_shape(self) -> tuple[int, ...]: ...
    @property
    def first_dims(self) -> tuple[int, ...]: ...
    @property
    def contributions(self) -> list[tuple[int | None, tuple[int, ...]]]: ...

class Runtime:
    @staticmethod
    def start(process_sets: list[list[int]]) -> Runtime: ...
    def submit(
        self,
        kind: int,
        name: str | None,
        dtype: int,
        shape: tuple[int, ...],
        source: int,
        target: int,
        op: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        root: int = ...,
        splits: tuple[int, ...] = ...,
        process_set: int = ...,
        codec: str = ...,
    ) -> Handle: ...
    def run(
        self,
        kind: int,
        name: str | None,
        dtype: int,
        shape: tuple[int, ...],
        source: int,
        target: int,
        keep: object,
        op: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        root: int = ...,
        process_set: int = ...,
        codec: str = ...,
    ) -> None: ...
    def produce(
        self,
        kind: int,
        name: str | None,
        dtype: int,
        shape: tuple[int, ...],
        source: int,
        keep: object,
        op: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        splits: tuple[int, ...] = ...,
        process_set: int = ...,
    ) -> Handle: ...
    def submit_group(
        self,
        kind: int,
        name: str | None,
        dtypes: list[int],
        shapes: list[tuple[int, ...]],
        sources: list[int],
        targets: list[int],
        op: int = ...,
        prescale: float = ...,
        postscale: float = ...,
        process_set: int = ...,
        codec: str = ...,
    ) -> list[Handle]: ...
    def refuse(
        self, kind: int, name: str | None, why: str, process_set: int, members: int = ...
    ) -> None: ...
    def join(self) -> int: ...
    def add_process_set(self, ranks: list[int]) -> int: ...
    def remove_process_set(self, number: int) -> int: ...
    def process_sets(self) -> dict[int, list[int]]: ...
    def wait(self, handle: Handle) -> None: ...
    def poll(self, handle: Handle) -> bool: ...
    def start_timeline(self, pattern: str, mark_cycles: bool) -> None: ...
    def stop_timeline(self) -> None: ...
    def shutdown(self, last_words: str) -> None: ...
    def on_fork_child(self) -> None: ...
    def require_own_process(self) -> None: ...
    def stats(self) -> dict[str, int]: ...
    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def cross_rank(self) -> int: ...
    @property
    def cross_size(self) -> int: ...
    @property
    def is_homogeneous(self) -> bool: ...
