# SPDX-License-Identifier: Apache-2.0

"""The game of twenty questions."""

from .game import Answer, ChatOracle, QuestionOracle, RuleOracle, TwentyQuestionsEnvironment, make_tasks
