# SPDX-License-Identifier: Apache-2.0

"""
Twenty questions: find a hidden object with yes/no questions. `oracles.py` answers them; `objects.yaml` has the objects
and the facts about them.
"""

from datasets import Dataset

from ...episodes.text_environment import StepResult, TextEnvironment
from .objects import OBJECTS
from .oracles import Answer, QuestionOracle, RuleOracle


FIRST_OBSERVATION = """\
I think of an object. In each turn ask one question about it that is answered by yes or no. To guess, name one \
object, as in "Is it a bell?". You win if you name it within {max_questions} questions."""


class TwentyQuestionsEnvironment(TextEnvironment):
    """
    Plays the game of 20 questions (paper, section 6.1). `reset(object=...)` chooses the object to find.

    An action is a question. A guess is also a question, and the oracle judges whether it is right: for [`RuleOracle`],
    a guess names exactly one object and asks nothing else about it ("Is it a dog?", "My guess is: dog", "dog");
    [`ChatOracle`] lets its model decide. A right guess ends the game with reward 1. The last question ends it with
    reward 0: that is a rule of the game, so the episode is terminated and not truncated. The object is not revealed
    then, because a critique that contains it could give it away to the policy.

    Args:
        oracle ([`QuestionOracle`], *optional*):
            Answers the questions. If `None`, a [`RuleOracle`], which needs no model. Environments can share an oracle.
        max_questions (`int`, *optional*, defaults to `20`):
            Number of questions, including guesses and questions that were not understood.

    Raises:
        ValueError: If `max_questions` is less than 1.
    """

    def __init__(self, oracle: QuestionOracle | None = None, max_questions: int = 20):
        if max_questions < 1:
            raise ValueError(f"`max_questions` must be at least 1, got {max_questions}.")
        self.max_questions = max_questions
        self._answerer = RuleOracle() if oracle is None else oracle  # the attribute `oracle` is for checking critics
        self._object, self._questions_left = "", 0

    def reset(self, object: str, **task) -> str:
        self._object, self._questions_left = object, self.max_questions
        return FIRST_OBSERVATION.format(max_questions=self.max_questions)

    def step(self, action: str) -> StepResult:
        answer = self._answerer.answer(self._object, action)
        self._questions_left -= 1
        if answer is Answer.RIGHT:
            return StepResult(f"{answer.value} You win.", reward=1.0, terminated=True)
        if not self._questions_left:
            return StepResult(f"{answer.value} That was the last question. You lose.", terminated=True)
        return StepResult(f"{answer.value} Questions left: {self._questions_left}.")


def make_tasks(split: str) -> Dataset:
    """
    Return the objects of the table as a dataset with the column `object`. Every fourth object is for evaluation, the
    others are for training.

    Args:
        split (`str`):
            `"train"` or `"eval"`.

    Raises:
        ValueError: If there is no such split.
    """
    if split not in ("train", "eval"):
        raise ValueError(f"`split` must be 'train' or 'eval', got {split!r}.")
    return Dataset.from_dict({"object": [name for i, name in enumerate(OBJECTS) if (i % 4 == 3) == (split == "eval")]})
