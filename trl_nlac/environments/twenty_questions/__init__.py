# SPDX-License-Identifier: Apache-2.0

"""The game of twenty questions."""

from .game import TwentyQuestionsEnvironment, make_tasks
from .oracles import Answer, ChatOracle, QuestionOracle, RuleOracle
