# Copyright 2020-2026 The HuggingFace Team. All rights reserved.
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

from io import StringIO

import pytest
import torch
from accelerate import Accelerator
from tqdm import tqdm
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.base import Sampling
from trl_nlac.generation.transformers import TransformersGenerator


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY_MODEL)


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(TINY_MODEL)


def make_generator(tokenizer, batch_size=128):
    return TransformersGenerator(Accelerator(cpu=True), tokenizer, [tokenizer.eos_token_id], batch_size)


def make_prompts(tokenizer):
    chat = ChatEncoder(tokenizer)
    histories = ["baku 2", "lube 4 take red dozi 3", "zode 1", "route billing amber photo noon refused needs coral 1"]
    return [chat.start([{"role": "user", "content": history}]) for history in histories]


class TestTransformersGenerator:
    @pytest.mark.parametrize("batch_size", [2, 128])
    def test_batches_equal_a_plain_loop(self, model, tokenizer, batch_size):
        prompts = make_prompts(tokenizer)
        generator = make_generator(tokenizer, batch_size)
        with generator.session(model):
            completions = generator.generate(prompts, Sampling(max_tokens=24, temperature=0.0), [0] * 4)
        for prompt, completion in zip(prompts, completions, strict=True):
            token_ids = list(prompt)
            for _ in range(24):  # no cache, no padding
                token_ids.append(int(model(torch.tensor([token_ids])).logits[0, -1].argmax()))
                if token_ids[-1] == tokenizer.eos_token_id:
                    break
            assert completion.token_ids == token_ids[len(prompt) :]

    def test_a_bar_is_updated(self, model, tokenizer):
        generator, prompts = make_generator(tokenizer, batch_size=3), make_prompts(tokenizer)
        with generator.session(model), tqdm(total=4, file=StringIO()) as bar:
            generator.generate(prompts, Sampling(max_tokens=2), [0] * 4, bar)
            assert bar.n == 4

    def test_cut_off_completions_are_marked(self, model, tokenizer):
        generator = make_generator(tokenizer)
        with generator.session(model):
            short, long = (
                generator.generate(make_prompts(tokenizer)[:1], Sampling(max_tokens=number, temperature=0.0), [0])[0]
                for number in (2, 24)
            )
        assert not short.finished and len(short.token_ids) == 2
        assert long.finished and long.token_ids[-1] == tokenizer.eos_token_id

    def test_sampling_follows_the_model(self, model, tokenizer):
        prompt = make_prompts(tokenizer)[2]
        generator = make_generator(tokenizer, batch_size=4000)
        for temperature in (0.5, 1.0):
            with generator.session(model):
                sampling = Sampling(max_tokens=2, temperature=temperature)
                completions = generator.generate([prompt] * 4000, sampling, list(range(4000)))
            first = torch.bincount(torch.tensor([completion.token_ids[1] for completion in completions]))
            with torch.no_grad():
                token_ids = [*prompt, completions[0].token_ids[0]]
                expected = (model(torch.tensor([token_ids])).logits[0, -1] / temperature).softmax(-1)
            observed = torch.zeros_like(expected)
            observed[: len(first)] = first / first.sum()
            assert (observed - expected).abs().sum() < 0.06

    def test_a_seed_gives_the_same_in_any_batch(self, model, tokenizer):
        prompts, sampling = make_prompts(tokenizer) * 4, Sampling(max_tokens=24, temperature=2.0)
        seeds = list(range(len(prompts)))
        completions = []
        for batch_size in (3, 128):
            generator = make_generator(tokenizer, batch_size)
            with generator.session(model):
                completions.append(generator.generate(prompts, sampling, seeds))
                alone = generator.generate(prompts[5:6], sampling, seeds[5:6])
            assert alone[0] == completions[-1][5]
        assert completions[0] == completions[1]
        assert len({tuple(completion.token_ids) for completion in completions[0]}) > 8  # four prompts

    @pytest.mark.parametrize(
        "options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"generation_kwargs": {"epsilon_cutoff": 0.999}}]
    )
    def test_narrow_sampling_is_greedy(self, model, tokenizer, options):
        generator = make_generator(tokenizer)
        prompts, seeds = make_prompts(tokenizer), [0, 1, 2, 3]
        with generator.session(model):
            greedy = generator.generate(prompts, Sampling(max_tokens=24, temperature=0.0), seeds)
            assert generator.generate(prompts, Sampling(max_tokens=24, temperature=1.5, **options), seeds) == greedy

    def test_session_leaves_the_mode_of_the_model(self, model, tokenizer):
        model.train()
        with make_generator(tokenizer).session(model):
            assert not model.training
        assert model.training
        model.eval()


class WithoutLogitsToKeep(LlamaForCausalLM):
    """Returns the logits of all tokens, like older models."""

    def forward(self, input_ids, attention_mask, use_cache):
        return super().forward(input_ids=input_ids, attention_mask=attention_mask, use_cache=use_cache)


class TestScore:
    @pytest.mark.parametrize("batch_size", [2, 128])
    @pytest.mark.parametrize("kind", [AutoModelForCausalLM, WithoutLogitsToKeep, "adapter"])
    def test_scores_equal_a_plain_loop(self, tokenizer, kind, batch_size):
        if kind == "adapter":
            peft = pytest.importorskip("peft")
            model = peft.get_peft_model(
                AutoModelForCausalLM.from_pretrained(TINY_MODEL), peft.LoraConfig(init_lora_weights=False)
            )
        else:
            model = kind.from_pretrained(TINY_MODEL)
        model.eval()
        prompts = make_prompts(tokenizer)
        completions = [tokenizer(text)["input_ids"] for text in ("Yes", "route billing amber", "", "No")]
        generator, sizes = make_generator(tokenizer, batch_size), []
        model.get_output_embeddings().register_forward_hook(lambda *args: sizes.append(args[-1].shape[1]))
        with generator.session(model):
            scores = generator.score(prompts, completions)
        if kind is not WithoutLogitsToKeep:  # only logits of the requested tokens
            assert max(sizes) <= sum(map(len, completions))
        for prompt, completion, score in zip(prompts, completions, scores, strict=True):
            token_ids = torch.tensor([prompt + completion])
            with torch.no_grad():
                logps = (
                    model(token_ids, attention_mask=torch.ones_like(token_ids), use_cache=False)
                    .logits[0]
                    .log_softmax(-1)
                )
            expected = sum(logps[len(prompt) - 1 + t, token_id].item() for t, token_id in enumerate(completion))
            assert score == pytest.approx(expected, abs=1e-4)
        assert scores[2] == 0.0 and len(set(scores)) == 4

    def test_nothing_to_score(self, model, tokenizer):
        generator, prompts = make_generator(tokenizer), make_prompts(tokenizer)
        with generator.session(model):
            assert generator.score(prompts, [[]] * 4) == [0.0] * 4 and generator.score([], []) == []
