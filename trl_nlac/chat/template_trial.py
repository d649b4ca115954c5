# SPDX-License-Identifier: Apache-2.0

"""A chat template of others is tried in a bounded child process before it runs in this one."""

import os
import signal
import sys
from itertools import product
from typing import Any, NoReturn

from transformers import PreTrainedTokenizerBase

from .tool_calls import call_message


SECONDS, MEMORY, CHARACTERS = 10, 2**30, 10**6  # honest templates take milliseconds
_USER, _ANSWER = {"role": "user", "content": "A"}, {"role": "assistant", "content": "B"}
_CONVERSATIONS = (
    [_USER],
    [_USER, _USER],
    [_USER, _ANSWER, _USER],
    [{"role": "system", "content": "C"}, _USER],
    [_USER, call_message([("D", {"x": "1"})]), {"role": "tool", "name": "D", "content": "E"}],
)
_TOOL = {"type": "function", "function": {"name": "D", "parameters": {}}}
_tried: set[str] = set()


def refuse_endless(tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]) -> None:
    """Render short conversations; a `ValueError` beyond 10 s of CPU time, 1 GiB, or a million characters (Linux)."""
    key = repr((tokenizer.chat_template, kwargs))
    if key in _tried or sys.platform != "linux":
        return
    child = os.fork()
    if not child:
        _try_out(tokenizer, kwargs)
    if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) in (1, -signal.SIGXCPU, -signal.SIGKILL):
        raise ValueError(
            f"The chat template of the tokenizer (`processing_class`) takes more than {SECONDS} s, {MEMORY >> 30} GiB "
            f"or {CHARACTERS:,} characters to render three words. Use another."
        )
    _tried.add(key)


def _try_out(tokenizer: PreTrainedTokenizerBase, kwargs: dict[str, Any]) -> NoReturn:
    is_too_large = False
    try:
        _limit()
        for messages, more in product(_CONVERSATIONS, ({}, {"enable_thinking": False}, {"tools": [_TOOL]})):
            options = {**kwargs, **more, "tokenize": False, "add_generation_prompt": True}
            try:
                is_too_large |= len(tokenizer.apply_chat_template(messages, **options)) > CHARACTERS
            except MemoryError:
                is_too_large = True
            except Exception:  # of the template's own code, which is met again without limits
                continue
    finally:
        os._exit(is_too_large)


def _limit() -> None:
    import resource  # which Windows does not have

    with open("/proc/self/statm") as file:
        size = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY))
    signal.alarm(300)  # where another thread held a lock at the fork: no judgement
