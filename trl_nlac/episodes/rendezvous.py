# SPDX-License-Identifier: Apache-2.0

"""Where processes wait for those that still play, or read and write the files of a run."""

import logging
import time
from datetime import timedelta

import torch.distributed as dist
from accelerate.utils import gather_object

from ..terminal import printable


logger = logging.getLogger(__name__)

_LONG = timedelta(days=365)
_PLAYING = "which still play. Lower `environment_timeout` or `max_turns` if their environments hang"


class Rendezvous:
    """
    Let processes wait for one another, however long the environments or the files of some take. In a collective of
    NCCL the watchdog would end those that wait after `ddp_timeout` seconds, and with them the run. A process that
    waits says so every `interval` seconds.
    """

    def __init__(self, interval: float):
        self.interval = interval
        is_alone = not dist.is_initialized() or dist.get_world_size() == 1
        self._group = None if is_alone else dist.new_group(backend="gloo", timeout=_LONG)

    def wait(self, busy: str = _PLAYING) -> None:
        """Return when all have called this; say what others are `busy` with. If one has ended: a `RuntimeError`."""
        if self._group is None:
            return
        arrival, start, next_report = dist.barrier(self._group, async_op=True), time.monotonic(), self.interval
        while not arrival.is_completed():
            time.sleep(0.005)
            waited = time.monotonic() - start
            if waited > next_report:
                next_report += self.interval
                logger.warning(f"Process {dist.get_rank()} has waited for {waited:,.0f} seconds for others, {busy}.")
        arrival.wait()


def raise_on_all(error: BaseException | None) -> None:
    """
    Raise an error of one process on all of them, so that none waits for those that met it. All processes call this.
    Raise `BaseException`: what this process met. Raise a `RuntimeError` if only others met something. The message
    names the first of them.
    """
    met = gather_object([None if error is None else f"{type(error).__name__}: {printable(str(error))}"])
    if error is not None:
        raise error
    for rank, text in enumerate(met):
        if text is not None:
            raise RuntimeError(f"Process {rank} cannot go on, and the others stop with it: {text}")
