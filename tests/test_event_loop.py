# SPDX-License-Identifier: Apache-2.0

import asyncio
import threading

import pytest

from trl_nlac.event_loop import Coroutines, works_for


class TestCoroutines:
    @pytest.fixture(autouse=True)
    def no_thread_is_left(self):
        before = set(threading.enumerate())
        yield
        for thread in set(threading.enumerate()) - before:
            thread.join(20)
            assert not thread.is_alive(), thread.name

    def test_threads_of_a_coroutine_hold_up_neither_others_nor_the_end(self):
        coroutines, release, started = Coroutines(), threading.Event(), threading.Semaphore(0)

        def wait():
            started.release()
            release.wait(20)

        async def hang():
            await asyncio.gather(*(asyncio.to_thread(wait) for _ in range(40)))

        async def fine():
            return await asyncio.to_thread(threading.current_thread)

        def run():
            with pytest.raises(asyncio.CancelledError):
                coroutines.run(hang(), owner="owner")

        thread = threading.Thread(target=run)
        thread.start()
        for _ in range(40):  # more than a pool of asyncio has
            assert started.acquire(timeout=10)
        assert coroutines.cancel("owner")
        thread.join(10)
        assert coroutines.run(fine()).daemon
        assert works_for("owner")
        release.set()
        coroutines.retire()
