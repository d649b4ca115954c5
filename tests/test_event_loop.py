# SPDX-License-Identifier: Apache-2.0

import asyncio
import threading
import time

import pytest

from trl_nlac.event_loop import Coroutines, Withdrawn, finish, works_for


class TestCoroutines:
    @pytest.fixture(autouse=True)
    def no_thread_is_left(self):
        before = set(threading.enumerate())
        yield
        for thread in set(threading.enumerate()) - before:
            thread.join(20)
            assert not thread.is_alive(), thread.name

    def test_a_blocked_loop_is_left_behind(self):
        coroutines, began, release = Coroutines(), threading.Event(), threading.Event()

        async def begin():
            began.set()
            await asyncio.sleep(0.01)
            return "begun"

        async def block():
            release.wait(20)
            return "blocker"

        async def follow():
            return "follower"

        def run(coroutine, owner):
            while True:
                try:
                    results.append(coroutines.run(coroutine, owner))
                    return
                except Withdrawn:
                    results.append("withdrawn")

        results = []
        threads = {
            coroutine.__name__: threading.Thread(target=run, args=(coroutine(), coroutine.__name__))
            for coroutine in (begin, block, follow)
        }
        threads["begin"].start()
        assert began.wait(10)
        threads["block"].start()
        while coroutines.blocker_of("block") != "block":
            time.sleep(0.001)
        threads["follow"].start()
        while coroutines.blocker_of("follow") != "block":
            time.sleep(0.001)
        coroutines.replace_blocked()
        threads["follow"].join(10)
        assert results[-2:] == ["withdrawn", "follower"]  # in a new loop
        release.set()
        for thread in threads.values():
            thread.join(10)
        assert sorted(results) == ["begun", "blocker", "follower", "withdrawn"]  # those in the old one finish
        assert coroutines.run(follow()) == "follower"
        coroutines.retire()

    def test_what_is_cancelled_leaves_nothing(self):
        coroutines, started, ended = Coroutines(), threading.Event(), []

        async def hang():
            started.set()
            try:
                await asyncio.gather(asyncio.sleep(60), asyncio.create_task(asyncio.sleep(60)))
            finally:
                ended.append(True)

        def run():
            with pytest.raises(asyncio.CancelledError):
                coroutines.run(hang(), owner="owner")

        thread = threading.Thread(target=run)
        thread.start()
        assert started.wait(10) and coroutines.cancel("owner")
        thread.join(10)
        deadline = time.monotonic() + 10
        while works_for("owner") and time.monotonic() < deadline:
            time.sleep(0.01)
        assert ended == [True] and not works_for("owner")
        coroutines.retire()

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


def test_finish():
    async def fail():
        raise ValueError("no")

    async def fine():
        return 2

    assert finish(1) == 1 and finish(fine()) == 2
    with pytest.raises(ValueError, match="no"):
        finish(fail())
