# SPDX-License-Identifier: Apache-2.0

"""A chat model that is asked too much."""

import threading
import time
from collections.abc import Callable


def answers_at_a_time(number: int, text: str) -> Callable[[list[dict]], str]:
    places = threading.Semaphore(number)

    def answer(messages: list[dict]) -> str:
        if not places.acquire(blocking=False):
            return "These are too many."
        time.sleep(0.05)
        places.release()
        return text

    return answer
