# SPDX-License-Identifier: Apache-2.0

"""An agent with real vLLM, in its process and on a server: `make test-vllm`."""

import json

import pytest
import torch
from helpers.testing_utils import make_trained
from helpers.vllm_utils import MAX_MODEL_LENGTH, run
from peft import LoraConfig

from trl_nlac import NLACAgent
from trl_nlac.environments.embedded import TINY_MODEL


pytestmark = pytest.mark.vllm

STATES = [[{"role": "user", "content": f"{request} 2"}] for request in ("situ", "dufa", "pave", "runo")]
PROPOSED = "route billing amber photo noon"
GREEDY = dict(
    action_format="text",
    max_completion_length=48,
    role_sampling={role: {"temperature": 0.0} for role in ("evaluation", "critic", "refine")},
)
VLLM = {"dtype": "float32", "max_model_len": MAX_MODEL_LENGTH}
SCRIPT = """
import json
import sys

from helpers import vllm_utils
from trl_nlac import NLACAgent

model, states, proposed, options, backend_kwargs = (json.loads(argument) for argument in sys.argv[1:])
agent = NLACAgent.from_pretrained(model, "vllm", backend_kwargs=backend_kwargs, **options)
turns = agent.act_all(states, refine=1)
judgements = agent.critique_all([[*state, {"role": "assistant", "content": proposed}] for state in states])
metrics = agent.roles.generator.take_metrics()
print("RESULT" + json.dumps([[turn.action for turn in turns], judgements, metrics]))
"""


def expected(model: str) -> tuple[list[str], list]:
    agent = NLACAgent.from_pretrained(model, device="cpu", **GREEDY)
    turns = agent.act_all(STATES, refine=1)
    assert len({turn.action for turn in turns}) > 1 and any(turn.attempts for turn in turns)
    return [turn.action for turn in turns], judge(agent)


def judge(agent: NLACAgent) -> list:
    return agent.critique_all([[*state, {"role": "assistant", "content": PROPOSED}] for state in STATES])


def compare(actions: list[str], judgements: list, model: str) -> None:
    """Compare with transformers, whose scores are computed differently."""
    same_actions, same_judgements = expected(model)
    assert actions == same_actions
    for (critique, verdict, score), other in zip(judgements, same_judgements, strict=True):
        assert (critique, verdict) == other[:2]
        assert score == pytest.approx(other.verdict_score, abs=0.01)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory):
    path = tmp_path_factory.mktemp("adapter")
    config = LoraConfig(r=4, lora_alpha=64, target_modules="all-linear")
    options = {"max_steps": 3, "learning_rate": 1e-2}
    trainer = make_trained(path, options, peft_config=config)
    trainer.save_model()
    assert expected(str(path)) != expected(TINY_MODEL)
    return str(path)


@pytest.mark.parametrize(
    "trained", [pytest.param(False, id="whole"), pytest.param(True, id="adapter", marks=pytest.mark.slow)]
)
def test_in_process(trained, tmp_path, request):
    model = request.getfixturevalue("adapter") if trained else TINY_MODEL
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    printed = run(script, *map(json.dumps, (model, STATES, PROPOSED, GREEDY, VLLM)))
    (result,) = [line for line in printed.splitlines() if line.startswith("RESULT")]
    actions, judgements, metrics = json.loads(result.removeprefix("RESULT"))
    compare(actions, judgements, model)
    assert 0 <= metrics["generation/prefix_hit_rate"] <= 1


def test_server(vllm_server):
    agent = NLACAgent.from_pretrained(TINY_MODEL, f"{vllm_server.url}/v1", **GREEDY)
    engine = agent.roles.generator.engine
    assert engine.max_model_length == MAX_MODEL_LENGTH and engine.is_vllm
    compare([turn.action for turn in agent.act_all(STATES, refine=1)], judge(agent), TINY_MODEL)
    warm = NLACAgent.from_pretrained(TINY_MODEL, f"{vllm_server.url}/v1", **{**GREEDY, "role_sampling": None})
    said = []
    for _ in range(2):
        torch.manual_seed(0)
        said.append([turn.action for turn in warm.act_all(STATES * 2)])
    assert said[0] == said[1] and said[0][:4] != said[0][4:]  # by seeds
