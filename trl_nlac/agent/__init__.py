# SPDX-License-Identifier: Apache-2.0

"""A trained model at work."""

from .agent import NLACAgent
from .async_agent import AsyncNLACAgent
from .critic_reward import CriticReward
