# SPDX-License-Identifier: Apache-2.0

"""Files that anybody can have written: whatever one value is, the others are read."""

import copy
import json
import random

import pytest
from helpers.log_samples import (
    ANSWER,
    ASKED,
    CALLED,
    CALLING,
    RESULT,
    SAID,
    SEEN,
    TEXT,
    chat_span,
    otlp,
    request,
    run,
    score,
    simulation,
)

from trl_nlac.gateway.parsed_json import MAX_DEPTH
from trl_nlac.log_formats.log_files import read_logs


def nested(levels: int) -> dict[str, list]:
    return {"x": [nested(levels - 2)] if levels > 1 else []}


JUNK = [None, True, -1, 1.5, "", "text", "[", [], [None], ["x"], [[]], {}, {"x": 1}, {"role": 3}, [{}], {"key": None}]
# Python 3.13 reads more levels than its code can follow, earlier ones refuse to.
DEEP = [nested(MAX_DEPTH + 50), [nested(300)]]
VALUES = {
    "conversations": {"messages": [*ASKED, CALLED, SEEN, SAID], "reward": 1, "tools": [], "task": {"a": 1}},
    "requests": request([*ASKED, CALLED, SEEN], SAID, reward=1, metadata={"session_id": "s"}),
    "tau": run(0, 1.0),
    "tau2": {"info": {"environment_info": {"policy": "p"}}, "simulations": [simulation(1.0)]},
    "spans": otlp(chat_span("t1", 1, [*TEXT, CALLING, RESULT], [ANSWER], [score(1.0)])),
}


def places(value, place=()):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield (*place, key)
        yield from places(part, (*place, key))


def damaged(value, rng: random.Random, junk: list):
    changed = copy.deepcopy(value)
    *way, last = rng.choice(list(places(value)))
    part = changed
    for key in way:
        part = part[key]
    part[last] = rng.choice(junk)
    return changed


@pytest.mark.parametrize("kind", VALUES)
def test_a_damaged_value_loses_no_other(tmp_path, kind):
    rng, good = random.Random(kind), VALUES[kind]
    others = json.loads(json.dumps(good).replace('"t1"', '"t9"').replace('"s"', '"s9"'))
    for junk in [JUNK] * 100 + [DEEP] * 30:
        bad = damaged(good, rng, junk)
        (tmp_path / "logs.jsonl").write_text("\n".join(map(json.dumps, [bad, others])))
        try:
            found = read_logs([tmp_path / "logs.jsonl"], lambda path: None)
        except ValueError as error:  # the damage is another name of the evaluation
            assert kind == "spans" and "choose one with --outcome" in str(error)
            continue
        assert 1 <= len(found.rows) <= 2, bad
        if junk is DEEP and kind in ("conversations", "requests", "tau"):  # of a row, which is lost alone
            assert len(found.rows) == 1 and found.unreadable.total() == 1, bad
        # Whatever is lost has a reason, but for spans and requests that are no calls any more.
        assert len(found.rows) == 2 or found.unreadable or kind in ("spans", "tau2"), bad
