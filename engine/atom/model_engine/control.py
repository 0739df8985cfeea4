"""Control calls: everything but requests that is asked of an engine core, each declared once.

A control call is a frozen struct: its name, its arguments in order, and which answer each core
gives. A RankControl is also carried out by the runners of a model's ranks. The call's class says
which configurations serve it and which method of the core (`CoreControls`) or the rank
(`RankControls`) carries it out; the wire call, the core's table, the executors and the processes of
the ranks derive from it. Torch-free; knows no socket and no runner.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Annotated, Any, ClassVar, Generic, Protocol, TypeVar

import msgspec

from atom.config import Config

Answer = TypeVar("Answer")
AdapterNumber = Annotated[int, msgspec.Meta(gt=0)]


class At(Enum):
    """Names the ranks of one model copy that carry a call out."""

    CORE = "the rank in the core's own process"
    EVERY_RANK = "every rank that shares the model"


class When(Enum):
    """Says when a rank carries a call out."""

    NOW = "before the next step, while tokens of earlier steps are still awaited"
    BETWEEN_STEPS = "once the tokens of every step have been collected"


class CoreControls(Protocol):
    """The control calls as an engine core carries them out. Each may raise any error, which is
    reported to the caller."""

    def reset_prefix_cache(self) -> None: ...
    def check_integrity(self) -> int: ...
    def start_profile(self) -> None: ...
    def stop_profile(self) -> str: ...
    def load_lora(self, call: LoadLora, tell: Callable[[str | None], None]) -> None: ...
    def unload_lora(self, call: UnloadLora) -> None: ...
    def sleep(self, call: Sleep) -> None: ...
    def wake_up(self, call: WakeUp) -> None: ...
    def check_weights(self, call: CheckWeights) -> str | None: ...
    def update_weights(self, call: UpdateWeights) -> None: ...


class HeldAdapters(Protocol):
    """The adapters that a rank holds, by number."""

    def read(self, path: str) -> Any: ...
    def keep(self, number: int, adapter: Any) -> None: ...
    def drop(self, number: int) -> None: ...


class CopiesPages(Protocol):
    """A rank's part of the pages that engines exchange."""

    def copy(self, group: int, block_ids: Sequence[int], number: int, *, is_read: bool) -> None: ...


class RankControls(Protocol):
    """The control calls as the runner of one rank carries them out."""

    @property
    def adapters(self) -> HeldAdapters | None: ...
    def sleep(self, level: int) -> None: ...
    def wake_up(self) -> None: ...
    def check_weights(self, path: str) -> None: ...
    def update_weights(self, path: str) -> None: ...
    def move_pages(self, call: MovePages) -> None: ...
    def transferred_pages(self) -> CopiesPages: ...


class Control(
    msgspec.Struct, Generic[Answer], frozen=True, array_like=True, forbid_unknown_fields=True
):
    """A call into every engine core. name: on the wire."""

    name: ClassVar[str]

    @property
    def args(self) -> tuple[Any, ...]:
        """Return the arguments in the order of the wire."""
        return msgspec.structs.astuple(self)

    @classmethod
    def is_served(cls, config: Config) -> bool:
        """Tell whether an engine of this configuration takes the call."""
        return True

    def in_core(self, core: CoreControls, tell: Callable[[Answer], None]) -> None:
        """Carry the call out in a core. tell: is called once with the answer, now or later."""
        raise NotImplementedError(f"{self.name} has no method of the core")


class RankControl(Control[Answer], frozen=True):
    """A control call that ranks carry out. at: which of them; when: at what time."""

    at: ClassVar[At] = At.EVERY_RANK
    when: ClassVar[When] = When.BETWEEN_STEPS

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        """Carry the call out on one rank. prepared: the result of work that this rank has done
        ahead, None if it has done none."""
        raise NotImplementedError(f"{self.name} has no method of a rank")


class CallCores(Protocol):
    """Makes a control call in every engine core and returns the answers by rank."""

    def __call__(self, call: Control[Answer], /) -> Awaitable[list[Answer]]: ...


# ---- caches, books and traces -------------------------------------------------------------------


class ResetPrefixCache(Control[None], frozen=True):
    """Forget every cached prompt."""

    name = "reset_prefix_cache"

    def in_core(self, core: CoreControls, tell: Callable[[None], None]) -> None:
        core.reset_prefix_cache()
        tell(None)


class CheckIntegrity(Control[int], frozen=True):
    """Count the blocks that requests hold; an error if the pool's counts do not add up."""

    name = "check_integrity"

    def in_core(self, core: CoreControls, tell: Callable[[int], None]) -> None:
        tell(core.check_integrity())


class StartProfile(Control[None], frozen=True):
    """Begin a trace of the core's process."""

    name = "start_profile"

    def in_core(self, core: CoreControls, tell: Callable[[None], None]) -> None:
        core.start_profile()
        tell(None)


class StopProfile(Control[str], frozen=True):
    """End the trace and answer with the path of its file."""

    name = "stop_profile"

    def in_core(self, core: CoreControls, tell: Callable[[str], None]) -> None:
        tell(core.stop_profile())


# ---- adapters -----------------------------------------------------------------------------------


class _LoraControl(RankControl[Answer], frozen=True):
    when = When.NOW

    @classmethod
    def is_served(cls, config: Config) -> bool:
        return config.lora is not None and config.lora.may_load


class LoadLora(_LoraControl["str | None"], frozen=True):
    """Serve an adapter, a folder or hub id, by this number; the answer is a refusal or None."""

    name = "load_lora"
    number: AdapterNumber
    path: str

    def in_core(self, core: CoreControls, tell: Callable[[str | None], None]) -> None:
        core.load_lora(self, tell)

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        adapters = _adapters_of(rank)
        adapters.keep(self.number, adapters.read(self.path) if prepared is None else prepared)


class UnloadLora(_LoraControl[None], frozen=True):
    """Drop an adapter after its last request; an unknown number is dropped already."""

    name = "unload_lora"
    number: int

    def in_core(self, core: CoreControls, tell: Callable[[None], None]) -> None:
        core.unload_lora(self)
        tell(None)

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        _adapters_of(rank).drop(self.number)


def _adapters_of(rank: RankControls) -> HeldAdapters:
    assert rank.adapters is not None, "adapters are loaded only if they are enabled"
    return rank.adapters


# ---- sleep and weights --------------------------------------------------------------------------


class _SleepControl(RankControl[Answer], frozen=True):
    @classmethod
    def is_served(cls, config: Config) -> bool:
        return config.sleep.enabled


class Sleep(_SleepControl[None], frozen=True):
    """Give the device's memory back. level: a `SleepLevel`; keep: open requests wait, without it
    an open request is an error."""

    name = "sleep"
    level: int
    keep: bool = False

    def in_core(self, core: CoreControls, tell: Callable[[None], None]) -> None:
        core.sleep(self)
        tell(None)

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        rank.sleep(self.level)


class WakeUp(_SleepControl[None], frozen=True):
    """Take the device's memory again, with an empty KV cache. After an error the engine sleeps
    on."""

    name = "wake_up"

    def in_core(self, core: CoreControls, tell: Callable[[None], None]) -> None:
        core.wake_up(self)
        tell(None)

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        rank.wake_up()


class CheckWeights(_SleepControl["str | None"], frozen=True):
    """Check whether a checkpoint's weights can replace these; the answer is a refusal or None. A
    rank raises `ModelError` in place of a refusal."""

    name = "check_weights"
    at = At.CORE
    path: str

    def in_core(self, core: CoreControls, tell: Callable[[str | None], None]) -> None:
        tell(core.check_weights(self))

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        rank.check_weights(self.path)


class UpdateWeights(_SleepControl[None], frozen=True):
    """Replace the weights by those of a checkpoint that `CheckWeights` let pass, with an empty KV
    cache. An engine that sleeps stays asleep. After an error a rank computes nothing any more."""

    name = "update_weights"
    path: str

    def in_core(self, core: CoreControls, tell: Callable[[None], None]) -> None:
        core.update_weights(self)
        tell(None)

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        rank.update_weights(self.path)


# ---- pages of the KV cache ----------------------------------------------------------------------


class MovePages(RankControl[None], frozen=True):
    """Copy blocks of the KV cache to rows of the host's memory (`saves`), and then rows to blocks
    (`loads`), each as `Move` has them. number: of the call. Of the core's own making: no client
    calls it."""

    name = "move_pages"
    when = When.NOW
    number: int
    saves: list[tuple[int, int, int]]
    loads: list[tuple[int, int, int]]

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        rank.move_pages(self)


class CopyPages(RankControl[None], frozen=True):
    """Copy each rank's heads of blocks of a group to the memory that the ranks share, if `is_read`,
    or from it to the blocks. number: of the call. Of the core's own making: no client calls it."""

    name = "copy_pages"
    when = When.NOW
    number: int
    group: int
    block_ids: list[int]
    is_read: bool

    def on_rank(self, rank: RankControls, prepared: Any = None) -> None:
        pages = rank.transferred_pages()
        pages.copy(self.group, self.block_ids, self.number, is_read=self.is_read)


CONTROLS: tuple[type[Control[Any]], ...] = (
    ResetPrefixCache,
    CheckIntegrity,
    StartProfile,
    StopProfile,
    LoadLora,
    UnloadLora,
    Sleep,
    WakeUp,
    CheckWeights,
    UpdateWeights,
)
RANK_CONTROLS: dict[str, type[RankControl[Any]]] = {
    each.name: each for each in CONTROLS if issubclass(each, RankControl)
} | {each.name: each for each in (MovePages, CopyPages)}
