# SPDX-License-Identifier: Apache-2.0

import random
from contextlib import contextmanager
from io import StringIO

import pytest
import torch
from accelerate import Accelerator
from helpers.testing_utils import make_trained
from tqdm import tqdm
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    Gemma3TextConfig,
    Lfm2Config,
    LlamaForCausalLM,
    MistralConfig,
    PreTrainedModel,
    set_seed,
)

from trl_nlac.chat.encoder import ChatEncoder
from trl_nlac.environments.embedded import TINY_MODEL
from trl_nlac.generation.generator import Sampling
from trl_nlac.generation.transformers import TransformersGenerator, weights_mark


@pytest.fixture(scope="module")
def model():
    return AutoModelForCausalLM.from_pretrained(TINY_MODEL)


def make_generator(tokenizer, batch_size=128, **kwargs):
    return TransformersGenerator(Accelerator(cpu=True), tokenizer, [tokenizer.eos_token_id], batch_size, **kwargs)


def make_prompts(tokenizer):
    chat = ChatEncoder(tokenizer)
    histories = ["baku 2", "lube 4 take red dozi 3", "zode 1", "route billing amber photo noon refused needs coral 1"]
    return [chat.start([{"role": "user", "content": history}]) for history in histories]


def generate(model, tokenizer, prompts, sampling, batch_size=128):
    generator = make_generator(tokenizer, batch_size)
    with generator.session(model):
        return generator.generate(prompts, sampling, list(range(len(prompts))))


class TestTransformersGenerator:
    @pytest.mark.parametrize("batch_size", [2, 128])
    def test_batches_equal_a_plain_loop(self, model, tokenizer, batch_size):
        prompts = make_prompts(tokenizer)
        completions = generate(model, tokenizer, prompts, Sampling(max_tokens=24, temperature=0.0), batch_size)
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
        prompts = make_prompts(tokenizer)[:1]
        (short,), (long,) = (generate(model, tokenizer, prompts, Sampling(number, 0.0)) for number in (2, 24))
        assert not short.finished and len(short.token_ids) == 2
        assert long.finished and long.token_ids[-1] == tokenizer.eos_token_id

    def test_sampling_follows_the_model(self, model, tokenizer):
        prompt = make_prompts(tokenizer)[2]
        for temperature in (0.5, 1.0):
            sampling = Sampling(max_tokens=2, temperature=temperature)
            completions = generate(model, tokenizer, [prompt] * 4000, sampling, batch_size=4000)
            first = torch.bincount(torch.tensor([completion.token_ids[1] for completion in completions]))
            with torch.no_grad():
                token_ids = [*prompt, completions[0].token_ids[0]]
                expected = (model(torch.tensor([token_ids])).logits[0, -1] / temperature).softmax(-1)
            observed = torch.zeros_like(expected)
            observed[: len(first)] = first / first.sum()
            assert (observed - expected).abs().sum() < 0.06

    def test_every_token_is_drawn_anew(self, model, tokenizer):
        drawn = generate(model, tokenizer, make_prompts(tokenizer)[:1] * 32, Sampling(max_tokens=2, temperature=1e4))
        assert sum(len(set(completion.token_ids)) == 2 for completion in drawn) > 28

    def test_repetition_is_penalised(self, model, tokenizer):
        prompts, samplings = (
            make_prompts(tokenizer)[:1],
            [Sampling(24, 0.0, repetition_penalty=p) for p in (1.0, 100.0)],
        )
        (plain,), (varied,) = (generate(model, tokenizer, prompts, sampling) for sampling in samplings)
        assert plain.token_ids != varied.token_ids and len(set(varied.token_ids)) == len(varied.token_ids)

    def test_a_seed_gives_the_same_in_any_batch(self, model, tokenizer):
        prompts, sampling = make_prompts(tokenizer) * 4, Sampling(max_tokens=24, temperature=2.0)
        seeds = list(range(len(prompts)))
        completions = []
        for batch_size in (3, 128):
            generator = make_generator(tokenizer, batch_size)
            with generator.session(model):
                completions.append(generator.generate(prompts, sampling, seeds))
                alone = generator.generate(prompts[5:6], sampling, seeds[5:6])
            assert alone[0].token_ids == completions[-1][5].token_ids
        assert [c.token_ids for c in completions[0]] == [c.token_ids for c in completions[1]]
        assert len({tuple(completion.token_ids) for completion in completions[0]}) > 8  # four prompts

    @pytest.mark.parametrize(
        "options", [{"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}, {"generation_kwargs": {"epsilon_cutoff": 0.999}}]
    )
    def test_narrow_sampling_is_greedy(self, model, tokenizer, options):
        samplings = Sampling(max_tokens=24, temperature=0.0), Sampling(max_tokens=24, temperature=1.5, **options)
        greedy, narrow = (generate(model, tokenizer, make_prompts(tokenizer), sampling) for sampling in samplings)
        assert [completion.token_ids for completion in narrow] == [completion.token_ids for completion in greedy]

    def test_session_leaves_the_mode_of_the_model(self, model, tokenizer):
        model.train()
        with make_generator(tokenizer).session(model):
            assert not model.training
        assert model.training
        model.eval()

    def test_a_session_goes_on_after_one_within_it(self, model, tokenizer):
        generator = make_generator(tokenizer)
        asked = make_prompts(tokenizer)[:1], Sampling(max_tokens=8, temperature=0.0), [0]
        with generator.session(model):
            expected = generator.generate(*asked)
            with generator.session(model):
                assert generator.generate(*asked) == expected
            assert generator.generate(*asked) == expected


class WithoutLogitsToKeep(LlamaForCausalLM):
    """Returns the logits of all tokens, like older models."""

    def forward(self, input_ids, attention_mask, use_cache, position_ids=None, past_key_values=None):
        return super().forward(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            use_cache=use_cache,
        )


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


SMALL = {
    **dict(vocab_size=961, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4),
    **dict(num_key_value_heads=2, pad_token_id=0, bos_token_id=None, eos_token_id=1, initializer_range=0.3),
}
CONFIGS = {
    "mistral": MistralConfig(**SMALL, sliding_window=24),
    "gemma3": Gemma3TextConfig(
        **SMALL, head_dim=8, sliding_window=24, layer_types=["sliding_attention", "full_attention"]
    ),
    "recurrent": Lfm2Config(**SMALL, layer_types=["conv", "full_attention"]),
}


def make_model(kind):
    set_seed(0)
    if kind not in CONFIGS:
        return AutoModelForCausalLM.from_pretrained(TINY_MODEL)
    return AutoModelForCausalLM.from_config(CONFIGS[kind])


def converse(generator, model, temperature):
    rng = random.Random(0)

    def words(number):
        return [rng.randrange(5, 900) for _ in range(number)]

    system, sampling, answers = words(100), Sampling(max_tokens=8, temperature=temperature), []
    prompts = [system + words(number) for number in (3, 10, 25, 25, 80)]
    prompts += [prompt + words(4) for prompt in prompts[:2]] + [words(12), prompts[0]]
    with generator.session(model):
        for _ in range(3):
            completions = generator.generate(prompts, sampling, list(range(len(prompts))))
            answers += completions
            prompts = [
                prompt + completion.token_ids + words(7 + i % 3)
                for i, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
            ]
        pairs = [(prompt, verdict) for prompt in prompts for verdict in ([5, 6], [7])]
        return answers, generator.score(*map(list, zip(*pairs, strict=True)))


@contextmanager
def counted(model):
    fed = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: fed.append(int((kwargs["input_ids"] != 0).sum())), with_kwargs=True
    )
    yield fed
    hook.remove()


class TestPrefixCache:
    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    @pytest.mark.parametrize(("kind", "little"), [("tiny", 1e-3), ("mistral", 1e-4), ("gemma3", 1e-4)])
    def test_tokens_are_those_of_whole_prompts(self, tokenizer, kind, little, temperature):
        model = make_model(kind)
        answers, scores = converse(make_generator(tokenizer, prefix_cache_memory=0), model, temperature)
        # A batch of all, small batches, and room for some 400 tokens only.
        for batch_size, memory in [(128, 4.0), (3, 4.0), (128, little)]:
            generator = make_generator(tokenizer, batch_size, prefix_cache_memory=memory)
            others, other_scores = converse(generator, model, temperature)
            assert [answer.token_ids for answer in others] == [answer.token_ids for answer in answers]
            assert other_scores == pytest.approx(scores, abs=1e-3)
            hit_rate = generator.take_metrics()["generation/prefix_hit_rate"]
            assert hit_rate > 0.8 if memory == 4.0 else 0.1 < hit_rate < 0.8

    def test_only_new_tokens_are_read(self, model, tokenizer):
        generator, (prompt, *_) = make_generator(tokenizer), make_prompts(tokenizer)
        sampling = Sampling(4, temperature=0.0, generation_kwargs={"min_new_tokens": 4})
        with generator.session(model), counted(model) as fed:
            (first,) = generator.generate([prompt], sampling, [0])
            assert fed == [len(prompt), 1, 1, 1] and first.num_cached_tokens == 0
            fed.clear()
            longer = prompt + first.token_ids + [5, 6, 7]
            (second,) = generator.generate([longer], sampling, [0])
            assert fed == [4, 1, 1, 1]  # the last sampled token was not read
            assert second.num_cached_tokens == len(longer) - 4
            fed.clear()
            generator.score([longer] * 2, [[8], [9]])
            assert sum(fed) == 2
            fed.clear()
            generator.generate([prompt[:-1] + [5]], sampling, [0])  # leaves what is known before its end
            assert fed[0] == 1
        assert generator.take_metrics()["generation/prefix_hit_rate"] == pytest.approx(
            1 - (len(prompt) + 4 + 2 + 1) / (len(prompt) * 2 + len(longer) * 3)
        )
        with generator.session(model), counted(model) as fed:
            generator.generate([prompt], sampling, [0])
            assert fed[0] == len(prompt)  # nothing is left of an earlier session

    def test_the_hit_rate_of_a_cache_that_is_smaller_than_a_batch_is_zero(self, model, tokenizer):
        generator = make_generator(tokenizer, prefix_cache_memory=1e-6)
        converse(generator, model, temperature=0.0)
        assert generator._num_read > generator._num_tokens  # some were read twice
        assert generator.take_metrics()["generation/prefix_hit_rate"] == 0

    def test_prefixes_are_kept_between_sessions_of_the_same_weights(self, tokenizer):
        model = AutoModelForCausalLM.from_pretrained(TINY_MODEL)
        generator, plain = make_generator(tokenizer, keeps_prefixes=True), make_generator(tokenizer)
        prompt, sampling = make_prompts(tokenizer)[3], Sampling(max_tokens=8, temperature=0.0)

        def ask(generator):
            with generator.session(model):
                return generator.generate([prompt], sampling, [0])[0]

        def changed_by(change):
            assert ask(generator).num_cached_tokens == len(prompt) - 1
            change()
            answer = ask(generator)
            assert answer.num_cached_tokens == 0 and answer == ask(plain)

        ask(generator)
        head, embedding = model.model.norm.weight, model.get_input_embeddings().weight
        with torch.no_grad():
            changed_by(lambda: head.mul_(-1))
            changed_by(lambda: embedding[-1].add_(1))
        changed_by(lambda: embedding.data.mul_(-1))

        def interrupt():
            with pytest.raises(KeyboardInterrupt), generator.session(model):
                raise KeyboardInterrupt

        changed_by(interrupt)

    def test_a_beginning_that_a_batch_shares_is_read_once(self, model, tokenizer):
        system = list(range(10, 210))
        prompts = [[*system, 300 + i, 301, 302] for i in range(16)]
        generator = make_generator(tokenizer)
        with generator.session(model), counted(model) as fed:
            completions = generator.generate(prompts, Sampling(max_tokens=1), [0] * 16)
        assert fed == [200, 16 * 3]
        assert sum(completion.num_cached_tokens for completion in completions) == 15 * 200

    def test_one_long_prompt_does_not_make_others_read_more(self, model, tokenizer):
        generator, sampling = make_generator(tokenizer), Sampling(max_tokens=1)
        known = [[*range(10 + i, 110 + i)] for i in range(16)]
        with generator.session(model), counted(model) as fed:
            generator.generate(known, sampling, [0] * 16)
            fed.clear()
            generator.generate([*(prompt + [5, 6] for prompt in known), [7] * 150], sampling, [0] * 17)
            assert fed == [148, 17 * 2]

    def test_processes_that_generate_together_make_the_same_passes(self, model, tokenizer):
        """Where each pass needs all processes, none reads ahead: what it knows only makes its passes shorter."""
        system, sampling = list(range(10, 210)), Sampling(1, temperature=0.0)
        prompts = [[*system, 300 + i, 301] for i in range(3)] + [[7] * 150]
        generator = make_generator(tokenizer, gathers=False)
        torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
        try:
            with generator.session(model), counted(model) as fed:
                first = generator.generate(prompts, sampling, [0] * 4)
                again = generator.generate([prompt + [5] for prompt in prompts], sampling, [0] * 4)
                scores = generator.score(prompts, [[5]] * 4)
        finally:
            torch.distributed.destroy_process_group()
        assert fed == [3 * 202 + 150, 4, 4] and [completion.num_cached_tokens for completion in again][0] == 202
        whole = make_generator(tokenizer, prefix_cache_memory=0)
        with whole.session(model):
            assert whole.generate(prompts, sampling, [0] * 4) == first
            assert whole.score(prompts, [[5]] * 4) == pytest.approx(scores, abs=1e-4)

    def test_an_adapter_that_is_turned_off_is_seen(self):
        """Whichever class the model has, as of one into which transformers loads an adapter itself."""
        peft = pytest.importorskip("peft")
        model = make_model("mistral")
        peft.inject_adapter_in_model(peft.LoraConfig(init_lora_weights=False, target_modules=["q_proj"]), model)
        layers = [layer for layer in model.modules() if isinstance(layer, peft.tuners.tuners_utils.BaseTunerLayer)]
        marks = [weights_mark(model)]
        for is_on in (False, True):
            for layer in layers:
                layer.enable_adapters(is_on)
            marks.append(weights_mark(model))
        assert layers and marks[0] == marks[2] != marks[1]

    def test_recurrent_models_read_prompts_whole(self, tokenizer, caplog):
        model = make_model("recurrent")
        generator = make_generator(tokenizer)
        for temperature in (0.0, 1.0):
            answers, scores = converse(generator, model, temperature)
            others, other_scores = converse(make_generator(tokenizer, prefix_cache_memory=0), model, temperature)
            assert [answer.token_ids for answer in others] == [answer.token_ids for answer in answers]
            assert other_scores == scores
        assert caplog.text.count("every prompt is read whole") == 1
        assert generator.take_metrics()["generation/prefix_hit_rate"] == 0

    @pytest.mark.parametrize("kwargs", [{"cache_implementation": "static"}, {"use_cache": False}, {"num_beams": 2}])
    def test_other_ways_to_generate_read_prompts_whole(self, model, tokenizer, kwargs):
        prompts, sampling = make_prompts(tokenizer), Sampling(4, temperature=0.0, generation_kwargs=kwargs)
        generator = make_generator(tokenizer)
        with generator.session(model):
            for _ in range(2):
                completions = generator.generate(prompts, sampling, [0] * 4)
                assert [completion.num_cached_tokens for completion in completions] == [0] * 4


def test_a_compiled_model_reads_and_generates_the_same(model, tokenizer):
    """Its `forward` takes anything, and shows none of its arguments."""
    generator, sampling = make_generator(tokenizer), Sampling(8, temperature=0.0)
    prompts = [[5, 6, 7, 8], [5, 6, 9], [11, 12]]
    found = []
    for read in (model, torch.compile(model, backend="eager")):
        with generator.session(read):
            scores = generator.score(prompts, [[20, 21], [22], [23]])
            found.append((scores, [one.token_ids for one in generator.generate(prompts, sampling, [0] * 3)]))
    assert found[0][1] == found[1][1]
    torch.testing.assert_close(found[0][0], found[1][0])


@pytest.mark.skipif(not hasattr(PreTrainedModel, "activation_checkpointing_enable"), reason="needs transformers 5.24")
def test_layers_are_recomputed_after_a_session_as_before(tmp_path):
    kwargs = {"use_reentrant": False, "every_n_layers": 2}
    trainer = make_trained(tmp_path, {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": kwargs})
    layers = trainer.model.model.layers
    assert [layer.gradient_checkpointing for layer in layers] == [i % 2 == 0 for i in range(len(layers))]


def test_options_that_transformers_would_not_read_are_refused(model, tokenizer):
    sampling = Sampling(4, generation_kwargs={"no_repeat_ngram_size": 2, "no_repeat_ngram_sze": 2})
    generator = make_generator(tokenizer)
    with generator.session(model), pytest.raises(ValueError, match="no option 'no_repeat_ngram_sze' of generation"):
        generator.generate([[5, 6]], sampling, [0])


def test_a_session_warns_of_nothing_that_trl_alone_can_change(recwarn):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(TINY_MODEL), AutoTokenizer.from_pretrained(TINY_MODEL)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    recwarn.clear()
    generator = TransformersGenerator(Accelerator(cpu=True), tokenizer, [tokenizer.eos_token_id], 8)
    with generator.session(model):
        pass
    assert not [str(warning.message) for warning in recwarn if "deprecated" in str(warning.message)]
