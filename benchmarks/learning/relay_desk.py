# SPDX-License-Identifier: Apache-2.0

"""
The relay desk, where neither words nor bootstrapping are enough: requests that are handed down from floor to floor.

Each floor has a request in a living and a dead copy, which differ in their names alone. Every request accepts two
calls of four arguments with eight values each: one keeps a living request alive, the other kills it, and both are
answered alike, with the request of the floor below. What was killed stays dead. On the first floor the request is
closed: a win if it is alive, by the call that keeps it so. Any other call is refused and ends the episode; the refusal
names the right value of the first wrong argument of the accepted call that is nearer.

An episode of training is a piece: one call, cut after an answer that goes on. No method sees a whole way. Evaluation
starts on the highest floor and goes to the end. An observation is the whole state (`keep_history=False`).

With 4,096 calls and few steps a call is only found by words; which of the two calls of a higher floor is right is only
found by joining pieces. So the success that can be reached is 1 by words and bootstrapping, `0.5 ** (floors - 1)` by
words alone, and 0 without words.
"""

import random
from dataclasses import dataclass

from trl_nlac.environments import StepResult, TextEnvironment
from trl_nlac.environments.embedded.names import REQUESTS_OF_NEW_DESKS
from trl_nlac.environments.embedded.service_desk import VALUES, Call, first_wrong, parse_call


@dataclass(frozen=True)
class RelayDesk:
    """
    One desk. `floors` has the names of the living and the dead request of each floor, from the first; `calls` the two
    calls that a request accepts: the one that keeps it alive, and the one that kills it. They share no argument.
    """

    floors: list[tuple[str, str]]
    calls: dict[str, tuple[Call, Call]]

    @classmethod
    def draw(cls, rng: random.Random, names: list[str]) -> "RelayDesk":
        """Draw the calls of the requests `names`, two for each floor."""
        calls = {name: tuple(zip(*(rng.sample(values, 2) for values in VALUES), strict=True)) for name in names}
        return cls(list(zip(names[::2], names[1::2], strict=True)), calls)

    @classmethod
    def from_seed(cls, seed: int, num_floors: int = 3) -> "RelayDesk":
        """Draw a desk whose names no embedded model has seen with fixed calls."""
        rng = random.Random(f"relay desk {seed}")
        return cls.draw(rng, rng.sample(REQUESTS_OF_NEW_DESKS, 2 * num_floors))

    def answer(self, rng: random.Random, request: str, call: Call | None) -> str:
        """Return the desk's answer to a call."""
        if call is None:
            return "refused unreadable lose"
        if call not in self.calls[request]:
            wrong = [first_wrong(call, accepted) for accepted in self.calls[request]]
            nearer = rng.choice([i for i, position in enumerate(wrong) if position == max(wrong)])
            return f"refused needs {self.calls[request][nearer][wrong[nearer]]} lose"
        [floor] = [i for i, copies in enumerate(self.floors) if request in copies]
        is_alive = request == self.floors[floor][0] and call == self.calls[request][0]
        if floor == 0:
            return "closed win" if is_alive else "closed lose"
        return f"accepted {self.floors[floor - 1][0 if is_alive else 1]}"


class RelayDeskEnvironment(TextEnvironment):
    """
    Plays one desk from the named `request`, whole or a piece of one call. A piece that goes on is cut; with
    `pieces_win` it is a success of its own, so that nothing is joined.
    """

    takes_seed = True  # which of two equally near calls a refusal names

    def __init__(self, world: RelayDesk, whole: bool = False, pieces_win: bool = False):
        self.world, self.whole, self.pieces_win = world, whole, pieces_win
        self._rng, self._request = random.Random(0), ""

    def reset(self, request: str, seed: int = 0, **task) -> str:
        self._rng, self._request = random.Random(seed), request
        return f"accepted {request}"

    def step(self, action: str) -> StepResult:
        answer = self.world.answer(self._rng, self._request, parse_call(action))
        verdict, self._request = answer.split()[0], answer.split()[-1]
        if verdict != "accepted":
            return StepResult(answer, reward=float(answer == "closed win"), terminated=True)
        if self.whole:
            return StepResult(answer)
        return StepResult(answer, float(self.pieces_win), terminated=self.pieces_win, truncated=not self.pieces_win)
